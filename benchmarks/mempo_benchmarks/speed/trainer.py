"""A GRPO step of a tiny language model, ours beside TRL's: `python -m mempo_benchmarks.speed.trainer`.

docs/speed.md says what is measured and how to read it. TRL is installed into a virtual environment in the
cache folder; where it cannot be, the command says SKIP and why.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mempo_benchmarks.speed.peers import LOOPS, PeerError, System, installed, order, ours
from mempo_benchmarks.speed.report import Part, table
from mempo_env.errors import MempoError
from mempo_env.files import atomic_file

PLAYER = "mempo_benchmarks.speed.players.play_trainer"
SHAPE: dict[str, Any] = {
    "vocab_size": 960,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
"""A Qwen2 of 135,744 parameters."""

WORK = {"completion": 64, "questions": 2, "group": 8, "learning_rate": 1e-6, "beta": 1e-3}
"""Tokens of a completion at most, prompts a step, completions of each; weight of the divergence."""

PROMPT = (64, 128)
"""Tokens of a prompt."""

WARM = 3
"""Steps of each run that do not count."""

PARTS = ("generation", "reference", "log-probs", "optimiser")
_END, _LETTERS = "<|end|>", "abcdefghijklmnopqrstuvwxyz"


def write_work(folder: Path, prompts: int = 64, seed: int = 0) -> None:
    """Write what both train: a random network, a tokenizer, and work.json with prompts of random letters.

    A token of the prompts is a letter; the others are words of four letters that only the network writes, and
    the one that ends a completion.

    Args:
        folder: Where to.
        prompts: How many.
        seed: Of all that is random.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    chance = np.random.default_rng(seed)
    words = dict.fromkeys([_END, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    while len(words) < SHAPE["vocab_size"]:
        words["".join(chance.choice(list(_LETTERS), 4))] = None
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token=_END, pad_token=_END).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Qwen2ForCausalLM(Qwen2Config(**SHAPE, eos_token_id=0, pad_token_id=0, bos_token_id=None))
    network.save_pretrained(folder)
    lengths = chance.integers(PROMPT[0], PROMPT[1], prompts, endpoint=True)
    texts = ["".join(chance.choice(list(_LETTERS), length)) for length in lengths]
    (folder / "work.json").write_text(json.dumps({**WORK, "prompts": texts}))


def compare(systems: Sequence[System], rounds: int, steps: int, threads: int) -> list[list[Any]]:
    """What every system told in each round, in turn.

    Raises:
        PeerError: if one fails, or they did not do the same work.
    """
    told: list[list[Any]] = [[] for _ in systems]
    with tempfile.TemporaryDirectory() as scratch:
        write_work(Path(scratch))
        for _ in range(rounds):
            for system, runs in zip(systems, told, strict=True):
                runs.append(order(system, "train", folder=scratch, steps=steps, before=WARM, threads=threads))
                check_same(told[0][-1], runs[-1], system.name)
    return told


def check_same(mine: Any, theirs: Any, name: str) -> None:
    """PeerError unless both wrote as many tokens, for as much reward, up to what chance makes of it."""
    tokens = [float(np.mean(run["tokens"])) for run in (mine, theirs)]
    rewards = [run["reward"] for run in (mine, theirs)]
    if abs(tokens[0] / tokens[1] - 1) > 0.1 or abs(rewards[0] - rewards[1]) > 0.05:
        raise PeerError(
            f"{name}: wanted the work that ours is, about {tokens[0]:.0f} tokens a step and a reward of "
            f"{rewards[0]:.3f}, got {tokens[1]:.0f} and {rewards[1]:.3f}"
        )


def parts_of(systems: Sequence[System], told: Sequence[Sequence[Any]], threads: int) -> list[Part]:
    """Seconds a completion token, by the clock and of the processor."""
    units = {"seconds": "by the clock", "processor": "of the processor"}
    return [
        Part(
            f"A GRPO step, {threads} thread{'s' if threads > 1 else ''}: a completion token, {name}",
            {
                system.name: [sum(run[unit]) / sum(run["tokens"]) for run in runs]
                for system, runs in zip(systems, told, strict=True)
            },
            (systems[0].name,),
            "1.5 times",
        )
        for unit, name in units.items()
    ]


def breakdown(systems: Sequence[System], told: Sequence[Sequence[Any]]) -> str:
    """Where the processor's time of a step goes, in milliseconds, medians over the rounds."""
    head = ["ms of a step", *PARTS, "all else (backward)", "whole step"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for system, runs in zip(systems, told, strict=True):
        taken = np.array([[run["parts"][part] for part in PARTS] for run in runs])
        whole = np.array([np.mean(run["processor"]) for run in runs])
        columns = [*taken.T, whole - taken.sum(1), whole]
        lines.append([system.name, *(f"{1e3 * np.median(column):.1f}" for column in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, print, and write DIR/trainer.md and DIR/trainer.json."""
    parser = argparse.ArgumentParser(prog="python -m mempo_benchmarks.speed.trainer", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for trainer.md and trainer.json")
    parser.add_argument("--rounds", type=int, default=5, help="runs of both, in turn")
    parser.add_argument("--steps", type=int, default=12, help="of each run that count")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of torch: tables for each")
    options = parser.parse_args(argv)
    mine = msgspec.structs.replace(ours(("mempo", "torch", "transformers")), player=PLAYER)
    try:
        systems = [mine, *map(installed, LOOPS)]
    except PeerError as error:
        sys.stdout.write(f"SKIP: without trl: {' '.join(str(error).split())}\n")
        return 0
    try:
        runs = {n: compare(systems, options.rounds, options.steps, n) for n in options.threads}
    except MempoError as error:
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 2
    text = report(systems, runs)
    with atomic_file(options.out / "trainer.md") as out:
        out.write(text.encode())
    with atomic_file(options.out / "trainer.json") as out:
        out.write(msgspec.json.format(msgspec.json.encode({"systems": systems, "runs": runs}, enc_hook=str)))
    sys.stdout.write(text)
    return 0


def report(systems: Sequence[System], runs: dict[int, list[list[Any]]]) -> str:
    """The report in Markdown."""
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    versions = [
        f"- {system.name}: {', '.join(f'{name} {version}' for name, version in system.versions.items())}"
        for system in systems
    ]
    lines = ["# Training, side by side", "", f"- {machine} at the end", *versions, ""]
    for threads, told in runs.items():
        lines += [f"{table(part)}\n" for part in parts_of(systems, told, threads)]
        lines += [breakdown(systems, told), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
