"""Rollouts read off frozen episodes: what was written, by which ids, and what is to be scored."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import Protocol

import msgspec
import numpy as np

from mempo_agents.rounds import inside, memory_in
from mempo_agents.ruled import inert
from mempo_env.errors import ConfigError
from mempo_env.protocol import one_line
from mempo_env.scoring import contains, normalise, normalised_answers
from mempo_env.types import Call, Episode, Invalid, Round, Segment, Span, StopReason
from mempo_trainers.credit.data import MEM, NOT_GENERATED, THINK, Floats, Ints, Trajectories
from mempo_trainers.entries import read_entries
from mempo_trainers.policies.base import Responses, Rollouts
from mempo_trainers.tokens import Ragged, View, span_roles, token_roles


class TextTokenizer(Protocol):
    """From text to token ids and back."""

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids."""
        ...

    def starts(self, ids: Sequence[int]) -> Sequence[int]:
        """In which character of the decoded text each id starts."""
        ...

    def prompt(self, segments: Sequence[Segment]) -> Sequence[int]:
        """The ids of the prompt that shows these segments, up to where the policy writes."""
        ...


def from_episodes(played: Sequence[Episode], tokenizer: TextTokenizer) -> Rollouts:
    """All that credit and loss need, read off episodes; nothing that was sampled is tokenised again.

    Args:
        played: Episodes whose calls carry exact token ids.
        tokenizer: Of these ids, and for the texts that are scored, which nobody sampled.

    Raises:
        ConfigError: if a call has no ids or log-probs, in an episode that is not masked.
    """
    rounds = [(i, episode, round) for i, episode in enumerate(played) for round in episode.rounds]
    calls = [
        (r, call, round) for r, (_, episode, round) in enumerate(rounds) for call in _calls(episode, round)
    ]
    unkept = {id(round) for episode in played if _keeps_nothing(episode) for round in episode.rounds}
    responses = _responses(calls, tokenizer, unkept)
    entries = read_entries(played, calls, tokenizer.starts, responses.roles_BK.shape[1])
    outcome_N = np.array([episode.rewards.outcome for episode in played])
    total_N = np.array([episode.rewards.total() for episode in played])
    data = Trajectories(
        question_N=numbers(episode.question_id for episode in played),
        outcome_N=outcome_N,
        shaping_N=total_N - outcome_N,
        masked_N=np.array([episode.mask_episode for episode in played], bool),
        rollout_R=np.array([i for i, _, _ in rounds], np.int64),
        number_R=np.array([round.number for _, _, round in rounds], np.int64),
        round_B=np.array([r for r, _, _ in calls], np.int64),
        roles_BK=responses.roles_BK,
        reward_R=np.array([round.reward.weighted.total() for _, _, round in rounds]),
        found_R=np.concatenate([np.diff(_recall(e), prepend=0.0) * _facts(e) for e in played]),
        recall_R=np.concatenate([_recall(e) for e in played]),
        state_R=numbers((e.question_id, *_shown(e, r)) for _, e, r in rounds),
        logprobs_BK=responses.logprobs_BK.astype(np.float64),
        **({} if entries is None else msgspec.structs.asdict(entries)),
    )
    return Rollouts(
        data=data,
        contexts=Ragged(tuple(_array(call.prompt_ids) for _, call, _ in calls)),
        responses=responses,
        memory_views=_views(rounds, tokenizer, in_memory),
        history_views=_views(rounds, tokenizer, before),
        seen_views=_views(rounds, tokenizer, up_to),
        prior_views=Ragged(tuple(_view(e, asked(e), tokenizer) for e in played)),
        success_N=np.array([episode.score.em_all == 1 for episode in played]),
        extra=_counted(played, calls, responses),
    )


def _calls(episode: Episode, round: Round) -> list[Call]:
    """The calls of a round, with exact ids; of a masked episode those that have them."""
    exact = [
        call
        for call in round.calls
        if call.prompt_ids and call.output_ids and len(call.logprobs) == len(call.output_ids)
    ]
    if not episode.mask_episode and (not round.calls or len(exact) < len(round.calls)):
        raise ConfigError(
            f"{episode.question_id}, round {round.number}: wanted exact token ids and log-probs of each "
            "call, got a text: train with a model that tells them (huggingface, sglang)"
        )
    return exact


