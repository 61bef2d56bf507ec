"""An agent that searches and answers at random, with words that are in view."""

from __future__ import annotations

from functools import partial
from random import Random

from mempo_agents.base import Context
from mempo_agents.scripted import Scripted
from mempo_agents.view import View, look, write_answers, write_search
from mempo_env.files import digest

VERSION = 1
"""Raised whenever the behaviour changes."""

_STOP = 0.25  # probability of answering in a round
_QUERY_WORDS, _ANSWER_WORDS = 4, 3  # at most


def write(context: Context, seed: int) -> str:
    """Search for random words of what is in view, or answer each question with a random phrase of it."""
    chance = Random(digest(str(seed), context.prompt.encode("utf-8", "surrogatepass")))
    view = look(context)
    words = _words(view)
    if view.last_round or (view.articles and chance.random() < _STOP):
        return write_answers([_phrase(chance, words) for _ in view.questions])
    return write_search(" ".join(chance.choices(words, k=chance.randint(1, _QUERY_WORDS))))


def _words(view: View) -> list[str]:
    """The words of the passages in view, or of the questions where there is no passage."""
    read = [f"{article.title} {article.text}" for article in view.articles]
    return " ".join(read).split() or " ".join(view.questions).split() or ["nothing"]


def _phrase(chance: Random, words: list[str]) -> str:
    start = chance.randrange(len(words))
    return " ".join(words[start : start + chance.randint(1, _ANSWER_WORDS)])


def random_agent(seed: int = 0) -> Scripted:
    """The agent; with another seed it does other things in the same place."""
    return Scripted(partial(write, seed=seed), "random", f"random-{VERSION}-{seed}")
