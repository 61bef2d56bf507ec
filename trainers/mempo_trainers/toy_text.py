"""The toy task in text: questions about places, asked of a small language model that has watched an expert.

The mayor of a town, the capital of a region ...: a search for each, one passage a search, and a context that
shows the last step and the memory. So what the first search has shown must be in the memory when all are
answered. Names, and the words in them, are new in the test split.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from mempo_agents.table import make_agent
from mempo_env.errors import ConfigError, ResultsError
from mempo_env.progress import progress
from mempo_env.questions.world import WorldSpec, synthetic
from mempo_env.rewards import preset
from mempo_env.settings import Count, Settings, Share
from mempo_env.types import Question, Split
from mempo_trainers.config import Config
from mempo_trainers.policies.tiny_lm import Shape, TinyLM, learn, lines
from mempo_trainers.run import Run, load
from mempo_trainers.run_files import SETTINGS, conclude, read_settings
from mempo_trainers.sft import SftConfig, sft, shown, tokenised
from mempo_trainers.text import Player, check_enough, drawing, numbered, play, players
from mempo_trainers.threads import one_thread
from mempo_trainers.toy import LOOPS

EXPERT = "mempo"
CONFIG = Config(steps=30, questions=16, learning_rate=3e-4, checkpoint_every=10)
"""What the loops do by default, for this task."""

WARM, POLICY = "warm", "policy"
"""The folder of the warm start in that of a run, and in it that of the policy."""


class ToyText(Settings, frozen=True):
    """The task and the policy of a run on the text face; see `SearchQAEnv` for what is not said here.

    Attributes:
        policy: "tiny_lm".
        objectives: Questions in one episode.
        max_rounds: None: two more than there are questions.
        retriever_noise: Probability that a search shows a random passage.
        reward: Name of a preset in `mempo_env.rewards.PRESETS`.
        world: Where the questions are from.
        episodes: Sets of questions drawn from the training split: the expert answers each once, then the
            policy is asked them.
        warm: The supervised training on what the expert wrote.
        width: Of the network, a multiple of twice the heads,
        layers: its layers,
        heads: and its heads of attention.
        max_new: Tokens that the policy may write in a round.
    """

    policy: Literal["tiny_lm"] = "tiny_lm"
    objectives: Count = 2
    max_rounds: Count | None = None
    retriever_noise: Share = 0.0
    reward: str = "em_all"
    world: WorldSpec = WorldSpec(articles=20_000, questions=200_000)
    episodes: Count = 4_000
    warm: SftConfig = SftConfig(steps=150)
    width: Count = 96
    layers: Count = 2
    heads: Count = 4
    max_new: Count = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        preset(self.reward)
        self.shape(vocabulary=1)
        if self.max_rounds is not None and self.max_rounds <= self.objectives:
            raise ConfigError(
                f"max_rounds: wanted at least {self.objectives + 1}, a search for each question and then the "
                f"answer, got {self.max_rounds}"
            )

    def shape(self, vocabulary: int) -> Shape:
        """The network, for so many tokens."""
        return Shape(vocabulary, self.width, self.layers, self.heads)

    def begun(self, seed: int) -> ToyText:
        """The same with this seed for the warm start."""
        return msgspec.structs.replace(self, warm=msgspec.structs.replace(self.warm, seed=seed))

    def environment(self, split: Split) -> dict[str, Any]:
        """Keyword arguments of the environment."""
        return {
            "dataset": synthetic(self.world),
            "split": split,
            "objectives": self.objectives,
            "top_k": 1,
            "max_rounds": self.max_rounds or self.objectives + 2,
            "retriever_noise": self.retriever_noise,
            "reward": self.reward,
            "system_prompt": "",
            "hint": False,
        }

    def asked(self, split: Split) -> list[str]:
        """Sets of questions, joined by "+": of the test split every question once, else `episodes` draws.

        Raises:
            ConfigError: if a split has too few.
        """
        ids = [question.id for question in synthetic(self.world).split(split) if askable(question)]
        n, chance = self.objectives, np.random.default_rng(0)
        if n > len(ids):
            raise ConfigError(
                f"objectives: wanted at most the {len(ids):,} questions about places of {split!r}, got {n:,}"
            )
        if split == "test":
            sets = chance.permutation(len(ids))[: len(ids) // n * n].reshape(-1, n)
        else:
            sets = np.array([chance.choice(len(ids), n, replace=False) for _ in range(self.episodes)])
        return ["+".join(ids[i] for i in chosen) for chosen in sets.tolist()]


def askable(question: Question) -> bool:
    """Whether a question is about places alone, which have names of one word and short articles."""
    places = all(" " not in evidence.title for evidence in question.evidence)
    return question.kind == "bridge" and question.hops == 1 and places


def warm_start(task: ToyText, out: Path) -> Path:
    """The folder of a policy that has imitated the expert; made once, gone on with where it was killed."""
    made = out / POLICY
    with Run(out, {"task": msgspec.to_builtins(task)}) as run:
        if not made.exists():
            rounds = shown(make_agent(EXPERT), task.asked("train"), task.environment("train"))
            tokenizer = learn([f"{lines(segments)}{text}" for segments, text in rounds])
            policy = TinyLM(
                tokenizer,
                task.shape(len(tokenizer)),
                learning_rate=task.warm.learning_rate,
                seed=task.warm.seed,
                max_new=task.max_new,
            )
            sft(policy, tokenised(rounds, policy), task.warm, run)
            policy.save(made)
    return made


def train(
    task: ToyText, config: Config, out: Path, board: bool = True, track: Sequence[str] = ()
) -> dict[str, float]:
    """Warm start and training, or what is left of them; returns and writes what `evaluate` says.

    The warm start has a folder of its own in that of the run, with metrics and checkpoints of its own.
    """
    task.asked("test")  # has fewer questions than the training split; refused before anything is trained
    pool = task.asked("train")
    check_enough(numbered(pool), config.questions)
    settings = msgspec.to_builtins({"task": task, "config": config})
    with one_thread(), Run(out, settings, board, out / WARM / POLICY, track) as run:
        warm_start(task, out / WARM)
        policy = started(task, config, out)
        warm = copy.deepcopy(policy)
        environment = task.environment("train")
        draw = drawing(players(policy), policy.tokenizer, pool, environment, config.rollouts, config.seed)
        LOOPS[config.algo](policy, draw, config, run)
        result = evaluate(task, policy, warm, config.seed)
        conclude(out, result)
    return result


def started(task: ToyText, config: Config, out: Path) -> TinyLM:
    """The policy of a run after its warm start."""
    return TinyLM.load(
        out / WARM / POLICY,
        learning_rate=config.learning_rate,
        max_grad_norm=config.max_grad_norm,
        max_new=task.max_new,
    )


def tested(task: ToyText, policy: TinyLM, seed: int) -> dict[str, Sequence[float]]:
    """EM, and whether all were right, of each episode of the test split, as the policy samples them."""
    player = Player(policy, torch.Generator().manual_seed(seed))
    played = play(player, task.asked("test"), task.environment("test"), seed)
    return {episode.question_id: (episode.score.em, episode.score.em_all) for episode in played}


def evaluate(task: ToyText, policy: TinyLM, warm: TinyLM, seed: int) -> dict[str, float]:
    """EM and success on the test split, those of the warm start, the gain in EM and its standard error."""
    scores = []
    with progress("evaluation of the policy and of its warm start", 2, unit="policies") as advance:
        for each in (policy, warm):
            scores.append(_scores(tested(task, each, seed)))
            advance(1)
    after_N2, before_N2 = scores
    gain_N = after_N2[:, 0] - before_N2[:, 0]
    (em, success), (warm_em, warm_success) = after_N2.mean(0).tolist(), before_N2.mean(0).tolist()
    return {
        "em": em,
        "success": success,
        "warm_em": warm_em,
        "warm_success": warm_success,
        "gain": float(gain_N.mean()),
        "gain_error": float(gain_N.std(ddof=1)) / math.sqrt(len(gain_N)) if len(gain_N) > 1 else math.nan,
        "episodes": len(gain_N),
    }


def told(result: Mapping[str, float]) -> str:
    """What `evaluate` found, in words."""
    return (
        f"EM on {result['episodes']:,} episodes of the test split {result['em']:.3f}, over the warm start "
        f"{result['gain']:+.3f} (standard error {result['gain_error']:.3f}); all right in "
        f"{result['success']:.3f}, after the warm start in {result['warm_success']:.3f}"
    )


def _scores(tested: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    return np.array(list(tested.values()), np.float64)


def restore(out: Path) -> tuple[ToyText, Config, TinyLM]:
    """The task, the settings and the trained policy of a run."""
    settings = read_settings(out)
    try:
        task, config = msgspec.convert(settings["task"], ToyText), msgspec.convert(settings["config"], Config)
    except (KeyError, msgspec.ValidationError) as error:
        raise ResultsError(f"{out / SETTINGS}: wanted the settings of a run of tiny_lm: {error}") from None
    policy = started(task, config, out)
    load(out, policy, out / WARM / POLICY)
    return task, config, policy
