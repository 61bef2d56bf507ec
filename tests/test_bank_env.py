"""Memories that the environment keeps: the bank's operations in a round, and a class of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import mempo_env  # noqa: F401
from mempo_agents.base import Context
from mempo_agents.notes import recalled, recalls
from mempo_agents.rollout import episodes
from mempo_agents.view import read
from mempo_env.env import SearchQAEnv
from mempo_env.errors import ConfigError, MemoryFault
from mempo_env.memory.bank import BankConfig
from mempo_env.protocol import parse
from mempo_env.types import Failure, Invalid, Operation, Search, StopReason
from small import QUESTIONS, TitleRetriever
from small import make as make_small

BANK = "MemPO-SearchQA-Bank-v0"
FACT = "Aldo Verne was born in Marrow Bay in 1901."


def make(memory: Any = "bank", **kwargs: Any) -> SearchQAEnv:
    env = make_small(memory=memory, **kwargs)
    env.reset(seed=0)
    return env


def bank_of(env: SearchQAEnv) -> Any:
    assert env._play is not None
    return env._play.store


def write(text: str) -> str:
    return f"<memory_write>{text}</memory_write>"


SEARCH = "<search>q</search>"

# --- Reading what the policy wrote ---


@pytest.mark.parametrize(
    ("text", "operations"),
    [
        (write(" a fact "), (Operation(kind="write", text="a fact"),)),
        ("<memory_read>q</memory_read>", (Operation(kind="read", text="q"),)),
        ('<memory_read k="4">q</memory_read>', (Operation(kind="read", text="q", k=4),)),
        ("<MEMORY_READ K = '2' >q</MEMORY_READ>", (Operation(kind="read", text="q", k=2),)),
        ('<memory_merge ids="3, 7"/>', (Operation(kind="merge", ids=(3, 7)),)),
        ('<memory_merge ids="3,7"></memory_merge>', (Operation(kind="merge", ids=(3, 7)),)),
        ('<memory_merge ids="3">new</memory_merge>', (Operation(kind="merge", ids=(3,), text="new"),)),
        ('<memory_discard ids="2"/>', (Operation(kind="discard", ids=(2,)),)),
        (
            f'{write("a")} words <memory_discard ids="2" />',
            (Operation(kind="write", text="a"), Operation(kind="discard", ids=(2,))),
        ),
        ("<think><memory_write>only thought of</memory_write></think>", ()),
    ],
)
def test_operations_are_read_in_order(text: str, operations: tuple[Operation, ...]) -> None:
    action = parse(text + SEARCH, bank=True)
    assert isinstance(action, Search) and action.operations == operations and action.flaws == ()


@pytest.mark.parametrize(
    ("text", "reason", "says"),
    [
        (write("  "), "empty", "<memory_write> was empty"),
        ("<memory_read> </memory_read>", "empty", "<memory_read>"),
        ("<memory_merge>text</memory_merge>", "missing_parameter", "needs ids"),
        ("<memory_discard/>", "missing_parameter", "needs ids"),
        ('<memory_write id="3">a</memory_write>', "unknown_parameter", "does not take id; it takes none"),
        ('<memory_read k="4" n="2">a</memory_read>', "unknown_parameter", "does not take n; it takes k only"),
        ('<memory_read k="four">a</memory_read>', "bad_parameter", "a number of entries"),
        ('<memory_read k="0">a</memory_read>', "bad_parameter", "at least 1"),
        ('<memory_read k="-1">a</memory_read>', "bad_parameter", "at least 1"),
        ("<memory_read k=4>a</memory_read>", "bad_parameter", 'name="value"'),
        ('<memory_read k="1" k="2">a</memory_read>', "bad_parameter", 'name="value"'),
        ('<memory_discard ids="2;3"/>', "bad_parameter", "numbers"),
        ('<memory_discard ids=""/>', "bad_parameter", "numbers"),
        ('<memory_discard ids="2,2"/>', "bad_parameter", "twice"),
        ('<memory_discard ids="²"/>', "bad_parameter", "numbers"),
        ('<memory_discard ids="2">why</memory_discard>', "bad_parameter", "no text"),
        ('<memory_merge ids="2"/>', "bad_parameter", "two entries"),
        ("<memory_recall>x</memory_recall>", "fabricated_observation", ""),
        ("<memory_bank>x</memory_bank>", "fabricated_observation", ""),
    ],
)
def test_what_is_wrong_has_its_own_reason(text: str, reason: str, says: str) -> None:
    action = parse(text + SEARCH, bank=True)
    assert isinstance(action, Invalid) and action.reason == reason and says in action.detail


def test_operations_are_memory_and_their_tags_belong_to_them() -> None:
    text = f'so {write("a")} then <memory_discard ids="2"/><search>q</search>'
    roles = [(span.role, text[span.start : span.end]) for span in parse(text, bank=True).spans]
    assert roles == [
        ("think", "so "),
        ("mem", write("a")),
        ("think", " then "),
        ("mem", '<memory_discard ids="2"/>'),
        ("call", "<search>q</search>"),
    ]


def test_memory_of_the_other_kind_is_flagged_and_not_read() -> None:
    there, here = parse(write("a") + SEARCH), parse("<mem>a</mem>" + SEARCH, bank=True)
    assert there.flaws == here.flaws == ("wrong_memory",)
    assert there.operations == here.operations == () and there.memory is here.memory is None


def test_operations_after_the_action_are_dropped() -> None:
    action = parse(SEARCH + write("late"), bank=True)
    assert isinstance(action, Search) and action.operations == () and action.flaws == ("trailing",)


PIECES = st.sampled_from(
    (
        *("<memory_write>", "</memory_write>", '<memory_read k="2">', "</memory_read>", '<memory_read k="'),
        *('<memory_merge ids="1,2"/>', '<memory_discard ids="1">', "</memory_discard>", "ids='", '"', "/>"),
        *("<search>", "</search>", "<think>", "</think>", "<mem>", "a ", "\ud800", "é"),
    )
)


@given(st.lists(PIECES, max_size=14).map("".join))
def test_reading_is_total_and_its_spans_cover_the_text(text: str) -> None:
    action = parse(text, bank=True)
    assert "".join(text[span.start : span.end] for span in action.spans) == text
    for operation in action.operations:
        assert operation.text or operation.ids


# --- A round ---


def test_the_environment_is_registered_and_passes_the_checker() -> None:
    env = gym.make(BANK)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.unwrapped.rules.reward.memory_efficiency == 0.05  # type: ignore[attr-defined]


def test_content_is_shown_only_after_a_read() -> None:
    env = make()
    fact = "Aldo Verne was born in Marrow Bay, far from PLANTED."
    obs, *_ = env.step(write(fact) + SEARCH)
    assert "PLANTED" in obs, "the last step is kept whole, and it wrote the fact"
    obs, *_ = env.step(SEARCH)
    assert "PLANTED" not in obs and "[1] Aldo Verne was born in Marrow Bay, far …" in obs
    obs, *_, info = env.step("<memory_read>birth of Aldo</memory_read>" + SEARCH)
    assert f"<memory_recall> birth of Aldo\n[1] {fact}\n</memory_recall>" in obs
    assert [segment.kind for segment in info["segments"]].index("memory") == 2
    obs, *_ = env.step(SEARCH)
    assert "PLANTED" not in obs, "what was read is gone with its step"


@pytest.mark.parametrize("context", ["memory_only", "last_step", 2, "full"])
def test_the_status_is_shown_once_and_a_recall_in_every_rule(context: Any) -> None:
    env = make(context=context)
    obs, _ = env.reset(seed=0)
    for i in range(4):
        assert obs.count("</memory_bank>") == 1
        assert obs.count("</memory_recall>") == {"full": i, 2: min(i, 2)}.get(context, min(i, 1))
        obs, *_ = env.step(
            write(f"fact number {i} {'abcdefgh'[i] * 9}") + "<memory_read>fact</memory_read>" + SEARCH
        )


def test_a_document_can_neither_operate_nor_show() -> None:
    from mempo_env.protocol import neutralise

    for text in (write("x"), '<memory_discard ids="1"/>', "<memory_bank>", "</memory_recall>"):
        assert "<" not in neutralise(text)


def test_an_invalid_operation_changes_nothing_of_the_round() -> None:
    env = make()
    env.step(write(FACT) + SEARCH)
    before = bank_of(env).state()
    obs, *_, info = env.step(write("another") + '<memory_discard ids="1,9"/>' + SEARCH)
    assert isinstance(info["action"], Invalid) and info["action"].reason == "unknown_id"
    assert "there is no entry [9]" in obs and info["retrieved"] == () and info["operations"] == ()
    assert bank_of(env).state() == before
    *_, info = env.step('<memory_read k="7">x</memory_read>' + SEARCH)
    assert info["action"].reason == "k_too_large" and bank_of(env).state() == before


def test_a_search_that_was_retracted_leaves_the_bank_alone() -> None:
    env = make()

    def broken(*args: Any) -> Any:
        raise KeyboardInterrupt

    search, env.retriever.search = env.retriever.search, broken  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        env.step(write(FACT) + SEARCH)
    env.retriever.search = search  # type: ignore[method-assign]
    assert len(bank_of(env)) == 0
    *_, info = env.step(SEARCH)
    assert info["memory"] == "" and len(bank_of(env)) == 0


def test_many_reads_in_one_round_show_an_entry_once() -> None:
    """92 kB of text, read a thousand times, were 60 MB of prompt."""
    env = make(BankConfig(duplicate=2.0))
    facts = [f"fact {i} " + " ".join(f"{i}w{j}" for j in range(300)) for i in range(50)]
    env.step("".join(map(write, facts)) + SEARCH)
    reads = "".join(f'<memory_read k="6"> fact {i % 50} </memory_read>' for i in range(1000))
    *_, info = env.step(reads + SEARCH)
    (recall,) = [segment for segment in info["segments"] if segment.kind == "recall"]
    assert sum(record.kind == "read" for record in info["operations"]) == 1000
    assert len(recall.text) < len("".join(facts)) + 1000 * (
        len("<memory_recall> fact 12 </memory_recall>\n") + 6 * 20
    )
    found = {id for record in info["operations"] for id in record.ids}
    assert len(found) > 6 and all(recall.text.count(f"[{id}] {facts[id - 1]}\n") == 1 for id in found)
    assert recalled(recalls(info["segments"])) == {id: facts[id - 1] for id in sorted(found)}


def test_a_later_read_of_the_round_names_what_an_earlier_one_has_shown() -> None:
    env = make()
    env.step(write(FACT) + write("The mayor of Marrow Bay is Ines Calder.") + SEARCH)
    again = '<memory_read k="1"> Aldo Verne </memory_read><memory_read> Marrow Bay </memory_read>' + SEARCH
    for _ in range(2):  # in the next round it is told anew
        *_, info = env.step(again)
        (recall,) = [segment for segment in info["segments"] if segment.kind == "recall"]
        assert recall.text == (
            f"<memory_recall> Aldo Verne\n[1] {FACT}\n</memory_recall>\n"
            "<memory_recall> Marrow Bay\n[2] The mayor of Marrow Bay is Ines Calder.\n[1] (shown above)\n"
            "</memory_recall>"
        )
        assert [read.entries for read in recalls(info["segments"])] == [
            {1: FACT},
            {2: "The mayor of Marrow Bay is Ines Calder.", 1: FACT},
        ]
        seen = read(recall.text)
        assert seen.entries == ((1, FACT), (2, "The mayor of Marrow Bay is Ines Calder."), (1, FACT))


def test_rewards_of_the_bank_are_paid_where_they_are_earned() -> None:
    env = make(reward="bank")
    _, reward, *_ = env.step(write(FACT) + write(FACT) + write(FACT) + SEARCH)
    assert reward == pytest.approx(-0.04)
    _, reward, *_ = env.step('<memory_discard ids="7"/>' + SEARCH)
    assert reward == pytest.approx(-0.05)
    _, reward, *_, info = env.step("<answer>wrong</answer>")
    assert info["tokens"].memory == 9
    assert reward == pytest.approx(0.05 * (1 - 9 / 1024))
    assert info["episode"].rewards.duplicate_write == pytest.approx(-0.04)


def test_the_budget_is_of_all_that_is_active() -> None:
    env = make(max_memory_tokens=10)
    *_, info = env.step(write(FACT) + SEARCH)
    assert info["tokens"].memory == 9
    *_, info = env.step(write("something else entirely") + SEARCH)
    assert info["action"].reason == "memory_too_long" and "had 12 tokens, at most 10" in info["action"].detail
    *_, info = env.step('<memory_discard ids="1"/>' + write("something else entirely") + SEARCH)
    assert info["tokens"].memory == 3 and info["memory"] == "something else entirely"


def test_the_hint_says_when_a_check_is_due() -> None:
    env = make(memory=BankConfig(check_after=2))
    due = "check whether the memory has all"
    assert [due in env.step(text + SEARCH)[0] for text in ("", "", "", write(FACT), "", "")] == [
        False,
        True,
        True,
        False,
        False,
        True,
    ]


def test_the_log_travels_into_the_episode() -> None:
    env = make()
    env.step(write(FACT) + SEARCH)
    *_, info = env.step("<memory_read>Aldo</memory_read><answer>x</answer>")
    episode = info["episode"]
    assert [[r.kind for r in round.operations] for round in episode.rounds] == [["write"], ["read"]]
    assert episode.rounds[0].memory == FACT and episode.settings["memory"] == "bank"
    assert episode.settings["memory_of"]["capacity"] == 64


# --- Isolation, snapshots, forks ---


def test_episodes_cannot_share_a_bank() -> None:
    """There is no keyword that takes one, and neither forks, copies, nor vector environments share."""
    with pytest.raises(ConfigError, match="the class, not an object"):
        make(memory=bank_of(make()))
    env = make()
    env.step(write(FACT) + SEARCH)
    twins = env.fork(2)
    twins[0].step(write("only of the first fork") + SEARCH)
    assert [len(bank_of(e)) for e in (env, *twins)] == [1, 2, 1]
    env.reset(seed=0)
    assert len(bank_of(env)) == 0, "a new episode begins with nothing"
    many = gym.make_vec(BANK, num_envs=2)
    many.reset(seed=[1, 1], options={"question_id": many.unwrapped.envs[0].questions[0].id})  # type: ignore[attr-defined]
    *_, infos = many.step([write(FACT) + SEARCH, SEARCH])
    assert list(infos["memory"]) == [FACT, ""], "nor do the rollouts of a group"


OPERATIONS = st.lists(
    st.one_of(
        st.sampled_from(["alpha beta", "alpha gamma", "delta", "delta town", "river in town"]).map(write),
        st.sampled_from(["alpha", "town"]).map(lambda q: f"<memory_read>{q}</memory_read>"),
        st.sampled_from(
            [
                '<memory_discard ids="1"/>',
                '<memory_merge ids="1,2"/>',
                '<memory_merge ids="2">x</memory_merge>',
            ]
        ),
    ),
    max_size=3,
).map("".join)


@settings(max_examples=25, deadline=None)
@given(st.lists(OPERATIONS, min_size=1, max_size=6), st.data())
def test_restoring_and_stepping_equals_stepping(rounds: list[str], data: Any) -> None:
    env = make(BankConfig(capacity=3, titles=2))
    cut = data.draw(st.integers(0, len(rounds) - 1))
    for text in rounds[:cut]:
        env.step(text + SEARCH)
    state = env.get_state()
    other = make(BankConfig(capacity=3, titles=2))
    other.reset(options={"state": state})
    (fork,) = env.fork(1)
    for text in rounds[cut:]:
        wanted, *_, info = env.step(text + SEARCH)
        for twin in (other, fork):
            got, *_, told = twin.step(text + SEARCH)
            assert got == wanted and told["state_hash"] == info["state_hash"]
            assert told["operations"] == info["operations"]
    assert env.get_state() == other.get_state()
    assert json.loads(state)["store"] is not None


def test_the_hash_tells_banks_apart_that_look_alike() -> None:
    """Two banks with the same entries, of which one was read more often, evict differently."""
    one, other = make(), make()
    for env, query in ((one, "Aldo Verne"), (other, "river Sool")):
        env.step(write(FACT) + write("The river Sool flows through Tark.") + SEARCH)
        env.step(f'<memory_read k="1">{query}</memory_read>' + SEARCH)
    hashes = [env.step(SEARCH)[4] for env in (one, other)]
    assert hashes[0]["memory"] == hashes[1]["memory"] and hashes[0]["state_hash"] != hashes[1]["state_hash"]


def test_a_state_with_other_settings_of_the_bank_is_refused() -> None:
    from mempo_env.errors import StateError

    with pytest.raises(StateError, match="memory_of"):
        make().reset(options={"state": make(BankConfig(capacity=3)).get_state()})


# --- A memory of one's own ---


class LastThree:
    """Keeps the last three notes, and shows them numbered."""

    def __init__(self, state: Any = None) -> None:
        self.notes: list[str] = list(state or ())

    def write(self, text: str, round: int) -> None:
        self.notes = [*self.notes, f"{round}: {text}"][-3:]

    def show(self) -> str:
        return "\n".join(self.notes)

    def state(self) -> Any:
        return self.notes


def test_a_memory_of_ones_own_plays_snapshots_and_forks() -> None:
    env = make(LastThree)
    for i in range(4):
        obs, *_, info = env.step(f"<mem>note {i}</mem>" + SEARCH)
    assert info["memory"] == "2: note 1\n3: note 2\n4: note 3" and "2: note 1\n3: note 2\n4: note 3" in obs
    assert "note 0" not in obs and info["tokens"].memory == 9
    other = make(LastThree)
    other.reset(options={"state": env.get_state()})
    (fork,) = env.fork(1)
    assert fork.step(SEARCH)[0] == other.step(SEARCH)[0] == env.step(SEARCH)[0]
    fork.step("<mem>another</mem>" + SEARCH)
    assert "another" not in env.step(SEARCH)[0]
    env.reset(seed=1)
    assert env.step(SEARCH)[4]["memory"] == ""


class Unsaid(LastThree):
    def state(self) -> Any:
        return {1, 2}


class Mute(LastThree):
    def show(self) -> Any:
        return None


def test_a_memory_that_is_none_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="without write"):
        make(dict)
    with pytest.raises(ConfigError, match="the class, not an object"):
        make(LastThree())
    with pytest.raises(ConfigError, match="did you mean 'bank'"):
        make("bnak")
    with pytest.raises(ConfigError, match=r"plain JSON data from state\(\)"):
        make(Unsaid)
    with pytest.raises(ConfigError, match=r"a text from show\(\), got NoneType"):
        make(Mute)


class Forgetful(LastThree):
    """Takes no notice of the state that it is made from."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()


