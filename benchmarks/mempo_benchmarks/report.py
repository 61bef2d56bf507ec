"""A comparison as tables for the terminal and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from mempo_benchmarks.chance import BEYOND, p_told
from mempo_benchmarks.conclusion import conclusions
from mempo_benchmarks.costs import COSTS, Cost, Spent
from mempo_benchmarks.figures import cell, difference, figure, hundredths, percent
from mempo_benchmarks.journal import told
from mempo_benchmarks.metrics import KEPT_NOTE, METRICS, Metric
from mempo_benchmarks.pairs import Pair
from mempo_benchmarks.results import WITHOUT, Plan, address
from mempo_benchmarks.stats import RESAMPLES, Interval
from mempo_benchmarks.summary import RIGHT, ArmSummary, Comparison, Several
from mempo_env.files import atomic_file
from mempo_env.types import Failure
from mempo_env.viewer import FAILURES, document, resource

if TYPE_CHECKING:
    from rich.table import Table

REPORT, EPISODES = "report.html", "episodes.html"
"""Default names of the two pages in the folder of a run."""

METHOD = (
    "Shares of yes and no have Wilson's interval, other means the BCa bootstrap interval over episodes "
    f"({RESAMPLES:,} resamples). Differences are paired by question: beyond chance where p of the exact "
    f"sign-flip test (McNemar's for yes and no) is below {BEYOND}, not corrected for their number. "
    "A failed episode counts as wrong; if that was no fault of the agent it has no part in differences. "
    "Tokens are the model's own where its calls tell of them, else those of the tokenizer below."
)

DECIDES = (
    "p decides what is beyond chance, not whether the interval leaves 0 out: the test is exact, the interval "
    "an estimate that is too narrow for few pairs that differ"
)

GAIN = "Memory-isolated gain: paired differences to no_memory with the same model"

_ACCURACY = ("em", "f1", "em_relaxed", "evidence_recall", "evidence_kept")
_COST = ("rounds", "invalid_rounds", "peak", "total", "dependency")
_SHOWN = ("differing", "notes", "arms", "pairs", "gains", "front", "baseline")
_DIFFERENCES = ("em", "f1", "peak", "total")


# --- Words -------------------------------------------------------------------------------------------------


def lead(plan: Plan) -> str:
    """A run in a line: episodes, data and retriever."""
    settings = plan.settings
    count = len(plan.questions)
    each = "one question" if settings["objectives"] == 1 else f"{settings['objectives']} questions"
    return (
        f"{len(plan.arms)} agents · {count:,} episode{'s' * (count != 1)} of {each} · "
        f"{Path(plan.dataset).name}, {settings['split']} · {address(plan.retriever)}, top {settings['top_k']}"
    )


def leads(comparison: Comparison) -> list[tuple[str, str]]:
    """Of each run `lead` and `behind`; of several, with what the run is called."""
    several = comparison.names if len(comparison.runs) > 1 else {}
    starts = {run: f"{name}: " for run, name in several.items()}
    return [(starts.get(run, "") + lead(plan), behind(plan)) for run, plan in comparison.runs]


def behind(plan: Plan) -> str:
    """The model of each agent that asks one."""
    models: dict[str, list[str]] = {}
    for arm in plan.arms:
        if arm.model:
            models.setdefault(arm.model, []).append(arm.agent)
    return "; ".join(f"model {model}: {', '.join(agents)}" for model, agents in models.items())


def tokens_in(comparison: Comparison) -> str:
    """What tokens are, if that is the same for all."""
    return f", tokens in {comparison.units[0]}" if len(comparison.units) == 1 else ""


def _facts(run: str, plan: Plan) -> dict[str, str]:
    """What one must know to run it again."""
    marks = {name: getattr(plan, name) for name in ("data", "index", "scorer", "code")}
    arms = {
        f"agent {arm.agent}": " ".join([arm.fingerprint, *(f"{k}={v!r}" for k, v in arm.env_kwargs.items())])
        for arm in plan.arms
    }
    facts = {
        "folder": run,
        "dataset": plan.dataset,
        "corpus": plan.corpus or "the data set's own",
        "retriever": address(plan.retriever),
        "model": plan.model,
        "sampling": plan.sampled,
        "seed": plan.seed,
        "mempo": plan.version,
        **{f"fingerprint of {name}": mark for name, mark in marks.items()},
        **arms,
        **plan.settings,
    }
    return {name: str(value) for name, value in facts.items()}


# --- The terminal ------------------------------------------------------------------------------------------


def tables(comparison: Comparison, whole: bool = True) -> list[Table]:
    """Accuracy, cost and gain as `rich` tables; all that a page shows, or what one reads first.

    Args:
        comparison: All its numbers.
        whole: With what was spent, growth of the prompt, outcomes and differences to the baseline.
    """
    by_key = {metric.key: metric for metric in METRICS}
    accuracy, cost, different = ([by_key[key] for key in keys] for keys in (_ACCURACY, _COST, _DIFFERENCES))
    arms, baseline = comparison.arms, comparison.baseline

    def paired(title: str, named: Callable[[Pair], str], pairs: Sequence[Pair | None]) -> list[Table]:
        em, *others = (metric.label for metric in different)
        rows = []
        for pair in filter(None, pairs):
            first, *rest = (difference(m, pair.metrics.get(m.key)) for m in different)
            rows.append([named(pair) + _left_out(pair), first, p_told(pair.p["em"]), *rest])
        return [table(title, ["agent", em, "its p", *others], rows, DECIDES)] if rows else []

    first = [
        table(
            "Accuracy",
            ["agent", "episodes", *(metric.label for metric in accuracy)],
            [[_name(arm), _episodes(arm), *(cell(m, arm.metrics[m.key]) for m in accuracy)] for arm in arms],
            KEPT_NOTE,
        ),
        table(
            f"Cost of an episode{tokens_in(comparison)}",
            ["agent", *(metric.label for metric in cost)],
            [[_name(arm), *(cell(m, arm.metrics[m.key]) for m in cost)] for arm in arms],
        ),
        *paired(GAIN, lambda p: p.a if p.b == WITHOUT else f"{p.a}\nto {p.b}", comparison.gains),
    ]
    if not whole:
        return first
    names = {arm.label: _name(arm) for arm in arms}
    to_baseline = [comparison.difference(arm.label, baseline) for arm in arms]
    return [
        *first,
        *_several(arms),
        *_spent(arms),
        _growth(arms),
        _outcomes(arms, by_key["failed"]),
        *paired(f"Paired differences to {baseline}", lambda pair: names[pair.a], to_baseline),
    ]


def _several(arms: Sequence[ArmSummary]) -> list[Table]:
    """Sums over the questions of an episode, and each of them by its place."""
    known = [(arm, arm.several) for arm in arms if arm.several is not None]
    if not known:
        return []
    n = len(known[0][1].positions)
    summed = {metric.key: metric for metric in METRICS if metric.key in ("em", "f1")}

    def in_a_line(arm: ArmSummary) -> str:
        return f"{arm.label} ({arm.role})" if arm.role else arm.label

    def shares(title: str, heads: Iterable[int], of: Callable[[Several], Sequence[float]]) -> Table:
        rows = [[in_a_line(arm), *(hundredths(share) for share in of(several))] for arm, several in known]
        made = table(title, ["agent", *map(str, heads)], rows)
        made.padding, made.show_edge = 0, False  # sixteen times 100 beside the ceiling take 80 columns
        return made

    return [
        table(
            "Sums over the questions of an episode",
            ["agent", "EM sum", "F1 sum"],
            [
                [_name(arm), cell(summed["em"], several.em), cell(summed["f1"], several.f1)]
                for arm, several in known
            ],
        ),
        shares(
            "EM of the question in each place, %",
            range(1, n + 1),
            lambda several: [place.value for place in several.positions],
        ),
        shares(
            "Episodes by how many of their questions got an answer, %",
            range(n + 1),
            lambda several: several.answered,
        ),
    ]


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    """A table for the terminal: numbers on the right, whole; on the left names, folded; a note below it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=f"{note}\n" if note else None,
        caption_justify="left",
    )
    for i, head in enumerate(heads):
        name = head.replace(" ", "\n")
        made.add_column(name, justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def _spent(arms: Sequence[ArmSummary]) -> list[Table]:
    """What was spent for an episode, and for a right answer."""
    costs = _known(arms)

    def spent(title: str, which: Callable[[Spent], Interval | None]) -> Table:
        rows = [
            [_name(arm), *(cell(c, which(arm.spent[c.key]) if c.key in arm.spent else None) for c in costs)]
            for arm in arms
        ]
        return table(title, ["agent", *(cost.label for cost in costs)], rows)

    if not costs:
        return []
    return [
        spent("Spent for an episode", lambda spent: spent.episode),
        spent("Spent for a right answer: sums over all episodes", lambda spent: spent.right),
    ]


def _known(arms: Sequence[ArmSummary]) -> list[Cost]:
    """The costs that any agent has: there are no dollars without prices."""
    return [cost for cost in COSTS if any(cost.key in arm.spent for arm in arms)]


def _growth(arms: Sequence[ArmSummary]) -> Table:
    """How the prompt grows with the rounds: 1.0 is one that stays as it was in round 2."""
    rows = []
    for arm in arms:
        means = [point.mean for point in arm.steady]
        if means:
            span = figure(max(means) / min(means), 2) if min(means) else "–"
            rows.append([_name(arm), figure(means[0]), figure(means[-1]), str(arm.steady[-1].round), span])
    return table(
        "Prompt tokens by round",
        ["agent", "in round 2", "in the last", "which is", "greatest / least"],
        rows,
        "all calls of a round together; means where half of the episodes came so far",
    )


def _outcomes(arms: Sequence[ArmSummary], failed: Metric) -> Table:
    shown = [reason for reason in (RIGHT, *Failure) if any(reason in arm.outcomes for arm in arms)]
    return table(
        "Failed episodes; outcomes of the questions: right, or why not",
        ["agent", "failed", "masked", *(reason.replace("_", " ") for reason in shown)],
        [
            [
                _name(arm),
                cell(failed, arm.metrics[failed.key]),
                str(arm.masked) if arm.done else "–",
                *(percent(arm.outcomes.get(reason, 0), 1) if arm.done else "–" for reason in shown),
            ]
            for arm in arms
        ],
    )


def _name(arm: ArmSummary) -> str:
    return f"{arm.label}\n{arm.role}" if arm.role else arm.label


def _episodes(arm: ArmSummary) -> str:
    done = f"{arm.done:,}" if arm.complete else f"{arm.done:,} of {arm.planned:,}\nincomplete"
    return f"{done}\n{arm.failed:,} failed" if arm.failed else done


def _left_out(pair: Pair) -> str:
    return f"\n{pair.left_out:,} of {pair.episodes + pair.left_out:,} left out" if pair.left_out else ""


# --- The page ----------------------------------------------------------------------------------------------


def report_page(comparison: Comparison, folder: Path) -> str:
    """The report as an HTML document that needs no network.

    Args:
        comparison: All its numbers.
        folder: Where the page will lie: it links to the episodes of runs that have a page below it.
    """
    runs = [_run(comparison.names[run], run, plan, folder) for run, plan in comparison.runs]
    words = {RIGHT: "Answered rightly."} | {str(reason): text for reason, text in FAILURES.items()}
    data = {
        "lead": [text for line, models in leads(comparison) for text in (line, models) if text],
        "conclusions": conclusions(comparison),
        "units": comparison.units,
        "kept": KEPT_NOTE,
        "decides": DECIDES,
        "method": METHOD,
        "runs": runs,
        "metrics": [
            {"key": m.key, "label": m.label, "about": m.about, "share": m.share, "tokens": m.tokens}
            for m in METRICS
        ],
        "costs": [
            {"key": c.key, "label": c.label, "about": c.about, "money": c.money}
            for c in _known(comparison.arms)
        ],
        "words": words,
        **{name: getattr(comparison, name) for name in _SHOWN},
    }
    names = dict.fromkeys(Path(plan.dataset).name for _, plan in comparison.runs)
    return page(f"Memory agents on {', '.join(names)}", "", _part("report.js"), data)


def page(title: str, style: str, script: str, data: Mapping[str, Any]) -> str:
    """A document in the look of the reports: a style and a script of its own after what all of them share."""
    return document(
        _part("report.html"),
        title=title,
        style=resource("base.css") + _part("report.css") + style,
        script=resource("parts.js") + _part("charts.js") + _part("boxes.js") + script,
        data=msgspec.json.encode(data),
    )


def write_page(path: Path, html: str) -> None:
    """Write a page whole or not at all; a ResultsError if it can't be written."""
    with told(path), atomic_file(path) as file:
        file.write(html.encode())


def _run(name: str, run: str, plan: Plan, folder: Path) -> dict[str, Any]:
    viewer = (Path(run) / EPISODES).resolve()
    near = viewer.is_file() and viewer.is_relative_to(folder.resolve())
    return {
        "name": name,
        "facts": _facts(run, plan),
        "command": f"mempo view {run}",
        "viewer": "./" + quote(viewer.relative_to(folder.resolve()).as_posix()) if near else None,
    }


@cache
def _part(name: str) -> str:
    return (files("mempo_benchmarks") / "page" / name).read_text(encoding="utf-8")
