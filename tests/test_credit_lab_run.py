"""`mempo credit lab`: what it writes, goes on with after a kill, refuses; its reading, plot and page."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from browser import DESKTOP, PHONE, contrasts, overflow, page_at
from mempo_benchmarks.credit import lab as lab_module
from mempo_benchmarks.credit.measures import REFERENCE
from mempo_benchmarks.credit.reading import LIMITS, number, reading
from mempo_benchmarks.credit.report import lab_page, write_plot
from mempo_benchmarks.credit.results import LEAST, Lab, Plan, Row, Stage
from mempo_benchmarks.credit.stage import measure_stage
from mempo_benchmarks.stats import Interval
from mempo_env.cli import main
from mempo_env.errors import ConfigError, ResultsError
from mempo_trainers.config import Config
from mempo_trainers.toy import Toy
from train_help import mempo, train, wild

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SMALL = ("--questions", "4", "--rollouts", "4", "--forks", "64")
CONFIG = Config(credit="grpo", learning_rate=0.03, steps=10, questions=6, rollouts=8)
TASK = Toy(objectives=2, worlds=60, reward="em_mean")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A policy that knows something, and one that knows all."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "taught", TASK, CONFIG)
    train(folder / "mastered", TASK, msgspec.structs.replace(CONFIG, steps=40))
    return [folder / "taught", folder / "mastered"]


@pytest.fixture(scope="module")
def done(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab of both, which nothing disturbed."""
    out = tmp_path_factory.mktemp("done")
    assert main(["credit", "lab", *told(runs), *SMALL, "--out", str(out)]) == 0
    return out


def told(runs: list[Path]) -> list[str]:
    return [word for run in runs for word in ("--run", str(run))]


def read(out: Path) -> Lab:
    return msgspec.json.decode((out / "lab.json").read_bytes(), type=Lab)


def timeless(lab: Lab) -> list[Stage]:
    return [msgspec.structs.replace(stage, seconds=0.0) for stage in lab.stages]


# --- What is written ----------------------------------------------------------------------------------------


def test_every_estimator_is_measured(done: Path) -> None:
    lab = read(done)
    assert [stage.name for stage in lab.stages] == ["taught", "mastered"]
    for stage in lab.stages:
        names = [row.name for row in stage.rows]
        wanted = "grpo mempo dr_grpo rloo reinforce_pp discounted memory_only attribution turn_level gigpo"
        assert {*wanted.split(), "igpo", "gae", "placebo", "spread"} <= set(names)
        assert len(stage.truth) == len(stage.question) == stage.operations
        for row in stage.rows:
            assert len(row.values) == stage.operations and len(row.bias) == len(stage.rounds)
        assert stage.pairs > 60 * stage.operations
        assert stage.saved > 0.5
    # R is em_mean whatever the runs were paid
    assert 0 < lab.stages[0].em < 1


def test_a_truth_that_is_not_reliable_is_correlated_with_nothing(done: Path) -> None:
    taught, mastered = read(done).stages
    assert taught.reliability[0] >= LEAST > mastered.reliability[0]
    assert all(row.rank is not None and row.corrected is not None for row in taught.rows)
    assert all(row.rank is row.gain is row.corrected is None for row in mastered.rows)
    assert all(row.within is None for row in mastered.rows) or mastered.reliability[1] >= LEAST
    assert all(row.noise is not None for row in taught.rows)


def test_the_terminal_says_why_there_is_a_dash(
    done: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["credit", "lab", *told(runs), *SMALL, "--out", str(done)]) == 0
    out, _ = capsys.readouterr()
    assert "no correlation: its reliability is" in out and "take more --forks" in out
    assert "What to make of it" in out and str(done / "lab.html") in out
    assert max(map(len, out.splitlines())) <= 120
    assert "\x1b" not in out


def test_nothing_of_the_tables_is_cut_off(
    done: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["credit", "lab", *told(runs), *SMALL, "--out", str(done)]) == 0
    out, stage = capsys.readouterr().out, read(done).stages[0]
    assert "…" not in out
    gold = next(row for row in stage.rows if row.name == "mempo").gold
    assert gold is not None and f"{number(gold.low or 0, 3, '+')} to {number(gold.high or 0, 3, '+')}" in out