def test_a_memory_that_does_not_take_up_its_state_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Forgetful\(state=...\) takes up") as told:
        gym.make("MemPO-SearchQA-v0", memory=Forgetful)
    assert 'that was ["1: a note"] after a write, and [] in one made from it' in str(told.value)


class Tried(LastThree):
    made = 0

    def __init__(self, state: Any = None) -> None:
        type(self).made += 1
        super().__init__(state)


def test_a_class_is_tried_once() -> None:
    gym.make_vec("MemPO-SearchQA-v0", num_envs=3, memory=Tried)
    gym.make("MemPO-SearchQA-v0", memory=Tried)
    assert Tried.made == 3, "one that writes, one made from its state, and a new one"


class Keyed(LastThree):
    """Its state equals what it was made from, in another order and with tuples for lists."""

    def __init__(self, state: Any = None) -> None:
        super().__init__(state and state["notes"])
        self.ready = state is not None

    def state(self) -> Any:
        parts = {"notes": tuple(self.notes), "size": len(self.notes)}
        return dict(reversed(parts.items())) if self.ready else parts


def test_a_state_is_compared_by_what_it_says() -> None:
    env = make(Keyed)
    env.step("<mem>one</mem>" + SEARCH)
    assert env.step("<mem>two</mem>" + SEARCH)[4]["memory"] == "1: one\n2: two"


