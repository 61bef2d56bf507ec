"""What a report says in words: what failed, what tokens are, what it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from browser import page_at
from episodes import multi, right, without_gold, wrong
from mempo_benchmarks.conclusion import conclusions
from mempo_benchmarks.metrics import METRICS
from mempo_benchmarks.report import behind, report_page, tables
from mempo_benchmarks.results import SCRIPTED, Arm, read_plan
from mempo_benchmarks.stats import Interval, mean_interval
from mempo_benchmarks.summary import Comparison, compare
from mempo_env.cli import main
from mempo_env.types import Call, Episode, Failure, StopReason
from runs import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REFUSED = "ModelError: status 401 from the server"


def refused(detail: str = REFUSED) -> Episode:
    """An episode whose model refused its first call."""
    return replace(
        wrong(),
        rounds=(),
        stop_reason=StopReason.MODEL_ERROR,
        stop_detail=detail,
        mask_episode=True,
        failure=(Failure.ENVIRONMENT,),
    )


def crashed() -> Episode:
    detail = "KeyError: 'x' (mine.py:7)"
    failure = (Failure.AGENT_ERROR,)
    return replace(wrong(), stop_reason=StopReason.AGENT_ERROR, stop_detail=detail, failure=failure)


def told_by_model(episode: Episode) -> Episode:
    """The same, with calls of a model whose server tells of its tokens."""
    calls = (Call(output="x", prompt_tokens=4, output_tokens=2),)
    return replace(episode, rounds=tuple(replace(played, calls=calls) for played in episode.rounds))


def written(
    run: Path, played: Mapping[str, Sequence[Episode]], models: Mapping[str, str] | None = None
) -> Comparison:
    models = models or {}
    arms = tuple(
        Arm(name, f"{name}-1", {}, "e0", models.get(name, ""), models.get(name, "")) for name in played
    )
    write_run(run, played, arms=arms)
    return compare([run])


def cells(comparison: Comparison, title: str) -> list[list[str]]:
    (found,) = (made for made in tables(comparison) if str(made.title).startswith(title))
    return [list(map(str, column.cells)) for column in found.columns]


# --- What failed -------------------------------------------------------------------------------------------


def test_an_agent_whose_every_call_failed_has_no_figures_and_it_is_said_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], browser: Browser
) -> None:
    """It looked like a bad agent with EM 0 and the fewest tokens of all."""
    run = tmp_path / "run"
    played = {
        "random": [wrong()] * 3,
        "react": [refused(), refused("later"), refused()],
        "good": [right()] * 3,
    }
    compared = written(run, played)
    react = {arm.label: arm for arm in compared.arms}["react"]
    assert {key for key, value in react.metrics.items() if value is not None} == {"failed"}
    assert (react.spent, react.prompts, react.failed, react.masked) == ({}, (), 3, 3)
    assert react.outcomes == {"environment": 1.0}
    note = f"3 of 3 react episodes failed by no fault of the agent: {REFUSED}"
    assert compared.notes[0] == note
    assert main(["bench", "report", str(run)]) == 0
    assert f"note: {note}" in " ".join(capsys.readouterr().out.split())
    with page_at(browser, (run / "report.html").as_uri()) as page:
        assert note in page.locator(".note").inner_text()
        scatter = page.locator("svg[aria-label='EM against peak tokens']")
        assert scatter.locator("text.end").all_text_contents() == ["random", "good"]


def test_agents_that_failed_in_part_keep_their_denominator(tmp_path: Path) -> None:
    compared = written(tmp_path / "run", {"random": [wrong()] * 2, "react": [right(), refused()]})
    em = compared.arms[1].metrics["em"]
    assert em is not None and em.value == 0.5
    assert compared.notes == (f"1 of 2 react episodes failed by no fault of the agent: {REFUSED}",)


def test_an_agent_that_crashes_says_where(tmp_path: Path, browser: Browser) -> None:
    """The reason was that it had run out of its budget."""
    compared = written(tmp_path / "run", {"random": [wrong()] * 2, "mine": [crashed()] * 2})
    said = "2 of 2 mine episodes failed by its own fault (agent_error): KeyError: 'x' (mine.py:7)"
    assert compared.notes[0] == said
    assert cells(compared, "Failed episodes")[3][1] == "100.0%"
    page_file = tmp_path / "report.html"
    page_file.write_text(report_page(compared, tmp_path))
    with page_at(browser, page_file.as_uri()) as page:
        assert said in page.locator(".note").inner_text()
        assert "agent error" in page.locator("section", has_text="Why questions failed").inner_text()


def test_no_more_than_a_line_of_what_failed_is_shown(tmp_path: Path) -> None:
    long = f"{'x' * 5_000}\nsecond"
    (note, *_) = written(tmp_path / "run", {"random": [refused(long), wrong(), wrong()]}).notes
    assert len(note) < 400 and note.endswith("x...")


# --- Tokens ------------------------------------------------------------------------------------------------


def mixed(folder: Path) -> Comparison:
    model = [told_by_model(right()), told_by_model(wrong())]
    played = {"random": [wrong()] * 2, "react": [right()] * 2, "mempo": model, "mem1": model}
    return written(folder, played, {"react": SCRIPTED, "mempo": "qwen", "mem1": "qwen"})


def test_tokens_of_two_units_are_not_subtracted_and_it_is_said(tmp_path: Path) -> None:
    """Words were taken from a model's tokens, and one plot had both."""
    compared = mixed(tmp_path / "run")
    assert [arm.unit for arm in compared.arms] == ["words", "words", "tokens of qwen", "tokens of qwen"]
    tokens = {"peak", "total", "dependency"}
    assert {metric.key for metric in METRICS if metric.tokens} == tokens
    for a, b, one_unit in (("mempo", "random", False), ("mem1", "mempo", True), ("react", "random", True)):
        pair = compared.difference(a, b)
        assert pair is not None and "em" in pair.metrics
        assert (tokens <= pair.metrics.keys()) is one_unit
        assert one_unit or not tokens & pair.metrics.keys()
    assert compared.notes[0] == (
        "tokens differ in their unit: words for random, react; tokens of qwen for mempo, mem1; "
        "they are not subtracted, and have a plot for each unit"
    )
    assert set(compared.front) >= {"react", "mempo"}, "a front for each unit"
    differences = cells(compared, "Paired differences")
    assert differences[4][differences[0].index("mempo")] == "–"