def test_a_lab_of_few_questions_says_what_that_means(
    done: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["credit", "lab", *told(runs), *SMALL, "--out", str(done)]) == 0
    out = capsys.readouterr().out
    assert out.count("(fewer than 12 questions: the intervals are too narrow)") >= 1
    assert out.count("The operations are of 4 questions: below 12 the intervals are too narrow") == 2
    stage = planted().stages[0]
    enough = msgspec.structs.replace(stage, question=list(range(12)))
    few = msgspec.structs.replace(stage, question=list(range(11)))
    assert "below 12" in sentences(Lab(format=1, plan=Plan(), stages=[few]))
    assert "below 12" not in sentences(Lab(format=1, plan=Plan(), stages=[enough]))


def test_the_placebo_is_the_mean_of_its_shuffles(done: Path) -> None:
    taught, mastered = read(done).stages
    assert [row.name for row in taught.rows if row.spread is not None] == ["placebo"]
    assert all(row.spread is None for row in mastered.rows)  # nothing is correlated with that truth
    assert "mean of shuffles whose sd is" in " ".join(reading(read(done))[0][1])


def test_where_no_operation_makes_a_difference_there_is_no_scale() -> None:
    """Searches that show random articles: nobody ever finds an answer, and every truth is 0."""
    task = Toy(objectives=1, retriever_noise=1.0, reward="em_mean")
    policy = wild(task.envs(1), seed=0, size=0.5)
    stage = measure_stage(Plan(questions=3, rollouts=3, forks=8), task, policy, "x", "", "")
    assert set(stage.truth) == {0.0} and stage.signal == 0.0
    for row in stage.rows:
        assert row.bias == [None] * len(stage.rounds) and row.gold is row.kept is row.dropped is None
        assert row.wrong is row.rank is None


def test_the_plot_is_drawn(done: Path) -> None:
    assert (done / "lab.png").read_bytes().startswith(b"\x89PNG")


# --- Going on -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_lab_goes_on_and_gives_the_same(runs: list[Path], done: Path, tmp_path: Path) -> None:
    command = ["credit", "lab", *told(runs), *SMALL, "--out", str(tmp_path / "lab")]
    process = mempo(*command)
    first = tmp_path / "lab" / "stages" / "taught.json"
    while not first.exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "lab" / "lab.json").exists()
    kept = first.read_bytes()
    assert main(command) == 0
    assert first.read_bytes() == kept
    assert timeless(read(tmp_path / "lab")) == timeless(read(done))


