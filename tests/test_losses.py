"""The surrogate, the critic, and what goes wrong with masks: against numbers typed by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from losses_help import NORM, golden, precision, weights
from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import ANSWER, CALL, MEM, NOT_GENERATED, THINK, Trajectories
from mempo_trainers.losses import (
    PolicyStats,
    check_same,
    entropy_bonus,
    kl,
    kl_loss,
    policy_loss,
    sampler_weight,
    token_weights,
    value_loss,
)


@pytest.fixture(autouse=True, scope="module")
def _double_precision() -> Iterator[None]:
    with precision(torch.float64):
        yield


# --- Clipped surrogate --------------------------------------------------------------------------------------

# PPO (1707.06347) with both clips 0.2, and with the dual clip of 1912.09729, c = 3, by hand from the
# formulas; golden.json, "clipped_surrogate": (ratio, advantage, surrogate, surrogate with the dual clip).
SURROGATE = [
    (1.0, 0.5, 0.5, 0.5),
    (1.5, 1.0, 1.2, 1.2),
    (0.5, 1.0, 0.5, 0.5),
    (1.5, -1.0, -1.5, -1.5),
    (0.5, -1.0, -0.8, -0.8),
    (5.0, -1.0, -5.0, -3.0),
]


def one_token(ratio: float, advantage: float, **options: Any) -> tuple[float, float, PolicyStats]:
    """Surrogate of a single token, its derivative by the log-prob, and the stats."""
    logprob = torch.tensor([[math.log(ratio) - 1.0]], requires_grad=True)
    loss, stats = policy_loss(
        logprob, torch.tensor([[-1.0]]), torch.tensor([[advantage]]), torch.ones(1, 1), **options
    )
    loss.backward()
    assert logprob.grad is not None
    return -loss.item(), -logprob.grad.item(), stats


@pytest.mark.parametrize(("ratio", "advantage", "plain", "dual"), SURROGATE)
def test_surrogate(ratio: float, advantage: float, plain: float, dual: float) -> None:
    assert one_token(ratio, advantage)[0] == pytest.approx(plain, abs=1e-12)
    assert one_token(ratio, advantage, dual_clip=3.0)[0] == pytest.approx(dual, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate"),
    [(1.5, 1.0, 1.28), (1.25, 1.0, 1.25), (0.5, -1.0, -0.9), (0.95, -1.0, -0.95), (0.5, 2.0, 1.0)],
)
def test_the_clip_has_a_bound_of_its_own_below_and_above(
    ratio: float, advantage: float, surrogate: float
) -> None:
    got, *_ = one_token(ratio, advantage, clip_low=0.1, clip_high=0.28)
    assert got == pytest.approx(surrogate, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [
        (1.5, 1.0, 0.0),
        (0.5, -1.0, 0.0),
        (1.1, 2.0, 2.2),
        (1.5, -1.0, -1.5),
        (0.5, 1.0, 0.5),
        (1.0, -3.0, -3.0),
    ],
)
def test_a_clipped_token_has_no_gradient_and_any_other_ratio_times_advantage(
    ratio: float, advantage: float, gradient: float
) -> None:
    _, got, stats = one_token(ratio, advantage)
    assert got == pytest.approx(gradient, abs=1e-12)
    assert stats.clip_share == float(gradient == 0)


def test_a_token_held_by_the_dual_clip_has_no_gradient() -> None:
    _, gradient, stats = one_token(5.0, -1.0, dual_clip=3.0)
    assert (gradient, stats.dual_clip_share, stats.clip_share) == (0.0, 1.0, 0.0)
    assert one_token(2.5, -1.0, dual_clip=3.0)[1] == pytest.approx(-2.5)


def test_the_sampler_enters_as_a_detached_weight_of_at_most_2() -> None:
    new = torch.tensor([[-1.0, -1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -1.0, -1.0]], requires_grad=True)
    sampler = torch.tensor([[-1.0 - math.log(1.5), -9.0, -1.0 + math.log(4.0)]], requires_grad=True)
    loss, _ = policy_loss(new, old, torch.ones(1, 3), torch.ones(1, 3), sampler_logprobs_BK=sampler)
    loss.backward()
    assert loss.item() == pytest.approx(-(1.5 + 2.0 + 0.25), abs=1e-12)
    assert new.grad is not None and new.grad.tolist()[0] == pytest.approx([-1.5, -2.0, -0.25], abs=1e-12)
    assert old.grad is None and sampler.grad is None


def test_no_ratio_overflows() -> None:
    far = torch.tensor([[500.0]], requires_grad=True, dtype=torch.float32)
    loss, stats = policy_loss(far, torch.zeros(1, 1), -torch.ones(1, 1), torch.ones(1, 1))
    loss.backward()
    assert loss.item() == pytest.approx(math.exp(20), rel=1e-6)
    assert far.grad is not None and torch.isfinite(far.grad).all()
    assert stats.ratio_max == pytest.approx(math.exp(20), rel=1e-6)


def test_with_old_log_probs_detached_the_gradient_is_that_of_the_policy_gradient() -> None:
    """REINFORCE: grad = - mean of A grad log pi, whatever the log-probs are."""
    logprobs = torch.tensor([[-0.3, -2.0], [-7.0, -0.1]], requires_grad=True)
    advantages = torch.tensor([[1.5, -0.5], [0.25, 2.0]])
    loss, stats = policy_loss(logprobs, logprobs.detach(), advantages, weights([[1, 1], [1, 1]], [0, 1]))
    loss.backward()
    assert logprobs.grad is not None and torch.equal(logprobs.grad, -advantages / 4)
    assert (stats.approx_kl, stats.clip_share, stats.ratio_min, stats.ratio_max) == (0.0, 0.0, 1.0, 1.0)


def test_stats_by_hand() -> None:
    ratio = torch.tensor([[1.5, 0.25, 1.0, 7.0]])
    advantages = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    _, stats = policy_loss(ratio.log(), torch.zeros(1, 4), advantages, weights([[1, 1, 1, 0]], [0]))
    assert (stats.tokens, stats.ratio_min, stats.ratio_max) == (3, pytest.approx(0.25), pytest.approx(1.5))
    assert stats.clip_share == pytest.approx(2 / 3)
    # 1/3 [(0.5 - ln 1.5) + (-0.75 - ln 0.25)] = 1/3 [0.0945348919 + 0.6362943611]
    assert stats.approx_kl == pytest.approx(0.2436097510, abs=1e-9)


# --- Critic and entropy -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "derivative"),
    [
        # clip 0.2: V moved from 0 to 1, G = 2: max((1-2)^2, (0.2-2)^2) / 2 = 1.62, and the clip has no slope
        (1.0, 0.0, 2.0, 1.62, 0.0),
        # the same move past G = 0.1: max(0.81, 0.01) / 2, with slope V - G
        (1.0, 0.0, 0.1, 0.405, 0.9),
        # within the clip: (0.1 - 1)^2 / 2
        (0.1, 0.0, 1.0, 0.405, -0.9),
        (-1.0, 0.0, -2.0, 1.62, 0.0),
    ],
)
def test_value_loss_by_hand(value: float, old: float, target: float, loss: float, derivative: float) -> None:
    leaf = torch.tensor([[value]], requires_grad=True)
    got = value_loss(leaf, torch.tensor([[old]]), torch.tensor([[target]]), torch.ones(1, 1), clip=0.2)
    got.backward()
    assert leaf.grad is not None
    assert (got.item(), leaf.grad.item()) == (pytest.approx(loss), pytest.approx(derivative))


def test_value_loss_without_a_clip_is_half_the_squared_error() -> None:
    got = value_loss(torch.tensor([[3.0, 1.0]]), torch.zeros(1, 2), torch.ones(1, 2), torch.full((1, 2), 0.5))
    assert got.item() == pytest.approx(0.5 * (4 + 0) / 2)


def test_only_the_new_log_probs_and_values_get_a_gradient() -> None:
    """Advantages and old values may come from a critic that is being trained in the same pass."""
    new, old, advantages, returns = (torch.rand(2, 3).requires_grad_() for _ in range(4))
    policy_loss(new, old, advantages, torch.ones(2, 3))[0].backward()
    value_loss(new, old, returns, torch.ones(2, 3), clip=0.1).backward()
    assert new.grad is not None and (old.grad, advantages.grad, returns.grad) == (None, None, None)


# --- Faults of neighbouring systems -------------------------------------------------------------------------


def test_a_mask_that_hides_text_which_the_sampler_saw_compares_two_policies() -> None:
    """Log-probs of a sampler that saw more text differ from the trainer's: refused, with the place."""
    ours = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    sampler = torch.tensor([[-1.0, -1.00001], [-1.0, -0.4]])
    with pytest.raises(ConfigError, match=r"the sampler.* got one 0\.6 nats.*segment 1, token 1"):
        check_same(ours, sampler, torch.ones(2, 2), atol=1e-3, what="the sampler")
    check_same(ours, sampler, torch.tensor([[1.0, 1.0], [1.0, 0.0]]), atol=1e-3, what="the sampler")
    for bad in (math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"inf nats.*segment 0, token 0"):
            check_same(torch.tensor([[bad]]), torch.tensor([[0.0]]), torch.ones(1, 1), atol=1.0, what="x")


