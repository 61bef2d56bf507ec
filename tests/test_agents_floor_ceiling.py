"""The agents that bound all others: empty, random, and the oracle, which is right exactly when it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mempo_agents import Context, make_agent
from mempo_agents.oracle import oracle_agent
from mempo_agents.random_agent import random_agent
from mempo_agents.rollout import episodes
from mempo_env.questions.set import QuestionSet
from mempo_env.questions.world import synthetic
from mempo_env.types import Episode, Evidence, Passage, Question, Search, Segment, passage_id
from small import PASSAGES, QUESTIONS, TitleRetriever


def play(agent: Any, ids: Sequence[str], **kwargs: Any) -> list[Episode]:
    defaults = {"dataset": QUESTIONS, "retriever": TitleRetriever(), "top_k": 1}
    return [episode for _, episode in sorted(episodes(agent, ids, env_kwargs={**defaults, **kwargs}))]


def test_empty_scores_nothing_at_once() -> None:
    for episode in play(make_agent("empty"), ["q0+q1+q2"], objectives=3):
        assert len(episode.rounds) == 1
        assert episode.score.well_formed
        assert (episode.score.em, episode.score.f1, episode.score.em_relaxed) == (0.0, 0.0, 0.0)


def test_random_depends_on_seed_and_context_alone() -> None:
    def texts(seed: int, ids: Sequence[str]) -> list[list[str]]:
        return [[round.text for round in episode.rounds] for episode in play(random_agent(seed), ids)]

    ids = [f"q{i}" for i in range(8)]
    assert texts(0, ids) == texts(0, ids)
    assert texts(0, ids) != texts(1, ids)
    assert texts(0, ids[3:4]) == texts(0, ids)[3:4]


def test_random_searches_and_answers_with_words_in_view() -> None:
    for episode in play(random_agent(), [f"q{i}" for i in range(8)]):
        for round in episode.rounds:
            view = {word for i in round.view for word in episode.ledger[i].text.split()}
            assert set(round.text.split()) <= view | {"<search>", "</search>", "<answer>", "</answer>"}


# --- The oracle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objectives", [1, 2, 4, 8, 16])
def test_the_oracle_is_right_when_all_evidence_is_there(objectives: int) -> None:
    ids = ["+".join(f"q{i + j}" for j in range(objectives)) for i in range(4)]
    for episode in play(oracle_agent(QUESTIONS), ids, objectives=objectives):
        assert episode.score.em_all == 1.0
        assert episode.rounds[-1].diagnostics.evidence_kept == 1.0


@pytest.mark.parametrize("missing", range(4))
def test_the_oracle_is_wrong_exactly_where_what_says_the_answer_was_not_retrieved(missing: int) -> None:
    """Passages 0 and 1 are the evidence of q0, passages 2 and 3 that of q1; 1 and 3 say the answers."""
    corpus = [passage for i, passage in enumerate(PASSAGES) if i != missing]
    (episode,) = play(oracle_agent(QUESTIONS), ["q0+q1"], objectives=2, retriever=TitleRetriever(corpus))
    right = [objective.em == 1.0 for objective in episode.score.objectives]
    assert right == [missing != 1, missing != 3]
    assert episode.score.well_formed


@pytest.mark.parametrize("lost", range(4))
def test_the_oracle_is_wrong_exactly_where_a_note_was_lost(lost: int) -> None:
    """Its last prompt, without one line of its memory, and with no round left; lines 1 and 3 say answers."""
    (episode,) = play(oracle_agent(QUESTIONS), ["q0+q1"], objectives=2)
    memory = episode.rounds[-1].memory.split("\n")
    assert len(memory) == 4
    kept = "\n".join(line for i, line in enumerate(memory) if i != lost)
    segments = (
        Segment("question", 0, "Questions:\n1. a\n2. b", 1),
        Segment("mem", 4, f"<mem>\n{kept}\n</mem>", 1),
        Segment("hint", 4, "(1 round left)", 1),
    )
    (text,) = oracle_agent(QUESTIONS).act([Context(segments, "q0+q1")])
    first, second = (
        "-" if lost == telling else answer for telling, answer in [(1, "Ines Calder"), (3, "Tomas Reve")]
    )
    assert f"<answer> 1. {first}\n2. {second} </answer>" in str(text)


@pytest.mark.parametrize("rounds", range(1, 6))
def test_the_oracle_makes_the_most_of_too_few_rounds(rounds: int) -> None:
    """Two questions with two passages each: every search that there is room for makes one of them right."""
    (episode,) = play(oracle_agent(QUESTIONS), ["q0+q1"], objectives=2, max_rounds=rounds)
    assert sum(objective.em for objective in episode.score.objectives) == min(rounds - 1, 2)
    assert len(episode.rounds) == rounds
    assert episode.rounds[-1].diagnostics.evidence_recall == min(rounds - 1, 4) / 4


def test_all_evidence_is_needed_where_no_passage_says_the_answer_and_the_short_question_comes_first() -> None:
    passages = [Passage(passage_id(t, f"{t} is old."), t, f"{t} is old.") for t in ("One", "Two", "Three")]
    parts = [Evidence(p.id, p.title, (p.text,)) for p in passages]
    questions = QuestionSet(
        [
            Question(id="q0", text="Are one and two old?", answers=("yes",), evidence=(parts[0], parts[1])),
            Question(id="q1", text="Is three old?", answers=("yes",), evidence=(parts[2],)),
        ]
    )

    def right(rounds: int) -> list[float]:
        env = {"dataset": questions, "retriever": TitleRetriever(passages), "max_rounds": rounds}
        (episode,) = play(oracle_agent(questions), ["q0+q1"], objectives=2, **env)
        return [objective.em for objective in episode.score.objectives]

    assert [right(rounds) for rounds in (1, 2, 3, 4)] == [[0, 0], [0, 1], [0, 1], [1, 1]]


@pytest.mark.parametrize(("objectives", "rounds"), [(1, 2), (2, 4), (3, 6), (8, 5), (8, 12)])
def test_no_agent_is_above_the_ceiling_however_few_the_rounds(objectives: int, rounds: int) -> None:
    """Agents were, by up to 0.2: they need not look for passages that say nothing of the answer."""
    questions = synthetic().split("dev")
    ids = [question.id for question in questions][: 8 * objectives]
    joined = ["+".join(ids[i : i + objectives]) for i in range(0, len(ids), objectives)]
    env = {"split": "dev", "objectives": objectives, "max_rounds": rounds}

    def em(name: str) -> float:
        agent = make_agent(name, questions)
        return sum(episode.score.em for _, episode in episodes(agent, joined, env_kwargs=env))

    ceiling = em("oracle")
    assert all(em(name) <= ceiling for name in ("react", "mempo", "mem1", "memagent"))


def test_the_oracle_keeps_only_what_it_was_shown() -> None:
    (episode,) = play(oracle_agent(QUESTIONS), ["q0"])
    first, second, third = episode.rounds
    assert first.memory == ""
    assert second.memory == "1. Aldo Verne :: He was born in Marrow Bay in 1901."
    assert third.memory.split("\n")[1] == "1. Marrow Bay :: Its mayor is Ines Calder."


def test_the_oracle_asks_again_with_the_sentence_when_the_title_misses() -> None:
    class BySentence(TitleRetriever):
        """Finds nothing by a title alone."""

        def search(self, queries: Sequence[str], k: int) -> Any:
            return [
                hits if "born" in query or "mayor" in query else ()
                for query, hits in zip(queries, super().search(queries, k), strict=True)
            ]

    (episode,) = play(oracle_agent(QUESTIONS), ["q0"], retriever=BySentence())
    assert episode.score.em == 1.0
    assert len(episode.rounds) == 5  # two searches a passage, and the answer


def test_the_oracle_gives_up_what_is_nowhere_and_answers_the_rest() -> None:
    (episode,) = play(
        oracle_agent(QUESTIONS), ["q0+q1"], objectives=2, retriever=TitleRetriever(PASSAGES[2:])
    )
    assert [objective.prediction for objective in episode.score.objectives] == ["-", "Tomas Reve"]
    queries = [round.action.query for round in episode.rounds[:-1] if isinstance(round.action, Search)]
    sentences = ("He was born in Marrow Bay in 1901.", "Its mayor is Ines Calder.")
    in_vain = [
        q for t, s in zip(("Aldo Verne", "Marrow Bay"), sentences, strict=True) for q in (t, f"{t} {s}")
    ]
    assert queries == [*in_vain, "Port Ostrel"]  # what came with a search in vain need not be looked for


def test_evidence_without_sentences_is_the_whole_passage_and_titles_may_repeat() -> None:
    texts = ("One is a hill.", "One is a lake.")
    passages = [Passage(passage_id("One", text), "One", text) for text in texts]
    questions = QuestionSet(
        [
            Question(id=f"q{i}", text="What?", answers=("hill",), evidence=(Evidence(passage.id, "One"),))
            for i, passage in enumerate(passages)
        ]
    )
    played = play(
        oracle_agent(questions), ["q0", "q1"], dataset=questions, retriever=TitleRetriever(passages[:1])
    )
    assert [episode.score.em for episode in played] == [1.0, 0.0]


def test_tags_in_evidence_do_not_hide_it() -> None:
    """The environment shows `<answer>` as `‹answer›`, and white space as one space."""
    text = "It  says <answer>no</answer> here.  More."
    evidence = Evidence("p", "A  <mem> title", ("It  says <answer>no</answer> here.",))
    questions = QuestionSet([Question(id="q0", text="What?", answers=("yes",), evidence=(evidence,))])
    retriever = TitleRetriever([Passage("p", "A  <mem> title", text)])
    (episode,) = play(oracle_agent(questions), ["q0"], dataset=questions, retriever=retriever)
    assert episode.score.em == 1.0
    assert len(episode.rounds) == 2


def test_an_episode_of_other_questions_is_an_error_of_that_episode_alone() -> None:
    contexts = [Context((Segment("question", 0, "Question: What?", 1),), id) for id in ("q0", "other")]
    fine, wrong = oracle_agent(QUESTIONS).act(contexts)
    assert isinstance(fine, str)
    assert isinstance(wrong, Exception)
    assert "other" in str(wrong)
