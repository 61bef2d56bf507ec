"""The page of a report, in a browser: what it shows, that it fits, and where its links lead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from browser import DESKTOP, PHONE, contrasts, overflow, page_at
from episodes import aborted, hostile, right, without_gold, wrong
from mempo_benchmarks.report import report_page
from mempo_benchmarks.results import read_plan
from mempo_benchmarks.stats import Interval, mean_interval
from mempo_benchmarks.summary import compare
from mempo_env.cli import main
from mempo_env.types import StopReason
from runs import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

GOOD = [right(), right(), wrong(), right()]
FAULTY = [right(), aborted(), without_gold(), wrong()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four questions for three agents, and one agent that has one row of four."""
    played = {"random": [wrong()] * 4, "good": GOOD, "faulty": FAULTY, "slow": [right()]}
    write_run(tmp_path / "run", played)
    return tmp_path / "run"


EVIL = '</script><img src=x onerror="document.title=1"><b>&amp;{{style}}\u202e${x}'


def written(run: Path) -> str:
    page = run / "report.html"
    page.write_text(report_page(compare([run]), run), encoding="utf-8")
    return page.as_uri()


def until(page: Page, condition: str) -> None:
    """Wait for a condition; Playwright's own waiting evaluates text in the page, which its policy forbids."""
    for _ in range(500):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    raise AssertionError(condition)


def names(page: Page) -> list[str]:
    return page.locator("tbody").first.locator("th").evaluate_all("cells => cells.map(cell => cell.title)")


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_can_be_read(run: Path, browser: Browser, width: int, scheme: Any) -> None:
    with page_at(browser, written(run), width, scheme) as page:
        page.wait_for_selector(".plot svg")
        assert overflow(page) <= 0
        assert page.locator("h2").all_inner_texts() == [
            "In short",
            "Results",
            "At a glance",
            "What it cost",
            "Why questions failed",
            "Prompt tokens by round",
            "Accuracy against peak tokens",
            "Paired differences",
            "Every episode",
            "Reproduce",
        ]
        assert page.locator(".plot svg").count() == 8
        for svg in page.locator(".plot svg").all():
            assert svg.get_attribute("aria-label")
        assert min(contrasts(page, "td, th, small, p, h2, h3, dd, dt, li, select, thead button")) >= 4.5


def test_the_page_says_what_is_incomplete_and_shows_no_zero_for_it(tmp_path: Path, browser: Browser) -> None:
    write_run(tmp_path / "run", {"random": [wrong()] * 3, "slow": [right()], "never": []})
    with page_at(browser, written(tmp_path / "run")) as page:
        note = page.locator(".note").inner_text()
        assert "slow is incomplete: 1 of 3 episodes" in note
        assert "never is incomplete: 0 of 3 episodes" in note
        never = page.locator("tbody tr", has_text="never").first.locator("td").all_inner_texts()
        assert never[0].split() == ["incomplete", "0", "of", "3"]
        assert set(never[1:]) == {"–"}


def test_a_heading_sorts_both_ways_and_unknown_values_stay_last(tmp_path: Path, browser: Browser) -> None:
    write_run(
        tmp_path / "run",
        {"random": [wrong()] * 2, "good": [right()] * 2, "half": [right(), wrong()], "no": []},
    )
    with page_at(browser, written(tmp_path / "run")) as page:
        assert names(page) == ["random", "good", "half", "no"]
        em = page.locator("thead button", has_text="EM").first
        em.click()
        assert names(page) == ["good", "half", "random", "no"]
        assert page.locator("[aria-sort=descending]").count() == 1
        em.click()
        assert names(page) == ["random", "half", "good", "no"]
        assert page.locator("[aria-sort=ascending]").count() == 1
        page.locator("thead button", has_text="agent").first.press("Enter")
        assert names(page) == ["good", "half", "no", "random"]
        assert page.locator("[aria-sort]").count() == 1


def test_the_baseline_and_the_figure_of_the_differences_can_be_chosen(run: Path, browser: Browser) -> None:
    with page_at(browser, written(run)) as page:
        box = page.locator("section", has_text="Paired differences")
        titles = box.locator("g > title")
        assert titles.first.text_content() == f"good: {told(mean_interval([1.0, 1.0, 0.0, 1.0]))}, p 0.25"
        assert "p 0.25" in box.locator("svg text").all_text_contents()
        box.get_by_label("baseline").select_option("good")
        page.wait_for_selector("[aria-label='Differences in EM to good']")
        # The bounds swap and change sign with the direction.
        assert (
            titles.first.text_content() == f"random: {told(mean_interval([-1.0, -1.0, 0.0, -1.0]))}, p 0.25"
        )
        box.get_by_label("figure").select_option("rounds")
        page.wait_for_selector("[aria-label='Differences in rounds to good']")
        assert titles.count() == 2  # slow is incomplete
        assert (titles.first.text_content() or "").startswith("random: +1.5")  # 5 against (3 + 3 + 5 + 3) / 4


