"""The seed claim with its controls: what each credit learns from 15,360 all-or-nothing rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from mempo_benchmarks.figures import figure
from mempo_benchmarks.stats import Interval, mean_interval
from mempo_benchmarks.toy.sweep import OVER_RUNS, Arm, Learned, by_group, learned, run_all, table, told
from mempo_env.files import atomic_file
from mempo_trainers.config import Config
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.policies.pointer import ArrayPolicy
from mempo_trainers.policies.scorers import Table
from mempo_trainers.toy import Toy, ToyDraw

SEEDS = {1: 10, 2: 10, 3: 10, 4: 10, 8: 10}
"""Runs for each number of objectives."""
MAIN = 4
AT_ONCE, LEAN = 500, 2.5
"""Episodes played at a time to find out what chance does, and how far their player leans to what is right."""
CREDITS = ("mempo", "grpo", "spread", "mempo_gain")
HEAD = (
    *("objectives", "credit", "success after training", "seeds at 0.9", "rollouts to 0.9"),
    *("gold found", "objectives right", "s a run"),
)


def arms() -> list[Arm]:
    """`mempo`, outcome only and the same signal spread, for each number of objectives; more at four."""
    made = [
        Arm(credit, _group(n), Toy(objectives=n), Config(credit=credit), seeds)
        for n, seeds in SEEDS.items()
        for credit in CREDITS
    ]
    main, seeds, dense = _group(MAIN), SEEDS[MAIN], Toy(objectives=MAIN, reward="em_mean")
    made.append(Arm("placebo", main, Toy(objectives=MAIN), Config(credit="placebo"), seeds))
    made.append(Arm("grpo-em_mean", main, dense, Config(credit="grpo"), seeds))
    made.append(Arm("ppo-mempo", "ppo", Toy(objectives=MAIN), Config(algo="ppo", credit="mempo"), seeds))
    made.append(Arm("ppo-gae", "ppo", Toy(objectives=MAIN), Config(algo="ppo", credit="gae"), seeds))
    made.append(Arm("ppo-gae-em_mean", "ppo", dense, Config(algo="ppo", credit="gae"), seeds))
    return made


def _group(objectives: int) -> str:
    return f"{objectives}-objectives"


def _title(group: str) -> str:
    """What a group is called above its panel."""
    titles = {_group(n): f"{n} objective{'s' if n > 1 else ''}" for n in SEEDS}
    return titles.get(group, f"{MAIN} objectives, PPO")


def untrained(objectives: int, episodes: int, seed: int = 0) -> Interval:
    """The probability that an untrained policy, which chooses at random, answers all objectives rightly.

    By importance sampling, for it may be far below 1 / episodes: a policy that leans towards what is right
    plays, and each success counts by how much likelier or less likely chance would have played the same.
    """
    task = Toy(policy="tabular", objectives=objectives)
    chance, leaning = (task.make_policy(Config(seed=seed)) for _ in range(2))
    _lean(leaning)
    draw = ToyDraw(leaning, task, 1, seed)
    parts = [_weights(chance, draw(part, 0, AT_ONCE)) for part in range(episodes // AT_ONCE)]
    return mean_interval(np.concatenate(parts), resamples=1000)


def _lean(policy: ArrayPolicy) -> None:
    """Raise the scores of facts that answer, and of questions without an answer in view."""
    heads = policy.heads
    for head, bit, size in ((heads.keep, 4, LEAN), (heads.candidate, 4, LEAN), (heads.entity, 2, -LEAN)):
        assert isinstance(head, Table)
        head.scores.data += size * (torch.arange(len(head.scores)) >> bit & 1)
    assert isinstance(heads.operation, Table)
    heads.operation.scores.data -= LEAN


def _weights(chance: ArrayPolicy, played: Rollouts) -> NDArray[np.float64]:
    """Of each rollout 0, or p / q of a success: its probability by chance over that under who played."""
    logp_BK = chance.written(played.contexts, played.responses.tokens_BK).logprobs_BK
    ratio_B = (logp_BK.astype(np.float64) - played.responses.logprobs_BK).sum(1)
    ratio_N = np.bincount(played.data.rollout_B, ratio_B, len(played.success_N))
    weights_N: NDArray[np.float64] = np.where(played.success_N, np.exp(ratio_N), 0.0)
    return weights_N


def claim(out: Path, jobs: int, episodes: int = 20_000) -> str:
    """Run all arms, write claim.json and claim.png, and return the tables as Markdown."""
    from mempo_benchmarks.toy.plots import curves

    torch.set_num_threads(1)
    everything = arms()
    run_all(everything, out, jobs)
    results = [learned(arm, out) for arm in everything]
    chances = {n: untrained(n, episodes) for n in SEEDS}
    with atomic_file(out / "claim.json") as file:
        file.write(msgspec.json.format(msgspec.json.encode(results)))
    panels = {_title(name): {r.arm.name: r for r in group} for name, group in by_group(results).items()}
    curves(panels, out / "claim.png")
    text = f"{_table(results)}\n\n{OVER_RUNS}\n\n{_told_chances(chances)}\n"
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
            figure(r.recall, 2),
            figure(r.em, 2),
            figure(r.seconds),
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
