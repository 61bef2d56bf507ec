"""The whole history up to a budget; then a summary takes its place.

ReSum: Unlocking Long-Horizon Search Intelligence via Context Summarization (arXiv 2509.13313).

Differences: the same model summarises (in the paper one trained for it); the summary is written in `<mem>`;
the budget is counted in the environment's tokens, before the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mempo_agents.base import Context
from mempo_agents.models.base import Model
from mempo_agents.prompts import ACT, TASK
from mempo_agents.rounds import ENDS, ModelAgent, Round, composed, kinds, remembered, remembering, said
from mempo_agents.ruled import with_memory
from mempo_env.settings import Count, check
from mempo_env.types import Segment

BUDGET = 1_000
"""Tokens of the prompt above which `resum` summarises; `resum(500)` takes 500."""

PROMPT = f"""\
{TASK}
You see your steps, and in <mem> a summary of the steps before those.
In each round think inside <think> ... </think>, then do {ACT}"""

SUMMARISE = """\
Below are a question, a summary of earlier steps in <mem> if there is one, and the steps since then:
thoughts, searches, passages. Summarise the history inside <mem> ... </mem>, and write nothing else: what is
known, with where it is from; what was looked for in vain; what is still open. The steps will be gone."""


def play(context: Context, budget: int) -> Round:
    """A call that acts, and one that summarises before it if the prompt is beyond the budget."""
    shown = since_summary(context.segments)
    if sum(segment.tokens for segment in shown) <= budget or not kinds(shown, "call"):
        return with_memory((), (yield composed(shown, ENDS)))
    history = tuple(segment for segment in shown if segment.kind not in ("system", "hint"))
    summary = yield remembering((said("system", SUMMARISE, context), *history))
    memory = remembered(summary, context)
    rest = shown if not memory else kinds(shown, "system", "question") + memory + kinds(shown, "hint")
    return with_memory(memory, (yield composed(rest, ENDS)))


def since_summary(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """System and question, the last summary, the steps from the round on that wrote it, and the hint."""
    last = max((segment.round for segment in kinds(segments, "mem")), default=0)
    always = ("system", "question", "hint")
    return tuple(segment for segment in segments if segment.kind in always or segment.round >= last)


def resum_agent(model: Model, budget: int = BUDGET) -> ModelAgent:
    """The agent; the budget is at least 1, else a ConfigError."""
    check("budget of resum", budget, Count)
    name = "resum" if budget == BUDGET else f"resum({budget})"
    kwargs = {"context": "full", "memory": "inline", "system_prompt": PROMPT}
    return ModelAgent(name=name, play=partial(play, budget=budget), model=model, env_kwargs=kwargs, version=2)
