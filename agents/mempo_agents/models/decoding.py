"""Drawing what comes after prompts with a network, many at a time; what is over makes room for the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from msgspec import Struct
from torch.nn.functional import pad

from mempo_agents.models.base import Sampling
from mempo_agents.models.network import Cache, Loaded, evaluating, padded, read
from mempo_env.files import digest
from mempo_env.types import FinishReason


class Task(Struct, frozen=True):
    """A prompt to be continued.

    Attributes:
        ids: Of the prompt; at least one, and with room for `max_tokens` in the window.
        stop: Texts after which it ends.
        seed: Of its draws.
    """

    ids: tuple[int, ...]
    stop: tuple[str, ...]
    seed: int


class Sampled(Struct, frozen=True):
    """What was drawn after one prompt: ids, their log-probabilities (nats, temperature 1), why it ended."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


class _Row(Struct, eq=False):
    """A prompt that is being continued.

    Attributes:
        task: What was asked.
        stop: Texts after which it ends, none of them empty.
        reach: The last tokens that may hold a stop text which ends now.
        lasts: Characters in which stop texts end; None: some are none of plain ASCII.
        draws: A number in [0, 1) for each token that it may get.
        ids: What was drawn.
        shown: Those of them that are text.
        logprobs: Of each.
        finish_reason: Why it is over; "" until it is.
    """

    task: Task
    stop: tuple[str, ...]
    reach: int
    lasts: frozenset[str] | None
    draws: list[float]
    ids: list[int] = []
    shown: list[int] = []
    logprobs: list[float] = []
    finish_reason: FinishReason = ""

    def __len__(self) -> int:
        return len(self.task.ids) + len(self.ids)


class _Batch(Struct, eq=False):
    """Rows that are continued together.

    Attributes:
        rows: Whose they are.
        cache: All that was read, aligned on the right.
        mask_BT: 1 where the cache holds a token of the row, and for its last one, which is not yet read.
        last_B1: The last token of each.
    """

    rows: list[_Row]
    cache: Cache
    mask_BT: torch.Tensor
    last_B1: torch.Tensor


def sample(model: Loaded, tasks: Sequence[Task], sampling: Sampling, batch: int) -> list[Sampled]:
    """Continue tasks, the longest first; what is drawn depends on a task's seed and ids, not on the others.

    Where the model's caches can be joined, the places of tasks that are over are filled as soon as an eighth
    of the batch is free; else when all of it is.

    Args:
        model: Who continues them.
        tasks: In any order.
        sampling: How to draw.
        batch: Tasks at a time.
    """
    rows = [_row(task, sampling) for task in tasks]
    waiting = deque(sorted(rows, key=len, reverse=True))
    going: _Batch | None = None
    with evaluating(model.network):
        while waiting or going:
            free = batch - (len(going.rows) if going else 0)
            if waiting and (going is None or (model.joins and 8 * free >= batch)):
                new = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                going = _joined(going, _started(model, new, sampling))
            elif going:
                logprobs_BV = read(model.network, going.last_B1, going.mask_BT, cache=going.cache)[:, 0]
                going = _drawn(model, going.rows, going.cache, going.mask_BT, logprobs_BV, sampling)
    return [Sampled(tuple(row.ids), tuple(row.logprobs), row.finish_reason) for row in rows]


def _row(task: Task, sampling: Sampling) -> _Row:
    mixed = digest(str(task.seed), np.asarray(task.ids, np.int64).tobytes())
    draws = np.random.default_rng(int(mixed, 16)).random(sampling.max_tokens)
    stop = tuple(one for one in task.stop if one)
    reach = 1 + max((len(one.encode()) for one in stop), default=0)
    lasts = frozenset(one[-1] for one in stop)
    plain = all("!" <= last <= "~" for last in lasts)
    return _Row(task, stop, reach, lasts if plain else None, draws.tolist())


def _started(model: Loaded, rows: list[_Row], sampling: Sampling) -> _Batch | None:
    """Read the prompts of rows, equal ones once, and draw the first token of each."""
    from transformers import DynamicCache

    device = model.network.device
    places = {ids: i for i, ids in enumerate(dict.fromkeys(row.task.ids for row in rows))}
    ids_UT, mask_UT = padded(list(places), device)
    cache = DynamicCache(config=model.network.config)
    logprobs_UV = read(model.network, ids_UT, mask_UT, cache=cache)[:, 0]
    which_B = torch.tensor([places[row.task.ids] for row in rows], device=device)
    if len(places) < len(rows):
        cache.reorder_cache(which_B)
    return _drawn(model, rows, cache, mask_UT[which_B], logprobs_UV[which_B], sampling)