def _counted(
    played: Sequence[Episode], calls: Sequence[tuple[int, Call, Round]], responses: Responses
) -> dict[str, float]:
    """The measures of episodes that are not masked; NaN where all of them are."""
    live = [episode for episode in played if not episode.mask_episode]
    if not live:
        return dict.fromkeys(_extra(played, responses), np.nan)
    rounds = {id(round) for episode in live for round in episode.rounds}
    return _extra(live, responses.take(np.flatnonzero([id(round) in rounds for _, _, round in calls])))


def _keeps_nothing(episode: Episode) -> bool:
    return episode.settings.get("memory") == "none"


def _responses(
    calls: Sequence[tuple[int, Call, Round]], tokenizer: TextTokenizer, unkept: Container[int]
) -> Responses:
    """What was written, padded on the right; memory of rounds that kept none is thought."""
    shape = len(calls), max((len(call.output_ids) for _, call, _ in calls), default=0)
    tokens_BK, roles_BK = np.zeros(shape, np.int64), np.zeros(shape, np.int8)
    logprobs_BK = np.zeros(shape, np.float32)
    acting = {id(round): _acting(round) for _, _, round in calls}
    for row, (_, call, round) in enumerate(calls):
        n = len(call.output_ids)
        tokens_BK[row, :n], logprobs_BK[row, :n] = call.output_ids, call.logprobs
        roles_BK[row, :n] = _roles(call, round, acting[id(round)], tokenizer.starts(call.output_ids))
        if id(round) in unkept:
            roles_BK[row, roles_BK[row] == MEM] = THINK
    return Responses(tokens_BK, roles_BK, logprobs_BK)


_INERT = ((False, False), (True, False), (True, True))
"""What agents make inert in what a call acts by: memory; operations on a bank, all or but for reads."""


def _roles(call: Call, round: Round, acting: tuple[Call, int] | None, starts: Sequence[int]) -> list[int]:
    """The role of each token of a call: those of the round's text, or the memory that the agent made of it.

    A call without a word for the memory, or of a round that stores nothing, as an invalid one, is thought.
    What the gate of a bank refused was written all the same.
    """
    if call.output_ids == round.token_ids:
        return token_roles(starts, round.action)
    if call.role == "mem" and _stores(round) and inside(call.output, "mem"):
        start, end = memory_in(call.output)
        n = len(call.output)
        spans = Span("think", 0, start), Span("mem", start, end), Span("think", end, n)
        return span_roles(starts, [span for span in spans if span.start < span.end])
    if acting is None or acting[0] is not call:
        return [THINK] * len(starts)
    text, ahead = call.output, acting[1]
    first, end = len(text) - len(text.lstrip()), len(text.rstrip())
    blank = [start < first or (end <= start and end < len(text)) for start in starts]
    roles = token_roles([start + ahead for start in starts], round.action)
    return [THINK if idle else role for role, idle in zip(roles, blank, strict=True)]


def _stores(round: Round) -> bool:
    """Whether a round wrote to the memory; what reads a bank alone does not."""
    action = round.action
    if isinstance(action, Invalid):
        return False
    return action.memory is not None or any(operation.kind != "read" for operation in action.operations)


def _acting(round: Round) -> tuple[Call, int] | None:
    """The call with which the text of a round ends, the last one where several read alike; None: none does.

    And how many characters of the text stand before it, as memory that earlier calls wrote. Blanks around
    what a call wrote do not count.
    """
    whole = round.text.rstrip()
    for call in reversed(round.calls):
        said = call.output if call.role != "mem" else ""
        for text in (said, *(inert(said, *kind) for kind in _INERT)):  # letter for letter as long
            if text.strip() and whole.endswith(text.strip()):
                return call, len(whole) - len(text.rstrip())
    return None


