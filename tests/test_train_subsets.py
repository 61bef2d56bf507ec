"""Which facts to keep, against the list of all sets that fit."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mempo_env.errors import ConfigError
from mempo_trainers.policies.subsets import log_probs, log_ways, sample

FREE = settings(deadline=None)


@st.composite
def choices(draw: st.DrawFn) -> tuple[Tensor, Tensor, int]:
    """Logits (V,), which slots may be kept (V,), how many fit."""
    slots = draw(st.integers(1, 7))
    logits = draw(st.lists(st.floats(-6, 6), min_size=slots, max_size=slots))
    mask = draw(st.lists(st.booleans(), min_size=slots, max_size=slots))
    return torch.tensor(logits, dtype=torch.float64), torch.tensor(mask), draw(st.integers(1, slots + 1))


def fitting(mask: Tensor, capacity: int) -> list[tuple[int, ...]]:
    """All sets of slots, as 0 and 1, that keep nothing masked and no more than fits."""
    every = itertools.product((0, 1), repeat=len(mask))
    return [kept for kept in every if sum(kept) <= capacity and not any(np.array(kept)[~mask.numpy()])]


def independent(logits: Tensor, sets: list[tuple[int, ...]]) -> np.ndarray:
    """The probability of each set under independent coins, given that it is one of these."""
    heads = 1 / (1 + np.exp(-logits.numpy()))
    weights = np.array([np.prod(np.where(kept, heads, 1 - heads)) for kept in sets])
    return weights / weights.sum()


def of_sets(
    logits: Tensor, mask: Tensor, sets: list[tuple[int, ...]], capacity: int
) -> tuple[Tensor, Tensor]:
    """Log-probs (sets, V) of the decisions that lead to each set, and their entropies."""
    rows = len(sets)
    return log_probs(logits.expand(rows, -1), mask.expand(rows, -1), torch.tensor(sets), capacity)


@FREE
@given(choices())
def test_sets_have_the_probabilities_of_independent_coins_given_that_they_fit(
    choice: tuple[Tensor, Tensor, int],
) -> None:
    logits, mask, capacity = choice
    sets = fitting(mask, capacity)
    logp, _ = of_sets(logits, mask, sets, capacity)
    probabilities = logp.sum(1).exp().numpy()
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)
    wanted = independent(torch.where(mask, logits, -700.0), sets)
    np.testing.assert_allclose(probabilities, wanted, rtol=1e-7, atol=1e-12)


@FREE
@given(choices(), st.data())
def test_the_order_of_slots_is_irrelevant(choice: tuple[Tensor, Tensor, int], data: st.DataObject) -> None:
    logits, mask, capacity = choice
    order = torch.tensor(data.draw(st.permutations(range(len(mask)))))
    sets = fitting(mask, capacity)
    here, _ = of_sets(logits, mask, sets, capacity)
    moved = [tuple(np.array(kept)[order.numpy()].tolist()) for kept in sets]
    there, _ = of_sets(logits[order], mask[order], moved, capacity)
    torch.testing.assert_close(here.sum(1), there.sum(1), rtol=1e-9, atol=1e-9)


@FREE
@given(choices())
def test_the_entropies_add_up_to_that_of_the_set(choice: tuple[Tensor, Tensor, int]) -> None:
    """E over sets of the sum of the decisions' entropies = the entropy of the set (the chain rule)."""
    logits, mask, capacity = choice
    sets = fitting(mask, capacity)
    logp, entropy = of_sets(logits, mask, sets, capacity)
    p = logp.sum(1).exp()
    assert float((p * entropy.sum(1)).sum()) == pytest.approx(float(-(p * logp.sum(1)).sum()), abs=1e-8)


