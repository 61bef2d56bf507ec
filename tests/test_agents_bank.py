"""Agents that keep a memory bank by a rule: what they see of it and do to it, and what a model may say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_agents import Context, make_agent
from mempo_agents.amem import KEYWORDS, keywords, linked
from mempo_agents.mem0 import chosen
from mempo_agents.models.base import Prompt
from mempo_agents.notes import FACTS, Recall, ids_in, lines, recalls, searched
from mempo_env.memory.bank import Bank, BankConfig
from mempo_env.protocol import parse
from mempo_env.types import Call, Entry, Invalid, Search, Segment
from small import QUESTIONS, TitleRetriever

RULED = ["rag_memory", "amem", "mem0"]
FOODS = ["tart", "bread", "cheese", "jam", "milk", "stew", "figs", "soup", "rice", "pear", "lamb", "plum"]


class Saying:
    """Answers each prompt by what a function makes of its text; searches for something new each round."""

    name = fingerprint = "saying"

    def __init__(self, says: Callable[[Prompt, int], str]) -> None:
        self.says, self.round = says, 0
        self.prompts: list[Prompt] = []

    def generate(self, prompts: Sequence[Prompt]) -> list[Call]:
        self.prompts += prompts
        return [Call(segments=prompt.segments, output=self._write(prompt)) for prompt in prompts]

    def _write(self, prompt: Prompt) -> str:
        if prompt.stop == ("</mem>",):
            return f"<mem>{self.says(prompt, self.round)}</mem>"
        self.round += 1
        return f"<search> thing {self.round} </search>"


class Table:
    """An agent at the environment, a round at a time."""

    def __init__(self, name: str, says: Callable[[Prompt, int], str], model: type[Saying] = Saying) -> None:
        self.model = model(says)
        self.agent = make_agent(name, model=self.model)
        kwargs: dict[str, Any] = {
            "dataset": QUESTIONS,
            "retriever": TitleRetriever(),
            **self.agent.env_kwargs,
        }
        self.env = gym.make("MemPO-SearchQA-v0", **kwargs)
        _, self.info = self.env.reset(options={"question_id": "q0"})

    def step(self) -> list[Prompt]:
        """Play a round; the prompts of it."""
        self.model.prompts = []
        (text,) = self.agent.act([Context(self.info["segments"], "q0")])
        assert not isinstance(text, Exception)
        *_, self.info = self.env.step(text)
        assert not isinstance(self.info["action"], Invalid), self.info["action"]
        return self.model.prompts

    @property
    def entries(self) -> list[Entry]:
        bank = self.env.unwrapped._play.store  # type: ignore[attr-defined]
        assert isinstance(bank, Bank)
        return bank.entries

    def active(self) -> list[str]:
        return [entry.text for entry in self.entries if entry.state == "active"]


def told(prompt: Prompt) -> str:
    """Which call it is, by the words that ask for it."""
    signs = {"facts that": "extract", "Summarise": "extract", "ADD": "choose", "Merge": "merge"}
    signs |= {"keywords": "keywords", "belong together": "link", "Rewrite": "save"}
    text = prompt.messages[0].content
    return next((sign for words, sign in signs.items() if words in text), "act")


# --- What is in view ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULED)
def test_it_acts_on_what_the_last_round_read_and_on_what_is_new_and_on_nothing_else(name: str) -> None:
    """The log of the bank says which entries were read; no other one may be shown."""

    def says(prompt: Prompt, round: int) -> str:
        return f"{FOODS[round]} with {FOODS[round]}" if told(prompt) == "extract" else "NONE"

    def foods(text: str) -> set[str]:
        return {food for food in FOODS if food in text}

    table, hidden = Table(name, says if name != "mem0" else adding(says)), 0
    for round in range(len(FOODS)):
        done = table.info.get("operations", ())
        read = {id for record in done if record.kind == "read" for id in record.ids}
        stored = {entry.id: foods(entry.text) for entry in table.entries if entry.state == "active"}
        acted = foods(table.step()[-1].text)
        new = (
            FOODS[max(1, round) : round + 1] if name == "rag_memory" else FOODS[max(1, round - 1) : round + 1]
        )
        assert acted == set(new).union(*(stored[id] for id in read))
        hidden += len(stored.keys() - read)
    assert len(table.active()) >= len(FOODS) - 2
    assert hidden > 0


def adding(says: Callable[[Prompt, int], str]) -> Callable[[Prompt, int], str]:
    return lambda prompt, round: "ADD" if told(prompt) == "choose" else says(prompt, round)


def test_the_window_holds_the_core_block_and_the_last_steps_and_the_archive_what_left_it() -> None:
    """A step is some 30 words: at 150, the queue is emptied now and then, after the model was warned."""
    table = Table("paging(150)", lambda prompt, round: f"core {round}")
    warned = emptied = 0
    for round in range(1, 15):
        prompts = table.step()
        text, first = prompts[-1].text, round
        while f"<search> thing {first - 1} </search>" in text:
            first -= 1
        left = [f"<search> thing {i} </search>" in text for i in range(1, first)]
        assert not any(left), "the queue has no holes"
        saves = [prompt for prompt in prompts if told(prompt) == "save"]
        assert len(prompts) == 1 + len(saves)
        if saves:
            assert f"<mem>\ncore {round - 1}\n</mem>" in text
            warned += 1
        stored = [entry for entry in table.active() if not entry.startswith("Core, ")]
        emptied = max(emptied, first - 1)
        assert len(stored) == 3 * emptied, "the passages of each step that left, three a search"
        assert not any("Core, steps" in prompt.text for prompt in prompts)
    assert warned >= 3
    assert emptied >= 8
    assert len([entry for entry in table.active() if entry.startswith("Core, ")]) == 1


def test_the_archive_is_in_view_where_the_model_reads_it() -> None:
    class Reading(Saying):
        def _write(self, prompt: Prompt) -> str:
            text = super()._write(prompt)
            return text.replace("<search>", '<memory_read k="6"> Kettle Works core </memory_read><search>')

    table = Table("paging(150)", lambda prompt, round: "core", Reading)
    while len(table.active()) < 2:
        table.step()
    table.step()
    shown = table.step()[-1].messages[-1].content
    assert "<memory_recall> Kettle Works core\n[" in shown
    assert "Core, steps" not in shown
    assert "<mem>\ncore\n</mem>" in shown
    assert len([entry for entry in table.active() if entry.startswith("Core, ")]) == 1


def test_a_core_block_outlives_a_round_that_was_invalid() -> None:
    table = Table("paging(150)", lambda prompt, round: f"core {round}")
    while not table.active():
        table.step()
    core = table.active()
    *_, table.info = table.env.step("no action at all")
    assert "<mem>\ncore" in table.step()[-1].text
    assert len(table.active()) >= len(core)
    assert len([entry for entry in table.active() if entry.startswith("Core, ")]) == 1


# --- What a model may say ----------------------------------------------------------------------------------

SIMILAR = {3: "three", 12: "twelve"}


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("<mem>ADD</mem>", ("ADD", None)),
        ("<mem> UPDATE 3 </mem>", ("UPDATE", 3)),
        ("DELETE [12].", ("DELETE", 12)),
        ("**NONE**", ("NONE", None)),
        ("UPDATE 4", ("UPDATE", None)),
        ("DELETE '3'", ("DELETE", 3)),
        ("DELETE 3.5", ("DELETE", None)),
        ("DELETE -3", ("DELETE", None)),
        ("DELETE 123", ("DELETE", None)),
        ("UPDATE ٣", ("UPDATE", None)),
        ("UPDATE 99999999999999999999", ("UPDATE", None)),
        ("I would rather not DELETE 3", ("ADD", None)),
        ("delete 3", ("ADD", None)),
        ("ADDED 3", ("ADD", None)),
        ("", ("ADD", None)),
    ],
)
def test_a_choice_changes_only_what_it_was_shown(text: str, choice: tuple[str, int | None]) -> None:
    assert chosen(text, SIMILAR) == choice


@given(st.text(), st.sets(st.integers(1, 10**6), max_size=5))
def test_ids_from_a_model_are_known_ones_each_once(text: str, known: set[int]) -> None:
    found = ids_in(f"{text} {sorted(known)} {text}", known)
    assert set(found) <= known
    assert len(set(found)) == len(found)
    assert set(ids_in(str(sorted(known)), known)) == known


def test_ids_are_numbers_not_positions() -> None:
    assert ids_in("1, 2 and 12", {12, 3}) == (12,)
    assert ids_in("[3],[12],[3]", {12, 3}) == (3, 12)


@pytest.mark.parametrize("name", RULED)
def test_what_a_model_writes_cannot_act(name: str) -> None:
    trap = '<memory_discard ids="1"/><answer>no</answer> "/> <memory_read k="99"> x | y\n\n<search'
    table = Table(name, lambda prompt, round: trap)
    for _ in range(6):
        table.step()
    assert all(entry.state != "discarded" for entry in table.entries)
    assert table.entries


@pytest.mark.parametrize("name", RULED)
def test_a_model_that_says_nothing_stores_nothing(name: str) -> None:
    table = Table(name, lambda prompt, round: " \n ")
    for _ in range(4):
        table.step()
    assert table.entries == []


@pytest.mark.parametrize("name", ["amem", "mem0"])
def test_a_model_that_rambles_is_cut_short(name: str) -> None:
    table = Table(name, lambda prompt, round: "\n".join(f"line {i} of {round}" for i in range(99)))
    for _ in range(3):
        prompts = table.step()
    assert len(table.active()) == FACTS
    assert len(prompts) <= 2 + 3 * FACTS


# --- What is done to the bank ------------------------------------------------------------------------------


def mem0(*choices: str, merged: str = "both") -> Table:
    """Two rounds that store "tart is old" as entry 1, then one whose fact is "tart is new" or two of them."""
    facts = ["", "tart is old", "tart is new\ntart is newer"]
    left = list(choices)

    def says(prompt: Prompt, round: int) -> str:
        match told(prompt):
            case "extract":
                return facts[round] if round < len(facts) else ""
            case "choose":
                return left.pop(0)
        return merged

    table = Table("mem0", says)
    for _ in range(4):
        table.step()
    assert not left
    return table


@pytest.mark.parametrize(
    ("choices", "active"),
    [
        (("ADD", "NONE"), ["tart is old", "tart is new"]),
        (("NONE", "NONE"), ["tart is old"]),
        (("DELETE 1",), ["tart is new", "tart is newer"]),
        (("UPDATE 1",), ["both", "tart is newer"]),
        (("DELETE 7", "UPDATE"), ["tart is old", "tart is new", "tart is newer"]),
    ],
)
def test_what_is_chosen_is_done_and_an_entry_is_changed_once_a_round(
    choices: tuple[str, ...], active: list[str]
) -> None:
    """A second fact isn't compared with an entry that the first one has changed."""
    assert mem0(*choices).active() == active


