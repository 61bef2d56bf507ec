"""From choices to the text of a round, and from the text in view back to numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from mempo_env.arrays.facts import Ints
from mempo_env.arrays.layout import ANSWER
from mempo_env.arrays.observe import View
from mempo_env.arrays.task import Task
from mempo_env.types import Segment

NOTHING = "nothing"
"""The text of a memory without facts: one word."""

UNKNOWN = "unknown"
"""The answer to a question of whoever does not know it."""

_SENTENCE = re.compile(r"\w+'s \w+ is \w+\.")
_QUESTION = re.compile(r"What is the [^?]+\?")
_TITLE = re.compile(r"<search>(\w+)</search>")
_ROUNDS_LEFT = re.compile(r"\((\d+) rounds? left")


def write(task: Task, view: View, first: bool, action_K: Ints) -> str:
    """The text that says what an action chooses.

    Args:
        task: World and layout.
        view: What is in view, of one environment.
        first: Whether this is the first round, in which there is nothing to remember.
        action_K: The choices. An entity that is no name, or a candidate that is empty, is an empty text.
    """
    world, layout, facts = task.world, task.layout, view.facts_BV[0].tolist()
    kept = [
        world.sentences[fact]
        for fact, keep in zip(facts, action_K[layout.keep], strict=True)
        if keep and fact >= 0
    ]
    memory = "" if first else f"<mem> {' '.join(kept) or NOTHING} </mem> "
    objects = [int(world.object_M[fact]) for fact in facts]
    if action_K[layout.operation] == ANSWER:
        given = [*(world.words[object] if object >= 0 else "" for object in objects), UNKNOWN]
        parts = [given[candidate] for candidate in action_K[layout.candidates]]
        lines = (f"{i}. {part}" for i, part in enumerate(parts, 1))
        return f"{memory}<answer>{parts[0] if len(parts) == 1 else chr(10).join(lines)}</answer>"
    entity = [*world.subject_Q[view.asked_BN[0]].tolist(), *objects][action_K[layout.entity]]
    return f"{memory}<search>{world.words[entity] if 0 <= entity < world.names else ''}</search>"


def read(task: Task, segments: Sequence[Segment]) -> View:
    """What is in view of one environment, read from the texts that it shows."""
    world, texts = task.world, {segment.kind: segment.text for segment in segments}
    asked = [world.row_of[question] for question in _QUESTION.findall(texts["question"])]
    memory, article = (
        [world.fact_of[sentence] for sentence in _SENTENCE.findall(texts.get(kind, ""))]
        for kind in ("mem", "information")
    )
    facts = [*memory, *(fact for fact in article if fact not in memory)]
    title, left = _TITLE.search(texts.get("call", "")), _ROUNDS_LEFT.search(texts.get("hint", ""))
    return View(
        asked_BN=np.array([asked]),
        facts_BV=np.array([facts + [-1] * (task.layout.view - len(facts))]),
        memory_B=np.array([len(memory)]),
        searched_B=np.array([-1 if title is None else world.word_of[title[1]]]),
        left_B=np.array([0 if left is None else int(left[1])]),
    )
