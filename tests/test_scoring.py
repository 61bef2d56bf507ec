"""EM and F1 against hand-typed numbers and an independent port of the official script's definition."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_env.scoring import (
    bare,
    contains,
    exact_match,
    f1,
    fold,
    holds,
    normalise,
    score_episode,
    score_objective,
)

# Hand-typed from the definition in hotpot_evaluate_v1.py: (prediction, gold, EM, F1).
OFFICIAL = [
    ("The Beatles", "Beatles", 1, 1.0),
    ("U.S.", "US", 1, 1.0),
    ("1,000", "1000", 1, 1.0),
    ("New York New York", "New York", 0, 2 / 3),
    ("yes it is", "yes", 0, 0.0),
    ("no", "noanswer", 0, 0.0),
    ("3.5 million", "35 million", 1, 1.0),
    ("café", "cafe", 0, 0.0),
    ("the Lord of the Rings", "Lord of Rings", 1, 1.0),
    ("", "Paris", 0, 0.0),
]
# Our own rules, where the script errs or is silent.
OURS = [("A", "A", 1, 1.0), ("", "The", 0, 0.0), ("The", "A", 0, 0.0), ("  ", "", 0, 0.0), ("!", "!", 1, 1.0)]

words = st.text(st.sampled_from("ab theyesnoè.,'- 1"), max_size=25)


@pytest.mark.parametrize(("prediction", "gold", "em", "f"), OFFICIAL + OURS)
def test_numbers(prediction: str, gold: str, em: int, f: float) -> None:
    assert exact_match(prediction, gold) == bool(em)
    assert f1(prediction, gold) == pytest.approx(f, abs=1e-12)
    score = score_objective(prediction, (gold,))
    assert (score.em, score.f1) == (em, pytest.approx(f, abs=1e-12))


def reference_f1(prediction: str, gold: str) -> float:
    """The definition, written anew: bags of words, yes / no / noanswer must be equal."""

    def norm(s: str) -> str:
        s = "".join(c for c in s.lower() if c not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())

    p, g = norm(prediction), norm(gold)
    if (p in ("yes", "no", "noanswer") or g in ("yes", "no", "noanswer")) and p != g:
        return 0.0
    same = sum((Counter(p.split()) & Counter(g.split())).values())
    if not same:
        return 0.0
    precision, recall = same / len(p.split()), same / len(g.split())
    return 2 * precision * recall / (precision + recall)


@given(words, words)
def test_f1_equals_the_definition(prediction: str, gold: str) -> None:
    if normalise(prediction) or normalise(gold):
        assert f1(prediction, gold) == pytest.approx(reference_f1(prediction, gold), abs=1e-12)
        assert exact_match(prediction, gold) == (normalise(prediction) == normalise(gold))


@given(st.text(max_size=40), st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_scores_are_ordered_and_total(prediction: str, answers: list[str]) -> None:
    score = score_objective(prediction, tuple(answers))
    assert 0 <= score.em <= score.f1 <= 1
    assert score.em <= score.em_relaxed and (score.em == 0 or score.contains)


@given(st.text(min_size=1).filter(str.strip))
def test_an_answer_matches_itself(text: str) -> None:
    assert exact_match(text, text) and score_objective(text, ("zzz", text)).em == 1.0


def test_best_alias_counts_for_each_figure() -> None:
    score = score_objective("Mayor Ines Calder", ("Tomas Reve", "Ines Calder"))
    assert (score.em, score.f1) == (0.0, pytest.approx(0.8))


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [("café", "cafe"), ("1939–1945", "1939-1945"), ("Müller", "Muller"), ("ﬁn", "fin"), ("O’Neil", "O'Neil")],
)
def test_relaxed_match_folds_what_the_script_does_not(prediction: str, gold: str) -> None:
    score = score_objective(prediction, (gold,))
    assert (score.em, score.em_relaxed) == (0.0, 1.0)


def test_containment_is_by_words_never_by_letters() -> None:
    assert not score_objective("business", ("us",)).contains
    assert score_objective("in the US today", ("U.S.",)).contains
    assert not contains("", "") and not contains("abc", "")


def test_yes_and_no_are_never_contained() -> None:
    assert not score_objective("Yes, no doubt", ("no",)).contains
    assert not score_objective("no", ("no idea",)).contains


@given(
    st.text(st.sampled_from("ab theU.S-–'\n1é"), max_size=30),
    st.text(st.sampled_from("ab theus1é"), max_size=6),
)
def test_looking_for_the_last_word_first_changes_nothing(text: str, phrase: str) -> None:
    wanted = normalise(phrase)
    assert holds(text, bare(text), wanted) == contains(normalise(text), wanted)


def test_fold_leaves_ascii_alone() -> None:
    assert fold("The A-Team's") == "The A-Team's"


def test_an_empty_prediction_never_matches_a_gold_that_normalises_to_nothing() -> None:
    for gold in ("The", "A", "an", "!"):
        assert score_objective("", (gold,)).em == 0.0


def test_episode_means_over_objectives() -> None:
    score = score_episode(("Paris", ""), [("Paris",), ("Oslo",)], well_formed=False)
    assert (score.em, score.f1, score.em_all) == (0.5, 0.5, 0.0)
    assert score_episode(("a b", "c"), [("a b",), ("c",)], True).em_all == 1.0
    assert score_episode(("a b", "c"), [("a b",), ("c",)], False).em_all == 0.0


def test_wrong_number_of_parts_is_refused_not_shifted() -> None:
    with pytest.raises(ValueError, match="one prediction for each of 2"):
        score_episode(("a",), [("a",), ("b",)], True)
