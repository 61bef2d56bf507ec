"""When does credit on memory tokens beat the same signal spread over the trajectory, and when does none pay?

One thing is changed at a time, from four questions of one hop with an all-or-nothing reward.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch

from mempo_benchmarks.toy.sweep import (
    OVER_RUNS,
    Arm,
    Learned,
    area_difference,
    by_group,
    learned,
    run_all,
    told,
)
from mempo_env.files import atomic_file
from mempo_trainers.config import Config, Option
from mempo_trainers.toy import Toy

CREDITS = ("grpo", "mempo", "spread", "mempo_gain")
STEPS = 120
SEEDS = 5
ROLLOUTS = 64
"""Rollouts a step, whatever the size of a group."""

TASKS: dict[str, Toy] = {
    "base": Toy(),
    "2 questions": Toy(objectives=2),
    "1 question, 2 hops": Toy(objectives=1, hops=2),
    "1 question, 3 hops": Toy(objectives=1, hops=3),
    "2 questions, 2 hops": Toy(objectives=2, hops=2),
    "memory=4": Toy(capacity=4),
    "memory=12": Toy(capacity=12),
    "noise=0.2": Toy(retriever_noise=0.2),
    "noise=0.4": Toy(retriever_noise=0.4),
    "em_mean": Toy(reward="em_mean"),
    "em_mean, 2 questions, 2 hops": Toy(objectives=2, hops=2, reward="em_mean"),
}
GROUPS = {"group=4": 4, "group=16": 16, "group=32": 32}
HEAD = ("task", *CREDITS, "memory tokens - spread")


def arms() -> list[Arm]:
    """Every credit on every task, in groups of every size, and with the other mean over objectives."""
    base = Config(steps=STEPS)
    made = [
        Arm(credit, name, task, msgspec.structs.replace(base, credit=credit), SEEDS)
        for name, task in TASKS.items()
        for credit in CREDITS
    ]
    for name, size in GROUPS.items():
        config = msgspec.structs.replace(base, rollouts=size, questions=ROLLOUTS // size)
        made += [Arm(c, name, Toy(), msgspec.structs.replace(config, credit=c), SEEDS) for c in CREDITS]
    for name, task in (("geometric", Toy()), ("geometric, 2 questions, 2 hops", Toy(objectives=2, hops=2))):
        for credit in CREDITS:
            options: dict[str, Option] = {"objectives": "geometric"} if credit != "grpo" else {}
            config = msgspec.structs.replace(base, credit=credit, credit_options=options)
            made.append(Arm(credit, name, task, config, SEEDS))
    return made


def draw_map(out: Path, jobs: int) -> str:
    """Run the map, write map.json and map.png, and return the table as Markdown."""
    from mempo_benchmarks.toy.plots import dots

    torch.set_num_threads(1)
    everything = arms()
    run_all(everything, out, jobs)
    groups = by_group([learned(arm, out) for arm in everything])
    with atomic_file(out / "map.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(groups)))
    dots(groups, out / "map.png")
    text = _table(groups, out)
    with atomic_file(out / "map.md") as file:
        file.write(text.encode())
    return text


def _table(groups: dict[str, list[Learned]], out: Path) -> str:
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for name, results in groups.items():
        credit = {result.arm.name: result for result in results}
        cells = [f"{told(credit[c].success)}" for c in CREDITS]
        difference = told(area_difference(credit["mempo"].arm, credit["spread"].arm, out))
        lines.append(f"| {name} | {' | '.join(cells)} | {difference} |")
    return "\n".join([*lines, "", OVER_RUNS, ""])
