"""KL estimators: exact expectations over three outcomes, their gradients, finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from losses_help import golden, precision, weights
from mempo_env.errors import ConfigError
from mempo_trainers.losses import (
    KLS,
    check_same,
    kl,
    kl_coefficient,
    kl_loss,
    token_weights,
)


@pytest.fixture(autouse=True, scope="module")
def _double_precision() -> Iterator[None]:
    with precision(torch.float64):
        yield


# --- KL estimators ------------------------------------------------------------------------------------------

# Schulman (2020), by hand from k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r with r = pi_ref / pi;
# golden.json, "kl".
PI, REF = [0.6, 0.3, 0.1], [0.3, 0.5, 0.2]
EXACT = 0.1933259031501754
PER_OUTCOME = {
    "k1": [0.6931471805599453, -0.5108256237659907, -0.6931471805599453],
    "k2": [0.2402265069591007, 0.13047140894795675, 0.2402265069591007],
    "k3": [0.1931471805599453, 0.15584104290067602, 0.3068528194400547],
    "low_var_kl": [0.1931471805599453, 0.15584104290067602, 0.3068528194400547],
}
MEAN = {"k1": EXACT, "k2": 0.20729997755575752, "k3": EXACT, "low_var_kl": EXACT}
# Expected gradients by the logits when the estimate is the loss: 0, grad KL(pi || ref), grad KL(ref || pi).
K2_GRADIENT = [0.29989276644586194, -0.21124545807484982, -0.08864730837101208]
K3_GRADIENT = [0.3, -0.2, -0.1]
GRADIENT = {"k1": [0.0] * 3, "k2": K2_GRADIENT, "k3": K3_GRADIENT, "low_var_kl": K3_GRADIENT}


def expected_gradient(kind: str, sampled_by: list[float] = PI) -> Tensor:
    """Gradient by the logits of pi, exactly averaged over the three outcomes of the sampling policy."""
    logits = torch.tensor(PI).log().requires_grad_()
    values = kl(logits.log_softmax(0), torch.tensor(REF).log(), kind)
    (torch.tensor(sampled_by) * values).sum().backward()
    assert logits.grad is not None
    return logits.grad


@pytest.mark.parametrize("kind", KLS)
def test_kl_per_outcome_and_in_expectation(kind: str) -> None:
    values = kl(torch.tensor(PI).log(), torch.tensor(REF).log(), kind)
    assert values.tolist() == pytest.approx(PER_OUTCOME[kind], abs=1e-12)
    assert (torch.tensor(PI) * values).sum().item() == pytest.approx(MEAN[kind], abs=1e-12)


@pytest.mark.parametrize("kind", KLS)
def test_kl_gradients_as_typed(kind: str) -> None:
    assert expected_gradient(kind).tolist() == pytest.approx(GRADIENT[kind], abs=1e-12)


def central_differences(f: Callable[[Tensor], Tensor], at: Tensor, h: float = 1e-5) -> list[float]:
    steps = h * torch.eye(len(at))
    return [((f(at + step) - f(at - step)) / (2 * h)).item() for step in steps]


def test_on_policy_k2_pulls_along_kl_of_pi_to_ref_and_k3_along_kl_of_ref_to_pi() -> None:
    logits, ref = torch.tensor(PI).log(), torch.tensor(REF)

    def forward(logits: Tensor) -> Tensor:
        pi = logits.softmax(0)
        return (pi * (pi / ref).log()).sum()

    def backward(logits: Tensor) -> Tensor:
        return (ref * (ref / logits.softmax(0)).log()).sum()

    assert expected_gradient("k2").tolist() == pytest.approx(central_differences(forward, logits), abs=1e-8)
    assert expected_gradient("k3").tolist() == pytest.approx(central_differences(backward, logits), abs=1e-8)


def test_off_policy_neither_k2_nor_k3_has_the_gradient_of_a_kl() -> None:
    for kind, right in (("k2", K2_GRADIENT), ("k3", K3_GRADIENT)):
        got = expected_gradient(kind, sampled_by=[0.2, 0.2, 0.6])
        assert not np.allclose(got.tolist(), right, atol=0.05)


def test_k1_as_a_loss_has_zero_expected_gradient() -> None:
    """For any policy, not just the typed one: the mean of grad log pi under pi is 0."""
    random = torch.Generator().manual_seed(1)
    for _ in range(5):
        logits = torch.randn(7, generator=random).requires_grad_()
        values = kl(logits.log_softmax(0), torch.randn(7, generator=random).log_softmax(0), "k1")
        (logits.softmax(0).detach() * values).sum().backward()
        assert logits.grad is not None and logits.grad.abs().max() < 1e-15


@pytest.mark.parametrize(("log_r", "value"), [(-30.0, 10.0), (30.0, 10.0), (0.5, 0.1487212707001282)])
def test_low_var_kl_at(log_r: float, value: float) -> None:
    assert kl(torch.tensor(-log_r), torch.tensor(0.0), "low_var_kl").item() == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("r", "pulls"), [(13.5, True), (13.7, False), (1e-3, True), (1e-6, False), (1.1, True)]
)
def test_low_var_kl_has_no_gradient_where_its_clamp_holds(r: float, pulls: bool) -> None:
    """r - 1 - log r passes 10 at r = 13.6, and far on the other side at r = 1.7e-5."""
    for kind, want in (("low_var_kl", pulls), ("k3", True)):
        logprob = torch.tensor(-math.log(r), requires_grad=True)
        kl(logprob, torch.tensor(0.0), kind).backward()
        assert logprob.grad is not None and (logprob.grad.item() != 0) == want


def test_the_reference_gets_no_gradient() -> None:
    ref = torch.tensor([[-1.0]], requires_grad=True)
    for kind in KLS:
        kl_loss(torch.tensor([[-2.0]], requires_grad=True), ref, torch.ones(1, 1), kind).backward()
    assert ref.grad is None


def test_kl_on_memory_tokens_is_a_mask() -> None:
    """Three tokens, the first two of memory: k1 values 1, 2, 9."""
    new, ref = torch.tensor([[1.0, 2.0, 9.0]]), torch.zeros(1, 3)
    every, memory = torch.tensor([[True, True, True]]), torch.tensor([[True, True, False]])
    whole = token_weights(every, torch.tensor([0]), "token-mean")
    part = token_weights(every & memory, torch.tensor([0]), "token-mean")
    assert kl_loss(new, ref, whole, "k1").item() == pytest.approx(4.0)
    assert kl_loss(new, ref, part, "k1").item() == pytest.approx(1.5)
    assert kl_loss(new, ref, whole * memory, "k1").item() == pytest.approx(1.0)


def test_the_coefficient_of_kl_grows_linearly_over_the_first_10_steps() -> None:
    got = [kl_coefficient(step, 0.5) for step in (0, 1, 2, 5, 9, 10, 11, 1000)]
    assert got == pytest.approx([0.0, 0.05, 0.1, 0.25, 0.45, 0.5, 0.5, 0.5])
    assert kl_coefficient(0, 0.5, warmup=0) == 0.5


def test_k3_with_the_ratio_inverted() -> None:
    """With r = pi / pi_ref it would average to 0.2367 under pi, and read 0.307, not 0.193, at r = 1/2."""
    values = kl(torch.tensor(PI).log(), torch.tensor(REF).log(), "k3")
    mean = (torch.tensor(PI) * values).sum().item()
    assert mean == pytest.approx(EXACT, abs=1e-12) and mean != pytest.approx(0.23667409684982454, abs=1e-3)
    assert values[0].item() == pytest.approx(0.5 - 1 + math.log(2))


def test_kl_to_a_reference_of_another_checkpoint_is_large_from_step_one_without_an_error() -> None:
    torch.manual_seed(0)
    net, other = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    features, every = torch.randn(2, 5, 4), weights([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]], [0, 1])
    ours, same, wrong = (n(features).log_softmax(-1)[..., 0] for n in (net, net, other))
    assert kl_loss(ours, same, every, "k3").item() == 0.0
    check_same(ours, same, every, atol=1e-5, what="the reference in the first step")
    with pytest.raises(ConfigError, match=r"the reference.*wanted.*within 1e-05 nats.*segment \d, token \d"):
        check_same(ours, wrong, every, atol=1e-5, what="the reference in the first step")


def test_the_typed_numbers_are_those_of_the_golden_file() -> None:
    block = golden("kl")
    assert (block["pi"], block["pi_ref"], block["exact_kl"]) == (PI, REF, pytest.approx(EXACT))
    for kind, values in block["per_outcome"].items():
        assert values == pytest.approx(PER_OUTCOME[kind])
        assert block["mean_under_pi"][kind] == pytest.approx(MEAN[kind])
    for name, values in block["grad_wrt_logits"].items():
        if isinstance(values, list):
            assert values == pytest.approx(GRADIENT[name[:2]])
