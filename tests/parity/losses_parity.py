"""Our losses and verl's, TRL's: values, gradients and shares of clipped tokens on the same random batch.

A rollout has one segment here, for a sequence of theirs is a row. All in double precision.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from table import Row, row
from torch import Tensor
from trl import GRPOTrainer
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from mempo_trainers.losses import AGGREGATIONS, KLS, kl, kl_loss, policy_loss, token_weights, value_loss

B, K, MOST = 16, 24, 32
CLIP = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
NORM = "seq-mean-token-sum-norm"


def rows() -> list[Row]:
    """All comparisons of losses."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    batch = random_batch()
    made = [
        *verl_policy(batch),
        *verl_micro_batches(batch),
        *verl_value(batch),
        *verl_kl(batch),
        *trl_rows(batch),
    ]
    torch.set_default_dtype(torch.float32)
    return made


def random_batch(masked_rows: int = 1) -> SimpleNamespace:
    """A batch in which both clips and the dual clip bind; the last rows are masked entirely."""
    new = torch.randn(B, K) - 2
    lengths = torch.randint(1, K + 1, (B, 1))
    lengths[B - masked_rows :] = 0
    batch = SimpleNamespace(
        new=new,
        old=new + 0.5 * torch.randn_like(new),
        ref=new + 0.5 * torch.randn_like(new),
        advantages=torch.randn_like(new),
        sampler_weight=torch.rand_like(new) * 2,
        values=torch.randn_like(new),
        returns=torch.randn_like(new),
        mask=(torch.arange(K) < lengths).double(),
    )
    batch.old[:3, :2], batch.advantages[:3, :2] = new[:3, :2] - 3.0, -1.0
    return batch


def weights(mask: Tensor, mode: str) -> Tensor:
    """Our weights, each row a rollout."""
    return token_weights(mask, torch.arange(len(mask)), mode, MOST if mode == NORM else None)


