"""A language model of 400,000 parameters learns to search and to remember, through the text protocol.

python -m mempo_benchmarks.tiny_lm --out runs/tiny_lm

It first imitates the scripted reader for a minute, then GRPO goes on, with MemPO's credit and with the
outcome alone. The task: two questions about places in one episode (the mayor of a town, the capital of a
region ...), one passage a search, and a context that shows the last step and the memory. So what the first
question's search has shown must be in the memory when both are answered. Names, and the words in them, are
new in the test split.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from mempo_agents.table import make_agent
from mempo_benchmarks.stats import Interval, mean_intervals, paired_differences
from mempo_env.files import atomic_file
from mempo_env.questions.world import WorldSpec, synthetic
from mempo_env.types import Question, Split
from mempo_trainers.config import Config
from mempo_trainers.grpo import grpo
from mempo_trainers.policies.tiny_lm import Shape, TinyLM, learn
from mempo_trainers.run import Run
from mempo_trainers.sft import SftConfig, sft, shown, tokenised
from mempo_trainers.text import drawing, play

WORLD = WorldSpec(articles=20_000, questions=200_000)
TASK: dict[str, Any] = {
    "objectives": 2,
    "top_k": 1,
    "max_rounds": 4,
    "system_prompt": "",
    "hint": False,
}
EXPERT = "mempo"
EPISODES = 4_000
"""Of the expert, and as many sets of objectives for GRPO to draw from."""

WIDTH, LAYERS, HEADS, MAX_NEW = 96, 2, 4, 64
WARM = SftConfig(steps=150)
CREDITS = ("mempo", "grpo")
LEARN = Config(steps=100, questions=16, rollouts=8, learning_rate=3e-4, checkpoint_every=10)


def environment(split: Split) -> dict[str, Any]:
    """Keyword arguments of the environment."""
    return {**TASK, "dataset": synthetic(WORLD), "split": split}


def askable(question: Question) -> bool:
    """Whether a question is about places alone, which have names of one word and short articles."""
    places = all(" " not in evidence.title for evidence in question.evidence)
    return question.kind == "bridge" and question.hops == 1 and places


def objectives(split: Split, episodes: int | None = None) -> list[str]:
    """Pairs of questions, joined by "+": so many drawn at random, or every question once (test)."""
    ids = [question.id for question in synthetic(WORLD).split(split) if askable(question)]
    chance = np.random.default_rng(0)
    if episodes is None:
        order = chance.permutation(len(ids))[: len(ids) // 2 * 2].reshape(-1, 2)
    else:
        order = np.array([chance.choice(len(ids), 2, replace=False) for _ in range(episodes)])
    return ["+".join(ids[i] for i in pair) for pair in order.tolist()]


def warm_start(out: Path) -> Path:
    """The folder of a policy that has imitated the expert; made once, refused if made with other settings."""
    made, sizes = out / "policy", (WIDTH, LAYERS, HEADS)
    settings = {"world": WORLD, "task": TASK, "episodes": EPISODES, "sizes": sizes, "sft": WARM}
    with Run(out, msgspec.to_builtins(settings)) as run:
        if not made.exists():
            pairs = shown(make_agent(EXPERT), objectives("train", EPISODES), environment("train"))
            tokenizer = learn([context + text for context, text in pairs])
            policy = TinyLM(
                tokenizer,
                Shape(len(tokenizer), *sizes),
                learning_rate=WARM.learning_rate,
                seed=WARM.seed,
                max_new=MAX_NEW,
            )
            sft(policy, tokenised(pairs, policy), WARM, run)
            policy.save(made)
    return made


def trained(warm: Path, out: Path, config: Config) -> TinyLM:
    """The policy after GRPO from a warm start."""
    policy = TinyLM.load(warm, learning_rate=config.learning_rate, max_new=MAX_NEW)
    pool = objectives("train", EPISODES)
    draw = drawing(policy, pool, environment("train"), config.rollouts, config.seed)
    settings = {"world": WORLD, "task": TASK, "warm": WARM, "config": config}
    with Run(out, msgspec.to_builtins(settings)) as run:
        grpo(policy, draw, config, run)
    return policy


def tested(policy: TinyLM, ids: Sequence[str]) -> dict[str, Sequence[float]]:
    """EM, and whether both were right, of each episode of the test split, as the policy samples them."""
    played = play(policy, ids, environment("test"), torch.Generator().manual_seed(0), seed=0)
    return {episode.question_id: (episode.score.em, episode.score.em_all) for episode in played}


def experiment(out: Path, seed: int) -> str:
    """Warm start, both runs and their tests; a table in Markdown, also written to the folder."""
    ids = objectives("test")
    warm = warm_start(out / "warm")
    scores = {"warm start": tested(TinyLM.load(warm, learning_rate=1.0, max_new=MAX_NEW), ids)}
    for credit in CREDITS:
        config = msgspec.structs.replace(LEARN, credit=credit, seed=seed)
        scores[credit] = tested(trained(warm, out / f"{credit}-{seed}", config), ids)
    report = table(scores, 2 * len(ids))
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
    torch.set_num_threads(2)
    sys.stdout.write(experiment(options.out, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
