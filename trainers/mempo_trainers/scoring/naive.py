"""Every answer in a text of its own, in padded batches: the released method, and the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from mempo_trainers.credit.data import Floats
from mempo_trainers.scoring.base import Asked, check_asked
from mempo_trainers.scoring.networks import (
    Network,
    as_floats,
    at_rest,
    logprobs_at,
    positions,
    rope_changes,
)
from mempo_trainers.tokens import buckets

BATCH_TOKENS = 4_096
"""Tokens, padding included, that one pass of the network takes."""


class Naive(Struct, frozen=True, eq=False):
    """Reads each context with its answer by itself.

    Attributes:
        network: Who is asked.
        batch_tokens: Tokens of a batch at most, padding included; a text that is longer is read alone.
        fallback: Why it took another scorer's place.
    """

    network: Network
    batch_tokens: int = BATCH_TOKENS
    fallback: str = ""
    name: str = "naive"

    def logprobs(self, asked: Sequence[Asked]) -> list[Floats]:
        """As `Scorer` says."""
        check_asked(asked, positions(self.network))
        with at_rest(self.network):
            return as_floats(batch_logprobs(self.network, asked, self.batch_tokens))


def batch_logprobs(
    network: Network, asked: Sequence[Asked], batch_tokens: int = BATCH_TOKENS
) -> list[Tensor]:
    """Log-probs of the answers' tokens, with gradients, in the mode that the network is in.

    Texts of like length are padded on the right, so that the causal mask alone hides the padding: positions,
    windows and states of recurrent layers are those of a text by itself. Where rotations depend on the
    longest text of a batch, each text is a batch.
    """
    found: list[Tensor] = [torch.empty(0)] * len(asked)
    most = 0 if rope_changes(network) else batch_tokens
    for part in buckets([len(one.context) + len(one.answer) - 1 for one in asked], most):
        for i, logprobs in zip(part, _read(network, [asked[i] for i in part]), strict=True):
            found[i] = logprobs
    return found


def _read(network: Network, asked: Sequence[Asked]) -> list[Tensor]:
    """The same for one batch; logits only where some answer needs them."""
    texts = [one.read for one in asked]
    ids_BT = np.zeros((len(texts), max(map(len, texts))), np.int64)
    for row, text in enumerate(texts):
        ids_BT[row, : len(text)] = text
    rows_M = np.repeat(np.arange(len(asked)), [len(one.answer) for one in asked])
    places_M = np.concatenate([np.arange(len(one.context) - 1, len(one.read)) for one in asked])
    kept_C, columns_M = np.unique(places_M, return_inverse=True)
    said = network(
        input_ids=torch.from_numpy(ids_BT).to(network.device),
        use_cache=False,
        logits_to_keep=torch.from_numpy(kept_C).to(network.device),
    )
    return logprobs_at(said.logits, rows_M, columns_M, asked)
