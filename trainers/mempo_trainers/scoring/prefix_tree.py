"""Answers in one pass over the tree of all that their contexts share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from mempo_trainers.credit.data import Floats
from mempo_trainers.scoring import masks
from mempo_trainers.scoring.attention import FLEX, skipping
from mempo_trainers.scoring.base import Asked, check_asked
from mempo_trainers.scoring.naive import BATCH_TOKENS, batch_logprobs
from mempo_trainers.scoring.networks import (
    Network,
    as_floats,
    at_rest,
    logprobs_at,
    positions,
    text_config,
)
from mempo_trainers.scoring.tree import Price, Tree, cut, grow, in_order, shared

MOST_NODES = 6_144
"""Nodes of a tree at most: a rollout of sixteen rounds of 250 tokens; its mask takes 150 MB in float32."""

_BLOCK = 128


class PrefixTree(Struct, frozen=True, eq=False):
    """Reads what contexts share once; `open_scorer` makes sure that the network can.

    Attention skips what a tree hides (`scoring.attention`), if the network uses sdpa, or is on CUDA.

    Attributes:
        network: Who is asked; its attention is eager, sdpa or flex.
        most_nodes: Nodes of a tree at most.
        batch_tokens: Of a batch of texts that share too little.
        fallback: Empty.
    """

    network: Network
    most_nodes: int = MOST_NODES
    batch_tokens: int = BATCH_TOKENS
    fallback: str = ""
    name: str = "prefix_tree"

    def logprobs(self, asked: Sequence[Asked]) -> list[Floats]:
        """As `Scorer` says."""
        check_asked(asked, positions(self.network))
        with at_rest(self.network):
            return as_floats(tree_logprobs(self.network, asked, self.most_nodes, self.batch_tokens))


def tree_logprobs(
    network: Network,
    asked: Sequence[Asked],
    most_nodes: int = MOST_NODES,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Tensor]:
    """Log-probs of the answers' tokens, with gradients, in the mode that the network is in.

    The contexts are cut into trees as is cheapest (`tree.cut`); those that are best read alone are, in
    batches.
    """
    texts = [one.read for one in asked]
    order = in_order(texts)
    ordered = [texts[i] for i in order]
    with skipping(network) as sparse:
        cost = price(network, sparse)
    runs = cut(np.array([len(text) for text in ordered]), shared(ordered), cost, most_nodes)
    trees = [[order[i] for i in run] for run in runs if len(run) > 1]
    alone = [order[run.start] for run in runs if len(run) == 1]
    found: list[Tensor] = [torch.empty(0)] * len(asked)
    for part in trees:
        for i, logprobs in zip(part, one_tree(network, [asked[i] for i in part]), strict=True):
            found[i] = logprobs
    for i, logprobs in zip(
        alone, batch_logprobs(network, [asked[i] for i in alone], batch_tokens), strict=True
    ):
        found[i] = logprobs
    return found


def one_tree(network: Network, asked: Sequence[Asked]) -> list[Tensor]:
    """The same in one pass over one tree; logits only where an answer needs them.

    Args:
        network: Who is asked.
        asked: With contexts and answers in order (`tree.in_order`).
    """
    tree, paths = grow([one.read for one in asked])
    needed_M = np.concatenate([path[len(one.context) - 1 :] for one, path in zip(asked, paths, strict=True)])
    kept_C, columns_M = np.unique(needed_M, return_inverse=True)
    with skipping(network):
        if network.config._attn_implementation == FLEX:
            tree = _whole_blocks(tree)
        arrays = tree.tokens_N[None], tree.depth_N[None], kept_C
        tokens_1N, depth_1N, kept = (torch.from_numpy(each).to(network.device) for each in arrays)
        said = network(
            input_ids=tokens_1N,
            attention_mask=tree_mask(network, tree),
            position_ids=depth_1N,
            use_cache=False,
            logits_to_keep=kept,
        )
    return logprobs_at(said.logits, np.zeros_like(columns_M), columns_M, asked)


def tree_mask(network: Network, tree: Tree) -> object:
    """The mask that a network takes for a tree: one, or one for each kind of layers that differ in it."""
    device = network.device
    depth_N, end_N = (torch.from_numpy(each).to(device) for each in (tree.depth_N, tree.end_N))
    made: dict[str, object] = {}
    for kind, window in masks.windows(text_config(network)).items():
        mask = masks.sees(depth_N, end_N, window)
        if network.config._attn_implementation == FLEX:
            made[kind] = masks.blocks(mask, len(tree.tokens_N), device)
        else:
            made[kind] = masks.dense(mask, len(tree.tokens_N), network.dtype, device)
    return made if len(made) > 1 else next(iter(made.values()))


def _whole_blocks(tree: Tree) -> Tree:
    """The tree with nodes added that see themselves alone, so that few shapes are compiled."""
    nodes = len(tree.tokens_N)
    more = -nodes % _BLOCK
    none = np.zeros(more, np.int64)
    return Tree(
        tokens_N=np.concatenate([tree.tokens_N, none]),
        depth_N=np.concatenate([tree.depth_N, none]),
        end_N=np.concatenate([tree.end_N, np.arange(nodes + 1, nodes + more + 1)]),
    )


def price(network: Network, sparse: bool) -> Price:
    """What a pass costs by its operations: two a weight and token, and four a pair, layer and channel.

    Args:
        network: Whose pass.
        sparse: Whether it skips pairs that a tree hides.
    """
    config = text_config(network)
    heads = config.num_attention_heads
    channels = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    weights = sum(each.numel() for each in network.parameters()) - _table_weights(network)
    return Price(
        token=2.0 * weights,
        pair=4.0 * config.num_hidden_layers * channels,
        sparse=sparse,
    )


def _table_weights(network: Network) -> int:
    """Weights of embeddings and head: of them a token needs one row or, where no answer is, none."""
    tables: list[Network] = [network.get_input_embeddings(), network.get_output_embeddings()]
    return sum({id(table.weight): table.weight.numel() for table in tables if table is not None}.values())