def test_a_figure_that_nobody_has_is_not_compared(tmp_path: Path, browser: Browser) -> None:
    ended = replace(without_gold(), stop_reason=StopReason.MAX_ROUNDS, mask_episode=False)
    write_run(tmp_path / "run", {"random": [ended] * 2, "good": [ended] * 2})
    with page_at(browser, written(tmp_path / "run")) as page:
        page.get_by_label("figure").select_option("evidence_kept")
        assert "Nothing to compare." in page.locator("section", has_text="Paired differences").inner_text()


def test_what_failed_is_told_beside_the_figures(tmp_path: Path, browser: Browser) -> None:
    """`without_gold` failed by no fault of the agent: pairs with it are left out; `broken` did not play."""
    failed = [without_gold(), right(), right()]
    broken = [without_gold()] * 2 + [right()]
    write_run(tmp_path / "run", {"random": [wrong()] * 3, "good": failed, "broken": broken})
    with page_at(browser, written(tmp_path / "run")) as page:
        row = page.locator("section", has=page.get_by_role("heading", name="Results")).locator("tr")
        assert "1 failed" in row.filter(has_text="good").first.inner_text()
        assert "broken did not play: 2 of 3 episodes failed" in page.locator(".note").inner_text()
        differences = page.locator("section", has_text="Paired differences").inner_text()
        assert "Left out, as an episode failed by no fault of the agent: good: 1 of 3." in differences


def told(interval: Interval) -> str:
    """As the page writes it: a sign before all but 0, a true minus."""
    value, low, high = (
        f"{number:+.3f}".replace("+0.000", "0.000").replace("-", "−")
        for number in (interval.value, interval.low or 0.0, interval.high or 0.0)
    )
    return f"{value}, 95 % interval {low} to {high}"


def test_hostile_text_is_inert(tmp_path: Path, browser: Browser) -> None:
    plan = write_run(
        tmp_path / "run",
        {"random": [hostile(EVIL)] * 2, EVIL: [hostile(EVIL)] * 2},
        dataset=f"/tmp/{EVIL}",
        retriever=EVIL,
    )
    assert read_plan(tmp_path / "run") == plan
    with page_at(browser, written(tmp_path / "run")) as page:
        page.wait_for_selector(".plot svg")
        assert page.locator("img, b").count() == 0
        assert page.title() != "1"
        for body in page.locator("tbody").all():
            assert "</script><img" in body.inner_text()
            assert "⟨U+202E⟩" in body.inner_text()


def test_plots_are_drawn_again_for_another_width(run: Path, browser: Browser) -> None:
    with page_at(browser, written(run)) as page:
        page.wait_for_selector(".plot svg")
        page.set_viewport_size({"width": PHONE, "height": 700})
        until(page, "[...document.querySelectorAll('.plot svg')].every(svg => svg.clientWidth < 340)")
        assert overflow(page) <= 0


def test_the_page_links_to_the_episodes_beside_it(run: Path, browser: Browser) -> None:
    assert main(["view", str(run)]) == 0
    with page_at(browser, written(run)) as page:
        page.wait_for_selector(".plot svg")
        page.get_by_role("link", name="the episodes of run").click()
        page.wait_for_url("**/episodes.html**")
        assert page.title() == "Episodes of run"


@pytest.mark.parametrize("name", ["a b<i>&'\"#%41?", "javascript:alert(1)", ".hidden", "größe"])
def test_the_link_leads_to_the_episodes_whatever_the_run_is_called(
    tmp_path: Path, browser: Browser, name: str
) -> None:
    run = tmp_path / name
    write_run(run, {"random": [right()]})
    assert main(["view", str(run)]) == 0
    report = tmp_path / "report.html"
    report.write_text(report_page(compare([run]), tmp_path), encoding="utf-8")
    with page_at(browser, report.as_uri()) as page:
        page.wait_for_selector(".plot svg")
        page.get_by_role("link", name="the episodes of").click()
        page.wait_for_url("**/episodes.html**")
        assert page.title() == f"Episodes of {run.name}"


def test_one_question_and_one_agent_make_a_page(tmp_path: Path, browser: Browser) -> None:
    write_run(tmp_path / "run", {"random": [aborted()]})
    with page_at(browser, written(tmp_path / "run"), PHONE) as page:
        page.wait_for_selector(".plot svg")
        assert overflow(page) <= 0
        assert "Paired differences" not in page.locator("h2").all_inner_texts()