def test_what_is_done_is_not_measured_again(
    runs: list[Path], done: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> Stage:
        raise AssertionError("measured again")

    monkeypatch.setattr(lab_module, "measure_stage", never)
    before = read(done)
    plan = Plan(questions=4, rollouts=4, forks=64)
    assert lab_module.run_lab(plan, runs, done) == before


def test_stages_of_other_settings_are_refused(
    runs: list[Path], done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = (done / "lab.json").read_bytes()
    assert main(["credit", "lab", *told(runs), *SMALL, "--seed", "1", "--out", str(done)]) == 2
    assert "taught.json: wanted a stage of this run measured with these settings" in capsys.readouterr().err
    assert (done / "lab.json").read_bytes() == held


def test_a_run_that_was_trained_on_is_another_run(runs: list[Path], done: Path, tmp_path: Path) -> None:
    run = tmp_path / "taught"
    shutil.copytree(runs[1], run)  # another policy under the same name
    with pytest.raises(ResultsError, match="or choose another --out"):
        lab_module.run_lab(Plan(questions=4, rollouts=4, forks=64), [run], done)


def test_a_run_in_the_labs_folder_must_be_the_labs_own(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "runs" / "early")
    with pytest.raises(ResultsError, match=r"early: holds a run of other settings .*config\.steps: 10 / 22"):
        lab_module.run_lab(Plan(questions=4, rollouts=4, forks=64), [], tmp_path)
    assert not (tmp_path / "stages").exists()


def test_a_damaged_stage_is_named(runs: list[Path], done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "lab")
    file = tmp_path / "lab" / "stages" / "mastered.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ResultsError, match=r"mastered\.json: .*remove it to measure anew"):
        lab_module.run_lab(Plan(questions=4, rollouts=4, forks=64), runs, tmp_path / "lab")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--forks", "7"], "forks: wanted at least 8, got 7"),
        (["--questions", "1"], "questions: wanted at least 2, got 1"),
        (["--seed", "-1"], "seed: wanted 0 to 4611686018427387904, got -1"),
        (["--seed", str(2**70)], f"seed: wanted 0 to 4611686018427387904, got {2**70}"),
        (["--run", "nowhere"], "wanted a training run, found none"),
    ],
)
def test_misuse_leaves_nothing(
    args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["credit", "lab", *args, "--out", str(tmp_path / "lab")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "lab").exists()


def test_where_nothing_can_be_written_nothing_is_measured(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any) -> Stage:
        raise AssertionError("measured")

    monkeypatch.setattr(lab_module, "measure_stage", never)
    (tmp_path / "file").write_text("a file")
    assert main(["credit", "lab", *told(runs), *SMALL, "--out", str(tmp_path / "file" / "lab")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and str(tmp_path / "file") in err
    # nor where something lies in the place of a result
    for name in ("lab.json", "lab.html", "lab.png"):
        (tmp_path / name / name).mkdir(parents=True)
        assert main(["credit", "lab", *told(runs), *SMALL, "--out", str(tmp_path / name)]) == 2
        assert f"{name}: wanted a place for a file" in capsys.readouterr().err
        assert main(["credit", "lab", *SMALL, "--out", str(tmp_path / name)]) == 2  # before any training
        assert "wanted a place for a file" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / name).iterdir()] == [name]
    # and a run that is none, after one that is, is found before the first one's forks are played
    out = tmp_path / "lab"
    assert main(["credit", "lab", *told([runs[0], tmp_path]), *SMALL, "--out", str(out)]) == 2
    assert "wanted a training run, found none" in capsys.readouterr().err and not out.exists()


def test_the_greatest_seed_is_one(runs: list[Path], tmp_path: Path) -> None:
    plan = Plan(questions=2, rollouts=2, forks=8, seed=2**62)
    assert lab_module.run_lab(plan, runs[:1], tmp_path).plan == plan


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    found = lab_module.named([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert len(found) == 2 and all("/" not in name for name in found)
    with pytest.raises(ConfigError, match="wanted different runs"):
        lab_module.named([tmp_path / "run", tmp_path / "run"])


# --- The reading --------------------------------------------------------------------------------------------


def row(name: str, rank: float | None, gain: tuple[float, float] | None = None, **more: Any) -> Row:
    def around(value: float | None) -> Interval | None:
        return None if value is None else Interval(value, value - 0.1, value + 0.1)

    fields: dict[str, Any] = {
        "within": around(rank),
        "corrected": rank,
        "wrong": around(0.4),
        "noise": around(0.5),
        "bias": [Interval(0.01, -0.02, 0.04), None],
        "kept": 0.1,
        "dropped": 0.0,
        "gold": around(0.1),
        "values": [0.5, -0.5, 0.0],
        "about": "",
        **more,
    }
    low_high = None if gain is None else Interval(sum(gain) / 2, *gain)
    return Row(name=name, rank=around(rank), gain=low_high, **fields)


def planted(reliability: float = 0.9, em: float = 0.4, **ranks: float) -> Lab:
    given = {"grpo": 0.1, "mempo": 0.5, "placebo": 0.05, **ranks}
    known = reliability >= LEAST
    rows = [
        row(name, value if known else None, None if name == REFERENCE else (0.1, 0.3), about="control")
        for name, value in given.items()
    ]
    stage = Stage(
        name="early",
        mark="",
        trained="by hand",
        em=em,
        success=0.1,
        operations=3,
        pairs=1234,
        fork_range=(8, 30),
        signal=0.1,
        se=0.02,
        saved=2.0,
        reliability=(reliability, reliability),
        known=2,
        rounds=[2, 3],
        gold_facts=4,
        gold_kept=0.5,
        gold=Interval(0.2, 0.1, 0.3),
        rows=rows,
        question=[0, 0, 1],
        round=[2, 3, 2],
        truth=[0.1, -0.2, 0.0],
        error=[0.01, 0.02, 0.03],
        seconds=1.0,
    )
    return Lab(format=1, plan=Plan(), stages=[stage])


def sentences(lab: Lab) -> str:
    return " ".join(text for _, texts in reading(lab)[:-1] for text in texts)


def test_the_reading_says_what_the_numbers_say() -> None:
    text = sentences(planted())
    assert "mempo agrees best with the truth: rank correlation 0.50 (0.40 to 0.60)" in text
    assert "grpo has 0.10 (0.00 to 0.20)" in text
    assert "Above grpo with an interval that leaves 0 out: mempo, placebo." in text
    assert "what a memory holds is what counts" in text
    assert "worth +0.200 (+0.100 to +0.300) of R; the policy kept 50% of 4" in text
    assert "1,234 pairs" in text


def test_the_reading_claims_nothing_that_the_numbers_do_not() -> None:
    text = sentences(planted(placebo=0.45, mempo=0.5))
    assert "the intervals overlap, so mempo is not set apart" in text
    text = sentences(planted(reliability=0.3))
    assert "agrees best" not in text and "no correlation is shown" in text
    assert "grpo agrees best" in sentences(planted(grpo=0.9))
    assert "outside of 10% to 80%" in sentences(planted(em=0.95))
    assert "outside" not in sentences(planted())


def test_the_limits_are_always_told() -> None:
    assert reading(planted())[-1] == ("What to make of it", list(LIMITS))


def test_numbers_have_a_true_minus_and_no_signed_zero() -> None:
    assert number(-0.123) == "−0.12" and number(-0.001) == "0.00" and number(0.0, 2, "+") == "0.00"
    assert number(0.126, 2, "+") == "+0.13"


def test_the_plot_of_a_lab_without_correlations_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs mempo[bench]")
    assert write_plot(planted(reliability=0.1), tmp_path / "plot.png")


# --- The page -----------------------------------------------------------------------------------------------


def opened(browser: Browser, lab: Lab, folder: Path, width: int = DESKTOP, scheme: Any = "light") -> Any:
    page = folder / "lab.html"
    page.write_text(lab_page(lab), encoding="utf-8")
    return page_at(browser, page.as_uri(), width, scheme)


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_can_be_read(done: Path, browser: Browser, width: int, scheme: Any) -> None:
    with page_at(browser, (done / "lab.html").as_uri(), width, scheme) as page:
        page.wait_for_selector(".plot svg")
        assert overflow(page) <= 0
        assert page.locator("h2").all_inner_texts() == [
            "Reading",
            "Rank correlation with the truth",
            "Estimators",
            "Every operation",
            "Bias by round",
            "Keeping a gold fact",
            "How it was measured",
        ]
        for svg in page.locator(".plot svg").all():
            assert svg.get_attribute("aria-label")
        assert min(contrasts(page, "td span, td, th, small, p, h2, h3, dd, dt, li, select")) >= 4.5


def test_the_page_shows_the_numbers_of_the_stage_that_is_chosen(done: Path, browser: Browser) -> None:
    taught, mastered = read(done).stages
    with page_at(browser, (done / "lab.html").as_uri()) as page:
        box = page.locator("section", has=page.get_by_role("heading", name="Estimators", exact=True))
        box.get_by_label("stage").select_option("taught")
        cells = cells_of(box, "mempo")
        mempo_row = next(each for each in taught.rows if each.name == "mempo")
        assert mempo_row.rank is not None
        assert cells[0].split()[0] == number(mempo_row.rank.value)
        box.get_by_label("stage").select_option("mastered")
        assert cells_of(box, "mempo")[0] == "–"
        assert f"reliability is {number(mastered.reliability[0])}, below 0.5" in box.inner_text()


def cells_of(box: Any, name: str) -> list[str]:
    rows = box.locator("tbody tr").all()
    return next(
        each.locator("td").all_inner_texts() for each in rows if each.locator("th").inner_text() == name
    )


def test_every_operation_is_a_dot_of_the_estimator_that_is_chosen(done: Path, browser: Browser) -> None:
    taught = read(done).stages[0]
    with page_at(browser, (done / "lab.html").as_uri()) as page:
        box = page.locator("section", has=page.get_by_role("heading", name="Every operation"))
        box.get_by_label("stage").select_option("taught")
        box.get_by_label("estimator").select_option("rloo")
        page.wait_for_selector("[aria-label='True advantage against what rloo says, taught']")
        assert box.locator("circle.operation").count() == taught.operations
        says = next(each.values for each in taught.rows if each.name == "rloo")[0]
        assert f"says {number(says)}" in (box.locator("circle title").first.text_content() or "")


def test_hostile_names_are_inert(browser: Browser, tmp_path: Path) -> None:
    evil = '</script><img src=x onerror="document.title=1"><b>&amp;{{style}}'
    lab = planted()
    stages = [msgspec.structs.replace(lab.stages[0], name=evil, trained=evil)]
    with opened(browser, msgspec.structs.replace(lab, stages=stages), tmp_path) as page:
        page.wait_for_selector(".plot svg")
        assert page.locator("img, b").count() == 0 and page.title() == "Credit lab"
        assert evil in page.locator("main").inner_text()


def test_lab_json_is_plain(done: Path) -> None:
    """Readable without us: numbers, texts, lists."""
    lab = json.loads((done / "lab.json").read_text())
    assert lab["plan"] == {"questions": 4, "rollouts": 4, "forks": 64, "seed": 0}
    first = lab["stages"][0]["rows"][0]
    assert first["name"] == "grpo" and set(first["rank"]) == {"value", "low", "high"}
