"""Play every agent of a plan, one line an episode, and go on where an earlier run stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec

from mempo_agents import make_agent
from mempo_agents.base import Agent
from mempo_agents.models.base import Model, Sampling
from mempo_agents.models.table import MODELS, ask_once, make_model
from mempo_agents.rollout import episodes as play
from mempo_benchmarks.journal import open_run
from mempo_benchmarks.results import FAILED, SCRIPTED, Arm, Plan, Row, address, first_line, read_rows, row_of
from mempo_benchmarks.sources import code_digest, own_digest, package_digest, source
from mempo_benchmarks.watch import Watched
from mempo_env import ENVIRONMENTS, __version__
from mempo_env.arguments import memory_kind
from mempo_env.env import SearchQAEnv
from mempo_env.errors import ConfigError, ResultsError, RolloutError
from mempo_env.files import digest
from mempo_env.progress import progress
from mempo_env.questions.prepared import MANIFEST
from mempo_env.retrieval.http import UNKNOWN
from mempo_env.types import Episode, StopReason

FLOORS = ("empty", "random")
CEILING = "oracle"
"""Always run, so that every table says what nothing and what everything is worth."""

GONE = 20
"""Episodes that fail in a row for want of a model or a retriever, after which a run stops."""


def make_plan(
    dataset: str,
    agents: Sequence[str],
    *,
    model: str = SCRIPTED,
    sampling: Sampling | None = None,
    corpus: str | None = None,
    retriever: str = "bm25",
    split: str = "dev",
    objectives: int = 1,
    top_k: int = 3,
    max_rounds: int | None = None,
    answers: str = "numbered",
    episodes: int | None = None,
    seed: int = 0,
) -> Plan:
    """Decide everything about a run, and check it, before anything is written.

    Args:
        dataset: "synthetic", or the folder of a prepared data set.
        agents: Their names; floors and ceiling are added.
        model: Name of the model behind those that ask one.
        sampling: How it samples; None: as it does by itself.
        corpus: A folder with another corpus.jsonl to search.
        retriever: Its name or address.
        split: "train", "dev" or "test".
        objectives: Questions in one episode: consecutive ones of the split, in its order.
        top_k: Passages a search returns.
        max_rounds: Rounds of an episode; None: the environment's own number.
        answers: How several answers are asked for; see `SearchQAEnv`.
        episodes: How many, from the first question on; None: as many as there are questions for.
        seed: Of episode 0; episode i has seed + i. 0 to 2**32 - 1.

    Raises:
        MempoError: if a name is unknown, data or index are not what they should be, or the retriever or the
            model does not answer.
    """
    kwargs: dict[str, Any] = {
        "dataset": dataset if dataset == "synthetic" else str(Path(dataset).resolve()),
        "corpus": None if corpus is None else str(Path(corpus).resolve()),
        "retriever": retriever,
        "split": split,
        "objectives": objectives,
        "top_k": top_k,
        "max_rounds": max_rounds,
        "answers": answers,
    }
    env = _environment(kwargs)
    settings = dict(env.rules.settings)
    data, index = settings.pop("dataset"), _index(settings.pop("retriever"), retriever)
    most = len(env.questions) // objectives
    if episodes is not None and not 1 <= episodes <= most:
        raise ConfigError(f"episodes: wanted 1 to {most:,}, what split {split!r} has, got {episodes:,}")
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed: wanted 0 to {2**32 - 1:,}, got {seed:,}")
    env.retriever.search([env.questions[0].text], top_k)  # one that is down would fail every episode
    ids = [question.id for question in env.questions[: (episodes or most) * objectives]]
    asked = _model(model, sampling)
    names = dict.fromkeys((*FLOORS, *agents, CEILING))
    playing = {name: make_agent(name, env.questions, asked) for name in names}
    if any(getattr(agent, "model", None) is asked for agent in playing.values()):
        ask_once(asked)
    elif model != SCRIPTED:
        raise ConfigError(
            f"model: none of the agents ({', '.join(names)}) asks {model!r}; leave it out, or see to it "
            "that what makes one of your own has a parameter `model`, which the agent keeps as its `model`"
        )
    return Plan(
        dataset=kwargs["dataset"],
        corpus=kwargs["corpus"],
        retriever=retriever,
        data=data,
        index=index,
        scorer=digest(source("mempo_env.scoring").read_bytes()),
        code=code_digest(),
        settings=settings,
        questions=tuple("+".join(ids[i : i + objectives]) for i in range(0, len(ids), objectives)),
        seed=seed,
        arms=tuple(_arm(name, agent, asked, model, kwargs) for name, agent in playing.items()),
        model=model,
        sampling={} if sampling is None else msgspec.to_builtins(sampling),
        version=__version__,
    )


def bench(
    plan: Plan,
    out: Path,
    num_envs: int = 16,
    retry_failed: bool = False,
    begins: Callable[[], None] = lambda: None,
) -> None:
    """Play what is missing of a plan; each finished episode is on disk before the next one is asked for.

    An episode that failed (agent error, timeout, retriever error) is a result like any other: it is counted,
    and not played again unless that is asked for.

    Args:
        plan: What to play.
        out: Folder of the run: run.json and results.jsonl.
        num_envs: Episodes at a time; changes nothing but the speed.
        retry_failed: Play those again that failed by no fault of the agent; a row stays until it has another.
        begins: Called when nothing was refused, before the first episode.

    Raises:
        ConfigError: if `num_envs` is less than 1.
        RolloutError: if `GONE` episodes in a row failed for want of a model or a retriever; they are kept.
        ResultsError: if the folder is of another plan, in use, changed by hand, or can't be written; or if
            the data or the index are not those of the plan any more.
    """
    if (out / MANIFEST).exists():
        raise ConfigError(f"{out}: wanted a folder for a run, found a prepared data set: choose another")
    if num_envs < 1:
        raise ConfigError(f"num_envs: wanted at least 1, got {num_envs}")
    kwargs = _kwargs(plan)
    env, asked = (
        _environment(kwargs),
        _model(plan.model, Sampling(**plan.sampling) if plan.sampling else None),
    )
    with open_run(out, plan) as append:
        rows = read_rows(out, plan, Row)
        done = {(row.agent, row.index) for row in rows if not (retry_failed and row.masked)}
        begins()
        total = len(plan.arms) * len(plan.questions)
        with progress("bench", total, len(done), "episodes") as advance:
            gone = 0  # failed in a row
            for arm in plan.arms:
                agent = Watched(make_agent(arm.agent, env.questions, asked), partial(advance, 0))
                left = [i for i in range(len(plan.questions)) if (arm.agent, i) not in done]
                for i, episode in play(
                    agent,
                    [plan.questions[index] for index in left],
                    env_kwargs={k: v for k, v in kwargs.items() if k not in agent.env_kwargs},
                    num_envs=num_envs,
                    seed=[plan.seed + index for index in left],
                ):
                    _check_sources(plan, arm, episode, env)
                    row = row_of(plan, arm, left[i], episode, agent.ended(plan.questions[left[i]]))
                    append(row)
                    advance(1, agent.told)
                    gone = gone + 1 if row.masked and row.stop_reason != StopReason.MEMORY_ERROR else 0
                    if gone == GONE:
                        raise RolloutError(_stopped(out, first_line(row.stop_detail)))


def _stopped(out: Path, why: str) -> str:
    return (
        f"{out}: stopped, for {GONE} episodes in a row failed by no fault of the agent, the last by {why}; "
        "mend that, and run the same command with --retry-failed, which plays them again and goes on"
    )


def failures(plan: Plan, out: Path) -> dict[str, list[Row]]:
    """Of each agent that has any, the episodes that failed rather than ended."""
    found: dict[str, list[Row]] = {}
    for row in read_rows(out, plan, Row):
        if row.stop_reason in FAILED:
            found.setdefault(row.agent, []).append(row)
    return found


def _environment(kwargs: dict[str, Any]) -> SearchQAEnv:
    env = gym.make(next(iter(ENVIRONMENTS)), **kwargs).unwrapped
    assert isinstance(env, SearchQAEnv)
    return env


def _kwargs(plan: Plan) -> dict[str, Any]:
    named = {name: plan.settings[name] for name in ("split", "objectives", "top_k", "max_rounds", "answers")}
    return {"dataset": plan.dataset, "corpus": plan.corpus, "retriever": plan.retriever, **named}


_model = lru_cache(maxsize=1)(make_model)
"""The last model that was made: a plan and its run load the weights once."""


def _arm(name: str, agent: Agent, asked: Model, model: str, kwargs: dict[str, Any]) -> Arm:
    """An arm of a plan; the model that was asked for, by that name, need not be the agent's."""
    settings = _environment({**kwargs, **agent.env_kwargs}).rules.settings
    memory = memory_kind(agent.env_kwargs.get("memory", "inline"))[1]
    behind = getattr(agent, "model", None)
    named = (model,) if behind is asked and model.partition(":")[0] not in MODELS else ()
    things = (agent, behind, memory, getattr(agent, "play", None), getattr(agent, "write", None))
    sources = f"{package_digest('mempo_agents')} {own_digest((name, *named), things)}".rstrip()
    return Arm(
        agent=name,
        fingerprint=f"{agent.fingerprint} {sources}",
        env_kwargs=msgspec.to_builtins(dict(agent.env_kwargs), enc_hook=_class_name),
        settings=_settings_digest(settings),
        model=getattr(behind, "name", ""),
        asks="" if behind is None else _identity(behind, named),
    )


