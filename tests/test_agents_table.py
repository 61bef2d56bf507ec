"""The agents by name, and what holds for each: pure, total, well-formed, blind to what is not in view."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_agents import AGENTS, Context, make_agent
from mempo_agents.models.table import make_model
from mempo_agents.rollout import episodes
from mempo_env import protocol
from mempo_env.errors import ConfigError
from mempo_env.instructions import system_prompt
from mempo_env.types import Answer, Episode, Search, Segment
from small import QUESTIONS, TitleRetriever

NAMES = sorted(AGENTS)
READERS = ["react", "window", "no_memory", "mempo"]
ASKING = [name for name in NAMES if name not in ("empty", "random", "oracle")]


def play(name: str, objectives: int = 1, count: int = 4) -> list[Episode]:
    """A few episodes of the small world."""
    ids = ["+".join(f"q{i + j}" for j in range(objectives)) for i in range(count)]
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "top_k": 1, "objectives": objectives}
    played = dict(episodes(make_agent(name, QUESTIONS), ids, env_kwargs=kwargs, num_envs=3))
    return [played[i] for i in range(count)]


def all_played() -> list[Episode]:
    """A few episodes of every agent."""
    return [episode for name in NAMES for episode in play(name)]


def contexts(played: list[Episode]) -> list[Context]:
    """Everything that was in view in some episodes, round by round."""
    return [
        Context(tuple(episode.ledger[i] for i in round.view), episode.question_id)
        for episode in played
        for round in episode.rounds
    ]


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mempo'"):
        make_agent("mempoo")


def test_the_oracle_needs_the_questions() -> None:
    with pytest.raises(ConfigError, match="pass the QuestionSet as questions="):
        make_agent("oracle")


def test_names_and_fingerprints_tell_agents_apart() -> None:
    agents = [make_agent(name, QUESTIONS) for name in NAMES]
    assert [agent.name for agent in agents] == NAMES
    assert len({agent.fingerprint for agent in agents}) == len(NAMES)


def test_the_regimes_differ_in_the_environment_alone() -> None:
    kwargs = {name: dict(make_agent(name).env_kwargs) for name in READERS}
    assert kwargs == {
        "react": {"context": "full", "memory": "none"},
        "window": {"context": 2, "memory": "none"},
        "no_memory": {"context": "last_step", "memory": "none"},
        "mempo": {"context": "last_step", "memory": "inline"},
    }


@pytest.mark.parametrize("objectives", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_round_is_valid_and_every_answer_well_formed(name: str, objectives: int) -> None:
    for episode in play(name, objectives):
        assert all(isinstance(round.action, Search | Answer) for round in episode.rounds)
        assert not any(set(round.action.flaws) - {"no_memory_write"} for round in episode.rounds)
        assert episode.score.well_formed


@pytest.mark.parametrize("name", NAMES)
def test_the_same_contexts_give_the_same_text_in_any_batch_and_order(name: str) -> None:
    seen = contexts(play(name, 2))
    written = list(make_agent(name, QUESTIONS).act(seen))
    order = list(range(len(seen)))
    random.Random(0).shuffle(order)
    fresh = make_agent(name, QUESTIONS)
    for i in order:
        assert list(fresh.act([seen[i]])) == [written[i]]
    assert list(fresh.act([])) == []


@pytest.mark.parametrize("name", ASKING)
def test_a_reader_writes_no_name_that_is_not_in_view(name: str) -> None:
    """Plants a marker: every passage names a person of its own, who must be gone when the passage is."""
    names = re.compile(r"\b[A-Z]\w+|\d+")
    for context in contexts(play(name, 2)):
        text = str(make_agent(name).act([context])[0])
        told = {segment.text for segment in context.segments if segment.kind != "hint"}
        own = {"1", "2", "3", "4", "What", "Core"}  # of lines, reads and entries; how a question begins
        assert set(names.findall(text)) <= set(names.findall(" ".join(told))) | own


def test_without_memory_what_a_dropped_step_showed_is_forgotten() -> None:
    """The same last step after two different first ones: the memoryless reader cannot tell them apart."""
    first, second = (
        Segment("information", 1, f"<information>\n[1] Aldo Verne\nHe was born in {town}.\n</information>", 1)
        for town in ("Marrow Bay", "Port Ostrel")
    )
    question = Segment("question", 0, "Question: Who is the mayor of the town where Aldo Verne was born?", 1)
    call = Segment("call", 2, "<search> Aldo Verne birthplace </search>", 1)
    last = Segment("information", 2, protocol.render_information(()), 1)
    system = Segment("system", 0, system_prompt("none", 1, 3), 1)
    full = [Context((system, question, shown, call, last), "q") for shown in (first, second)]
    cut = Context((system, question, call, last), "q")
    reader = make_agent("no_memory")
    a, b = map(str, reader.act(full))
    assert "Marrow Bay" in a
    assert "Port Ostrel" in b
    text = str(reader.act([cut])[0])
    assert "Marrow" not in text
    assert "Ostrel" not in text


KINDS = st.sampled_from(
    ["system", "question", "mem", "think", "call", "invalid", "information", "error", "hint"]
)
WORDS = """
Question: Questions: 1. 2. = ? :: <mem> </mem> <search> [1] <information> (3 rounds left) (1 round left) Who
founded Foo or Bar? was born in 1 May 1900 and the same town as the teacher of Ada
Which is older , . (film) "Foo"
"""
FRAGMENTS = st.lists(
    st.one_of(st.text(max_size=20), st.just("\n"), st.sampled_from(WORDS.split())), max_size=30
).map(" ".join)
ANY_CONTEXT = st.builds(
    Context,
    st.lists(st.builds(Segment, KINDS, st.integers(0, 9), FRAGMENTS, st.just(1)), max_size=6).map(tuple),
    st.sampled_from(["q0", "q0+q1", "nobody's", ""]),
)


@given(ANY_CONTEXT)
@settings(max_examples=300, deadline=None)
def test_no_context_makes_an_agent_raise(context: Context) -> None:
    for name in NAMES:
        (written,) = make_agent(name, QUESTIONS).act([context])
        assert isinstance(written, str) or (name == "oracle" and isinstance(written, ConfigError))


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.parametrize("text", ["Foo Bar " * 30_000, "the teacher of " * 3_000 + "Foo", "Mr. " * 30_000])
def test_long_texts_are_read_in_part(name: str, text: str) -> None:
    segments = (
        Segment("question", 0, f"Question: {text}", 1),
        Segment("information", 1, f"<information>\n[1] Foo\n{text}\n</information>", 1),
    )
    assert isinstance(make_agent(name).act([Context(segments, "q")])[0], str)


def test_a_process_with_another_hash_seed_writes_the_same() -> None:
    code = "import test_agents_table as t; print([[r.text for r in e.rounds] for e in t.all_played()])"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert outputs.pop().count("<answer>") == 4 * len(NAMES)


def test_an_agent_of_ones_own_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_agents.py").write_text(
        "class Mine:\n"
        "    name, fingerprint, env_kwargs = 'mine', 'mine-1', {}\n"
        "    def act(self, contexts):\n"
        "        return ['<answer>x</answer>' for _ in contexts]\n"
        "one = Mine()\n"
        "def make():\n"
        "    return Mine()\n"
        "class Half:\n"
        "    name = 'half'\n"
    )
    for thing in ("Mine", "one", "make"):
        assert make_agent(f"own_agents:{thing}").act([]) == []
    with pytest.raises(ConfigError, match="it has no env_kwargs, fingerprint, act"):
        make_agent("own_agents:Half")
    for wrong in ("own_agents:Other", "no_such_module:Mine", ":", "a:", "own_agents:"):
        with pytest.raises(ConfigError, match="can be imported"):
            make_agent(wrong)


TAKING = """
from mempo_agents.rounds import ModelAgent, one_call