def test_a_memory_by_name_is_the_class() -> None:
    one, other = make(LastThree), make(f"{__name__}:LastThree")
    one.step("<mem>a</mem>" + SEARCH)
    other.reset(options={"state": one.get_state()})
    assert one.step("<mem>b</mem>" + SEARCH)[4]["memory"] == "1: a\n2: b"
    assert other.step("<mem>b</mem>" + SEARCH)[4]["memory"] == "1: a\n2: b"
    for name, says in {
        "nowhere:Memory": "memory 'nowhere:Memory': wanted module:thing that can be imported",
        f"{__name__}:LastFour": "no attribute 'LastFour'|cannot import name",
        f"{__name__}:FACT": "or a class .* got 'Aldo Verne",
    }.items():
        with pytest.raises(ConfigError, match=says):
            make(name)


# --- Faults that were found ---


def test_a_fork_in_the_middle_of_a_round_keeps_what_was_written() -> None:
    env = make()
    env.submit(write(FACT) + SEARCH)
    (twin,) = env.fork(1)
    mine, its = env.conclude(())[4], twin.conclude(())[4]
    assert mine["memory"] == its["memory"] == FACT and mine["state_hash"] == its["state_hash"]


class Moody(LastThree):
    """Raises for one text, has a state that is none for another."""

    def write(self, text: str, round: int) -> None:
        if text == "boom":
            raise RuntimeError("boom")
        super().write(text, round)

    def state(self) -> Any:
        return {1, 2} if any("set" in note for note in self.notes) else self.notes


