"""A language model of 400,000 parameters learns to search and to remember, through the text protocol.

python -m mempo_benchmarks.tiny_lm --out runs/tiny_lm

`mempo train toy --policy tiny_lm` with MemPO's credit and with the outcome alone, from the same warm start
and for longer than it does by default, and a table of all three on the test split. The task is that of
`mempo_trainers.toy_text`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mempo_benchmarks.stats import Interval, mean_intervals, paired_differences
from mempo_env.files import atomic_file
from mempo_trainers.config import Config
from mempo_trainers.threads import one_thread
from mempo_trainers.toy_text import CONFIG, ToyText, restore, started, tested, train

TASK = ToyText()
CREDITS = ("mempo", "grpo")
LEARN = msgspec.structs.replace(CONFIG, steps=100)


def experiment(out: Path, seed: int, task: ToyText = TASK, learn: Config = LEARN) -> str:
    """Both runs and their tests; a table in Markdown, also written to the folder."""
    scores: dict[str, Mapping[str, Sequence[float]]] = {}
    for credit in CREDITS:
        run = out / f"{credit}-{seed}"
        config = msgspec.structs.replace(learn, credit=credit, seed=seed)
        train(task, config, run)
        if not scores:
            scores["warm start"] = tested(task, started(task, config, run), seed=0)
        scores[credit] = tested(task, restore(run)[2], seed=0)
    report = table(scores, task.objectives * len(scores["warm start"]))
    with atomic_file(out / f"results-{seed}.md") as file:
        file.write(report.encode())
    return report


def table(scores: Mapping[str, Mapping[str, Sequence[float]]], questions: int) -> str:
    """A row for each policy: EM with its interval, and its paired difference to the warm start."""
    first = scores["warm start"]
    lines = [
        f"| policy | EM on {questions} questions | both right | EM over the warm start |",
        "|---|---|---|---|",
    ]
    for name, mine in scores.items():
        em, both = mean_intervals(list(mine.values()))
        gain = told(paired_differences(mine, first)[0]) if mine is not first else ""
        lines.append(f"| {name} | {told(em)} | {told(both)} | {gain} |")
    return "\n".join(lines) + "\n"


def told(interval: Interval) -> str:
    """Value and bounds in percent."""
    return f"{100 * interval.value:.1f} [{100 * (interval.low or 0):.1f}, {100 * (interval.high or 0):.1f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment, or go on with it."""
    parser = argparse.ArgumentParser(prog="python -m mempo_benchmarks.tiny_lm", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder; an unfinished one is gone on with")
    parser.add_argument("--seed", type=int, default=0, help="of GRPO")
    options = parser.parse_args(argv)
    with one_thread():
        sys.stdout.write(experiment(options.out, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