def play(context):
    return (yield from one_call(context))

def twice(model):
    return ModelAgent(name="twice", play=play, model=model, env_kwargs={})

class Mine:
    name, fingerprint, env_kwargs = "mine", "mine-1", {}
    def __init__(self, size=3, model=None):
        self.size, self.model = size, model
    def act(self, contexts):
        return []

def sized(size):
    return Mine(size)
"""


def test_an_agent_of_ones_own_takes_the_model_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It played with whatever model it made itself, and nobody was told."""
    (tmp_path / "taking_agents.py").write_text(TAKING)
    monkeypatch.syspath_prepend(tmp_path)
    model = make_model("scripted")
    for thing in ("twice", "Mine"):
        assert make_agent(f"taking_agents:{thing}", model=model).model is model  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("thing", "told"),
    [
        ("play", r"from nothing or model, got play\(context\) .*'context'\); .* by ModelAgent\(play=play"),
        ("sized", r"from nothing or model, got sized\(size\) \(missing a required argument: 'size'\)$"),
    ],
)
def test_what_makes_no_agent_is_said(
    thing: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function that plays a round, given in place of the agent, was a TypeError."""
    (tmp_path / "taking_agents.py").write_text(TAKING)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=told):
        make_agent(f"taking_agents:{thing}")


def test_an_unknown_agent_is_answered_with_all_there_are() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mem1'") as told:
        make_agent("mem2")
    assert all(name in str(told.value) for name in NAMES)
