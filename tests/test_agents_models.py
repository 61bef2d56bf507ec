"""Models behind agents: by name, in batches, every call in the record, faults that end one episode alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mempo_agents import make_agent
from mempo_agents.base import Context
from mempo_agents.models.base import ModelError, ModelOverflow, ModelTimeout, Prompt
from mempo_agents.models.scripted import ScriptedModel
from mempo_agents.models.table import make_model
from mempo_agents.rollout import episodes
from mempo_agents.rounds import ModelAgent, Round, as_shown, inside
from mempo_benchmarks.results import read_plan
from mempo_benchmarks.run import bench, make_plan
from mempo_benchmarks.summary import compare
from mempo_env.cli import main
from mempo_env.errors import ConfigError, ResultsError
from mempo_env.types import Call, Completion, Episode, StopReason
from small import QUESTIONS, TitleRetriever

IDS = [f"q{i}" for i in range(6)]


def play(agent: ModelAgent, num_envs: int = 6) -> list[Episode]:
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    played = dict(episodes(agent, IDS, env_kwargs=kwargs, num_envs=num_envs))
    return [played[i] for i in range(len(IDS))]


class Counting:
    """The scripted model, with the sizes of the batches that it was asked."""

    name = fingerprint = "counting"

    def __init__(self) -> None:
        self.batches: list[int] = []

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        self.batches.append(len(prompts))
        return ScriptedModel().generate(prompts)


# --- By name -----------------------------------------------------------------------------------------------


def test_a_wrong_model_gets_the_nearest_and_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="unknown model 'scriptd': did you mean 'scripted'"):
        make_agent("mempo", model="scriptd")
    with pytest.raises(ConfigError, match="model 'os:sep': wanted name, fingerprint, generate; it has no"):
        make_model("os:sep")
    with pytest.raises(ConfigError, match="wanted module:thing that can be imported"):
        make_model("no_such_module:Model")
    with pytest.raises(ConfigError, match="MODEL@URL"):
        make_model("endpoint")


def test_a_number_in_the_name_sets_the_size() -> None:
    assert make_agent("window").env_kwargs["context"] == 2
    assert make_agent("window(4)").env_kwargs["context"] == 4
    names = {name: make_agent(name) for name in ("window", "window(4)", "resum", "resum(50)", "resum(60)")}
    assert [agent.name for agent in names.values()] == list(names)
    assert len({agent.fingerprint for agent in names.values()}) == len(names)
    with pytest.raises(ConfigError, match="unknown agent with a size 'windo': did you mean 'window'"):
        make_agent("windo(4)")
    with pytest.raises(ConfigError, match="context: wanted at least 1 step, got 0"):
        play(make_agent("window(0)"))  # type: ignore[arg-type]


def test_the_fingerprint_is_that_of_agent_and_model() -> None:
    mine = make_agent("mempo", model=Counting())
    assert mine.fingerprint == "mempo-1-counting"
    assert (
        make_agent("mempo").fingerprint
        != mine.fingerprint
        != make_agent("mem1", model=Counting()).fingerprint
    )


# --- Calls -------------------------------------------------------------------------------------------------


def test_all_episodes_are_asked_for_together() -> None:
    model = Counting()
    played = play(make_agent("react", model=model))  # type: ignore[arg-type]
    assert model.batches[0] == 6
    assert len(model.batches) == max(len(episode.rounds) for episode in played)


@pytest.mark.parametrize(
    "name",
    ["react", "memagent", "memsearcher", "selfask", "resum(60)", "rag_memory", "paging(110)", "amem", "mem0"],
)
def test_every_call_is_in_the_record_and_in_the_tokens(name: str) -> None:
    model = Counting()
    played = play(make_agent(name, model=model))  # type: ignore[arg-type]
    calls = [call for episode in played for round in episode.rounds for call in round.calls]
    assert len(calls) == sum(model.batches)
    for episode in played:
        sizes = [
            (call.prompt_tokens or 0, call.output_tokens or 0)
            for round in episode.rounds
            for call in round.calls
        ]
        assert episode.tokens.total == sum(map(sum, sizes)) > 0
        assert episode.tokens.peak == max(map(sum, sizes))
        assert episode.tokens.dependency == sum((2 * p + o) * o / 2 for p, o in sizes)


def test_exact_tokens_travel_only_where_the_round_is_what_the_model_wrote() -> None:
    class Exact:
        name = fingerprint = "exact"

        def generate(self, prompts: Sequence[Prompt]) -> list[Call]:
            text = "<answer>x</answer>"
            return [Call(output=text, output_ids=(1, 2), logprobs=(-0.5, -1.0)) for _ in prompts]

    (one,) = ModelAgent(name="a", play=_plainly, model=Exact(), env_kwargs={}).act([Context((), "q")])
    (two,) = ModelAgent(name="a", play=_twice, model=Exact(), env_kwargs={}).act([Context((), "q")])
    assert isinstance(one, Completion) and isinstance(two, Completion)
    assert (one.token_ids, one.logprobs, len(one.calls)) == ((1, 2), (-0.5, -1.0), 1)
    assert (two.token_ids, two.logprobs, len(two.calls)) == ((), (), 2)


def _plainly(context: Context) -> Round:
    return (yield as_shown(context))


def _twice(context: Context) -> Round:
    yield as_shown(context)
    return (yield as_shown(context))


# --- Faults ------------------------------------------------------------------------------------------------

FAULTS = {
    "model": (ModelError("no such model"), StopReason.MODEL_ERROR),
    "time": (ModelTimeout("late"), StopReason.TIMEOUT),
    "overflow": (ModelOverflow("too long"), StopReason.CONTEXT_OVERFLOW),
}


@pytest.mark.parametrize(
    "name", ["react", "memagent", "memsearcher", "selfask", "rag_memory", "amem", "mem0"]
)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_call_that_fails_ends_its_episode_alone(name: str, fault: str) -> None:
    """In the first call of its second round, in whatever call that is."""
    error, reason = FAULTS[fault]

    class Faulty(Counting):
        def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
            answers = super().generate(prompts)
            hit = [("variant 3" in prompt.text and "<information>\n[1]" in prompt.text) for prompt in prompts]
            return [error if bad else answer for bad, answer in zip(hit, answers, strict=True)]

    played = play(make_agent(name, model=Faulty()))  # type: ignore[arg-type]
    assert [episode.stop_reason for episode in played] == [
        reason if i == 3 else StopReason.ANSWERED for i in range(6)
    ]
    assert str(error) in played[3].stop_detail
    assert len(played[3].rounds) == 1


def test_a_model_that_raises_or_miscounts_ends_the_guilty_episode_alone() -> None:
    class Odd(Counting):
        def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
            if any("variant 3" in prompt.text for prompt in prompts):
                raise RuntimeError("broken")
            if any("variant 4" in prompt.text for prompt in prompts):
                return []
            return super().generate(prompts)

    played = play(make_agent("memagent", model=Odd()))  # type: ignore[arg-type]
    assert [e.stop_reason == StopReason.AGENT_ERROR for e in played] == [i in (3, 4) for i in range(6)]


@pytest.mark.parametrize("name", ["memagent", "memsearcher", "resum(60)"])
@pytest.mark.parametrize(
    ("memory", "kept"),
    [
        ("<mem>a fact</mem>", "a fact"),
        ("a fact", "a fact"),
        ("<mem>a fact", "a fact"),
        ("<mem>a <search>trap</search> <answer>no</answer> fact</mem>", "a ‹search›trap‹/search›"),
        ("<mem></mem>", ""),
        ("", ""),
    ],
)
def test_whatever_is_written_as_a_memory_cannot_act(name: str, memory: str, kept: str) -> None:
    class Writer(Counting):
        def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
            acts = ScriptedModel().generate(prompts)
            return [
                Call(output=memory) if prompt.stop == ("</mem>",) else act
                for prompt, act in zip(prompts, acts, strict=True)
            ]

    for episode in play(make_agent(name, model=Writer())):  # type: ignore[arg-type]
        assert episode.stop_reason is StopReason.ANSWERED
        assert all(round.action.memory in (None, episode.rounds[-1].memory) for round in episode.rounds)
        assert episode.rounds[-1].memory.startswith(kept)
        assert bool(episode.rounds[-1].memory) == bool(kept)


def test_what_stands_in_a_tag() -> None:
    assert inside("<think>so</think><mem> a\nb </mem> x", "mem") == "a\nb"
    assert inside(" bare ", "mem") == "bare"


# --- The command line --------------------------------------------------------------------------------------

OWN = """
from mempo_env.types import Call

