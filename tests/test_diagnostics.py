"""Evidence seen, kept and lost, and the first reason for a failure; all by hand on the small world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mempo_agents import make_agent
from mempo_agents.rollout import episodes
from mempo_env.questions.set import QuestionSet
from mempo_env.questions.world import synthetic
from mempo_env.types import Call, Completion, Diagnostics, Evidence, Question, Segment
from small import PASSAGES, answer, make, question, search

VERNE, BAY = search("Aldo Verne"), search("Marrow Bay", "Verne was born in Marrow Bay")

KEEP = search("y", "Marrow Bay: Ines Calder")


def run(*actions: str, **kwargs: Any) -> dict[str, Any]:
    """The last info of an episode on question 0: Verne -> Marrow Bay -> Ines Calder."""
    env = make(**kwargs)
    env.reset(options={"question_id": "q0"})
    for action in actions:
        info = env.step(action)[4]
    return info


def test_diagnostics_round_by_round() -> None:
    env = make()
    _, info = env.reset(options={"question_id": "q0"})
    assert info["diagnostics"] == Diagnostics(0.0, 0.0, 0, (False,), (False,), False)
    expected = [
        (search("Bela Quist"), Diagnostics(0.0, 0.0, 0, (False,), (False,), False)),
        (search("Aldo Verne"), Diagnostics(0.5, 0.5, 0, (False,), (False,), False)),
        # Round 3 does not write the bridge down: it goes with the step.
        (search("Bela Quist"), Diagnostics(0.5, 0.0, 1, (False,), (False,), True)),
        (search("aldo verne!", "town: ?"), Diagnostics(0.5, 0.5, 0, (False,), (False,), True)),
        (search("Marrow Bay", "town: Marrow Bay"), Diagnostics(1.0, 1.0, 0, (True,), (False,), False)),
        (
            search("Kettle Works", "Marrow Bay: Ines Calder"),
            Diagnostics(1.0, 1.0, 0, (True,), (True,), False),
        ),
        (search("the kettle works", "nothing"), Diagnostics(1.0, 0.0, 2, (True,), (False,), True)),
    ]
    for action, wanted in expected:
        assert env.step(action)[4]["diagnostics"] == wanted, action


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([answer("x")], "not_retrieved"),
        ([VERNE, answer("x")], "not_retrieved"),
        ([VERNE, search("Marrow Bay"), answer("x", "m")], "retrieved_not_kept"),
        ([VERNE, BAY, search("y", "nothing"), answer("x")], "retrieved_not_kept"),
        (
            [VERNE, BAY, search("y", "Marrow Bay: Ines Calder"), search("z", "gone"), answer("x")],
            "kept_then_lost",
        ),
        ([VERNE, BAY, answer("Mayor Ines Calder!")], "wrong_form"),
        ([VERNE, BAY, answer("Ínes Calder")], "wrong_form"),
        ([VERNE, BAY, KEEP, search("z", "gone"), answer("it is Ines Calder")], "wrong_form"),
        ([VERNE, BAY, answer("Tomas Reve")], "kept_not_used"),
        ([VERNE, BAY, answer("Ines Calder")], None),
        ([answer("Ines Calder")], None),
    ],
)
def test_the_first_reason_that_holds(actions: list[str], reason: str | None) -> None:
    assert run(*actions)["failure"] == (reason,)


def test_full_history_keeps_what_it_has_seen() -> None:
    info = run(VERNE, search("Marrow Bay"), search("y"), answer("x"), context="full", memory="none")
    assert info["failure"] == ("kept_not_used",)


def test_without_a_memory_the_window_decides() -> None:
    info = run(VERNE, search("Marrow Bay"), answer("x"), context="last_step", memory="none")
    assert info["failure"] == ("retrieved_not_kept",)


def test_reasons_are_given_for_each_objective() -> None:
    env = make(objectives=2)
    env.reset(options={"question_id": "q0+q1"})
    env.step(VERNE)
    env.step(BAY)
    info = env.step(answer("1. Ines Calder\n2. Ines Calder"))[4]
    assert info["failure"] == (None, "not_retrieved")


def test_yes_and_no_are_never_looked_for_in_texts() -> None:
    q = Question(
        id="yn",
        text="Is it?",
        answers=("yes",),
        evidence=(Evidence("p4", "Kettle Works", (PASSAGES[4].text.split(". ")[1],)),),
    )
    env = make(dataset=QuestionSet([q, question(1)]))
    env.reset(options={"question_id": "yn"})
    info = env.step(search("Kettle Works"))[4]
    assert info["diagnostics"].answer_in_retrieved == (None,)
    # No key phrase: half of the content words outside the title ("founded 1950", "they" is no content).
    info = env.step(search("Bela Quist", "the works were founded in 1950"))[4]
    assert info["diagnostics"].evidence_kept == 1.0
    info = env.step(search("Bela Quist", "founded sometime"))[4]
    assert info["diagnostics"].evidence_kept == 1.0
    info = env.step(search("Bela Quist", "a factory"))[4]
    assert (info["diagnostics"].evidence_kept, info["diagnostics"].facts_lost) == (0.0, 1)


def test_a_guess_in_memory_is_no_kept_fact() -> None:
    info = run(search("Kettle Works"), search("Kettle Works", "the mayor is Ines Calder"))
    assert info["diagnostics"].answer_in_memory == (True,)
    assert (info["diagnostics"].evidence_recall, info["diagnostics"].evidence_kept) == (0.0, 0.0)


# --- Prompts that an agent composed itself ---

NOTE = Segment("mem", 3, "<mem>\nMarrow Bay: Ines Calder\n</mem>", 6)
SHOWN: dict[str, tuple[Callable[[tuple[Segment, ...]], tuple[Segment, ...]], float, str]] = {
    "all that is in view": (lambda view: view, 1.0, "kept_not_used"),
    "no calls with segments": (lambda view: (), 1.0, "kept_not_used"),
    "the question alone": (lambda view: view[:2], 0.0, "retrieved_not_kept"),
    "the last passage": (lambda view: (*view[:2], view[-2]), 0.5, "retrieved_not_kept"),
    "a note of both": (lambda view: (*view[:2], NOTE), 1.0, "kept_not_used"),
    "a passage in words of its own": (
        lambda view: (*view[:2], Segment("information", 3, f"[1] Verne\n{PASSAGES[0].text}", 9), NOTE),
        1.0,
        "kept_not_used",
    ),
    "an instruction that names them": (
        lambda view: (Segment("system", 3, "Marrow Bay: Ines Calder", 4), *view[1:2]),
        0.0,
        "retrieved_not_kept",
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_what_an_agent_leaves_out_of_its_own_prompt_is_not_kept(what: str) -> None:
    """The environment shows the whole history, the agent its model a part of it; the last call counts."""
    of, kept, reason = SHOWN[what]
    env = make(context="full", memory="none")
    env.reset(options={"question_id": "q0"})
    env.step(VERNE)
    info = env.step(search("Marrow Bay"))[4]
    assert [segment.kind for segment in info["segments"]][-2:] == ["information", "hint"]
    first = Call(segments=info["segments"], output="thoughts")
    said = Completion(answer("x"), calls=(first, Call(segments=of(info["segments"]), output=answer("x"))))
    info = env.step(said)[4]
    assert info["failure"] == (reason,)
    assert info["episode"].rounds[-1].evidence_in_prompt == kept
    assert info["episode"].rounds[-1].diagnostics.evidence_kept == 1.0, "by the environment's own prompt"
    other = make(context="full", memory="none")
    other.reset(options={"state": env.get_state()})
    assert other.episode() == info["episode"]


def test_what_lies_in_a_bank_is_kept_though_the_prompt_does_not_show_it() -> None:
    env = make(memory="bank")
    env.reset(options={"question_id": "q0"})
    env.step(VERNE)
    env.step(search("Marrow Bay"))
    env.step("<memory_write> Marrow Bay: Ines Calder </memory_write><search> x </search>")
    info = env.step("<search> y </search>")[4]
    question_alone = Call(segments=info["segments"][:2], output=answer("x"))
    info = env.step(Completion(answer("x"), calls=(question_alone,)))[4]
    assert (info["failure"], info["episode"].rounds[-1].evidence_in_prompt) == (("kept_not_used",), 1.0)


@pytest.mark.parametrize("name", ["resum(60)", "selfask", "memagent"])
def test_agents_with_prompts_of_their_own_keep_less_than_the_environment_shows(name: str) -> None:
    ids = [question.id for question in synthetic().split("test")][:4]
    played = episodes(make_agent(name), ids, env_kwargs={"split": "test"})
    rounds = [round for _, episode in played for round in episode.rounds]
    of_view = [0.0 if i == 0 else rounds[i - 1].diagnostics.evidence_kept for i in range(len(rounds))]
    shown = [round.evidence_in_prompt for round in rounds]
    assert any(0 < (a or 0) < (b or 0) for a, b in zip(shown, of_view, strict=True))
