"""The policies of the array face: what they say of their choices is what they do."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arrays_play import make_vec
from mempo_env.arrays.layout import ANSWER as ANSWERING
from mempo_env.arrays.layout import SEARCH
from mempo_env.arrays.observe import View, observe
from mempo_env.arrays.vector import SearchQAArrayVectorEnv
from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import ANSWER, CALL, MEM
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.pointer import FLOOR, ArrayContexts, ArrayPolicy, FactViews
from train_help import played, seeded, wild

KINDS = ("pointer", "tabular")


def envs_of(objectives: int = 2, hops: int = 1, number: int = 16) -> SearchQAArrayVectorEnv:
    return make_vec(number, objectives=objectives, hops=hops)


def in_view(
    envs: SearchQAArrayVectorEnv, asked_Bn: np.ndarray, facts_BV: np.ndarray, memory: int | None = None
) -> ArrayContexts:
    """What is seen where these facts are in view, the first of them in memory (None: all)."""
    size, layout = len(facts_BV), envs.layout
    view_BV = np.full((size, layout.view), -1)
    view_BV[:, : facts_BV.shape[1]] = facts_BV
    kept_B = (facts_BV >= 0).sum(1) if memory is None else np.full(size, memory)
    view = View(asked_Bn, view_BV, kept_B, np.full(size, -1), np.full(size, 3))
    return ArrayContexts(*observe(envs.world, layout, envs.task.max_rounds, view))


def small(objectives: int, capacity: int, facts: int) -> tuple[SearchQAArrayVectorEnv, ArrayContexts]:
    """An environment with few actions, and a context: an article was found, one of its facts is in memory."""
    envs = make_vec(1, objectives=objectives, capacity=capacity, facts=facts)
    seen = envs.world.article_AF[0][None]
    return envs, in_view(envs, np.arange(objectives)[None], seen, memory=1)


# --- Log-probs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objectives, hops", [(1, 1), (2, 1), (3, 2)])
def test_log_probs_while_acting_are_those_of_the_loss(kind: str, objectives: int, hops: int) -> None:
    envs = envs_of(objectives, hops)
    policy = wild(envs, kind)
    rollouts = played(policy, envs)
    logp, entropy = policy.logprobs(rollouts.contexts, rollouts.responses)
    np.testing.assert_allclose(logp.detach().numpy(), rollouts.responses.logprobs_BK, rtol=0, atol=1e-6)
    assert (logp <= 0).all() and (entropy > -1e-6).all()
    assert logp.requires_grad and entropy.requires_grad
    free = rollouts.responses.roles_BK == 0
    assert (rollouts.responses.logprobs_BK[free] == 0).all() and (entropy.detach().numpy()[free] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_log_probs_of_a_row_do_not_depend_on_the_rest_of_the_batch(kind: str) -> None:
    envs = envs_of()
    policy = wild(envs, kind)
    rollouts = played(policy, envs)
    whole, _ = policy.logprobs(rollouts.contexts, rollouts.responses)
    for rows in np.array_split(np.random.default_rng(0).permutation(len(whole)), 5):
        part, _ = policy.logprobs(rollouts.contexts[rows], rollouts.responses.take(rows))
        torch.testing.assert_close(part, whole[rows], rtol=1e-5, atol=1e-5)


def every_response(policy: ArrayPolicy, context: ArrayContexts) -> Responses:
    """All actions that differ in something that is chosen, in one context."""
    layout, masks = policy.layout, policy.layout.split_mask(context.mask_BA)
    present = masks.keep_BV2[0, :, 1]
    rows = []
    for number in range(2**layout.view):
        kept = np.array([(number >> v) & 1 for v in range(layout.view)])
        if kept.sum() > layout.capacity or kept[~present].any():
            continue
        if masks.operation_B2[0, SEARCH]:
            for entity in np.flatnonzero(masks.entity_BE[0]):
                rows.append([*kept, SEARCH, entity, *[0] * layout.objectives])
        slots = np.flatnonzero(kept) if kept.any() else np.array([layout.view])
        for chosen in np.stack(np.meshgrid(*[slots] * layout.objectives), -1).reshape(-1, layout.objectives):
            rows.append([*kept, ANSWERING, 0, *chosen])
    tokens = np.array(rows)
    return Responses(tokens, np.zeros(tokens.shape, np.int8), np.zeros(tokens.shape, np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_the_probabilities_of_all_actions_add_up_to_one(kind: str) -> None:
    envs, context = small(objectives=2, capacity=2, facts=4)
    policy = wild(envs, kind, seed=3)
    responses = every_response(policy, context)
    rows = np.zeros(len(responses.tokens_BK), np.int64)
    logp, _ = policy.logprobs(context[rows], responses)
    assert logp.detach().double().sum(1).exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_the_entropy_is_the_mean_surprise() -> None:
    """E[-log p] = E[sum of entropies] over all actions of one context: the chain rule."""
    envs, context = small(objectives=2, capacity=2, facts=4)
    policy = wild(envs, seed=5, size=0.5)
    responses = every_response(policy, context)
    logp, entropy = policy.logprobs(context[np.zeros(len(responses.tokens_BK), np.int64)], responses)
    logp, entropy = logp.detach().double().sum(1), entropy.detach().double().sum(1)
    assert (logp.exp() * entropy).sum().item() == pytest.approx(-(logp.exp() * logp).sum().item(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_as_frequent_as_they_are_probable(kind: str) -> None:
    """Chi-square over the actions that 20,000 draws should show at least 5 times each."""
    from scipy.stats import chi2

    (envs, context), draws = small(objectives=1, capacity=2, facts=2), 20_000
    policy = wild(envs, kind, seed=2, size=0.5)
    every = every_response(policy, context)
    logp, _ = policy.logprobs(context[np.zeros(len(every.tokens_BK), np.int64)], every)
    expected = logp.double().sum(1).exp().detach().numpy() * draws
    acted = policy.act(context[np.zeros(draws, np.int64)], seeded(0)).tokens_BK
    layout = policy.layout
    acted[acted[:, layout.operation] == ANSWERING, layout.entity] = 0
    acted[acted[:, layout.operation] == SEARCH, layout.candidates] = 0
    seen = np.array([(acted == row).all(1).sum() for row in every.tokens_BK])
    assert seen.sum() == draws
    often = expected >= 5
    assert often.sum() > 3
    statistic = ((seen - expected)[often] ** 2 / expected[often]).sum()
    assert statistic < chi2.ppf(0.999, often.sum() - 1)


# --- Masks and roles ---------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(KINDS), st.integers(1, 3), st.integers(1, 2))
def test_nothing_invalid_is_ever_chosen(seed: int, kind: str, objectives: int, hops: int) -> None:
    envs = envs_of(objectives, hops, number=8)
    rollouts = played(wild(envs, kind, seed, size=3.0), envs, seed=seed)
    assert rollouts.extra["invalid"] == 0
    layout, tokens = envs.layout, rollouts.responses.tokens_BK
    masks = layout.split_mask(rollouts.contexts.mask_BA)
    assert (tokens[:, layout.keep].sum(1) <= layout.capacity).all()
    assert not tokens[:, layout.keep][~masks.keep_BV2[..., 1]].any()
    assert np.isfinite(rollouts.responses.logprobs_BK).all()


@pytest.mark.parametrize("kind", KINDS)
def test_each_choice_has_its_role(kind: str) -> None:
    envs = envs_of(3, number=64)
    rollouts = played(wild(envs, kind, size=0.3), envs)
    layout, roles, tokens = envs.layout, rollouts.responses.roles_BK, rollouts.responses.tokens_BK
    present = layout.split_mask(rollouts.contexts.mask_BA).keep_BV2[..., 1]
    searched = tokens[:, layout.operation] == SEARCH
    assert 0 < searched.sum() < len(searched)
    np.testing.assert_array_equal(roles[:, layout.keep] == MEM, present)
    np.testing.assert_array_equal(roles[:, layout.operation], np.where(searched, CALL, ANSWER))
    np.testing.assert_array_equal(roles[:, layout.entity], np.where(searched, CALL, 0))
    assert (roles[:, layout.candidates] == np.where(searched, 0, ANSWER)[:, None]).all()


def test_in_the_last_round_it_answers() -> None:
    envs = envs_of(number=64)
    rollouts = played(wild(envs, size=0.0), envs)
    last = rollouts.data.number_R == envs.task.max_rounds
    assert last.any()
    assert (rollouts.responses.tokens_BK[last, envs.layout.operation] == ANSWERING).all()


# --- Scores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hops", [1, 2])
def test_a_score_is_the_probability_of_answering_so_from_the_same_facts(kind: str, hops: int) -> None:
    envs = envs_of(2, hops)
    policy, layout, world = wild(envs, kind, size=0.7), envs.layout, envs.world
    rng = np.random.default_rng(0)
    asked = np.stack([rng.choice(len(world.gold_Qh), 2, replace=False) for _ in range(20)])
    gold = world.gold_Qh[asked].reshape(20, -1)
    rest = world.article_AF[(asked[:, :1] * hops + 7) % len(world.article_AF)][
        :, 0, : layout.capacity - gold.shape[1]
    ]
    facts = rng.permuted(np.concatenate([gold, rest], 1), axis=1)
    contexts = in_view(envs, asked, facts)
    tokens = np.zeros((20, layout.decisions), np.int64)
    tokens[:, : facts.shape[1]], tokens[:, layout.operation] = 1, ANSWERING
    for row in range(20):
        for j in range(2):
            tokens[row, layout.candidates.start + j] = (
                facts[row].tolist().index(gold[row, (j + 1) * hops - 1])
            )
    empty = Responses(tokens, np.zeros(tokens.shape, np.int8), np.zeros(tokens.shape, np.float32))
    logp, _ = policy.logprobs(contexts, empty)
    answered = np.maximum(logp[:, layout.candidates].detach().numpy(), math.log(FLOOR))
    scores = policy.score(FactViews(world, asked, facts))
    assert scores.dtype == np.float64 and scores.shape == (20, 2)
    np.testing.assert_allclose(scores, answered, atol=1e-5)
    assert scores.max() > math.log(FLOOR) + 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_absent_scores_the_floor(kind: str) -> None:
    envs = envs_of()
    policy, world = wild(envs, kind), envs.world
    asked = np.array([[0, 1], [0, 1], [0, 1]])
    gold = world.gold_Qh[:2, 0]
    facts = np.array([[-1, -1, -1], [gold[0], -1, -1], [gold[0], gold[1], -1]])
    scores = policy.score(FactViews(world, asked, facts))
    assert scores[0].tolist() == [math.log(FLOOR)] * 2
    assert scores[1, 0] == pytest.approx(0)  # the only fact there is must be the answer
    assert scores[1, 1] == math.log(FLOOR)
    assert (scores[2] > math.log(FLOOR)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_does_not_depend_on_the_order_of_the_facts_or_on_empty_places(kind: str) -> None:
    envs = envs_of(2, 2)
    policy, world = wild(envs, kind), envs.world
    rng = np.random.default_rng(1)
    asked = np.stack([rng.choice(len(world.gold_Qh), 2, replace=False) for _ in range(12)])
    facts = np.concatenate([world.gold_Qh[asked].reshape(12, -1), rng.integers(0, world.n_facts, (12, 3))], 1)
    scores = policy.score(FactViews(world, asked, facts))
    shuffled = rng.permuted(np.concatenate([facts, np.full((12, 4), -1)], 1), axis=1)
    np.testing.assert_allclose(policy.score(FactViews(world, asked, shuffled)), scores, atol=1e-5)


def test_scores_take_no_gradient_and_change_nothing() -> None:
    envs = envs_of()
    policy = wild(envs)
    before = copy.deepcopy(policy.state_dict())
    policy.score(FactViews(envs.world, np.array([[0, 1]]), envs.world.gold_Qh[:2].reshape(1, 2)))
    assert all(weight.grad is None for weight in policy.heads.parameters())
    for name, weight in policy.state_dict()["heads"].items():
        assert torch.equal(weight, before["heads"][name])


# --- The rest ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_untrained_policy_chooses_evenly(kind: str) -> None:
    """All scores start at 0, so the two places of a memory of 7 facts are drawn from all sets that fit."""
    envs = make_vec(4, objectives=1, capacity=2, facts=5)
    policy = ArrayPolicy(envs.layout, kind, learning_rate=0.1, max_grad_norm=1, seed=7)
    contexts = in_view(envs, np.zeros((1, 1), np.int64), np.arange(2)[None])
    entities = int(policy.layout.split_mask(contexts.mask_BA).entity_BE.sum())
    tokens = np.zeros((1, envs.layout.decisions), np.int64)
    responses = Responses(tokens, np.zeros(tokens.shape, np.int8), np.zeros(tokens.shape, np.float32))
    logp, _ = policy.logprobs(contexts, responses)
    logp = logp.detach().numpy()[0]
    assert logp[envs.layout.keep].sum() == pytest.approx(math.log(1 / 4))  # {}, {0}, {1}, {0, 1}
    assert logp[envs.layout.operation] == pytest.approx(math.log(entities / (entities + 1)), abs=1e-6)
    assert logp[envs.layout.entity] == pytest.approx(math.log(1 / entities), abs=1e-6)


def test_first_weights_come_of_the_seed_alone() -> None:
    envs = envs_of()
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    a, b, c = (ArrayPolicy(envs.layout, learning_rate=0.1, max_grad_norm=1, seed=s) for s in (4, 4, 5))
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = [policy.heads.state_dict()["keep.hidden.weight"] for policy in (a, b, c)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_acting_draws_from_its_generator_alone() -> None:
    envs = envs_of()
    policy = wild(envs)
    contexts = played(policy, envs).contexts
    state = torch.random.get_rng_state()
    one, same, other = (policy.act(contexts, seeded(s)).tokens_BK for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_moves_nothing(bad: float) -> None:
    envs = envs_of()
    policy = wild(envs)
    before = copy.deepcopy(policy.state_dict())
    for weight in policy.heads.parameters():
        weight.grad = torch.full_like(weight, bad)
    assert not math.isfinite(policy.update())
    after = policy.state_dict()
    assert all(torch.equal(after["heads"][name], before["heads"][name]) for name in before["heads"])
    assert all(weight.grad is None for weight in policy.heads.parameters())
    assert not after["optimizer"]["state"]


def test_a_long_gradient_is_clipped_and_told_as_it_was() -> None:
    envs = envs_of()
    policy = wild(envs)
    for weight in policy.heads.parameters():
        weight.grad = torch.full_like(weight, 10.0)
    count = sum(weight.numel() for weight in policy.heads.parameters())
    assert policy.update() == pytest.approx(10 * math.sqrt(count), rel=1e-5)


def test_an_unknown_kind_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'tabular'"):
        ArrayPolicy(envs_of().layout, "tabula", learning_rate=0.1, max_grad_norm=1, seed=0)
