"""Many array environments on integers play the very episodes of single ones in text."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from arrays_play import ID, expert, make, make_vec, masked_action, random_action
from mempo_env.arrays.facts import ToySpec
from mempo_env.arrays.vector import SearchQAArrayVectorEnv, answers, match
from mempo_env.arrays.world import make_world
from mempo_env.errors import ConfigError
from mempo_env.rewards import RewardConfig
from mempo_env.types import Invalid, StopReason

REWARDS = st.sampled_from(
    [
        "mempo",
        "bank",
        RewardConfig(outcome="f1_mean", outcome_weight=0.7, invalid_action=-0.1, write_cost=-0.013),
        RewardConfig(outcome="em_mean", memory_efficiency=0.17, memory_budget=23),
    ]
)
KWARGS = st.fixed_dictionaries(
    {
        "objectives": st.integers(1, 4),
        "hops": st.integers(1, 3),
        "facts": st.integers(1, 7),
        "capacity": st.sampled_from([None, 1, 4]),
        "max_rounds": st.sampled_from([None, 1, 5]),
        "retriever_noise": st.sampled_from([0.0, 0.3]),
        "reward": REWARDS,
    }
)
SEEDS = st.integers(0, 1000)
Actions = NDArray[np.int64]


def random_actions(envs: SearchQAArrayVectorEnv, rng: np.random.Generator, **kwargs: float) -> Actions:
    return np.array([random_action(rng, envs.layout, **kwargs) for _ in range(envs.num_envs)])


# --- Both faces ---------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(KWARGS, SEEDS)
def test_each_is_the_same_as_a_single_one(kwargs: dict[str, Any], seed: int) -> None:
    n, rng = 3, np.random.default_rng(seed)
    envs, singles = make_vec(n, **kwargs), [make(**kwargs) for _ in range(n)]
    for episode in range(2):  # the second one with the random numbers that are left
        started = None if episode else seed
        obs, infos = envs.reset(seed=started)
        firsts = [env.reset(seed=None if episode else seed + i) for i, env in enumerate(singles)]
        for i, (first, info) in enumerate(firsts):
            assert obs[i].tobytes() == first.tobytes() and obs.dtype == first.dtype
            assert tuple(infos["action_mask"][i].tolist()) == info["action_mask"]
        done, shown, recall = [False] * n, [[] for _ in range(n)], [0.0] * n
        ends: list[Any] = [()] * n
        for _ in range(envs.task.max_rounds + 1):  # all have ended before the last of these
            actions = random_actions(envs, rng, keep=0.5 * rng.random())
            obs, rewards, terminations, truncations, infos = envs.step(actions)
            for i, env in enumerate(singles):
                if done[i]:
                    assert (
                        terminations[i],
                        truncations[i],
                        infos["stop_reason"][i],
                        obs[i].tobytes(),
                    ) == ends[i]
                    assert rewards[i] == infos["outcome"][i] == infos["shaping"][i] == infos["found"][i] == 0
                    assert not infos["invalid"][i]
                    continue
                o, reward, terminated, truncated, info = env.step(actions[i])
                done[i] = terminated or truncated
                assert obs[i].tobytes() == o.tobytes()
                assert tuple(infos["action_mask"][i].tolist()) == info["action_mask"]
                assert (rewards[i], terminations[i], truncations[i]) == (reward, terminated, truncated)
                terms = info["reward_terms"].weighted
                assert infos["outcome"][i] == terms.outcome
                assert infos["shaping"][i] == pytest.approx(terms.total() - terms.outcome, abs=1e-12)
                assert infos["invalid"][i] == isinstance(info["action"], Invalid)
                assert infos["stop_reason"][i] is info.get("stop_reason")
                found, recall[i] = (
                    info["diagnostics"].evidence_recall - recall[i],
                    info["diagnostics"].evidence_recall,
                )
                assert infos["recall"][i] == recall[i]
                assert infos["found"][i] == pytest.approx(found * envs.layout.objectives * envs.layout.hops)
                if done[i]:
                    ends[i] = (terminated, truncated, info["stop_reason"], o.tobytes())
                    score = info["score"]
                    assert (infos["em"][i], infos["success"][i]) == (score.em, score.em_all)
                shown[i] += [hit.text for hit in info["retrieved"] if hit.text not in shown[i]]
                world = envs.world
                assert " ".join(world.sentences[f] for f in envs.seen_NS[i] if f >= 0) == " ".join(shown[i])
                kept = " ".join(world.sentences[f] for f in envs.memory_Nc[i] if f >= 0)
                assert info["memory"] == kept or (info["memory"], kept) == ("nothing", "")
                assert envs.rounds_N[i] == info["round"]
                ids = "+".join(world.questions[int(row)].id for row in envs.asked_Nn[i])
                assert info["question_id"] == ids


@settings(max_examples=20, deadline=None)
@given(KWARGS, SEEDS)
def test_shuffled_gold_answers_leave_every_observation_as_it_was(kwargs: dict[str, Any], seed: int) -> None:
    envs, others, rng = make_vec(8, **kwargs), make_vec(8, **kwargs), np.random.default_rng(seed)
    world = others.task.world
    shuffled = replace(
        world, answer_Q=rng.permutation(world.answer_Q), gold_Qh=rng.permutation(world.gold_Qh)
    )
    others.world, others.task = shuffled, replace(others.task, world=shuffled)
    seen = [env.reset(seed=seed)[0] for env in (envs, others)]
    for _ in range(envs.task.max_rounds):
        assert seen[0].tobytes() == seen[1].tobytes()
        actions = random_actions(envs, rng)
        seen = [env.step(actions)[0] for env in (envs, others)]
    assert seen[0].tobytes() == seen[1].tobytes()


@pytest.mark.parametrize("objectives", [1, 2, 4, 8])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_rounds_and_memory_suffice_for_whoever_knows_what_to_keep(objectives: int, hops: int) -> None:
    envs = make_vec(16, objectives=objectives, hops=hops, split="test")
    envs.reset(seed=objectives)
    for _ in range(objectives * hops):
        _, rewards, terminations, truncations, infos = envs.step(expert(envs))
        assert not (terminations | truncations | infos["invalid"]).any() and not rewards.any()
        assert infos["found"].tolist() == [1] * 16
    _, rewards, terminations, _, infos = envs.step(expert(envs))
    assert rewards.tolist() == [1.0] * 16 and terminations.all() and infos["success"].all()
    assert infos["recall"].tolist() == infos["em"].tolist() == [1.0] * 16


# --- Scoring facts ------------------------------------------------------------------------------------------


def test_match_and_answers_by_hand() -> None:
    """Two hops, the facts in any order, one of them twice: only the facts given count."""
    world = make_world(ToySpec(questions=20, hops=2))
    bridge, gold = world.gold_Qh[4].tolist()
    asked, none = np.array([[4, 7]]), -1
    facts = np.array([[gold, none, bridge, gold]])
    marks, right = match(world, asked, facts), answers(world, asked, facts)
    assert marks.shape == (1, 4, 2, 5) and marks.dtype == np.float32
    assert marks[0, 0, 0].tolist() == [1, 1, 1, 0, 0] == marks[0, 3, 0].tolist()
    assert marks[0, 2, 0].tolist() == [1, 0, 0, 1, 1] and marks[0, 1].sum() == 0
    assert right[0].tolist() == [[True, False], [False, False], [False, False], [True, False]]
    alone = match(world, asked, np.array([[gold]]))
    assert alone[0, 0, 0].tolist() == [0, 1, 0, 0, 0]  # nothing in view leads to it


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 3), st.integers(1, 3))
def test_matches_go_with_their_facts_and_questions(seed: int, hops: int, objectives: int) -> None:
    """The order of facts, and of questions, changes nothing but the order."""
    world, rng = make_world(ToySpec(questions=20, hops=hops)), np.random.default_rng(seed)
    asked = rng.integers(0, 20, (4, objectives))
    near = world.article_AF[asked * hops + rng.integers(hops)].reshape(4, -1)
    facts = np.where(rng.random(near.shape) < 0.2, -1, near)
    slots, order = rng.permutation(facts.shape[1]), rng.permutation(objectives)
    for score in (match, answers):
        moved = score(world, asked[:, order], facts[:, slots])
        assert np.array_equal(moved, score(world, asked, facts)[:, slots][:, :, order])
        assert np.array_equal(moved[2:3], score(world, asked[2:3, order], facts[2:3, slots]))


# --- Resets -------------------------------------------------------------------------------------------------


def test_ended_environments_wait_untouched_for_their_reset() -> None:
    envs = make_vec(3, max_rounds=2)
    obs, _ = envs.reset(seed=0)
    actions = np.zeros((3, envs.layout.decisions), np.int64)
    actions[0, envs.layout.operation], actions[0, envs.layout.candidates] = 1, envs.layout.view
    obs, _, terminations, truncations, _ = envs.step(actions)
    assert (terminations.tolist(), truncations.tolist()) == ([True, False, False], [False] * 3)
    before = obs[0].tobytes(), envs.rounds_N.tolist()
    obs, _, terminations, truncations, infos = envs.step(np.zeros_like(actions))
    assert obs[0].tobytes() == before[0] and envs.rounds_N.tolist() == [1, 2, 2]
    assert (terminations.tolist(), truncations.tolist()) == ([True, False, False], [False, True, True])
    assert infos["stop_reason"].tolist() == [
        StopReason.ANSWERED,
        StopReason.MAX_ROUNDS,
        StopReason.MAX_ROUNDS,
    ]
    kept = obs[2].tobytes()
    obs, infos = envs.reset(options={"reset_mask": np.array([True, True, False])})
    assert envs.rounds_N.tolist() == [0, 0, 2] and obs[2].tobytes() == kept
    assert infos["action_mask"].shape == (3, envs.layout.choices)
    _, _, terminations, truncations, _ = envs.step(np.zeros_like(actions))
    assert (terminations.tolist(), truncations.tolist()) == ([False] * 3, [False, False, True])


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_same_step_begins_anew_and_keeps_the_last_of_the_old(noise: float) -> None:
    rng, kwargs = np.random.default_rng(0), {"objectives": 2, "retriever_noise": noise}
    auto, plain = make_vec(4, autoreset_mode="same_step", **kwargs), make_vec(4, **kwargs)
    assert auto.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert plain.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    obs, infos = auto.reset(seed=1)
    assert obs.tobytes() == plain.reset(seed=1)[0].tobytes()
    ended = 0
    for _ in range(40):
        actions = random_actions(auto, rng)
        obs, *results, infos = auto.step(actions)
        obs_plain, *results_plain, infos_plain = plain.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(results, results_plain, strict=True))
        for name in ("invalid", "outcome", "shaping", "found", "recall", "em", "success", "stop_reason"):
            assert np.array_equal(infos[name], infos_plain[name])
        over = results[1] | results[2]
        if over.any():
            ended += int(over.sum())
            assert np.array_equal(infos["_final_obs"], over) and np.array_equal(infos["_final_info"], over)
            assert infos["final_obs"][over].tobytes() == obs_plain[over].tobytes()
            assert np.array_equal(infos["final_info"]["action_mask"][over], infos_plain["action_mask"][over])
            obs_plain, infos_plain = plain.reset(options={"reset_mask": over})
        else:
            assert "final_obs" not in infos
        assert obs.tobytes() == obs_plain.tobytes()
        assert np.array_equal(infos["action_mask"], infos_plain["action_mask"])
    assert ended > 20


def test_seeds_and_questions_of_each() -> None:
    envs = make_vec(3, objectives=2)
    first = envs.reset(seed=[5, 6, 5])[0]
    assert first[0].tobytes() == first[2].tobytes()
    assert np.array_equal(envs.asked_Nn[0], envs.asked_Nn[2])
    ids = [q.id for q in envs.questions]
    envs.reset(options={"question_id": f"{ids[3]}+{ids[1]}"})  # a group
    assert envs.asked_Nn.tolist() == [[3, 1]] * 3
    envs.reset(seed=9, options={"question_id": [(ids[0], ids[2]), f"{ids[5]}+{ids[4]}", None]})
    drawn = make(objectives=2).reset(seed=11)[1]["question_id"]
    assert envs.asked_Nn[:2].tolist() == [[0, 2], [5, 4]]
    assert "+".join(envs.world.questions[int(row)].id for row in envs.asked_Nn[2]) == drawn


def test_masked_play_is_never_invalid() -> None:
    envs, rng = (
        make_vec(8, objectives=3, hops=2, retriever_noise=0.3, autoreset_mode="same_step"),
        np.random.default_rng(2),
    )
    _, infos = envs.reset(seed=3)
    for _ in range(60):
        actions = [masked_action(rng, envs.layout, mask.tolist()) for mask in infos["action_mask"]]
        infos = envs.step(np.array(actions))[4]
        assert not infos["invalid"].any()
        assert StopReason.MAX_ROUNDS not in infos["stop_reason"].tolist()


# --- Forks --------------------------------------------------------------------------------------------------


def _play(envs: SearchQAArrayVectorEnv, seed: int) -> list[Any]:
    rng, seen = np.random.default_rng(seed), []
    for _ in range(envs.task.max_rounds):
        obs, rewards, *_, infos = envs.step(random_actions(envs, rng))
        seen.append(
            (obs.tobytes(), rewards.tolist(), infos["action_mask"].tobytes(), infos["recall"].tolist())
        )
    envs.reset()  # with the random numbers that are left
    return [*seen, envs.asked_Nn.tolist()]


def test_forks_are_equal_and_independent() -> None:
    rng, kwargs = np.random.default_rng(0), {"objectives": 2, "retriever_noise": 0.5}
    envs = make_vec(3, **kwargs)
    envs.reset(seed=1)
    for _ in range(2):
        envs.step(random_actions(envs, rng, answer=0))
    one, two = envs.fork(range(3)), envs.fork([0, 1, 2])
    before = envs.view_NV.tolist()
    copies = copy.deepcopy(envs), pickle.loads(pickle.dumps(envs))
    wanted = _play(one, 4)
    assert envs.view_NV.tolist() == before
    assert all(_play(twin, 4) == wanted for twin in (two, *copies, envs))


def test_a_fork_may_repeat_reorder_and_reseed() -> None:
    envs = make_vec(3, objectives=2, retriever_noise=0.5)
    envs.reset(seed=1)
    envs.step(random_actions(envs, np.random.default_rng(0), answer=0))
    twins = envs.fork([2, 2, 0, 2], seeds=[7, 7, 7, 8])
    assert isinstance(twins, SearchQAArrayVectorEnv) and twins.num_envs == 4
    assert twins.view_NV.tolist() == envs.view_NV[[2, 2, 0, 2]].tolist()
    assert twins.observation_space.shape == (4, envs.layout.features)
    ends = set()
    for seed in range(12):  # the same actions for all
        again = envs.fork([2, 2, 2], seeds=[seed, seed, seed + 100])
        action = random_action(np.random.default_rng(3), envs.layout, keep=0, answer=0)
        action[envs.layout.entity] = 0
        again.step(np.array([action] * 3))
        assert again.view_NV[0].tolist() == again.view_NV[1].tolist()
        ends.add(again.view_NV[0].tolist() == again.view_NV[2].tolist())
    assert ends == {True, False}
    single = make(objectives=2, retriever_noise=0.5)
    single.reset(options={"question_id": [envs.world.questions[int(row)].id for row in envs.asked_Nn[0]]})
    (reseeded,), many = single.fork(1, seeds=[5]), envs.fork([0], seeds=[5])
    many.reset()
    ids = [envs.world.questions[int(row)].id for row in many.asked_Nn[0]]
    assert reseeded.reset()[1]["question_id"] == "+".join(ids)


def test_a_fork_of_no_environment_or_with_too_few_seeds_is_refused() -> None:
    envs = make_vec(2)
    with pytest.raises(gym.error.ResetNeeded):
        envs.fork([0])
    envs.reset(seed=0)
    with pytest.raises(ConfigError, match="fork: wanted one seed for each of 2 environments, got 1"):
        envs.fork([0, 1], seeds=[1])
    with pytest.raises(ConfigError, match="fork: environments: wanted a whole number of at least 1, got 0"):
        envs.fork([])


# --- Errors -------------------------------------------------------------------------------------------------


def test_wrong_use_is_named_and_changes_nothing() -> None:
    with pytest.raises(ConfigError, match="num_envs: wanted a whole number of at least 1, got 0"):
        make_vec(0)
    with pytest.raises(ConfigError, match="did you mean 'same_step'"):
        make_vec(1, autoreset_mode="same_stepp")
    with pytest.raises(TypeError, match="objective"):
        make_vec(1, objective=2)
    envs = make_vec(2)
    actions = np.zeros((2, envs.layout.decisions), np.int64)
    with pytest.raises(gym.error.ResetNeeded):
        envs.step(actions)
    with pytest.raises(gym.error.ResetNeeded, match="reset all environments first"):
        envs.reset(options={"reset_mask": np.array([True, False])})
    envs.reset(seed=0)
    state = envs.state
    actions[1, envs.layout.entity] = envs.layout.entities
    with pytest.raises(ConfigError, match=r"environment 1, decision 9: wanted 0 to 8, got 9"):
        envs.step(actions)
    for wrong in (actions[:1], actions.astype(float), actions[0]):
        with pytest.raises(ConfigError, match=r"step: wanted whole numbers of shape \(2, 11\)"):
            envs.step(wrong)
    for options, words in (
        ({"question_id": "toy-0-1-99"}, "unknown question id"),
        ({"question_id": ["toy-0-1-0", "toy-0-1-59"]}, "unknown question id"),  # of another split
        ({"question_id": "toy-0-1-0+toy-0-1-1"}, "wanted 1 different ids"),
        ({"question_id": ["toy-0-1-0"]}, "wanted one question_id for each of 2"),
        ({"state": "x"}, "options may hold reset_mask or question_id"),
        ({"reset_mask": [True]}, "reset_mask: wanted 2 booleans"),
    ):
        with pytest.raises(ConfigError, match=words):
            envs.reset(seed=3, options=options)
    with pytest.raises(ConfigError, match="wanted a seed for each of 2"):
        envs.reset(seed=[1])
    assert envs.state is state


def test_make_vec_by_id_has_spaces_of_its_own() -> None:
    envs = gym.make_vec(ID, num_envs=5)
    obs, _ = envs.reset(seed=0)
    assert envs.observation_space.contains(obs) and envs.single_observation_space.contains(obs[0])
    action = envs.action_space.sample()
    assert envs.action_space.contains(action)
    assert envs.observation_space.contains(envs.step(action)[0])


def test_the_usual_way_to_make_environments_for_stable_baselines3_works() -> None:
    """`make_vec_env` tries the render mode "rgb_array" first, and goes on without after a TypeError."""
    util = pytest.importorskip("stable_baselines3.common.env_util", reason="needs mempo[sb3]")
    envs = util.make_vec_env("MemPO-SearchQA-Toy-v0", n_envs=2, env_kwargs={"objectives": 1})
    assert envs.reset().shape == (2, *envs.observation_space.shape)
    with pytest.raises(ConfigError, match="unknown render_mode 'rgb_array'"):
        gym.make("MemPO-SearchQA-Toy-v0", render_mode="rgb_array")