def test_the_loss_mask_one_token_off_at_segment_borders() -> None:
    """Roles make the mask, ids never: the end-of-turn token counts though padding has its id (SmolLM2: 2)."""
    roles = np.array(
        [[MEM, THINK, CALL, CALL, NOT_GENERATED], [MEM, ANSWER, ANSWER, ANSWER, ANSWER]], np.int8
    )
    rollouts = Trajectories(
        question_N=np.array([0, 0]),
        outcome_N=np.array([1.0, 0.0]),
        shaping_N=np.zeros(2),
        masked_N=np.zeros(2, bool),
        rollout_R=np.array([0, 1]),
        number_R=np.array([1, 1]),
        round_B=np.array([0, 1]),
        roles_BK=roles,
    )
    mask, rollout_B = torch.from_numpy(rollouts.mask_BK), torch.from_numpy(rollouts.rollout_B)
    logprobs = torch.zeros(2, 5, requires_grad=True)
    weights_BK = token_weights(mask, rollout_B, "token-mean")
    policy_loss(logprobs, logprobs.detach(), torch.ones(2, 5), weights_BK)[0].backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist()[0] == pytest.approx([-1 / 9] * 4 + [0.0])
    assert logprobs.grad.tolist()[1] == pytest.approx([-1 / 9] * 5)


