"""Names that nobody has ever borne: every number has its own pronounceable word."""

from __future__ import annotations

import random
from functools import lru_cache
from math import prod

_ONSETS = tuple("bdfghjklmnprstvwz")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ia")


def _syllables(*onsets: str) -> tuple[str, ...]:
    return tuple(onset + vowel for onset in onsets for vowel in _VOWELS)


_INNER = _syllables(*_ONSETS)
_FIRST = _syllables(*_ONSETS, "br", "dr", "gr", "kr", "sk", "st", "th", "tr")
_LONG = _syllables("bl", "fl", "gl", "kl", "pl", "sl")

_SHAPES = ((_FIRST, _INNER, _INNER), (_LONG, _INNER, _INNER, _INNER))
"""The syllables of a word, place by place: three, and four once all words of three are used up."""

WORDS = sum(prod(map(len, shape)) for shape in _SHAPES)
"""How many words there are."""


def stem(seed: int, number: int) -> str:
    """The word of a number, 0 <= number < WORDS, in the language of a seed; lower case, ends in a vowel.

    Different numbers have different words, and stay different when a suffix that starts with a consonant is
    put behind: a word is read back by its runs of consonants and vowels, and its first run tells how long it
    is. Words of neighbouring numbers do not sound alike.
    """
    for shape in _SHAPES:
        size = prod(map(len, shape))
        if 0 <= number < size:
            return _spell(seed, number, shape)
        number -= size
    raise ValueError(f"wanted the number of a word, 0 to {WORDS - 1}")


def _spell(seed: int, number: int, shape: tuple[tuple[str, ...], ...]) -> str:
    digits = []
    for syllables in shape:
        number, digit = divmod(number, len(syllables))
        digits.append(digit)
    shifts = _shifts(seed)
    for turn in range(
        2 * len(shape)
    ):  # each digit is shifted by what the others say: this can be undone, so it is 1:1
        place = turn % len(shape)
        others = sum(digit * (37 + 2 * index) for index, digit in enumerate(digits) if index != place)
        digits[place] = (digits[place] + shifts[(others + turn) % len(shifts)]) % len(shape[place])
    return "".join(syllables[digit] for syllables, digit in zip(shape, digits, strict=True))


@lru_cache(maxsize=8)
def _shifts(seed: int) -> tuple[int, ...]:
    chance = random.Random(f"words {seed}")
    return tuple(chance.randrange(1 << 16) for _ in range(4_093))
