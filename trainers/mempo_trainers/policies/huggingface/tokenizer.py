"""A fast tokenizer of transformers as policies want it: which token starts in which character of the text."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

from mempo_agents.models import chat
from mempo_agents.models.base import Prompt
from mempo_agents.models.chat import Tokenizer
from mempo_agents.models.network import silent_ids
from mempo_agents.rounds import composed
from mempo_env.errors import ConfigError
from mempo_env.types import Segment

_BYTE = 6
"""Length of "<0xE9>", a token of one byte."""

_PROBE = " <mem> a </mem>\n<search>caf\u00e9 \u4e16\u754c \U0001f600</search>"


class ChatTokenizer:
    """Ids of texts and back, special tokens left out, as `mempo_agents.models.chat` does it.

    Args:
        tokenizer: Of transformers, a fast one: byte-level BPE, or pieces with bytes to fall back on.

    Raises:
        ConfigError: if it is of another kind.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        try:
            self._kind, self._strips = _kind(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"])
            ids = self.encode(_PROBE)
            if self.written(ids) != self.decode(ids):
                raise ValueError("one that decodes in another way")
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise ConfigError(
                "tokenizer: wanted a fast one of byte-level BPE, or pieces with bytes to fall back on, got "
                f"{type(tokenizer).__name__}: {error}"
            ) from None

    def encode(self, text: str) -> list[int]:
        """The ids of a text; special tokens that it spells out are text."""
        ids = self.tokenizer.encode(chat.inert(self.tokenizer, text), add_special_tokens=False)
        return [int(id) for id in ids]

    def prompt(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """The ids of the prompt that shows segments, by the model's chat template."""
        return self.chat(composed(segments))

    def chat(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids of a chat, up to where the model's message begins."""
        return chat.encode(self.tokenizer, prompt)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, without special tokens; bytes that are no UTF-8 are replaced."""
        return chat.decode(self.tokenizer, ids)

    def starts(self, ids: Sequence[int]) -> list[int]:
        """In which character of `decode(ids)` each id starts, in linear time.

        One that goes on with the bytes of a character starts in that character; one that writes nothing,
        where the next one does.
        """
        decoder, starts, count = codecs.getincrementaldecoder("utf-8")("replace"), list[int](), 0
        for piece in self._pieces(ids):
            count += len(decoder.decode(piece[:1]))
            starts.append(count - (bool(piece) and not decoder.getstate()[0]))
            count += len(decoder.decode(piece[1:]))
        stripped = self._strips and self._text(ids).startswith(" ")
        return [max(0, start - 1) for start in starts] if stripped else starts

    def written(self, ids: Sequence[int]) -> str:
        """What `decode` gives, as `starts` sees it."""
        text = self._text(ids)
        return text.removeprefix(" ") if self._strips else text

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(self._pieces(ids)).decode("utf-8", "replace")

    def _pieces(self, ids: Sequence[int]) -> list[bytes]:
        """What each id writes, in UTF-8."""
        pieces = [self._table.get(id, b"") for id in ids]
        if self._kind == "ByteLevel":
            return pieces
        runs = groupby(zip(ids, pieces, strict=True), lambda pair: pair[0] not in self._whole)
        return [piece for _, run in runs for piece in _mended([piece for _, piece in run])]

    @cached_property
    def _table(self) -> dict[int, bytes]:
        """What each id writes; special tokens write nothing."""
        silent = silent_ids(self.tokenizer)
        read = _byte_level if self._kind == "ByteLevel" else _sentence_piece
        vocabulary = self.tokenizer.get_vocab()
        return {id: read(token) for token, id in vocabulary.items() if id not in silent}

    @cached_property
    def _whole(self) -> frozenset[int]:
        """Ids that write whole characters, neither a single byte nor nothing."""
        vocabulary = self.tokenizer.get_vocab()
        return frozenset(id for token, id in vocabulary.items() if id in self._table and not _is_byte(token))


def _kind(decoder: Any) -> tuple[str, bool]:
    """How a tokenizer decodes, and whether it strips a space at the beginning."""
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"] or kinds[:2] == ["Replace", "ByteFallback"]:
        return kinds[-1] if kinds == ["ByteLevel"] else "ByteFallback", "Strip" in kinds
    raise ValueError(f"a decoder of {', '.join(kinds)}")


def _byte_level(token: str) -> bytes:
    """The bytes that a token of byte-level BPE stands for; an added token is written out."""
    try:
        return bytes(_BYTES[character] for character in token)
    except KeyError:
        return token.encode()


def _sentence_piece(token: str) -> bytes:
    return bytes([int(token[3:5], 16)]) if _is_byte(token) else token.replace("\u2581", " ").encode()


def _is_byte(token: str) -> bool:
    return len(token) == _BYTE and token.startswith("<0x") and token.endswith(">")


def _mended(run: list[bytes]) -> list[bytes]:
    """What tokens in a row write; where bytes are no UTF-8, each of them is a replacement character."""
    try:
        b"".join(run).decode()
    except UnicodeDecodeError:
        return ["\N{REPLACEMENT CHARACTER}".encode() if piece else piece for piece in run]
    return run


def _printable() -> dict[str, int]:
    """The character of each byte in byte-level BPE: itself if printable, else one from 256 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


_BYTES = _printable()
