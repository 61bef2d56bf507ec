"""Numbers as text: halves by hand, against the decimal module's rules, and the same on a page."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import page_at
from episodes import right, wrong
from mempo_benchmarks.chance import p_told
from mempo_benchmarks.conclusion import conclusions
from mempo_benchmarks.costs import COSTS
from mempo_benchmarks.figures import cell, figure, percent, significant
from mempo_benchmarks.metrics import METRICS
from mempo_benchmarks.report import report_page, tables
from mempo_benchmarks.stats import Interval
from mempo_benchmarks.summary import compare
from mempo_env.viewer import resource
from runs import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGE = files("mempo_benchmarks") / "page"
SCRIPT = resource("parts.js") + "".join(
    (PAGE / name).read_text(encoding="utf-8").partition("present(show")[0]
    for name in ("charts.js", "boxes.js", "report.js")
)
"""What the report's script defines, without its last line, which draws."""
HALVES = (0.3125, -0.3125, 0.0625, 1.005, 2.675, 0.125, 0.375, 12.5, 0.05, 0.25, 0.45, 99.95, 99.5, -0.00049)


@pytest.mark.parametrize(
    ("value", "digits", "sign", "told"),
    [
        (0.3125, 3, "", "0.313"),  # Python's own format has 0.312
        (-0.3125, 3, "+", "-0.313"),
        (1502.5, 0, "", "1,503"),  # and 1,502
        (1.005, 2, "", "1.01"),  # and 1.00, as the float is a little less
        (0.5, 0, "+", "+1"),
        (-1e-9, 3, "+", "+0.000"),
        (1e13, 1, "", "10,000,000,000,000.0"),
    ],
)
def test_halves_go_away_from_zero(value: float, digits: int, sign: str, told: str) -> None:
    assert figure(value, digits, sign) == told


def test_other_forms_round_alike() -> None:
    assert (percent(0.125), percent(0.0625, 1), percent(0.285), percent(0.2875, 1)) == (
        "13%",
        "6.3%",
        "29%",
        "28.8%",
    )
    assert (significant(12_450, 3), significant(0.0, 3), significant(999.96, 3)) == (12_500, 0, 1000)
    assert (p_told(0.125), p_told(0.0496), p_told(0.0002)) == ("0.13", "0.049", "<0.001")
    dollars, tokens = COSTS[3], METRICS[[metric.key for metric in METRICS].index("peak")]
    assert cell(dollars, Interval(0.03125, 0.0125, 1.125)) == "$0.0313\n$0.013–$1.13"
    assert cell(tokens, Interval(1502.5, 12_450.0, 0.25)) == "1,503\n12.5k–0.3"


@given(st.floats(-1e9, 1e9), st.integers(0, 4))
def test_it_is_the_nearest_decimal(value: float, digits: int) -> None:
    step = Decimal(10) ** -digits
    apart = Decimal(figure(value, digits).replace(",", "")) - Decimal(repr(value))
    assert abs(apart) <= step / 2
    assert abs(apart) < step / 2 or apart * Decimal(value) > 0, "a half goes away from zero"


def test_terminal_sentences_and_page_tell_the_same_numbers(tmp_path: Path, browser: Browser) -> None:
    """Of 16 questions 5 are right: 0.3125 was 0.312 in the terminal, and 0.313 on the page."""
    write_run(tmp_path / "run", {"good": [right()] * 5 + [wrong()] * 11, "random": [wrong()] * 16})
    compared = compare([tmp_path / "run"])
    (accuracy,) = (made for made in tables(compared) if made.title == "Accuracy")
    assert str(next(iter(accuracy.columns[2].cells))).startswith("0.313\n")
    assert conclusions(compared)[0].startswith("Best EM: good, 0.313 (")
    page_file = tmp_path / "report.html"
    page_file.write_text(report_page(compared, tmp_path))
    with page_at(browser, page_file.as_uri()) as page:
        assert "0.313" in page.locator("tr", has_text="good").first.inner_text()


def test_a_page_rounds_as_the_terminal_does(browser: Browser) -> None:
    page = browser.new_page()

    def shown(function: str, values: Sequence[float]) -> list[str]:
        body = f"{SCRIPT}; return values.map({function})"
        return list(page.evaluate("([body, values]) => new Function('values', body)(values)", [body, values]))

    for digits in range(4):
        assert shown(f"fixed({digits})", HALVES) == [figure(v, digits).replace("-", "−") for v in HALVES]
    many = [1502.5, 100.5, 12_450, 12_350, 999_950, 2_500_000]
    peak = next(metric for metric in METRICS if metric.key == "peak")
    both = "(v) => `${tokens(v)}\\n${short(v)}–${short(v)}`"
    assert shown(both, many) == [cell(peak, Interval(v, v, v)) for v in many]
    paid = [0.03125, 0.0125, 1.125, 0.9996, 0.00045, 2.5]
    both = "(v) => `${dollars(3)(v)}\\n${dollars(2)(v)}–${dollars(2)(v)}`"
    assert shown(both, paid) == [cell(COSTS[3], Interval(v, v, v)) for v in paid]
    chances = [0.125, 0.375, 0.0496, 0.0002, 0.625, 1.0]
    assert shown("chance", chances) == list(map(p_told, chances))
    page.close()