FAULTS = {
    "boom": "memory: Moody.write() raised RuntimeError: boom (",
    "a set": "memory: wanted plain JSON data from state(): Object of type set is not JSON serializable",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_memory_that_fails_ends_its_episode_and_no_other(text: str) -> None:
    many = gym.make_vec("MemPO-SearchQA-v0", num_envs=2, memory=Moody)
    many.reset(seed=0)
    many.step(["<mem>one</mem>" + SEARCH] * 2)
    *_, terminated, truncated, infos = many.step(["<mem>ok</mem>" + SEARCH, f"<mem>{text}</mem>" + SEARCH])
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
    episode = infos["episode"][1]
    assert episode.stop_reason is StopReason.MEMORY_ERROR and episode.mask_episode
    assert episode.failure == (Failure.ENVIRONMENT,) and episode.stop_detail.startswith(FAULTS[text])
    assert infos["memory"].tolist() == ["1: one\n2: ok", "1: one"], "what failed is not kept"
    assert episode.rounds[-1].hits == () and episode.rounds[-1].reward.weighted.total() == 0.0
    *_, infos = many.step(["<mem>two</mem>" + SEARCH, None])
    assert infos["memory"][0] == "1: one\n2: ok\n3: two"


class MoodyAgent:
    """Writes what its question says."""

    name = fingerprint = "moody"
    env_kwargs: Mapping[str, Any] = MappingProxyType({"memory": Moody})

    def act(self, contexts: Sequence[Context]) -> list[str]:
        return [
            f"<mem>{'boom' if context.question_id == 'q3' else 'a'}</mem>"
            + (SEARCH if len(context.segments) < 5 else "<answer>Ines Calder</answer>")
            for context in contexts
        ]


@pytest.mark.parametrize("num_envs", [1, 4])
def test_a_memory_that_fails_does_not_end_the_run(num_envs: int) -> None:
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    played = dict(episodes(MoodyAgent(), ["q2", "q3", "q4", "q5"], env_kwargs=kwargs, num_envs=num_envs))
    assert [str(played[i].stop_reason) for i in range(4)] == [
        "answered",
        "memory_error",
        "answered",
        "answered",
    ]


class Unmade(LastThree):
    """Can be made once, but not from a state."""

    def __init__(self, state: Any = None) -> None:
        if state is not None:
            raise KeyError("lost")
        super().__init__()


class Shy(LastThree):
    def show(self) -> str:
        return "" if not self.notes else 1 / 0  # type: ignore[return-value]


class Secret(LastThree):
    def state(self) -> Any:
        return self.notes if not self.notes else self.notes[7]


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        (Unmade, "memory: Unmade() raised KeyError: 'lost' ("),
        (Shy, "memory: Shy.show() raised ZeroDivisionError: division by zero ("),
        (Secret, "memory: Secret.state() raised IndexError: list index out of range ("),
    ],
)
def test_a_memory_that_fails_says_which_method_and_line(memory: type, told: str) -> None:
    env = make(memory)
    _, _, terminated, truncated, info = env.step("<mem>a</mem>" + SEARCH)
    assert (terminated, truncated, info["stop_reason"]) == (False, True, StopReason.MEMORY_ERROR)
    detail = info["episode"].stop_detail
    assert detail.startswith(told) and re.search(r"\(.*test_bank_env\.py:\d+\)$", detail)


