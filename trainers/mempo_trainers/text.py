"""Rollouts of a language model in the text environment, read off the frozen episodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import torch

from mempo_agents.base import Context
from mempo_agents.rollout import episodes
from mempo_env.errors import ConfigError
from mempo_env.scoring import contains, normalise, normalised_answers
from mempo_env.types import Call, Completion, Episode, FinishReason, Invalid, Round, StopReason
from mempo_trainers.credit.data import NOT_GENERATED, THINK, Floats, Ints, Trajectories
from mempo_trainers.policies.base import Policy, Responses, Rollouts
from mempo_trainers.sample import Draw
from mempo_trainers.tokens import Ragged, View, token_roles


class TextTokenizer(Protocol):
    """From text to token ids and back."""

    def __len__(self) -> int:
        """Number of ids."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """The ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids."""
        ...

    def starts(self, ids: Sequence[int]) -> Sequence[int]:
        """In which character of the decoded text each id starts."""
        ...


class TextPolicy(Policy, Protocol):
    """A policy whose contexts are token ids; it writes at most `max_new` tokens a round."""

    max_new: int

    @property
    def tokenizer(self) -> TextTokenizer:
        """Of its ids."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What `update` steps."""
        ...

    def finish_reason(self, ids: Sequence[int]) -> FinishReason:
        """Why a text of these ids ended."""
        ...


@dataclass
class Player:
    """A policy as an agent: each completion carries the exact ids that were read and written.

    Attributes:
        policy: Who writes.
        generator: Of its choices.
        seconds: How long it took for each of its calls so far.
        name: What to call it.
        fingerprint: Names nothing: a policy in training changes.
        env_kwargs: None of its own.
    """

    policy: TextPolicy
    generator: torch.Generator
    seconds: list[float] = field(default_factory=list)
    name: str = "policy"
    fingerprint: str = ""
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def act(self, contexts: Sequence[Context]) -> list[Completion]:
        """Write the next round of each episode."""
        start = time.perf_counter()
        tokenizer = self.policy.tokenizer
        prompts = [np.array(tokenizer.encode(context.prompt + "\n"), np.int64) for context in contexts]
        responses = self.policy.act(Ragged(tuple(prompts)), self.generator)
        completions = []
        for row, (context, prompt) in enumerate(zip(contexts, prompts, strict=True)):
            n = int((responses.roles_BK[row] != 0).sum())
            ids = tuple(responses.tokens_BK[row, :n].tolist())
            logprobs = tuple(responses.logprobs_BK[row, :n].tolist())
            reason, text = self.policy.finish_reason(ids), tokenizer.decode(ids)
            call = Call(
                segments=context.segments,
                output=text,
                prompt_ids=tuple(prompt.tolist()),
                output_ids=ids,
                logprobs=logprobs,
                finish_reason=reason,
            )
            completions.append(Completion(text, ids, logprobs, reason, (call,)))
        self.seconds.append(time.perf_counter() - start)
        return completions


def rollouts(
    policy: TextPolicy,
    question_ids: Sequence[str],
    env_kwargs: Mapping[str, Any],
    generator: torch.Generator,
    seed: int,
) -> Rollouts:
    """Play one episode for each question id, all at once; equal ids are a group.

    Args:
        policy: Who plays.
        question_ids: The objectives of each episode: an id, or ids joined by "+".
        env_kwargs: Keyword arguments of the environment.
        generator: Of the policy's choices.
        seed: Episode i gets seed + i.
    """
    player, start = Player(policy, generator), time.perf_counter()
    played = _finished(player, question_ids, env_kwargs, seed)
    waited = time.perf_counter() - start - sum(player.seconds)
    found = from_episodes(played, policy.tokenizer)
    extra = {**found.extra, "environment_seconds": waited / len(player.seconds)}
    return msgspec.structs.replace(found, extra=extra)


