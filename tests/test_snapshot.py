"""Restoring and stepping equals stepping; forks are independent; foreign states are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import ConfigError, StateError
from mempo_env.questions.set import QuestionSet
from mempo_env.retrieval.corpus import Corpus
from mempo_env.types import Completion
from small import PASSAGES, QUESTIONS, TitleRetriever, answer, make, search

TITLES = [p.title for p in PASSAGES]
ACTIONS = st.one_of(
    st.builds(
        search,
        st.sampled_from([*TITLES, "x y"]),
        st.sampled_from([None, "Marrow Bay", "Ines Calder", "é 漢"]),
    ),
    st.builds(answer, st.sampled_from(["Ines Calder", "nobody"])),
    st.sampled_from(["no action", "<mem>open", "<answer>a</answer><answer>b</answer>"]),
    st.builds(
        lambda n: Completion(search("Aldo Verne", "m"), range(n), [-0.25] * n, "stop"), st.integers(1, 5)
    ),
)
KWARGS = st.fixed_dictionaries(
    {
        "context": st.sampled_from(["last_step", "memory_only", "full", 2]),
        "memory": st.sampled_from(["inline", "none"]),
        "retriever_noise": st.sampled_from([0.0, 0.5]),
        "reward": st.sampled_from(["mempo", "bank"]),
    }
)


OTHERS = QuestionSet(QUESTIONS[:5], name="others")


def foreign(**kwargs: Any) -> str:
    """A state of another environment."""
    env = make(**kwargs)
    env.reset(seed=0)
    return env.get_state()


def go(env: Any, actions: list[str]) -> list[Any]:
    """Everything that comes back, up to the end of the episode."""
    results = []
    for action in actions:
        results.append(env.step(action))
        if results[-1][2] or results[-1][3]:
            results.append(env.reset())
    return results


@settings(max_examples=120, deadline=None)
@given(KWARGS, st.lists(ACTIONS, max_size=5), st.lists(ACTIONS, max_size=5), st.integers(0, 50))
def test_restoring_and_stepping_equals_stepping(
    kwargs: dict[str, Any], before: list[str], after: list[str], seed: int
) -> None:
    kwargs = {**kwargs, "corpus": Corpus.of(PASSAGES)}
    env = make(**kwargs)
    env.reset(seed=seed)
    go(env, before)
    state = env.get_state()
    json.loads(state)
    wrapped = gym.wrappers.OrderEnforcing(make(**kwargs))
    obs, info = wrapped.reset(options={"state": state})
    twin = make(**kwargs)
    twin.set_state(state) if seed % 2 else twin.reset(seed=99, options={"state": state})
    assert twin.get_state() == state
    assert info["segments"] == tuple(twin.episode().ledger[i] for i in twin.episode().final_view)
    assert obs == "\n".join(segment.text for segment in info["segments"])
    forked = env.fork(1)[0]
    expected = go(env, after)
    assert go(twin, after) == expected
    assert go(forked, after) == expected
    assert go(wrapped, after) == expected
    assert info["state_hash"] == json.loads(state)["state_hash"]


def test_forks_are_independent_and_may_have_their_own_seeds() -> None:
    env = make(corpus=Corpus.of(PASSAGES), retriever_noise=0.5, top_k=3)
    env.reset(seed=0)
    env.step(search("Aldo Verne", "m"))
    state = env.get_state()
    same, other = env.fork(2), env.fork(8, seeds=range(8))
    hits = [twin.step(search("x"))[4]["retrieved"] for twin in same]
    assert hits[0] == hits[1] and env.get_state() == state
    assert len({twin.step(search("x"))[4]["retrieved"] for twin in other}) > 1
    again = env.fork(8, seeds=range(8))
    assert [t.episode() for t in other] == [(t.step(search("x")), t.episode())[1] for t in again]
    with pytest.raises(ConfigError, match="one seed for each"):
        env.fork(2, seeds=[1])
    with pytest.raises(ConfigError, match="0 or more"):
        env.fork(-1)


def test_state_hash_covers_what_decides_the_future_not_the_way_there() -> None:
    def after(*actions: str, **kwargs: Any) -> str:
        env = make(**kwargs)
        env.reset(options={"question_id": "q0"})
        for action in actions:
            info = env.step(action)[4]
        return str(info["state_hash"])

    last = search("Bela Quist", "same")
    assert after(search("Aldo Verne"), last) == after(search("Port Ostrel", "other"), last)
    assert after(search("Aldo Verne"), last) != after(search("Aldo Verne"), search("Bela Quist", "different"))
    assert after(search("Aldo Verne"), last) != after(last)  # fewer rounds left
    assert after(search("a"), last, hint=False) != after(last, hint=False)
    assert after(search("Aldo Verne"), last, context="full") != after(search("x"), last, context="full")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s[: len(s) // 2], "wanted the text that get_state"),
        (lambda s: "{}", "wanted the text that get_state"),
        (lambda s: s.replace('"rounds":[', '"rounds":' + "[" * 100_000), "wanted the text that get_state"),
        (lambda s: s.replace('"version":3', '"version":7'), "wanted version 3, got 7"),
        (lambda s: s.replace('"top_k":1', '"top_k":2'), "changed after"),
        (lambda s: s.replace("PCG64", "PCG65"), "changed after"),
        (lambda s: s.replace('"head":2', '"head":9'), "changed after"),
        (lambda s: s + "\ud800", "wanted the text that get_state"),
        (lambda s: foreign(top_k=2), "taken with top_k=2"),
        (lambda s: foreign(dataset=OTHERS), "taken with dataset="),
    ],
)
def test_foreign_states_are_refused_and_leave_the_episode_as_it_was(change: Any, words: str) -> None:
    env = make()
    env.reset(seed=0)
    env.step(search("a", "m"))
    state = env.get_state()
    with pytest.raises(StateError, match=words):
        env.reset(options={"state": change(state)})
    assert env.get_state() == state
    with pytest.raises(StateError, match="wanted the text"):
        env.set_state(7)  # type: ignore[arg-type]


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from small import make, search, answer
import gymnasium as gym, msgspec
actions = [search("Aldo Verne", "a"), "bad", search("Marrow Bay", "b"), answer("Ines Calder")]
for env in (make(), gym.make("MemPO-SearchQA-MultiObj4-v0").unwrapped):
    print(env.reset(seed=11))
    for action in actions:
        result = env.step(action)
        print(result)
        if result[2]: break
    print(msgspec.json.encode(result[4]["episode"]))
"""


def test_same_seed_and_actions_give_the_same_bytes_in_any_process() -> None:
    outputs = []
    for hash_seed in ("0", "12345"):
        script = SCRIPT.format(tests=str(Path(__file__).parent))
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        )
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1] and len(outputs[0]) > 10_000


def test_a_retriever_is_shared_not_copied() -> None:
    retriever = TitleRetriever()
    env = make(retriever=retriever)
    env.reset(seed=0)
    assert all(twin.retriever is retriever for twin in env.fork(3))
