"""The agents by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

from mempo_agents.base import Agent
from mempo_agents.empty import empty_agent
from mempo_agents.oracle import oracle_agent
from mempo_agents.random_agent import random_agent
from mempo_agents.reader import reader_agent
from mempo_env.errors import ConfigError, lookup
from mempo_env.imported import imported
from mempo_env.questions.set import QuestionSet


def _oracle(questions: QuestionSet | None) -> Agent:
    if questions is None:
        raise ConfigError("the agent 'oracle' knows the gold evidence: pass the QuestionSet as questions=")
    return oracle_agent(questions)


AGENTS: dict[str, Callable[[QuestionSet | None], Agent]] = {
    "empty": lambda _: empty_agent(),
    "random": lambda _: random_agent(),
    "oracle": _oracle,
    "react": lambda _: reader_agent("react"),
    "window": lambda _: reader_agent("window"),
    "no_memory": lambda _: reader_agent("no_memory"),
    "mempo": lambda _: reader_agent("mempo"),
}
"""Name: what makes the agent, from the questions that it will be asked."""


def make_agent(name: str, questions: QuestionSet | None = None) -> Agent:
    """Make an agent by name; ConfigError with the nearest name if there is none.

    Args:
        name: A name in `AGENTS`; or "module:thing" for one of your own, where the thing is an agent, or a
            class or function that makes one without arguments. The module is looked for in the working folder
            too.
        questions: The questions it will be asked; only the oracle looks at them, for evidence and answers.
    """
    return _imported(name) if ":" in name else lookup(AGENTS, name, "agent")(questions)


def _imported(name: str) -> Agent:
    made = imported(name, "agent")
    agent = made() if inspect.isclass(made) or inspect.isfunction(made) else made
    missing = [part for part in ("name", "env_kwargs", "fingerprint", "act") if not hasattr(agent, part)]
    if missing:
        raise ConfigError(f"agent {name!r}: it has no {', '.join(missing)}; see mempo_agents.base.Agent")
    return cast(Agent, agent)
