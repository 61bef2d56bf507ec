"""Batches taken apart and put together, and dynamic sampling on top of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from mempo_trainers import credit
from mempo_trainers.batching import join, split_groups, take
from mempo_trainers.config import Config
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.run_files import read_metrics
from mempo_trainers.sample import sample
from mempo_trainers.scores import scored
from mempo_trainers.toy import Toy, ToyDraw
from train_help import CONFIG, train, wild

EVERY_SCORE = frozenset({"memory_logp_RJ", "history_logp_RJ", "seen_logp_RJ", "prior_logp_NJ"})
TASK = Toy(objectives=2, hops=2, worlds=60, retriever_noise=0.2, reward="em_mean")


def drawn(seed: int = 0, questions: int = 3, group: int = 4) -> Rollouts:
    policy = wild(TASK.envs(1), seed=seed)
    return scored(policy, ToyDraw(policy, TASK, group, seed)(1, 0, questions), EVERY_SCORE)


GROUPWISE = [name for name in credit.CREDITS if name not in ("gae", "reinforce_pp", "placebo")]


@pytest.mark.parametrize("name", GROUPWISE)
def test_groups_have_alone_the_advantages_that_they_have_together(name: str) -> None:
    whole = drawn()
    groups = split_groups(whole)
    assert len(groups) == 3
    estimate = credit.make(name)
    alone = np.concatenate([estimate(group.data).advantages_BK for group in groups])
    order = np.argsort(whole.data.question_N[whole.data.rollout_B], kind="stable")
    np.testing.assert_allclose(alone, estimate(whole.data).advantages_BK[order], atol=1e-5)


@pytest.mark.parametrize("name", GROUPWISE)
def test_joined_batches_keep_their_advantages(name: str) -> None:
    parts = [drawn(seed=0), drawn(seed=1, questions=2)]
    joined = join(parts)
    estimate = credit.make(name)
    apart = np.concatenate([estimate(part.data).advantages_BK for part in parts])
    np.testing.assert_allclose(estimate(joined.data).advantages_BK, apart, atol=1e-5)
    assert len(np.unique(joined.data.question_N)) == 5
    assert len(joined.contexts.observation_BD) == len(joined.responses.tokens_BK) == len(joined.data.roles_BK)


def test_split_and_joined_it_is_the_same_batch() -> None:
    whole = drawn()
    again = join(split_groups(whole))
    order = np.argsort(whole.data.question_N, kind="stable")
    for name, value in msgspec.structs.asdict(again.data).items():
        first = getattr(take(whole, np.ones(len(order), bool)).data, name)
        assert (value is None) == (first is None), name
        if value is not None and name not in ("used_UC", "entry_BK", "merged_MC"):
            assert value.shape == first.shape, name
    np.testing.assert_array_equal(again.data.outcome_N, whole.data.outcome_N[order])
    np.testing.assert_array_equal(again.success_N, whole.success_N[order])


def test_padding_of_a_shorter_batch_is_nobodys_token() -> None:
    small, large = Toy(objectives=1, worlds=60), Toy(objectives=3, worlds=60)
    batches = []
    for task in (small, large):
        policy = wild(task.envs(1))
        drawn = ToyDraw(policy, task, 2, 0)(1, 0, 1)
        batches.append(
            msgspec.structs.replace(
                drawn, contexts=None, memory_views=None, history_views=None, seen_views=None, prior_views=None
            )
        )
    joined = join(batches)
    n, width = batches[0].data.roles_BK.shape
    assert joined.data.roles_BK.shape[1] == batches[1].data.roles_BK.shape[1] > width
    assert (joined.data.roles_BK[:n, width:] == 0).all() and (joined.data.entry_BK[:n, width:] == -1).all()


def test_dead_groups_are_replaced_within_the_budget() -> None:
    """Under `em_all` with one question, groups of a blank policy are mostly dead for `grpo`."""
    task = Toy(objectives=1, worlds=60)
    config = Config(credit="grpo", questions=4, rollouts=4, dynamic_sampling=40)
    policy = task.make_policy(config)
    estimate = credit.make("grpo")
    rollouts, waste = sample(policy, ToyDraw(policy, task, 4, 0), estimate, config, 1)
    advantages_BK = estimate(rollouts.data).advantages_BK
    assert credit.keep_groups(advantages_BK, rollouts.data).all()
    assert waste["groups_generated"] == 4 + waste["groups_dropped"] <= 44 and waste["groups_dropped"] > 0


def test_tied_outcomes_are_kept_while_the_memory_term_is_alive() -> None:
    """Four questions: no outcome differs from 0, so `grpo` drops every group and `mempo` none."""
    task = Toy(objectives=4, worlds=60)
    for name, kept in (("grpo", 0), ("mempo", 4)):
        config = Config(credit=name, questions=4, rollouts=4, dynamic_sampling=8)
        policy = task.make_policy(config)
        _, waste = sample(policy, ToyDraw(policy, task, 4, 0), credit.make(name), config, 1)
        assert waste["groups_generated"] - waste["groups_dropped"] == kept
        assert waste["wasted"] == (1.0 if not kept else 0.0)


def test_the_waste_is_logged_and_a_budget_that_is_spent_ends_the_step(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, credit="grpo", dynamic_sampling=3)
    train(tmp_path / "run", Toy(objectives=4, worlds=60), config)
    for row in read_metrics(tmp_path / "run"):
        assert (row["groups_generated"], row["groups_dropped"], row["wasted"]) == (6, 6, 1.0)
        assert row["grad_norm"] == 0.0
