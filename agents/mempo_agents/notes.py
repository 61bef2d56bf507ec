"""Notes in a memory bank that an agent keeps by a rule: what it reads off its context, what it writes.

What a read brings is in view in the next round and in no other, so each round reads again. A bank shows an
entry on one line: a note of several lines is stored with bars between them. What is new is read for before
all else, so the place of a read says what it was for.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mempo_agents.base import Context
from mempo_agents.models.base import Prompt
from mempo_agents.rounds import ENDS, composed, inside, kinds, remembering, said
from mempo_agents.ruled import inert, told, unread
from mempo_agents.view import read_entries, read_questions
from mempo_env.memory.bank import BankConfig
from mempo_env.protocol import neutralise, parse
from mempo_env.types import Search, Segment

UNGATED = BankConfig(duplicate=2.0, capacity=1_000)
"""A bank that takes every write: what is worth storing is the agent's to decide."""

BAR = " | "
"""Between the lines of a note."""

FACTS = 8
"""Lines of a call that are taken as facts at most, whatever a model writes."""

_RECALL = re.compile(r"<memory_recall> (.*)\n((?:.*\n)*?)</memory_recall>")
_STORED = re.compile(r"<memory_(?:write|merge [^>]*)> (.*) </memory_(?:write|merge)>")
_ASKED = re.compile(r"<memory_read [^>]*> (.*) </memory_read>")
_ID = re.compile(r"(?<![\w.-])\d{1,9}(?![\w-]|\.\d)", re.ASCII)

# --- What is in view ---------------------------------------------------------------------------------------


class Recall(Struct, frozen=True):
    """What one read of the bank brought: what was looked for, and the entries found as {id: text}."""

    query: str
    entries: dict[int, str]

    @property
    def text(self) -> str:
        """As the environment shows it."""
        found = [f"[{id}] {text}" for id, text in self.entries.items()]
        return "\n".join([f"<memory_recall> {self.query}", *found, "</memory_recall>"])


def recalls(segments: Sequence[Segment]) -> tuple[Recall, ...]:
    """The reads of which some segments tell, in their order."""
    known: dict[int, str] = {}  # the text of an entry stands where a round first shows it, and never changes
    return tuple(
        Recall(match[1], {id: known.setdefault(id, text) for id, text in read_entries(match[2])})
        for segment in kinds(segments, "recall")
        for match in _RECALL.finditer(segment.text)
    )


def recalled(reads: Iterable[Recall]) -> dict[int, str]:
    """The entries of some reads, each once, oldest first: ids grow, and a rewritten entry has a new one."""
    found = {id: text for read in reads for id, text in read.entries.items()}
    return dict(sorted(found.items()))


def questions(segments: Sequence[Segment]) -> tuple[str, ...]:
    """The questions in view."""
    asked = kinds(segments, "question")
    return tuple(text for segment in asked for text in read_questions(segment.text) if text.strip())


def waiting(segments: Sequence[Segment]) -> tuple[Recall, ...]:
    """Facts that the last round read for, each with the entries most like it; they are not stored yet.

    They come before the reads for the questions and the one for what was searched for.
    """
    reads = recalls(segments)
    return reads[: max(0, len(reads) - len(questions(segments)) - 1)]


class Undone(Struct, frozen=True):
    """What the last round asked of the bank in vain, as its action could not be read.

    Attributes:
        operations: Those that change the bank, as they were written.
        texts: What they would have stored.
        facts: What was read for and is not stored yet.
    """

    operations: tuple[str, ...]
    texts: tuple[str, ...]
    facts: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """All that would be lost."""
        return (*self.texts, *self.facts)


def undone(segments: Sequence[Segment]) -> Undone:
    """What is to be asked of the bank again; nothing if the last round was valid."""
    lines = unread(segments, bank=True).splitlines()
    reads = [match[1] for line in lines if (match := _ASKED.fullmatch(line))]
    return Undone(
        operations=tuple(line for line in lines if not _ASKED.fullmatch(line)),
        texts=tuple(match[1] for line in lines if (match := _STORED.fullmatch(line))),
        facts=tuple(reads[: max(0, len(reads) - len(questions(segments)))]),
    )


# --- Prompts -----------------------------------------------------------------------------------------------


def taking_in(instruction: str, notes: Sequence[str], context: Context) -> Prompt:
    """Asks what to make of the last search, beside the notes; the answer stands in `<mem>`."""
    asked, step = kinds(context.segments, "question"), kinds(context.segments, "call", "information")
    wanted = said("system", instruction, context)
    return remembering((wanted, *asked, *as_memory(notes, context), *step))


def for_later(prompt: Prompt) -> Prompt:
    """The same, where the next round stores what is written: the memory after this one does not hold it."""
    return replace(prompt, role="think")


def deciding(instruction: str, entries: dict[int, str], fact: str, context: Context) -> Prompt:
    """Asks what to make of a fact, beside entries with their ids; the answer stands in `<mem>`."""
    wanted, new = said("system", instruction, context), said("mem", written(fact), context)
    like = (said("recall", Recall(fact, entries).text, context),) if entries else ()
    return remembering((wanted, *like, new))


def acting(notes: Sequence[str], context: Context) -> Generator[Prompt, str, str]:
    """Ask for the round's search or answer, with the notes and without the passages.

    What the answer has for the bank, which the agent alone writes and reads, is made inert.
    """
    asked = kinds(context.segments, "system", "question")
    prompt = composed((*asked, *as_memory(notes, context), *told(context.segments)), ENDS)
    return inert((yield prompt), bank=True)


def as_memory(notes: Sequence[str], context: Context) -> tuple[Segment, ...]:
    """Notes as one `<mem>`, line by line; () if there are none."""
    text = "\n".join(notes).replace(BAR, "\n")
    return (said("mem", f"<mem>\n{text}\n</mem>", context),) if text else ()


# --- What a model wrote ------------------------------------------------------------------------------------


def lines(text: str) -> tuple[str, ...]:
    """The lines that a call wrote into `<mem>`, each once, without bars of their own and inert."""
    tidy = (" ".join(line.replace("|", "/").split()) for line in inside(text, "mem").splitlines())
    return tuple(dict.fromkeys(neutralise(line) for line in tidy if line))


def ids_in(text: str, known: Iterable[int]) -> tuple[int, ...]:
    """The numbers in a text that are known ids, each once: a model may write any other."""
    ids = set(known)
    return tuple(id for id in dict.fromkeys(map(int, _ID.findall(text))) if id in ids)


def searched(action: str) -> tuple[str, ...]:
    """The query of a round that searches, inert and on one line; () of any other round."""
    parsed = parse(action, bank=True)
    return (" ".join(neutralise(parsed.query).split()),) if isinstance(parsed, Search) else ()


# --- What a round asks of the bank -------------------------------------------------------------------------


def written(text: str) -> str:
    """A new entry."""
    return f"<memory_write> {text} </memory_write>"


def rewritten(id: int, text: str) -> str:
    """A new text in the place of an entry."""
    return f'<memory_merge ids="{id}"> {text} </memory_merge>'


def discarded(id: int) -> str:
    """An entry taken out of use."""
    return f'<memory_discard ids="{id}"/>'


def read(query: str, k: int) -> str:
    """A read of the k entries nearest to the query."""
    return f'<memory_read k="{k}"> {query} </memory_read>'


def with_operations(changed: Sequence[str], new: Sequence[str], reads: Sequence[str], action: str) -> str:
    """The text of a round that works with the bank and acts.

    A write may evict an entry, so entries are changed first; reads come last and show all of it.
    """
    return "\n".join([*changed, *map(written, new), *reads, action])
