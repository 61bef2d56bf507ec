"""The denominators of a loss: against the definition a rollout at a time, and what must change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from losses_help import NORM, golden, precision, weights
from mempo_trainers.losses import (
    AGGREGATIONS,
    KLS,
    PolicyStats,
    aggregate,
    entropy_bonus,
    kl_loss,
    policy_loss,
    pooled,
    token_weights,
    value_loss,
)


@pytest.fixture(autouse=True, scope="module")
def _double_precision() -> Iterator[None]:
    with precision(torch.float64):
        yield


# --- Aggregation --------------------------------------------------------------------------------------------

# golden.json, "aggregation": rollout 0 has segments (1, 2, 3) and (5, masked 7), rollout 1 has (4, masked 9),
# rollout 2 is masked: token-mean (1+2+3+5+4)/5; seq-mean-token-mean (11/4 + 4)/2; norm 15 / (2 * 8).
VALUES = [[1.0, 2.0, 3.0], [5.0, 7.0, 0.0], [4.0, 9.0, 0.0], [8.0, 8.0, 0.0]]
MASK = [[1, 1, 1], [1, 0, 0], [1, 0, 0], [0, 0, 0]]
ROLLOUTS = [0, 0, 1, 2]
AGGREGATED = {
    "token-mean": 3.0,
    "token-sum": 15.0,
    "seq-mean-token-mean": 3.375,
    "seq-mean-token-sum": 7.5,
    NORM: 0.9375,
}


@pytest.mark.parametrize(("mode", "value"), AGGREGATED.items())
def test_aggregation(mode: str, value: float) -> None:
    assert aggregate(torch.tensor(VALUES), weights(MASK, ROLLOUTS, mode)).item() == pytest.approx(
        value, abs=1e-12
    )


def slow_aggregate(values: list[Any], mask: list[Any], rollouts: list[int], mode: str, most: int) -> float:
    """From the definitions, a rollout at a time."""
    kept: dict[int, list[float]] = {}
    for row, flags, rollout in zip(values, mask, rollouts, strict=True):
        kept.setdefault(rollout, []).extend(x for x, m in zip(row, flags, strict=True) if m)
    rows = [row for row in kept.values() if row]
    if not rows:
        return 0.0
    return {
        "token-mean": lambda: sum(map(sum, rows)) / sum(map(len, rows)),
        "token-sum": lambda: sum(map(sum, rows)),
        "seq-mean-token-mean": lambda: sum(sum(row) / len(row) for row in rows) / len(rows),
        "seq-mean-token-sum": lambda: sum(map(sum, rows)) / len(rows),
        NORM: lambda: sum(sum(row) / most for row in rows) / len(rows),
    }[mode]()


@st.composite
def batches(draw: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Values, mask and rollouts of a random batch: rollouts of unequal segments, some masked entirely."""
    segments, tokens = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    rollouts = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=segments, max_size=segments)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    mask = torch.from_numpy(rng.random((segments, tokens)) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])))
    return torch.from_numpy(rng.normal(size=(segments, tokens))), mask, rollouts


@settings(deadline=None)
@given(batches(), st.sampled_from(list(AGGREGATIONS)), st.integers(1, 50))
def test_aggregation_is_the_definition_a_rollout_at_a_time(batch: Any, mode: str, most: int) -> None:
    values, mask, rollouts = batch
    got = aggregate(values, token_weights(mask, rollouts, mode, most if mode == NORM else None))
    assert got.item() == pytest.approx(
        slow_aggregate(values.tolist(), mask.tolist(), rollouts.tolist(), mode, most), abs=1e-9
    )


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_dead_groups_dilute_the_denominator_of_the_loss(mode: str) -> None:
    """A group that was dropped is masked: five rollouts of it leave the loss as it is."""
    values = torch.tensor([*VALUES, *[[3.0, 3.0, 3.0]] * 5])
    mask, rollouts = [*MASK, *[[0, 0, 0]] * 5], [*ROLLOUTS, 3, 4, 5, 6, 7]
    assert aggregate(values, weights(mask, rollouts, mode)).item() == pytest.approx(AGGREGATED[mode])


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", "seq-mean-token-sum", NORM])
def test_a_sequence_is_a_segment_so_long_rollouts_count_more(mode: str) -> None:
    """Rollout 0 in one segment or cut in three: the same loss, and rollout 1 weighs as much as ever."""
    flat = aggregate(
        torch.tensor([[1.0, 2.0, 3.0], [6.0, 0, 0]]), weights([[1, 1, 1], [1, 0, 0]], [0, 1], mode)
    )
    cut = aggregate(torch.tensor([[1.0], [2.0], [3.0], [6.0]]), weights([[1]] * 4, [0, 0, 0, 1], mode))
    assert cut.item() == pytest.approx(flat.item())
    shares = weights([[1]] * 4, [0, 0, 0, 1], "seq-mean-token-mean").sum(1)
    assert shares.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_integer_division_truncates_weights() -> None:
    for dtype in (torch.bool, torch.int8, torch.int64, torch.float32):
        got = token_weights(torch.ones(1, 3).to(dtype), torch.tensor([0]), "token-mean")
        assert got.tolist()[0] == pytest.approx([1 / 3] * 3)


