"""Stable-Baselines3's PPO on the array face, as it comes: the baseline that knows nothing of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, SupportsFloat

import gymnasium as gym
import typer

from mempo_env.errors import ConfigError, MissingExtra

ID = "MemPO-SearchQA-Toy-v0"
ENVIRONMENTS, ROUNDS = 16, 64
"""Environments that play at once, and the rounds that each plays in a step."""

PPO_SETTINGS: dict[str, Any] = {"learning_rate": 3e-3, "batch_size": 256, "n_epochs": 10, "gamma": 1.0}
"""What is not Stable-Baselines3's own default. Nothing is discounted: a round is no delay, it is work."""

SEEDS = 2**32
"""Stable-Baselines3 seeds numpy's global generator, which takes no more."""

EPISODES = 512
"""Episodes of the test split that the trained policy is judged by."""


class RoundsAreTerminal(gym.Wrapper[Any, Any, Any, Any]):
    """Says "terminated" where the environment says "truncated", and hands on no more than PPO reads.

    Truncation tells a learner that the episode would have gone on, so Stable-Baselines3 adds the critic's
    value of the last observation to the last reward. But `max_rounds` is a rule of the task and the rounds
    left are observed: nothing comes after the last one, its value is 0, and whoever adds a critic's guess
    pays the agent for not answering.

    `info` holds only `is_success`, for Stable-Baselines3 copies it deeply in every round.
    """

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play one round."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        success = terminated and info["score"].em_all == 1
        return observation, reward, terminated or truncated, False, {"is_success": success}


class Weights:
    """What a checkpoint keeps of a `stable_baselines3.PPO`: the weights and the optimiser."""

    def __init__(self, model: Any) -> None:
        self.policy, self._model = model.policy, model

    @property
    def updates(self) -> int:
        """Passes over rollouts so far."""
        return int(self._model._n_updates)

    def state_dict(self) -> dict[str, Any]:
        """All that decides what is learned next."""
        return {"weights": self.policy.state_dict(), "optimiser": self.policy.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.policy.load_state_dict(state["weights"])
        self.policy.optimizer.load_state_dict(state["optimiser"])


def sb3(
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished one is gone on with.")],
    objectives: Annotated[int, typer.Option(help="Questions in an episode.")] = 1,
    steps: Annotated[int, typer.Option(help=f"Updates, each on {ENVIRONMENTS * ROUNDS:,} rounds.")] = 32,
    seed: Annotated[int, typer.Option(help="Of everything drawn at random.")] = 0,
) -> None:
    """Train Stable-Baselines3's PPO on the array face: a baseline; the defaults take half a minute."""
    result = train(out, objectives=objectives, steps=steps, seed=seed)
    typer.echo(
        f"{out}: {steps * ENVIRONMENTS * ROUNDS:,} rounds; success on {result['episodes']:,} new episodes of "
        f"the test split: {result['success']:.3f}"
    )


def train(out: Path, *, objectives: int = 1, steps: int = 32, seed: int = 0) -> dict[str, float]:
    """Train, or go on where a killed run stopped; returns what `evaluate` says, which is written to the run.

    A step starts its episodes anew and draws everything from (seed, step), so a run that goes on equals one
    that was never stopped. Like all of Stable-Baselines3, it seeds the global generators of Python, numpy
    and torch.

    Args:
        out: Folder of the run: settings.json, metrics.jsonl (a row a step: the rollouts that ended in it, the
            mean of their success, reward and rounds, seconds), checkpoint.safetensors, result.json.
        objectives: Questions in an episode.
        steps: Updates.
        seed: Of everything drawn at random.

    Raises:
        MissingExtra: without stable-baselines3.
        ConfigError: for no steps, a seed that numpy's global generator does not take, or more objectives than
            there are questions in a split.
        ResultsError: if the folder holds another run.
    """
    import msgspec
    import numpy as np

    from mempo_env.arrays.vector import SearchQAArrayVectorEnv
    from mempo_env.files import atomic_file
    from mempo_trainers.run import Run
    from mempo_trainers.threads import one_thread

    if steps < 1:
        raise ConfigError(f"steps: wanted at least 1, got {steps}")
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"seed: wanted 0 to {SEEDS - 1}, got {seed}")
    SearchQAArrayVectorEnv(1, objectives=objectives, split="test")  # refuses more than can be tested
    sizes = {"environments": ENVIRONMENTS, "rounds": ROUNDS}
    config = {"algo": "sb3-ppo", "seed": seed, "steps": steps, **sizes, **PPO_SETTINGS}
    with one_thread():
        model = make_model(objectives, seed)
        with Run(out, {"task": {"objectives": objectives}, "config": config}) as run:
            for step in run.steps(Weights(model), steps, every=1):  # type: ignore[arg-type]  # all a run needs
                model.set_random_seed(int(np.random.default_rng([seed, step]).integers(1 << 31)))
                model.learn(ENVIRONMENTS * ROUNDS)
                run.log(step, **_ended(model))
            result = evaluate(model, objectives, seed)
            with atomic_file(out / "result.json") as file:
                file.write(msgspec.json.format(msgspec.json.encode(result)))
    return result


def make_model(objectives: int, seed: int) -> Any:
    """An untrained `stable_baselines3.PPO` on environments of the training split."""
    try:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.logger import Logger
    except ImportError:
        raise MissingExtra("stable-baselines3", "sb3") from None
    import mempo_env  # noqa: F401  (registers the environment)

    def make() -> gym.Env[Any, Any]:
        return RoundsAreTerminal(gym.make(ID, objectives=objectives))

    envs = make_vec_env(make, n_envs=ENVIRONMENTS, seed=seed)
    many = ENVIRONMENTS * ROUNDS
    model = PPO(
        "MlpPolicy", envs, seed=seed, n_steps=ROUNDS, device="cpu", stats_window_size=many, **PPO_SETTINGS
    )
    model.set_logger(Logger(None, []))  # its own makes a folder among the temporary ones in every step
    return model


def evaluate(model: Any, objectives: int, seed: int, episodes: int = EPISODES) -> dict[str, float]:
    """Play new episodes of the test split, always the likeliest choice; success is all exactly right."""
    import numpy as np

    from mempo_env.arrays.vector import SearchQAArrayVectorEnv

    envs = SearchQAArrayVectorEnv(episodes, objectives=objectives, split="test")
    observation, _ = envs.reset(seed=seed)
    ended = np.zeros(episodes, bool)
    while not ended.all():
        action, _ = model.predict(observation, deterministic=True)
        observation, _, terminated, truncated, infos = envs.step(action)
        ended = terminated | truncated
    return {"success": float(infos["success"].mean()), "em": float(infos["em"].mean()), "episodes": episodes}


def _ended(model: Any) -> dict[str, float]:
    """What Stable-Baselines3 has noted of the episodes that ended in this step."""
    import numpy as np

    episodes = list(model.ep_info_buffer)
    return {
        "rollouts": len(episodes),
        "reward": float(np.mean([episode["r"] for episode in episodes])),
        "success": float(np.mean(model.ep_success_buffer)),
        "rounds": float(np.mean([episode["l"] for episode in episodes])),
    }