def test_a_memory_that_never_could_be_made_is_refused_by_reset() -> None:
    class Broken(LastThree):
        def __init__(self, state: Any = None) -> None:
            raise OSError("no disk")

    with pytest.raises(MemoryFault, match=r"memory: Broken\(\) raised OSError: no disk"):
        make(Broken)


def no_judge(new: str, nearest: str, similarity: float) -> bool:
    raise RuntimeError("asleep")


def no_vectors(texts: Sequence[str]) -> Any:
    return np.zeros((len(texts), 2))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"novelty": "test_bank_env:no_judge"},
            "novelty 'test_bank_env:no_judge' raised RuntimeError: asleep",
        ),
        ({"embed": "test_bank_env:no_vectors"}, "embedder: wanted finite vectors that are not 0"),
    ],
)
def test_a_function_of_a_bank_that_fails_ends_its_episode(config: dict[str, Any], told: str) -> None:
    env = make(BankConfig(**config))
    *_, info = env.step(write(FACT) + write("something else entirely") + SEARCH)
    assert info["stop_reason"] is StopReason.MEMORY_ERROR and told in info["episode"].stop_detail
    assert info["memory"] == "" and info["operations"] == ()


def test_running_out_of_memory_is_no_memory_error() -> None:
    class Huge(LastThree):
        def write(self, text: str, round: int) -> None:
            raise MemoryError

    env = make(Huge)
    with pytest.raises(MemoryError):
        env.step("<mem>a</mem>" + SEARCH)


