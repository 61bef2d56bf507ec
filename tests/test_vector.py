"""The vector environment steps like single ones, and asks the retriever once a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mempo_env.errors import ConfigError, RetrieverError
from mempo_env.types import Hit
from mempo_env.vector import SearchQAVectorEnv
from small import QUESTIONS, TitleRetriever, answer, make, search

ACTIONS = st.sampled_from(
    [
        search("Aldo Verne"),
        search("Bela Quist", "m1"),
        search("x", "m2"),
        "invalid",
        answer("Ines Calder", "m3"),
    ]
)


def make_vec(n: int, **kwargs: Any) -> SearchQAVectorEnv:
    defaults: dict[str, Any] = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "top_k": 1}
    envs = gym.make_vec("MemPO-SearchQA-v0", num_envs=n, **{**defaults, **kwargs}).unwrapped
    assert isinstance(envs, SearchQAVectorEnv)
    return envs


def test_make_vec_makes_ours_for_every_number_of_objectives() -> None:
    envs = make_vec(3)
    assert envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.DISABLED
    assert envs.observation_space.contains(envs.reset(seed=0)[0])
    assert envs.action_space.contains(envs.action_space.sample())
    four = gym.make_vec(
        "MemPO-SearchQA-MultiObj4-v0", num_envs=2, dataset=QUESTIONS, retriever=TitleRetriever()
    )
    assert all(q.count("+") == 3 for q in four.reset(seed=0)[1]["question_id"])


def test_one_retrieval_call_a_step_with_each_query_once() -> None:
    retriever = TitleRetriever()
    envs = make_vec(5, retriever=retriever)
    envs.reset(seed=0)
    envs.step([search("a"), search("b"), search("a"), "invalid", None])
    envs.step([search("c")] * 5)
    envs.step(["invalid"] * 5)
    assert retriever.calls == [("a", "b"), ("c",)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.none(), ACTIONS), min_size=3, max_size=3), max_size=8), st.integers(0, 99)
)
def test_each_is_the_same_as_a_single_one(steps: list[list[str | None]], seed: int) -> None:
    envs, singles = make_vec(3), [make() for _ in range(3)]
    obs, infos = envs.reset(seed=seed)
    firsts = [env.reset(seed=seed + i) for i, env in enumerate(singles)]
    assert list(obs) == [first[0] for first in firsts]
    done = [False] * 3
    for actions in steps:
        actions = [None if done[i] else action for i, action in enumerate(actions)]
        obs, rewards, terminations, truncations, infos = envs.step(actions)
        for i, action in enumerate(actions):
            if action is None:
                assert rewards[i] == 0 and not infos.get("_round", np.zeros(3))[i]
                continue
            o, r, terminated, truncated, info = singles[i].step(action)
            assert (obs[i], rewards[i], terminations[i], truncations[i]) == (o, r, terminated, truncated)
            for key, value in info.items():
                assert infos[f"_{key}"][i] and infos[key][i] == value
            done[i] = terminated or truncated


def test_none_leaves_an_environment_untouched() -> None:
    envs = make_vec(2)
    before, _ = envs.reset(seed=0)
    obs, rewards, terminations, _, infos = envs.step([answer("x"), None])
    assert obs[1] == before[1] and rewards[1] == 0 and "segments" in infos and infos["segments"][1] is None
    obs, _, terminations, _, infos = envs.step([None, search("a")])
    assert terminations.tolist() == [True, False] and infos["_round"].tolist() == [False, True]
    assert envs.step([None, None])[4] == {}


def test_disabled_autoreset_waits_for_the_mask() -> None:
    envs = make_vec(3)
    first, _ = envs.reset(seed=0)
    envs.step([answer("x"), None, answer("y")])
    with pytest.raises(gym.error.ResetNeeded, match="environment 2 has ended"):
        envs.step([None, search("a"), search("b")])
    assert envs.envs[1].episode().rounds == ()  # nothing moved in the refused step
    options = {"reset_mask": np.array([True, False, False]), "question_id": "q5"}
    obs, infos = envs.reset(options=options)
    assert set(options) == {"reset_mask", "question_id"}
    assert infos["question_id"].tolist() == ["q5", None, None] and obs[1] == first[1]
    envs.step([search("a"), search("b"), None])


def test_same_step_autoreset_keeps_what_ended() -> None:
    envs = make_vec(2, autoreset_mode="same_step")
    envs.reset(seed=0, options={"question_id": "q0"})
    obs, rewards, terminations, _, infos = envs.step([answer("Ines Calder"), search("a")])
    assert (rewards.tolist(), terminations.tolist()) == ([1.0, 0.0], [True, False])
    assert "Ines Calder" in infos["final_obs"][0] and infos["final_obs"][1] is None
    assert infos["final_info"]["episode"][0].score.em == 1.0
    assert infos["final_info"]["_episode"].tolist() == [True, False]
    assert "Ines Calder" not in obs[0] and infos["round"].tolist() == [0, 1]
    envs.step([search("a"), search("b")])


@pytest.mark.parametrize("mode", ["next_step", "samestep", gym.vector.AutoresetMode.NEXT_STEP])
def test_other_autoreset_modes_are_refused(mode: Any) -> None:
    with pytest.raises(ConfigError, match="autoreset_mode"):
        make_vec(2, autoreset_mode=mode)


def test_groups_of_one_question_and_a_question_each() -> None:
    envs = make_vec(4)
    assert set(envs.reset(options={"question_id": "q3"})[1]["question_id"]) == {"q3"}
    each = ["q1", "q1", "q2", "q2"]
    assert envs.reset(options={"question_id": each})[1]["question_id"].tolist() == each
    with pytest.raises(ConfigError, match="one question_id for each of 4"):
        envs.reset(options={"question_id": ["q1", "q2"]})
    pairs = make_vec(2, objectives=2)
    assert pairs.reset(options={"question_id": "q1+q2"})[1]["question_id"].tolist() == ["q1+q2"] * 2


def test_seeds_differ_and_can_be_given_one_by_one() -> None:
    envs = make_vec(4)
    ids = envs.reset(seed=7)[1]["question_id"].tolist()
    assert ids == [make().reset(seed=7 + i)[1]["question_id"] for i in range(4)] and len(set(ids)) > 1
    assert envs.reset(seed=[7, 7, 9, None])[1]["question_id"][:3].tolist() == [ids[0], ids[0], ids[2]]
    with pytest.raises(ConfigError, match="seed for each of 4"):
        envs.reset(seed=[1, 2])


def test_a_state_each() -> None:
    env = make()
    env.reset(seed=1)
    env.step(search("a", "kept"))
    obs, infos = make_vec(3).reset(options={"state": env.get_state()})
    assert len(set(obs)) == 1 and infos["memory"].tolist() == ["kept"] * 3


def test_a_failed_retriever_masks_those_that_searched() -> None:
    class Down:
        fingerprint = "down"

        def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
            raise RetrieverError("down")

    envs = make_vec(3, retriever=Down())
    envs.reset(seed=0)
    _, _, terminations, truncations, infos = envs.step([search("a"), "invalid", answer("x")])
    assert truncations.tolist() == [True, False, False] and terminations.tolist() == [False, False, True]
    assert infos["mask_episode"].tolist() == [True, False, False]


def test_one_can_be_aborted() -> None:
    envs = make_vec(2)
    envs.reset(seed=0)
    assert envs.abort(0, "agent_error", "model gone")[4]["stop_reason"] == "agent_error"
    _, _, _, truncations, infos = envs.step([None, search("a")])
    assert truncations.tolist() == [True, False] and infos["_round"].tolist() == [False, True]


@pytest.mark.parametrize("actions", ["ab", [answer("x")], [answer("x")] * 3])
def test_a_wrong_number_of_actions_is_refused(actions: Any) -> None:
    envs = make_vec(2)
    envs.reset(seed=0)
    with pytest.raises(ConfigError, match="for each of 2"):
        envs.step(actions)


def test_a_wrong_type_of_action_moves_nothing() -> None:
    envs = make_vec(2)
    envs.reset(seed=0)
    with pytest.raises(TypeError, match="got int at 1"):
        envs.step([answer("x"), 3])  # type: ignore[list-item]
    assert envs.envs[0].episode().rounds == ()


def test_gymnasiums_own_vectorisation_works_or_refuses() -> None:
    kwargs: dict[str, Any] = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "top_k": 1}
    ours, _ = make_vec(2).reset(seed=5)
    sync = gym.make_vec("MemPO-SearchQA-v0", num_envs=2, vectorization_mode="sync", **kwargs)
    assert sync.reset(seed=5)[0] == ours
    sync.close()
    with pytest.raises(ValueError, match="shared_memory"):
        gym.make_vec("MemPO-SearchQA-v0", num_envs=2, vectorization_mode="async", **kwargs)
    workers = gym.make_vec(
        "MemPO-SearchQA-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": False},
        **kwargs,
    )
    assert workers.reset(seed=5)[0] == ours
    assert workers.step((answer("Ines Calder"), search("a")))[2].tolist() == [True, False]
    workers.close()


def test_render_of_each() -> None:
    envs = make_vec(2, render_mode="ansi")
    envs.reset(seed=0)
    assert all(text and "before the first round" in text for text in envs.render())


def test_one_bad_option_resets_nothing() -> None:
    envs = make_vec(3)
    envs.reset(seed=0, options={"question_id": ["q1", "q2", "q3"]})
    with pytest.raises(ConfigError, match="question id"):
        envs.reset(options={"question_id": ["q4", "q5", "nope"]})
    assert [env.episode().question_id for env in envs.envs] == ["q1", "q2", "q3"]


def test_seeds_may_be_numpy_integers() -> None:
    ours, theirs = make_vec(2), make_vec(2)
    assert ours.reset(seed=np.array([5, 6]))[0] == theirs.reset(seed=[5, 6])[0]


def test_a_retriever_that_raises_leaves_no_round_under_way() -> None:
    class Buggy(TitleRetriever):
        broken = True

        def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
            if self.broken:
                raise KeyError("a bug")
            return super().search(queries, k)

    retriever = Buggy()
    envs, env = make_vec(2, retriever=retriever), make(retriever=retriever)
    envs.reset(seed=0)
    env.reset(seed=0)
    with pytest.raises(KeyError):
        envs.step([search("a"), search("b")])
    with pytest.raises(KeyError):
        env.step(search("a"))
    retriever.broken = False
    assert envs.step([search("a"), search("b")])[4]["round"].tolist() == [1, 1]
    assert env.step(search("a"))[4]["round"] == 1


def test_num_envs_is_checked() -> None:
    with pytest.raises(ConfigError, match="num_envs"):
        SearchQAVectorEnv(num_envs=0)
