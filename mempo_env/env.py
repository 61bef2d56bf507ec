"""The environment: one round a step, and only what the context rule keeps is seen again."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np

from mempo_env import instructions, play, protocol
from mempo_env.arguments import at_least_one, check_rules, memory_kind, one_of_render_modes, probability
from mempo_env.context import ContextRule
from mempo_env.errors import ConfigError, lookup
from mempo_env.memory.bank import BankConfig
from mempo_env.memory.base import Memory
from mempo_env.play import Play
from mempo_env.retrieval.base import Retriever, ask
from mempo_env.rewards import RewardConfig
from mempo_env.settings import by_keyword
from mempo_env.snapshot import freeze, restore
from mempo_env.sources import resolve
from mempo_env.spaces import UnicodeText
from mempo_env.types import Call, Completion, Episode, Hit, Round, Search, Split, StopReason, storable

StepResult: TypeAlias = tuple[str, float, bool, bool, dict[str, Any]]

FIRSTS_KEPT = 4096
"""First prompts that an environment keeps, so that a group of episodes of one question composes it once."""

ABORTS = (
    *(StopReason.TIMEOUT, StopReason.AGENT_ERROR),
    *(StopReason.MODEL_ERROR, StopReason.CONTEXT_OVERFLOW),
)
"""Why an episode may be ended from outside."""

_OPTIONS = frozenset({"question_id", "state"})
_COMPOSITIONS = {"random": "random", "consecutive": "consecutive"}


class First(NamedTuple):
    """An episode before its first round, which others begin with, and what is told of it."""

    play: Play
    info: dict[str, Any]


class SearchQAEnv(gym.Env[str, str]):
    """Search question answering in which the agent keeps only what it writes into memory.

    ## Description

    The agent gets a question, or several, that an encyclopedia can answer. In each round it may search once
    or answer. The next prompt holds the question, the agent's memory and what the context rule keeps of the
    steps before (by default the previous step only), so whatever it will still need must be in the memory
    that it writes. The protocol is that of MemPO (arXiv 2603.00680); `mempo_env.protocol` reads and renders
    it.

    ## Action Space

    Text (`UnicodeText`), or a `Completion`: text that carries exact token ids, log-probabilities and model
    calls.

        <mem> what is known so far </mem> <think> ... </think> <search> one query </search>
        <mem> what is known so far </mem> <think> ... </think> <answer> the answer </answer>

    `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>` is read as well. Anything else
    is an invalid action: it costs the round, changes nothing, and is answered by one line that says what was
    wrong.

    ## Observation Space

    Text: the whole prompt of the coming round, which is the texts of `info["segments"]` joined by newlines.

    ## Rewards

    The outcome is paid with the answer; other terms in the round that earned them (`mempo_env.rewards`). The
    default preset "mempo" pays 1 if every objective is exactly right and the answer is well-formed, else 0.

    ## Starting State

    Questions drawn from the split with the episode's seed, or those of `reset(options={"question_id": ...})`.

    ## Episode End

    Terminated once an answer was given. Truncated, with `info["stop_reason"]`, after `max_rounds`
    ("max_rounds", or "generation_length" if the last round was cut off by its length), when the next prompt
    would pass `max_context_tokens` ("context_overflow"), when the retriever failed after its bounded retries
    ("retriever_error", with `mask_episode`: it is not the agent's fault), when a memory of the user's own
    raised ("memory_error", likewise), or by `abort` ("timeout", "agent_error", "model_error").

    ## Information

    After `reset` (with `action` None) and every `step`: `question_id`, `round` (rounds done), `segments` and
    `messages` (the coming prompt), `action` (parsed, with its flaws), `retrieved` (hits of this round),
    `memory` (in force), `operations` (done to a bank in this round), `tokens`, `diagnostics`, `reward_terms`,
    `state_hash`; on the last step also `stop_reason`, `episode`, `score`, `failure` and `mask_episode`.
    Values are plain, tuples or frozen structs of `mempo_env.types`. (Gymnasium's RecordEpisodeStatistics
    writes `episode` too: give it another `stats_key`.)

    ## Arguments

    Args:
        dataset: "synthetic" (the embedded synthetic Wikipedia), the folder of a prepared data set, or a
            QuestionSet.
        corpus: Folder or `Corpus` to search instead of the data set's own.
        retriever: "bm25" (embedded), "rank_bm25" (reference), the URL of a server, or an object with
            `search`.
        split: "train", "dev" or "test".
        objectives: Questions in one episode, at least 1.
        top_k: Passages a search returns at most.
        max_rounds: Rounds allowed; None: the larger of 16 and 4 x objectives + 1.
        context: What is kept of the steps before: "last_step" (MemPO's), "memory_only", "full", or a number
            of steps.
        memory: "inline" (the agent rewrites `<mem>`), "bank" (a memory bank with operations of its own, which
            shows an entry's text once a round, however often it is read; or a
            `mempo_env.memory.bank.BankConfig` for one with other settings), "none" (`<mem>` is dropped), or a
            class of your own (`mempo_env.memory.base.Memory`), itself or as "module:Class".
        reward: Name of a preset in `mempo_env.rewards.PRESETS`, or a RewardConfig.
        tokenizer: What tokens are: "words", a callable from text to a count, or a Hugging Face tokenizer.
        max_context_tokens: Longest prompt allowed, as the environment renders it: an agent that composes its
            own may show its model less, or more. None: no limit.
        max_memory_tokens: Longest memory allowed, a longer write is an invalid action; None: no limit.
        system_prompt: Text of the first segment, in which "{answers}" stands for how several answers are
            asked for; None: the protocol's own; "": none.
        hint: Whether the prompt ends with the rounds (and context tokens) left.
        answers: How the system prompt asks for several answers: in "numbered" lines, or one after the other
            with a "semicolon" between them (MEM1's); both are read.
        compose: How several objectives are drawn: "random", or "consecutive" rows of the split (MEM1's).
        retriever_noise: Probability, for experiments, with which each hit is replaced by a random passage.
        render_mode: "ansi" (the last round as text) or "html" (the whole episode as one page).

    ## Version History

    * v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "html"], "render_fps": 1}  # noqa: RUF012

    @by_keyword
    def __init__(
        self,
        dataset: Any = "synthetic",
        *,
        corpus: Any = None,
        retriever: str | Retriever = "bm25",
        split: Split = "train",
        objectives: int = 1,
        top_k: int = 3,
        max_rounds: int | None = None,
        context: ContextRule = "last_step",
        memory: str | BankConfig | type[Memory] = "inline",
        reward: str | RewardConfig = "mempo",
        tokenizer: Any = "words",
        max_context_tokens: int | None = None,
        max_memory_tokens: int | None = None,
        system_prompt: str | None = None,
        hint: bool = True,
        answers: Literal["numbered", "semicolon"] = "numbered",
        compose: Literal["random", "consecutive"] = "random",
        retriever_noise: float = 0.0,
        render_mode: Literal["ansi", "html"] | None = None,
    ) -> None:
        self.top_k = at_least_one("top_k", top_k)
        objectives = at_least_one("objectives", objectives)
        self.compose = lookup(_COMPOSITIONS, compose, "compose")
        self.retriever_noise = probability("retriever_noise", retriever_noise)
        self.render_mode = one_of_render_modes(render_mode, self.metadata["render_modes"])
        dataset, self.corpus, self.retriever = resolve(dataset, corpus, retriever)
        if not isinstance(getattr(self.retriever, "fingerprint", None), str):
            raise ConfigError("retriever: wanted a text `fingerprint` that names what decides its ranking")
        self.questions = dataset.split(split)
        if objectives > len(self.questions):
            raise ConfigError(
                f"objectives: wanted at most the {len(self.questions)} questions of {split!r}, "
                f"got {objectives}"
            )
        if retriever_noise and self.corpus is None:
            raise ConfigError("retriever_noise needs the passages: give corpus=, a folder or a Corpus")
        self.rules = check_rules(
            objectives=objectives,
            max_rounds=max(16, 4 * objectives + 1) if max_rounds is None else max_rounds,
            context=context,
            memory=memory,
            reward=reward,
            tokenizer=tokenizer,
            max_context_tokens=max_context_tokens,
            max_memory_tokens=max_memory_tokens,
            system_prompt=instructions.system_prompt(
                memory_kind(memory)[0], objectives, self.top_k, answers, system_prompt
            ),
            hint=hint,
            sources={
                "dataset": self.questions.fingerprint,
                "retriever": self.retriever.fingerprint,
                "split": split,
                "top_k": self.top_k,
                "answers": answers,
                "compose": compose,
                "retriever_noise": self.retriever_noise,
            },
        )
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self._play: Play | None = None
        self._firsts: dict[tuple[str, ...], First] = {}

    # --- Gymnasium --------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Of the random numbers from here on; None: go on with those of before.
            options: {"question_id": id, ids joined by "+", or a sequence of ids} fixes the objectives,
                {"state": text of `get_state`} goes on from a snapshot.
        """
        super().reset(seed=seed)
        chosen, state = self.read_options(options)
        if state is not None:
            self.set_state(state)
            now = self._playing()
            return now.observation, play.tell(now, None)
        first = self._first(self._draw() if chosen is None else chosen)
        self._play = now = first.play.copy()
        return now.observation, {**first.info, "messages": protocol.messages(now.segments, now.observation)}

    def step(self, action: str) -> StepResult:
        """Play one round; see the class for what an action is."""
        query = self.submit(action)
        if query is None:
            return self.conclude(())
        try:
            outcome = ask(self.retriever, (query,), self.top_k)
        except BaseException:
            self.retract()
            raise
        return self.conclude(outcome if isinstance(outcome, Exception) else outcome[0])

    def render(self) -> str | None:
        """The last round as text ("ansi"), or the episode so far as one HTML page ("html")."""
        if self.render_mode is None:
            return None
        episode = self.episode()
        if self.render_mode == "ansi":
            from mempo_env.ansi import render_round

            return render_round(episode)
        from mempo_env.viewer import Entry, episodes_page

        return episodes_page([Entry(label="episode", episode=episode)], title=f"MemPO: {episode.question_id}")

    # --- A round in two halves, so that a vector environment can search for all at once -----------------

    def submit(self, action: str) -> str | None:
        """Read an action; return the query to search for before `conclude`, None if there is none."""
        now = self._running()
        if now.pending is not None:
            raise gym.error.ResetNeeded("a round is under way: call conclude() before the next submit()")
        if not isinstance(action, str):
            raise TypeError(f"step: wanted text or a Completion, got {type(action).__name__}")
        completion = action if isinstance(action, Completion) else Completion(action)
        parsed = play.read(now, self.rules, completion)
        now.pending = (completion, parsed)
        return parsed.query if isinstance(parsed, Search) and now.fault is None else None

    def conclude(self, outcome: Sequence[Hit] | Exception) -> StepResult:
        """Finish the round that `submit` began, with the hits of its query (else none), or with the fault."""
        now = self._playing()
        if now.pending is None:
            raise gym.error.ResetNeeded("no round is under way: call submit() first")
        (completion, action), now.pending = now.pending, None
        if now.fault is not None:
            outcome = now.fault
        elif not isinstance(outcome, Exception):
            outcome = self._with_noise(tuple(outcome[: self.top_k])) if isinstance(action, Search) else ()
        return self._result(now, play.conclude(now, self.rules, completion, action, outcome))

    def retract(self) -> None:
        """Forget what `submit` read: the round has not been played."""
        self._playing().pending = None

    def abort(self, reason: str, detail: str = "", calls: Sequence[Call] = ()) -> StepResult:
        """End the episode from outside, without a round.

        Args:
            reason: "timeout", "agent_error", "model_error" (what is behind the agent failed, which is not the
                policy's fault: `mask_episode`) or "context_overflow" (of the model's own window).
            detail: What exactly happened; for people, no agent will see it.
            calls: Calls of models in the round that is broken off: they are counted.
        """
        now = self._running()
        allowed = {str(reason): reason for reason in ABORTS}
        now.stop_reason, now.stop_detail = lookup(allowed, str(reason), "reason to abort"), storable(detail)
        now.pending = None
        play.break_off(now, self.rules, tuple(calls))
        return self._result(now, None)

    # --- Snapshots --------------------------------------------------------------------------------------

    def get_state(self) -> str:
        """The whole state as JSON text, for `reset(options={"state": ...})` here or in another process."""
        now = self._playing()
        if now.pending is not None:
            raise gym.error.ResetNeeded("a round is under way: call conclude() before get_state()")
        return freeze(now, self.rules.settings, self.np_random)

    def set_state(self, state: str) -> None:
        """Go on from a state that `get_state` returned; a StateError if it is no such state, or of another.

        A state that is refused changes nothing here.
        """
        now, rng = restore(state, self.questions.by_id, self.rules)
        self.np_random.bit_generator.state = rng
        self._play = now

    def fork(self, n: int, seeds: Sequence[int] | None = None) -> list[SearchQAEnv]:
        """Make n independent environments in this state, which share questions and retriever.

        Args:
            n: How many.
            seeds: One for each, of its random numbers from here on; None: each goes on with ours.
        """
        if n < 0:
            raise ConfigError(f"fork: wanted a number of environments, 0 or more, got {n}")
        if seeds is not None and len(seeds) != n:
            raise ConfigError(f"fork: wanted one seed for each of {n} environments, got {len(seeds)}")
        twins = []
        for i in range(n):
            twin = copy.copy(self)
            twin._play = self._playing().copy()
            rng = np.random.default_rng(None if seeds is None else seeds[i])
            if seeds is None:
                rng.bit_generator.state = self.np_random.bit_generator.state
            twin._np_random = rng
            twins.append(twin)
        return twins

    def episode(self) -> Episode:
        """The episode so far, or whole, as one frozen value."""
        now = self._playing()
        return play.record(now, self.rules)

    # --- Starting ---------------------------------------------------------------------------------------

    def _playing(self) -> Play:
        if self._play is None:
            raise gym.error.ResetNeeded("there is no episode yet: call reset() first")
        return self._play

    def _running(self) -> Play:
        now = self._playing()
        if now.stop_reason is not None:
            raise gym.error.ResetNeeded(f"the episode has ended ({now.stop_reason}): call reset() to go on")
        return now

    def read_options(self, options: Mapping[str, Any] | None) -> tuple[tuple[str, ...] | None, str | None]:
        """Check the options of `reset`: (ids of the objectives, state), None for what is not given."""
        if not options:
            return None, None
        if not _OPTIONS.issuperset(options):
            raise ConfigError(
                f"reset: options may hold question_id or state, got {', '.join(sorted(options))}"
            )
        chosen, state = options.get("question_id"), options.get("state")
        if chosen is not None and state is not None:
            raise ConfigError("reset: options may hold question_id or state, not both")
        return None if chosen is None else self._choose(chosen), state

    def _draw(self) -> tuple[str, ...]:
        """Draw the ids of the objectives with the episode's random numbers."""
        rows, n, rng = self.questions, self.rules.objectives, self.np_random
        if n == 1:
            return (rows[int(rng.random() * len(rows))].id,)
        if self.compose == "consecutive":
            first = n * int(rng.integers(len(rows) // n))
            return tuple(rows[first + i].id for i in range(n))
        return tuple(rows[int(i)].id for i in rng.choice(len(rows), n, replace=False))

    def _choose(self, chosen: str | Sequence[str]) -> tuple[str, ...]:
        """The ids of the objectives that were asked for, as many as there must be."""
        n = self.rules.objectives
        if isinstance(chosen, str):
            chosen = chosen.split("+") if n > 1 else [chosen]
        ids = tuple(chosen)
        if len(ids) != n or len(set(ids)) != len(ids):
            raise ConfigError(
                f"question_id: wanted {n} different ids (joined by '+', or a sequence), got {chosen!r}"
            )
        if ids not in self._firsts:
            for id in ids:
                self.questions.by_id(id)
        return ids

    def _first(self, ids: tuple[str, ...]) -> First:
        """What an episode with these questions begins with, which is always the same."""
        first = self._firsts.get(ids)
        if first is None:
            begun = self._begin(ids)
            first = First(begun, play.tell(begun, None))
            if len(self._firsts) >= FIRSTS_KEPT:
                self._firsts.pop(next(iter(self._firsts)))
            self._firsts[ids] = first
        return first

    def _begin(self, ids: tuple[str, ...]) -> Play:
        """A new episode, unless not even its first prompt is allowed."""
        now = play.begin(self.rules, tuple(map(self.questions.by_id, ids)))
        if play.overflows(now, self.rules):
            raise ConfigError(
                f"max_context_tokens: wanted at least the {now.prompt_tokens} tokens of the first prompt of "
                f"question {now.question_id!r}, got {self.rules.max_context_tokens}"
            )
        return now

    # --- Playing ----------------------------------------------------------------------------------------

    def _with_noise(self, hits: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """The hits, each replaced by a random passage with probability `retriever_noise`."""
        if not self.retriever_noise or self.corpus is None:
            return hits
        noisy = []
        for hit in hits:
            if self.np_random.random() < self.retriever_noise:
                row = int(self.np_random.integers(len(self.corpus)))
                passage = self.corpus[row]
                hit = Hit(passage.id, passage.title, passage.text, row, hit.score)
            noisy.append(hit)
        return tuple(noisy)

    def _result(self, now: Play, done: Round | None) -> StepResult:
        info = play.tell(now, done)
        reward = 0.0 if done is None else done.reward.weighted.total()
        if now.stop_reason is None:
            return now.observation, reward, False, False, info
        episode = play.record(now, self.rules)
        info["stop_reason"] = episode.stop_reason
        info["episode"] = episode
        info["score"] = episode.score
        info["failure"] = episode.failure
        info["mask_episode"] = episode.mask_episode
        answered = now.stop_reason is StopReason.ANSWERED
        return now.observation, reward, answered, not answered, info
