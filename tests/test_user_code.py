"""Code of a user's own that returns what it should not: functions of a bank, agents, models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest

from mempo_agents import make_agent
from mempo_agents.base import Context
from mempo_agents.models.base import ModelError, Prompt
from mempo_agents.models.table import make_model
from mempo_agents.rollout import episodes
from mempo_agents.rounds import ModelAgent, Round, as_shown
from mempo_env.errors import ConfigError
from mempo_env.memory.bank import BankConfig
from mempo_env.tokens import count_words
from mempo_env.types import Call, Completion, Episode, Segment, StopReason
from small import QUESTIONS, TitleRetriever
from small import make as make_small

ANSWER = "<answer>Ines Calder</answer>"
SEARCH = "<search>Aldo Verne</search>"

# --- Functions of a bank -----------------------------------------------------------------------------------

FAULTY: dict[str, Any] = {
    "words": lambda texts: [["one", "two"] for _ in texts],
    "ragged": lambda texts: [[1.0], [1.0, 2.0]],
    "things": lambda texts: [object() for _ in texts],
    "wider": lambda texts: np.ones((len(texts), 8 + len(texts[0]))),
    "undecided": lambda text, nearest, similarity: np.array([True, False]),
    "forgetful": lambda text, nearest, similarity: None,
    "nothing": lambda text, limit: None,
    "bytes": lambda text, limit: b"less",
    "blank": lambda text, limit: " \n",
    "halved": lambda text, limit: "half \ud800",
}


def __getattr__(name: str) -> Any:
    """The functions above, as a bank finds them: by "module:function"."""
    if name in FAULTY:
        return FAULTY[name]
    raise AttributeError(name)


@pytest.mark.parametrize(
    ("setting", "name", "told"),
    [
        ("embed", "words", r"embedder: wanted an array \(1, D\) of numbers"),
        ("embed", "ragged", r"embedder: wanted an array \(1, D\) of numbers"),
        ("embed", "things", r"embedder: wanted an array \(1, D\) of numbers"),
        ("embed", "wider", "embedder: wanted 17 numbers for a text, as for those before, got 19"),
        ("novelty", "undecided", "novelty 'test_user_code:undecided': wanted True or False, got ndarray"),
        ("novelty", "forgetful", "novelty 'test_user_code:forgetful': wanted True or False, got NoneType"),
        ("summarise", "nothing", "summarise 'test_user_code:nothing': wanted a text, got NoneType"),
        ("summarise", "bytes", "summarise 'test_user_code:bytes': wanted a text, got bytes"),
        ("summarise", "blank", "summarise: wanted a text that says something, got an empty one"),
    ],
)
def test_a_function_of_a_bank_that_returns_something_else_ends_the_episode(
    setting: str, name: str, told: str
) -> None:
    """It ended the run, or "None" was stored."""
    config = BankConfig(**{setting: f"{__name__}:{name}"}, merge_tokens=1)
    env = make_small(memory=config)
    env.reset(seed=0)
    env.step("<memory_write>blue town</memory_write>" + SEARCH)
    if not env.unwrapped.episode().stop_reason:
        env.step("<memory_write>green river</memory_write>" + SEARCH)
    if not env.unwrapped.episode().stop_reason:
        env.step('<memory_merge ids="1,2"/>' + SEARCH)
    episode = env.unwrapped.episode()
    assert episode.stop_reason == StopReason.MEMORY_ERROR and episode.mask_episode
    assert re.search(told, episode.stop_detail)


def test_halves_of_characters_from_a_summariser_can_be_stored() -> None:
    env = make_small(memory=BankConfig(summarise=f"{__name__}:halved", merge_tokens=1))
    env.reset(seed=0)
    write = "<memory_write>blue town</memory_write><memory_write>green river</memory_write>"
    env.step(write + SEARCH)
    env.step('<memory_merge ids="1,2"/>' + SEARCH)
    assert env.unwrapped.episode().rounds[-1].memory == "half ?"
    env.unwrapped.set_state(env.unwrapped.get_state())


class Shared:
    """Keeps what is written in the class."""

    notes: list[str] = []  # noqa: RUF012

    def __init__(self, state: Any = None) -> None:
        pass

    def write(self, text: str, round: int) -> None:
        self.notes.append(text)

    def show(self) -> str:
        return "\n".join(self.notes)

    def state(self) -> Any:
        return list(self.notes)


class Default(Shared):
    """Keeps it in a default, which all share."""

    def __init__(self, state: Any = None, notes: list[str] = []) -> None:  # noqa: B006
        self.notes = notes


@pytest.mark.parametrize("memory", [Shared, Default])
def test_a_memory_that_episodes_would_share_is_refused(memory: type) -> None:
    """Every episode saw what others had written, and the note of the trial."""
    with pytest.raises(ConfigError, match=r"\(\) is always new, but one told \[\], and another \[\"a note"):
        make_small(memory=memory)


# --- Agents ------------------------------------------------------------------------------------------------


def changed(**attributes: Any) -> Callable[[], Completion]:
    """A completion whose attributes were changed after it was made, so that nothing checked them."""

    def made() -> Completion:
        completion = Completion(SEARCH)
        for name, value in attributes.items():
            setattr(completion, name, value)
        return completion

    return made


def failed(**attributes: Any) -> Callable[[], ModelError]:
    def made() -> ModelError:
        error = ModelError("down")
        for name, value in attributes.items():
            setattr(error, name, value)
        return error

    return made


ODD: dict[str, Callable[[], object]] = {
    "calls are a text": changed(calls="abc"),
    "calls are none": changed(calls=(None,)),
    "ids are none": changed(token_ids=None),
    "ids without end": changed(token_ids=(1,), logprobs=(float("nan"),)),
    "no finish reason": changed(finish_reason="nonsense"),
    "segments are texts": changed(calls=(Call(output="x", segments=("text",)),)),  # type: ignore[arg-type]
    "segments are numbers": changed(calls=(Call(output="x", segments=(99_999,)),)),
    "no kind of segment": changed(calls=(Call(segments=(Segment("odd", 1, "x", 1),)),)),  # type: ignore[arg-type]
    "tokens are no number": changed(calls=(Call(segments=(Segment("mem", 1, "x", float("nan")),)),)),  # type: ignore[arg-type]
    "half a character": changed(calls=(Call(segments=(Segment("mem", 1, "\ud800", 1),)),)),
    "an error with a text": failed(calls="abc"),
    "an error with None": failed(calls=None),
    "an error with numbers": failed(calls=(5,)),
    "an error with a reason of its own": failed(reason="bogus"),
}


class Odd:
    """Writes something odd for one question, and the answer for the others."""

    name = fingerprint = "odd"
    env_kwargs: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, write: Callable[[], object]) -> None:
        self.write = write

    def act(self, contexts: Sequence[Context]) -> list[Any]:
        return [self.write() if context.question_id == "q1" else ANSWER for context in contexts]


def play(agent: Any, ids: Sequence[str] = ("q0", "q1", "q2")) -> list[Episode]:
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "max_rounds": 3}
    played = dict(episodes(agent, ids, env_kwargs=kwargs, num_envs=3))
    return [played[i] for i in range(len(ids))]


@pytest.mark.parametrize("what", ODD)
def test_what_cannot_be_stored_ends_its_episode_alone(what: str) -> None:
    """It ended the run, or a line was written that could not be read any more."""
    played = play(Odd(ODD[what]))
    assert [episode.stop_reason for episode in played] == ["answered", "agent_error", "answered"]
    for episode in played:
        assert msgspec.json.decode(msgspec.json.encode(episode), type=Episode) == episode


def test_more_tokens_than_a_file_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="wanted a number of tokens, 0 to 2,147,483,647"):
        Call(prompt_tokens=2**62)


# --- Models ------------------------------------------------------------------------------------------------


class Three:
    """A model with calls that are counted; `last` is what it does in the third call of an episode."""

    name = fingerprint = "three"

    def __init__(self, last: Callable[[], Any]) -> None:
        self.last, self.asked = last, list[str]()

    def generate(self, prompts: Sequence[Prompt]) -> list[Any]:
        guilty = ["third" in prompt.text and "variant 1" in prompt.text for prompt in prompts]
        odd = self.last() if any(guilty) else None
        self.asked += [prompt.text for prompt, bad in zip(prompts, guilty, strict=True) if not bad]
        call = Call(output=ANSWER, prompt_tokens=100, output_tokens=10)
        return [odd if bad else call for bad in guilty]


def three_calls(context: Context) -> Round:
    for number in ("first", "second", "third"):
        shown = as_shown(context)
        last = shown.messages[-1]
        message = msgspec.structs.replace(last, content=f"{number} {last.content}")
        text = yield msgspec.structs.replace(shown, messages=(*shown.messages[:-1], message))
    return text


def raises() -> Any:
    raise RuntimeError("broken")


@pytest.mark.parametrize("last", [raises, lambda: 5, lambda: "text", lambda: None])
def test_what_was_answered_before_a_model_failed_is_paid_for_once(last: Callable[[], Any]) -> None:
    """All calls of the round were made again for each episode, and the first ones counted for none."""
    model = Three(last)
    agent = ModelAgent(name="three", play=three_calls, model=model, env_kwargs={})  # type: ignore[arg-type]
    played = play(agent)
    assert [episode.stop_reason for episode in played] == ["answered", "agent_error", "answered"]
    assert [episode.tokens.total for episode in played] == [330, 220, 330]
    assert len(model.asked) == 8 == sum(episode.tokens.total for episode in played) / 110


def test_what_an_agent_asked_before_it_failed_is_paid_for() -> None:
    def fails(context: Context) -> Round:
        text = yield as_shown(context)
        return text if context.question_id != "q1" else 1 / 0  # type: ignore[return-value]

    def returns_no_text(context: Context) -> Round:
        text = yield as_shown(context)
        return text if context.question_id != "q1" else 7  # type: ignore[return-value]

    for round in (fails, returns_no_text):
        model = Three(raises)
        agent = ModelAgent(name="fails", play=round, model=model, env_kwargs={})  # type: ignore[arg-type]
        played = play(agent)
        assert [episode.stop_reason for episode in played] == ["answered", "agent_error", "answered"]
        assert [episode.tokens.total for episode in played] == [110, 110, 110]
        assert len(model.asked) == 3 and len(played[1].broken_off) == 1


PARTS = """
class Model:
    name, fingerprint = {name!r}, {fingerprint!r}
    generate = {method}

