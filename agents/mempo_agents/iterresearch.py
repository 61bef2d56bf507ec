"""A report that is carried over, in a workspace that is built anew each round.

IterResearch: Rethinking Long-Horizon Agents via Markovian State Reconstruction (arXiv 2511.07327). The
workspace is the question, the report as it stands, and the last action with what it returned.

Differences: the report is written in `<mem>`; the one tool is the search; the thought of a round is not
shown again, as in the paper.
"""

from __future__ import annotations

from mempo_agents.base import Context
from mempo_agents.models.base import Model
from mempo_agents.prompts import ACT, TASK
from mempo_agents.rounds import ENDS, ModelAgent, Round, composed
from mempo_agents.ruled import without_thoughts

PROMPT = f"""\
{TASK}
You work in rounds. Your workspace holds the question, a report in <mem>, your last action and what it
returned. It is built anew each round: what the report does not say is gone. In each round think inside
<think> ... </think>, then write the whole report again inside <mem> ... </mem>: the findings with where
they are from, put together with those of before, and what is still open. Then do {ACT}"""


def play(context: Context) -> Round:
    """A round of one call."""
    return (yield composed(without_thoughts(context.segments), ENDS))


def iterresearch_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "last_step", "memory": "inline", "system_prompt": PROMPT}
    return ModelAgent(name="iterresearch", play=play, model=model, env_kwargs=kwargs, version=2)
