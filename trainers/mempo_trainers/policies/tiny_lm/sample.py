"""Sampling with a cache: a batch of texts is written on, token by token."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from mempo_trainers.policies.tiny_lm.model import Transformer


@torch.no_grad()
def write(
    model: Transformer, ids_BS: Tensor, lengths_B: Tensor, chance_BK: Tensor, stops: Collection[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Write on in B contexts; those that are done leave the batch once they are half of it.

    Args:
        model: The network.
        ids_BS: The contexts, padded on the right.
        lengths_B: Their lengths.
        chance_BK: A random number in [0, 1) for each of at most K tokens to be written: the token is the one
            in whose share of the cumulated probabilities it falls.
        stops: Ids that end a text.

    Returns:
        Ids and their log-probs, both (B, K) and 0 behind the end, and the number of ids written (B).
    """
    rows, room = chance_BK.shape
    tokens_BK, logprobs_BK = torch.zeros(rows, room, dtype=torch.long), torch.zeros(rows, room)
    written_B = torch.zeros(rows, dtype=torch.long)
    ends = torch.tensor(sorted(stops))
    hidden_BSW, cache = model(ids_BS, room)
    row, place, going = torch.arange(rows), lengths_B - 1, torch.ones(rows, dtype=torch.bool)
    hidden = hidden_BSW[row, place]
    for step in range(room):
        logp = model.log_probs(hidden[:, None], place[:, None], cache)[:, 0]
        shares = logp.double().exp().cumsum(-1)
        id = torch.searchsorted(shares, chance_BK[row, step, None] * shares[:, -1:], right=True)
        id = id.clamp(max=logp.shape[-1] - 1)
        here = row[going]
        tokens_BK[here, step], logprobs_BK[here, step] = id[going, 0], logp.gather(1, id)[going, 0]
        written_B[here] += 1
        going = going & ~torch.isin(id[:, 0], ends)
        if not going.any() or step + 1 == room:
            break
        if 2 * int(going.sum()) <= len(going):
            row, place, id, cache = row[going], place[going], id[going], cache.take(going)
            going = going[going]
        place = place + 1
        hidden = model.go_on(id[:, 0], place, cache)
    return tokens_BK, logprobs_BK, written_B
