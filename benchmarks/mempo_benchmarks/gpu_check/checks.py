"""The parts of the check, one after the other, each with a time of its own."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mempo_benchmarks.gpu_check import training
from mempo_benchmarks.gpu_check.report import Report, guarded
from mempo_benchmarks.gpu_check.sizes import SIZES, Size, network
from mempo_benchmarks.gpu_check.training import peak, synchronised
from mempo_benchmarks.speed.scoring import work
from mempo_trainers.scoring.attention import skipping
from mempo_trainers.scoring.base import Asked, Scorer
from mempo_trainers.scoring.naive import Naive
from mempo_trainers.scoring.networks import at_rest
from mempo_trainers.scoring.prefix_tree import PrefixTree, price
from mempo_trainers.scoring.selftest import TOLERANCE, allowed, doubt
from mempo_trainers.scoring.tree import cut, in_order, shared

Part = Callable[[Report, Size, str], None]


def run(device: str, size: str, out: Path, seconds: float) -> int:
    """Run all parts, print and write what they found; 1 if something failed.

    Args:
        device: Of torch.
        size: Of `SIZES`.
        out: The JSON.
        seconds: That all of it may take; what comes later is left out, and that is a failure.
    """
    report, began = Report(), time.perf_counter()
    torch.set_float32_matmul_precision("highest")
    for name, (part, most) in PARTS.items():
        left = seconds - (time.perf_counter() - began)
        guarded(report, name, min(most, left), lambda part=part: part(report, SIZES[size], device))  # type: ignore[misc]
        if device != "cpu":
            torch.cuda.empty_cache()
        report.write(out)
    failed = sum(not row.ok for row in report.rows)
    report.tell("all", "seconds", time.perf_counter() - began)
    report.tell("all", "failed", float(failed), most=0)
    report.write(out)
    return int(failed > 0)


def machine(report: Report, size: Size, device: str) -> None:
    """Which device and versions; whether it multiplies in bfloat16, and how fast."""
    import transformers

    cuda = device != "cpu"
    name = torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine()
    report.tell("device", "name", name)
    report.tell("device", "Python", platform.python_version())
    report.tell("device", "torch", str(torch.__version__))
    report.tell("device", "transformers", transformers.__version__)
    if cuda:
        report.tell("device", "memory (GB)", torch.cuda.get_device_properties(device).total_memory / 1e9)
        report.tell("device", "knows bfloat16", float(torch.cuda.is_bf16_supported()), least=1)
    n = 4_096 if cuda else 128
    one, two = (torch.randn(n, n, device=device) for _ in range(2))
    right = one @ two
    far = ((one.bfloat16() @ two.bfloat16()).float() - right).norm() / right.norm()
    report.tell("device", "a product in bfloat16, relative error", float(far), most=1e-2)
    seconds = timed(device, lambda: one.bfloat16() @ two.bfloat16())
    report.tell("device", "bfloat16 (TFLOP/s)", 2e-12 * n**3 / seconds)


def timed(device: str, function: Callable[[], Any], passes: int = 3) -> float:
    """The median of the seconds that a call takes, after one that is not timed."""
    function()
    taken = []
    for _ in range(passes):
        synchronised(device)
        began = time.perf_counter()
        function()
        synchronised(device)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def tree(dtype: torch.dtype) -> Part:
    """The prefix tree beside `naive`, of a network in a dtype: values, speed and memory."""
    part = f"tree in {str(dtype).removeprefix('torch.')}"

    @torch.no_grad()
    def check(report: Report, size: Size, device: str) -> None:
        net = network(size, device, dtype)
        began = time.perf_counter()
        reason = doubt(net)
        report.tell(part, "self-test, with compilation (s)", time.perf_counter() - began)
        if reason:
            report.fail(part, "self-test", reason, "no difference")
        asked = scored(size)
        with skipping(net) as sparse:
            report.tell(part, "attention", str(net.config._attn_implementation))
        plan(report, part, net, asked, sparse)
        compared(report, part, size, device, Naive(net), PrefixTree(net), asked)

    return check


def scored(size: Size) -> list[Asked]:
    """Memories and histories of rollouts of one question, in the network's vocabulary."""
    vocabulary = size.shape["vocab_size"]
    asked, _ = work(size.rollouts, size.rounds)
    return [Asked(one.context % vocabulary, one.answer % vocabulary) for one in asked]


def plan(report: Report, part: str, net: Any, asked: Sequence[Asked], sparse: bool) -> None:
    """How many trees there are, and what they hold of what `naive` reads."""
    texts = [one.read for one in asked]
    texts = [texts[i] for i in in_order(texts)]
    lengths_S, shared_S = np.array([len(text) for text in texts]), shared(texts)
    with skipping(net):
        runs = cut(lengths_S, shared_S, price(net, sparse), PrefixTree(net).most_nodes)
    nodes = sum(int((lengths_S - shared_S)[run.start : run.stop].sum() + shared_S[run.start]) for run in runs)
    report.tell(part, "trees", float(len(runs)))
    report.tell(part, "share of the tokens that are read", nodes / float(lengths_S.sum()), most=1)


def compared(
    report: Report, part: str, size: Size, device: str, naive: Scorer, tree: Scorer, asked: Sequence[Asked]
) -> None:
    """Differences, seconds and memory of both."""
    told, bytes_ = [], []
    for one in (naive, tree):
        peak(device, reset=True)
        told.append(np.concatenate(one.logprobs(asked)))
        bytes_.append(peak(device))
    net: Any = tree.network  # type: ignore[attr-defined]
    with at_rest(net):
        bound = TOLERANCE if net.dtype == torch.float32 else allowed(net, asked[:4], told[0][: 4 * 8])
    far = float(np.abs(told[0] - told[1]).max())
    report.tell(part, "largest difference (nats)", far, most=bound)
    seconds = [timed(device, lambda one=one: one.logprobs(asked)) for one in (naive, tree)]  # type: ignore[misc]
    for name, taken, held in zip(("naive", "tree"), seconds, bytes_, strict=True):
        report.tell(part, f"{name} (s)", taken)
        report.tell(part, f"{name}, peak memory (GB)", held)
    report.tell(part, "naive : tree", seconds[0] / seconds[1], least=size.floor)


PARTS: dict[str, tuple[Part, float]] = {
    "device": (machine, 30),
    "tree in float32": (tree(torch.float32), 120),
    "tree in bfloat16": (tree(torch.bfloat16), 120),
    "sampler": (training.sampler, 60),
    "gradients": (training.gradients, 60),
    "training": (training.grpo_run, 200),
    "environment": (training.environment, 90),
}
"""In their order, with the seconds that each may take."""
