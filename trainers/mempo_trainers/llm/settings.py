"""What a training of a language model is made of: settings in tables, from a TOML file, changed by name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from mempo_env.errors import ConfigError
from mempo_env.settings import Count, Settings, Whole
from mempo_env.types import Split
from mempo_trainers.config import Config, Option, read_options
from mempo_trainers.policies.huggingface.settings import PolicySettings
from mempo_trainers.run_settings import flat
from mempo_trainers.sft import SftConfig

T = TypeVar("T", bound=Settings)


class Task(Settings, frozen=True):
    """What is played.

    Attributes:
        dataset: "synthetic", or the folder of a prepared set of questions.
        objectives: Questions in one episode.
        agent: How the model is asked, by a name of `mempo_agents.table.AGENTS`: whose prompts, whose memory.
        sets: Sets of questions drawn from the training split; an episode asks one.
        held_out: Sets of questions of the other splits that an evaluation asks, each once.
        environment: Any other keyword arguments of the environment: max_rounds, top_k, reward, retriever ...
    """

    dataset: str = "synthetic"
    objectives: Count = 2
    agent: str = "mempo"
    sets: Annotated[int, Meta(ge=1, le=1_000_000)] = 2_000
    held_out: Count = 64
    environment: dict[str, Option] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if twice := self.environment.keys() & {"dataset", "objectives", "split"}:
            raise ConfigError(f"environment: wanted none of the task's own settings, got {min(twice)!r}")

    def env_kwargs(self, split: Split) -> dict[str, Any]:
        """Keyword arguments of the environment."""
        own = {"dataset": self.dataset, "objectives": self.objectives, "split": split}
        return {**self.environment, **own}

    def asked(self, split: Split) -> list[str]:
        """Sets of questions, joined by "+": draws from the training split, of others each question once.

        Raises:
            ConfigError: if the split has too few.
        """
        ids = [question.id for question in self.questions(split)]
        n, chance = self.objectives, np.random.default_rng(0)
        if split == "train":
            drawn = np.array([chance.choice(len(ids), n, replace=False) for _ in range(self.sets)])
        else:
            drawn = chance.permutation(len(ids))[: len(ids) // n * n].reshape(-1, n)[: self.held_out]
        return ["+".join(ids[i] for i in chosen) for chosen in drawn.tolist()]

    def fingerprint(self) -> str:
        """Of the questions of the training split, with texts and answers."""
        return str(self.questions("train").fingerprint)

    def questions(self, split: Split) -> Any:
        """Those of a split; a ConfigError where there are fewer than objectives."""
        import gymnasium as gym

        import mempo_env

        env: Any = gym.make(next(iter(mempo_env.ENVIRONMENTS)), **self.env_kwargs(split)).unwrapped
        return env.questions


class Sampler(Settings, frozen=True):
    """Who generates and who scores memories.

    Attributes:
        url: Address of an SGLang server that serves the policy's model from the same disk; "": in process.
        batch: Episodes that are generated at a time.
        wait: Seconds within which the server must be healthy: at the start, while calls are under way, and
            where one failed.
        spare: Episodes of a step, or of an evaluation, that may be played again where one failed by no fault
            of the policy.
        scorer: See `mempo_trainers.scoring.table.SCORERS`; "server" needs one.
    """

    url: str = ""
    batch: Count = 64
    wait: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    spare: Whole = 8
    scorer: Literal["prefix_tree", "naive", "server"] = "prefix_tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scorer == "server" and not self.url:
            raise ConfigError(
                "scorer: 'server' needs sampler.url, the server's address; wanted another scorer without one"
            )


class Setup(Settings, frozen=True):
    """A training by GRPO or PPO.

    Attributes:
        task: What is played.
        policy: The model that learns.
        sampler: Who generates.
        config: The algorithm.
        evaluate_every: Steps between evaluations on the dev split; 0: none but the last, on the test split.
    """

    policy: PolicySettings
    task: Task = Task()
    sampler: Sampler = Sampler()
    config: Config = Config(
        steps=100, learning_rate=1e-6, kl=1e-3, kl_kind="low_var_kl", checkpoint_every=10, sampler_gap=0.05
    )
    evaluate_every: Whole = 10


class SftSetup(Settings, frozen=True):
    """A training on what an expert wrote.

    Attributes:
        policy: The model that learns.
        task: What the expert, and then the policy, plays.
        expert: The agent that is imitated, with the scripted model behind it.
        examples: A file of chats, a line {"messages": [{"role", "content"}, ...]} each, whose last message is
            imitated, in place of an expert's; "": none.
        sft: The loop.
        evaluate_every: Steps between evaluations on the dev split; 0: none but the last, on the test split.
    """

    policy: PolicySettings
    task: Task = Task()
    expert: str = "mempo"
    examples: str = ""
    sft: SftConfig = SftConfig(steps=200, batch=16, learning_rate=2e-5)
    evaluate_every: Whole = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy.warmup_steps:
            raise ConfigError(
                "policy.warmup_steps: wanted 0, as sft has a schedule of its own (sft.learning_rate rises "
                f"over the first tenth of the steps), got {self.policy.warmup_steps}"
            )


def read_setup(kind: type[T], file: Path | None, changes: Sequence[str]) -> T:
    """Settings from a TOML file with a table for each part, and changes of single ones.

    Args:
        kind: `Setup` or `SftSetup`.
        file: TOML; None: only what is changed differs from the defaults.
        changes: NAME=VALUE each, as in "config.steps=3".

    Raises:
        ConfigError: if the file is none, or a name or value does not fit; names file and setting.
    """
    place = "--set" if file is None else str(file)
    settings = _defaults(kind)
    if file is not None:
        try:
            settings = _merged(settings, tomllib.loads(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            why = str(error).replace("Cannot overwrite a value", "a setting or table stands there twice")
            raise ConfigError(f"{file}: wanted settings in TOML that can be read: {why}") from None
    for name, value in read_options(changes).items():
        nested: Any = value
        for part in reversed(name.split(".")):
            nested = {part: nested}
        settings = _merged(settings, nested)
    try:
        _check_places(kind, settings)
        if not settings.get("policy"):
            raise ConfigError("policy.model: wanted the name or the folder of a model, got none")
        return _made(kind, settings)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{place}: {error}") from None


def _check_places(kind: type[Settings], settings: Mapping[str, Any]) -> None:
    """A ConfigError for a setting that stands in another table than its own, by its whole name."""
    parts = _parts(kind)
    tables = {"": kind, **{f"{name}.": part for name, part in parts.items()}}
    for whole in flat(settings):
        table, dot, rest = whole.partition(".")
        fields, name = tables.get(f"{table}{dot}" if dot else ""), rest.partition(".")[0] if dot else whole
        if fields is None or name not in fields.__struct_fields__:
            there = [f"{t}{name}" for t, held in tables.items() if name in held.__struct_fields__]
            if there:
                raise ConfigError(f"{whole}: no such setting; did you mean {there[0]}?")


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The first mapping with what the second says in its place, also in the mappings that it holds."""
    both = dict(one)
    for name, value in other.items():
        inner = both.get(name)
        nested = isinstance(value, Mapping) and isinstance(inner, Mapping)
        both[name] = _merged(inner, value) if nested else value  # type: ignore[arg-type]
    return both


def _made(kind: type[T], settings: Mapping[str, Any]) -> T:
    """A struct of settings with its parts, each made by its own class, whose errors say most."""
    parts = dict(settings)
    for name, part in _parts(kind).items():
        if isinstance(parts.get(name), Mapping):
            try:
                parts[name] = part(**parts[name])
            except (ConfigError, TypeError) as error:
                raise ConfigError(f"[{name}] {error}") from None
    return kind(**parts)


def _defaults(kind: type[Settings]) -> dict[str, Any]:
    """What holds where nothing is said; of a part without a default nothing."""
    held = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return {
        name: msgspec.structs.asdict(value) if isinstance(value, Settings) else value
        for name, value in held.items()
        if value is not msgspec.NODEFAULT
    }


def _parts(kind: type[Settings]) -> dict[str, Any]:
    found = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return {name: type for name, type in found.items() if isinstance(type, msgspec.StructMeta)}
