"""Whether a network reads trees as it reads texts: tried on a few random ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import Floats
from mempo_trainers.scoring.attention import FLEX
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.masks import windows
from mempo_trainers.scoring.naive import batch_logprobs
from mempo_trainers.scoring.networks import (
    Network,
    as_floats,
    at_rest,
    logprobs_at,
    positions,
    rope_changes,
    rope_types,
    text_config,
)
from mempo_trainers.scoring.prefix_tree import one_tree
from mempo_trainers.scoring.tree import in_order

TOLERANCE = 1e-4
"""Nats by which log-probs may differ in float32."""

LONGEST = 1_200
"""Tokens of the longest text tried: longer than the windows of small networks, and read in seconds."""

_SHORT, _BEYOND, _ANSWER = 120, 48, 8
_PADDINGS = (1, 7)
_ATTENTION = ("eager", "sdpa", FLEX)


def doubt(network: Network) -> str:
    """Why a network cannot be asked by trees; empty if it can.

    Log-probs of three histories, each the beginning of the next, and of two memories after the same question
    are computed by one tree and one by one. The longest is longer than any sliding window, up to `LONGEST`.
    They must agree to 1e-4 in float32; in 16 bits to twice what padding or rounding alone changes.
    """
    used = network.config._attn_implementation
    if used not in _ATTENTION:
        return f"it needs attention by {', '.join(_ATTENTION)}, and the network uses {used}"
    if rope_changes(network):
        kinds = ", ".join(sorted(rope_types(network)))
        return f"the network's rotations depend on the length of the text ({kinds} RoPE)"
    try:
        asked = trajectory(network)
        with at_rest(network), _full_precision():
            texts_M = np.concatenate(as_floats(batch_logprobs(network, asked)))
            bound = allowed(network, asked, texts_M)
            tree_M = np.concatenate(as_floats(one_tree(network, asked)))
    except ConfigError as error:
        return str(error)
    except Exception as error:  # whatever a network says of a mask that it does not know
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return f"the network refuses a tree's mask ({told})"
    off = float(np.abs(tree_M - texts_M).max())
    if not off <= bound:
        return f"log-probs differ by {off:.2g} from those of separate texts, more than {bound:.2g}"
    return ""


def trajectory(network: Network) -> list[Asked]:
    """Histories and memories of one rollout, in order, of random tokens, always the same ones."""
    config = text_config(network)
    widest = max((window or 0 for window in windows(config).values()), default=0)
    most = min(LONGEST, positions(network) or LONGEST)
    length = min(max(_SHORT, widest + _BEYOND), most) - _ANSWER
    chance = np.random.default_rng(0)
    story = chance.integers(config.vocab_size, size=length)
    answer, question = chance.integers(config.vocab_size, size=_ANSWER), story[: length // 4]
    histories = [story[: length * share // 4] for share in (2, 3, 4)]
    notes = chance.integers(config.vocab_size, size=(2, length // 8))
    memories = [np.concatenate([question, note]) for note in notes]
    asked = [Asked(context, answer) for context in (*histories, *memories)]
    return [asked[i] for i in in_order([one.read for one in asked])]


def allowed(network: Network, asked: Sequence[Asked], texts_M: Floats) -> float:
    """Nats by which log-probs may differ: in 16 bits twice what padding on the left, or rounding, changes."""
    if network.dtype in (torch.float32, torch.float64):
        return TOLERANCE
    moved = [np.abs(np.concatenate(as_floats(_behind(network, asked, n))) - texts_M).max() for n in _PADDINGS]
    return 2 * float(max(*moved, torch.finfo(network.dtype).eps))


def _behind(network: Network, asked: Sequence[Asked], padding: int) -> list[Tensor]:
    """Log-probs of the answers' tokens, each text by itself behind some tokens of padding."""
    found = []
    for one in asked:
        place_T = torch.arange(-padding, len(one.read), device=network.device)
        ids_T = torch.nn.functional.pad(torch.from_numpy(one.read).to(network.device), (padding, 0))
        said = network(
            input_ids=ids_T[None],
            attention_mask=(place_T >= 0).long()[None],
            position_ids=place_T.clamp(min=0)[None],
            use_cache=False,
            logits_to_keep=len(one.answer),
        )
        tokens = np.arange(len(one.answer))
        found += logprobs_at(said.logits, np.zeros_like(tokens), tokens, [one])
    return found


@contextmanager
def _full_precision() -> Iterator[None]:
    """No TF32: it would move log-probs by more than a wrong mask may."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
