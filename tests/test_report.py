"""The report: its numbers against hand-made runs, what it refuses to compare, and its page in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from episodes import aborted, multi, right, without_gold, wrong
from mempo_benchmarks.metrics import METRICS, Metric
from mempo_benchmarks.report import tables
from mempo_benchmarks.results import Arm
from mempo_benchmarks.stats import Interval, mean_interval, wilson
from mempo_benchmarks.summary import ArmSummary, Comparison, compare
from mempo_env.cli import main
from mempo_env.errors import ConfigError
from mempo_env.types import Failure
from runs import write_run

GOOD = [right(), right(), wrong(), right()]
FAULTY = [right(), aborted(), without_gold(), wrong()]


def arms(comparison: Comparison) -> dict[str, ArmSummary]:
    return {arm.label: arm for arm in comparison.arms}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four questions for three agents, and one agent that has one row of four."""
    played = {"random": [wrong()] * 4, "good": GOOD, "faulty": FAULTY, "slow": [right()]}
    write_run(tmp_path / "run", played)
    return tmp_path / "run"


# --- Numbers -----------------------------------------------------------------------------------------------


def test_means_are_over_all_episodes_failed_ones_included(run: Path) -> None:
    found = arms(compare([run]))
    assert found["good"].metrics["em"] == wilson(3, 4)
    # FAULTY: one of four is right; a timeout and a retriever error count as wrong.
    assert found["faulty"].metrics["em"] == wilson(1, 4)
    assert found["faulty"].metrics["failed"] == wilson(2, 4)
    assert found["faulty"].masked == 1
    assert found["faulty"].done == 4
    rounds = found["faulty"].metrics["rounds"]
    assert rounds is not None and rounds.value == (3 + 0 + 1 + 5) / 4
    invalid = found["good"].metrics["invalid_rounds"]
    assert invalid is not None and invalid.value == 1 / 4


def test_peak_tokens_are_over_all_episodes_not_the_solved_ones(run: Path) -> None:
    peaks = [float(episode.tokens.peak) for episode in GOOD]
    assert peaks[2] != peaks[0]
    assert arms(compare([run]))["good"].metrics["peak"] == mean_interval(peaks)


def test_a_metric_that_throws_is_not_left_out_of_the_table(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    throws = Metric("bad", "bad", "Throws.", lambda row: 1 / 0)
    monkeypatch.setattr("mempo_benchmarks.summary.METRICS", (*METRICS, throws))
    with pytest.raises(ZeroDivisionError):
        compare([run])


def test_evidence_is_averaged_where_there_is_gold(run: Path) -> None:
    found = arms(compare([run]))
    recall = found["faulty"].metrics["evidence_recall"]
    # right found both passages, the aborted one none, without_gold has none to find, wrong found one of two.
    assert recall is not None and recall.value == pytest.approx((1 + 0 + 0.5) / 3)


def test_nothing_known_of_the_evidence_is_not_zero(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"random": [without_gold()] * 2})
    assert arms(compare([tmp_path / "run"]))["random"].metrics["evidence_recall"] is None


def test_outcomes_are_shares_of_the_questions(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"random": [multi(), multi(), right(), wrong()]})
    # Six questions: multi has one right and one kept_not_used, twice; right; wrong is not_retrieved.
    assert arms(compare([tmp_path / "run"]))["random"].outcomes == pytest.approx(
        {"right": 3 / 6, Failure.KEPT_NOT_USED: 2 / 6, Failure.NOT_RETRIEVED: 1 / 6}
    )


def test_em_of_several_questions_is_bootstrapped_over_episodes(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"random": [multi(), multi(), right(), wrong()]})
    assert arms(compare([tmp_path / "run"]))["random"].metrics["em"] == mean_interval([0.5, 0.5, 1.0, 0.0])


def test_prompt_tokens_by_round_are_over_the_episodes_that_came_so_far(run: Path) -> None:
    points = arms(compare([run]))["good"].prompts
    assert [(point.round, point.episodes) for point in points] == [(1, 4), (2, 4), (3, 4), (4, 1), (5, 1)]
    third = [episode.rounds[2].tokens.prompt for episode in GOOD]
    assert points[2].mean == sum(third) / 4
    assert points[2].low <= points[2].mean <= points[2].high
    assert points[4].mean == GOOD[2].rounds[4].tokens.prompt


def test_an_arm_with_missing_rows_is_incomplete_and_takes_no_part(run: Path, tmp_path: Path) -> None:
    comparison = compare([run])
    slow = arms(comparison)["slow"]
    assert (slow.done, slow.planned, slow.complete) == (1, 4, False)
    assert "slow" not in comparison.front
    assert comparison.difference("slow", "random") is None


def test_an_arm_that_never_ran_has_no_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"random": [wrong()] * 2, "never": []})
    comparison = compare([tmp_path / "run"])
    never = arms(comparison)["never"]
    assert (never.done, never.complete, never.outcomes, never.prompts) == (0, False, {}, ())
    assert set(never.metrics.values()) == {None}
    assert len(never.metrics) == len(METRICS)
    assert comparison.front == ("random",)


