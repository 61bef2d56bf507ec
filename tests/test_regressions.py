"""Faults of neighbouring systems, a test each, named after what goes wrong; more stand beside their parts."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest

import mempo_env
from mempo_env.questions.set import QuestionSet
from mempo_env.scoring import score_objective
from mempo_env.spaces import UnicodeText
from mempo_env.types import ObjectiveScore, Question, StopReason
from small import QUESTIONS, TitleRetriever, answer, make, search

# --- Reward and parsing -------------------------------------------------------------------------------------


def test_the_scorer_needs_no_example_tag_in_the_prompt() -> None:
    env = make(system_prompt="", hint=False)
    env.reset(options={"question_id": "q0"})
    assert env.step(answer("Ines Calder"))[1] == 1.0


def test_an_answer_tag_in_the_prompt_is_never_scored() -> None:
    env = make(system_prompt="For example: <answer>Ines Calder</answer>", max_rounds=1)
    env.reset(options={"question_id": "q0"})
    _, reward, *_, info = env.step("I do not know.")
    assert (reward, info["score"].em) == (0.0, 0.0)


def test_several_objectives_without_any_answer_are_scored_zero() -> None:
    env = make(objectives=3, max_rounds=1)
    env.reset(seed=0)
    info = env.step(search("x"))[4]
    assert (info["score"].em, len(info["score"].objectives)) == (0.0, 3)
    assert info["failure"] == ("out_of_budget",) * 3


def test_an_answer_that_contains_a_semicolon_can_match() -> None:
    rows = [Question(id=f"s{i}", text="?", answers=(f"one; two {i}",)) for i in range(2)]
    for text in ("1. one; two 0\n2. one; two 1", '["one; two 0", "one; two 1"]'):
        env = make(dataset=QuestionSet(rows), objectives=2, compose="consecutive")
        env.reset(seed=0)
        assert env.step(answer(text))[1] == 1.0


def test_us_does_not_match_business() -> None:
    assert score_objective("business", ("us",)) == ObjectiveScore("business", 0.0, 0.0, 0.0, contains=False)


def test_a_thought_is_counted_once() -> None:
    """As output of its round, and as prompt where the next one shows it."""
    env = make(context="last_step", memory="none")
    obs, _ = env.reset(options={"question_id": "q0"})
    text = "<think> " + "hm " * 50 + "</think><search> Aldo Verne </search>"
    first = env.step(text)
    assert first[4]["tokens"].output == 1 + 50 + 4
    assert first[4]["tokens"].total == len(obs.split()) + 55
    last = env.step(answer("x"))[4]["tokens"]
    assert last.prompt == len(first[0].split()) and first[0].count("hm ") == 50
    assert last.total == first[4]["tokens"].total + last.prompt + last.output


# --- Environments -------------------------------------------------------------------------------------------


def test_the_space_of_text_holds_spaces_and_accents_and_is_small() -> None:
    space = UnicodeText()
    for text in ("a b", "é漢\n", "", "<answer>x</answer>"):
        assert space.contains(text)
    assert not space.contains(3) and not UnicodeText(max_length=2).contains("abc")
    assert len(pickle.dumps(space)) < 2_000
    assert copy.deepcopy(space) == space and UnicodeText(5) != space
    space.seed(3)
    first = [space.sample() for _ in range(3)]
    space.seed(3)
    assert first == [space.sample() for _ in range(3)] and all(map(space.contains, first))


@pytest.mark.parametrize("id", list(mempo_env.ENVIRONMENTS))
def test_no_first_random_action_truncates(id: str) -> None:
    """Gymnasium's `check_env` takes one random action, and fails if it truncates."""
    env = gym.make(id)
    env.action_space.seed(0)
    for seed in range(20):
        env.reset(seed=seed)
        assert env.step(env.action_space.sample())[3] is False


def test_the_vector_environment_enforces_max_rounds_itself() -> None:
    envs = gym.make_vec(
        "MemPO-SearchQA-v0", num_envs=2, dataset=QUESTIONS, retriever=TitleRetriever(), max_rounds=2
    )
    envs.reset(seed=0)
    envs.step([search("a"), search("b")])
    _, _, _, truncations, infos = envs.step([search("a"), search("b")])
    assert truncations.tolist() == [True, True]
    assert set(infos["stop_reason"]) == {StopReason.MAX_ROUNDS}


def test_nothing_of_one_episode_leaks_into_the_next_or_into_another() -> None:
    one, two = make(), make()
    for env in (one, two):
        env.reset(options={"question_id": "q0"})
    one.step(search("Aldo Verne", "SECRET"))
    assert two.step(search("x"))[4]["memory"] == ""
    assert "SECRET" not in str(one.reset(options={"question_id": "q0"}))


def test_wrappers_never_show_a_stale_episode() -> None:
    made = gym.make("MemPO-SearchQA-v0", dataset=QUESTIONS, retriever=TitleRetriever())
    env = gym.wrappers.RecordEpisodeStatistics(made, stats_key="statistics")
    env.reset(seed=0)
    env.step(search("a"))
    assert len(env.get_wrapper_attr("episode")().rounds) == 1
    info = env.step(answer("x"))[4]
    assert len(info["episode"].rounds) == info["statistics"]["l"] == 2


# --- Imports ------------------------------------------------------------------------------------------------

HEAVY = ("torch", "matplotlib", "faiss", "pyserini", "pyarrow", "transformers", "scipy", "pandas")


@pytest.mark.parametrize(
    "script",
    [
        "import mempo_env",
        "import gymnasium as gym, mempo_env; gym.make('MemPO-SearchQA-v0').reset(seed=0)",
        "import gymnasium as gym, mempo_env; gym.make('MemPO-SearchQA-Toy-v0').reset(seed=0)",
        "import mempo_agents, mempo_agents.rollout, mempo_benchmarks, mempo_env.cli",
        "import mempo_benchmarks.demo, mempo_benchmarks.cli, mempo_benchmarks.view",
    ],
)
def test_nothing_heavy_is_loaded_at_import(script: str) -> None:
    code = f"{script}\nimport sys\nprint(sorted(set(sys.modules) & set({HEAVY})))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().splitlines()[-1] == "[]"


def test_import_loads_neither_a_client_nor_a_server() -> None:
    late = {"httpx", "starlette", "uvicorn", "typer", "rich", "tantivy"}
    code = f"import sys, mempo_env; print(sorted(set(sys.modules) & {late}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_no_file_of_ours_is_long_without_a_reason() -> None:
    """At most 400 lines; but one docstring is a manual."""
    root = Path(__file__).resolve().parents[1]
    allowed = {"mempo_env/env.py"}
    sources = [
        p
        for folder in ("mempo_env", "agents", "trainers", "benchmarks")
        for p in (root / folder).rglob("*.py")
    ]
    long = {str(p.relative_to(root)) for p in sources if len(p.read_text().splitlines()) > 400}
    assert long <= allowed
