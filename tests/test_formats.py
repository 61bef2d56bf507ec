"""Every format of question files and corpora, on small files made here."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from format_rows import HOTPOT, MUSIQUE, lines, passages, run, verl
from mempo_env.errors import DataError
from mempo_env.questions.formats import prepare
from mempo_env.questions.formats.alone import split_questions
from mempo_env.questions.formats.kinds import split_of_file
from mempo_env.questions.prepared import CORPUS
from mempo_env.questions.set import QuestionSet
from mempo_env.types import passage_id

# --- HotpotQA and 2WikiMultihopQA --------------------------------------------------------------------------


def check_hotpot(questions: QuestionSet, folder: Path) -> None:
    (question,) = questions
    assert (question.id, question.text, question.answers) == ("5a", "Who wrote it?", ("Ann & Bob",))
    assert (question.kind, question.level, question.hops) == ("bridge", "hard", 2)
    game, pair = question.evidence
    assert game.title == "Catan: Cities & Knights"
    assert game.sentences == ("It was made by Ann & Bob.",)
    assert (pair.title, pair.sentences) == ("Ann/Bob", ("They write.",))
    found = {passage.id: passage for passage in passages(folder)}
    assert found[game.passage_id].text == "It is a game. It was made by Ann & Bob. It sold well."
    assert found[game.passage_id].id == passage_id("Catan: Cities & Knights", found[game.passage_id].text)
    assert len(found) == 3


def test_hotpotqa_official_lines(tmp_path: Path) -> None:
    _, questions = run(tmp_path, "hotpotqa", lines(tmp_path / "a.jsonl", HOTPOT))
    check_hotpot(questions, tmp_path / "out")


def test_hotpotqa_official_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([HOTPOT], indent=1))
    _, questions = run(tmp_path, "hotpotqa", path)
    check_hotpot(questions, tmp_path / "out")


def huggingface_row() -> dict[str, Any]:
    return {
        **{key: value for key, value in HOTPOT.items() if key not in ("_id", "context", "supporting_facts")},
        "id": HOTPOT["_id"],
        "supporting_facts": {
            "title": [title for title, _ in HOTPOT["supporting_facts"]],
            "sent_id": [number for _, number in HOTPOT["supporting_facts"]],
        },
        "context": {
            "title": [title for title, _ in HOTPOT["context"]],
            "sentences": [sentences for _, sentences in HOTPOT["context"]],
        },
    }


def test_hotpotqa_of_hugging_face(tmp_path: Path) -> None:
    _, questions = run(tmp_path, "hotpotqa", lines(tmp_path / "a.jsonl", huggingface_row()))
    check_hotpot(questions, tmp_path / "out")


def test_hotpotqa_in_parquet_with_lists_whose_truth_value_is_asked(tmp_path: Path) -> None:
    table = pytest.importorskip("pyarrow", reason="needs mempo[data]").Table.from_pylist([huggingface_row()])
    path = tmp_path / "a.parquet"
    pytest.importorskip("pyarrow.parquet", reason="needs mempo[data]").write_table(table, path)
    _, questions = run(tmp_path, "hotpotqa", path)
    check_hotpot(questions, tmp_path / "out")


def test_2wiki_joins_its_sentences_with_a_space(tmp_path: Path) -> None:
    row = {
        **HOTPOT,
        "context": [["Ann/Bob", ["They write.", "They sing."]]],
        "supporting_facts": [["Ann/Bob", 1]],
    }
    _, questions = run(tmp_path, "2wiki", lines(tmp_path / "a.jsonl", row))
    (passage,) = passages(tmp_path / "out")
    assert passage.text == "They write. They sing."
    assert questions[0].evidence[0].sentences == ("They sing.",)


def test_facts_that_point_nowhere_are_left_out_and_counted(tmp_path: Path) -> None:
    facts = [["Missing", 0], ["Other", 7], ["Ann/Bob", 0], ["Ann/Bob", -1], ["Blank", 0]]
    context = [*HOTPOT["context"], ["Blank", [" ", "Told."]], ["Empty", [" "]], ["Void", []]]
    summary, questions = run(
        tmp_path,
        "hotpotqa",
        lines(tmp_path / "a.jsonl", {**HOTPOT, "supporting_facts": facts, "context": context}),
    )
    assert summary.lost_facts == 4  # all but ["Ann/Bob", 0]
    assert [(each.title, each.sentences) for each in questions[0].evidence] == [
        ("Other", ()),
        ("Ann/Bob", ("They write.",)),
        ("Blank", ()),
    ]
    assert {passage.title for passage in passages(tmp_path / "out")} == {
        "Catan: Cities & Knights",
        "Ann/Bob",
        "Other",
        "Blank",
    }


def test_rows_without_context_have_no_evidence_and_no_lost_facts(tmp_path: Path) -> None:
    bare = {key: value for key, value in HOTPOT.items() if key != "context"}
    summary, questions = run(
        tmp_path, "hotpotqa", lines(tmp_path / "a.jsonl", bare, {**bare, "_id": "b", "context": None})
    )
    assert [question.evidence for question in questions] == [(), ()]
    assert (summary.without_evidence, summary.lost_facts, summary.manifest.passages) == (2, 0, 0)
    assert not (tmp_path / "out" / CORPUS).exists()


@pytest.mark.parametrize("count", [2, 4, 6])
def test_contexts_of_any_number_of_paragraphs(tmp_path: Path, count: int) -> None:
    context = [[f"T{number}", ["One.", " Two."]] for number in range(count)]
    row = {**HOTPOT, "context": context, "supporting_facts": [["T1", 1]]}
    summary, questions = run(tmp_path, "hotpotqa", lines(tmp_path / "a.jsonl", row))
    assert summary.manifest.passages == count
    assert questions[0].evidence[0].sentences == ("Two.",)


def test_a_repeated_title_takes_the_paragraph_that_has_the_sentence(tmp_path: Path) -> None:
    context = [["T", ["Short."]], ["T", ["Longer.", " Told here."]]]
    row = {**HOTPOT, "context": context, "supporting_facts": [["T", 1]]}
    _, questions = run(tmp_path, "hotpotqa", lines(tmp_path / "a.jsonl", row))
    (evidence,) = questions[0].evidence
    assert evidence.passage_id == passage_id("T", "Longer. Told here.")


# --- MuSiQue, adversarial HotpotQA -------------------------------------------------------------------------


def test_musique_has_whole_paragraphs_as_evidence_and_titles_that_repeat(tmp_path: Path) -> None:
    unanswerable = {**MUSIQUE, "answerable": False}
    summary, questions = run(tmp_path, "musique", lines(tmp_path / "dev.jsonl", MUSIQUE, unanswerable))
    (question,) = questions
    assert (question.answers, question.kind, question.hops, question.split) == (
        ("Rome", "Roma"),
        "2hop",
        2,
        "dev",
    )
    assert [(each.passage_id, each.sentences) for each in question.evidence] == [
        (passage_id("T", "One text."), ()),
        (passage_id("U", "Rome."), ()),
    ]
    assert (summary.manifest.passages, summary.unanswerable) == (3, 1)


def test_adversarial_paragraphs_are_passages_and_no_evidence(tmp_path: Path) -> None:
    row = {
        "qas_id": "q",
        "question": "Where?",
        "answer": "Sochi",
        "paragraphs": [
            {"title": "added", "context": "It was in Paris.", "is_supp": False},
            {"title": "Games", "context": "It was in Sochi. It was cold.", "is_supp": True},
            {"title": "added", "context": "It was in Lima.", "is_supp": False},
            {"title": "Skater", "context": "She won.", "is_supp": True},
        ],
        "rationale": [
            {"title": "Games", "sentence": "It was in Sochi."},
            {"title": "Skater", "sentence": "She won."},
            {"title": "Skater", "sentence": "She lost."},
        ],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps([row]))
    summary, questions = run(tmp_path, "hotpotqa-adv", path)
    assert [(each.title, each.sentences) for each in questions[0].evidence] == [
        ("Games", ("It was in Sochi.",)),
        ("Skater", ("She won.",)),
    ]
    assert (summary.manifest.passages, summary.lost_facts) == (4, 1)


# --- Questions alone ---------------------------------------------------------------------------------------


def test_searchr1_ids_are_told_apart_by_their_data_set(tmp_path: Path) -> None:
    nq = {
        "id": "train_0",
        "question": "who?",
        "golden_answers": ["x"],
        **verl("a long prompt", {"target": ["x"]}),
    }
    hotpot = {**nq, "data_source": "hotpotqa", "question": "where?"}
    named = {**nq, "id": "nq_7", "golden_answers": ["y", "z"]}
    bare = verl("what?", {"target": "single"}, index=4)
    _, questions = run(tmp_path, "searchr1", lines(tmp_path / "a.jsonl", nq, hotpot, named, bare))
    assert [(each.id, each.text, each.answers, each.split) for each in questions] == [
        ("nq_train_0", "who?", ("x",), "train"),
        ("hotpotqa_train_0", "where?", ("x",), "train"),
        ("nq_7", "who?", ("y", "z"), "train"),
        ("nq_train_4", "what?", ("single",), "train"),
    ]


def test_mem1_rows_become_questions_that_stay_next_to_each_other(tmp_path: Path) -> None:
    rows = [
        verl("a?; b?; c?", {"target": [["1"], ["2", "two"], ["3"]]}, ids=["x", "y", "z"]),
        verl("d; or not?; e?; f?", {"target": [["4"], "5", ["6"]]}, ids=["u", "v", "w"]),
    ]
    _, questions = run(tmp_path, "mem1", lines(tmp_path / "a.jsonl", *rows))
    assert [(each.id, each.text, each.answers) for each in questions] == [
        ("x", "a?", ("1",)),
        ("y", "b?", ("2", "two")),
        ("z", "c?", ("3",)),
        ("u", "d; or not?", ("4",)),
        ("v", "e?", ("5",)),
        ("w", "f?", ("6",)),
    ]


@pytest.mark.parametrize(
    ("joined", "count", "parts"),
    [
        ("one?", 1, ["one?"]),
        ("one; still one?", 1, ["one; still one?"]),
        ("no mark; second", 2, ["no mark", "second"]),
        ("a ?; b; c?", 2, ["a ?", "b; c?"]),
        ("a? ; b?", 2, ["a?", "b?"]),
    ],
)
def test_the_split_that_fits_is_found(joined: str, count: int, parts: list[str]) -> None:
    assert split_questions(joined, count, "f:1") == parts


@pytest.mark.parametrize(("joined", "count"), [("a?; b?", 3), ("a; b; c", 2), ("", 1), ("a?; ", 2)])
def test_no_split_that_fits_is_an_error(joined: str, count: int) -> None:
    with pytest.raises(DataError, match=rf"f:1: wanted {count} questions"):
        split_questions(joined, count, "f:1")


def test_deepresearcher_aliases_come_apart(tmp_path: Path) -> None:
    many = "<|answer_split|>".join(f"alias {number}" for number in range(178))
    row = verl("who?", f"{many}<|answer_split|><|answer_split|>alias 0", index="nq_1")
    _, questions = run(tmp_path, "deepresearcher", lines(tmp_path / "a.jsonl", row))
    assert questions[0].answers == tuple(f"alias {number}" for number in range(178))
    assert (questions[0].id, questions[0].source) == ("nq_1", "nq")


@pytest.mark.parametrize("header", ["Question,Answer\n", "question,answer\n", ""])
def test_bamboogle_csv_with_and_without_a_header(tmp_path: Path, header: str) -> None:
    path = tmp_path / "bamboogle.csv"
    path.write_text(
        header + '"Who, then?",James Madison\n\nWhich rocket?,"Titan ""IIIE"""\n', encoding="utf-8-sig"
    )
    _, questions = run(tmp_path, "bamboogle", path)
    assert [(each.id, each.text, each.answers, each.split) for each in questions] == [
        ("bamboogle-1", "Who, then?", ("James Madison",), "test"),
        ("bamboogle-2", "Which rocket?", ('Titan "IIIE"',), "test"),
    ]


