"""What the tests of losses share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mempo_trainers.losses import token_weights

GOLDEN = Path(__file__).resolve().parents[1].parent / "shared" / "golden" / "golden.json"
NORM = "seq-mean-token-sum-norm"


def weights(mask: Any, rollouts: Any, mode: str = "token-mean", most: int = 8) -> Tensor:
    return token_weights(torch.tensor(mask), torch.tensor(rollouts), mode, most if mode == NORM else None)


def golden(block: str) -> Any:
    """A block of the golden numbers; the test is skipped where they are not."""
    if not GOLDEN.exists():
        pytest.skip(f"{GOLDEN} is not here")
    return json.loads(GOLDEN.read_text())[block]


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """New tensors are of this precision in the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
