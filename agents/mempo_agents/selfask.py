"""Follow-up questions, each answered on its own, until the question itself can be answered.

Measuring and Narrowing the Compositionality Gap in Language Models, self-ask with a search engine (arXiv
2210.03350). What is kept is the chain of follow-up questions and intermediate answers.

Differences: the search returns passages, so a call of its own reads the intermediate answer from them; no
examples in the prompt; a follow-up question is written in `<search>`, its answer in `<think>`.
"""

from __future__ import annotations

from mempo_agents.base import Context
from mempo_agents.models.base import Model
from mempo_agents.prompts import TASK
from mempo_agents.rounds import ENDS, ModelAgent, Round, composed, inside, kinds, said, without
from mempo_env.instructions import FORM

PROMPT = f"""\
{TASK}
You see your follow-up questions in <search>, and what was found out about each in <think>. If that is not
enough to answer, write the next follow-up question, a simple one that an encyclopedia can answer, as
<search> the follow-up question </search>; else write
<answer> the answer </answer>, which ends the episode.
{FORM}"""

READ = """\
Below are a question, follow-up questions to it in <search>, what was found out in <think>, and passages
that a search for the last follow-up question returned. Answer the follow-up question from the passages, in
a sentence inside <think> ... </think>, and write nothing else."""


def play(context: Context) -> Round:
    """A call that reads the intermediate answer if there are passages, and one that asks or answers."""
    chain = without(context.segments, "information", "hint")
    found = kinds(context.segments, "information")[-1:]
    thought = ""
    if found and found[0].round == max(segment.round for segment in context.segments):
        prompt = (said("system", READ, context), *without(chain, "system"), *found)
        thought = f"<think>\n{inside((yield composed(prompt, ('</think>',))), 'think')}\n</think>\n"
        chain = (*chain, said("think", thought.rstrip(), context))
    action = yield composed((*chain, *kinds(context.segments, "hint")), ENDS)
    return thought + action


def selfask_agent(model: Model) -> ModelAgent:
    """The agent."""
    kwargs = {"context": "full", "memory": "none", "system_prompt": PROMPT}
    return ModelAgent(name="selfask", play=play, model=model, env_kwargs=kwargs)
