"""A word-level tokenizer with syllables and bytes to fall back on: any text goes in and comes out unchanged.

A text is cut into tags of the protocol, words, numbers and the rest. A word that the vocabulary does not know
(a name, mostly) is spelt in syllables, and what no piece spells in bytes. A blank belongs to the word behind
it, so that the ids of a text are the same wherever it stands.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import msgspec

from mempo_env.errors import DataError
from mempo_env.files import BAD_JSON, atomic_file
from mempo_env.types import Segment, storable

PAD, EOS = 0, 1
TAGS = ("mem", "think", "search", "answer", "information")
_SPECIAL = ("<pad>", "<eos>")  # written as nothing
_MARKUP = tuple(f"<{end}{tag}>" for tag in TAGS for end in ("", "/"))
_BYTES = 256

_CUT = re.compile(
    "|".join(map(re.escape, _MARKUP)) + r"| ?[A-Za-z]+| ?\d{1,2}|\n| ?[^A-Za-z\d\s<]|.", re.DOTALL
)
_SYLLABLE = re.compile(r" ?[^aeiou ]*[aeiou]+|[^aeiou]+", re.IGNORECASE)


class Tokenizer(msgspec.Struct, frozen=True, dict=True):
    """Text to ids and back, exactly.

    Ids: 0 padding, 1 end of text, then 256 bytes, the tags of the protocol, and the learned pieces.

    Attributes:
        pieces: The learned pieces, each a text that is one token.
    """

    pieces: tuple[str, ...]

    @cached_property
    def _texts(self) -> tuple[bytes, ...]:
        """What each id writes."""
        texts = (*_MARKUP, *self.pieces)
        return (b"", b"", *(bytes([i]) for i in range(_BYTES)), *(text.encode() for text in texts))

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each tag and piece."""
        first = len(_SPECIAL) + _BYTES
        return {text: first + i for i, text in enumerate((*_MARKUP, *self.pieces))}

    @cached_property
    def _spelt(self) -> dict[str, tuple[int, ...]]:
        """The ids of the words met so far."""
        return {}

    def __len__(self) -> int:
        """Number of ids."""
        return len(self._texts)

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text; halves of characters, which no UTF-8 file can hold, are those of "?"."""
        ids: list[int] = []
        for piece in _CUT.findall(storable(text)):
            known = self._spelt.get(piece)
            if known is None:
                known = self._spelt[piece] = self._spell(piece)
            ids += known
        return tuple(ids)

    def _spell(self, word: str) -> tuple[int, ...]:
        """One id where the word is known, else those of its syllables, else of their letters, else bytes."""
        if word in self.ids:
            return (self.ids[word],)
        parts = _SYLLABLE.findall(word)
        if len(parts) < 2:
            parts = list(word)
        if len(parts) < 2:
            return tuple(len(_SPECIAL) + byte for byte in word.encode())
        return tuple(id for part in parts for id in self._spell(part))

    def text(self, id: int) -> bytes:
        """What an id writes, in UTF-8; a byte of its own may be only a part of a character."""
        return self._texts[id]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; bytes that are no UTF-8 become "\N{REPLACEMENT CHARACTER}"."""
        return b"".join([self._texts[id] for id in ids]).decode("utf-8", "replace")

    def starts(self, ids: Sequence[int]) -> list[int]:
        """In which character of the decoded text each id starts."""
        written = b"".join([self._texts[id] for id in ids])
        places = list(accumulate((len(self._texts[id]) for id in ids), initial=0))[:-1]
        if written.isascii():
            return places
        return [len(written[: at + 1].decode("utf-8", "replace")) - 1 for at in places]

    def prompt(self, segments: Iterable[Segment]) -> tuple[int, ...]:
        """The ids of a prompt of segments, a line each."""
        return self.encode(lines(segments))

    def count(self, text: str) -> int:
        """Number of tokens of a text, for the environment's `tokenizer=`."""
        return len(self.encode(text))

    def save(self, path: Path) -> None:
        """Write it as one JSON file."""
        with atomic_file(path) as file:
            file.write(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read it back.

        Raises:
            DataError: if the file is missing or holds something else.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            raise DataError(f"{path}: wanted a tokenizer, found nothing: was the policy saved?") from None
        except BAD_JSON as error:
            raise DataError(f"{path}: wanted a tokenizer in JSON: {error}") from None


def lines(segments: Iterable[Segment]) -> str:
    """The text of a prompt of segments, a line each."""
    return "".join(f"{segment.text}\n" for segment in segments)


def learn(texts: Sequence[str], share: float = 0.005) -> Tokenizer:
    """A tokenizer from texts.

    Args:
        texts: Of the training split only: names of other splits shall stay unknown.
        share: A word is a piece of its own if it is in at least this share of the texts, and a syllable if
            it is in so many spelt words; digits (one and two), letters and punctuation always are.
    """
    words: Counter[str] = Counter()
    for text in texts:
        words.update(set(_CUT.findall(text)))
    enough = max(1.0, share * len(texts))
    known = {word for word, n in words.items() if n >= enough}
    digits = [
        f"{blank}{number}" for blank in ("", " ") for number in (*range(10), *(f"{i:02}" for i in range(100)))
    ]
    letters = [chr(i) for i in range(32, 127)] + ["\n"]
    known |= {*digits, *letters, *(f" {letter}" for letter in letters if letter not in " \n<")}
    syllables: Counter[str] = Counter()
    for word, n in words.items():
        if word not in known:
            syllables.update(dict.fromkeys(_SYLLABLE.findall(word), n))
    known |= {part for part, n in syllables.items() if n >= enough}
    return Tokenizer(tuple(sorted(known - set(_MARKUP))))