def test_entropy_bonus_is_the_aggregate() -> None:
    entropies = torch.tensor(VALUES)
    for mode, value in AGGREGATED.items():
        assert entropy_bonus(entropies, weights(MASK, ROLLOUTS, mode)).item() == pytest.approx(value)


def test_the_typed_numbers_are_those_of_the_golden_file() -> None:
    aggregation = golden("aggregation")
    for mode, value in AGGREGATED.items():
        (name,) = (key for key in aggregation if key == mode or key.startswith((f"{mode} (", f"{mode}, L")))
        assert aggregation[name] == value


# --- The whole loss, for the invariances --------------------------------------------------------------------


def whole_loss(net: torch.nn.Module, batch: dict[str, Tensor], weights_BK: Tensor, rows: Any) -> Any:
    """Surrogate, KL on all tokens, critic and entropy of some segments, from a network of the features."""
    new, value, entropy = net(batch["features"][rows]).unbind(-1)
    loss, stats = policy_loss(
        new,
        batch["old"][rows],
        batch["advantages"][rows],
        weights_BK[rows],
        dual_clip=3.0,
        sampler_logprobs_BK=batch["sampler"][rows],
    )
    loss = loss + 0.1 * kl_loss(new, batch["ref"][rows], weights_BK[rows], "low_var_kl")
    loss = loss + value_loss(value, batch["values"][rows], batch["returns"][rows], weights_BK[rows], clip=0.5)
    return loss - 0.01 * entropy_bonus(entropy, weights_BK[rows]), stats


def random_batch(segments: int, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    batch = {
        name: torch.randn(segments, tokens, generator=random)
        for name in ("old", "ref", "sampler", "advantages", "values", "returns")
    }
    return batch | {"features": torch.randn(segments, tokens, 3, generator=random)}


def gradient(
    batch: dict[str, Tensor], weights_BK: Tensor, parts: list[Any]
) -> tuple[float, Tensor, PolicyStats]:
    """Loss, gradient of the network's weights and stats, accumulated over micro-batches."""
    net = torch.nn.Linear(3, 3)
    with torch.no_grad():
        net.weight.copy_(torch.arange(9.0).reshape(3, 3) / 9)
        net.bias.fill_(0.1)
    losses, stats = [], []
    for rows in parts:
        loss, one = whole_loss(net, batch, weights_BK, rows)
        loss.backward()
        losses.append(loss.item())
        stats.append(one)
    assert net.weight.grad is not None and net.bias.grad is not None
    return sum(losses), torch.cat([net.weight.grad.flatten(), net.bias.grad]), pooled(stats)


ROLLOUTS_8 = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3])
LENGTHS_8 = torch.tensor([4, 2, 1, 3, 0, 4, 0, 0])  # rollout 3 is masked; a segment of rollout 2 has no token
MASK_8 = torch.arange(4)[None] < LENGTHS_8[:, None]


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_one_batch_of_8_equals_8_of_1(mode: str) -> None:
    """The denominators are the whole batch's, so a rollout may even be cut between two micro-batches."""
    batch, every = random_batch(8, 4), token_weights(MASK_8, ROLLOUTS_8, mode, 9 if mode == NORM else None)
    whole = gradient(batch, every, [slice(None)])
    for parts in ([[i] for i in range(8)], [[0, 7], [5, 1, 3], [2], [4, 6]], [[0, 1, 2, 3], [4, 5, 6, 7]]):
        loss, got, stats = gradient(batch, every, parts)
        assert loss == pytest.approx(whole[0], rel=1e-12)
        torch.testing.assert_close(got, whole[1], rtol=1e-12, atol=1e-14)
        assert stats.tokens == whole[2].tokens == 14
        assert stats.approx_kl == pytest.approx(whole[2].approx_kl, rel=1e-12)
        assert stats.clip_share == pytest.approx(whole[2].clip_share)
        assert (stats.ratio_min, stats.ratio_max) == (whole[2].ratio_min, whole[2].ratio_max)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("poison", [0.0, 1e30, math.nan, math.inf, -math.inf])
