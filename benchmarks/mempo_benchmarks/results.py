"""What a run keeps: its plan (run.json) and one checked line an episode (results.jsonl).

Both end in a digest of all before it, so a value that was edited by hand is found. A line is written by one
call, so that a process that is killed leaves at most a torn last line, which the next one cuts off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from mempo_env.errors import ResultsError
from mempo_env.files import BAD_JSON, digest
from mempo_env.types import NO_FAULT, Call, Episode, Failure, Invalid, StopReason

RESULTS = "results.jsonl"
PLAN = "run.json"
FAILED = (*NO_FAULT, StopReason.AGENT_ERROR, StopReason.TIMEOUT)
"""Stop reasons of episodes that failed rather than ended; they count as wrong all the same."""

SCRIPTED = "scripted"
"""The model that is asked where none is said; it counts its tokens as words."""

WITHOUT = "no_memory"
"""The agent that the gain of a memory is measured against."""

_CHECK = b',"check":"'
_CHECKED = len(_CHECK) + 16 + len(b'"}')
_SHOWN = 40  # characters of a value that a message shows
_BEFORE = 12  # of them before the first difference
_TOLD = 300  # characters of what failed that a message shows


class Fingerprints(Struct, frozen=True):
    """What decides a result; two results compare only if all but `agent` are equal.

    Attributes:
        data: Of the questions of the split.
        index: Of the retriever: corpus, kind and parameters; its address where a server tells nothing.
        scorer: Of the source files that score.
        code: Of the source files that play.
        settings: Of the environment's keyword arguments, the agent's own among them.
        agent: The agent's own.
    """

    data: str
    index: str
    scorer: str
    code: str
    settings: str
    agent: str


class Arm(Struct, frozen=True):
    """An agent in a run.

    Attributes:
        agent: Its name.
        fingerprint: Its own.
        env_kwargs: What it sets in the environment.
        settings: Digest of the environment's settings with those.
        model: Name of the model behind it; "" if there is none.
        asks: What identifies the model: its fingerprint, its server, the source of one of a user's own.
    """

    agent: str
    fingerprint: str
    env_kwargs: dict[str, Any]
    settings: str
    model: str = ""
    asks: str = ""


class Plan(Struct, frozen=True, kw_only=True):
    """Everything that decides a run.

    Attributes:
        dataset: "synthetic", or the folder of the data set.
        corpus: The folder of another corpus; None: the data set's own.
        retriever: Its name or address.
        data: See `Fingerprints`, as for the next three.
        settings: The environment's keyword arguments that decide what an agent sees, before the agent's own.
        questions: Ids of the questions of each episode, joined by "+".
        seed: Of episode 0; episode i has seed + i.
        arms: The agents, in the order in which they play.
        version: Of mempo.
        model: Name of the model behind the agents that ask one; no part of what runs must have in common.
        sampling: How it samples, where that was said; likewise.
    """

    dataset: str
    corpus: str | None
    retriever: str
    data: str
    index: str
    scorer: str
    code: str
    settings: dict[str, Any]
    questions: tuple[str, ...]
    seed: int
    arms: tuple[Arm, ...]
    version: str
    model: str = "scripted"
    sampling: dict[str, Any] = {}

    def fingerprints(self, arm: Arm) -> Fingerprints:
        """What the rows of an arm are marked with."""
        return Fingerprints(self.data, self.index, self.scorer, self.code, arm.settings, arm.fingerprint)

    @property
    def sampled(self) -> str:
        """How the model samples, in words."""
        return ", ".join(f"{name}={value}" for name, value in self.sampling.items()) or "as by default"

    def common(self) -> dict[str, Any]:
        """By name, what must be equal for two runs to share a table; the prompt follows from the rest."""
        marks = {name: getattr(self, name) for name in ("data", "index", "scorer", "code")}
        settings = {name: value for name, value in self.settings.items() if name != "system_prompt"}
        episodes = f"{len(self.questions)} [{digest(*self.questions, size=4)}]"
        return {**marks, **settings, "episodes": episodes}


class Row(Struct, frozen=True, kw_only=True):
    """The figures of one episode.

    Attributes:
        agent: Who played.
        index: Of the episode in the plan.
        question_id: Ids of its questions, joined by "+".
        em: Mean over the objectives, like `f1` and `em_relaxed`; in [0, 1].
        answered: Objectives that got an answer, right or wrong.
        rounds: Rounds played.
        invalid_rounds: Those whose action was invalid.
        peak: Tokens of the longest single call.
        total: Tokens of all calls.
        dependency: Pairs of tokens that generation attended to (MEM1).
        prompt_tokens: Prompt tokens of each round; last, those of a round that a failed call broke off.
        cached_tokens: Those that came from a server's prefix cache; None if no server told.
        evidence_recall: Share of the gold passages that were retrieved; None without gold evidence.
        evidence_kept: Share of the gold facts that the prompt of the last call, or the memory bank, held;
            None likewise.
        stop_reason: Why the episode ended.
        stop_detail: What exactly failed, where something did.
        failure: Of each objective; None where it was answered rightly.
        masked: Whether it failed by no fault of the agent.
        unit: What tokens are: those of the model where calls tell of them, else the environment's tokenizer;
            both where only some calls tell.
        seconds: Wall time of its rounds: each round of several episodes at a time is shared by them equally.
        fingerprints: Those of the arm.
    """

    agent: str
    index: int
    question_id: str
    em: float
    f1: float
    em_relaxed: float
    answered: int
    rounds: int
    invalid_rounds: int
    peak: int
    total: int
    dependency: float
    prompt_tokens: tuple[int, ...]
    cached_tokens: int | None = None
    evidence_recall: float | None
    evidence_kept: float | None
    stop_reason: StopReason
    stop_detail: str
    failure: tuple[Failure | None, ...]
    masked: bool
    unit: str
    seconds: float
    fingerprints: Fingerprints


class FullRow(Row, frozen=True, kw_only=True):
    """A row with the whole episode: what a line of the file holds."""

    episode: Episode


AnyRow = TypeVar("AnyRow", bound=Row)


def row_of(plan: Plan, arm: Arm, index: int, episode: Episode, seconds: float) -> FullRow:
    """The line for a finished episode."""
    assert episode.stop_reason is not None
    rounds = episode.rounds
    gold = any(question.evidence for question in episode.questions)
    return FullRow(
        agent=arm.agent,
        index=index,
        question_id=episode.question_id,
        em=episode.score.em,
        f1=episode.score.f1,
        em_relaxed=episode.score.em_relaxed,
        answered=sum(bool(objective.prediction) for objective in episode.score.objectives),
        rounds=len(rounds),
        invalid_rounds=sum(isinstance(played.action, Invalid) for played in rounds),
        peak=episode.tokens.peak,
        total=episode.tokens.total,
        dependency=episode.tokens.dependency,
        prompt_tokens=(
            *(played.tokens.prompt for played in rounds),
            *((episode.tokens.prompt,) if episode.broken_off else ()),
        ),
        cached_tokens=_cached(episode),
        evidence_recall=(rounds[-1].diagnostics.evidence_recall if rounds else 0.0) if gold else None,
        evidence_kept=(rounds[-1].evidence_in_prompt if rounds else 0.0) if gold else None,
        stop_reason=episode.stop_reason,
        stop_detail=episode.stop_detail,
        failure=episode.failure,
        masked=episode.mask_episode,
        unit=_unit(arm, episode),
        seconds=round(seconds, 4),
        fingerprints=plan.fingerprints(arm),
        episode=episode,
    )


def first_line(text: str) -> str:
    """The first line of what failed, cut to the length of a message."""
    line, *_ = text.splitlines() or [""]
    return line if len(line) <= _TOLD else f"{line[: _TOLD - 3]}..."


def alike(text: str) -> str:
    """What an error says, without its numbers: of two that differ in nothing else one is told."""
    return re.sub(r"\d+", "0", text)


def _calls(episode: Episode) -> tuple[Call, ...]:
    return (*(call for played in episode.rounds for call in played.calls), *episode.broken_off)


def _unit(arm: Arm, episode: Episode) -> str:
    """What its tokens are; both units where only some of them were told, whose sum is neither."""
    told = [bool(call.prompt_ids or call.prompt_tokens) for call in _calls(episode)]
    told += [bool(call.output_ids or call.output_tokens) for call in _calls(episode) if call.output]
    told += [False for played in episode.rounds if not played.calls]
    counted = str(episode.settings.get("tokenizer", "words"))
    if arm.model in ("", SCRIPTED) or not any(told):
        return counted
    own = f"tokens of {arm.model}"
    return own if all(told) else f"{own} and {counted}"


def _cached(episode: Episode) -> int | None:
    told = [call.cached_tokens for call in _calls(episode)]
    known = [tokens for tokens in told if tokens is not None]
    return sum(known) if known else None


# --- Plans -------------------------------------------------------------------------------------------------


def address(retriever: str) -> str:
    """The name or the addresses of a retriever, without the names and passwords in them."""
    return re.sub("//[^/]*@", "//", retriever)


def encode_plan(plan: Plan) -> bytes:
    """The text of a plan, its digest last."""
    return msgspec.json.format(_seal(msgspec.json.encode(plan)))


def read_plan(run: Path) -> Plan:
    """The plan of a run; a ResultsError if there is none, it can't be read or it was changed."""
    path = run / PLAN
    if not path.is_file():
        raise ResultsError(
            f"{run}: wanted the folder of a run, found no {PLAN}; make it by `mempo bench run`"
        )
    try:
        text = msgspec.json.format(path.read_bytes(), indent=-1)
        if not _sealed(text):
            raise msgspec.DecodeError("its check is not that of its text")
        return msgspec.json.decode(text, type=Plan)
    except BAD_JSON as error:
        raise ResultsError(
            f"{path}: wanted the plan as it was written, found one that was changed, cut or is of another "
            f"version ({error}); put it back as it was, or choose another --out and run again"
        ) from None


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """For each key whose value differs, "key ours / theirs".

    Long values are cut to where they differ, with their digest.
    """
    keys = dict.fromkeys((*ours, *theirs))
    differ = [key for key in keys if ours.get(key) != theirs.get(key)]
    return [f"{key} {' / '.join(_cut(ours.get(key), theirs.get(key)))}" for key in differ]


