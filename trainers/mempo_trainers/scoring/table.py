"""The scorers by name."""

from __future__ import annotations

import warnings

from mempo_env.errors import ConfigError, lookup
from mempo_trainers.scoring.base import Scorer
from mempo_trainers.scoring.naive import BATCH_TOKENS, Naive
from mempo_trainers.scoring.networks import Network
from mempo_trainers.scoring.prefix_tree import MOST_NODES, PrefixTree
from mempo_trainers.scoring.selftest import doubt
from mempo_trainers.scoring.server import Scoring, ServerScorer

SCORERS = {
    "naive": "each answer in a text of its own, in padded batches",
    "prefix_tree": "one pass over the tree of what texts share",
    "server": "by the server that generates",
}
"""What each does."""


def open_scorer(
    name: str,
    network: Network = None,
    *,
    model: Scoring | None = None,
    most_nodes: int = MOST_NODES,
    batch_tokens: int = BATCH_TOKENS,
) -> Scorer:
    """A scorer, tried on its network.

    A network that cannot be asked by trees is asked by `naive`, with a warning; `fallback` keeps the reason.

    Args:
        name: Of `SCORERS`.
        network: A causal language model of transformers; `server` needs none.
        model: Whom `server` asks.
        most_nodes: Nodes of a tree at most.
        batch_tokens: Tokens of a padded batch at most.

    Raises:
        ConfigError: for an unknown name, or one that lacks its network or model.
    """
    lookup(SCORERS, name, "scorer")
    missing = model if name == "server" else network
    if missing is None:
        what = "model=, with a method score" if name == "server" else "network="
        raise ConfigError(f"scorer {name!r}: wanted {what}, got none")
    if name == "server" and model is not None:
        return ServerScorer(model)
    if name == "naive":
        return Naive(network, batch_tokens)
    if reason := doubt(network):
        warnings.warn(f"scorer prefix_tree: {reason}; naive is used, which takes longer", stacklevel=2)
        return Naive(network, batch_tokens, reason)
    return PrefixTree(network, most_nodes, batch_tokens)
