"""The seed claim with its controls: what each credit learns from 15,360 all-or-nothing rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from mempo_benchmarks.stats import Interval, mean_interval
from mempo_benchmarks.toy.sweep import Arm, Learned, by_group, learned, run_all, table, told
from mempo_env.arrays.observe import answers
from mempo_env.files import atomic_file
from mempo_trainers.config import Config
from mempo_trainers.credit.data import ANSWER
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.toy import Toy, ToyDraw

SEEDS = {1: 10, 2: 10, 3: 10, 4: 10, 8: 5}
"""Runs for each number of objectives; those with eight take half a minute and more."""
MAIN = 4
AT_ONCE = 1_000
"""Episodes that an untrained policy plays at a time."""
CREDITS = ("mempo", "grpo", "spread", "mempo_gain")
HEAD = (
    *("objectives", "credit", "success after training", "seeds at 0.9", "rollouts to 0.9"),
    *("gold found", "objectives right", "s a run"),
)


def arms() -> list[Arm]:
    """`mempo`, outcome only and the same signal spread, for each number of objectives; more at four."""
    made = [
        Arm(credit, f"{n}-objectives", Toy(objectives=n), Config(credit=credit), seeds)
        for n, seeds in SEEDS.items()
        for credit in CREDITS
    ]
    main, seeds, dense = f"{MAIN}-objectives", SEEDS[MAIN], Toy(objectives=MAIN, reward="em_mean")
    made.append(Arm("placebo", main, Toy(objectives=MAIN), Config(credit="placebo"), seeds))
    made.append(Arm("grpo-em_mean", main, dense, Config(credit="grpo"), seeds))
    made.append(Arm("ppo-mempo", "ppo", Toy(objectives=MAIN), Config(algo="ppo", credit="mempo"), seeds))
    made.append(Arm("ppo-gae", "ppo", Toy(objectives=MAIN), Config(algo="ppo", credit="gae"), seeds))
    made.append(Arm("ppo-gae-em_mean", "ppo", dense, Config(algo="ppo", credit="gae"), seeds))
    return made


def untrained(objectives: int, episodes: int, seed: int = 0) -> Interval:
    """The probability that an untrained policy answers all objectives rightly, over its own episodes.

    What it keeps, searches for and when it answers is sampled; the chance of picking the right fact among
    those kept is exact, so that probabilities far below 1 / episodes can be told.
    """
    task = Toy(objectives=objectives)
    draw = ToyDraw(task.make_policy(Config(seed=seed)), task, 1, seed)
    parts = [_chances(draw(part, 0, AT_ONCE)) for part in range(episodes // AT_ONCE)]
    return mean_interval(np.concatenate(parts), resamples=1000)


def _chances(played: Rollouts) -> NDArray[np.float64]:
    """Of each rollout the chance that its answer is right, for a policy that picks among what it kept."""
    end = np.flatnonzero(np.diff(played.data.rollout_R, append=-1))
    views = played.memory_views[end]
    kept_NS = views.facts_RS >= 0
    right_NSn = answers(views.world, views.asked_Rn, views.facts_RS) & kept_NS[..., None]
    answered_N = (played.data.roles_BK[end] == ANSWER).any(1)
    share_Nn = right_NSn.sum(1) / np.maximum(kept_NS.sum(1), 1)[:, None]
    chance_N: NDArray[np.float64] = share_Nn.prod(1) * answered_N
    return chance_N


def claim(out: Path, jobs: int, episodes: int = 100_000) -> str:
    """Run all arms, write claim.json and claim.png, and return the tables as Markdown."""
    from mempo_benchmarks.toy.plots import curves

    torch.set_num_threads(1)
    everything = arms()
    run_all(everything, out, jobs)
    results = [learned(arm, out) for arm in everything]
    chances = {n: untrained(n, episodes) for n in SEEDS}
    with atomic_file(out / "claim.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(results)))
    curves(by_group(results), out / "claim.png")
    text = f"{_table(results)}\n\n{_told_chances(chances)}\n"
    with atomic_file(out / "claim.md") as file:
        file.write(text.encode())
    return text


def _table(results: Sequence[Learned]) -> str:
    return table(
        results,
        lambda r: (
            str(r.arm.task.objectives),
            f"`{r.arm.name}`",
            told(r.success),
            f"{r.reached} of {r.arm.seeds}",
            "never" if r.median is None else f"{r.median:,}",
            f"{r.recall:.2f}",
            f"{r.em:.2f}",
            f"{r.seconds:.0f}",
        ),
        HEAD,
    )


def _told_chances(chances: dict[int, Interval]) -> str:
    lines = ["| objectives | an untrained policy succeeds with probability |", "|---|---|"]
    for n, chance in chances.items():
        bounds = (
            "" if chance.low is None or chance.high is None else f" [{chance.low:.1e}, {chance.high:.1e}]"
        )
        lines.append(f"| {n} | {chance.value:.1e}{bounds} |")
    return "\n".join(lines)