def test_our_own_lines_may_be_short_or_whole(tmp_path: Path) -> None:
    short = {"question": "who", "answers": "bare"}
    whole = {
        "id": 7,
        "text": "where",
        "answers": ["a", "b"],
        "split": "validation",
        "kind": "k",
        "level": "easy",
        "hops": 2,
        "evidence": [{"passage_id": "p", "title": "T", "sentences": ["S."]}],
        "source": "mine",
    }
    _, questions = run(tmp_path, "jsonl", lines(tmp_path / "own.jsonl", short, whole))
    assert questions[0].id == "own-1"
    assert (questions[0].answers, questions[0].source) == (("bare",), "jsonl")
    assert (questions[1].id, questions[1].split, questions[1].hops, questions[1].source) == (
        "7",
        "dev",
        2,
        "mine",
    )
    assert questions[1].evidence[0].title == "T"


# --- Splits, joining, corpora ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("hotpot_train_v1.1.json", "train"),
        ("dev_100.jsonl", "dev"),
        ("validation-00000-of-00001.parquet", "dev"),
        ("NQ.Test.jsonl", "test"),
        ("trainer_contest.jsonl", None),
        ("train_and_test.jsonl", None),
        ("distractor_400.jsonl", None),
    ],
)
def test_a_split_is_a_word_of_the_file_name(name: str, split: str | None) -> None:
    assert split_of_file(Path("train") / name) == split


