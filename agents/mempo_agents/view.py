"""What the reader sees in its context, by what it is, and how it writes a round.

A context is read from its segments (`look`) or from the text of messages (`read`): tags in a text are
structure, for the environment makes those of documents and questions inert before it shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from mempo_agents.base import Context
from mempo_env.protocol import neutralise


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
        entries: What was read from a memory bank, as (id, text).
        facts: What was written into a memory bank, or is about to be.
        reads: What a memory bank was asked for.
    """

    questions: tuple[str, ...]
    notes: tuple[tuple[int, str], ...]
    articles: tuple[Article, ...]
    queries: tuple[str, ...]
    rounds_left: int | None
    entries: tuple[tuple[int, str], ...] = ()
    facts: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    @property
    def last_round(self) -> bool:
        """Whether this round is the last one allowed."""
        return self.rounds_left is not None and self.rounds_left <= 1


_KINDS = {
    "information": "information",
    "mem": "mem",
    "think": "think",
    "search": "call",
    "answer": "answer",
    "memory_bank": "memory",
    "memory_recall": "recall",
    "memory_write": "fact",
    "memory_merge": "fact",
    "memory_read": "reading",
}
"""What stands in a tag."""

_OPEN = re.compile(rf"<({'|'.join(_KINDS)})(?: [^<>]*)?>")
_LINES = re.compile(
    r"^(?:(?P<question>Question: .*|Questions:(?:\n\d{1,4}\. .*)+)|(?P<hint>\(\d+ rounds? left.*))$",
    re.MULTILINE,
)
_NUMBERED = re.compile(r"(\d{1,4})\. (.*)")
_ROUNDS = re.compile(r"\((\d+) rounds? left")
_TAGS = re.compile(r"</?(?:mem|think|search|memory_(?:write|merge|read))(?: [^<>]*)?>")
_SAYS = " :: "
_HEAD = re.compile(r"\[(\d+)\] (.*)")

Piece = tuple[str, str]
"""(what it is, its text)."""


def look(context: Context) -> View:
    """Read a context; any segments whatever are welcome."""
    return view((segment.kind, segment.text) for segment in context.segments)


def read(text: str) -> View:
    """Read the text of a message; any text whatever is welcome."""
    return view(pieces(text))


def pieces(text: str) -> Iterator[Piece]:
    """Cut a text by its tags, "Question:" lines and hint; what is none of these is a "text".

    A tag that nothing closes goes on to the end; one with three dots in it, `<mem> ... </mem>`, is text that
    speaks of tags.
    """
    at = 0
    while tag := _OPEN.search(text, at):
        yield from _plain(text[at : tag.start()])
        close = f"</{tag[1]}>"
        end = text.find(close, tag.end())
        at = len(text) if end < 0 else end + len(close)
        form = text[tag.end() : end].strip() == "..."
        yield "text" if form else _KINDS[tag[1]], text[tag.start() : at]
    yield from _plain(text[at:])


def _plain(text: str) -> Iterator[Piece]:
    at = 0
    for match in _LINES.finditer(text):
        yield "text", text[at : match.start()]
        yield str(match.lastgroup), match[0]
        at = match.end()
    yield "text", text[at:]


def view(pieces: Iterable[Piece]) -> View:
    """Put together what is in view; kinds that say nothing to the reader are left out."""
    questions: tuple[str, ...] = ()
    notes: list[tuple[int, str]] = []
    articles: list[Article] = []
    queries: list[str] = []
    entries: list[tuple[int, str]] = []
    facts: list[str] = []
    reads: list[str] = []
    texts: dict[int, str] = {}  # of entries, which a round shows once
    rounds_left = None
    for kind, text in pieces:
        if kind == "information":
            articles.extend(read_information(text))
        elif kind in ("mem", "think", "fact"):
            notes.extend(read_notes(text))
            if kind == "fact":
                facts.append(_bare(text))
        elif kind == "reading":
            reads.append(_bare(text))
        elif kind == "call":
            queries.append(_bare(text))
        elif kind == "question":
            questions = read_questions(text)
        elif kind == "hint":
            match = _ROUNDS.search(text)
            rounds_left = int(match[1]) if match else None
        elif kind == "recall":
            found = [(id, texts.setdefault(id, entry)) for id, entry in read_entries(text)]
            entries.extend(found)
            notes.extend(note for _, entry in found for note in read_notes(entry))
            parts = (read_article(entry) for _, entry in found if not _NUMBERED.fullmatch(entry))
            articles.extend(article for article in parts if article)
    return View(
        questions or ("",),
        tuple(notes),
        tuple(articles),
        tuple(queries),
        rounds_left,
        tuple(entries),
        tuple(facts),
        tuple(reads),
    )


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
    return tuple(Article(head[2], body) for head, body in zip(heads, lines[1::2], strict=False) if head)


def read_entries(text: str) -> tuple[tuple[int, str], ...]:
    """The entries that a read of a memory bank returned, as (id, text)."""
    matches = map(_HEAD.fullmatch, text.split("\n"))
    return tuple((int(match[1]), match[2]) for match in matches if match)


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


def write_information(articles: Iterable[Article]) -> str:
    """Passages as the environment shows them, which `read_information` reads back."""
    lines = [f"[{i}] {article.title}\n{article.text}" for i, article in enumerate(articles, 1)]
    return "\n".join(["<information>", *lines, "</information>"])


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


def write_answers(
    answers: Sequence[str], thought: str = "", memory: str = "", semicolons: bool = False
) -> str:
    """A round that answers every objective; the text alone where there is one.

    Several are numbered lines, or stand behind each other with semicolons between (those in an answer become
    commas).
    """
    lines = [" ".join(answer.split()) for answer in answers]
    if semicolons:
        text = "; ".join(line.replace(";", ",") for line in lines)
    else:
        text = lines[0] if len(lines) == 1 else write_notes(enumerate(lines))
    return f"{_before(thought, memory)}<answer> {text} </answer>"


def _before(thought: str, memory: str) -> str:
    remembered = f"<mem>\n{memory}\n</mem>\n" if memory else ""
    return f"{remembered}<think> {thought} </think>\n" if thought else remembered