def drawing(
    policy: TextPolicy, question_ids: Sequence[str], env_kwargs: Mapping[str, Any], group: int, seed: int
) -> Draw:
    """What a loop draws its rollouts from; the groups of a draw are of different questions.

    Args:
        policy: Who plays, as it is then.
        question_ids: What may be asked: ids of questions, or of objectives joined by "+".
        env_kwargs: Keyword arguments of the environment.
        group: Rollouts of each question.
        seed: Of the run.

    Raises:
        ConfigError: from a draw of more questions than there are different ones.
    """
    number_Q = numbered(question_ids)

    def draw(step: int, attempt: int, questions: int) -> Rollouts:
        chance = np.random.default_rng([seed, step, attempt])
        chosen = _chosen(number_Q, questions, chance)
        generator = torch.Generator().manual_seed(int(chance.integers(1 << 62)))
        ids = [question_ids[i] for i in chosen for _ in range(group)]
        return rollouts(policy, ids, env_kwargs, generator, int(chance.integers(1 << 31)))

    return draw


def numbered(question_ids: Sequence[str]) -> Ints:
    """A number for each, from 0 on, equal for equal questions, in whichever order they are joined by "+"."""
    return _numbers(frozenset(ids.split("+")) for ids in question_ids)


def check_enough(number_Q: Ints, questions: int) -> None:
    """ConfigError if so many different questions are more than there are."""
    most = len(np.unique(number_Q))
    if questions > most:
        raise ConfigError(f"questions: wanted at most the {most:,} different ones, got {questions:,}")


def _chosen(number_Q: Ints, questions: int, chance: np.random.Generator) -> Ints:
    """Places of so many different questions; where a draw repeats one, others take its place."""
    check_enough(number_Q, questions)
    drawn = chance.choice(len(number_Q), questions, replace=False)
    others = chance.spawn(1)[0].permutation(len(number_Q))
    places = np.concatenate([drawn, others])
    _, first = np.unique(number_Q[places], return_index=True)
    chosen: Ints = places[np.sort(first)[:questions]]
    return chosen


def play(
    policy: TextPolicy,
    question_ids: Sequence[str],
    env_kwargs: Mapping[str, Any],
    generator: torch.Generator,
    seed: int,
) -> list[Episode]:
    """The episodes behind `rollouts`, in the order of the question ids.

    Raises:
        RuntimeError: if the policy failed to write: such an episode tells nothing about what it has learned.
    """
    return _finished(Player(policy, generator), question_ids, env_kwargs, seed)


def _finished(
    player: Player, question_ids: Sequence[str], env_kwargs: Mapping[str, Any], seed: int
) -> list[Episode]:
    made = episodes(player, question_ids, env_kwargs=env_kwargs, num_envs=len(question_ids), seed=seed)
    ordered = [episode for _, episode in sorted(made, key=lambda pair: pair[0])]
    for episode in ordered:
        if episode.stop_reason is StopReason.AGENT_ERROR:
            raise RuntimeError(f"{episode.question_id}: the policy failed to write: {episode.stop_detail}")
    return ordered


def from_episodes(played: Sequence[Episode], tokenizer: TextTokenizer) -> Rollouts:
    """All that credit and loss need, read off episodes; nothing that was sampled is tokenised again.

    Args:
        played: Episodes whose calls carry exact token ids.
        tokenizer: Of these ids, and for the texts that are scored, which nobody sampled.
    """
    rounds = [(i, episode, round) for i, episode in enumerate(played) for round in episode.rounds]
    calls = [(r, call, round) for r, (_, _, round) in enumerate(rounds) for call in round.calls]
    responses = _responses(calls, tokenizer)
    outcome_N = np.array([episode.rewards.outcome for episode in played])
    total_N = np.array([episode.rewards.total() for episode in played])
    data = Trajectories(
        question_N=_numbers(episode.question_id for episode in played),
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
        state_R=_numbers((e.question_id, *_shown(e, r)) for _, e, r in rounds),
        logprobs_BK=responses.logprobs_BK.astype(np.float64),
    )
    return Rollouts(
        data=data,
        contexts=Ragged(tuple(_array(call.prompt_ids) for _, call, _ in calls)),
        responses=responses,
        memory_views=_views(rounds, tokenizer, memory_text),
        history_views=_views(rounds, tokenizer, history_text),
        seen_views=_views(rounds, tokenizer, seen_text),
        prior_views=Ragged(tuple(_view(e, question_text(e), tokenizer) for e in played)),
        success_N=np.array([episode.score.em_all == 1 for episode in played]),
        extra=_counted(played, calls, responses),
    )


