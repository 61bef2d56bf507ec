"""Streams of operations on a memory bank: made up, or recorded from episodes.

What is needed is known: a write says which phrases its text holds, a read which phrases it is to bring back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from msgspec import Struct

from mempo_env.diagnostics import key_phrases
from mempo_env.errors import ConfigError, DataError
from mempo_env.memory.bank import Bank, BankConfig
from mempo_env.questions.world.names import stem
from mempo_env.scoring import contains, normalise
from mempo_env.settings import Count, Settings, Share, Size
from mempo_env.tokens import count_words
from mempo_env.types import BankRecord, Episode, Invalid, OperationKind


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """One operation of a stream.

    Attributes:
        round: When, from 1, not falling.
        kind: What.
        text: What is written, read for, or put in the place of what is merged ("": joined).
        of: For "merge" and "discard": which writes and merges made the entries meant, by index in the stream.
        k: For "read": entries at most; None: as the bank's settings say.
        holds: Phrases that the text written holds, of those that some read needs.
        needs: Phrases that a read needs.
        outdated: Phrases that it would have needed earlier, and that are wrong by now.
    """

    round: int
    kind: OperationKind
    text: str = ""
    of: tuple[int, ...] = ()
    k: int | None = None
    holds: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()


Stream = tuple[Event, ...]

# --- Made up ---------------------------------------------------------------------------------------------

_RELATIONS = (
    ("{n} was born in {v}.", "The birthplace of {n} is the town of {v}.", "Where was {n} born?"),
    ("{n} works for the firm {v}.", "The employer of {n} is {v}.", "Who employs {n}?"),
    ("{n} is married to {v}.", "The spouse of {n} is called {v}.", "Who is {n} married to?"),
    ("{n} studied at the college of {v}.", "The college that {n} went to is {v}.", "Where did {n} study?"),
    (
        "{n} lives beside the river {v}.",
        "The home of {n} stands at the river {v}.",
        "Which river is {n}'s home at?",
    ),
    ("{n} plays the part of {v} on stage.", "On stage {n} is seen as {v}.", "Which part does {n} play?"),
)
"""Of each relation: a sentence, the same in other words, a question."""


class StreamSpec(Settings, frozen=True):
    """What a stream that is made up looks like.

    Attributes:
        writes: Writes in it; each is a round of its own.
        reads: Reads for each write, on average.
        repeats: Share of the writes that say a fact again in other words, in [0, 1].
        noise: Share of the writes that no read will ever need, in [0, 1].
        drift: Share of the writes that change an earlier fact, so that its old value is wrong, in [0, 1].
    """

    writes: Count = 1000
    reads: Size = 0.5
    repeats: Share = 0.2
    noise: Share = 0.2
    drift: Share = 0.1

    def __post_init__(self) -> None:
        """Refuse shares that are more than all."""
        super().__post_init__()
        if self.repeats + self.noise + self.drift > 1 + 1e-9:
            raise ConfigError(
                "repeats + noise + drift: wanted at most 1, they are shares of the writes, got "
                f"{self.repeats:g} + {self.noise:g} + {self.drift:g}"
            )


def made_up(spec: StreamSpec, seed: int) -> Stream:
    """A stream of facts about invented people, asked for at any later time; the newest value counts."""
    return tuple(_made_up(spec, seed))


def _made_up(spec: StreamSpec, seed: int) -> Iterator[Event]:
    chance, values = Random(seed), (stem(seed, i).capitalize() for i in range(10**9))
    names: list[str] = []
    facts: list[tuple[str, int, tuple[str, ...]]] = []  # (name, relation, values: the newest first)
    for round in range(1, spec.writes + 1):
        kind = chance.choices(
            ("noise", "drift", "repeat", "new"),
            (spec.noise, spec.drift, spec.repeats, max(0.0, 1 - spec.noise - spec.drift - spec.repeats)),
        )[0]
        if kind == "noise" or (kind != "new" and not facts):
            yield Event(round=round, kind="write", text=f"The page on {next(values)} says nothing of use.")
        elif kind == "repeat":
            name, relation, (value, *_) = chance.choice(facts)
            text = _RELATIONS[relation][chance.randrange(2)].format(n=name, v=value)
            yield Event(round=round, kind="write", text=text, holds=(value,))
        else:
            if kind == "new":
                relation = len(facts) % len(_RELATIONS)
                if relation == 0:
                    names.append(f"{next(values)} {next(values)}")
                facts.append((names[-1], relation, ()))
            at = len(facts) - 1 if kind == "new" else chance.randrange(len(facts))
            name, relation, old = facts[at]
            value = next(values)
            facts[at] = (name, relation, (value, *old))
            text = _RELATIONS[relation][0].format(n=name, v=value)
            yield Event(round=round, kind="write", text=text, holds=(value,))
        for _ in range(int(spec.reads + chance.random()) if facts else 0):
            name, relation, (value, *before) = chance.choice(facts)
            text = _RELATIONS[relation][2].format(n=name)
            yield Event(round=round, kind="read", text=text, needs=(value,), outdated=tuple(before))


# --- Recorded --------------------------------------------------------------------------------------------


def recorded(episode: Episode) -> Stream:
    """The operations of an episode with a bank, as a stream.

    A read needs the key phrases of the gold evidence that it brought back when it was recorded: what a bank
    with other settings is measured by is whether it would have brought them back as well.
    """
    if episode.settings.get("memory") != "bank":
        raise DataError(
            f"episode {episode.question_id!r}: wanted one that was played with a memory bank, got memory="
            f"{episode.settings.get('memory')!r}; play it with memory='bank'"
        )
    phrases = key_phrases(episode.questions)
    bank = Bank(BankConfig(**episode.settings["memory_of"]), count_words)
    made_by: dict[int, int] = {}  # entry -> index of the event that made it
    events: list[Event] = []
    for round in episode.rounds:
        if isinstance(round.action, Invalid):
            continue
        for operation in round.action.operations:
            if bank.fault(operation) is not None:
                raise _another(episode)
            of = tuple(made_by[id] for id in operation.ids)
            holds = _holding(operation.text, phrases)
            needs: tuple[str, ...] = ()
            made: int | None = None
            if operation.kind == "write":
                made = bank.write(operation.text, round.number)
            elif operation.kind == "read":
                found = bank.read(operation.text, round.number, operation.k)
                holds, needs = (), _holding("\n".join(entry.text for entry in found), phrases)
            elif operation.kind == "merge":
                made = bank.merge(operation.ids, round.number, operation.text)
            else:
                for id in operation.ids:
                    bank.discard(id, round.number)
            if made is not None:
                made_by[made] = len(events)
            events.append(
                Event(
                    round=round.number,
                    kind=operation.kind,
                    text=operation.text,
                    of=of,
                    k=operation.k,
                    holds=holds,
                    needs=needs,
                )
            )
        if _outline(bank.done(round.number)) != _outline(round.operations):
            raise _another(episode)
    return tuple(events)


def _outline(records: Sequence[BankRecord]) -> list[tuple[str, tuple[int, ...], bool]]:
    """What was done, without the tokens."""
    return [(record.kind, record.ids, record.accepted) for record in records]


def _another(episode: Episode) -> DataError:
    return DataError(
        f"episode {episode.question_id!r}: its bank did something else than a replay does (it counted "
        f"tokens by {episode.settings.get('tokenizer')!r}, a replay counts words); record it with "
        "tokenizer='words'"
    )


def _holding(text: str, phrases: Sequence[str]) -> tuple[str, ...]:
    """Those of the normalised phrases that a text holds."""
    norm = normalise(text)
    return tuple(phrase for phrase in phrases if contains(norm, phrase))
