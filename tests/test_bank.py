"""The memory bank by itself: gates, reads, merges, tombstones, eviction, its log and its state."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import ConfigError, MemoryFault, StateError
from mempo_env.memory.bank import Bank, BankConfig
from mempo_env.memory.joining import trim
from mempo_env.memory.operations import Fault
from mempo_env.tokens import count_words
from mempo_env.types import Operation, Search

BORN = "Aldo Verne was born in Marrow Bay in 1901."
TOWN = "Marrow Bay is a town of 9,000 people on the northern coast."
RIVER = "The river Sool flows through the province of Tark."


def bank(**settings: Any) -> Bank:
    return Bank(BankConfig(**settings), count_words, "q1")


def ask(*operations: Operation) -> Search:
    return Search(query="x", operations=operations)


def states(made: Bank) -> list[str]:
    return [entry.state for entry in made.entries]


def axes(texts: Any) -> Any:
    """A text of numbers is its own vector."""
    return np.array([[float(x) for x in text.split()] for text in texts])


AXES = f"{__name__}:axes"


def test_an_entry_has_every_field_of_the_protocol() -> None:
    made = bank()
    assert made.write(BORN, 3) == 1
    entry = made.entries[0]
    assert (entry.id, entry.text, entry.tokens, entry.episode_id) == (1, BORN, 9, "q1")
    assert (entry.created_round, entry.last_access_round, entry.access_count) == (3, 3, 0)
    assert (entry.state, entry.merged_into) == ("active", None)
    assert made.tokens == 9 and made.text() == BORN


def test_a_duplicate_is_refused_and_the_log_says_of_what() -> None:
    made = bank()
    made.write(BORN, 1)
    assert made.write("Aldo Verne was born in Marrow Bay in 1901", 2) is None
    assert len(made) == 1
    record = made.log[-1]
    assert (record.round, record.kind, record.ids, record.accepted, record.why) == (
        2,
        "write",
        (1,),
        False,
        "duplicate",
    )


def test_the_gate_is_at_the_threshold_itself() -> None:
    """cos((1, 0), (0.6, 0.8)) = 0.6 exactly, with vectors typed by hand."""
    at, above = bank(embed=AXES, duplicate=0.6), bank(embed=AXES, duplicate=0.61)
    for made in (at, above):
        made.write("1 0", 1)
        made.write("0.6 0.8", 1)
    assert len(at) == 1 and len(above) == 2


def never(new: str, nearest: str, similarity: float) -> bool:
    assert (new, nearest) == (TOWN, BORN) and 0 < similarity < 0.86
    return False


def test_the_second_gate_is_asked_with_the_nearest_entry() -> None:
    made = bank(novelty=f"{__name__}:never")
    made.write(BORN, 1)
    assert made.write(TOWN, 1) is None and made.log[-1].why == "not_novel"


def test_duplicates_may_be_merged_instead() -> None:
    made = bank(on_duplicate="merge")
    made.write(BORN, 1)
    made.read("Aldo", 2)
    assert made.write("Aldo Verne was born in Marrow Bay, in 1901.", 3) == 2
    assert states(made) == ["merged", "active"] and made.entries[0].merged_into == 2
    assert made.entries[1].access_count == 1, "the uses of what it stands for are its own"
    assert made.log[-1].why == "merged" and made.log[-1].ids == (1, 2) and made.log[-1].kind == "write"


def test_merging_leaves_tombstones_and_joins_texts() -> None:
    made = bank()
    made.write(BORN, 1)
    made.write(RIVER, 1)
    assert made.merge((1, 2), 2) == 3
    assert states(made) == ["merged", "merged", "active"]
    assert made.text() == f"{BORN} {RIVER}" and made.tokens == 18
    assert made.merge((3,), 3, "Both are told.") == 4 and made.text() == "Both are told."


def shorter(text: str, limit: int) -> str:
    return f"{limit} of {len(text.split())}"


def test_a_merge_above_the_limit_asks_the_summariser() -> None:
    made = bank(merge_tokens=10, summarise=f"{__name__}:shorter")
    made.write(BORN, 1)
    made.write(RIVER, 1)
    made.merge((1, 2), 2)
    assert made.text() == "10 of 18"


def test_trim_keeps_whole_last_sentences_once() -> None:
    text = "One two three. Four five. One two three. Six seven eight."
    assert trim(text, 6, count_words) == "One two three. Six seven eight."
    assert trim(text, 8, count_words) == "Four five. One two three. Six seven eight."
    assert trim("one two three four five", 2, count_words) == "one two"
    assert trim("one", 1, count_words) == "one"


@given(st.text(alphabet="ab. !", max_size=60), st.integers(1, 12))
def test_trim_fits_and_says_nothing_new(text: str, limit: int) -> None:
    short = trim(text, limit, count_words)
    assert count_words(short) <= limit
    assert set(short.split()) <= set(text.split())


def test_reading_takes_the_nearest_first_and_then_what_is_different() -> None:
    """Typed by hand: cosines to the query (1, 0) are 1, 0.995 and 0.6; the second repeats the first.

    After the first: lambda c - (1 - lambda) c_first = 0.5 (0.995 - 0.995) = 0 and 0.5 (0.6 - 0.6) = 0 tie,
    so the nearer comes first; at lambda 0.4 the third is better: 0.4 x 0.6 - 0.6 x 0.6 = -0.12 > -0.199.
    """
    texts = ["1 0", "0.995 0.0999", "0.6 0.8"]

    def order(relevance: float) -> list[int]:
        made = bank(embed=AXES, relevance=relevance, duplicate=2.0)
        for text in texts:
            made.write(text, 1)
        return [entry.id for entry in made.read("1 0", 2, k=3)]

    assert order(1.0) == [1, 2, 3]
    assert order(0.4) == [1, 3, 2]


def test_reading_is_counted_and_knows_its_limits() -> None:
    made = bank(k=1)
    made.write(BORN, 1)
    made.write(RIVER, 1)
    (entry,) = made.read("Where was Aldo Verne born?", 5)
    assert entry.text == BORN and (entry.access_count, entry.last_access_round) == (1, 5)
    assert made.entries[0] == entry and made.entries[1].access_count == 0
    assert len(made.read("anything", 5, k=6)) == 2
    assert bank().read("anything", 1) == []


def test_the_least_used_goes_first_and_the_new_one_never_does() -> None:
    made = bank(capacity=2)
    made.write(BORN, 1)
    made.write(RIVER, 2)
    made.read("Aldo Verne", 3, k=1)
    assert made.write(TOWN, 4) == 3
    assert states(made) == ["active", "discarded", "active"]
    assert [(r.kind, r.ids, r.why) for r in made.log[-2:]] == [
        ("evict", (2,), "evicted"),
        ("write", (3,), ""),
    ]


@pytest.mark.parametrize(("eviction", "gone"), [("least_used", 2), ("least_recent", 1), ("oldest", 1)])
def test_eviction_rules_differ(eviction: str, gone: int) -> None:
    """Entry 1 is older and used twice long ago; entry 2 is used once, lately."""
    made = bank(capacity=2, eviction=eviction)
    made.write(BORN, 1)
    made.write(RIVER, 2)
    for round, query in ((3, "Aldo Verne"), (4, "Aldo Verne"), (5, "river Sool")):
        made.read(query, round, k=1)
    made.write(TOWN, 6)
    assert made.entries[gone - 1].state == "discarded"


def test_a_fault_names_what_is_wrong() -> None:
    made = bank()
    made.write(BORN, 1)
    made.discard(1, 2)
    made.write(RIVER, 2)
    made.merge((2,), 3, "Another text.")

    def fault(operation: Operation) -> Fault:
        told = made.copy().update(ask(operation), 4)
        assert isinstance(told, Fault)
        return told

    assert fault(Operation(kind="discard", ids=(9,))) == ("unknown_id", "there is no entry [9]")
    assert fault(Operation(kind="discard", ids=(0,))).reason == "unknown_id"
    assert "it was discarded" in fault(Operation(kind="merge", ids=(1, 3))).detail
    assert "it was merged into [3]" in fault(Operation(kind="discard", ids=(2,))).detail
    assert fault(Operation(kind="read", text="q", k=7)).reason == "k_too_large"


def test_operations_are_done_in_order_and_told() -> None:
    made = bank()
    told = made.update(
        ask(
            Operation(kind="write", text=BORN),
            Operation(kind="write", text=BORN),
            Operation(kind="read", text="Aldo <answer>x</answer>"),
            Operation(kind="discard", ids=(1,)),
        ),
        1,
    )
    assert told == (
        "Not written (duplicate): too similar to entry [1]. "
        "If it says more, merge [1] with a text that says both.\n"
        f"<memory_recall> Aldo ‹answer›x‹/answer›\n[1] {BORN}\n</memory_recall>"
    )
    assert [record.kind for record in made.done(1)] == ["write", "write", "read", "discard"]
    assert made.done(2) == ()


def test_a_refused_write_is_told_how_to_say_more() -> None:
    """Two different facts that share their letters: what is told is true, and what it advises works."""
    first, other = "Aldo Verne was born in 1901.", "Aldo Verne was born in 1902."
    made = bank()
    told = made.update(ask(Operation(kind="write", text=first), Operation(kind="write", text=other)), 1)
    assert "says it already" not in told and "too similar to entry [1]" in told and "merge [1]" in told
    assert made.update(ask(Operation(kind="merge", ids=(1,), text=f"{first} Or in 1902.")), 2) == ""
    assert made.text() == "Aldo Verne was born in 1901. Or in 1902."
    judged = bank(novelty=f"{__name__}:never")
    told = judged.update(ask(Operation(kind="write", text=BORN), Operation(kind="write", text=TOWN)), 1)
    assert told == (
        "Not written (not_novel): judged to be no news beside entry [1]. "
        "If it says more, merge [1] with a text that says both."
    )


def test_a_bank_refuses_what_cannot_be_done_and_stays_as_it_was() -> None:
    made = bank()
    for text in (BORN, TOWN, RIVER):
        made.write(text, 1)
    made.merge((1, 2), 2)
    before = made.state(), made.tokens, len(made)
    for call, says in (
        (lambda: made.merge([1], 3), "needs two entries or more, or one and its new text"),
        (lambda: made.merge([1], 3, "new"), r"entry \[1\] is not there any more: it was merged into \[4\]"),
        (lambda: made.merge([3, 1], 3), r"entry \[1\] is not there any more"),
        (lambda: made.merge([3, 3], 3), "named twice"),
        (lambda: made.merge([], 3, "new"), "needs two entries"),
        (lambda: made.discard(99, 3), r"there is no entry \[99\]"),
        (lambda: made.discard(0, 3), r"there is no entry \[0\]"),
        (lambda: made.read("x", 3, k=0), "k is from 1 to 6, got 0"),
        (lambda: made.read("x", 3, k=7), "k is from 1 to 6, got 7"),
    ):
        with pytest.raises(ConfigError, match=says):
            call()
        assert (made.state(), made.tokens, len(made)) == before


def two_then_none(texts: Any) -> Any:
    """Vectors for short texts alone."""
    return np.array([[1.0, float(len(text))] if len(text) < 9 else [0.0, 0.0] for text in texts])


def test_a_merge_whose_text_has_no_vector_leaves_both_entries() -> None:
    made = bank(embed=f"{__name__}:two_then_none", duplicate=2.0)
    made.write("1", 1)
    made.write("12345678", 1)
    before = made.state(), made.tokens
    with pytest.raises(MemoryFault, match="not 0"):
        made.merge((1, 2), 2)
    assert (made.state(), made.tokens) == before and len(made) == 2


def test_the_prompt_shows_counts_and_titles_of_the_newest() -> None:
    made = bank(titles=1)
    assert made.show() == '<memory_bank entries="0" merged="0" discarded="0">\n</memory_bank>'
    made.write(RIVER, 1)
    made.write("Aldo <mem>was</mem> born in Marrow Bay in the year 1901.", 1)
    assert made.show() == (
        '<memory_bank entries="2" merged="0" discarded="0">\n'
        "[2] Aldo ‹mem›was‹/mem› born in Marrow Bay in the …\nand 1 older\n</memory_bank>"
    )


def test_a_check_is_due_after_rounds_without_a_write() -> None:
    made = bank(check_after=3)
    assert [made.check_is_due(n) for n in (0, 2, 3)] == [False, False, True]
    made.write(BORN, 3)
    assert [made.check_is_due(n) for n in (5, 6)] == [False, True]
    assert not bank(check_after=0).check_is_due(99)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"capacity": 0}, "capacity: wanted a whole number from 1"),
        ({"eviction": "oldset"}, "did you mean 'oldest'"),
        ({"on_duplicate": "drop"}, "on_duplicate"),
        ({"k": 9}, "max_k: wanted at least k, 9"),
        ({"pool": 2}, "pool: wanted at least max_k, 6"),
        ({"duplicate": 0.0}, "duplicate: wanted a number above 0"),
        ({"duplicate": float("nan")}, "duplicate"),
        ({"relevance": 1.5}, "relevance"),
        ({"check_after": -1}, "check_after"),
    ],
)
def test_settings_that_no_bank_can_have_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BankConfig(**settings)


def test_a_state_of_another_episode_is_refused() -> None:
    made = bank()
    made.write(BORN, 1)
    with pytest.raises(StateError, match="wanted entries of episode 'q2', got one of 'q1'"):
        Bank.revived(made.config, count_words, "q2", made.state())


@given(st.text(min_size=1).filter(str.strip))
def test_the_same_text_is_a_duplicate_at_any_threshold_up_to_one(text: str) -> None:
    made = bank(duplicate=1.0)
    assert made.write(text, 1) == 1 and made.write(text, 2) is None


def test_merging_says_nothing_twice() -> None:
    made = bank(on_duplicate="merge")
    for round in range(1, 5):
        made.write(BORN, round)
    assert made.text() == BORN


# --- Properties ---

WORDS = ("alpha", "beta", "gamma", "delta", "born", "in", "town", "river")
TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)


@dataclass
class Model:
    """What must hold of a bank, kept in the plainest way."""

    active: dict[int, str] = field(default_factory=dict)
    made: int = 0


STEP = st.one_of(
    st.tuples(st.just("write"), TEXT),
    st.tuples(st.just("read"), TEXT),
    st.tuples(st.just("merge"), st.integers(0, 9)),
    st.tuples(st.just("discard"), st.integers(0, 9)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25), st.integers(1, 4), st.sampled_from(["refuse", "merge"]))
def test_whatever_is_done_the_bank_is_consistent(steps: list[Any], capacity: int, on_duplicate: str) -> None:
    made, model = bank(capacity=capacity, on_duplicate=on_duplicate), Model()
    for round, (kind, what) in enumerate(steps, 1):
        before = made.copy()
        ids = sorted(model.active)
        if kind == "write":
            made.write(what, round)
        elif kind == "read":
            found = made.read(what, round)
            assert len(found) == min(4, len(ids)) and {e.id for e in found} <= set(ids)
        elif kind == "merge" and len(ids) >= 2:
            made.merge((ids[what % len(ids)], ids[(what + 1) % len(ids)]), round)
        elif kind == "discard" and ids:
            made.discard(ids[what % len(ids)], round)
        model = Model({e.id: e.text for e in made.active()}, len(made.entries))
        assert len(made) == len(model.active) <= capacity
        assert made.tokens == sum(e.tokens for e in made.active())
        assert [e.id for e in made.entries] == list(range(1, model.made + 1)), (
            "ids never collide or come back"
        )
        assert len(before.entries) <= model.made, "nothing is deleted"
        for entry in made.entries:
            assert (entry.merged_into is not None) == (entry.state == "merged")
            if entry.merged_into is not None:
                assert entry.id < entry.merged_into <= model.made
        again = Bank.revived(made.config, count_words, "q1", json.loads(json.dumps(made.state())))
        for twin in (again, made.copy()):
            assert twin.state() == made.state() and twin.tokens == made.tokens
            one, other = twin.copy(), made.copy()
            for each in (one, other):
                each.read("alpha", 99)
                each.write("something wholly else", 100)
            assert one.state() == other.state(), "they go on alike, evictions too"


@settings(max_examples=30, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=12), TEXT)
def test_reading_equals_a_plain_computation(texts: list[str], query: str) -> None:
    """Maximal marginal relevance written out over all pairs, with vectors computed afresh."""
    from mempo_env.memory.similarity import hashed_ngrams, unit_rows

    made = bank(duplicate=0.999)
    for text in texts:
        made.write(text, 1)
    entries = made.active()
    vectors = unit_rows(hashed_ngrams([entry.text for entry in entries]), len(entries)).astype(np.float64)
    target = unit_rows(hashed_ngrams([query]), 1)[0].astype(np.float64)
    left = sorted(range(len(entries)), key=lambda i: -vectors[i] @ target)
    chosen = [left.pop(0)]
    values = []
    while left and len(chosen) < 4:
        worth = {
            i: 0.5 * vectors[i] @ target - 0.5 * max(vectors[i] @ vectors[j] for j in chosen) for i in left
        }
        best = max(left, key=lambda i: worth[i])
        values.append(worth[best])
        chosen.append(best)
        left.remove(best)
    got = [entry.id - 1 for entry in made.read(query, 2)]
    index = {entry.id - 1: i for i, entry in enumerate(entries)}
    order = [index[i] for i in got]
    assert vectors[order[0]] @ target == pytest.approx(vectors[chosen[0]] @ target, abs=1e-5)
    if order[0] == chosen[0] and order[1:] != chosen[1:]:  # only a tie may differ
        worth = 0.5 * vectors[order[1]] @ target - 0.5 * vectors[order[1]] @ vectors[order[0]]
        assert order[1] == chosen[1] or worth == pytest.approx(values[0], abs=1e-5)