def _counted(
    played: Sequence[Episode], calls: Sequence[tuple[int, Call, Round]], responses: Responses
) -> dict[str, float]:
    """The measures of episodes that are not masked; NaN where all of them are."""
    live = [episode for episode in played if not episode.mask_episode]
    if not live:
        return dict.fromkeys(_extra(played, responses), np.nan)
    rounds = {id(round) for episode in live for round in episode.rounds}
    return _extra(live, responses.take(np.flatnonzero([id(round) in rounds for _, _, round in calls])))


def _responses(calls: Sequence[tuple[int, Call, Round]], tokenizer: TextTokenizer) -> Responses:
    """What was written, padded on the right. A call that did not write its round's text is thought."""
    shape = len(calls), max((len(call.output_ids) for _, call, _ in calls), default=0)
    tokens_BK, roles_BK = np.zeros(shape, np.int64), np.zeros(shape, np.int8)
    logprobs_BK = np.zeros(shape, np.float32)
    for row, (_, call, round) in enumerate(calls):
        n = len(call.output_ids)
        tokens_BK[row, :n], logprobs_BK[row, :n] = call.output_ids, call.logprobs
        acted = call.output_ids == round.token_ids
        roles_BK[row, :n] = token_roles(tokenizer.starts(call.output_ids), round.action) if acted else THINK
    return Responses(tokens_BK, roles_BK, logprobs_BK)


def _numbers(things: Iterable[Hashable]) -> Ints:
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
        "em": float(np.mean([episode.score.em for episode in played])),
        "answered": float(np.mean([episode.stop_reason is StopReason.ANSWERED for episode in played])),
        "rounds": len(actions) / len(played),
        "recall": float(np.mean([_recall(episode)[-1] for episode in played if episode.rounds])),
        "invalid": float(np.mean([isinstance(action, Invalid) for action in actions])),
        "output_tokens": float((responses.roles_BK != NOT_GENERATED).sum(1).mean()),
        "memory_length": float(np.mean([tokens.memory for tokens in last])),
        "memory_empty": float(np.mean([not r.memory for r in later])) if later else 0.0,
        "guessed": sum(map(guesses, played)) / len(played),
    }


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


def question_text(episode: Episode, round: Round | None = None) -> str:
    """System and question."""
    return _joined(segment.text for segment in episode.ledger if segment.kind in ("system", "question"))


def memory_text(episode: Episode, round: Round) -> str:
    """System, question, and the memory in force after a round, as the policy wrote it and would see it."""
    written = [s.text for s in episode.ledger if s.kind == "mem" and s.round <= round.number]
    return question_text(episode) + _joined(written[-1:])


def history_text(episode: Episode, round: Round) -> str:
    """All that came before a round, untruncated, the hints left out."""
    return _joined(s.text for s in episode.ledger if s.kind != "hint" and s.round < round.number)


def seen_text(episode: Episode, round: Round) -> str:
    """All that came up to a round's observation."""
    return _joined(s.text for s in episode.ledger if s.kind != "hint" and s.round <= round.number)


def _joined(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _views(
    rounds: Sequence[tuple[int, Episode, Round]],
    tokenizer: TextTokenizer,
    text: Callable[[Episode, Round], str],
) -> Ragged:
    """The views of all rounds; but for what is seen in it, there is none of a first round."""
    rows = (
        _view(episode, text(episode, round), tokenizer) if round.number > 1 or text is seen_text else None
        for _, episode, round in rounds
    )
    return Ragged(tuple(rows))


def _view(episode: Episode, text: str, tokenizer: TextTokenizer) -> View:
    """A context, and the first gold answer of each objective in it, spelt as a right answer is.

    That is `<answer> Z </answer>`, and `<answer> 2. Z </answer>` for the second of several objectives.
    """
    n = len(episode.questions)
    answers = []
    for j, question in enumerate(episode.questions, 1):
        before = (*tokenizer.encode("<answer>"), *(tokenizer.encode(f" {j}.") if n > 1 else ()))
        answers.append((_array(before), _array(tokenizer.encode(f" {question.answers[0]}"))))
    return View(_array(tokenizer.encode(text)), tuple(answers))


def _array(ids: Sequence[int]) -> Ints:
    return np.array(ids, np.int64)