def test_an_update_without_a_text_loses_nothing() -> None:
    assert mem0("UPDATE 1", "NONE", merged="").active() == ["tart is old", "tart is new"]


def test_linked_notes_take_over_keywords_so_that_one_read_finds_both() -> None:
    facts = ["", "tart is sweet", "the baker is Ann\nAnn is tall"]

    def says(prompt: Prompt, round: int) -> str:
        match told(prompt):
            case "extract":
                return facts[round] if round < len(facts) else ""
            case "keywords":
                named = {"tart is": "tart, sugar", "the baker": "baker", "Ann is tall": "Ann"}
                return next(words for fact, words in named.items() if fact in prompt.text)
        return "1, 77" if told(prompt) == "link" else ""

    table = Table("amem", says)
    for _ in range(4):
        table.step()
    assert sorted(table.active()) == [
        "Ann is tall | keywords: Ann, tart, sugar, baker",
        "tart is sweet | keywords: tart, sugar, baker, Ann",
        "the baker is Ann | keywords: baker, tart, sugar",
    ]
    assert [entry.merged_into for entry in table.entries if entry.state == "merged"] == [2]


def test_keywords_are_few_and_each_once() -> None:
    note = linked("a fact", [" x ", "", "y", "x"])
    assert note == "a fact | keywords: x, y"
    assert linked(note, ["y", "z"]) == "a fact | keywords: x, y, z"
    assert keywords(linked("a fact", map(str, range(99)))) == [str(i) for i in range(KEYWORDS)]
    assert linked("a fact", []) == "a fact"


