"""Strips for the terminal: signs and sizes that can be read without colours."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from mempo_benchmarks.credit.reading import number
from mempo_benchmarks.credit.strips import Strips, against, silent, sizes

if TYPE_CHECKING:
    from rich.text import Text

CELL = 3
"""Least columns of a decision: its sign, its size in tenths, and a mark."""

KEY = (
    "A column stands for the decisions from its number up to the next one, to which all say the same.",
    "+9 is the greatest advantage of a row, -5 half of that below 0, . is 0; ! marks a sign against",
    "{reference}'s. Roles: m memory, t think, c call, a answer.",
)


def render(strips: Strips, reference: str, width: int) -> Iterator[Text]:
    """The lines of all strips, rounds side by side as far as they fit into the width."""
    from rich.text import Text

    yield Text(strips.title, style="bold")
    for i, question in enumerate(strips.questions, 1):
        yield Text(f"  {i}. {question}")
    for name, value in strips.facts.items():
        yield Text(f"  {name}: {value}")
    yield from _words(strips)
    margin = max(map(len, strips.rows)) + 1
    marks = {name: flags.tolist() for name, flags in against(strips, reference).items()}
    for rounds in _blocks(strips, width - margin):
        yield Text()
        yield from _block(strips, rounds, margin, marks)
    yield Text()
    for line in KEY:
        yield Text(line.format(reference=reference), style="dim")
    if reason := silent(strips, reference):
        yield Text(reason, style="bold")
    else:
        yield from _summary(strips, reference, marks)


def _words(strips: Strips) -> Iterator[Text]:
    """Every decision in words, with its number."""
    from rich.text import Text

    numbered = enumerate(strips.decisions, 1)
    for number_, decisions in groupby(numbered, key=lambda pair: pair[1].round):
        yield Text(f"round {number_}", style="bold")
        for i, decision in decisions:
            yield Text.assemble((f"{i:>4} {decision.role[0]} ", "dim"), decision.text)


def _blocks(strips: Strips, width: int) -> Iterator[list[list[int]]]:
    """Columns by round, as many rounds at a time as fit; a round that is too long is cut."""
    block: list[list[int]] = []
    cell = _cell_width(strips)
    room = max(1, (width - 1) // cell)
    for _, group in groupby(_columns(strips), key=lambda k: strips.decisions[k].round):
        decisions = list(group)
        for start in range(0, len(decisions), room):
            part = decisions[start : start + room]
            if block and sum(cell * len(each) + 1 for each in [*block, part]) > width:
                yield block
                block = []
            block.append(part)
    if block:
        yield block


def _columns(strips: Strips) -> list[int]:
    """The decisions that differ from the one before in round, role, or what any estimator says."""

    def seen(k: int) -> tuple[object, ...]:
        decision = strips.decisions[k]
        return decision.round, decision.role, *(values[k] for values in strips.rows.values())

    return [k for k in range(len(strips.decisions)) if k == 0 or seen(k) != seen(k - 1)]


def _cell_width(strips: Strips) -> int:
    """Columns of a decision: room for its number and a space."""
    return max(CELL, len(str(len(strips.decisions))) + 1)


def _block(
    strips: Strips, rounds: list[list[int]], margin: int, marks: dict[str, list[bool]]
) -> Iterator[Text]:
    from rich.text import Text

    cell = _cell_width(strips)

    def line(name: str, cells: list[list[Text]], style: str = "") -> Text:
        row = Text(f"{name:<{margin}}", style=style)
        for cells_of_round in cells:
            row.append("|", style="dim").append_text(Text().join(cells_of_round))
        return row

    def head(ks: list[int]) -> list[Text]:
        wide, number_ = cell * len(ks), strips.decisions[ks[0]].round
        word = f"round {number_}"
        return [Text((word if len(word) <= wide else f"r{number_}").ljust(wide))]

    yield line("", [head(ks) for ks in rounds], "bold")
    yield line("", [[Text(f"{k + 1:>{cell - 1}} ") for k in ks] for ks in rounds], "dim")
    yield line(
        "", [[Text(f"{strips.decisions[k].role[0]:>{cell - 1}} ") for k in ks] for ks in rounds], "dim"
    )
    for name, values in strips.rows.items():
        size, marked = sizes(values), marks[name]
        yield line(name, [[_cell(size[k], marked[k], cell) for k in ks] for ks in rounds])


def _cell(size: float, marked: bool, width: int) -> Text:
    from rich.text import Text

    if size == 0:
        return Text(f"{'.':>{width - 1}} ", style="dim")
    tone = "green" if size > 0 else "red"
    weight = "bold " if abs(size) >= 0.5 else ""
    sign = "+" if size > 0 else "-"
    text = Text(" " * (width - CELL))
    text.append(f"{sign}{min(int(10 * abs(size)), 9)}", f"{weight}{tone}{' reverse' if marked else ''}")
    return text.append("!" if marked else " ", style="bold")


def _summary(strips: Strips, reference: str, marks: dict[str, list[bool]]) -> Iterator[Text]:
    """How often each estimator goes against the reference, and where most."""
    from rich.text import Text

    yield Text(f"Signs against {reference}", style="bold")
    for name, flags in marks.items():
        if name == reference:
            continue
        found = [k for k, flag in enumerate(flags) if flag]
        told = f"  {name}: {len(found)} of {len(flags)}"
        if found:
            k = max(found, key=lambda k: abs(strips.rows[name][k]))
            base, mine = strips.rows[reference][k], strips.rows[name][k]
            decision = strips.decisions[k]
            told += (
                f"; most in round {decision.round}: {decision.text} ({number(mine, 2, '+')}, "
                f"{reference} {number(base, 2, '+')})"
            )
        yield Text(told)