def test_differences_are_paired_by_question(run: Path) -> None:
    comparison = compare([run])
    forth, back = comparison.difference("good", "random"), comparison.difference("random", "good")
    assert forth is not None and back is not None
    em, turned = forth.metrics["em"], back.metrics["em"]
    assert em == mean_interval([1.0, 1.0, 0.0, 1.0])
    assert (turned.value, turned.low, turned.high) == (-em.value, -em.high, -em.low)  # type: ignore[operator]
    assert (forth.episodes, forth.left_out) == (back.episodes, back.left_out) == (4, 0)
    assert comparison.difference("good", "good") is None


def test_the_ceiling_is_not_on_the_front(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"random": [wrong()] * 2, "good": [right()] * 2, "oracle": [right()] * 2})
    comparison = compare([tmp_path / "run"])
    # The oracle equals good in both, so nothing beats it; random is cheaper than either.
    assert comparison.front == ("random", "good")
    assert [arm.role for arm in comparison.arms] == ["floor", "", "ceiling"]


def test_an_unknown_baseline_is_named(run: Path) -> None:
    with pytest.raises(ConfigError, match="unknown baseline 'goood': did you mean 'good'"):
        compare([run], baseline="goood")


# --- Several runs ------------------------------------------------------------------------------------------


def test_runs_of_one_kind_share_a_table(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {"random": [wrong()] * 2, "good": [right()] * 2})
    write_run(tmp_path / "b", {"random": [wrong(), right()], "better": [right()] * 2})
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    assert list(arms(comparison)) == ["random (a)", "good", "random (b)", "better"]
    assert comparison.baseline == "random (a)"
    assert comparison.differing == ()
    assert comparison.difference("better", "good") is not None


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("x/run", "y/run"):
        write_run(tmp_path / name, {"good": [wrong()]})
    assert len(arms(compare([tmp_path / "x/run", tmp_path / "y/run"], "good"))) == 2
    assert len(arms(compare([tmp_path / "x/run", tmp_path / "x/run"], "good"))) == 1


def test_floors_that_did_the_same_in_two_runs_have_one_row(tmp_path: Path) -> None:
    """Six of eleven rows of a report were floors and ceilings, each twice."""
    write_run(tmp_path / "a", {"random": [wrong()] * 2, "oracle": [right()] * 2, "good": [right()] * 2})
    write_run(tmp_path / "b", {"random": [right()] * 2, "oracle": [right()] * 2, "good": [right()] * 2})
    labels = ["random (a)", "oracle", "good (a)", "random (b)", "good (b)"]
    assert list(arms(compare([tmp_path / "a", tmp_path / "b"]))) == labels
    kwargs = {"settings": {"split": "dev", "objectives": 1, "top_k": 5, "tokenizer": "words"}}
    write_run(tmp_path / "c", {"oracle": [right()] * 2, "random": [wrong()] * 2}, **kwargs)
    found = compare([tmp_path / "a", tmp_path / "c"], allow_different=True)
    assert {"oracle (a)", "oracle (c)"} <= set(arms(found)), "of other settings it is another"


@pytest.mark.parametrize(
    "change, told",
    [
        ({"data": "d1"}, "data d0 / d1 (a / b)"),
        ({"index": "i1"}, "index i0 / i1 (a / b)"),
        ({"scorer": "s1"}, "scorer s0 / s1 (a / b)"),
        ({"code": "c1"}, "code c0 / c1 (a / b)"),
        (
            {"settings": {"split": "dev", "objectives": 1, "top_k": 5, "tokenizer": "words"}},
            "top_k 3 / 5 (a / b)",
        ),
        ({"questions": ("q0", "q1", "q2")}, "episodes 2 ["),
    ],
)
def test_runs_that_differ_are_refused_and_it_is_said_in_what(
    tmp_path: Path, change: dict[str, Any], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", {"random": [wrong()] * 2})
    write_run(tmp_path / "b", {"random": [right()] * 2}, **change)
    command = ["bench", "report", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "--allow-different" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "a" / "report.html").exists()
    assert main([*command, "--allow-different"]) == 0
    assert "differs: " in capsys.readouterr().out
    assert "The runs differ" in (tmp_path / "a" / "report.html").read_text()


def test_agents_may_differ_in_what_they_set(tmp_path: Path) -> None:
    plan = write_run(tmp_path / "a", {"random": [wrong()]})
    other = {"env_kwargs": {"context": "full"}, "settings": "e1", "agent": "react", "fingerprint": "r"}
    arm = type(plan.arms[0])(**other)
    write_run(tmp_path / "b", {"react": [right()]}, arms=(arm,))
    assert len(compare([tmp_path / "a", tmp_path / "b"]).arms) == 2


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["bench", "report"], ["view"]):
        assert main([*command, str(tmp_path / "none")]) == 2
        assert "found no run.json; make it by `mempo bench run`" in capsys.readouterr().err


