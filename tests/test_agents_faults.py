"""Agents that do what they must not: it ends their episodes, never the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from mempo_agents import AGENTS
from mempo_agents.base import Context
from mempo_agents.rollout import episodes
from mempo_benchmarks.run import bench, make_plan
from mempo_benchmarks.summary import compare
from mempo_benchmarks.view import entries_of
from mempo_env.errors import ConfigError
from mempo_env.types import Episode, StopReason
from small import QUESTIONS, TitleRetriever

IDS = ("q0", "q1", "q2", "q3", "q4", "q5")
GUILTY = "q3"
ANSWER = "<answer>Ines Calder</answer>"


class Mute(Exception):
    """Can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd:
    """Acts as it is told, a bounded number of times: an endless run fails its test."""

    name = "odd"
    fingerprint = "odd"
    env_kwargs: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, write: Callable[[Sequence[Context]], Any]) -> None:
        self.write = write
        self.asked: list[int] = []

    def act(self, contexts: Sequence[Context]) -> Any:
        self.asked.append(len(contexts))
        if len(self.asked) > 200:
            raise SystemExit("asked without end")
        return self.write(contexts)


def play(agent: Odd, num_envs: int = 4) -> list[Episode]:
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    played = dict(episodes(agent, IDS, env_kwargs=kwargs, num_envs=num_envs))
    return [played[i] for i in range(len(IDS))]


def having(calls: object) -> Exception:
    """An error whose `calls` are its own: they are none of a model."""
    error = ValueError("broken")
    error.calls = calls  # type: ignore[attr-defined]
    return error


def fail(error: BaseException) -> Callable[[Sequence[Context]], Any]:
    def write(_: Sequence[Context]) -> Any:
        raise error

    return write


NO_TEXT = "TypeError: act: wanted text, a Completion or an exception, got"
NO_LIST = "TypeError: act: wanted a sequence, got"

ODDITIES: dict[str, tuple[Callable[[Sequence[Context]], Any], str]] = {
    "nothing": (lambda _: None, f"{NO_LIST} NoneType"),
    "one text": (lambda c: "x" * len(c), f"{NO_LIST} str"),
    "one bytes": (lambda c: b"x" * len(c), f"{NO_LIST} bytes"),
    "a number": (lambda _: 3, f"{NO_LIST} int"),
    "a generator": (lambda c: (ANSWER for _ in c), f"{NO_LIST} generator"),
    "too few": (lambda _: [], "ValueError: act: wanted 1 completions, got 0"),
    "too many": (lambda c: [ANSWER] * (len(c) + 1), "ValueError: act: wanted 1 completions, got 2"),
    "None each": (lambda c: [None] * len(c), f"{NO_TEXT} NoneType"),
    "numbers": (lambda c: [5] * len(c), f"{NO_TEXT} int"),
    "bytes": (lambda c: [b"x"] * len(c), f"{NO_TEXT} bytes"),
    "a class": (lambda c: [ValueError] * len(c), f"{NO_TEXT} type"),
    "an interrupt": (lambda c: [KeyboardInterrupt()] * len(c), f"{NO_TEXT} KeyboardInterrupt"),
    "raises": (fail(ValueError("broken")), "ValueError: broken"),
    "raises with a number of calls": (fail(having(3)), "ValueError: broken"),
    "raises with other calls": (fail(having(["ring"])), "ValueError: broken"),
    "an error with a number of calls": (lambda c: [having(3)] * len(c), "ValueError: broken"),
    "raises without words": (fail(Mute()), "Mute"),
    "raises what no file takes": (fail(ValueError("\ud800")), "ValueError: ?"),
    "an error no file takes": (lambda c: [ValueError("\ud800")] * len(c), "ValueError: ?"),
    "recurses": (fail(RecursionError("deep")), "RecursionError: deep"),
}


@pytest.mark.parametrize("what", ODDITIES)
def test_whatever_an_agent_does_is_an_agent_error(what: str) -> None:
    write, detail = ODDITIES[what]
    for episode in play(Odd(write)):
        assert (episode.stop_reason, episode.rounds, episode.score.em) == (StopReason.AGENT_ERROR, (), 0.0)
        assert detail in episode.stop_detail


@pytest.mark.parametrize("what", ["None each", "a generator", "raises", "an error no file takes"])
def test_a_run_with_such_an_agent_ends_with_a_row_for_each_episode(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGENTS, "odd", lambda *_: Odd(ODDITIES[what][0]))
    bench(make_plan("synthetic", ["odd"], episodes=3), tmp_path / "run")
    (odd,) = [arm for arm in compare([tmp_path / "run"]).arms if arm.agent == "odd"]
    assert odd.complete
    assert odd.metrics["failed"] is not None and odd.metrics["failed"].value == 1.0
    assert len(entries_of(tmp_path / "run", "odd")) == 3


@pytest.mark.parametrize("num_envs", [1, 4, 6])
@pytest.mark.parametrize("fault", [ValueError("broken"), TimeoutError("late"), None])
def test_only_the_guilty_episode_ends(fault: Exception | None, num_envs: int) -> None:
    """It raises, or writes nothing at all, for a batch in which one question is."""

    def write(contexts: Sequence[Context]) -> Any:
        if any(context.question_id == GUILTY for context in contexts):
            if fault is not None:
                raise fault
            return []
        return [ANSWER] * len(contexts)

    reason = StopReason.TIMEOUT if isinstance(fault, TimeoutError) else StopReason.AGENT_ERROR
    played = play(Odd(write), num_envs)
    assert {e.question_id: e.stop_reason for e in played} == {
        id: reason if id == GUILTY else StopReason.ANSWERED for id in IDS
    }


def test_an_agent_that_does_as_it_should_is_asked_once_for_all() -> None:
    agent = Odd(lambda contexts: [ANSWER] * len(contexts))
    play(agent, num_envs=6)
    assert agent.asked == [6]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_what_must_end_the_run_ends_it(error: type[BaseException]) -> None:
    with pytest.raises(error):
        play(Odd(fail(error())))


@pytest.mark.parametrize("num_envs", [0, -3])
def test_no_environments_are_refused(num_envs: int) -> None:
    with pytest.raises(ConfigError, match=f"num_envs: wanted at least 1, got {num_envs}"):
        play(Odd(lambda _: []), num_envs)


def test_too_few_seeds_are_refused_before_anything_is_played() -> None:
    agent = Odd(lambda contexts: [ANSWER] * len(contexts))
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    with pytest.raises(ConfigError, match="seed: wanted one for each of 6 episodes, got 2"):
        next(episodes(agent, IDS, env_kwargs=kwargs, num_envs=1, seed=[1, 2]))
    assert agent.asked == []


def test_a_keyword_that_the_agent_decides_otherwise_is_refused_with_both_values() -> None:
    class Two(Odd):
        env_kwargs: Mapping[str, Any] = MappingProxyType({"max_rounds": 2})

    agent = Two(lambda contexts: [ANSWER] * len(contexts))
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "max_rounds": 3}
    with pytest.raises(ConfigError, match="max_rounds: the agent 'odd' plays with 2, got 3; leave it out"):
        next(episodes(agent, IDS, env_kwargs=kwargs))
    assert agent.asked == []
    ((_, episode),) = episodes(agent, IDS[:1], env_kwargs={**kwargs, "max_rounds": 2})
    assert episode.settings["max_rounds"] == 2
