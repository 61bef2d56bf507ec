"""What the tests of the Hugging Face policy share: tiny policies, contexts, and log-probs made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from llm_help import chatting, needs_transformers, small_network
from mempo_trainers.credit.data import THINK, Trajectories
from mempo_trainers.policies.base import Policy, Responses, Rollouts
from mempo_trainers.sample import Draw
from mempo_trainers.tokens import Ragged, View, plain_responses

needs_transformers()

from mempo_agents.models.huggingface import around  # noqa: E402
from mempo_trainers.policies.huggingface import HuggingFacePolicy, PolicySettings  # noqa: E402

VOCABULARY = len(chatting())


def policy(family: str = "qwen2", config: dict[str, Any] | None = None, **settings: Any) -> HuggingFacePolicy:
    """A policy around a tiny network, the same one for the same family and config."""
    network = small_network(family, VOCABULARY, **(config or {}))
    return wrapped(network, **settings)


def wrapped(network: Any, scorer: Any = None, **settings: Any) -> HuggingFacePolicy:
    loaded = around(network, chatting(), name="tiny").loaded
    names = ("learning_rate", "max_grad_norm", "seed")
    learning = {"learning_rate": 1e-3} | {name: settings.pop(name) for name in names if name in settings}
    made = PolicySettings(model="tiny", **{"max_new": 12} | settings)
    return HuggingFacePolicy(loaded, made, scorer, **learning)


def texts(lengths: Sequence[int], seed: int = 0) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Random ids, any of the vocabulary."""
    chance = np.random.default_rng(seed)
    return [chance.integers(VOCABULARY, size=n) for n in lengths]


def contexts(lengths: Sequence[int], seed: int = 0) -> Ragged:
    return Ragged(tuple(texts(lengths, seed)))


def responses(lengths: Sequence[int], seed: int = 1) -> Responses:
    return plain_responses(texts(lengths, seed))


def rows_of(written: Responses) -> list[list[int]]:
    """The ids that were written in each context."""
    n_B = (written.roles_BK != 0).sum(1)
    return [row[:n].tolist() for row, n in zip(written.tokens_BK, n_B, strict=True)]


def alone(network: Any, context: Sequence[int], text: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies (K,) of one text by a pass of its own over all of it, with gradients."""
    ids = torch.tensor([[*context, *text]])
    logp_SV = network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].float().log_softmax(-1)
    logp_KV = logp_SV[len(context) - 1 : -1]
    return logp_KV.gather(-1, ids[0, len(context) :, None])[:, 0], -(logp_KV.exp() * logp_KV).sum(-1)


def told(policy: Any, seen: Ragged, written: Responses) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Log-probs (B, K) without gradients."""
    with torch.no_grad():
        return policy.logprobs(seen, written)[0].numpy()


def drawing(policy: HuggingFacePolicy, size: int = 4) -> Draw:
    """Rollouts of two rounds in contexts of one's own; the reward is the share of ids below 100.

    A round's "memory" is what it was shown and wrote, its history what it was shown, and the answer is always
    the same, so that the memory credit has something to say.
    """
    answer = np.array([100, 101])

    def views(texts: Sequence[Any]) -> Ragged:
        return Ragged(tuple(View(np.array(text), ((answer[:1], answer),)) for text in texts))

    def draw(step: int, attempt: int, questions: int) -> Rollouts:
        n = questions * size
        asked = contexts([3 + 2 * q for q in range(questions)], seed=step).rows
        rows = [np.append(asked[i // size], number) for i in range(n) for number in (1, 2)]
        seen = Ragged(tuple(rows))
        written = policy.act(seen, torch.Generator().manual_seed(1000 * step + attempt))
        made = rows_of(written)
        both = views([[*row, *ids] for row, ids in zip(rows, made, strict=True)])
        share_N = np.array([np.mean(np.array([*made[2 * i], *made[2 * i + 1]]) < 100) for i in range(n)])
        data = Trajectories(
            question_N=np.repeat(np.arange(questions), size),
            outcome_N=share_N,
            shaping_N=np.zeros(n),
            masked_N=np.zeros(n, bool),
            rollout_R=np.repeat(np.arange(n), 2),
            number_R=np.tile([1, 2], n),
            round_B=np.arange(2 * n),
            roles_BK=written.roles_BK,
            reward_R=np.repeat(share_N / 2, 2),
            logprobs_BK=written.logprobs_BK.astype(np.float64),
        )
        return Rollouts(data, seen, written, both, views(rows), both, views(rows[::2]), share_N > 0.5)

    return draw


def thought(ids: Sequence[Sequence[int]]) -> Responses:
    """Given ids as responses."""
    made = plain_responses([np.array(row) for row in ids])
    assert set(np.unique(made.roles_BK)) <= {0, THINK}
    return made


def gradients(policy: HuggingFacePolicy) -> dict[str, torch.Tensor]:
    """Those of all weights that learn; 0 where there is none."""
    return {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in weights(policy).items()
    }


def weights(policy: Policy) -> dict[str, Any]:
    found: dict[str, Any] = policy._weights  # type: ignore[attr-defined]
    return found
