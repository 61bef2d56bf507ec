"""The agents by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from mempo_agents.amem import amem_agent
from mempo_agents.bank import bank_agent
from mempo_agents.base import Agent
from mempo_agents.empty import empty_agent
from mempo_agents.iterresearch import iterresearch_agent
from mempo_agents.mem0 import mem0_agent
from mempo_agents.mem1 import mem1_agent
from mempo_agents.memagent import memagent_agent
from mempo_agents.mempo import mempo_agent
from mempo_agents.memsearcher import memsearcher_agent
from mempo_agents.models.base import Model
from mempo_agents.models.table import make_model
from mempo_agents.no_memory import no_memory_agent
from mempo_agents.oracle import oracle_agent
from mempo_agents.own import lookup_or_own, own
from mempo_agents.paging import paging_agent
from mempo_agents.rag_memory import rag_memory_agent
from mempo_agents.random_agent import random_agent
from mempo_agents.react import react_agent
from mempo_agents.resum import resum_agent
from mempo_agents.selfask import selfask_agent
from mempo_agents.window import window_agent
from mempo_env.errors import ConfigError, lookup
from mempo_env.questions.set import QuestionSet

Make: TypeAlias = Callable[[QuestionSet | None, Model], Agent]


def _oracle(questions: QuestionSet | None, _: Model) -> Agent:
    if questions is None:
        raise ConfigError("the agent 'oracle' knows the gold evidence: pass the QuestionSet as questions=")
    return oracle_agent(questions)


AGENTS: dict[str, Make] = {
    "empty": lambda *_: empty_agent(),
    "random": lambda *_: random_agent(),
    "oracle": _oracle,
    "react": lambda _, model: react_agent(model),
    "window": lambda _, model: window_agent(model),
    "no_memory": lambda _, model: no_memory_agent(model),
    "mempo": lambda _, model: mempo_agent(model),
    "bank": lambda _, model: bank_agent(model),
    "rag_memory": lambda _, model: rag_memory_agent(model),
    "paging": lambda _, model: paging_agent(model),
    "amem": lambda _, model: amem_agent(model),
    "mem0": lambda _, model: mem0_agent(model),
    "mem1": lambda _, model: mem1_agent(model),
    "memagent": lambda _, model: memagent_agent(model),
    "memsearcher": lambda _, model: memsearcher_agent(model),
    "resum": lambda _, model: resum_agent(model),
    "iterresearch": lambda _, model: iterresearch_agent(model),
    "selfask": lambda _, model: selfask_agent(model),
}
"""Name: what makes the agent, from the questions that it will be asked and the model behind it."""

ASK_NONE = ("empty", "random", "oracle")
"""Those that ask no model."""

SIZED: dict[str, Callable[[Model, int], Agent]] = {
    "window": window_agent,
    "resum": resum_agent,
    "paging": paging_agent,
}
"""Agents that take a number by name, as in "window(4)"."""

_SIZED = re.compile(r"(\w+)\((\d{1,9})\)")


def make_agent(name: str, questions: QuestionSet | None = None, model: str | Model = "scripted") -> Agent:
    """Make an agent by name; ConfigError with the nearest name if there is none.

    Args:
        name: A name in `AGENTS`, or one in `SIZED` with a number; or "module:thing" for one of your own,
            where the thing is an agent, or a class or function that makes one: without arguments, or from the
            model if it has a parameter of that name. The module is looked for in the working folder too.
        questions: The questions it will be asked; only the oracle looks at them, for evidence and answers.
        model: The model behind it, or its name (`mempo_agents.models.table.make_model`).
    """
    asked = make_model(model) if isinstance(model, str) else model
    if ":" in name:
        parts = ("name", "env_kwargs", "fingerprint", "act")
        return cast(Agent, own(name, "agent", parts, {"model": asked}))
    sized = _SIZED.fullmatch(name)
    if sized:
        return lookup(SIZED, sized[1], "agent with a size")(asked, int(sized[2]))
    return lookup_or_own(AGENTS, name, "agent")(questions, asked)


def keeps_memory(name: str, environment: Mapping[str, Any]) -> bool:
    """Whether an agent of that name has a memory in an environment made with these keyword arguments.

    Raises:
        ConfigError: as `make_agent`; of one's own, if its module is not there.
    """
    return {**environment, **make_agent(name).env_kwargs}.get("memory") != "none"