def test_padding_of_any_value_changes_nothing(mode: str, poison: float) -> None:
    most = 9 if mode == NORM else None
    batch = random_batch(8, 4)
    loss, want, stats = gradient(batch, token_weights(MASK_8, ROLLOUTS_8, mode, most), [slice(None)])
    padded = {
        name: torch.nn.functional.pad(
            torch.where(MASK_8 if values.ndim == 2 else MASK_8[..., None], values, poison),
            (0, 3) if values.ndim == 2 else (0, 0, 0, 3),
            value=poison,
        )
        for name, values in batch.items()
        if name != "features"
    }
    padded["features"] = torch.nn.functional.pad(batch["features"], (0, 0, 0, 3))
    wide = torch.nn.functional.pad(MASK_8, (0, 3))
    got_loss, got, got_stats = gradient(padded, token_weights(wide, ROLLOUTS_8, mode, most), [slice(None)])
    assert (got_loss, got_stats) == (pytest.approx(loss, rel=1e-12), stats)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(8)), st.permutations(range(4)), st.sampled_from(list(AGGREGATIONS)))
def test_order_of_segments_and_names_of_rollouts_change_nothing(
    order: list[int], names: list[int], mode: str
) -> None:
    most = 9 if mode == NORM else None
    batch = random_batch(8, 4)
    loss, want, stats = gradient(batch, token_weights(MASK_8, ROLLOUTS_8, mode, most), [slice(None)])
    renamed = torch.tensor(names)[ROLLOUTS_8[order]]
    shuffled = {name: values[order] for name, values in batch.items()}
    got_loss, got, got_stats = gradient(
        shuffled, token_weights(MASK_8[order], renamed, mode, most), [slice(None)]
    )
    assert got_loss == pytest.approx(loss, rel=1e-12)
    assert (got_stats.tokens, got_stats.clip_share) == (stats.tokens, stats.clip_share)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_at_a_masked_position_reaches_loss_or_gradient(poison: float) -> None:
    """Not even through 0 * nan in a backward pass: the gradient there is exactly 0."""
    mask = torch.tensor([[True, False, True]])
    masked = token_weights(mask, torch.tensor([0]), "token-mean")
    leaf = torch.tensor([[-1.0, poison, -2.0]], requires_grad=True)
    others = torch.tensor([[-1.1, poison, -1.5]])
    for make in LOSSES:
        leaf.grad = None
        loss = make(leaf, others, masked)
        loss.backward()
        assert torch.isfinite(loss)
        assert leaf.grad is not None and torch.isfinite(leaf.grad).all() and leaf.grad[0, 1] == 0


LOSSES: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    lambda x, y, w: policy_loss(x, y, y, w, sampler_logprobs_BK=y, dual_clip=3.0)[0],
    lambda x, y, w: value_loss(x, y, y, w, clip=0.2),
    lambda x, y, w: entropy_bonus(x, w),
    lambda x, y, w: aggregate(x, w),
    *(lambda x, y, w, kind=kind: kl_loss(x, y, w, kind) for kind in KLS),  # type: ignore[misc]
]


def test_gradients_numerically() -> None:
    """Torch's finite differences, away from the kinks."""
    batch, every = (
        random_batch(5, 3),
        weights([[1, 1, 0], [1, 1, 1], [0, 1, 0], [0, 0, 0], [1, 0, 1]], [0, 0, 1, 2, 1]),
    )
    near = batch["old"] + 0.3 * batch["ref"]
    for make in LOSSES:
        leaf = near.clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, make=make: make(x, batch["old"], every), (leaf,))


def test_a_batch_without_any_token_has_loss_and_gradient_zero() -> None:
    leaf = torch.full((2, 3), math.nan, requires_grad=True)
    for mode in AGGREGATIONS:
        none = weights([[0] * 3] * 2, [0, 1], mode)
        loss, stats = policy_loss(leaf, leaf.detach(), leaf.detach(), none)
        loss.backward()
        assert loss.item() == 0.0 and leaf.grad is not None and not leaf.grad.any()
        assert stats == pooled([]) == PolicyStats(0, 0.0, 0.0, 0.0, 1.0, 1.0)
    assert token_weights(torch.ones(0, 3), torch.zeros(0).long(), "token-mean").shape == (0, 3)
