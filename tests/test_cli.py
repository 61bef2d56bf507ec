"""The command line: whatever goes wrong is one line and a code, on any terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from format_rows import HOTPOT, lines
from mempo_env.cli import main
from mempo_env.questions.formats import prepare

MEMPO = (sys.executable, "-c", "import sys; from mempo_env.cli import main; sys.exit(main())")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder with characters that ASCII does not know."""
    folder = tmp_path_factory.mktemp("data")
    row = {**HOTPOT, "question": "Где это?", "_id": "\x1b]0;owned\x07"}
    prepare("hotpotqa", [lines(folder / "dev.jsonl", row)], folder / "out")
    return folder / "out"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which $MEMPO is the command line."""
    words = " ".join(f"'{word}'" for word in MEMPO)
    return subprocess.run(
        ["bash", "-c", command.replace("$MEMPO", words)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["bench", "run"], "mempo bench run: Missing option '--dataset'; see `mempo bench run --help`"),
        (["bench", "run", "--episodes", "abc"], "mempo bench run: Invalid value for '--episodes'"),
        (["bench", "run", "--nope"], "mempo bench run: No such option: --nope"),
        (["bench", "nix"], "mempo bench: No such command 'nix'; see `mempo bench --help`"),
        (["view", "--limit", "0", "run"], "mempo view: Invalid value for '--limit'"),
        (["data"], "mempo data: Missing command; see `mempo data --help`"),
        (["data", "prepare", "jsonl", "--out"], "mempo data: Option '--out' requires"),
        (["index", "build", "a", "b"], "mempo index build: Got unexpected extra argument"),
        (["bnech"], "mempo: unknown command 'bnech': did you mean 'bench'?"),
    ],
)
def test_misuse_is_one_line_that_names_the_help(
    capsys: pytest.CaptureFixture[str], args: list[str], told: str
) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(told) and err.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        ["train", "toy", "--steps", "1", "--out", ""],
        ["train", "toy", "--steps", "1", "--out="],
        ["train", "compare", "", "--out", "x.png"],
        ["bench", "run", "--dataset", "synthetic", "--episodes", "1", "--out", ""],
        ["bench", "report", "x", "--out="],
        ["credit", "lab", "--out", ""],
        ["credit", "show", "x", "--html", ""],
        ["data", "prepare", "synthetic", "--out", ""],
        ["demo", "--out", ""],
        ["view", "x", "--out", ""],
        ["index", "build", ""],
        ["doctor", ""],
    ],
)
def test_an_empty_path_is_not_the_working_folder(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("mempo: ") and err.count("\n") == 1
    assert ": wanted a text behind it, got an empty one; is a variable not set?" in err
    assert list(tmp_path.iterdir()) == []


def test_what_gymnasium_adds_to_our_errors_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "llm", "--set", "policy.model=m", "--out", str(tmp_path / "run")]
    assert main([*command, "--set", "task.environment.max_round=3"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'max_rounds'" in error
    assert "creator" not in error and error.endswith("tokenizer, top_k\n")


def test_a_bare_group_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "".join(capsys.readouterr()).count("Usage: mempo bench") == 1


def test_an_interrupt_is_one_line_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mempo_env.questions.cli.read_manifest", interrupted)
    monkeypatch.setattr("mempo_env.questions.cli.QuestionSet.load", interrupted)
    assert main(["data", "show", "x"]) == 130
    assert capsys.readouterr().err == "mempo: interrupted; what was finished is kept\n"


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("/dev/null/x", "/dev/null: "),
        ("q.jsonl/x", "q.jsonl: "),
        ("x" * 300, "File name too long"),
        ("loop", "loop"),
    ],
)
def test_places_that_cannot_be_are_one_line_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "q.jsonl", {"question": "q", "answers": "x"})
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.iterdir())
    assert main(["data", "prepare", "jsonl", "q.jsonl", "--out", out]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("mempo: ") and told in said[0]
    assert sorted(tmp_path.iterdir()) == before


def test_a_name_that_is_not_utf_8_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jsonl")
    lines(Path(name), {"question": "q", "answers": "x"})
    assert main(["data", "prepare", "jsonl", name, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "UTF-8" in said[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["data prepare jsonl q.jsonl --out out", "index build corpus"])
def test_a_full_disk_is_one_line(tmp_path: Path, command: str) -> None:
    lines(tmp_path / "q.jsonl", *({"question": f"q{i} " + "x" * 100, "answers": "x"} for i in range(99)))
    (tmp_path / "corpus").mkdir()
    lines(
        tmp_path / "corpus" / "corpus.jsonl",
        *({"id": f"{i}", "title": "", "text": f"w{i}"} for i in range(9)),
    )
    done = shell(f"cd '{tmp_path}' && ulimit -f 1 && $MEMPO {command} 2> >(tee /dev/null >&2)")
    assert done.returncode == 2, done
    told = [line for line in done.stderr.splitlines() if line.startswith("mempo: ")]
    assert len(told) == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_an_output_that_lacks_letters_gets_others(data: Path) -> None:
    done = shell(f"$MEMPO data show '{data}'", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "??? ????" in done.stdout


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("$MEMPO data show '{data}' >&-", 0, ""),
        ("$MEMPO data show '{data}' >/dev/full", 2, "mempo: No space left on device\n"),
        ("$MEMPO -h >/dev/full", 2, "mempo: No space left on device\n"),
        ("$MEMPO data show nowhere 2>&-", 2, ""),
    ],
)
def test_outputs_that_are_closed_or_full(data: Path, line: str, code: int, told: str) -> None:
    done = shell(line.format(data=data))
    assert (done.returncode, done.stderr) == (code, told)


@pytest.mark.parametrize("args", [["-h"], ["--version"], ["data", "show", "{data}"], ["bench", "--help"]])
def test_a_reader_that_has_gone_is_no_fault(data: Path, args: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [*MEMPO, *(word.format(data=data) for word in args)]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, b"")


def test_nothing_in_the_data_reaches_the_terminal_as_a_command(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "show", str(data)]) == 0
    said = capsys.readouterr().out
    assert "\\x1b]0;owned\\x07" in said and "\x1b]" not in said
    assert main(["data", "show", str(tmp_path / "\x1b[31m")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_corpus_of_blank_texts_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = lines(tmp_path / "q.jsonl", {"question": "q", "answers": "x"})
    blank = lines(tmp_path / "c.jsonl", {"title": "A", "text": " "})
    out = tmp_path / "out"
    assert main(["data", "prepare", "jsonl", str(own), "--corpus", str(blank), "--out", str(out)]) == 2
    assert "c.jsonl: wanted passages, found none with a text" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("where", ["questions", "corpus", "prepared", "manifest"])
def test_json_that_is_nested_too_deep_is_one_line(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    deep = '{"z": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
    good = lines(tmp_path / "q.jsonl", {"question": "q", "answers": "x"})
    (bad := tmp_path / "bad.jsonl").write_text(deep)
    folder = tmp_path / "folder"
    folder.mkdir()
    args = {
        "questions": ["data", "prepare", "jsonl", str(bad), "--out", str(tmp_path / "out")],
        "corpus": [
            "data",
            "prepare",
            "jsonl",
            str(good),
            "--corpus",
            str(bad),
            "--out",
            str(tmp_path / "out"),
        ],
        "prepared": ["index", "build", str(folder)],
        "manifest": ["data", "show", str(folder)],
    }[where]
    (folder / ("corpus.jsonl" if where == "prepared" else "manifest.json")).write_text(deep)
    assert main(args) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "maximum recursion depth" in said[0]


@pytest.mark.parametrize("args", [["data", "prepare"], ["retriever", "serve"], ["index", "build"]])
def test_an_edited_corpus_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    rows = lines(tmp_path / "dev.jsonl", HOTPOT)
    out = tmp_path / "out"
    prepare("hotpotqa", [rows], out)
    text = (out / "corpus.jsonl").read_bytes()
    (out / "corpus.jsonl").write_bytes(text.replace(b"They write.", b"They wrote."))
    if args == ["data", "prepare"]:
        from mempo_env.sources import resolve

        with pytest.raises(Exception, match=r"changed after it was prepared: .*mempo data prepare"):
            resolve(str(out), None, "bm25")
        return
    assert main([*args, str(out)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert (
        len(said) == 1 and "corpus.jsonl: was changed after it was prepared: make the folder again" in said[0]
    )
    assert msgspec.json.decode((out / "manifest.json").read_bytes())["passages"] == 3
