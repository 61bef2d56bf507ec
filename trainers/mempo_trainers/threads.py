"""How many threads torch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

SMALL = 1_000_000
"""Weights below which threads cost more than they give: products of such matrices are too short to share."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: for networks of a few hundred numbers more are slower, and round otherwise.

    On a busy machine two threads that wait for each other take ten times as long as one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fitting(network: torch.nn.Module) -> AbstractContextManager[None]:
    """One thread for a network of fewer than `SMALL` weights, else as many as torch has."""
    weights = sum(weight.numel() for weight in network.parameters())
    return one_thread() if weights < SMALL else nullcontext()