def test_advantages_of_shape_B_that_broadcast_over_tokens_by_accident() -> None:
    """With B = K torch would pay segment j's advantage to token j of every segment."""
    square = torch.zeros(3, 3)
    with pytest.raises(ConfigError, match=r"one shape \(B, K\), got .*\(3,\)"):
        policy_loss(square, square, torch.ones(3), torch.ones(3, 3))


# --- Errors, and what is left over --------------------------------------------------------------------------


def test_wrong_options_are_refused() -> None:
    one = torch.ones(1, 1)
    with pytest.raises(ConfigError, match="did you mean 'token-mean'"):
        token_weights(one, torch.tensor([0]), "token_mean")
    with pytest.raises(ConfigError, match="wanted max_tokens"):
        token_weights(one, torch.tensor([0]), NORM)
    with pytest.raises(ConfigError, match="got 0 with"):
        token_weights(one, torch.tensor([0]), NORM, 0)
    with pytest.raises(ConfigError, match="got 8 with 'token-sum'"):
        token_weights(one, torch.tensor([0]), "token-sum", 8)
    with pytest.raises(ConfigError, match="a rollout for each"):
        token_weights(torch.ones(2, 3), torch.tensor([0]), "token-sum")
    with pytest.raises(ConfigError, match="unknown KL estimator 'k4'"):
        kl(one, one, "k4")
    for options in ({"clip_low": -0.1}, {"clip_low": 1.1}, {"clip_high": -1.0}, {"dual_clip": 1.0}):
        with pytest.raises(ConfigError, match="wanted clip_low"):
            policy_loss(one, one, one, one, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="wanted a clip above 0"):
        value_loss(one, one, one, one, clip=0.0)


