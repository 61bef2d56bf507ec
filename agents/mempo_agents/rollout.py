"""Episodes of one agent, many at a time, as they finish."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np

import mempo_env
from mempo_agents.base import Agent, Context
from mempo_agents.models.base import ModelError
from mempo_env.env import ABORTS
from mempo_env.errors import ConfigError, brief, lookup
from mempo_env.types import Call, Completion, Episode, Segment
from mempo_env.vector import SearchQAVectorEnv


def episodes(
    agent: Agent,
    question_ids: Sequence[str],
    *,
    env_id: str = next(iter(mempo_env.ENVIRONMENTS)),
    env_kwargs: Mapping[str, Any] | None = None,
    num_envs: int = 16,
    seed: int | Sequence[int] = 0,
) -> Iterator[tuple[int, Episode]]:
    """Play one episode for each question id; yield (its index, the episode) as each one finishes.

    The agent is asked once a step for all running episodes, the retriever likewise; a finished episode makes
    room for the next at once. Episode i is played with seed + i, so it is the same for every `num_envs`.

    Args:
        agent: Who plays, with its own `env_kwargs` beside those given here.
        question_ids: The objectives of each episode: an id, or ids joined by "+".
        env_id: Which environment.
        env_kwargs: Its keyword arguments.
        num_envs: Episodes at a time.
        seed: Of episode 0, or one for each episode (those that an earlier run left over keep theirs).

    Raises:
        ConfigError: as `together`.
    """
    if not question_ids:
        return
    size = min(num_envs, len(question_ids))
    seeds = seed if isinstance(seed, Sequence) else range(seed, seed + len(question_ids))
    if len(seeds) != len(question_ids):
        raise ConfigError(f"seed: wanted one for each of {len(question_ids)} episodes, got {len(seeds)}")
    made = gym.make_vec(env_id, num_envs=size, **together(agent, env_kwargs or {}))
    envs = made.unwrapped
    assert isinstance(envs, SearchQAVectorEnv)
    waiting = iter(range(len(question_ids)))
    playing: dict[int, int] = {}  # environment -> index of its episode
    contexts: dict[int, Context] = {}
    idle = list(range(size))
    while True:
        started = list(zip(idle, waiting, strict=False))
        if started:
            playing.update(started)
            contexts.update(_start(envs, started, question_ids, seeds))
        if not playing:
            envs.close()
            return
        order = sorted(playing)
        written = _written(agent, tuple(contexts[i] for i in order))
        idle = []
        for i, episode in _play(envs, dict(zip(order, written, strict=True)), contexts):
            idle.append(i)
            yield playing.pop(i), episode


def together(agent: Agent, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of an environment together with those that an agent plays with.

    Raises:
        ConfigError: if a keyword is given that the agent plays with another value of.
    """
    for name, value in agent.env_kwargs.items():
        given = env_kwargs.get(name, value)
        if given is not value and given != value:
            raise ConfigError(
                f"{name}: the agent {agent.name!r} plays with {brief(value)}, got {brief(given)}; leave it "
                "out, or change the env_kwargs of the agent"
            )
    return {**env_kwargs, **agent.env_kwargs}


def _start(
    envs: SearchQAVectorEnv,
    started: Sequence[tuple[int, int]],
    question_ids: Sequence[str],
    seed: Sequence[int],
) -> dict[int, Context]:
    """Reset the given environments, each to its question and seed."""
    mask = np.zeros(envs.num_envs, dtype=np.bool_)
    seeds: list[int | None] = [None] * envs.num_envs
    ids: list[str | None] = [None] * envs.num_envs
    for i, index in started:
        mask[i], seeds[i], ids[i] = True, seed[index], question_ids[index]
    _, infos = envs.reset(seed=seeds, options={"reset_mask": mask, "question_id": ids})
    return {i: Context(infos["segments"][i], infos["question_id"][i], seed[index]) for i, index in started}


def _written(agent: Agent, contexts: tuple[Context, ...]) -> list[str | Exception]:
    """A text or an exception for each context, whatever the agent does.

    If it fails for all of them together it is asked for each alone: only the guilty episode ends.
    """
    try:
        written = agent.act(contexts)
        if not isinstance(written, Sequence) or isinstance(written, (str, bytes)):
            raise TypeError(f"act: wanted a sequence, got {type(written).__name__}")
        if len(written) != len(contexts):
            raise ValueError(f"act: wanted {len(contexts)} completions, got {len(written)}")
        return [_checked(one) for one in written]
    except MemoryError:
        raise
    except Exception as error:
        if len(contexts) == 1:
            return [_checked(error)]
        return [_written(agent, (context,))[0] for context in contexts]


def _checked(written: object) -> str | Exception:
    """What an agent wrote for one context, or what is wrong with it: all of it gets into the results."""
    try:
        if isinstance(written, Completion):
            _check_calls(written.calls)
            parts = written.token_ids, written.logprobs, written.finish_reason, written.calls
            return Completion(str(written), *parts)
        if isinstance(written, ModelError):
            _check_calls(written.calls)
            lookup({str(reason): reason for reason in ABORTS}, written.reason, "reason of a ModelError")
        elif isinstance(written, Exception):
            _drop_bad_calls(written)
        if isinstance(written, (str, Exception)):
            return written
        raise TypeError(f"act: wanted text, a Completion or an exception, got {type(written).__name__}")
    except MemoryError:
        raise
    except Exception as error:
        return error


def _drop_bad_calls(error: Exception) -> None:
    """Leave an error as it is, but for `calls` that are none of a model: they mean something else there."""
    try:
        _check_calls(getattr(error, "calls", ()))
    except MemoryError:
        raise
    except Exception:
        error.calls = ()  # type: ignore[attr-defined]


def _check_calls(calls: Sequence[Call]) -> None:
    """Refuse calls that can't be written to a file and read back."""
    for call in Completion("", calls=calls).calls:
        msgspec.json.decode(msgspec.json.encode(call), type=Call)
        if not all(isinstance(segment, Segment) for segment in call.segments):
            raise TypeError("segments of a call: wanted those of its prompt, got something else")


def _play(
    envs: SearchQAVectorEnv, written: Mapping[int, str | Exception], contexts: dict[int, Context]
) -> Iterator[tuple[int, Episode]]:
    """Play one round; refresh the contexts; yield (environment, episode) of those that ended."""
    actions: list[str | None] = [None] * envs.num_envs
    for i, text in written.items():
        if isinstance(text, Exception):
            calls = getattr(text, "calls", ())
            yield i, envs.abort(i, _reason(text), _told(text), calls)[4]["episode"]
        else:
            actions[i] = text
    if all(action is None for action in actions):
        return
    *_, infos = envs.step(actions)
    ended = infos.get("_episode", np.zeros(envs.num_envs, dtype=np.bool_))
    for i, action in enumerate(actions):
        if action is None:
            continue
        contexts[i] = Context(infos["segments"][i], infos["question_id"][i], contexts[i].seed)
        if ended[i]:
            yield i, infos["episode"][i]


def _reason(error: Exception) -> str:
    if isinstance(error, ModelError):
        return error.reason
    return "timeout" if isinstance(error, TimeoutError) else "agent_error"


def _told(error: Exception) -> str:
    """Its name and what it says, also if it can't say it or says what can't be written to a file.

    An error of the agent has the place in its code, as far as it was raised there.
    """
    said = "".join(traceback.format_exception_only(error)).strip().encode("utf-8", "replace").decode()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if _reason(error) != "agent_error" or not frames:
        return said
    return f"{said} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