@FREE
@given(choices())
def test_what_is_not_to_decide_costs_nothing(choice: tuple[Tensor, Tensor, int]) -> None:
    logits, mask, capacity = choice
    sets = fitting(mask, capacity)
    logp, entropy = of_sets(logits, mask, sets, capacity)
    before = torch.tensor(sets).cumsum(1) - torch.tensor(sets)
    closed = ~mask | (before >= capacity)
    assert (logp[closed] == 0).all() and (entropy[closed] == 0).all()
    assert (logp[~closed] < 0).all() and (entropy[~closed] > 0).all()


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_gradients_are_finite_even_for_extreme_scores(size: float) -> None:
    logits = (torch.tensor([[-1.0, 1.0, 0.5, -0.3, 1.0]]) * size).requires_grad_()
    mask = torch.tensor([[True, True, False, True, True]])
    kept = torch.tensor([[1, 1, 0, 0, 0]])
    logp, entropy = log_probs(logits, mask, kept, 2)
    (logp.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert torch.isfinite(logp).all() and torch.isfinite(entropy).all() and torch.isfinite(logits.grad).all()


def test_the_gradient_is_that_of_the_probability() -> None:
    """d log P(set) / d logit_v = kept_v - P(v is kept), by enumeration."""
    logits = torch.tensor([0.3, -1.2, 2.0, 0.1], dtype=torch.float64)
    mask = torch.ones(4, dtype=torch.bool)
    sets = fitting(mask, 2)
    p = independent(logits, sets)
    marginal = (p[:, None] * np.array(sets)).sum(0)
    for kept in sets:
        x = logits.clone().requires_grad_()
        log_probs(x[None], mask[None], torch.tensor([kept]), 2)[0].sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy(), np.array(kept) - marginal, atol=1e-10)


@FREE
@given(choices(), st.integers(0, 1000))
def test_never_more_than_fits_and_nothing_masked_is_sampled(
    choice: tuple[Tensor, Tensor, int], seed: int
) -> None:
    logits, mask, capacity = choice
    rows = logits.float().expand(50, -1), mask.expand(50, -1)
    kept = sample(*rows, capacity, torch.Generator().manual_seed(seed))
    assert kept.shape == (50, len(mask)) and kept.dtype == torch.int64
    assert (kept.sum(1) <= capacity).all()
    assert not kept[:, ~mask].any()


@pytest.mark.parametrize("size", [1.0, 1e9, 1e20, 1e37])
@pytest.mark.parametrize("sign", [1, -1])
def test_nothing_masked_is_kept_however_large_the_scores(size: float, sign: int) -> None:
    logits = torch.full((200, 6), sign * size)
    mask = torch.tensor([True, False, True, False, True, False]).expand(200, -1)
    kept = sample(logits, mask, 2, torch.Generator().manual_seed(0))
    assert not kept[~mask].any() and (kept.sum(1) <= 2).all()
    logp, entropy = log_probs(logits, mask, kept, 2)
    assert (logp[~mask] == 0).all() and (entropy[~mask] == 0).all()


@pytest.mark.parametrize("kept, told", [([1, 1, 0, 1], "got 3 in a row"), ([0, 0, 1, 0], "and 1 masked")])
def test_a_set_that_no_policy_keeps_is_refused(kept: list[int], told: str) -> None:
    mask = torch.tensor([[True, True, False, True]])
    with pytest.raises(ConfigError, match=f"wanted at most 2 in a row, none of them masked.*{told}"):
        log_probs(torch.zeros(1, 4), mask, torch.tensor([kept]), 2)


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_sets_are_sampled_as_often_as_they_are_probable(capacity: int) -> None:
    """Chi-square over all sets, 20,000 draws of a fixed seed; 99.9 % of true samplers pass."""
    from scipy.stats import chi2

    logits, mask, draws = torch.tensor([0.4, -1.0, 0.9, 0.0]), torch.tensor([True, True, True, True]), 20_000
    sets = fitting(mask, capacity)
    rows = logits.expand(draws, -1), mask.expand(draws, -1)
    found = Counter(map(tuple, sample(*rows, capacity, torch.Generator().manual_seed(1)).tolist()))
    expected = independent(logits.double(), sets) * draws
    seen = np.array([found[kept] for kept in sets])
    assert seen.sum() == draws
    assert ((seen - expected) ** 2 / expected).sum() < chi2.ppf(0.999, len(sets) - 1)


@settings(FREE, max_examples=30)
@given(choices())
def test_all_ways_of_the_table_are_counted(choice: tuple[Tensor, Tensor, int]) -> None:
    """W(v, m) is the log of the sum over sets of the slots from v on with at most m kept."""
    logits, _, capacity = choice
    ways = log_ways(logits[None], capacity)[0]
    assert ways.shape == (len(logits) + 1, capacity + 1)
    for v in range(len(logits) + 1):
        rest = logits[v:].numpy()
        for m in range(capacity + 1):
            every = itertools.product((0, 1), repeat=len(rest))
            total = sum(np.exp(rest @ np.array(kept)) if kept else 1.0 for kept in every if sum(kept) <= m)
            assert float(ways[v, m]) == pytest.approx(np.log(total), abs=1e-8)