class Agent(Model):
    env_kwargs = {kwargs}
    act = {method}
"""


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"name": 5}, "name of .*: wanted a text, got 5"),
        ({"name": ""}, "name of .*: wanted a text of whole characters that is not empty, got ''"),
        ({"fingerprint": None}, "fingerprint of .*: wanted a text, got None"),
        ({"fingerprint": "\ud800"}, r"fingerprint of .*: wanted a text of whole characters.* got '\\ud800'"),
        ({"method": "7"}, "of .*: wanted a method, got 7"),
    ],
)
def test_a_name_that_no_result_could_hold_is_refused(
    parts: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was played to its end whose plan could not be read."""
    given = {"name": "own", "fingerprint": "own-1", "method": "lambda self, x: []", "kwargs": "{}"} | parts
    module = f"odd_parts_{abs(hash(str(parts)))}"
    (tmp_path / f"{module}.py").write_text(PARTS.format(**given))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=told):
        make_model(f"{module}:Model")
    with pytest.raises(ConfigError, match=told):
        make_agent(f"{module}:Agent")


# --- Tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [0, None])
def test_no_text_that_was_written_is_free(told: int | None) -> None:
    class Free:
        name = fingerprint = "free"

        def generate(self, prompts: Sequence[Prompt]) -> list[Call]:
            return [Call(output=ANSWER, prompt_tokens=9, output_tokens=told) for _ in prompts]

    agent = ModelAgent(name="asks", play=lambda c: (yield as_shown(c)), model=Free(), env_kwargs={})
    assert play(agent)[0].tokens.output == count_words(ANSWER) == 2