# --- The terminal ------------------------------------------------------------------------------------------


def printed(comparison: Comparison, width: int = 80) -> str:
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=width)
    console.print(*tables(comparison))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_tables_fit_80_columns_and_hold_every_figure(run: Path) -> None:
    text = printed(compare([run]))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for word in ("EM", "F1", "relaxed", "rounds", "dependency", "masked", "incomplete", "1 of 4", "0.750"):
        assert word in text
    low, high = wilson(3, 4).low, wilson(3, 4).high
    assert f"{low:.2f}–{high:.2f}" in text


@pytest.mark.parametrize("size", [9.999, 9_999.0, 99_999.0, 999_999.0, 9.99e8, 9.99e11])
@pytest.mark.parametrize("name", ["iterresearch", "own_package.module:an_agent_with_a_name (run-of-a-day)"])
def test_paired_tables_fit_80_columns_whatever_the_numbers(size: float, name: str, tmp_path: Path) -> None:
    """Totals of 10k with wide intervals were cut off."""
    played = {name: [right()] * 3, "no_memory": [wrong()] * 3, "random": [wrong()] * 3}
    arms = tuple(Arm(agent, f"{agent}-1", {}, "e0", "m" * (agent != "random"), "m") for agent in played)
    write_run(tmp_path / "run", played, arms=arms)
    compared = compare([tmp_path / "run"])
    wide = {"em": Interval(-0.5, -1.0, 0.9), "f1": Interval(-0.5, -1.0, 0.9)}
    wide |= dict.fromkeys(("peak", "total"), Interval(-size, -2 * size, size))
    pairs, gains = (
        tuple(replace(pair, metrics=wide) for pair in found) for found in (compared.pairs, compared.gains)
    )
    assert pairs and gains
    text = printed(replace(compared, pairs=pairs, gains=gains))
    tail = text[text.index("Memory-isolated") :]
    assert max(map(len, tail.splitlines())) <= 80 and "…" not in tail
    assert tail.count("-1.00 to") == tail.count("+0.90") == 2 * 3, "of one gain and two differences"
    assert tail.count(" 0.25 ") == 2 and tail.count(" 1.00 ") == 1


def test_the_command_shows_what_one_reads_first_and_the_rest_if_asked(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seven agents were 190 lines."""
    assert main(["bench", "report", str(run)]) == 0
    first = capsys.readouterr().out
    assert "Accuracy" in first and "Cost of an episode" in first
    assert f"report: {run / 'report.html'}; it has more tables, as has --all" in first
    assert main(["bench", "report", str(run), "--all"]) == 0
    whole = capsys.readouterr().out
    for title in ("Spent for an episode", "Prompt tokens by round", "Failed episodes", "Paired differences"):
        assert title in whole and title not in first
    short = tables(compare([run]), whole=False)
    assert [made.title for made in short] == [made.title for made in tables(compare([run]))][: len(short)]


def test_markup_in_a_name_is_text(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"random": [wrong()], "[red]x[/red]": [right()]})
    assert "[red]x[/red]" in printed(compare([tmp_path / "run"]))


# --- The commands ------------------------------------------------------------------------------------------


def test_report_writes_the_page_and_names_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "report", str(run)]) == 0
    assert f"report: {run / 'report.html'}" in capsys.readouterr().out
    page = (run / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    named = ("http://www.w3.org", without_gold().stop_detail)
    for text in named:
        page = page.replace(text, "")
    assert "http://" not in page
    assert "https://" not in page


def test_a_page_that_can_not_be_written_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["bench", "report", str(run), "--out", str(tmp_path / "file" / "x.html")]) == 2
    assert "could not be written (" in capsys.readouterr().err


def test_view_shows_the_episodes_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mempo_benchmarks.view import entries_of

    assert main(["view", str(run)]) == 0
    out = capsys.readouterr().out
    assert "good 4, faulty 4, slow 1, random 4 episodes" in out
    assert (run / "episodes.html").stat().st_size > 10_000
    labels = [entry.label for entry in entries_of(run, limit=2)]
    assert labels == ["good"] * 2 + ["faulty"] * 2 + ["slow"] + ["random"] * 2
    assert [entry.episode.question_id for entry in entries_of(run, agent="good")] == ["q0", "q1", "q2", "q3"]
    with pytest.raises(ConfigError, match="did you mean 'good'"):
        entries_of(run, agent="godo")


def test_view_of_nothing_is_refused(tmp_path: Path) -> None:
    from mempo_benchmarks.view import entries_of

    write_run(tmp_path / "run", {"random": []}, planned=3)
    with pytest.raises(ConfigError, match="wanted episodes to show, found none"):
        entries_of(tmp_path / "run")


def test_a_torn_last_line_counts_as_missing(run: Path) -> None:
    results = run / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-5])
    assert arms(compare([run]))["slow"].done == 0