def numbers(things: Iterable[Hashable]) -> Ints:
    """A number for each thing, equal for equal ones, in the order of their first appearance."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(thing, len(known)) for thing in things], np.int64)


def _shown(episode: Episode, round: Round) -> tuple[str, ...]:
    """What the policy saw, the hint left out."""
    return tuple(s.text for s in map(episode.ledger.__getitem__, round.view) if s.kind != "hint")


def _recall(episode: Episode) -> Floats:
    """Share of the gold passages that had been shown after each round; 0 where none are known."""
    return np.array([round.diagnostics.evidence_recall or 0.0 for round in episode.rounds])


def _facts(episode: Episode) -> int:
    return sum(len(question.evidence) for question in episode.questions)


def _extra(played: Sequence[Episode], responses: Responses) -> dict[str, float]:
    actions = [round.action for episode in played for round in episode.rounds]
    last = [episode.tokens for episode in played]
    later = [round for episode in played for round in episode.rounds if round.number > 1]
    return {
        "em": _mean([episode.score.em for episode in played]),
        "answered": _mean([episode.stop_reason is StopReason.ANSWERED for episode in played]),
        "rounds": len(actions) / len(played),
        "recall": _mean([_recall(episode)[-1] if episode.rounds else 0.0 for episode in played]),
        "invalid": _mean([isinstance(action, Invalid) for action in actions]),
        "output_tokens": _mean((responses.roles_BK != NOT_GENERATED).sum(1).tolist()),
        "memory_length": _mean([tokens.memory for tokens in last]),
        "memory_empty": float(np.mean([not r.memory for r in later])) if later else 0.0,
        "guessed": sum(map(guesses, played)) / len(played),
    }


def _mean(values: Sequence[float]) -> float:
    """NaN where there is nothing to average, as where no episode came to its first round."""
    return float(np.mean(values)) if len(values) else np.nan


def guesses(episode: Episode) -> int:
    """How often a memory named a gold answer that neither the question nor any passage shown so far holds."""
    count = 0
    seen = held = tuple[bool | None, ...]([False] * len(episode.questions))
    for round in episode.rounds:
        now = round.diagnostics.answer_in_memory
        for question, *flags in zip(episode.questions, now, held, seen, strict=True):
            if flags == [True, False, False]:
                asked = normalise(question.text)
                count += not any(contains(asked, z) for z in normalised_answers(question.answers))
        seen, held = round.diagnostics.answer_in_retrieved, now
    return count


# --- What is scored ----------------------------------------------------------------------------------------


def asked(episode: Episode, round: Round | None = None) -> tuple[Segment, ...]:
    """System and question."""
    return tuple(segment for segment in episode.ledger if segment.kind in ("system", "question"))


def in_memory(episode: Episode, round: Round) -> tuple[Segment, ...]:
    """System, question, and the memory in force after a round, as the policy wrote it and would see it.

    Of a memory bank these are the texts of its active entries, whether a prompt has shown them or not; of a
    memory of a user's own, all of its text.
    """
    kind = episode.settings.get("memory")
    if kind == "inline":
        held = [s for s in episode.ledger if s.kind == "mem" and s.round <= round.number][-1:]
    else:
        lines = "\n".join(map(one_line, round.memory.splitlines()))  # as a bank shows its entries
        text = round.memory if kind == "own" else f"<mem>\n{lines}\n</mem>"
        held = [Segment("mem", round.number, text, 0)] if round.memory else []
    return (*asked(episode), *held)


def before(episode: Episode, round: Round) -> tuple[Segment, ...]:
    """All that came before a round, untruncated, the hints left out."""
    return tuple(s for s in episode.ledger if s.kind != "hint" and s.round < round.number)


def up_to(episode: Episode, round: Round) -> tuple[Segment, ...]:
    """All that came up to a round's observation."""
    return tuple(s for s in episode.ledger if s.kind != "hint" and s.round <= round.number)


def _views(
    rounds: Sequence[tuple[int, Episode, Round]],
    tokenizer: TextTokenizer,
    shown: Callable[[Episode, Round], tuple[Segment, ...]],
) -> Ragged:
    """The views of all rounds; but for what is seen in it, there is none of a first round."""
    rows = (
        _view(episode, shown(episode, round), tokenizer) if round.number > 1 or shown is up_to else None
        for _, episode, round in rounds
    )
    return Ragged(tuple(rows))


def _view(episode: Episode, segments: tuple[Segment, ...], tokenizer: TextTokenizer) -> View:
    """A prompt, and the first gold answer of each objective after it, spelt as a right answer is.

    That is `<answer> Z </answer>`, and `<answer> 2. Z </answer>` for the second of several objectives.
    """
    n = len(episode.questions)
    answers = []
    for j, question in enumerate(episode.questions, 1):
        ahead = (*tokenizer.encode("<answer>"), *(tokenizer.encode(f" {j}.") if n > 1 else ()))
        answers.append((_array(ahead), _array(tokenizer.encode(f" {question.answers[0]}"))))
    return View(_array(tokenizer.prompt(segments)), tuple(answers))


def _array(ids: Sequence[int]) -> Ints:
    return np.array(ids, np.int64)
