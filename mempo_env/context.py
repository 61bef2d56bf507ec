"""The ledger of all that was said, and the rule that decides what of it the agent sees.

- "last_step": the whole previous step; the memory always.
- "memory_only": the memory and the last information (and what the last step recalled from a bank, or got
  wrong).
- k (an int): the last k whole steps, and the memory.
- "full": every step.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from mempo_env.errors import ConfigError, lookup
from mempo_env.tokens import TokenCounter
from mempo_env.types import Segment, SegmentKind

ContextRule: TypeAlias = Literal["last_step", "memory_only", "full"] | int

_RULES = {"last_step": "last_step", "memory_only": "memory_only", "full": "full"}


def check_rule(rule: ContextRule) -> ContextRule:
    """Return the rule, or raise a ConfigError that says which there are."""
    if isinstance(rule, bool) or not isinstance(rule, (int, str)):
        raise ConfigError(
            f"context: wanted 'last_step', 'memory_only', 'full' or a number of steps, got {rule!r}"
        )
    if isinstance(rule, str):
        lookup(_RULES, rule, "context")
    elif rule < 1:
        raise ConfigError(f"context: wanted at least 1 step, got {rule}; 'memory_only' keeps none")
    return rule


class Ledger(Struct, gc=False):
    """Every segment of an episode in the order in which it came to be.

    Attributes:
        segments: The segments.
        count: Counts the tokens of a text.
        head: How many of the segments are always in view, the first ones: system and question.
        steps: For each round, the range of segments that it made: [start, stop).
        memory: Index of the segment that holds the memory in force, or None.
        information: Index of the last information, or None.
    """

    segments: list[Segment]
    count: TokenCounter
    head: int = 0
    steps: list[tuple[int, int]] = []
    memory: int | None = None
    information: int | None = None

    def add(self, kind: SegmentKind, round: int, text: str) -> int:
        """Append a segment and return its index."""
        self.segments.append(Segment(kind, round, text, self.count(text)))
        return len(self.segments) - 1

    def close_step(self, start: int) -> None:
        """Let the segments from `start` on be the step of one more round."""
        self.steps.append((start, len(self.segments)))

    def copy(self) -> Ledger:
        """An independent ledger with the same segments."""
        segments, steps = self.segments.copy(), self.steps.copy()
        return Ledger(segments, self.count, self.head, steps, self.memory, self.information)

    def visible(self, rule: ContextRule) -> list[int]:
        """Indices of what the agent sees next: system and question, the memory, the kept steps."""
        view = list(range(self.head))
        memory = [] if self.memory is None else [self.memory]
        if not self.steps:
            return view + memory
        if rule == "memory_only":
            start, stop = self.steps[-1]
            told = [i for i in range(start, stop) if self.segments[i].kind in ("recall", "error")]
            kept = [] if self.information is None else [self.information]
            return view + memory + sorted(kept + told)
        keep = rule if isinstance(rule, int) else 1 if rule == "last_step" else len(self.steps)
        kept_steps = self.steps[-keep:]
        if memory and not kept_steps[0][0] <= memory[0] < kept_steps[-1][1]:
            view += memory
        for start, stop in kept_steps:
            view += range(start, stop)
        return view