def test_the_page_has_a_plot_for_each_unit(tmp_path: Path, browser: Browser) -> None:
    page_file = tmp_path / "report.html"
    page_file.write_text(report_page(mixed(tmp_path / "run"), tmp_path))
    with page_at(browser, page_file.as_uri()) as page:
        labels = page.locator(".plot svg").evaluate_all(
            "all => all.map(one => one.getAttribute('aria-label'))"
        )
        for of in ("words", "tokens of qwen"):
            assert f"EM against peak tokens ({of})" in labels
            assert f"prompt tokens ({of}) by round" in labels
        assert "tokens are" in page.locator("table").first.inner_text()


def test_a_failed_call_does_not_change_what_tokens_are(tmp_path: Path) -> None:
    failed = replace(refused(), tokens=replace(wrong().tokens, total=0))
    played = {"random": [wrong()] * 3, "mempo": [told_by_model(right())] * 2 + [failed]}
    assert written(tmp_path / "run", played, {"mempo": "qwen"}).arms[1].unit == "tokens of qwen"


def test_the_unit_is_said_where_there_is_one(tmp_path: Path) -> None:
    compared = written(tmp_path / "run", {"random": [wrong()] * 2, "react": [right()] * 2})
    assert compared.units == ("words",)
    assert cells(compared, "Cost of an episode, tokens in words")


# --- What it comes to --------------------------------------------------------------------------------------


def test_the_models_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed(tmp_path / "run")
    said = "model scripted: react; model qwen: mempo, mem1"
    assert behind(read_plan(tmp_path / "run")) == said
    assert main(["bench", "report", str(tmp_path / "run")]) == 0
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "run" / "report.html").read_text()


def test_three_sentences_say_what_it_comes_to(tmp_path: Path) -> None:
    """Of seven questions `good` has all, `alike` all but one, `no_memory` that one."""
    played = {
        "random": [wrong()] * 7,
        "good": [right()] * 7,
        "alike": [right()] * 6 + [wrong()],
        "no_memory": [wrong()] * 6 + [right()],
        "oracle": [right()] * 7,
    }
    models = dict.fromkeys(("good", "alike", "no_memory"), SCRIPTED)
    compared = written(tmp_path / "run", played, models)
    best, cheapest, gained = conclusions(compared)
    assert best == "Best EM: good, 1.000 (0.65–1.00); not told apart from it: alike."
    each = right().tokens.total
    assert cheapest == (
        f"Fewest tokens for a right answer: good, {each} ({each}–{each}), in words; "
        "not told apart from it: alike."
    )
    found = mean_interval([1.0] * 6 + [0.0])
    assert found.low is not None and found.high is not None
    between = f"{found.low:+.2f} to {found.high:+.2f}"
    assert gained == (
        f"Most gained over no_memory: good, +0.857 EM ({between}), p 0.031; "
        "not told apart from it: alike; of 2 agents 1 gained and 0 lost beyond chance."
    )


