"""What an agent without a model reads in its context, and how it writes a round."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct

from mempo_agents.base import Context
from mempo_env.protocol import neutralise
from mempo_env.types import Segment


class Article(Struct, frozen=True):
    """A passage as the environment shows it, or as much of one as a note holds: one line each."""

    title: str
    text: str


class View(Struct, frozen=True):
    """All that is in view, by what it is.

    Attributes:
        questions: The objectives, in order; at least one.
        notes: Lines of the agent's own memory and thoughts, oldest first, as (number of the objective from 0,
            text).
        articles: Passages, oldest first.
        queries: Searches of the steps in view, oldest first.
        rounds_left: Rounds left, this one included; None if no hint says.
    """

    questions: tuple[str, ...]
    notes: tuple[tuple[int, str], ...]
    articles: tuple[Article, ...]
    queries: tuple[str, ...]
    rounds_left: int | None

    @property
    def last_round(self) -> bool:
        """Whether this round is the last one allowed."""
        return self.rounds_left is not None and self.rounds_left <= 1


_NUMBERED = re.compile(r"(\d{1,4})\. (.*)")
_ROUNDS = re.compile(r"\((\d+) rounds? left")
_TAGS = re.compile(r"</?(?:mem|think|search)>")
_SAYS = " :: "
_HEAD = re.compile(r"\[\d+\] (.*)")


def look(context: Context) -> View:
    """Read a context; any segments whatever are welcome."""
    questions: tuple[str, ...] = ()
    notes: list[tuple[int, str]] = []
    articles: list[Article] = []
    queries: list[str] = []
    rounds_left = None
    for segment in context.segments:
        if segment.kind == "information":
            articles.extend(read_information(segment.text))
        elif segment.kind in ("mem", "think"):
            notes.extend(read_notes(segment.text))
        elif segment.kind == "call":
            queries.append(_bare(segment.text))
        elif segment.kind == "question":
            questions = read_questions(segment.text)
        elif segment.kind == "hint":
            rounds_left = _rounds(segment)
    return View(questions or ("",), tuple(notes), tuple(articles), tuple(queries), rounds_left)


def _rounds(segment: Segment) -> int | None:
    match = _ROUNDS.search(segment.text)
    return int(match[1]) if match else None


def _bare(text: str) -> str:
    return " ".join(_TAGS.sub(" ", text).split())


@lru_cache(maxsize=4096)
def read_questions(text: str) -> tuple[str, ...]:
    """The questions of a question segment, in order."""
    head, _, rest = text.partition("\n")
    if head == "Questions:":
        matches = map(_NUMBERED.fullmatch, rest.split("\n"))
        return tuple(match[2] for match in matches if match)
    return (text.removeprefix("Question: "),)


@lru_cache(maxsize=16_384)
def read_information(text: str) -> tuple[Article, ...]:
    """The passages of an information segment, in the order of their ranks."""
    lines = text.split("\n")[1:-1]
    heads = map(_HEAD.fullmatch, lines[::2])
    return tuple(Article(head[1], body) for head, body in zip(heads, lines[1::2], strict=False) if head)


@lru_cache(maxsize=4096)
def read_notes(text: str) -> tuple[tuple[int, str], ...]:
    """The numbered lines of a memory or a thought, as (number of the objective from 0, text)."""
    matches = (_NUMBERED.fullmatch(line.strip()) for line in _TAGS.sub("\n", text).split("\n"))
    return tuple((int(match[1]) - 1, match[2]) for match in matches if match)


def read_article(note: str) -> Article | None:
    """The passage, or the part of one, that a note holds; None if it holds something else."""
    title, mark, text = note.partition(_SAYS)
    return Article(title, text) if mark else None


# --- Writing -----------------------------------------------------------------------------------------------


def write_notes(notes: Iterable[tuple[int, str]]) -> str:
    """Lines that `read_notes` reads back."""
    return "\n".join(f"{objective + 1}. {' '.join(text.split())}" for objective, text in notes)


def write_article(article: Article) -> str:
    """A note that `read_article` reads back."""
    return f"{article.title}{_SAYS}{article.text}"


def shown(text: str) -> str:
    """Text from elsewhere as the environment shows it: on one line, without tags that could act."""
    return neutralise(" ".join(text.split()))


def write_search(query: str, thought: str = "", memory: str = "") -> str:
    """A round that searches."""
    return f"{_before(thought, memory)}<search> {query} </search>"


def write_answers(answers: Sequence[str], thought: str = "", memory: str = "") -> str:
    """A round that answers every objective: numbered lines, or the text alone where there is one."""
    lines = [" ".join(answer.split()) for answer in answers]
    text = lines[0] if len(lines) == 1 else write_notes(enumerate(lines))
    return f"{_before(thought, memory)}<answer> {text} </answer>"


def _before(thought: str, memory: str) -> str:
    remembered = f"<mem>\n{memory}\n</mem>\n" if memory else ""
    return f"{remembered}<think> {thought} </think>\n" if thought else remembered