def _drawn(
    model: Loaded,
    rows: list[_Row],
    cache: Cache,
    mask_BT: torch.Tensor,
    logprobs_BV: torch.Tensor,
    sampling: Sampling,
) -> _Batch | None:
    """Draw a token for each row; what is left of the batch without those that are over with it."""
    chosen_B = choose(logprobs_BV, [row.draws[len(row.ids)] for row in rows], sampling)
    drawn_B = logprobs_BV.gather(1, chosen_B[:, None])[:, 0]
    tokens, logprobs = torch.stack(
        [chosen_B.double(), drawn_B.double()]
    ).tolist()  # all that leaves the device
    for row, token, logprob in zip(rows, map(int, tokens), logprobs, strict=True):
        row.ids.append(token)
        row.logprobs.append(logprob)
        if token in model.ends or _stopped(model, row, token):
            row.finish_reason = "stop"
        elif len(row.ids) == sampling.max_tokens:
            row.finish_reason = "length"
    kept = [i for i, row in enumerate(rows) if not row.finish_reason]
    if not kept:
        return None
    if len(kept) < len(rows):
        kept_b = torch.tensor(kept, device=mask_BT.device)
        cache.reorder_cache(kept_b)
        rows, mask_BT, chosen_B = [rows[i] for i in kept], mask_BT[kept_b], chosen_B[kept_b]
        if model.joins:
            mask_BT = _narrowed(cache, mask_BT, max(map(len, rows)) - 1)
    return _Batch(rows, cache, pad(mask_BT, (0, 1), value=1), chosen_B[:, None])


def _narrowed(cache: Cache, mask_BT: torch.Tensor, width: int) -> torch.Tensor:
    """Drop what is padding in every row, so that the longest one fills the whole width."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, -width:], layer.values[:, :, -width:]
    return mask_BT[:, -width:]


def _joined(going: _Batch | None, new: _Batch | None) -> _Batch | None:
    """Two batches as one; the new one, none of whose prompts is longer, is padded on the left."""
    if going is None or new is None:
        return going or new
    less = going.mask_BT.shape[1] - new.mask_BT.shape[1]

    def both(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.cat([first, pad(second, (0, 0, less, 0))])

    for layer, other in zip(going.cache.layers, new.cache.layers, strict=True):
        layer.keys, layer.values = both(layer.keys, other.keys), both(layer.values, other.values)
    mask_BT = torch.cat([going.mask_BT, pad(new.mask_BT, (less, 0))])
    return _Batch(going.rows + new.rows, going.cache, mask_BT, torch.cat([going.last_B1, new.last_B1]))


def choose(logprobs_BV: torch.Tensor, draws_B: Sequence[float], sampling: Sampling) -> torch.Tensor:
    """One token a row, (B,): the likeliest at temperature 0, else the one that a uniform draw falls on.

    Tokens lie on the unit interval in the order of their ids, so that noise in the last digits moves borders
    by as little, and never swaps two tokens.

    Args:
        logprobs_BV: Log-probabilities at temperature 1.
        draws_B: A number in [0, 1) for each row.
        sampling: Temperature and top_p: the least set of likeliest tokens whose mass reaches it.
    """
    if sampling.temperature == 0:
        return logprobs_BV.argmax(-1)
    if sampling.temperature != 1:
        below_BV = logprobs_BV - logprobs_BV.amax(-1, keepdim=True)  # or a tiny temperature overflows
        logprobs_BV = below_BV.double() / sampling.temperature
    probs_BV = logprobs_BV.softmax(-1)
    if sampling.top_p < 1:
        ordered_BV = probs_BV.sort(-1, descending=True).values
        likelier_BV = ordered_BV.cumsum(-1) - ordered_BV
        within_BV = likelier_BV < max(sampling.top_p, 1e-9)  # the likeliest always is
        least_B = ordered_BV.masked_fill(~within_BV, 2.0).amin(-1, keepdim=True)
        probs_BV = probs_BV.masked_fill(probs_BV < least_B, 0.0)
    return _fallen_on(probs_BV, torch.tensor(draws_B, dtype=torch.float64, device=probs_BV.device))


def _fallen_on(probs_BV: torch.Tensor, draws_B: torch.Tensor) -> torch.Tensor:
    """The token on which each draw falls: first its block of 128 tokens is found, then the token in there."""
    blocks_BNK = pad(probs_BV, (0, -probs_BV.shape[1] % 128)).reshape(len(probs_BV), -1, 128)
    ends_BN = blocks_BNK.sum(-1).double().cumsum(-1)
    points_B1 = draws_B[:, None] * ends_BN[:, -1:]
    block_B1 = torch.searchsorted(ends_BN, points_B1, right=True)
    block_B1.clamp_(max=ends_BN.shape[1] - 1)  # beyond: numbers that are not finite
    end_B1, before_B1 = ends_BN.gather(1, block_B1), pad(ends_BN, (1, 0)).gather(1, block_B1)
    inside_BK = blocks_BNK.take_along_dim(block_B1[:, :, None], 1)[:, 0].double().cumsum(-1)
    points_B1 = (points_B1 - before_B1) / (end_B1 - before_B1) * inside_BK[:, -1:]
    found_B1 = 128 * block_B1 + torch.searchsorted(inside_BK, points_B1, right=True).clamp(max=127)
    return found_B1[:, 0].clamp(max=probs_BV.shape[1] - 1)


def _stopped(model: Loaded, row: _Row, token: int) -> bool:
    """Whether a stop text stands in the row's text, which has just grown by a token.

    Every token that is text has a byte of its own, so the last ones hold all of a stop text that ends now.
    Plain ASCII stands in a token as itself, or as a byte, "<0x3E>": few tokens can end a stop text.
    """
    text = model.tokenizer.backend_tokenizer
    if not row.stop or token in model.silent or (piece := text.id_to_token(token)) is None:
        return False
    row.shown.append(token)
    if row.lasts is not None and row.lasts.isdisjoint(piece) and not piece.startswith("<0x"):
        return False
    tail = text.decode(row.shown[-row.reach :])
    return any(one in tail for one in row.stop)
