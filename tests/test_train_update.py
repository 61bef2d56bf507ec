"""A step of learning: micro-batches, divergence, masks, every estimator."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mempo_env.errors import ConfigError
from mempo_trainers import credit
from mempo_trainers.batching import take
from mempo_trainers.config import PPO_CREDITS, Config
from mempo_trainers.credit import CREDITS
from mempo_trainers.doctor.cli import examine
from mempo_trainers.losses import AGGREGATIONS
from mempo_trainers.policies.base import Responses, Rollouts
from mempo_trainers.policies.pointer import ArrayContexts, ArrayPolicy
from mempo_trainers.run_files import CHECKPOINT
from mempo_trainers.toy import Toy, ToyDraw
from mempo_trainers.update import Critic, update
from train_help import TASK, metrics, played, train, wild, with_config


class Split(ArrayPolicy):
    """Hands out its segments in some batches, and remembers its gradients instead of following them."""

    def __init__(self, like: ArrayPolicy, parts: int) -> None:
        super().__init__(like.layout, learning_rate=0.03, max_grad_norm=1e9, seed=0)
        self.heads.load_state_dict(like.heads.state_dict())
        self.parts = parts

    def batches(self, contexts: ArrayContexts, responses: Responses) -> list[NDArray[np.int64]]:
        rows = np.random.default_rng(self.parts).permutation(len(responses.tokens_BK))
        return [part for part in np.array_split(rows, self.parts) if len(part)]

    def update(self) -> float:
        self.grads = {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
            for name, weight in self.heads.named_parameters()
        }
        self.heads.zero_grad()
        return float(torch.cat([grad.flatten() for grad in self.grads.values()]).norm())


@pytest.fixture(scope="module")
def batch() -> tuple[ArrayPolicy, Rollouts, NDArray[np.float32]]:
    """A policy, what it played, and advantages of any size on what it wrote."""
    envs = TASK.envs(16)
    policy = wild(envs, size=0.1)
    rollouts = played(policy, envs, group=4)
    assert rollouts.data.rounds_N.max() == envs.task.max_rounds
    chance = np.random.default_rng(0).normal(size=rollouts.responses.tokens_BK.shape)
    return policy, rollouts, np.where(rollouts.data.mask_BK, chance, 0).astype(np.float32)


def assert_close(one: Split, other: Split) -> None:
    for name, grad in one.grads.items():
        torch.testing.assert_close(other.grads[name], grad, rtol=1e-4, atol=1e-6)
    assert max(grad.abs().max() for grad in one.grads.values()) > 1e-4


# --- Micro-batches and masks -------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    "changes", [{}, {"kl": 0.5, "kl_tokens": "memory"}, {"entropy": 0.1, "epochs": 2}, {"critic": True}]
)
def test_one_batch_of_eight_is_eight_of_one(
    aggregation: str, changes: dict[str, Any], batch: tuple[ArrayPolicy, Rollouts, NDArray[np.float32]]
) -> None:
    policy, rollouts, advantages = batch
    settings = dict(changes)
    critic = None
    if settings.pop("critic", False):
        returns = torch.from_numpy(np.random.default_rng(1).normal(size=advantages.shape).astype(np.float32))
        critic = Critic(torch.zeros_like(returns), returns)
    config = with_config(aggregation=aggregation, **settings)
    reference = wild(TASK.envs(1), seed=5, size=0.4) if config.kl else None
    whole, parts = Split(policy, 1), Split(policy, 8)
    told = [update(p, rollouts, advantages, config, 20, reference, critic) for p in (whole, parts)]
    assert_close(whole, parts)
    assert told[0] == pytest.approx(told[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("shorter", [False, True])
def test_masked_rollouts_are_as_if_they_had_not_been(
    shorter: bool, aggregation: str, batch: tuple[ArrayPolicy, Rollouts, NDArray[np.float32]]
) -> None:
    """Also where the longest are among them, and all others shorter."""
    policy, rollouts, advantages = batch
    rounds_N = rollouts.data.rounds_N
    masked = np.arange(len(rounds_N)) % 3 == 0
    if shorter:
        masked |= rounds_N == rounds_N.max()
    assert (rounds_N[~masked].max() < rounds_N.max()) == shorter
    hidden = msgspec.structs.replace(rollouts, data=msgspec.structs.replace(rollouts.data, masked_N=masked))
    config = with_config(aggregation=aggregation, entropy=0.1)
    here, there = Split(policy, 3), Split(policy, 1)
    kept = ~masked[rollouts.data.rollout_B]
    update(here, hidden, advantages, config, 1)
    update(there, take(rollouts, ~masked), advantages[kept], config, 1)
    assert_close(there, here)


def test_the_gradient_is_the_advantages_times_that_of_the_log_probs(
    batch: tuple[ArrayPolicy, Rollouts, NDArray[np.float32]],
) -> None:
    """With one epoch the ratio is 1, so the gradient is that of - sum of w A log pi (REINFORCE)."""
    policy, rollouts, advantages = batch
    learner, plain = Split(policy, 4), Split(policy, 1)
    update(learner, rollouts, advantages, with_config(aggregation="token-sum"), 1)
    logp, _ = plain.logprobs(rollouts.contexts, rollouts.responses)
    (-(logp * torch.from_numpy(advantages)).sum()).backward()  # type: ignore[no-untyped-call]
    plain.update()
    assert_close(plain, learner)


def test_advantages_of_zero_move_nothing(batch: tuple[ArrayPolicy, Rollouts, NDArray[np.float32]]) -> None:
    policy, rollouts, advantages = batch
    learner = Split(policy, 2)
    told = update(learner, rollouts, np.zeros_like(advantages), with_config(), 1)
    assert all((grad == 0).all() for grad in learner.grads.values())
    assert told["loss"] == 0 and told["grad_norm"] == 0


# --- What the metrics say ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
@pytest.mark.parametrize("tokens", ["all", "memory"])
def test_divergence_begins_at_exactly_zero(algo: str, tokens: str, tmp_path: Path) -> None:
    train(tmp_path / "run", config=with_config(algo=algo, kl=0.1, kl_tokens=tokens))
    kl = [row["kl"] for row in metrics(tmp_path / "run")]
    assert kl[0] == 0
    assert all(value > 0 for value in kl[1:])


def test_with_one_epoch_the_policy_that_learns_is_the_one_that_wrote(tmp_path: Path) -> None:
    train(tmp_path / "one")
    train(tmp_path / "two", config=with_config(epochs=3, learning_rate=0.3))
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert all(row["policy_kl"] == row["clip_share"] == 0 for row in one)
    assert all(row["sampler_gap"] < 1e-6 for row in one + two)  # other batch sizes round otherwise
    assert any(row["policy_kl"] > 0 and row["clip_share"] > 0 for row in two)


def test_an_entropy_bonus_keeps_it_trying(tmp_path: Path) -> None:
    task, entropies = Toy(objectives=1, worlds=60, reward="em_mean"), []
    for weight in (0.0, 1.0):
        out = tmp_path / str(weight)
        train(out, task, with_config(steps=25, questions=8, credit="grpo", entropy=weight))
        entropies.append(metrics(out)[-1]["entropy"])
    assert entropies[1] > 1.5 * entropies[0]


@pytest.mark.parametrize("name", sorted(set(CREDITS) - {"gae"}))
def test_every_estimator_trains_by_grpo(name: str, tmp_path: Path) -> None:
    task = Toy(objectives=1, worlds=60, reward="em_mean")
    train(tmp_path / "run", task, with_config(steps=3, questions=6, credit=name))
    rows = metrics(tmp_path / "run")
    assert [row["credit"] for row in rows] == [name] * 3
    assert all(row["skipped_updates"] == 0 for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows)


@pytest.mark.parametrize("name", PPO_CREDITS)
def test_every_estimator_that_ppo_takes_trains_by_it(name: str, tmp_path: Path) -> None:
    task = Toy(objectives=1, worlds=60, reward="em_mean")
    train(tmp_path / "run", task, with_config(steps=3, questions=6, algo="ppo", credit=name))
    rows = metrics(tmp_path / "run")
    assert all(row["skipped_updates"] == 0 and row["value_loss"] > 0 for row in rows)


@pytest.mark.parametrize(
    "algo, name", [("grpo", "grpo"), ("grpo", "mempo"), ("ppo", "gae"), ("ppo", "mempo")]
)
def test_credit_reaches_the_first_round(algo: str, name: str, tmp_path: Path) -> None:
    """The outcome is paid in the last round; tokens of first rounds that others follow get their share."""
    task = Toy(objectives=1, worlds=60, reward="em_mean")
    train(tmp_path / "run", task, with_config(steps=2, questions=8, algo=algo, credit=name))
    for row in metrics(tmp_path / "run"):
        assert row["degenerate_groups"] < row["groups"] and row["rounds"] > 1
        assert row["advantage_first"] > 0.05


def test_every_round_of_a_rollout_gets_its_outcome() -> None:
    task = Toy(objectives=1, worlds=60, reward="em_mean")
    envs = task.envs(64)
    rollouts = played(wild(envs, size=0.1), envs, group=8)
    data = rollouts.data
    advantages = credit.make("grpo")(data).advantages_BK
    assert len(set(data.outcome_N)) > 1
    for i in range(64):
        rows = data.rollout_B == i
        written = advantages[rows][data.roles_BK[rows] != 0]
        assert len(set(written.tolist())) == 1
        assert (advantages[rows][data.roles_BK[rows] == 0] == 0).all()


def test_dynamic_sampling_tells_what_it_wasted(tmp_path: Path) -> None:
    task = Toy(objectives=1, worlds=60, reward="em_mean")
    config = with_config(steps=2, questions=4, credit="grpo", dynamic_sampling=30)
    train(tmp_path / "run", task, config)
    for row in metrics(tmp_path / "run"):
        assert row["groups"] == 4 and row["dead_groups"] == 0
        assert row["groups_generated"] == 4 + row["groups_dropped"]
        assert row["wasted"] == pytest.approx(row["groups_dropped"] / row["groups_generated"])
    train(tmp_path / "plain", task, msgspec.structs.replace(config, dynamic_sampling=0))
    assert any(row["dead_groups"] > 0 for row in metrics(tmp_path / "plain"))


def test_the_defaults_are_those_of_the_seed_claim() -> None:
    config = Config()
    assert (config.algo, config.credit, config.questions * config.rollouts * config.steps) == (
        "grpo",
        "mempo",
        15_360,
    )
    assert (Toy().objectives, Toy().reward, Toy().policy) == (4, "em_all", "pointer")


# --- Refused in the first step -----------------------------------------------------------------------------


class OtherReference(ArrayPolicy):
    """The frozen copy of it comes from another checkpoint."""

    def __init__(self) -> None:
        super().__init__(TASK.envs(1).layout, learning_rate=0.03, max_grad_norm=1, seed=0)

    def __deepcopy__(self, memo: dict[int, Any]) -> ArrayPolicy:
        return wild(TASK.envs(1), seed=1, size=0.1)


def assert_refused(run: Path, policy: ArrayPolicy, told: str, **changes: Any) -> None:
    """Training ends with that error, and nothing was learned or written."""
    before = copy.deepcopy(policy.heads.state_dict())
    with pytest.raises(ConfigError, match=told):
        train(run, config=with_config(**changes), policy=policy)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.heads.state_dict().items())
    assert metrics(run) == [] and not (run / CHECKPOINT).exists()


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_reference_from_another_checkpoint_is_refused(algo: str, epochs: int, tmp_path: Path) -> None:
    told = r"log-probs of the reference in the first step: wanted .* within 0.0001 nats, got .*same weights"
    changes = {"algo": algo, "epochs": epochs, "kl": 0.1}
    assert_refused(tmp_path / "run", OtherReference(), told, **changes, kl_tokens="memory")
    train(tmp_path / "none", config=with_config(algo=algo, epochs=epochs), policy=OtherReference())


@pytest.mark.parametrize("off", [0.06, -0.06, np.nan, -np.inf])
@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_sampler_that_is_off_is_refused(algo: str, off: float, tmp_path: Path) -> None:
    told = r"log-probs of the sampler in step 1: wanted .* within 0.05 nats, got .* at segment 0, token"
    assert_refused(tmp_path / "run", Saying(sampler=off), told, algo=algo)


def test_noise_of_the_sampler_is_no_reason_to_refuse(tmp_path: Path) -> None:
    train(tmp_path / "run", policy=Saying(sampler=0.04))
    assert metrics(tmp_path / "run")[0]["sampler_gap"] == pytest.approx(0.04, abs=1e-4)


@pytest.mark.parametrize("algo", ["grpo", "ppo"])
def test_a_run_that_goes_on_has_left_its_reference_and_is_not_refused(algo: str, tmp_path: Path) -> None:
    """Killed behind a checkpoint, it goes on with a policy far from the one that it began with."""
    config = with_config(algo=algo, kl=0.1)
    policy = TASK.make_policy(config)
    draw, kept = ToyDraw(policy, TASK, config.rollouts, config.seed), 4

    def until(step: int, attempt: int, questions: int) -> Rollouts:
        if step > kept:
            raise KeyboardInterrupt
        return draw(step, attempt, questions)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", config=config, policy=policy, draw=lambda _: until)
    assert len(metrics(tmp_path / "run")) == kept
    train(tmp_path / "run", config=config)
    assert [row["step"] for row in metrics(tmp_path / "run") if row["kl"] > 1e-4] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("off, weight", [(-0.5, np.exp(0.5)), (0.5, np.exp(-0.5)), (-2.0, 2.0), (5e-5, 1.0)])
def test_a_sampler_that_is_off_later_on_weighs_its_tokens(
    off: float, weight: float, epochs: int, batch: tuple[ArrayPolicy, Rollouts, NDArray[np.float32]]
) -> None:
    """By min(exp(old - sampler), 2), in every other segment; noise is none."""
    policy, rollouts, advantages_BK = batch
    said = rollouts.responses
    away_B1 = (np.arange(len(advantages_BK)) % 2 == 0)[:, None]
    other_BK = said.logprobs_BK + np.where(away_B1, np.float32(off), np.float32(0))
    stale = msgspec.structs.replace(rollouts, responses=Responses(said.tokens_BK, said.roles_BK, other_BK))
    weighed_BK = np.where(away_B1, weight * advantages_BK, advantages_BK).astype(np.float32)
    here, there = Split(policy, 3), Split(policy, 3)
    config = with_config(aggregation="seq-mean-token-mean", epochs=epochs)
    told = update(here, stale, advantages_BK, config, 2)
    assert told["sampler_gap"] == pytest.approx(abs(off), abs=1e-5)
    wanted = update(there, rollouts, weighed_BK, config, 2)
    assert told["loss"] == pytest.approx(wanted["loss"], abs=1e-6)
    assert_close(there, here)
    if weight == 1:
        assert all(torch.equal(grad, there.grads[name]) for name, grad in here.grads.items())


def test_a_sampler_that_is_off_later_on_is_refused_where_a_bound_is_set(
    batch: tuple[ArrayPolicy, Rollouts, NDArray[np.float32]],
) -> None:
    policy, rollouts, advantages_BK = batch
    said = rollouts.responses
    far = Responses(said.tokens_BK, said.roles_BK, said.logprobs_BK - np.float32(0.02))
    stale, here = msgspec.structs.replace(rollouts, responses=far), Split(policy, 3)
    with pytest.raises(ConfigError, match=r"sampler in step 7: wanted .* within 0.01 nats, got one 0.02"):
        update(here, stale, advantages_BK, with_config(sampler_gap=0.01), 7)
    assert not hasattr(here, "grads")
    update(here, stale, advantages_BK, with_config(sampler_gap=0.03), 7)


# --- Numbers that are none ---------------------------------------------------------------------------------


class Saying(ArrayPolicy):
    """From some step on it says of its first segment what is not so: when it samples, or when it learns."""

    def __init__(self, after: int = 0, **added: float) -> None:
        super().__init__(TASK.envs(1).layout, learning_rate=0.03, max_grad_norm=1, seed=0)
        self.added, self.left = added, after

    def written(self, contexts: ArrayContexts, tokens_BK: NDArray[np.int64]) -> Responses:
        said = super().written(contexts, tokens_BK)
        logprobs = said.logprobs_BK.copy()
        if self.left <= 0:
            logprobs[0] += self.added.get("sampler", 0.0)
        return Responses(said.tokens_BK, said.roles_BK, logprobs)

    def logprobs(self, contexts: ArrayContexts, responses: Responses) -> tuple[torch.Tensor, torch.Tensor]:
        self.left -= 1
        both = super().logprobs(contexts, responses)
        more = [torch.zeros_like(values) for values in both]
        for values, name in zip(more, ("logp", "entropy"), strict=True):
            if self.left < 0:
                values[0] = self.added.get(name, 0.0)
        return both[0] + more[0], both[1] + more[1]


def test_a_sampler_that_says_nan_later_on_is_null_in_the_row_and_found(tmp_path: Path) -> None:
    train(tmp_path / "run", policy=Saying(after=1, sampler=np.nan))
    gaps = [row["sampler_gap"] for row in metrics(tmp_path / "run")]
    assert gaps[0] < 1e-6 and gaps[1:] == [None] * 5
    assert "sampler_gap" in [finding.symptom for finding in examine(tmp_path / "run").findings]


@pytest.mark.parametrize(
    "added, shown",
    [({"logp": np.nan}, "loss"), ({"entropy": np.nan}, "entropy"), ({"entropy": np.inf}, "entropy")],
)
@pytest.mark.parametrize("changes", [{}, {"entropy": 0.1}, {"epochs": 2}])
def test_a_loss_that_is_no_number_takes_no_step(
    added: dict[str, float], shown: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Its gradient is finite, for what is added has none; the moments of Adam would move the weights too."""
    config = with_config(**changes)
    policy = Saying(after=2 if config.epochs == 1 else 2 * (config.epochs + 1), **added)
    train(tmp_path / "run", config=config, policy=policy)
    rows = metrics(tmp_path / "run")
    assert [row["skipped_updates"] for row in rows] == [0] * 2 + [config.epochs] * 4
    assert [row["step"] for row in rows if row["grad_norm"] is None and row[shown] is None] == [3, 4, 5, 6]
    assert "not_finite" in [finding.symptom for finding in examine(tmp_path / "run").findings]
    fresh = Saying()
    train(tmp_path / "short", config=msgspec.structs.replace(config, steps=2), policy=fresh)
    for name, weight in fresh.heads.state_dict().items():
        assert torch.equal(weight, policy.heads.state_dict()[name]), name


