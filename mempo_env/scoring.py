"""Exact match and F1 as the official HotpotQA script computes them, and what is reported beside them.

Source: hotpot_evaluate_v1.py (Yang et al. 2018, 1809.09600): lower case, punctuation deleted, articles
dropped, white space squeezed; F1 over bags of words; a yes / no / noanswer on either side must be equal. Two
rules are our own, where the script errs: an empty prediction never matches, and where both sides normalise to
nothing ("The", "A") the raw texts are compared. The best alias counts, for EM and for F1 each.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from mempo_env.types import ObjectiveScore, Score

_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED = frozenset({"yes", "no", "noanswer"})
_CLOSED_OR_NOTHING = _CLOSED | {""}
_FOLD = str.maketrans(
    {**dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"), **dict.fromkeys("‘’ʼ′", "'"), **dict.fromkeys("“”″", '"')}
)


def normalise(text: str) -> str:
    """Return the text in the form in which the official script compares answers."""
    return " ".join(_ARTICLES.sub(" ", bare(text)).split())


def bare(text: str) -> str:
    """The text in lower case without punctuation: every word of its normal form stands in it."""
    return _PUNCTUATION.sub("", text.lower())


def holds(text: str, text_bare: str, phrase_norm: str) -> bool:
    """Whether the normal form of a text, given with its bare form, contains a normalised phrase.

    The last word of the phrase is looked for first; in most texts it is not, and nothing more is done.
    """
    return phrase_norm.rpartition(" ")[2] in text_bare and contains(normalise(text), phrase_norm)


def fold(text: str) -> str:
    """Return the text with compatibility forms, dashes, quotes, diacritics and case folded."""
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).translate(_FOLD))
    return "".join(c for c in decomposed if not unicodedata.combining(c)).casefold()


def exact_match(prediction: str, gold: str) -> bool:
    """Whether the prediction equals the gold answer after normalisation."""
    return _equal(prediction, normalise(prediction), gold, normalise(gold))


def _equal(prediction: str, prediction_norm: str, gold: str, gold_norm: str) -> bool:
    if prediction_norm or gold_norm:
        return prediction_norm == gold_norm
    raw = prediction.strip()
    return bool(raw) and raw.casefold() == gold.strip().casefold()


def f1(prediction: str, gold: str) -> float:
    """F1 of the two bags of normalised words, in [0, 1]."""
    return _f1(prediction, normalise(prediction), gold, normalise(gold))


def _f1(prediction: str, prediction_norm: str, gold: str, gold_norm: str) -> float:
    if _equal(prediction, prediction_norm, gold, gold_norm):
        return 1.0
    if prediction_norm in _CLOSED or gold_norm in _CLOSED:
        return 0.0
    ours, theirs = prediction_norm.split(), gold_norm.split()
    if set(ours).isdisjoint(theirs):
        return 0.0
    same = sum((Counter(ours) & Counter(theirs)).values())
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def contains(text_norm: str, phrase_norm: str) -> bool:
    """Whether the normalised words of a phrase stand in a normalised text, one after the other."""
    return bool(phrase_norm) and f" {phrase_norm} " in f" {text_norm} "


@lru_cache(maxsize=65_536)
def normalised_answers(answers: tuple[str, ...]) -> tuple[str, ...]:
    """The aliases in normal form, in order."""
    return tuple(map(normalise, answers))


@lru_cache(maxsize=65_536)
def _folded_answers(answers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(normalise(fold(answer)) for answer in answers)


def is_closed(answers: tuple[str, ...]) -> bool:
    """Whether the answers are of the yes / no kind, which any text may contain."""
    return _CLOSED_OR_NOTHING.issuperset(normalised_answers(answers))


def score_objective(prediction: str, answers: tuple[str, ...]) -> ObjectiveScore:
    """Score one prediction against all accepted answers; the best alias counts for each figure.

    `contains` tells whether the prediction holds a whole gold answer, word by word, after folding: a right
    answer in the wrong form. It is not a score.
    """
    norm, golds = normalise(prediction), normalised_answers(answers)
    if norm and norm in golds:
        return ObjectiveScore(prediction, 1.0, 1.0, 1.0, True)
    pairs = tuple(zip(answers, golds, strict=True))
    if any(_equal(prediction, norm, gold, gold_norm) for gold, gold_norm in pairs):
        return ObjectiveScore(prediction, 1.0, 1.0, 1.0, True)
    if not prediction.strip():
        return ObjectiveScore(prediction, 0.0, 0.0, 0.0, False)
    folded = norm if prediction.isascii() else normalise(fold(prediction))
    folded_golds = _folded_answers(answers)
    return ObjectiveScore(
        prediction=prediction,
        em=0.0,
        f1=max(_f1(prediction, norm, gold, gold_norm) for gold, gold_norm in pairs),
        em_relaxed=float(bool(folded) and folded in folded_golds),
        contains=norm not in _CLOSED and any(contains(folded, g) for g in folded_golds if g not in _CLOSED),
    )


def score_episode(parts: Sequence[str], answers: Sequence[tuple[str, ...]], well_formed: bool) -> Score:
    """Score one prediction an objective, in order ("" where none was given); the figures are their means."""
    n = len(answers)
    if len(parts) != n or n == 0:
        raise ValueError(f"wanted one prediction for each of {n} objectives, got {len(parts)}")
    objectives = tuple(map(score_objective, parts, answers))
    em = f1 = em_relaxed = 0.0
    for objective in objectives:
        em += objective.em
        f1 += objective.f1
        em_relaxed += objective.em_relaxed
    return Score(
        em=em / n,
        f1=f1 / n,
        em_relaxed=em_relaxed / n,
        em_all=float(em == n and well_formed),
        well_formed=well_formed,
        objectives=objectives,
    )
