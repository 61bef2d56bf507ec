"""The policy: it writes, tells log-probs, scores answers and learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from mempo_agents.models.base import ModelOverflow, Sampling
from mempo_agents.models.chat import decode
from mempo_agents.models.decoding import Sampled, Task, sample
from mempo_agents.models.huggingface import open_huggingface
from mempo_agents.models.network import Loaded, Network
from mempo_agents.rounds import ENDS
from mempo_env.errors import ConfigError
from mempo_env.protocol import parse
from mempo_env.types import FinishReason
from mempo_trainers.credit.data import Floats
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.huggingface.adapter import adapted, check_new, checkpointed, frozen
from mempo_trainers.policies.huggingface.folder import save_folder
from mempo_trainers.policies.huggingface.reading import Reader
from mempo_trainers.policies.huggingface.settings import PolicySettings
from mempo_trainers.policies.huggingface.tokenizer import ChatTokenizer
from mempo_trainers.policies.views import score_once
from mempo_trainers.scoring.base import Asked, Scorer
from mempo_trainers.scoring.naive import Naive
from mempo_trainers.scoring.networks import rope_changes
from mempo_trainers.tokens import Ids, Ragged, token_roles

OpenScorer = Callable[[Network], Scorer]
"""Makes the scorer of a network, adapters included."""

SAMPLED_TOKENS = 4
"""Times `batch_tokens` that are sampled at once: nothing is kept for a backward pass."""


def open_policy(
    settings: PolicySettings, scorer: OpenScorer | None = None, **learning: Any
) -> HuggingFacePolicy:
    """Load a model to train.

    Args:
        settings: Which, and how.
        scorer: How memories are scored; None: each answer in a text of its own.
        learning: Keyword arguments of the class: learning_rate, max_grad_norm, seed.

    Raises:
        MissingExtra: without transformers, or, for adapters, peft.
        ConfigError: if there is no such model or device, or its tokenizer is of an unknown kind.
    """
    dtype = settings.dtype if settings.lora_rank else "float32"
    model = open_huggingface(settings.model, dtype=dtype, device=settings.device)
    return HuggingFacePolicy(model.loaded, settings, scorer, **learning)


class HuggingFacePolicy:
    """A causal language model of transformers behind the protocol of policies.

    Contexts are `Ragged` arrays of token ids, views those of `View`. Log-probs are at temperature 1 over all
    tokens, and so it samples. Dropout is off in all passes.

    Args:
        loaded: The model; its network is changed in place.
        settings: How it is held and learns.
        scorer: See `open_policy`.
        learning_rate: Of AdamW.
        max_grad_norm: Gradients are clipped to this norm.
        seed: Of the first weights of adapters.

    Attributes:
        loaded: The model as it is now, adapters included, for engines that share its weights.
        began: A digest of the model that it began with; None where nobody knows.
        reader: Reads with it; `reader.mode()` is how its network is to be run.
        scorer: Scores memories.
        tokenizer: Of its ids.
        optimizer: What `update` steps.
    """

    def __init__(
        self,
        loaded: Loaded,
        settings: PolicySettings,
        scorer: OpenScorer | None = None,
        *,
        learning_rate: float = 1e-6,
        max_grad_norm: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.loaded, self.settings, network = loaded, settings, loaded.network
        self.began, loaded.contents = loaded.contents, None  # its weights will change
        self.tokenizer, self.max_new = ChatTokenizer(loaded.tokenizer), settings.max_new
        self.max_grad_norm = max_grad_norm
        if settings.attention != "auto":
            _attend(network, settings.attention)
        self._adapter: Any = None
        if settings.lora_rank:
            self._adapter = adapted(network, settings.lora_rank, settings.lora_alpha, seed)
        if settings.gradient_checkpointing:
            checkpointed(network)
        self.value = nn.Linear(network.get_output_embeddings().weight.shape[1], 1, device=network.device)
        for weight in self.value.parameters():
            nn.init.zeros_(weight)
        self._weights = _learning(network, self.value)
        self.optimizer = _optimizer(self._weights.values(), learning_rate, settings.weight_decay)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda done: min(1.0, (done + 1) / max(1, settings.warmup_steps))
        )
        self.reader = Reader(
            network=network,
            batch_tokens=0 if rope_changes(network) else settings.batch_tokens,
            window=loaded.window,
            bfloat16=settings.dtype == "bfloat16",
        )
        self.scorer = Naive(network, settings.batch_tokens) if scorer is None else scorer(network)

    # --- The protocol ---------------------------------------------------------------------------------------

    def act(self, contexts: Ragged, generator: torch.Generator) -> Responses:
        """Sample until the end tag of an action, the end of a message, or `max_new` tokens.

        Each context has random numbers of its own, by its place among the contexts.

        Raises:
            ModelOverflow: if a context does not leave room for `max_new` tokens in the model's window.
        """
        lengths = [len(context) + self.max_new for context in contexts]
        if self.loaded.window is not None and max(lengths, default=0) > self.loaded.window:
            raise ModelOverflow(
                f"wanted contexts and max_new {self.max_new:,} within the {self.loaded.window:,} tokens of "
                f"the model's window, got {max(lengths):,}: show less, lower max_new, or use a longer window"
            )
        seeds = torch.randint(1 << 31, (len(contexts),), generator=generator).tolist()
        sampling = Sampling(temperature=1.0, max_tokens=self.max_new)
        tasks = [Task(tuple(c.tolist()), ENDS, seed) for c, seed in zip(contexts, seeds, strict=True)]
        most = SAMPLED_TOKENS * self.settings.batch_tokens // max(lengths, default=1)
        with self.reader.mode():
            return self._responses(sample(self.loaded, tasks, sampling, max(1, most)))

    def logprobs(self, contexts: Ragged, responses: Responses) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (B, K) of the responses' tokens, with gradients; 0 where none."""
        return self.reader.logprobs(contexts, responses)

    def values(self, contexts: Ragged, responses: Responses) -> Tensor:
        """The critic's values (B, K) before each token, with gradients; 0 where none."""
        return self.reader.values(contexts, responses, self.value)

    def logprobs_and_values(self, contexts: Ragged, responses: Responses) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and values (B, K), of one pass, with gradients; 0 where none."""
        return self.reader.logprobs_and_values(contexts, responses, self.value)

    def score(self, views: Ragged) -> Floats:
        """Mean log-prob (R, J) of the ids of each objective's answer in each `View`; NaN where it is None."""
        return score_once(views, self._means)

    def batches(self, contexts: Ragged, responses: Responses) -> list[Ids]:
        """Segments of like lengths, at most `batch_tokens` ids at a time, padding included."""
        return self.reader.batches(contexts, responses)

    def reference(self) -> Reader:
        """The policy as it is now: a frozen copy, or, under a new adapter, the same network without it.

        Raises:
            ConfigError: if the adapter has learned already.
        """
        if self._adapter is not None:
            check_new(self._adapter)
            return msgspec.structs.replace(self.reader, without=self._adapter)
        twin = frozen(self.loaded.network, self.reader.bfloat16)
        return msgspec.structs.replace(self.reader, network=twin)

    def update(self) -> float:
        """One step of AdamW down the gradients that `backward` calls have summed; none if not finite."""
        norm = float(nn.utils.clip_grad_norm_(self._weights.values(), self.max_grad_norm))
        if np.isfinite(norm):
            self.optimizer.step()
            self._schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    @property
    def updates(self) -> int:
        """Steps of the optimiser so far."""
        return int(self._schedule.last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """The weights that learn, by flat names, value head included; optimiser and schedule."""
        return {
            "weights": {name: weight.detach() for name, weight in self._weights.items()},
            "optimizer": self.optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: if its weights have other names or shapes, or its optimiser is another.
        """
        shapes, wanted = (
            {n: tuple(w.shape) for n, w in of.items()} for of in (state["weights"], self._weights)
        )
        if differ := sorted(name for name in shapes | wanted if shapes.get(name) != wanted.get(name)):
            name = differ[0]
            raise ValueError(
                f"{len(differ)} weights of other names or shapes, {name}: {shapes.get(name)} where "
                f"{wanted.get(name)} was wanted"
            )
        self.optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(state["weights"][name])

    # --- The rest -------------------------------------------------------------------------------------------

    def roles(self, ids: Sequence[int], reason: FinishReason) -> list[int]:
        """The role of each token of a round's text that ended so."""
        action = parse(decode(self.loaded.tokenizer, ids, ENDS), reason)
        return token_roles(self.tokenizer.starts(ids), action)

    def finish_reason(self, ids: Sequence[int]) -> FinishReason:
        """Why a text ended."""
        ended = len(ids) and ids[-1] in self.loaded.ends
        return "stop" if ended or any(end in self.tokenizer.decode(ids) for end in ENDS) else "length"

    def save(self, folder: Path) -> None:
        """Write a new folder of model and tokenizer, adapters merged, whole or not at all.

        Weights are in `settings.dtype`.

        Raises:
            ConfigError: if there is something in that place.
        """
        save_folder(folder, self.loaded, getattr(torch, self.settings.dtype))

    def _means(self, contexts: list[Ids], answers: list[Ids]) -> Floats:
        asked = [Asked(*pair) for pair in zip(contexts, answers, strict=True)]
        with self.reader.mode():
            return np.array([logprobs.mean() for logprobs in self.scorer.logprobs(asked)])

    def _responses(self, written: Sequence[Sampled]) -> Responses:
        """What was written, as arrays, each token with the role that it plays."""
        shape = len(written), max((len(one.ids) for one in written), default=0)
        tokens_BK, roles_BK = np.zeros(shape, np.int64), np.zeros(shape, np.int8)
        logprobs_BK = np.zeros(shape, np.float32)
        for row, one in enumerate(written):
            n = len(one.ids)
            tokens_BK[row, :n], logprobs_BK[row, :n] = one.ids, one.logprobs
            roles_BK[row, :n] = self.roles(one.ids, one.finish_reason)
        return Responses(tokens_BK, roles_BK, logprobs_BK)


def _attend(network: Network, attention: str) -> None:
    try:
        network.set_attn_implementation(attention)
        if network.config._attn_implementation != attention:
            raise ValueError("it can't be changed")
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"attention: wanted one that {type(network).__name__} supports, got {attention!r}: "
            f"{str(error).splitlines()[0]}"
        ) from None


def _learning(network: Network, value: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that learn, by name; tied ones once."""
    named = {"network": network, "value": value}
    return {
        f"{part}.{name}": weight
        for part, module in named.items()
        for name, weight in module.named_parameters()
        if weight.requires_grad
    }


def _optimizer(weights: Any, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW; vectors (norms, biases) do not decay."""
    matrices = [weight for weight in weights if weight.dim() > 1]
    vectors = [weight for weight in weights if weight.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=weight_decay, fused=True)