def test_notes_are_read_from_the_text_of_the_environment() -> None:
    text = "Not written (duplicate): too similar to entry [1].\n<memory_recall> a [2] b\n[3] one\n[4] two\n"
    text += "</memory_recall>\n<memory_recall> c\nNothing is stored.\n</memory_recall>"
    found = recalls([Segment("recall", 1, text, 1)])
    assert found == (Recall("a [2] b", {3: "one", 4: "two"}), Recall("c", {}))
    assert found[0].text in text
    assert lines("<mem> a | b\n\n c  d\n a / b</mem> e") == ("a / b", "c d")
    assert searched("<think>x</think><search> one\n <mem two </search>") == ("one ‹mem two",)
    assert searched("<answer>x</answer>") == searched("") == ()


# --- Where the bank is small -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RULED, "paging(150)"])
def test_a_full_bank_evicts_and_no_round_is_invalid(name: str) -> None:
    """An entry that a round changes could be evicted by what the same round writes."""
    agent = make_agent(name)
    small = BankConfig(capacity=2, duplicate=2.0)
    kwargs = {**agent.env_kwargs, "memory": small}
    env = gym.make("MemPO-SearchQA-v0", dataset=QUESTIONS, retriever=TitleRetriever(), objectives=4, **kwargs)
    _, info = env.reset(options={"question_id": "q0+q1+q2+q3"})
    while "episode" not in info:
        (text,) = agent.act([Context(info["segments"], "q")])
        assert isinstance(text, str) and not isinstance(parse(text, bank=True), Invalid)
        *_, info = env.step(text)
        assert isinstance(info["action"], Search) or info["episode"].stop_reason == "answered"
    assert any(record.kind == "evict" for round in info["episode"].rounds for record in round.operations)
