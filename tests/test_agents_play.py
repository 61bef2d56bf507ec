"""The agents in the environment: in the synthetic world, and on real questions of HotpotQA."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean, stdev

import pytest

from mempo_agents import Context, make_agent
from mempo_agents.reader.text import key
from mempo_agents.rollout import episodes
from mempo_agents.view import look
from mempo_env.cli import main
from mempo_env.questions.set import QuestionSet
from mempo_env.questions.world import synthetic
from mempo_env.types import Episode, Search

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def play(name: str, objectives: int, count: int, **more: int) -> list[Episode]:
    """Episodes of the synthetic world, with the same questions for every agent."""
    questions = synthetic()
    chance, ids = Random(objectives), [question.id for question in questions.split("test")]
    drawn = ["+".join(chance.sample(ids, objectives)) for _ in range(count)]
    kwargs = {"dataset": questions, "split": "test", "objectives": objectives, **more}
    played = dict(episodes(make_agent(name, questions), drawn, env_kwargs=kwargs, num_envs=count))
    return [played[i] for i in range(count)]


def em(played: list[Episode]) -> float:
    return mean(episode.score.em for episode in played)


def prompts(played: list[Episode]) -> list[float]:
    """Mean tokens of the prompt in each round from the second on, as long as half of the episodes go on."""
    rounds: dict[int, list[int]] = defaultdict(list)
    for episode in played:
        for round in episode.rounds[1:]:
            rounds[round.number].append(round.tokens.prompt)
    return [mean(tokens) for _, tokens in sorted(rounds.items()) if 2 * len(tokens) >= len(played)]


@pytest.mark.parametrize("objectives", [1, 2, 4, 8, 16])
def test_the_oracle_is_always_right_in_the_synthetic_world(objectives: int) -> None:
    played = play("oracle", objectives, 24)
    assert em(played) == 1.0
    assert all(episode.score.em_all == 1.0 for episode in played)


@pytest.mark.parametrize("name", ["empty", "random"])
def test_the_floors_are_low(name: str) -> None:
    assert em(play(name, 4, 24)) < 0.02


@pytest.mark.parametrize("objectives", [1, 16])
def test_the_reader_reads_the_synthetic_world(objectives: int) -> None:
    assert em(play("react", objectives, 12)) >= 0.95
    assert em(play("mempo", objectives, 12)) >= 0.95


def test_a_bank_holds_sixteen_answers_at_the_cost_of_one_round_that_reads_them() -> None:
    bank, inline = play("bank", 16, 12), play("mempo", 16, 12)
    assert em(bank) >= 0.95
    assert mean(len(episode.rounds) for episode in bank) <= mean(len(e.rounds) for e in inline) + 1.5


def test_at_eight_objectives_memory_is_as_good_as_the_whole_history_and_stays_short() -> None:
    react, mempo = play("react", 8, 40), play("mempo", 8, 40)
    assert abs(em(mempo) - em(react)) <= 0.05
    growing, flat = prompts(react), prompts(mempo)
    assert all(later > earlier for earlier, later in pairwise(growing))
    assert growing[-1] > 5 * growing[0]
    assert max(flat) <= 1.2 * min(flat)


REMEMBERING = ["mem1", "iterresearch", "memagent", "memsearcher", "resum", "selfask", "bank", "paging"]
READING = ["rag_memory", "amem", "mem0"]
"""What they see of their bank is what is most like the question, which need not be all that is needed."""


@pytest.mark.parametrize("name", REMEMBERING)
def test_every_agent_that_remembers_reads_the_synthetic_world(name: str) -> None:
    """With the scripted model, whose notes lose nothing that it needs."""
    assert em(play(name, 4, 12)) >= 0.95


@pytest.mark.parametrize("name", READING)
def test_an_agent_that_reads_by_similarity_finds_most_of_what_it_needs(name: str) -> None:
    read, none = em(play(name, 4, 12)), em(play("no_memory", 4, 12))
    assert read >= 0.85
    assert read > none + 0.3


def test_with_too_few_rounds_the_bank_is_read_before_they_end() -> None:
    """Sixteen rounds are enough for about half of 16 questions, whose answers only the bank holds."""
    played = play("bank", 16, 12, max_rounds=16)
    assert all(episode.stop_reason == "answered" for episode in played)
    assert em(played) >= 0.35


def test_at_eight_objectives_the_memory_holds_what_is_needed() -> None:
    for episode in play("mempo", 8, 12):
        assert all(round.memory for round in episode.rounds)
        before_answer = episode.rounds[-2].memory
        answered = [line for line in before_answer.split("\n") if ". = " in line]
        assert len(answered) >= 6


def test_without_memory_many_objectives_are_forgotten() -> None:
    kept, window, none = (em(play(name, 8, 12)) for name in ("mempo", "window", "no_memory"))
    assert none < window < kept - 0.3
    assert em(play("no_memory", 1, 40)) > none + 0.2, "with one question the last step goes a long way"


@pytest.mark.parametrize("name", ["react", "window", "no_memory", "mempo"])
def test_no_query_is_repeated_while_it_is_in_view(name: str) -> None:
    for episode in play(name, 4, 12):
        for round in episode.rounds:
            view = look(Context(tuple(episode.ledger[i] for i in round.view), episode.question_id))
            if isinstance(round.action, Search):
                assert key(round.action.query) not in set(map(key, view.queries))


# --- Real questions ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hotpotqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 400 questions, with their contexts and 6,119 other passages as the corpus."""
    questions = SHARED / "hotpotqa" / "distractor_400.jsonl"
    others = SHARED / "2wiki" / "corpus_6119.jsonl"
    if not questions.is_file() or not others.is_file():
        pytest.skip(f"needs {questions} and {others}")
    out = tmp_path_factory.mktemp("hotpotqa") / "prepared"
    command = ["data", "prepare", "hotpotqa", str(questions), "--corpus", str(others), "--split", "dev"]
    assert main([*command, "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_real_questions(hotpotqa: Path) -> None:
    """Ceiling, floors, and every reader at least 0.05 above random, also where it was not developed.

    The first 100 questions were looked at while the reader was written, the last 300 were not.
    """
    questions = QuestionSet.load(hotpotqa)
    ids = [question.id for question in questions]
    scores = {}
    for name in ("empty", "random", "oracle", "react", "window", "no_memory", "mempo"):
        kwargs = {"dataset": str(hotpotqa), "split": "dev"}
        played = dict(episodes(make_agent(name, questions), ids, env_kwargs=kwargs, num_envs=64))
        scores[name] = [played[i].score.em for i in range(len(ids))]
    assert len(ids) == 400
    assert mean(scores["oracle"]) >= 0.95
    assert mean(scores["empty"]) == 0.0
    for name in ("react", "window", "no_memory", "mempo"):
        for part in (slice(None), slice(100, None)):
            differences = [a - b for a, b in zip(scores[name][part], scores["random"][part], strict=True)]
            half = 1.96 * stdev(differences) / len(differences) ** 0.5
            assert mean(differences) >= 0.05
            assert mean(differences) - half > 0.0
    assert mean(scores["react"]) >= 0.22
    assert abs(mean(scores["mempo"]) - mean(scores["react"])) <= 0.05
    assert mean(scores["no_memory"]) < mean(scores["mempo"])
