"""Numbers as text, in tables and sentences; halves go away from zero, as on pages (`Intl.NumberFormat`)."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from mempo_benchmarks.costs import Cost
from mempo_benchmarks.metrics import Metric
from mempo_benchmarks.stats import Interval

_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def figure(value: float, digits: int = 0, sign: str = "") -> str:
    """A number with so many digits behind the point and commas at thousands; no zero has a minus.

    What is rounded is the shortest decimal that is this float: 0.3125 is 0.313, and 1.005 is 1.01.

    Args:
        value: Finite.
        digits: Behind the point.
        sign: "+": positive ones have a sign, too.
    """
    return f"{_rounded(Decimal(repr(float(value))), -digits):{sign}z,f}"


def significant(value: float, digits: int) -> float:
    """A number to so many significant digits, halves as in `figure`."""
    exact = Decimal(repr(float(value)))
    return float(_rounded(exact, exact.adjusted() + 1 - digits))


def percent(share: float, digits: int = 0) -> str:
    """A share as percent: 0.125 is 13%."""
    return f"{hundredths(share, digits)}%"


def hundredths(share: float, digits: int = 0) -> str:
    """A share in hundredths: 0.285 is 29, though 100 times the float is below 28.5."""
    return f"{_rounded(Decimal(repr(float(share))).scaleb(2), -digits):z,f}"


def cell(metric: Metric | Cost, interval: Interval | None) -> str:
    """The value, and its bounds in the line below."""
    if interval is None:
        return "–"
    value = _number(metric, interval.value)
    if interval.low is None or interval.high is None:
        return value
    return f"{value}\n{_bound(metric, interval.low)}–{_bound(metric, interval.high)}"


def difference(metric: Metric, interval: Interval | None) -> str:
    """The value with its sign, and its bounds below each other: several beside each other stay narrow."""
    if interval is None:
        return "–"
    value = (_number if abs(interval.value) < 1e6 else _bound)(metric, interval.value, "+")
    if interval.low is None or interval.high is None:
        return value
    return f"{value}\n{_bound(metric, interval.low, '+')} to\n{_bound(metric, interval.high, '+')}"


def _number(metric: Metric | Cost, value: float, sign: str = "") -> str:
    if isinstance(metric, Cost) and metric.money:
        return _money(value, 3)
    if isinstance(metric, Metric) and metric.share:
        return figure(value, 3, sign)
    return figure(value, 0 if abs(value) >= 100 else 1, sign)


def _bound(metric: Metric | Cost, value: float, sign: str = "") -> str:
    """A bound: two digits of a share or of dollars, three of a large number."""
    if isinstance(metric, Cost) and metric.money:
        return _money(value, 2)
    if isinstance(metric, Metric) and metric.share:
        return figure(value, 2, sign)
    if abs(value) < 1e4:
        return _number(metric, value, sign)
    value = significant(value, 3)
    size, unit = next(one for one in _UNITS if abs(value) >= one[0])
    return f"{value / size:{sign}g}{unit}"


def _money(value: float, digits: int) -> str:
    """Dollars: cents from one dollar on, else as many places as it takes."""
    if value >= 1:
        return f"${figure(value, 2)}"
    return f"${np.format_float_positional(significant(value, digits), trim='-')}"


def _rounded(exact: Decimal, place: int) -> Decimal:
    """Rounded to a power of ten."""
    return exact.quantize(Decimal(1).scaleb(place), ROUND_HALF_UP)