# --- Of a wrong shape --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda advantages_BK: advantages_BK[:-1],
        lambda advantages_BK: advantages_BK[:, :-1],
        lambda advantages_BK: advantages_BK[:, 0],
        lambda advantages_BK: advantages_BK.T,
        lambda advantages_BK: advantages_BK.astype(str),
        lambda advantages_BK: None,
    ],
)
def test_advantages_that_are_not_one_a_token_are_refused(wrong: Any, batch: Any) -> None:
    policy, rollouts, advantages_BK = batch
    before = copy.deepcopy(policy.state_dict())
    shape = re.escape(str(rollouts.data.roles_BK.shape))
    with pytest.raises(ConfigError, match=rf"advantages: wanted numbers \(segments, tokens\) = {shape}, got"):
        update(policy, rollouts, wrong(advantages_BK), Config(), 1)
    for name, weight in policy.heads.state_dict().items():
        assert torch.equal(weight, before["heads"][name])


def test_responses_of_other_rollouts_are_refused(batch: Any) -> None:
    policy, rollouts, advantages_BK = batch
    fewer = rollouts.responses.take(np.arange(len(advantages_BK) - 1))
    with pytest.raises(ConfigError, match=r"responses: wanted numbers \(segments, tokens\)"):
        update(policy, msgspec.structs.replace(rollouts, responses=fewer), advantages_BK, Config(), 1)


def test_rollouts_of_another_task_are_refused(batch: Any) -> None:
    _, rollouts, advantages_BK = batch
    other = Toy(objectives=1).make_policy(Config())
    with pytest.raises(ConfigError, match=r"observations: wanted rows of .*, as for the task of this policy"):
        update(other, rollouts, advantages_BK, Config(), 1)
