"""Which token starts in which character: fast tokenizers of bytes, and of pieces that fall back on bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_help import chatting, needs_transformers
from mempo_env.errors import ConfigError
from mempo_env.types import Segment

transformers = needs_transformers()

from mempo_trainers.policies.huggingface.tokenizer import ChatTokenizer  # noqa: E402

TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from("<>/ \n\u00e9\u4e16\U0001f600e\u0301")
    )
)
"""Texts with characters of one to four bytes; "\\ufffd" among them."""


@cache
def byte_level() -> ChatTokenizer:
    return ChatTokenizer(chatting())


@cache
def pieces() -> ChatTokenizer:
    """Pieces of one character or two, and bytes for all others, decoded as Llama 2 does."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    singles = ["\u2581", *"abcdemnorsthi<>/\n"]
    doubles = ["\u2581a", "th", "<m", "</", "\u00e9\u00e9"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {
        token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *bytes_, *singles, "\u00e9", *doubles])
    }
    merges = [("\u2581", "a"), ("t", "h"), ("<", "m"), ("<", "/"), ("\u00e9", "\u00e9")]
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return ChatTokenizer(
        transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    )


def slowly(tokenizer: ChatTokenizer, ids: Sequence[int]) -> list[int]:
    """The same by decoding every beginning anew: the longest one before a token that the whole begins with.

    It is wrong where a whole character is "\\ufffd", which stands for a part of one as well.
    """
    whole = tokenizer.decode(ids)
    lengths = [
        len(text) if whole.startswith(text := tokenizer.decode(ids[:n])) else 0 for n in range(len(ids))
    ]
    return [max(lengths[: n + 1]) for n in range(len(ids))]


@pytest.mark.parametrize("make", [byte_level, pieces])
@settings(max_examples=300, deadline=None)
@given(text=TEXT, cut=st.integers(0, 3))
def test_starts_are_those_of_decoding_every_beginning(make: Any, text: str, cut: int) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text.replace("\ufffd", "?"))
    assert tokenizer.starts(ids) == slowly(tokenizer, ids)
    begun = ids[: max(0, len(ids) - cut)]  # in the middle of a character, too
    starts, characters = tokenizer.starts(begun), len(tokenizer.decode(begun))
    assert starts == sorted(starts) and all(start < max(1, characters) for start in starts)


@settings(max_examples=300, deadline=None)
@given(TEXT)
def test_starts_are_the_offsets_that_tokenizers_counts_when_it_encodes(text: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode(text)
    if tokenizer.decode(ids) == text:  # no special token was spelled out
        told = chatting()(text, add_special_tokens=False, return_offsets_mapping=True)
        assert told["input_ids"] == ids
        assert tokenizer.starts(ids) == [first for first, _ in told["offset_mapping"]]


@pytest.mark.parametrize("make", [byte_level, pieces])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_ids_have_a_start_within_their_text(make: Any, data: st.DataObject) -> None:
    """What a random policy writes is mostly no UTF-8; special ids and those of no token write nothing."""
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, len(tokenizer.tokenizer) + 3), max_size=30))
    starts, text = tokenizer.starts(ids), tokenizer.decode(ids)
    assert len(starts) == len(ids) and starts == sorted(starts)
    assert all(0 <= start <= len(text) for start in starts)
    assert tokenizer.written(ids) == text


def byte_ids(tokenizer: ChatTokenizer, data: bytes) -> list[int]:
    table = tokenizer._table
    singles = {piece: id for id, piece in table.items() if len(piece) == 1 and id < 300}
    return [singles[bytes([byte])] for byte in data]


def test_bytes_of_a_character_start_in_it() -> None:
    """Hand-made: "a", the four bytes of a face, "b"; then what stands for a character that never ends."""
    tokenizer = byte_level()
    assert tokenizer.starts(byte_ids(tokenizer, "a\U0001f600b".encode())) == [0, 1, 1, 1, 1, 2]
    assert tokenizer.starts(byte_ids(tokenizer, b"\xf0\x9fa")) == [0, 0, 1]
    assert tokenizer.starts(byte_ids(tokenizer, b"\xc3\xc3\xa9")) == [0, 1, 1]
    assert tokenizer.starts(byte_ids(tokenizer, b"\xa9\xa9")) == [0, 1]
    assert tokenizer.starts([]) == []


def test_special_tokens_start_where_the_next_one_does() -> None:
    tokenizer, end = byte_level(), chatting().eos_token_id
    a = byte_ids(tokenizer, b"a")
    assert tokenizer.starts([end, *a, end, *a, end]) == [0, 0, 1, 1, 2]
    half, rest = byte_ids(tokenizer, b"\xc3"), byte_ids(tokenizer, b"\xa9")
    assert tokenizer.decode([*half, end, *rest]) == "\u00e9"
    assert tokenizer.starts([*half, end, *rest]) == [0, 0, 0]


def test_special_tokens_that_a_text_spells_out_are_text() -> None:
    ids = byte_level().encode("a <|end|> b")
    assert chatting().eos_token_id not in ids
    assert byte_level().decode(ids) == "a < |end|> b"


def test_a_prompt_is_what_the_chat_template_makes_of_the_segments() -> None:
    tokenizer = byte_level()
    shown = (Segment("system", 0, "Go.", 1), Segment("question", 0, "Who?", 1), Segment("mem", 1, "x", 1))
    text = chatting().decode(tokenizer.prompt(shown))
    assert text == "<|start|>system\nGo.<|end|>\n<|start|>user\nWho?\nx<|end|>\n<|start|>assistant\n"


def test_other_tokenizers_are_refused() -> None:
    from tokenizers import Tokenizer, decoders, models

    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
    with pytest.raises(ConfigError, match=r"tokenizer: wanted a fast one of byte-level BPE.*of WordPiece"):
        ChatTokenizer(words)
    with pytest.raises(ConfigError, match="tokenizer: wanted a fast one"):
        ChatTokenizer(object())