def _identity(model: Model, named: Sequence[str]) -> str:
    """What tells a model from others of its name: also where it is served, for who knows what is there."""
    told = getattr(model, "fingerprint", ""), address(getattr(model, "url", ""))
    parts = (*told, own_digest(named, (model,)))
    return " ".join(filter(None, parts))


def _class_name(value: Any) -> str:
    """A class, as a memory of one's own is, by its "module:Class"; a ConfigError for what has no name."""
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    raise ConfigError(f"env_kwargs: wanted plain settings, a BankConfig or a class, got {value!r}")


def _check_sources(plan: Plan, arm: Arm, episode: Episode, env: SearchQAEnv) -> None:
    """Refuse an episode of other data or another index: what a plan names may be replaced while it is played.

    The index is asked for its fingerprint after the episode, so it was the plan's in all of its searches. An
    episode whose retriever failed is wrong whatever the index, and may have ended for want of a server.
    """
    failed = episode.stop_reason is StopReason.RETRIEVER_ERROR
    told = episode.settings["retriever"] if failed else env.retriever.fingerprint
    index = _index(told, plan.retriever)
    if index != plan.index or _settings_digest(episode.settings) != arm.settings:
        raise ResultsError(
            f"wanted episodes of the data {plan.data} and the index {plan.index}, got data "
            f"{episode.settings['dataset']} and index {index}: the index behind {address(plan.retriever)!r} "
            f"changed or does not answer, or the data in {plan.dataset} changed; put back what was there and "
            "run the same command again, or choose another --out (the rows already written stay valid)"
        )


def _index(fingerprint: str, retriever: str) -> str:
    """What names an index: its fingerprint, or the address of a server that tells none."""
    return f"{UNKNOWN} at {address(retriever)}" if fingerprint == UNKNOWN else fingerprint


def _settings_digest(settings: dict[str, Any]) -> str:
    return digest(msgspec.json.encode(settings, order="sorted"))
