"""What turns the features of a choice into its score: a small network, or a table with an entry a pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

Scorer: TypeAlias = Callable[[int], nn.Module]
"""Makes a module from features (..., F) to scores (...), given F; it starts with 0 everywhere."""


class Network(nn.Module):
    """One hidden layer of tanh units."""

    def __init__(self, features: int, hidden: int = 16) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(features, hidden), nn.Linear(hidden, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (...) of features (..., F)."""
        scores: torch.Tensor = self.out(torch.tanh(self.hidden(x)))[..., 0]
        return scores


class Table(nn.Module):
    """A score for each pattern of features, where a feature counts as on when it is 1.

    Nothing learned of one pattern says anything of another.
    """

    powers: torch.Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(2**features))
        self.register_buffer("powers", 2 ** torch.arange(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (...) of features (..., F)."""
        pattern = ((x > 1 - 1e-4).long() * self.powers).sum(-1)
        return self.scores[pattern]


SCORERS: dict[str, Scorer] = {"pointer": Network, "tabular": Table}
"""By the name of the policy."""
