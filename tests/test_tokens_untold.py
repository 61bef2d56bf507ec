"""Prompts of which nobody tells the tokens: they are counted from what was sent, and never free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from episodes import right
from mempo_agents.base import Context
from mempo_agents.models.base import Message, Prompt
from mempo_agents.rollout import episodes
from mempo_agents.rounds import ModelAgent, Round, as_shown
from mempo_benchmarks.report import tables
from mempo_benchmarks.run import bench, make_plan
from mempo_benchmarks.summary import compare
from mempo_env.cli import main
from mempo_env.tokens import count_words
from mempo_env.types import Call, Completion, Episode
from runs import write_run
from small import QUESTIONS, TitleRetriever

ANSWER = "<answer>no idea</answer>"


class Untold:
    """Answers, with what a server without a counter says of the tokens: nothing, or 0."""

    name = fingerprint = "untold"

    def __init__(self, tokens: int | None, segments: bool = True) -> None:
        self.tokens, self.segments = tokens, segments
        self.sent: list[str] = []

    def generate(self, prompts: Sequence[Prompt]) -> list[Call]:
        self.sent += [prompt.text for prompt in prompts]
        return [
            Call(
                segments=prompt.segments if self.segments else (),
                output=ANSWER,
                prompt_tokens=self.tokens,
            )
            for prompt in prompts
        ]


def bare(context: Context) -> Round:
    """A prompt of messages alone: they are not those of the environment."""
    return (yield Prompt((Message("system", "be brief"), Message("user", f"so: {context.prompt}"))))


def composed(context: Context) -> Round:
    return (yield as_shown(context))


def play(agent: object) -> Episode:
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    ((_, episode),) = episodes(agent, ["q0"], env_kwargs=kwargs)  # type: ignore[arg-type]
    return episode


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("tokens", [None, 0])
@pytest.mark.parametrize("round", [bare, composed])
def test_a_prompt_of_unknown_length_is_counted_from_what_was_sent(
    round: object, tokens: int | None, segments: bool
) -> None:
    model = Untold(tokens, segments)
    episode = play(ModelAgent(name="asks", play=round, model=model, env_kwargs={}))  # type: ignore[arg-type]
    assert episode.tokens.prompt == count_words(model.sent[0]) > 10
    assert episode.tokens.output == count_words(ANSWER)


@pytest.mark.parametrize("tokens", [None, 0])
def test_a_call_that_tells_nothing_is_over_what_was_in_view(tokens: int | None) -> None:
    class Own:
        name = fingerprint = "own"
        env_kwargs: Mapping[str, object] = MappingProxyType({})
        prompt = ""

        def act(self, contexts: Sequence[Context]) -> list[Completion]:
            self.prompt = contexts[0].prompt
            return [Completion(ANSWER, calls=[Call(output=ANSWER, prompt_tokens=tokens)])] * len(contexts)

    agent = Own()
    assert play(agent).tokens.prompt == count_words(agent.prompt) > 10


@pytest.mark.parametrize("round", [bare, composed])
def test_words_are_not_taken_for_tokens_that_a_model_told(round: object) -> None:
    """They were written where a server's count stands, so the unit was "tokens of own and words"."""
    agent = ModelAgent(name="asks", play=round, model=Untold(None, segments=False), env_kwargs={})  # type: ignore[arg-type]
    (call,) = play(agent).rounds[0].calls
    assert call.prompt_tokens is None and call.segments


WORDS = """
from mempo_env.types import Call

class Words:
    name = fingerprint = "none"
    told = None
    def generate(self, prompts):
        return [Call(output="<answer> a b </answer>", output_tokens=self.told) for _ in prompts]

class Half(Words):
    name = fingerprint = "half"
    told = 9
"""


@pytest.mark.parametrize(("model", "unit"), [("Words", "words"), ("Half", "tokens of half and words")])
def test_the_unit_is_that_of_what_was_told(
    model: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words_model.py").write_text(WORDS)
    monkeypatch.syspath_prepend(tmp_path)
    plan = make_plan("synthetic", ["react", "memagent"], model=f"words_model:{model}", episodes=1)
    bench(plan, tmp_path / "run")
    units = {arm.agent: arm.unit for arm in compare([tmp_path / "run"]).arms}
    assert units["react"] == units["memagent"] == unit


def test_what_a_server_tells_is_taken_as_it_is() -> None:
    assert play(ModelAgent(name="asks", play=bare, model=Untold(7), env_kwargs={})).tokens.prompt == 7


OWN = """
from mempo_env.types import Call

class Zero:
    name = fingerprint = "zero"
    def generate(self, prompts):
        text = "<search> a </search>"
        return [Call(segments=p.segments, output=text, prompt_tokens=0, output_tokens=0) for p in prompts]
"""


def test_a_server_that_tells_zero_of_all_does_not_end_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zero_model.py").write_text(OWN)
    (tmp_path / "prices.toml").write_text("[zero]\nprompt = 0\noutput = 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["bench", "run", "--dataset", "synthetic", "--agents", "react", "--episodes", "2"]
    assert main([*command, "--max-rounds", "4", "--model", "zero_model:Zero", "--out", "run"]) == 0
    assert main(["bench", "report", "run", "--prices", "prices.toml"]) == 0
    (arm,) = (arm for arm in compare([Path("run")]).arms if arm.agent == "react")
    assert min(point.mean for point in arm.prompts) > 10
    rounds = arm.metrics["rounds"]
    assert rounds is not None and arm.spent["output"].episode.value == 3 * rounds.value > 0


def test_rows_without_any_tokens_are_reported(tmp_path: Path) -> None:
    """As an earlier version wrote them."""
    free = [replace(played, tokens=replace(played.tokens, prompt=0)) for played in right().rounds]
    write_run(tmp_path / "run", {"random": [replace(right(), rounds=tuple(free))] * 2})
    assert tables(compare([tmp_path / "run"]))
