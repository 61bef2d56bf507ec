"""PPO: a critic and GAE across rounds (arXiv 1707.06347, 1506.02438); the memory term of MemPO on top."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from mempo_trainers import credit
from mempo_trainers.config import Config
from mempo_trainers.credit.normalise import whiten
from mempo_trainers.credit.result import Credit
from mempo_trainers.metrics import row
from mempo_trainers.policies.base import Policy, Rollouts
from mempo_trainers.run import Run, Watch, no_watch
from mempo_trainers.sample import Draw
from mempo_trainers.scores import needed, scored
from mempo_trainers.update import Critic, update


def ppo(policy: Policy, draw: Draw, config: Config, run: Run, watch: Watch = no_watch) -> None:
    """Train a policy with a critic; the arguments are those of `grpo`.

        A_k = whitened GAE + what the estimator gives beside the outcome (for `mempo`: A^mem on memory tokens)

    An estimator of one's own that returns plain advantages is added whole; the outcome, which GAE brings
    already, should be no part of them. Of a `Credit` all is added but its `outcome_N`.

    The critic learns GAE's own targets, and shares the optimiser step.
    """
    name = config.credit
    gae = credit.make("gae", lambda_round=config.lambda_round)
    beside = None if name == "gae" else credit.make(name, **config.credit_options)
    reference = policy.reference() if config.kl else None
    for step in run.steps(policy, config.steps, config.checkpoint_every):
        drawn = draw(step, 0, config.questions)
        rollouts = _valued(policy, scored(policy, drawn, needed(name, config.credit_options)))
        general = gae(rollouts.data)
        advantages = _whitened(rollouts, general)
        if beside is not None:
            advantages = _added(rollouts, advantages, beside(rollouts.data))
        critic = _critic(rollouts, general)
        told = update(policy, rollouts, advantages.advantages_BK, config, step, reference, critic)
        run.log(step, watch, **row(rollouts, advantages, config), **told)


@torch.no_grad()
def _valued(policy: Policy, rollouts: Rollouts) -> Rollouts:
    """The rollouts with the critic's values as they are now."""
    values_BK = np.zeros(rollouts.responses.tokens_BK.shape)
    for rows in policy.batches(rollouts.contexts, rollouts.responses):
        values_BK[rows] = policy.values(rollouts.contexts[rows], rollouts.responses.take(rows)).numpy()
    return msgspec.structs.replace(rollouts, data=msgspec.structs.replace(rollouts.data, values_BK=values_BK))


def _whitened(rollouts: Rollouts, general: Credit) -> Credit:
    """GAE with mean 0 and variance 1 over the tokens that the policy wrote."""
    mask_BK, out_BK = rollouts.data.mask_BK, np.zeros_like(general.advantages_BK)
    out_BK[mask_BK] = whiten(general.advantages_BK[mask_BK].astype(np.float64))
    return msgspec.structs.replace(general, advantages_BK=out_BK)


def _added(rollouts: Rollouts, general: Credit, beside: Credit) -> Credit:
    """What an estimator gives beside the outcome, on top of GAE; its diagnostics."""
    _, more_BK = beside.parts(rollouts.data)
    return msgspec.structs.replace(beside, advantages_BK=general.advantages_BK + more_BK)


def _critic(rollouts: Rollouts, general: Credit) -> Critic:
    assert rollouts.data.values_BK is not None
    old_BK = torch.from_numpy(rollouts.data.values_BK.astype(np.float32))
    return Critic(old_BK, old_BK + torch.from_numpy(general.advantages_BK))