class Stateless:
    def write(self, text: str, round: int) -> None: ...

    def show(self) -> str:
        return ""

    def state(self) -> Any:
        return {}


@pytest.mark.parametrize("state", [float("nan"), float("inf"), {1: "a"}, [{2: "b"}], "\ud800"])
def test_a_state_that_json_would_change_is_refused(state: Any) -> None:
    class Odd(LastThree):
        def state(self) -> Any:
            return state if self.notes else []

    *_, info = make(Odd).step("<mem>a</mem>" + SEARCH)
    assert info["stop_reason"] is StopReason.MEMORY_ERROR
    assert "plain JSON data" in info["episode"].stop_detail and info["memory"] == ""


def test_a_class_that_takes_no_state_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"made by Stateless\(\) and by Stateless\(state=...\)"):
        make(Stateless)


def test_states_are_the_same_to_the_byte_after_a_restore() -> None:
    env, other = make(reward="bank"), make(reward="bank")
    env.step(write(FACT) + SEARCH)
    other.reset(options={"state": env.get_state()})
    for each in (env, other):
        each.step(SEARCH)
    assert env.get_state() == other.get_state() and ":-0.0," not in env.get_state()


def test_a_tag_that_closes_itself_is_shown_as_it_was_written() -> None:
    env = make()
    env.step(write(FACT) + SEARCH)
    obs, *_ = env.step('<memory_discard ids="1"/><search> x')
    assert (
        '<memory_discard ids="1"/>\n' in obs and "</memory_discard>" not in obs.split("What is neither")[-1]
    )