class Lazy:
    name, fingerprint = "lazy", "lazy-1"

    def generate(self, prompts):
        return [Call(output="<answer>nobody</answer>", prompt_tokens=7, output_tokens=1) for _ in prompts]
"""


def test_bench_runs_with_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lazy_model.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["bench", "run", "--dataset", "synthetic", "--agents", "mempo,window(4)", "--episodes", "3"]
    assert main([*command, "--model", "lazy_model:Lazy", "--out", "run"]) == 0
    arms = {arm.agent: arm for arm in compare([Path("run")]).arms}
    assert set(arms) == {"empty", "random", "mempo", "window(4)", "oracle"}
    assert [arm.metrics["total"].value for arm in (arms["mempo"], arms["window(4)"])] == [8.0, 8.0]  # type: ignore[union-attr]
    plan = read_plan(Path("run"))
    assert plan.model == "lazy_model:Lazy"
    assert ["lazy-1" in arm.fingerprint for arm in plan.arms] == [False, False, True, True, False]
    (tmp_path / "lazy_model.py").write_text(OWN + "# changed\n")
    changed = make_plan("synthetic", ["mempo"], model="lazy_model:Lazy", episodes=3)
    assert changed.arms[2].fingerprint != plan.arms[2].fingerprint


def test_a_run_with_a_bank_of_an_agents_own_settings_is_gone_on_with(tmp_path: Path) -> None:
    for _ in range(2):
        bench(make_plan("synthetic", ["mem0"], episodes=1), tmp_path / "run")
    (arm,) = (arm for arm in compare([tmp_path / "run"]).arms if arm.agent == "mem0")
    assert arm.env_kwargs["memory"]["duplicate"] == 2.0


def test_a_run_is_not_gone_on_with_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the model, not the name that it was made by."""
    (tmp_path / "other_model.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    bench(make_plan("synthetic", ["mempo"], episodes=1), tmp_path / "run")
    same = make_plan("synthetic", ["mempo"], episodes=1, model="mempo_agents.models.scripted:ScriptedModel")
    bench(same, tmp_path / "run")
    other = make_plan("synthetic", ["mempo"], episodes=1, model="other_model:Lazy")
    with pytest.raises(ResultsError, match=r"agent mempo .*lazy-1"):
        bench(other, tmp_path / "run")


def test_a_wrong_model_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "run", "--dataset", "synthetic", "--model", "scriptd", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_episodes_of_one_question_draw_by_their_seeds() -> None:
    """So a group's rollouts differ; what an episode draws does not depend on those beside it."""
    asked: dict[int, list[int]] = {}

    class Watched(Counting):
        def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
            for prompt in prompts:
                asked.setdefault(len(prompts), []).append(prompt.draw)
            return [Call(output="<search> x </search>") for _ in prompts]

    agent = ModelAgent(name="a", play=_twice, model=Watched(), env_kwargs={})
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "max_rounds": 2}
    for size in (3, 1):
        assert len(list(episodes(agent, ["q0"] * 3, env_kwargs=kwargs, num_envs=size, seed=40))) == 3
    assert asked[3] == [40, 41, 42] * 4  # two rounds of two calls
    assert asked[1] == [40] * 4 + [41] * 4 + [42] * 4
