"""The tokenizer: any text comes back, names are spelt, tags are whole, files are checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_env.errors import DataError
from mempo_trainers.policies.tiny_lm import Tokenizer, learn
from mempo_trainers.policies.tiny_lm.tokenizer import EOS, PAD

TEXTS = [
    "Question: Where is Bumo?\n<mem>\n1. ? Bumo\n</mem>\n<search> Bumo </search>",
    "<information>\n[1] Bumo\nBumo is a town in Lakiland. It has 22,526 inhabitants.\n</information>",
    "Question: Where is Vukilanu?\n<mem>\n1. = Laburi\n</mem>\n<answer> Laburi </answer>",
]
TOKENIZER = learn(TEXTS, share=0.5)

PIECES = st.sampled_from(
    [
        "<mem>",
        "</mem>",
        "<",
        ">",
        "</",
        "<mem",
        " ",
        "\n",
        "\r\n",
        "\t",
        "Bumo",
        " is",
        "07",
        " 7",
        "é",
        "💬",
        "\0",
    ]
)
ANY_TEXT = st.lists(st.text() | PIECES, max_size=12).map("".join)


@given(ANY_TEXT)
def test_any_text_comes_back_unchanged(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.count(text) == len(ids)
    assert all(EOS < id < len(TOKENIZER) for id in ids)


@given(ANY_TEXT)
def test_each_token_starts_in_the_character_of_its_first_byte(text: str) -> None:
    ids = TOKENIZER.encode(text)
    character_of_byte = [i for i, character in enumerate(text) for _ in character.encode()]
    lengths = [len(TOKENIZER.text(id)) for id in ids]
    assert TOKENIZER.starts(ids) == [character_of_byte[sum(lengths[:k])] for k in range(len(ids))]


@given(st.lists(st.integers(EOS, len(TOKENIZER) - 1), max_size=12))
def test_tokens_that_are_no_text_still_have_a_place(ids: list[int]) -> None:
    text, starts = TOKENIZER.decode(ids), TOKENIZER.starts(ids)
    assert starts == sorted(starts)
    for id, start in zip(ids, starts, strict=True):
        written = TOKENIZER.text(id)
        if written and written.isascii():
            assert text[start : start + len(written)] == written.decode()


@given(ANY_TEXT, ANY_TEXT)
def test_lines_are_tokenised_alone(first: str, second: str) -> None:
    whole = TOKENIZER.encode(f"{first}\n{second}")
    assert whole == (*TOKENIZER.encode(f"{first}\n"), *TOKENIZER.encode(second))


def test_tags_are_one_token_and_padding_is_not_the_end() -> None:
    for tag in ("mem", "think", "search", "answer", "information"):
        assert len(TOKENIZER.encode(f"<{tag}>")) == len(TOKENIZER.encode(f"</{tag}>")) == 1
    assert PAD != EOS
    assert TOKENIZER.decode([PAD, EOS]) == ""


def test_known_words_are_whole_and_others_are_spelt_in_syllables() -> None:
    pieces = [TOKENIZER.decode([id]) for id in TOKENIZER.encode(" Where is Bukila?")]
    assert pieces[:2] == [" Where", " is"]
    assert "".join(pieces[2:]) == " Bukila?"
    assert "ki" in pieces and "la" in pieces  # syllables of names in the texts
    assert [TOKENIZER.decode([id]) for id in TOKENIZER.encode("in 1907, 22,526")] == [
        *("i", "n", " 19", "07", ",", " 22", ",", "52", "6")
    ]


def test_answers_have_the_same_ids_alone_as_in_a_text() -> None:
    text = TOKENIZER.encode("<answer> Laburi </answer>")
    alone = TOKENIZER.encode(" Laburi")
    assert text == (*TOKENIZER.encode("<answer>"), *alone, *TOKENIZER.encode(" </answer>"))


def test_halves_of_characters_are_question_marks() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud800b")) == "a?b"


def test_it_is_kept_in_one_file(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json") == TOKENIZER


@pytest.mark.parametrize("content", [None, b"", b'{"pieces": [1]}', b"\xff"])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json: wanted a tokenizer"):
        Tokenizer.load(path)
