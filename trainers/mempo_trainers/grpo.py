"""GRPO: advantages from groups of rollouts of one question, no critic (DeepSeekMath, arXiv 2402.03300)."""

from __future__ import annotations

from mempo_trainers import credit
from mempo_trainers.config import Config
from mempo_trainers.metrics import row
from mempo_trainers.policies.base import Policy
from mempo_trainers.run import Run, Watch, no_watch
from mempo_trainers.sample import Draw, sample
from mempo_trainers.update import update


def grpo(policy: Policy, draw: Draw, config: Config, run: Run, watch: Watch = no_watch) -> None:
    """Train a policy, whatever it is: a pointer network, a table, a language model.

    Args:
        policy: Learns in place.
        draw: Gives rollouts, played by the policy as it is then.
        config: Settings; `config.credit` names the estimator.
        run: Takes the metrics and the checkpoints, and knows where to go on.
        watch: Tells more of a step when it is done.
    """
    estimate = credit.make(config.credit, **config.credit_options)
    reference = policy.reference() if config.kl else None
    for step in run.steps(policy, config.steps, config.checkpoint_every):
        rollouts, generated = sample(policy, draw, estimate, config, step)
        advantages = estimate(rollouts.data)
        told = update(policy, rollouts, advantages.advantages_BK, config, step, reference)
        run.log(step, watch, **{**row(rollouts, advantages, config), **generated}, **told)