def test_the_row_goes_before_the_file_and_the_option_before_both(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "dev.jsonl",
        {"question": "a", "answers": "x", "split": "test"},
        {"question": "b", "answers": "y"},
    )
    _, questions = run(tmp_path, "jsonl", path)
    assert [each.split for each in questions] == ["test", "dev"]
    prepare("jsonl", [path], tmp_path / "forced", split="train")
    assert {each.split for each in QuestionSet.load(tmp_path / "forced")} == {"train"}


def test_without_a_word_the_split_hangs_on_the_id_alone(tmp_path: Path) -> None:
    rows = [{"id": f"q{number}", "question": "a", "answers": "x"} for number in range(2_000)]
    _, questions = run(tmp_path, "jsonl", lines(tmp_path / "all.jsonl", *rows))
    shares = Counter(each.split for each in questions)
    assert abs(shares["train"] / 2_000 - 0.70) < 0.04  # four standard deviations of a binomial
    assert abs(shares["dev"] / 2_000 - 0.15) < 0.032
    prepare("jsonl", [lines(tmp_path / "some.jsonl", *rows[::-7])], tmp_path / "part")
    assert all(questions.by_id(each.id).split == each.split for each in QuestionSet.load(tmp_path / "part"))


def test_several_files_join_and_the_same_question_is_one(tmp_path: Path) -> None:
    other = {**HOTPOT, "_id": "6b"}
    summary, questions = run(
        tmp_path,
        "hotpotqa",
        lines(tmp_path / "a.jsonl", HOTPOT),
        lines(tmp_path / "b.jsonl", HOTPOT, other),
        split="test",
    )
    assert [each.id for each in questions] == ["5a", "6b"]
    assert (summary.repeated, summary.manifest.passages) == (1, 3)
    assert summary.manifest.sources == ("a.jsonl", "b.jsonl")


