"""The array face of one environment: what it shows, what it plays, and that both faces are one."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from arrays_play import ID, expected, make, masked_action, random_action
from mempo_env.arrays.env import SearchQAArrayEnv
from mempo_env.arrays.layout import Layout
from mempo_env.arrays.task import make_task
from mempo_env.env import SearchQAEnv
from mempo_env.errors import ConfigError, StateError
from mempo_env.questions.set import QuestionSet
from mempo_env.types import Answer, Invalid, Question, Search, StopReason

SIZES: Any = {
    "objectives": st.integers(1, 4),
    "hops": st.integers(1, 3),
    "retriever_noise": st.sampled_from([0.0, 0.3]),
}
KWARGS = st.fixed_dictionaries(SIZES)
SEEDS = st.integers(0, 1000)


# --- Gymnasium ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "kwargs", [{}, {"objectives": 4, "hops": 2}, {"objectives": 3, "retriever_noise": 0.5}]
)
def test_check_env_is_clean(kwargs: dict[str, Any]) -> None:
    check_env(gym.make(ID, **kwargs).unwrapped, skip_render_check=True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("objectives", [1, 4])
def test_the_check_of_stable_baselines3_is_clean(objectives: int) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="needs mempo[sb3]")
    checker.check_env(make(objectives=objectives))


def test_the_defaults_are_those_of_the_docstring() -> None:
    env = gym.make(ID).unwrapped
    assert isinstance(env, SearchQAArrayEnv)
    assert env.layout == Layout(objectives=1, capacity=3, facts=5, hops=1)
    assert (env.task.max_rounds, env.text.rules.max_memory_tokens, len(env.world.questions)) == (4, 12, 1000)
    big = make(objectives=4, hops=3)
    assert (big.layout.capacity, big.task.max_rounds) == (14, 24)


def test_sizes_of_an_observation_a_mask_and_an_action() -> None:
    layout = Layout(objectives=4, capacity=6, facts=5, hops=1)
    assert (layout.view, layout.entities, layout.decisions) == (11, 15, 17)
    assert layout.nvec == (*[2] * 11, 2, 15, *[12] * 4)
    assert (layout.features, layout.choices) == (11 * 2 + 11 * 4 * 5 + 15 * 6 + 4, 22 + 2 + 15 + 48)
    assert (layout.keep, layout.operation, layout.entity, layout.candidates) == (
        slice(0, 11),
        11,
        12,
        slice(13, 17),
    )


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"objectives": 0}, "objectives: wanted a whole number of at least 1, got 0"),
        ({"objectives": 37}, "objectives: wanted at most the 36 questions of 'train', got 37"),
        ({"capacity": 0}, "capacity: wanted a whole number of at least 1, got 0"),
        ({"hops": 0}, "hops: wanted a whole number"),
        ({"max_rounds": 0}, "max_rounds: wanted a whole number"),
        ({"facts": 20}, "facts: wanted at most 19"),
        ({"questions": 9}, "questions: wanted at least 10"),
        ({"questions": 20_000}, "questions x hops x facts of at most 90,000"),
        ({"world_seed": -1}, "seed of a world: wanted a whole number of at least 0, got -1"),
        ({"split": "tran"}, "did you mean 'train'"),
        ({"reward": "mempoo"}, "did you mean 'mempo'"),
        ({"retriever_noise": 2}, "retriever_noise: wanted a probability"),
    ],
)
def test_wrong_arguments_are_named(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**kwargs)
    with pytest.raises(ConfigError, match=words):
        gym.make_vec(ID, num_envs=2, **{"questions": 60, **kwargs})
    for wrong in (make, lambda **kwargs: gym.make_vec(ID, **kwargs)):
        with pytest.raises(TypeError, match="unknown keyword 'objective': did you mean 'objectives'"):
            wrong(objective=1)


def test_the_manual_names_every_argument_with_its_default() -> None:
    manual = (inspect.getdoc(SearchQAArrayEnv) or "").partition("Args:\n")[2].partition("\n\n")[0]
    about = dict(part.split(": ", 1) for part in re.split(r"^ {4}(?=\w)", manual, flags=re.MULTILINE)[1:])
    arguments = inspect.signature(make_task).parameters
    assert set(about) == {*arguments, "render_mode"}
    for name, argument in arguments.items():
        told = re.search(r"by default \"?(\w+)|(\w+)\"?,? \(?the default", about[name])
        assert told is not None and (told[1] or told[2]) == str(argument.default).removesuffix(".0"), name


@pytest.mark.parametrize("kwargs", [{}, {"objectives": 3, "hops": 2}])
def test_one_observation_and_one_mask_are_cut_like_many(kwargs: dict[str, Any]) -> None:
    envs = gym.make_vec(ID, num_envs=3, questions=60, **kwargs)
    layout = envs.unwrapped.layout  # type: ignore[attr-defined]
    obs, infos = envs.reset(seed=0)
    envs.action_space.seed(0)
    for _ in range(3):
        obs, _, _, _, infos = envs.step(envs.action_space.sample())
        mask = infos["action_mask"]
        for i in range(3):
            for parts, part in (
                (layout.split(obs), layout.split(obs[i])),
                (layout.split_mask(mask), layout.split_mask(mask[i])),
            ):
                assert all(np.array_equal(many[i], one) for many, one in zip(parts, part, strict=True))
    none = layout.split(obs[:0])
    assert none.matches_BVN5.shape == (0, layout.view, layout.objectives, 5)


@settings(max_examples=20, deadline=None)
@given(KWARGS, SEEDS)
def test_actions_sampled_under_the_mask_are_those_it_allows(kwargs: dict[str, Any], seed: int) -> None:
    env, many = make(**kwargs), gym.make_vec(ID, num_envs=2, questions=60, **kwargs)
    _, info = env.reset(seed=seed)
    _, infos = many.reset(seed=[seed, seed + 1])
    env.action_space.seed(seed)
    many.single_action_space.seed(seed)
    starts = np.cumsum([0, *env.layout.nvec[:-1]])
    over = False
    while not over:
        action = env.action_space.sample(mask=env.layout.sample_mask(info["action_mask"]))
        masks = [env.layout.sample_mask(mask) for mask in infos["action_mask"]]
        actions = np.stack([many.single_action_space.sample(mask=mask) for mask in masks])
        assert np.array(info["action_mask"])[starts + action].all()
        assert np.take_along_axis(infos["action_mask"], starts + actions, axis=1).all()
        _, _, terminated, truncated, info = env.step(action)
        _, _, _, _, infos = many.step(actions)
        over = terminated or truncated


@pytest.mark.parametrize("shape", [(35,), (2, 36), ()])
def test_what_is_not_one_mask_of_the_layout_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"one mask, of shape (36,), got shape {shape}")):
        Layout().sample_mask(np.ones(shape))


def test_a_step_needs_an_episode_and_a_right_action() -> None:
    env = make()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(env.layout.decisions, np.int64))
    env.reset(seed=0)
    for action in ([0], np.full(env.layout.decisions, 99), np.zeros(env.layout.decisions)):
        with pytest.raises(ConfigError, match=f"step: wanted {env.layout.decisions} whole numbers below"):
            env.step(action)
    assert env.episode().rounds == ()


# --- What is seen -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(KWARGS, SEEDS, st.floats(0, 1))
def test_observations_and_masks_are_what_the_words_in_view_say(
    kwargs: dict[str, Any], seed: int, keep: float
) -> None:
    env, rng = make(**kwargs), np.random.default_rng(seed)
    obs, info = env.reset(seed=seed)
    done = False
    while True:
        features, mask = expected(env.layout, env.task.max_rounds, info["segments"])
        assert obs.tolist() == np.array(features, np.float32).tolist()
        assert info["action_mask"] == tuple(mask) == tuple(env.action_masks().tolist())
        assert env.observation_space.contains(obs)
        if done:
            break
        action = random_action(rng, env.layout, keep * rng.random())
        obs, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated


def _shuffled(questions: QuestionSet, rng: np.random.Generator) -> QuestionSet:
    """The same questions, each with the answer of another."""
    answers = [
        questions[i].answers for i in np.roll(np.arange(len(questions)), rng.integers(1, len(questions)))
    ]
    fields = Question.__struct_fields__
    return QuestionSet(
        Question(**{**{name: getattr(q, name) for name in fields}, "answers": a})
        for q, a in zip(questions, answers, strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(KWARGS, SEEDS)
def test_shuffled_gold_answers_leave_every_observation_as_it_was(kwargs: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    env, other = make(**kwargs), make(**kwargs)
    other.text.questions = _shuffled(other.text.questions, rng)
    obs, info = env.reset(seed=seed)
    obs_other, info_other = other.reset(seed=seed)
    done = False
    while not done:
        assert obs.tobytes() == obs_other.tobytes() and info["action_mask"] == info_other["action_mask"]
        action = random_action(rng, env.layout)
        obs, _, terminated, truncated, info = env.step(action)
        obs_other, _, *ends, info_other = other.step(action)
        assert ends == [terminated, truncated]
        done = terminated or truncated
    assert obs.tobytes() == obs_other.tobytes()
    assert [q.answers for q in env.episode().questions] != [q.answers for q in other.episode().questions]


def test_a_whole_episode_by_hand() -> None:
    """Search for the subject, keep the fact that answers, answer: in words and in numbers."""
    env = make(max_rounds=3)
    obs, info = env.reset(options={"question_id": "toy-0-1-0"})
    subject = info["segments"][1].text.split()[-1].rstrip("?")
    layout = env.layout
    slots, matches, entities, budget = layout.split(obs)
    assert slots.sum() == matches.sum() == 0 and budget.tolist() == [1, 0, 0, 0]
    assert entities[0].tolist() == [1, 0, 0, 0, 0, 0] and entities[1:].sum() == 0

    action = np.zeros(layout.decisions, np.int64)
    assert env.write(action) == f"<search>{subject}</search>"
    obs, _, _, _, info = env.step(action)
    slots, matches, entities, budget = layout.split(obs)
    assert slots.tolist() == [[1, 0]] * 5 + [[0, 0]] * 3
    assert matches[:, 0].sum(axis=0).tolist() == [3, 3, 1, 0, 0]  # same subject, same relation, both
    assert entities[0].tolist() == [1, 0, 1, 0, 1, 1]
    assert budget.tolist() == [np.float32(2 / 3), 0, 0, 1]

    gold = int(matches[:, 0, 2].argmax())
    action[layout.keep][gold] = 1
    sentence = env.world.sentences[env.world.gold_Qh[0, 0]]
    assert env.write(action) == f"<mem> {sentence} </mem> <search>{subject}</search>"
    obs, *_ = env.step(action)
    slots, _, _, budget = layout.split(obs)
    assert slots.tolist() == [[1, 1]] + [[1, 0]] * 4 + [[0, 0]] * 3  # shown again, but not twice
    assert budget.tolist() == [np.float32(1 / 3), 1, np.float32(1 / 3), 1]

    action[layout.operation], action[layout.candidates] = 1, 0
    assert env.write(action).endswith(f"<answer>{env.text.questions.by_id('toy-0-1-0').answers[0]}</answer>")
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["stop_reason"]) == (1.0, True, False, StopReason.ANSWERED)


# --- What is played -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(KWARGS, SEEDS)
def test_what_a_mask_allows_is_never_invalid(kwargs: dict[str, Any], seed: int) -> None:
    env, rng = make(**kwargs), np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    done = False
    while not done:
        action = masked_action(rng, env.layout, info["action_mask"])
        _, _, terminated, truncated, info = env.step(action)
        assert isinstance(info["action"], Answer if action[env.layout.operation] else Search)
        done = terminated or truncated
    assert terminated  # in the last round a mask allows nothing but an answer


def _after_a_search(**kwargs: Any) -> tuple[SearchQAArrayEnv, np.ndarray[Any, Any]]:
    """An environment that has an article in view, and an action that would search for the first subject."""
    env = make(**kwargs)
    env.reset(seed=3)
    action = np.zeros(env.layout.decisions, np.int64)
    env.step(action)
    return env, action


def test_more_facts_than_the_memory_holds_are_invalid_and_one_fewer_are_not() -> None:
    env, action = _after_a_search(capacity=3)
    action[env.layout.keep][:4] = 1
    _, _, _, _, info = env.fork(1)[0].step(action)
    assert info["action"].reason == "memory_too_long" and info["memory"] == ""
    action[env.layout.keep][0] = 0
    info = env.step(action)[4]
    assert isinstance(info["action"], Search) and info["tokens"].memory == 12


def test_empty_slots_and_numbers_cannot_be_searched_for() -> None:
    env, action = _after_a_search(capacity=1)
    objects = env.world.object_M[env._view.facts_BV[0]]  # type: ignore[union-attr]
    named = (objects >= 0) & (objects < env.world.names)
    assert 0 < named.sum() < len(named)
    for slot, name in enumerate(named):
        action[env.layout.entity] = env.layout.objectives + slot
        info = env.fork(1)[0].step(action)[4]
        assert isinstance(info["action"], Search) == name == bool(info["retrieved"])
        assert name or info["action"].reason == "empty"


def test_an_empty_candidate_is_an_empty_answer() -> None:
    env, action = _after_a_search()
    action[env.layout.operation], action[env.layout.candidates] = 1, env.layout.view - 1
    _, _, terminated, _, info = env.step(action)
    assert isinstance(info["action"], Invalid) and info["action"].reason == "empty" and not terminated
    two, action = _after_a_search(objectives=2)
    action[two.layout.operation], action[two.layout.candidates] = 1, two.layout.view - 1
    _, reward, terminated, _, info = two.step(action)
    assert terminated and reward == 0 and [o.prediction for o in info["score"].objectives] == ["", ""]


def test_whoever_does_not_know_says_so() -> None:
    env, action = _after_a_search()
    action[env.layout.operation], action[env.layout.candidates] = 1, env.layout.view
    _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["score"].objectives[0].prediction) == (0.0, True, "unknown")


@settings(max_examples=40, deadline=None)
@given(KWARGS, SEEDS)
def test_the_text_face_plays_the_same_episode_from_the_texts(kwargs: dict[str, Any], seed: int) -> None:
    env, rng = make(**kwargs), np.random.default_rng(seed)
    env.reset(seed=seed)
    texts = []
    while env.episode().stop_reason is None:
        action = random_action(rng, env.layout)
        texts.append(env.write(action))
        env.step(action)
    plain = SearchQAEnv(
        env.world.questions,
        corpus=env.world.corpus,
        retriever=env.world.retriever,
        objectives=env.layout.objectives,
        top_k=1,
        max_rounds=env.task.max_rounds,
        max_memory_tokens=4 * env.layout.capacity,
        retriever_noise=kwargs["retriever_noise"],
    )
    plain.reset(seed=seed)
    for text in texts:
        plain.step(text)
    assert plain.episode() == env.episode()


# --- Copies -------------------------------------------------------------------------------------------------


def _continue(env: SearchQAArrayEnv, seed: int) -> list[Any]:
    """Play on with random actions; all that came of it."""
    rng, seen = np.random.default_rng(seed), []
    while env.episode().stop_reason is None:
        obs, reward, _, _, info = env.step(random_action(rng, env.layout, answer=0.1))
        seen.append((obs.tobytes(), reward, info))
    return [*seen, env.reset()[1]]  # with the random numbers that are left


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_copies_snapshots_and_forks_go_on_alike(noise: float) -> None:
    env = make(objectives=2, retriever_noise=noise)
    env.reset(seed=5)
    rng = np.random.default_rng(1)
    for _ in range(2):
        env.step(random_action(rng, env.layout, answer=0))
    state = env.get_state()
    restored, reset = make(objectives=2, retriever_noise=noise), make(objectives=2, retriever_noise=noise)
    restored.reset(seed=9)
    restored.set_state(state)
    reset.reset(options={"state": state})
    twins = [restored, reset, copy.deepcopy(env), pickle.loads(pickle.dumps(env)), *env.fork(2)]
    masks = [twin.action_masks().tolist() for twin in twins]
    assert all(mask == env.action_masks().tolist() for mask in masks)
    wanted = _continue(env, 7)
    for twin in twins:
        assert _continue(twin, 7) == wanted


def test_forks_with_seeds_of_their_own_draw_other_numbers() -> None:
    env = make(retriever_noise=0.5)
    env.reset(seed=5)
    first, second, third = env.fork(3, seeds=[1, 2, 1])
    assert _continue(first, 7) == _continue(third, 7) != _continue(second, 7)


def test_a_state_of_another_world_is_refused() -> None:
    env, other = make(), make(world_seed=1)
    env.reset(seed=0)
    with pytest.raises(StateError, match="dataset"):
        other.reset(options={"state": env.get_state()})


def test_both_ways_to_render() -> None:
    env = make(render_mode="ansi")
    env.reset(seed=0)
    action = np.zeros(env.layout.decisions, np.int64)
    env.step(action)
    text = env.render()
    assert text is not None and env.world.words[env.world.subject_Q[env._view.asked_BN[0, 0]]] in text  # type: ignore[union-attr]
    assert make().render() is None
