"""A window of fixed size: a core block, a queue of steps, and an archive for what the window can't hold.

MemGPT: Towards LLMs as Operating Systems (arXiv 2310.08560). Beyond a share of the window the model is warned
and rewrites its core block; beyond the window the oldest steps leave it, until half of it is free.

Differences: the warning comes at 75 % of the window, for which the paper gives 70 % as an example; the window
is counted in the environment's tokens, before the round, and holds the last step whatever its length; the
core block takes the place of the summary of what left the queue, too; passages that leave the queue go into
the archive by themselves, which is the paper's recall storage and its archive at once, and the model writes
nothing there; a read of the archive is answered in the next round.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct, structs

from mempo_agents.base import Context
from mempo_agents.models.base import Model
from mempo_agents.notes import (
    BAR,
    UNGATED,
    Recall,
    as_memory,
    lines,
    read,
    recalls,
    rewritten,
    with_operations,
)
from mempo_agents.prompts import ACT, TASK
from mempo_agents.rounds import ENDS, ModelAgent, Round, composed, kinds, remembering, said, without
from mempo_agents.ruled import inert
from mempo_agents.view import read_information, write_article
from mempo_env.errors import ConfigError
from mempo_env.settings import Count, check
from mempo_env.tokens import count_words
from mempo_env.types import Segment

WINDOW = 1_000
"""Tokens of the window; `paging(500)` has 500."""
PRESSURE = 0.75
"""Share of the window from which on the model is warned."""

PROMPT = f"""\
{TASK}
Your window holds your core block in <mem>, and the steps since it was last emptied. Passages of steps before
those lie in an archive, which is answered in <memory_recall> in the next round.
In each round think inside <think> ... </think>, then, if you look for something in the archive, write
<memory_read> what you look for </memory_read>, then do {ACT}"""

SAVE = """\
Warning: your window is almost full, and the oldest steps below will leave it. Rewrite the memory inside
<mem> ... </mem>, which is your core block and stays: what is known, what was searched for in vain, what is
still open. Write nothing else."""

_CORE = re.compile(r"Core, steps from (\d{1,9}):(.*)")


class Core(Struct, frozen=True):
    """The core block: its entry (None: not stored), the first round that the queue holds, and its text."""

    id: int | None = None
    first: int = 1
    text: str = ""

    @property
    def entry(self) -> str:
        """As it is stored, with bars for line ends."""
        return f"Core, steps from {self.first}: {self.text}".strip()


def play(context: Context, window: int) -> Round:
    """A call that acts; before it, if the window is almost full, one that rewrites the core block."""
    core = now = stored(context.segments)
    steps, leaving = queue(context.segments, core.first), []
    shown = window_of(core, steps, context)
    used = tokens(shown)
    if used > PRESSURE * window and steps:
        warned = (said("system", SAVE, context), *without(shown, "system", "hint"))
        now = structs.replace(now, text=BAR.join(lines((yield remembering(warned)))) or core.text)
    if used > window:
        while len(steps) > 1 and tokens(window_of(now, steps, context)) > window / 2:
            leaving += passages(steps.pop(min(steps)))
        now = structs.replace(now, first=min(steps, default=core.first))
    action = inert((yield composed(window_of(now, steps, context), ENDS)), bank=True, reads=True)
    changed = [] if now == core or core.id is None else [rewritten(core.id, now.entry)]
    new = [now.entry] if core.id is None and now != Core() else []
    return with_operations(changed, [*new, *leaving], [read(now.entry, 1)], action)


def stored(segments: Sequence[Segment]) -> Core:
    """The core block as the last round that was valid read it back."""
    for segment in kinds(segments, "recall")[-1:]:
        own = recalls([segment])[0]  # the agent's own read comes first, whatever the model reads for
        if match := _CORE.fullmatch(own.query):
            return Core(core_id(own), int(match[1]), match[2].strip())
    return Core()


def core_id(own: Recall) -> int | None:
    """The entry of the core block, from the agent's own read; None if it is not stored."""
    return next((id for id, text in own.entries.items() if text == own.query), None)


def queue(segments: Sequence[Segment], first: int) -> dict[int, tuple[Segment, ...]]:
    """The steps in view by their rounds, from one on, without what was asked of the bank by rule."""
    steps: dict[int, tuple[Segment, ...]] = {}
    for segment in kinds(segments, "think", "call", "information", "invalid", "error", "recall"):
        if segment.round >= first:
            told = own_reads(segment) if segment.kind == "recall" else (segment,)
            steps[segment.round] = (*steps.get(segment.round, ()), *told)
    return steps


def own_reads(recall: Segment) -> tuple[Segment, ...]:
    """What the model's own reads brought, which is never the core block; () if there were none."""
    own, *asked = recalls([recall])
    core = core_id(own)  # lies in the same bank
    archived = [{id: text for id, text in one.entries.items() if id != core} for one in asked]
    text = "\n".join(Recall(one.query, found).text for one, found in zip(asked, archived, strict=True))
    return (Segment("recall", recall.round, text, count_words(text)),) if text else ()


def window_of(core: Core, steps: Mapping[int, Sequence[Segment]], context: Context) -> tuple[Segment, ...]:
    """What the window holds."""
    asked, hint = kinds(context.segments, "system", "question"), kinds(context.segments, "hint")
    return (
        *asked,
        *as_memory([core.text], context),
        *(one for step in steps.values() for one in step),
        *hint,
    )


def tokens(segments: Sequence[Segment]) -> int:
    """Tokens of some segments."""
    return sum(segment.tokens for segment in segments)


def passages(step: Sequence[Segment]) -> list[str]:
    """The passages of a step, an entry each."""
    found = kinds(step, "information")
    return [write_article(article) for segment in found for article in read_information(segment.text)]


def paging_agent(model: Model, window: int = WINDOW) -> ModelAgent:
    """The agent; a ConfigError for a window that cannot hold more than the prompt itself."""
    check("window of paging", window, Count)
    if window <= (least := count_words(PROMPT)):
        raise ConfigError(
            f"window of paging: wanted more than the {least} tokens of its prompt, got {window}"
        )
    name = "paging" if window == WINDOW else f"paging({window})"
    kwargs = {"context": "full", "memory": UNGATED, "system_prompt": PROMPT}
    return ModelAgent(name=name, play=partial(play, window=window), model=model, env_kwargs=kwargs, version=2)