def test_another_question_under_the_same_id_is_refused_with_its_place(tmp_path: Path) -> None:
    files = lines(tmp_path / "a.jsonl", HOTPOT), lines(tmp_path / "b.jsonl", {**HOTPOT, "answer": "Cy"})
    with pytest.raises(DataError, match=r"b\.jsonl:1: question '5a': the same id came before"):
        run(tmp_path, "hotpotqa", *files, split="dev")
    assert not (tmp_path / "out").exists()


def test_corpora_of_wiki18_beir_and_plain_rows(tmp_path: Path) -> None:
    wiki = {"id": "0", "contents": '"The "Big" One &amp; Co"\nFirst line.\nSecond line.'}
    with gzip.open(tmp_path / "wiki-18.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps(wiki) + "\n" + json.dumps({"id": "1", "contents": "Bare\nText."}) + "\n")
    beir = lines(
        tmp_path / "corpus.jsonl",
        {"_id": "a", "title": "T", "text": "B.", "metadata": {}},
        {"_id": "b", "title": "", "text": "C."},
    )
    plain = lines(
        tmp_path / "plain.jsonl",
        {"id": "9", "title": "T", "text": "B."},
        {"id": "10", "title": "Void", "text": " "},
    )
    summary, _ = run(
        tmp_path,
        "hotpotqa",
        lines(tmp_path / "a.jsonl", HOTPOT),
        corpus=[tmp_path / "wiki-18.jsonl.gz", beir, plain],
    )
    added = passages(tmp_path / "out")[3:]
    assert [(each.title, each.text) for each in added] == [
        ('The "Big" One & Co', "First line.\nSecond line."),
        ("Bare", "Text."),
        ("T", "B."),
        ("", "C."),
    ]
    assert summary.manifest.passages == 7
    assert all(each.id == passage_id(each.title, each.text) for each in added)