def with_gradient(loss_of: Any, at: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Value, gradient and whatever else the loss returns."""
    leaf = at.clone().requires_grad_()
    loss, *rest = loss_of(leaf)
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad, rest


def actor(**batch_info: Any) -> ActorConfig:
    """The settings of verl that are ours; `batch_info` is what it hands to its aggregation."""
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=CLIP["clip_low"],
        clip_ratio_high=CLIP["clip_high"],
        clip_ratio_c=CLIP["dual_clip"],
        global_batch_info=batch_info,
    )


def verl_policy(b: SimpleNamespace) -> list[Row]:
    """The vanilla loss in its five aggregations, its shares, and a weight for the sampler."""
    made = []
    for mode in AGGREGATIONS:
        info = {"loss_scale_factor": MOST} if mode == NORM else {}
        ours = with_gradient(
            lambda x, mode=mode: policy_loss(x, b.old, b.advantages, weights(b.mask, mode), **CLIP), b.new
        )
        theirs = with_gradient(
            lambda x, mode=mode, info=info: core_algos.compute_policy_loss_vanilla(
                b.old, x, b.advantages, b.mask, mode, actor(**info)
            ),
            b.new,
        )
        made.append(row(f"verl vanilla loss, {mode}: value, gradient", ours[:2], theirs[:2]))
    stats, metrics = ours[2][0], theirs[2][0]
    shares = [stats.clip_share, stats.dual_clip_share]
    verl_shares = [metrics["actor/pg_clipfrac"], metrics["actor/pg_clipfrac_lower"]]
    made.append(row("verl shares clipped, dual-clipped", shares, verl_shares))
    sampler = b.old - b.sampler_weight.log()
    ours = with_gradient(
        lambda x: policy_loss(
            x, b.old, b.advantages, weights(b.mask, "token-mean"), **CLIP, sampler_logprobs_BK=sampler
        ),
        b.new,
    )
    theirs = with_gradient(
        lambda x: core_algos.compute_policy_loss_vanilla(
            b.old, x, b.advantages, b.mask, "token-mean", actor(), b.sampler_weight
        ),
        b.new,
    )
    return [*made, row("verl vanilla loss, sampler's weight: value, gradient", ours[:2], theirs[:2])]


def verl_micro_batches(b: SimpleNamespace) -> list[Row]:
    """Micro-batches of four rows, with the batch's denominators handed to verl in its own way."""
    made = []
    for mode in AGGREGATIONS:
        whole = weights(b.mask, mode)
        info = {"batch_num_tokens": b.mask.sum(), "global_batch_size": (b.mask.sum(1) > 0).sum()}
        info |= {"loss_scale_factor": MOST} if mode == NORM else {}
        mine, verls = b.new.clone().requires_grad_(), b.new.clone().requires_grad_()
        for part in torch.arange(B).split(4):
            policy_loss(mine[part], b.old[part], b.advantages[part], whole[part], **CLIP)[0].backward()
            args = (b.old[part], verls[part], b.advantages[part], b.mask[part], mode, actor(**info))
            core_algos.compute_policy_loss_vanilla(*args)[0].backward()
        made.append(row(f"verl, micro-batches of 4, {mode}: gradient", [mine.grad], [verls.grad]))
    return made


def verl_value(b: SimpleNamespace) -> list[Row]:
    """The clipped value loss."""
    made = []
    for mode in AGGREGATIONS:
        factor = MOST if mode == NORM else None
        start = b.values + 0.4 * torch.sin(torch.arange(B * K).double()).reshape(B, K)
        ours = with_gradient(
            lambda x, mode=mode: (value_loss(x, b.values, b.returns, weights(b.mask, mode), clip=0.2),), start
        )
        theirs = with_gradient(
            lambda x, mode=mode, factor=factor: core_algos.compute_value_loss(
                x, b.returns, b.values, b.mask, 0.2, mode, loss_scale_factor=factor
            ),
            start,
        )
        made.append(row(f"verl value loss, {mode}: value, gradient", ours[:2], theirs[:2]))
    return made


def verl_kl(b: SimpleNamespace) -> list[Row]:
    """Estimators of KL, also far from the reference, where verl's k3 is clamped."""
    far = b.ref + torch.linspace(-30, 30, K)
    made = []
    for kind in KLS:
        named = "verl k3 is our low_var_kl" if kind == "low_var_kl" else f"verl {kind}"
        if kind == "k3":
            continue
        ours = with_gradient(lambda x, kind=kind: (kl(x, far, kind).sum(), kl(x, far, kind).detach()), b.new)
        theirs = with_gradient(
            lambda x, kind=kind: (
                core_algos.kl_penalty(x, far, kind).sum(),
                core_algos.kl_penalty(x, far, kind).detach(),
            ),
            b.new,
        )
        made.append(row(f"{named}: values, gradient", [ours[2][0], ours[1]], [theirs[2][0], theirs[1]]))
    near, clamped = kl(b.new, far, "k3"), core_algos.kl_penalty(b.new, far, "k3")
    return [
        *made,
        row("verl k3 and our k3, far from the reference", [near], [clamped], "verl clamps k3 to 10"),
    ]


def trl_loss(b: SimpleNamespace, loss_type: str, beta: float = 0.0, **options: Any) -> Any:
    """The loss of TRL's trainer itself, run on a stand-in that has only what the loss reads."""

    def loss_of(logprobs: Tensor) -> tuple[Tensor]:
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(b.new), None),
            args=SimpleNamespace(
                delta=options.get("delta"), use_bias_correction_kl=False, steps_per_generation=1
            ),
            accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x),
            model=SimpleNamespace(training=True),
            loss_type=loss_type,
            beta=beta,
            epsilon_low=CLIP["clip_low"],
            epsilon_high=CLIP["clip_high"],
            max_completion_length=MOST,
            current_gradient_accumulation_steps=1,
            importance_sampling_level="token",
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=None,
            aux_loss_enabled=False,
            use_vllm="sampler_weight" in options,
            vllm_importance_sampling_correction=True,
            _entropy_bonus_enabled=False,
            _metrics={"train": defaultdict(list)},
        )
        ids = torch.zeros(B, K, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1],
            "completion_ids": ids,
            "completion_mask": b.mask,
            "advantages": b.advantages,
            "old_per_token_logps": b.old,
            "ref_per_token_logps": b.ref,
            "num_items_in_batch": b.mask.sum(),
            "importance_sampling_ratio": options.get("sampler_weight"),
        }
        return (GRPOTrainer._compute_loss(trainer, None, inputs),)

    return loss_of


