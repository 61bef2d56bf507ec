"""What scoring memories costs beside the old log-probs: `python -m mempo_benchmarks.speed.scoring`.

A random Llama of SmolLM2-135M's size (30 layers, width 576, 9 heads, 3 of keys and values, 1,536 inside,
49,152 tokens) scores memories and histories of rollouts of one question: a prompt of 300 tokens, 250 a round
(60 of memory, 40 more that are written, 150 that are found), an answer of 8. The old log-probs are those of
the 100 written tokens of each round, after prompt and previous round.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from mempo_trainers.credit.data import Floats
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.naive import Naive
from mempo_trainers.scoring.prefix_tree import PrefixTree

PROMPT, MEMORY, WRITTEN, ROUND, ANSWER = 300, 60, 100, 250, 8
VOCABULARY = 49_152
COLUMNS = ("naive", "tree", "old", "tree : naive", "tree : old", "naive : old", "largest difference")


def network() -> Any:
    """The random Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8_192,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def work(rollouts: int, rounds: int, seed: int = 0) -> tuple[list[Asked], list[Asked]]:
    """Memories and histories to score, and what was written, of rollouts of one question."""
    chance = np.random.default_rng(seed)
    prompt, answer = (chance.integers(VOCABULARY, size=size) for size in (PROMPT, ANSWER))
    scored, written = [], []
    for _ in range(rollouts):
        rounds_RK = chance.integers(VOCABULARY, size=(rounds, ROUND))
        for number, round_K in enumerate(rounds_RK):
            before = rounds_RK[number - 1] if number else prompt[:0]
            written.append(Asked(np.concatenate([prompt, before]), round_K[:WRITTEN]))
            if number:
                scored.append(Asked(np.concatenate([prompt, rounds_RK[:number].ravel()]), answer))
                scored.append(Asked(np.concatenate([prompt, round_K[:MEMORY]]), answer))
    return scored, written


def timed(run: Callable[[], list[Floats]]) -> tuple[tuple[float, float], list[Floats]]:
    """Seconds by the clock and of the processor that a run takes, and what it tells."""
    began = time.perf_counter(), time.process_time()
    told = run()
    return (time.perf_counter() - began[0], time.process_time() - began[1]), told


def line(net: Any, rollouts: int, rounds: int, repetitions: int) -> str:
    """A row of the table: medians of the seconds, and of the ratios within each repetition."""
    scored, written = work(rollouts, rounds)
    naive, tree = Naive(net), PrefixTree(net)
    seconds = []
    for _ in range(repetitions):
        by_tree, told = timed(lambda: tree.logprobs(scored))
        old, _ = timed(lambda: naive.logprobs(written))
        by_text, same = timed(lambda: naive.logprobs(scored))
        far = float(np.abs(np.concatenate(told) - np.concatenate(same)).max())
        if far > 1e-4:
            raise AssertionError(f"log-probs differ by {far:.2g}")
        seconds.append((by_text, by_tree, old))
    taken = np.array(seconds)  # repetitions, systems, clock and processor
    shown = [f"{median(taken[:, i, 0]):.1f}" for i in range(3)]
    for one, other in ((1, 0), (1, 2), (0, 2)):
        ratios = np.median(taken[:, one] / taken[:, other], axis=0)
        shown.append(" / ".join(f"{ratio:.2f}" for ratio in ratios))
    return _cells(f"{rollouts}", f"{rounds}", *shown, f"{far:.0e}")


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(prog="python -m mempo_benchmarks.speed.scoring", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=16, help="of the one question")
    parser.add_argument("--rounds", type=int, nargs="+", default=[6], help="of each rollout: a row for each")
    parser.add_argument("--repetitions", type=int, default=1, help="of all three in turn")
    parser.add_argument("--threads", type=int, default=2, help="that torch uses")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    net = network()
    timed(lambda: Naive(net).logprobs(work(1, 2)[0]))
    sys.stdout.write("Seconds by the clock; ratios by the clock / of the processor.\n\n")
    sys.stdout.write(_cells("rollouts", "rounds", *COLUMNS) + _cells(*["---"] * (len(COLUMNS) + 2)))
    for rounds in options.rounds:
        sys.stdout.write(line(net, options.rollouts, rounds, options.repetitions))
        sys.stdout.flush()
    sys.stdout.write(f"\nLoad {os.getloadavg()[0]:.1f} at the end.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
