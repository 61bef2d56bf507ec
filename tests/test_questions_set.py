"""Question sets and the prepared folder they are kept in."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mempo_env.errors import ConfigError, DataError
from mempo_env.files import file_digest
from mempo_env.questions.prepared import CORPUS, FORMAT, MANIFEST, QUESTIONS, prepared, read_manifest
from mempo_env.questions.set import QuestionSet, refuse_overlap
from mempo_env.types import Evidence, Passage, Question, passage_id


def question(id: str, split: str = "train", **changes: object) -> Question:
    fields = {"id": id, "text": f"What is {id}?", "answers": (f"answer {id}",), "split": split, **changes}
    return Question(**fields)  # type: ignore[arg-type]


SMALL = (question("a"), question("b", "dev", hops=2, evidence=(Evidence("p", "T", ("S.",)),)), question("c"))
PASSAGE = Passage(passage_id("T", "S. And more."), "T", "S. And more.")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "small"
    with prepared(out, "small", "jsonl", ("small.jsonl",)) as writer:
        for each in SMALL:
            writer.question(each, "small.jsonl:1")
        writer.passage(PASSAGE)
    return out


# --- The set -----------------------------------------------------------------------------------------------


def test_a_set_is_a_sequence_and_finds_by_id() -> None:
    questions = QuestionSet(SMALL, name="small")
    assert (len(questions), questions[1], questions[-1], questions[:2]) == (3, SMALL[1], SMALL[2], SMALL[:2])
    assert list(questions) == list(SMALL)
    assert questions.by_id("b") is SMALL[1]
    assert SMALL[0] in questions


def test_a_wrong_id_names_the_nearest_one_and_not_all() -> None:
    questions = QuestionSet([question(f"question-{number}") for number in range(5_000)], name="many")
    with pytest.raises(ConfigError, match=r"did you mean 'question-\d+'") as error:
        questions.by_id("question_17")
    assert len(str(error.value)) < 200


def test_split_keeps_the_order_and_names_the_splits_there_are() -> None:
    questions = QuestionSet(SMALL, name="small")
    assert [each.id for each in questions.split("train")] == ["a", "c"]
    with pytest.raises(ConfigError, match=r"small: .*'test'.*train \(2\), dev \(1\)"):
        questions.split("test")
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        questions.split("trian")


def test_the_fingerprint_is_of_the_content_alone(folder: Path) -> None:
    loaded, made = QuestionSet.load(folder), QuestionSet(SMALL, name="another name")
    assert loaded.fingerprint == made.fingerprint == file_digest(folder / QUESTIONS)
    assert loaded == made
    assert hash(loaded) == hash(made)
    others = [
        QuestionSet(SMALL[::-1]),
        QuestionSet(SMALL[:2]),
        QuestionSet([*SMALL[:2], question("c", answers=("other",))]),
        loaded.split("train"),
    ]
    assert len({loaded.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert loaded.split("train").fingerprint == QuestionSet([SMALL[0], SMALL[2]]).fingerprint


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"answers": ()}, "at least one answer"),
        ({"answers": ("x", " \t")}, "none blank"),
        ({"answers": "bare"}, "list of strings"),
        ({"answers": ("x", 5)}, "list of strings"),
        ({"answers": ["x", None]}, "list of strings"),
        ({"answers": None}, "list of strings"),
        ({"answers": 7}, "list of strings"),
        ({"text": "  "}, "text of a question"),
        ({"text": None}, "text of a question"),
        ({"id": ""}, "wanted an id"),
        ({"id": 5}, "wanted an id"),
    ],
)
def test_a_faulty_question_is_refused_with_its_place(changes: dict[str, object], told: str) -> None:
    faulty = msgspec.structs.replace(question("b"), **changes)
    with pytest.raises(DataError, match=rf"mine: question 2, id .*: .*{told}"):
        QuestionSet([question("a"), faulty], name="mine")


def test_an_id_that_is_used_twice_is_refused() -> None:
    with pytest.raises(DataError, match="mine: question 3: the id 'a' is used twice"):
        QuestionSet([question("a"), question("b"), question("a")], name="mine")


def test_sets_that_overlap_are_refused_by_id() -> None:
    left = QuestionSet([question("a"), question("b")], name="left")
    refuse_overlap(left, QuestionSet([question("c")], name="right"))
    with pytest.raises(ConfigError, match="'left' and 'right' share 1 question ids, 'b' among them"):
        refuse_overlap(left, QuestionSet([question("b", answers=("other",))], name="right"))


def test_a_set_copies_to_itself(folder: Path) -> None:
    for questions in (QuestionSet(SMALL), QuestionSet.load(folder)):
        assert copy.copy(questions) is questions
        assert copy.deepcopy({"questions": questions})["questions"] is questions


def test_a_set_in_memory_pickles_by_value() -> None:
    questions = QuestionSet(SMALL, name="small")
    again = pickle.loads(pickle.dumps(questions))
    assert (again, again.name, again.folder) == (questions, "small", None)


def test_a_set_from_a_folder_pickles_by_folder_and_fingerprint(folder: Path) -> None:
    questions = QuestionSet.load(folder)
    for part in (questions, questions.split("train")):
        data = pickle.dumps(part)
        assert b"What is" not in data
        again = pickle.loads(data)
        assert (again, again.fingerprint, again.folder) == (part, part.fingerprint, folder)


def test_a_pickle_of_a_folder_that_was_made_again_with_other_content_is_refused(folder: Path) -> None:
    data = pickle.dumps(QuestionSet.load(folder))
    for path in folder.iterdir():
        path.unlink()
    with prepared(folder, "small", "jsonl", ("small.jsonl",)) as writer:
        writer.question(question("other"), "small.jsonl:1")
    with pytest.raises(DataError, match="was made again since"):
        pickle.loads(data)


def test_a_pickle_is_read_in_another_process(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "set.pickle").write_bytes(pickle.dumps(QuestionSet.load(folder)))
    code = "import pickle, sys; q = pickle.load(open(sys.argv[1], 'rb')); print(len(q), q.fingerprint)"
    command = [sys.executable, "-c", code, str(tmp_path / "set.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", QuestionSet.load(folder).fingerprint]


TEXT = st.text(min_size=1).filter(str.strip)


@given(
    st.lists(
        st.builds(
            Question,
            id=TEXT.filter(lambda id: "+" not in id),
            text=TEXT,
            answers=st.lists(TEXT, min_size=1, max_size=3).map(tuple),
            split=st.sampled_from(["train", "dev", "test"]),
            evidence=st.lists(st.builds(Evidence, TEXT, TEXT, st.lists(TEXT).map(tuple))).map(tuple),
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda each: each.id,
    )
)
def test_what_is_written_is_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Question]
) -> None:
    out = tmp_path_factory.mktemp("any") / "out"
    with prepared(out, "any", "jsonl") as writer:
        for row in rows:
            writer.question(row, "somewhere")
    assert tuple(QuestionSet.load(out)) == tuple(rows)


# --- The folder --------------------------------------------------------------------------------------------


def test_the_manifest_says_what_the_folder_holds(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest.splits == {"dev": 1, "train": 2}
    assert (manifest.name, manifest.kind, manifest.sources) == ("small", "jsonl", ("small.jsonl",))
    assert (manifest.format, manifest.passages) == (FORMAT, 1)
    assert manifest.corpus == file_digest(folder / CORPUS)
    assert manifest.questions_bytes == (folder / QUESTIONS).stat().st_size
    assert msgspec.json.decode((folder / CORPUS).read_bytes(), type=Passage) == PASSAGE
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        "small"
    ]  # nothing half-written beside it


def test_a_folder_without_passages_has_no_corpus_file(tmp_path: Path) -> None:
    with prepared(tmp_path / "out", "x", "jsonl") as writer:
        writer.question(SMALL[0], "x:1")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [MANIFEST, QUESTIONS]
    assert len(QuestionSet.load(tmp_path / "out")) == 1


def test_the_same_question_twice_is_one_and_another_under_its_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f\.jsonl:9: question 'a': the same id came before"):  # noqa: SIM117
        with prepared(tmp_path / "out", "x", "jsonl") as writer:
            writer.question(SMALL[0], "f.jsonl:1")
            writer.question(SMALL[0], "f.jsonl:5")
            assert (writer.repeated, writer.splits.total()) == (1, 1)
            writer.question(question("a", answers=("other",)), "f.jsonl:9")
    assert list(tmp_path.iterdir()) == []


def test_the_same_passage_twice_is_one_and_one_title_may_have_two_texts(tmp_path: Path) -> None:
    texts = ["one", "two", "one"]
    with prepared(tmp_path / "out", "x", "jsonl") as writer:
        writer.question(SMALL[0], "x:1")
        for text in texts:
            writer.passage(Passage(passage_id("T", text), "T", text))
    assert read_manifest(tmp_path / "out").passages == 2


def test_making_an_identical_folder_again_is_fine_and_another_is_refused(folder: Path) -> None:
    before = (folder / MANIFEST).read_bytes()
    with prepared(folder, "small", "jsonl", ("small.jsonl",)) as writer:
        for each in SMALL:
            writer.question(each, "x")
        writer.passage(PASSAGE)
    with pytest.raises(DataError, match="exists and holds other data"):  # noqa: SIM117
        with prepared(folder, "small", "jsonl", ("small.jsonl",)) as writer:
            writer.question(SMALL[0], "x")
    assert (folder / MANIFEST).read_bytes() == before
    assert len(QuestionSet.load(folder)) == 3
    assert sorted(path.name for path in folder.parent.iterdir()) == ["small"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_place_that_is_something_else_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="is no prepared folder"):  # noqa: SIM117
        with prepared(out, "x", "jsonl"):
            pytest.fail("the work must not begin")
    assert (out if kind == "file" else out / "mine.txt").read_text() == "mine"


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    with prepared(tmp_path, "x", "jsonl") as writer:
        writer.question(SMALL[0], "x:1")
    assert len(QuestionSet.load(tmp_path)) == 1


def test_no_questions_make_no_folder(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="wanted questions, found none"),
        prepared(tmp_path / "out", "x", "jsonl"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _edit(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"answer a", b"answer X"))


def _garble(path: Path) -> None:
    path.write_bytes(b"{" + path.read_bytes())


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        (QUESTIONS, _truncate, "truncated or edited"),
        (QUESTIONS, _edit, "was changed after it was prepared"),
        (QUESTIONS, Path.unlink, "found 0"),
        (CORPUS, _truncate, "truncated or edited"),
        (CORPUS, Path.unlink, "found 0"),
        (MANIFEST, _truncate, "manifest.json"),
        (MANIFEST, _garble, "manifest.json"),
        (MANIFEST, Path.unlink, "found no manifest.json"),
    ],
)
def test_a_damaged_folder_is_refused_and_says_what_to_do(folder: Path, name: str, damage, told: str) -> None:  # type: ignore[no-untyped-def]
    damage(folder / name)
    with pytest.raises(DataError, match=told) as error:
        QuestionSet.load(folder)
    assert "mempo data prepare" in str(error.value)


def test_a_folder_of_another_layout_is_refused(folder: Path) -> None:
    path = folder / MANIFEST
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    with pytest.raises(DataError, match="layout version 1, found 99"):
        QuestionSet.load(folder)


def _resealed(folder: Path, lines: list[bytes]) -> None:
    """Write other lines into a folder, with a manifest that fits them, as a careless program might."""
    (folder / QUESTIONS).write_bytes(b"".join(line + b"\n" for line in lines))
    manifest = msgspec.structs.replace(
        read_manifest_unchecked(folder),
        fingerprint=file_digest(folder / QUESTIONS),
        questions_bytes=(folder / QUESTIONS).stat().st_size,
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def read_manifest_unchecked(folder: Path):  # type: ignore[no-untyped-def]
    from mempo_env.questions.prepared import Manifest

    return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"id":"z","text":"t","answers":"bare"}', r"questions\.jsonl:2: .*answers"),
        (b'{"id":"z","text":"t","answers":[]}', r"questions\.jsonl:2, id 'z': .*at least one answer"),
        (b'{"id":"z","text":"t","answers":[""]}', r"questions\.jsonl:2, id 'z': .*none blank"),
        (b'{"id":"a","text":"t","answers":["x"]}', r"questions\.jsonl:2: the id 'a' is used twice"),
        (b'{"id":"z","text":"t","answers":["x"],"split":"eval"}', r"questions\.jsonl:2: .*split"),
        (b'{"id":"z","text":"t"', r"questions\.jsonl:2: "),
    ],
)
def test_a_faulty_line_is_named_with_file_and_line(folder: Path, line: bytes, told: str) -> None:
    _resealed(folder, [msgspec.json.encode(SMALL[0]), line])
    with pytest.raises(DataError, match=told):
        QuestionSet.load(folder)


def test_a_killed_writer_leaves_no_folder_under_the_name(tmp_path: Path) -> None:
    code = (
        "import os, signal, pathlib\n"
        "from mempo_env.questions.prepared import prepared\n"
        "from mempo_env.types import Question\n"
        f"with prepared(pathlib.Path({str(tmp_path / 'out')!r}), 'x', 'jsonl') as writer:\n"
        "    writer.question(Question(id='a', text='t', answers=('x',)), 'x:1')\n"
        "    writer.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert not (tmp_path / "out").exists()
    with prepared(tmp_path / "out", "x", "jsonl") as writer:
        writer.question(SMALL[0], "x:1")
    assert len(QuestionSet.load(tmp_path / "out")) == 1


def test_an_id_that_could_be_taken_for_two_is_refused() -> None:
    """Ids of objectives are joined by "+": a, b and "a+b" in one set would be taken for each other."""
    with pytest.raises(DataError, match="without '\\+'"):
        QuestionSet([Question(id="a+b", text="Who?", answers=("x",))])
    with pytest.raises(DataError, match="surrogates"):
        QuestionSet([Question(id="a", text="Who \ud800?", answers=("x",))])