TRL_TYPES = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "luspo": "seq-mean-token-sum",
    "dr_grpo": NORM,
}
DENOMINATOR = "TRL counts it in the denominator"


def trl_rows(b: SimpleNamespace) -> list[Row]:
    """TRL's GRPO loss where the conventions meet, and where they do not."""
    full = random_batch(masked_rows=0)
    made = []
    for loss_type, mode in TRL_TYPES.items():
        name = f"TRL {loss_type} is our {mode}"
        for batch, differs in ((full, ""), (b, DENOMINATOR if mode.startswith("seq") else "")):
            if batch is b and not differs:
                continue
            ours = with_gradient(
                lambda x, b=batch, mode=mode: policy_loss(
                    x, b.old, b.advantages, weights(b.mask, mode), clip_low=0.2, clip_high=0.28
                ),
                batch.new,
            )
            theirs = with_gradient(trl_loss(batch, loss_type), batch.new)
            where = ", a masked rollout" if differs else ""
            made.append(row(f"{name}{where}: value, gradient", ours[:2], theirs[:2], differs))
    return [*made, *trl_options(full)]


def trl_options(b: SimpleNamespace) -> list[Row]:
    """Its two-sided clip, its KL term, and its weight for the sampler."""
    mean = weights(b.mask, "token-mean")
    ours = with_gradient(lambda x: policy_loss(x, b.old, b.advantages, mean, **CLIP), b.new)
    theirs = with_gradient(trl_loss(b, "bnpo", delta=3.0), b.new)
    made = [row("TRL delta is our dual clip: value, gradient", ours[:2], theirs[:2])]

    def with_kl(kind: str) -> Any:
        def loss_of(x: Tensor) -> tuple[Tensor]:
            loss, _ = policy_loss(x, b.old, b.advantages, mean, clip_low=0.2, clip_high=0.28)
            return (loss + 0.1 * kl_loss(x, b.ref, mean, kind),)

        return loss_of

    theirs = with_gradient(trl_loss(b, "bnpo", beta=0.1), b.new)
    ours = with_gradient(with_kl("k3"), b.new)
    made.append(row("TRL beta is our k3: value, gradient", ours[:2], theirs[:2]))
    b.ref[0, 0] = b.new[0, 0] + 3.0
    b.mask[0, 0] = 1.0
    theirs, ours = (
        with_gradient(trl_loss(b, "bnpo", beta=0.1), b.new),
        with_gradient(with_kl("low_var_kl"), b.new),
    )
    why = "TRL does not clamp k3"
    made.append(row("TRL beta and our low_var_kl, a token far away", ours[:2], theirs[:2], why))
    sampler = b.old - b.sampler_weight.log()
    ours = with_gradient(
        lambda x: policy_loss(
            x, b.old, b.advantages, mean, clip_low=0.2, clip_high=0.28, sampler_logprobs_BK=sampler
        ),
        b.new,
    )
    theirs = with_gradient(trl_loss(b, "bnpo", sampler_weight=b.sampler_weight), b.new)
    return [*made, row("TRL sampler's weight: value, gradient", ours[:2], theirs[:2])]