@pytest.mark.parametrize(
    ("mask", "rollouts", "message"),
    [
        ([[1, 1]], torch.tensor([0]), "token weights wanted tensors, got list"),
        (torch.ones(1, 2), None, "token weights wanted tensors, got NoneType"),
        (np.ones((1, 2)), np.array([0]), "token weights wanted tensors, got ndarray, ndarray"),
        (torch.ones(2, 2), torch.tensor([0, -1]), "rollouts as integers from 0, got torch.int64 from -1"),
        (torch.ones(2, 2), torch.tensor([0.5, 1.0]), "integers from 0, got torch.float32 from 0.5"),
        (torch.ones(2, 2), torch.tensor([True, False]), "integers from 0, got torch.bool from False"),
        (torch.ones(0, 2), torch.zeros(0), "integers from 0, got torch.float32: number"),
        (torch.ones(2), torch.tensor([0, 1]), r"wanted a mask \(B, K\)"),
    ],
)
def test_what_are_no_tokens_or_no_rollouts_is_refused(mask: Any, rollouts: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        token_weights(mask, rollouts, "token-mean")


@pytest.mark.parametrize("most", [0.5, 8.0, math.nan, True, "8"])
def test_a_number_of_tokens_is_whole(most: Any) -> None:
    with pytest.raises(ConfigError, match=f"wanted max_tokens.*got {most} with"):
        token_weights(torch.ones(1, 1), torch.tensor([0]), NORM, most)


def test_losses_of_what_are_no_tensors_or_of_other_shapes_are_refused() -> None:
    one: Any = torch.ones(1, 2)
    for wrong in ([[0.0, 0.0]], None, np.zeros((1, 2))):
        for loss in (
            lambda x: policy_loss(x, one, one, one),
            lambda x: value_loss(one, x, x, one),
            lambda x: sampler_weight(x, x, one),
            lambda x: check_same(one, x, one, atol=1.0, what="x"),
            lambda x: kl_loss(one, x, one, "k1"),
            lambda x: entropy_bonus(x, one),
        ):
            with pytest.raises(ConfigError, match="a loss wanted tensors, got"):
                loss(wrong)
    with pytest.raises(ConfigError, match=r"one shape, got \(1, 2\) and \(2,\)"):
        kl(one, torch.ones(2), "k1")
    with pytest.raises(ConfigError, match=r"above 0 .or None., got nan"):
        value_loss(one, one, one, one, clip=math.nan)


def test_sampler_weight_by_hand() -> None:
    old, sampler = torch.tensor([[0.0, 0.0, math.nan]]), torch.tensor([[0.0, math.log(2.0), 1.0]])
    got = sampler_weight(old, sampler, torch.tensor([[1.0, 1.0, 0.0]]))
    assert got.tolist()[0] == pytest.approx([1.0, 0.5, 1.0])


def test_half_precision_log_probs_are_aggregated_in_the_precision_of_the_weights() -> None:
    ones = torch.ones(1, 4096, dtype=torch.bfloat16)
    with precision(torch.float32):
        loss, _ = policy_loss(ones, ones, ones, token_weights(ones, torch.tensor([0]), "token-mean"))
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(-1.0, abs=1e-6)


def test_a_bandit_is_learned_to_a_threshold() -> None:
    """Three arms, the last pays: two steps a batch on the clipped loss, exact advantages."""
    logits, generator = torch.zeros(3, requires_grad=True), torch.Generator().manual_seed(0)
    optimiser = torch.optim.SGD([logits], lr=2.0)
    for _ in range(60):
        arms = torch.multinomial(logits.detach().softmax(0), 64, replacement=True, generator=generator)
        rewards = (arms == 2).double()
        advantages = (rewards - rewards.mean())[:, None]
        old = logits.detach().log_softmax(0)[arms][:, None]
        for _ in range(2):
            new = logits.log_softmax(0)[arms][:, None]
            loss, _ = policy_loss(new, old, advantages, torch.full((64, 1), 1 / 64))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert logits.softmax(0)[2].item() > 0.95


def test_the_typed_numbers_are_those_of_the_golden_file() -> None:
    table = [tuple(row.values()) for row in golden("clipped_surrogate")]
    assert table == [pytest.approx(row) for row in SURROGATE]