def test_without_no_memory_it_is_said_how_to_see_what_memory_gained(tmp_path: Path) -> None:
    compared = written(tmp_path / "run", {"random": [wrong()] * 2, "a": [right()] * 2}, {"a": SCRIPTED})
    assert conclusions(compared)[-1] == "What memory gained is not known: add no_memory to see it."
    alone = written(tmp_path / "own", {"random": [wrong()] * 2, "a": [right()] * 2})
    assert len(conclusions(alone)) == 2, "an agent without a model has no such gain"


def test_where_nobody_is_right_nobody_is_best(tmp_path: Path) -> None:
    """It said that react was best, with 0.000, and had gained most, +0.000."""
    played = {name: [wrong()] * 6 for name in ("random", "a", "b", "no_memory")}
    compared = written(tmp_path / "run", played, dict.fromkeys(("a", "b", "no_memory"), SCRIPTED))
    assert conclusions(compared) == (
        "No agent answered anything rightly.",
        "No gain seen over no_memory: at most +0.000 EM (-0.46 to +0.46), p 1.00; "
        "of 2 agents 0 gained and 0 lost beyond chance.",
    )


def test_where_all_lose_by_memory_none_gained_most(tmp_path: Path) -> None:
    played = {"random": [wrong()] * 6, "a": [wrong()] * 6, "no_memory": [right()] * 6}
    compared = written(tmp_path / "run", played, dict.fromkeys(("a", "no_memory"), SCRIPTED))
    best, _, gained = conclusions(compared)
    assert best.startswith("Best EM: no_memory, 1.000")
    assert gained == (
        "No gain seen over no_memory: at most -1.000 EM (-1.00 to -0.08), p 0.031; "
        "of 1 agent 0 gained and 1 lost beyond chance."
    )


def test_three_decided_pairs_are_not_beyond_chance(tmp_path: Path) -> None:
    """Their interval leaves 0 out, but 2 * 2 ** -3 = 0.25: it was said that one agent gained."""
    played = {
        "random": [wrong()] * 20,
        "no_memory": [wrong()] * 20,
        "mempo": [right()] * 3 + [wrong()] * 17,
    }
    compared = written(tmp_path / "run", played, dict.fromkeys(("no_memory", "mempo"), SCRIPTED))
    (pair,) = compared.gains
    assert pair.metrics["em"].low > 0 and pair.p["em"] == 0.25  # type: ignore[operator]
    best, _, gained = conclusions(compared)
    assert best.endswith("not told apart from it: no_memory.")
    assert gained.endswith("p 0.25; of 1 agent 0 gained and 0 lost beyond chance.")
    assert cells(compared, "Memory-isolated gain")[2] == ["0.25"]
    assert cells(compared, "Paired differences")[2][-1] == "0.25"


def test_halves_that_failed_leave_no_pair_of_the_same_questions(tmp_path: Path) -> None:
    """The other one was said to be of other questions."""
    played = {
        "random": [wrong()] * 6,
        "a1": [right()] * 3 + [refused()] * 3,
        "a2": [refused()] * 3 + [right()] * 3,
    }
    best, cheapest = conclusions(written(tmp_path / "run", played))
    for told in (best, cheapest):
        assert told.endswith("; no pair of episodes left to compare: a2.")


@pytest.mark.parametrize("hard, easy", [("hard", "easy"), ("hard/run", "easy/run")])
def test_sets_of_questions_have_sentences_of_their_own(hard: str, easy: str, tmp_path: Path) -> None:
    """The cheapest of all was of other questions than the rest; folders may be called the same."""
    for name, agent, episodes in ((hard, "a", [right(), wrong()]), (easy, "b", [right()] * 2)):
        arms = (
            Arm("random", "r-1", {}, "e0"),
            Arm("no_memory", "n-1", {}, "e0", SCRIPTED, SCRIPTED),
            Arm(agent, "a-1", {}, "e0", SCRIPTED, SCRIPTED),
        )
        played = {"random": [wrong()] * 2, "no_memory": [wrong()] * 2, agent: episodes}
        write_run(tmp_path / name, played, arms=arms, data=name)
    told = conclusions(compare([tmp_path / hard, tmp_path / easy], allow_different=True))
    named = [line.partition(",")[0].replace(f"{tmp_path}/", "").replace("/run", "") for line in told]
    assert named == [
        "hard: Best EM: a",
        "hard: Fewest tokens for a right answer: a",
        "hard: Most gained over no_memory (hard): a",
        "easy: Best EM: b",
        "easy: Fewest tokens for a right answer: b",
        "easy: Most gained over no_memory (easy): b",
    ]


