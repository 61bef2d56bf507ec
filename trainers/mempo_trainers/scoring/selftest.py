"""Whether a network reads trees as it reads texts: tried on a few random ones."""

from __future__ import annotations

import numpy as np
import torch

from mempo_env.errors import ConfigError
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.masks import windows
from mempo_trainers.scoring.naive import batch_logprobs
from mempo_trainers.scoring.networks import (
    Network,
    as_floats,
    at_rest,
    positions,
    rope_changes,
    rope_types,
    text_config,
)
from mempo_trainers.scoring.prefix_tree import FLEX, flex_on_cuda, one_tree
from mempo_trainers.scoring.tree import in_order

TOLERANCE = 1e-4
"""Nats by which log-probs may differ in float32."""

LONGEST = 1_200
"""Tokens of the longest text tried: longer than the windows of small networks, and read in seconds."""

_SHORT, _BEYOND = 120, 48
_ATTENTION = ("eager", "sdpa", FLEX)


def doubt(network: Network) -> str:
    """Why a network cannot be asked by trees; empty if it can.

    Log-probs of three histories, each the beginning of the next, and of two memories after the same question
    are computed by one tree and one by one. The longest is longer than any sliding window, up to `LONGEST`.
    They must agree to 1e-4 in float32; in 16 bits to twice what padding alone changes.
    """
    used = network.config._attn_implementation
    if used not in _ATTENTION:
        return f"it needs attention by {', '.join(_ATTENTION)}, and the network uses {used}"
    if rope_changes(network):
        kinds = ", ".join(sorted(rope_types(network)))
        return f"the network's rotations depend on the length of the text ({kinds} RoPE)"
    try:
        asked = trajectory(network)
        with at_rest(network):
            texts = as_floats(batch_logprobs(network, asked))
            with flex_on_cuda(network):
                tree = as_floats(one_tree(network, asked))
            allowed = _allowed(network, asked)
    except ConfigError as error:
        return str(error)
    except Exception as error:  # whatever a network says of a mask that it does not know
        return f"the network refuses a tree's mask ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
    off = float(np.abs(np.concatenate(tree) - np.concatenate(texts)).max())
    if not off <= allowed:
        return f"log-probs differ by {off:.2g} from those of separate texts, more than {allowed:.2g}"
    return ""


def trajectory(network: Network) -> list[Asked]:
    """Histories and memories of one rollout, in order, of random tokens, always the same ones."""
    config = text_config(network)
    widest = max((window or 0 for window in windows(config).values()), default=0)
    most = min(LONGEST, positions(network) or LONGEST)
    length = max(min(max(_SHORT, widest + _BEYOND), most) - 4, 8)
    chance = np.random.default_rng(0)
    story = chance.integers(config.vocab_size, size=length)
    answer, question = chance.integers(config.vocab_size, size=3), story[: length // 4]
    histories = [story[: length * share // 4] for share in (2, 3, 4)]
    memories = [np.concatenate([question, chance.integers(config.vocab_size, size=length // 8)]) for _ in "12"]
    asked = [Asked(context, answer) for context in (*histories, *memories)]
    return [asked[i] for i in in_order([one.read for one in asked])]


def _allowed(network: Network, asked: list[Asked]) -> float:
    if network.dtype in (torch.float32, torch.float64):
        return TOLERANCE
    alone = as_floats(batch_logprobs(network, asked, 0))
    longer = [Asked(one.context, np.resize(one.answer, 29)) for one in asked]
    padded = [each[: len(one.answer)] for one, each in zip(asked, as_floats(batch_logprobs(network, longer)), strict=True)]
    return 2 * float(np.abs(np.concatenate(alone) - np.concatenate(padded)).max())