def _cut(*values: Any) -> list[str]:
    """What two values are, from a little before their first difference on if all that is shown is alike."""
    texts = ["nothing" if value is None else str(value) for value in values]
    alike = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = 0 if alike < _SHOWN else alike - _BEFORE
    return [
        f"{'...' * (start > 0)}{text[start : start + _SHOWN]}"
        + (f"... [{digest(text, size=4)}]" if len(text) > start + _SHOWN else "")
        for text in texts
    ]


# --- Rows --------------------------------------------------------------------------------------------------


def encode_row(row: FullRow) -> bytes:
    """The line of a row, its digest last."""
    return _seal(msgspec.json.encode(row)) + b"\n"


def read_rows(run: Path, plan: Plan, type: type[AnyRow]) -> Iterator[AnyRow]:
    """Yield the rows of a run as they were written; what stands after the last line end is left out.

    An episode that failed by no fault of its agent may have been played again: the later row counts. Such
    failed rows come last.

    Args:
        run: Its folder.
        plan: Its plan, which every row must belong to.
        type: `Row` for the figures alone, `FullRow` with the episodes.

    Raises:
        ResultsError: if a line was changed, is there twice, or is of another run; names file and line.
    """
    path = run / RESULTS
    if not path.is_file():
        return
    decoder = msgspec.json.Decoder(type)
    marks = {arm.agent: plan.fingerprints(arm) for arm in plan.arms}
    seen: dict[tuple[str, int], int] = {}
    failed: dict[tuple[str, int], AnyRow] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            row = _decode(line, decoder, f"{path}:{number}")
            key = row.agent, row.index
            if failed.pop(key, None) is None and key in seen:
                raise ResultsError(
                    f"{path}:{number}: a second result of {row.agent!r} for episode {row.index}, the first "
                    f"is in line {seen[key]}; remove one of the lines"
                )
            seen[key] = number
            if row.fingerprints != marks.get(row.agent) or not _planned(row, plan):
                raise ResultsError(
                    f"{path}:{number}: {row.agent!r}, episode {row.index} ({row.question_id!r}) is not of "
                    f"the run that {PLAN} describes; remove the line, or put it back into its own folder"
                )
            if row.masked:
                failed[key] = row
            else:
                yield row
    yield from failed.values()


def _planned(row: Row, plan: Plan) -> bool:
    return 0 <= row.index < len(plan.questions) and plan.questions[row.index] == row.question_id


def _decode(line: bytes, decoder: msgspec.json.Decoder[AnyRow], place: str) -> AnyRow:
    if not _sealed(line[:-1]):
        raise ResultsError(
            f"{place}: wanted a result as it was written, found a line that was changed or cut; remove the "
            "line and run the same `mempo bench run` again, which plays what is missing"
        )
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise ResultsError(f"{place}: {error}; it was written by another version: run again") from None


# --- Digests -----------------------------------------------------------------------------------------------


def _seal(body: bytes) -> bytes:
    """A JSON object with the digest of its text as its last member."""
    return b'%s%s%s"}' % (body[:-1], _CHECK, digest(body).encode())


def _sealed(text: bytes) -> bool:
    return text == _seal(text[:-_CHECKED] + b"}")