def test_dear_answers_are_told_from_cheap_ones_only_beyond_chance(tmp_path: Path) -> None:
    """Who is cheapest was said without what it may be. Of eight pairs all cost less: 2 * 2 ** -8 = 0.0078."""

    def at(total: int) -> Episode:
        return replace(right(), tokens=replace(right().tokens, total=total))

    played = {
        "random": [wrong()] * 8,
        "cheap": [at(100)] * 8,
        "chance": [at(100)] * 3 + [at(120)] * 5,
        "dear": [at(110)] * 8,
    }
    compared = written(tmp_path / "run", played)
    assert conclusions(compared)[1] == (
        "Fewest tokens for a right answer: cheap, 100 (100–100), in words; not told apart from it: chance."
    )
    p = {pair.b: pair.p_cost for pair in compared.pairs if pair.a == "cheap"}
    assert p == {"chance": 2 * 2**-5, "dear": 2 * 2**-8}


def test_nothing_is_concluded_from_what_failed(tmp_path: Path) -> None:
    compared = written(tmp_path / "run", {"random": [wrong()] * 2, "a": [refused()] * 2})
    assert conclusions(compared) == ("No agent played well enough to be compared.",)


def test_what_is_kept_is_explained_and_what_it_comes_to_is_on_the_page(
    tmp_path: Path, browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = written(tmp_path / "run", {"random": [wrong()] * 2, "a": [right()] * 2})
    assert main(["bench", "report", str(tmp_path / "run")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    explained = "evidence kept: in the last prompt; what is no longer needed may be dropped rightly"
    assert explained in told
    assert all(line in told for line in conclusions(compared))
    assert told.index(conclusions(compared)[0]) < told.index("Accuracy")
    with page_at(browser, (tmp_path / "run" / "report.html").as_uri()) as page:
        assert page.locator(".short li").all_inner_texts() == list(conclusions(compared))
        assert explained in page.locator("main").inner_text()


@pytest.mark.parametrize("key", ["em", "peak"])
def test_no_zero_has_a_minus(key: str, tmp_path: Path) -> None:
    compared = written(tmp_path / "run", {"random": [wrong()] * 2, "a": [wrong()] * 2})
    zero, almost = Interval(0.0, 0.0, 0.0), Interval(-1e-9, -1e-9, -1e-9)
    pairs = tuple(
        replace(pair, metrics=dict.fromkeys(pair.metrics, zero) | {key: almost}) for pair in compared.pairs
    )
    assert "-0" not in str(cells(replace(compared, pairs=pairs), "Paired differences"))


def test_equal_gains_are_named_and_not_said_to_be_of_memory(tmp_path: Path) -> None:
    """Six had exactly the gain of the one that was named, two of them without a memory."""
    played = {name: [right()] * 6 for name in ("mempo", "react", "window")}
    played |= {name: [wrong()] * 6 for name in ("random", "worse", "no_memory")}
    models = dict.fromkeys(("mempo", "react", "window", "worse", "no_memory"), SCRIPTED)
    (*_, gained) = conclusions(written(tmp_path / "run", played, models))
    assert gained.startswith("Most gained over no_memory: mempo, +1.000 EM (")
    assert gained.endswith(
        ", p 0.031; not told apart from it: react, window; of 4 agents 3 gained and 0 lost beyond chance."
    )


def test_gains_over_two_models_are_not_held_against_each_other(tmp_path: Path) -> None:
    """A pair of one is no pair of the other: each `no_memory` has a sentence."""
    for name, good in (("one", 6), ("two", 4)):
        arms = tuple(Arm(agent, f"{agent}-1", {}, "e0", name, name) for agent in ("no_memory", f"m-{name}"))
        played = {"no_memory": [wrong()] * 6, f"m-{name}": [right()] * good + [wrong()] * (6 - good)}
        write_run(tmp_path / name, played, arms=arms)
    told = conclusions(compare([tmp_path / "one", tmp_path / "two"], "no_memory"))
    gained = [line.partition(" EM")[0] for line in told if line.startswith("Most gained")]
    assert gained == [
        "Most gained over no_memory (one): m-one, +1.000",
        "Most gained over no_memory (two): m-two, +0.667",
    ]


@pytest.mark.parametrize("names", [("one", "two"), ("one/run", "two/run")])
def test_each_line_at_the_head_says_of_which_run_it_is(
    names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], browser: Browser
) -> None:
    runs = [tmp_path / name for name in names]
    for run, top_k in zip(runs, (3, 5), strict=True):
        settings = {"split": "dev", "objectives": 1, "top_k": top_k, "tokenizer": "words"}
        write_run(run, {"random": [wrong()], "good": [right()]}, settings=settings)
    assert main(["bench", "report", *map(str, runs), "--allow-different"]) == 0
    told = "".join(capsys.readouterr().out.split())
    called = [run.name if run.name != "run" else str(run) for run in runs]
    with page_at(browser, (runs[0] / "report.html").as_uri()) as page:
        heads = page.locator("header .lead").all_inner_texts()
    assert [head.partition(": ")[0] for head in heads] == called
    assert ["top 3" in head for head in heads] == [True, False]
    assert all(f"{name}:2agents" in told for name in called)
    assert main(["bench", "report", str(runs[0])]) == 0
    assert capsys.readouterr().out.startswith("2 agents"), "one run needs no name"


def test_where_interval_and_p_part_it_is_said_which_decides(tmp_path: Path, browser: Browser) -> None:
    played = {"random": [wrong()] * 6, "no_memory": [wrong()] * 6, "mempo": [right()] * 3 + [wrong()] * 3}
    compared = written(tmp_path / "run", played, dict.fromkeys(("no_memory", "mempo"), SCRIPTED))
    noted = [str(made.caption) for made in tables(compared) if "its\np" in [c.header for c in made.columns]]
    said = "p decides what is beyond chance, not whether the interval leaves 0 out"
    assert len(noted) == 2 and all(said in note for note in noted)
    page_file = tmp_path / "report.html"
    page_file.write_text(report_page(compared, tmp_path))
    with page_at(browser, page_file.as_uri()) as page:
        for title in ("What the memory is worth", "Paired differences"):
            assert said in page.locator("section", has_text=title).last.inner_text()


def several(folder: Path, agents: int) -> str:
    """The page of a run with two questions in an episode, the address of it."""
    compared = written(
        folder / "run", {f"a{i}": [multi()] * 24 for i in range(agents)} | {"random": [multi()] * 24}
    )
    page_file = folder / "report.html"
    page_file.write_text(report_page(compared, folder))
    return page_file.as_uri()


@pytest.mark.parametrize("agents", [1, 9])
def test_what_a_curve_tells_is_what_it_shows(agents: int, tmp_path: Path, browser: Browser) -> None:
    """Places of questions were rounds, intervals percentiles, and 24 episodes one."""
    with page_at(browser, several(tmp_path, agents)) as page:
        places = page.locator("section", has_text="Several questions in an episode").last
        first, second = places.locator(".series").first.locator("title").all_text_contents()
        assert first == "a0, question 1: EM 0.000, 95 % interval 0.000 to 0.138, 24 episodes"
        assert second == "a0, question 2: EM 1.000, 95 % interval 0.862 to 1.000, 24 episodes"
        prompts = page.locator("section", has_text="Prompt tokens by round").last
        (told, *_) = prompts.locator("title").all_text_contents()
        assert told.startswith("a0, round 1: ") and " prompt tokens, 10 to 90 % " in told
        assert told.endswith(", 24 episodes")
        how = "With so many agents a band is drawn where one points at its curve."
        for box in (places, prompts):
            assert (how in box.inner_text()) is (agents > 3)


def test_many_bands_are_shown_one_at_a_time(tmp_path: Path, browser: Browser) -> None:
    """Bands of many agents at 1.0 were one grey block."""

    def opacities(count: int) -> set[Any]:
        compared = written(
            tmp_path / f"{count}", {f"a{i}": [right()] * 2 for i in range(count)} | {"random": [wrong()] * 2}
        )
        page_file = tmp_path / f"{count}.html"
        page_file.write_text(report_page(compared, tmp_path))
        with page_at(browser, page_file.as_uri()) as page:
            bands = page.locator(".band").evaluate_all("all => all.map(one => getComputedStyle(one).opacity)")
            assert len(bands) == count + 1
            return set(bands)

    assert opacities(2) == {"0.12"}
    assert opacities(9) == {"0"}


def test_what_has_no_gold_has_a_row_all_the_same(tmp_path: Path) -> None:
    compared = written(tmp_path / "run", {"random": [without_gold(), wrong()]})
    assert cells(compared, "Accuracy")[1] == ["2\n1 failed"]
