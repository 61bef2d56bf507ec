"""The small language model as a policy: it writes, tells log-probs, scores answers and learns."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mempo_env.errors import ConfigError, DataError
from mempo_env.files import BAD_JSON, atomic_folder
from mempo_env.protocol import parse
from mempo_trainers.checkpoint import os_errors
from mempo_trainers.credit.data import NOT_GENERATED
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.tiny_lm.model import Cache, Shape, Transformer
from mempo_trainers.policies.tiny_lm.sample import write
from mempo_trainers.policies.tiny_lm.tokenizer import EOS, PAD, Tokenizer
from mempo_trainers.policies.views import score_once
from mempo_trainers.tokens import Ids, Ragged, buckets, plain_responses, token_roles

BATCH_TOKENS = 8_192
"""Tokens, padding included, that one pass of the network takes."""

TOKENIZER, SHAPE, WEIGHTS = "tokenizer.json", "shape.json", "model.safetensors"

STOPS = ("</search>", "</answer>")
"""The tags that end a round."""


class TinyLM:
    """A `Transformer` behind the protocol of policies; contexts are `Ragged` arrays of token ids.

    Args:
        tokenizer: From text to ids.
        shape: Of the network.
        learning_rate: Of Adam.
        max_grad_norm: Gradients are clipped to this norm.
        seed: Of the first weights.
        max_new: Tokens that a round may have.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        shape: Shape,
        *,
        learning_rate: float,
        max_grad_norm: float = 1.0,
        seed: int = 0,
        max_new: int = 96,
    ) -> None:
        self.tokenizer, self.shape = tokenizer, shape
        self.max_grad_norm, self.max_new, self.updates = max_grad_norm, max_new, 0
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = Transformer(shape)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
        self.stops = frozenset({EOS, *(tokenizer.ids[tag] for tag in STOPS)})

    # --- The protocol ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, contexts: Ragged, generator: torch.Generator) -> Responses:
        """Sample at temperature 1 until the end tag of an action, the end of text, or `max_new` tokens.

        Each context has random numbers of its own, by its place among the contexts, so that what is written
        in it depends on the others only as far as batching moves the last digits of a probability.
        """
        chance_BK = torch.rand(len(contexts), self.max_new, generator=generator, dtype=torch.float64)
        tokens = torch.zeros(chance_BK.shape, dtype=torch.long)
        logprobs, written = torch.zeros(chance_BK.shape), torch.zeros(len(contexts), dtype=torch.long)
        for part in buckets([len(context) + self.max_new for context in contexts], 4 * BATCH_TOKENS):
            prompts = _padded(contexts[part].rows)
            made = write(self.model, *prompts, chance_BK[part], self.stops)
            tokens[part], logprobs[part], written[part] = made
        longest = int(written.max())
        roles_BK = np.zeros((len(contexts), longest), np.int8)
        for row, n in enumerate(written.tolist()):
            roles_BK[row, :n] = self.roles(tokens[row, :n].tolist())
        return Responses(tokens[:, :longest].numpy(), roles_BK, logprobs[:, :longest].numpy())

    def logprobs(self, contexts: Ragged, responses: Responses) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (B, K) of the responses' tokens, with gradients; 0 where none."""
        logprobs_BK, entropies_BK, _ = self._told(contexts, responses)
        return logprobs_BK, entropies_BK

    def logprobs_and_values(self, contexts: Ragged, responses: Responses) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and the critic's values (B, K), read once, with gradients; 0 where none."""
        return self._told(contexts, responses, self.model.value)

    def values(self, contexts: Ragged, responses: Responses) -> Tensor:
        """The critic's values (B, K) before each token, with gradients; 0 where none."""
        values_BK = torch.zeros(responses.tokens_BK.shape)
        for rows, written_bk, ids_bk, hidden, _, _ in self._read(contexts, responses):
            where = rows, torch.arange(ids_bk.shape[1])
            values_BK = values_BK.index_put(where, self.model.value(hidden)[..., 0] * written_bk)
        return values_BK

    @torch.no_grad()
    def score(self, views: Ragged) -> NDArray[np.float64]:
        """Mean log-prob (R, J) of the ids of each objective's answer in each `View`; NaN where it is None."""

        def means(contexts: list[Ids], answers: list[Ids]) -> NDArray[np.float64]:
            responses = plain_responses(answers)
            logprobs_BK, _ = self.logprobs(Ragged(tuple(contexts)), responses)
            sums_B = logprobs_BK.double().sum(1).numpy()
            return sums_B / (responses.roles_BK != NOT_GENERATED).sum(1)  # type: ignore[no-any-return]

        return score_once(views, means)

    def batches(self, contexts: Ragged, responses: Responses) -> list[Ids]:
        """Segments of like lengths, at most `BATCH_TOKENS` ids at a time, padding included."""
        lengths = [len(context) for context in contexts] + (responses.roles_BK != NOT_GENERATED).sum(1)
        return buckets(lengths, BATCH_TOKENS)

    def reference(self) -> TinyLM:
        """A copy."""
        return copy.deepcopy(self)

    def update(self) -> float:
        """One step of Adam down the gradients that `backward` calls have summed; none if not finite."""
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm))
        if np.isfinite(norm):
            self.optimizer.step()
            self.updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimiser."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    # --- The rest -------------------------------------------------------------------------------------------

    def roles(self, ids: Sequence[int]) -> list[int]:
        """The role of each token of a round's text."""
        action = parse(self.tokenizer.decode(ids), self.finish_reason(ids))
        return token_roles(self.tokenizer.starts(ids), action)

    def finish_reason(self, ids: Sequence[int]) -> Literal["stop", "length"]:
        """Why a text ended."""
        return "stop" if len(ids) and ids[-1] in self.stops else "length"

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), shape and tokenizer (JSON) as a new folder, whole or not at all."""
        with atomic_folder(folder) as draft, os_errors():
            self.tokenizer.save(draft / TOKENIZER)
            (draft / SHAPE).write_bytes(msgspec.json.encode(self.shape))
            save_file(self.model.state_dict(), draft / WEIGHTS)

    @classmethod
    def load(cls, folder: Path, **settings: Any) -> TinyLM:
        """A policy with the weights that another has saved, and an optimiser of its own.

        Args:
            folder: Where it was saved.
            settings: Keyword arguments of the class.

        Raises:
            DataError: if a file is missing, damaged or of another network.
        """
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        try:
            shape = msgspec.json.decode((folder / SHAPE).read_bytes(), type=Shape)
            policy = cls(tokenizer, shape, **settings)
            policy.model.load_state_dict(load_file(folder / WEIGHTS))
        except (OSError, RuntimeError, SafetensorError, ConfigError, *BAD_JSON) as error:
            raise DataError(f"{folder}: wanted a saved policy: {error}; save it anew") from None
        return policy

    def _told(
        self, contexts: Ragged, responses: Responses, value: nn.Module | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies and, where there is a head for them, values (B, K)."""
        logprobs_BK, entropies_BK, values_BK = torch.zeros(3, *responses.tokens_BK.shape)
        for rows, written_bk, ids_bk, hidden, places, cache in self._read(contexts, responses):
            logp = self.model.log_probs(hidden, places, cache)
            where = rows, torch.arange(ids_bk.shape[1])
            chosen = logp.gather(-1, ids_bk[..., None])[..., 0]
            logprobs_BK = logprobs_BK.index_put(where, chosen * written_bk)
            entropies_BK = entropies_BK.index_put(where, -(logp.exp() * logp).sum(-1) * written_bk)
            if value is not None:
                values_BK = values_BK.index_put(where, value(hidden)[..., 0] * written_bk)
        return logprobs_BK, entropies_BK, values_BK

    def _read(
        self, contexts: Ragged, responses: Responses
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Cache]]:
        """Read contexts and responses, batch by batch.

        Yields:
            Rows (b, 1); which of their first k places of a response were written, and with which ids (b, k);
            the hidden states (b, k, W) before each, and their places (b, k) in the cache.
        """
        written_B = (responses.roles_BK != NOT_GENERATED).sum(1)
        for part in self.batches(contexts, responses):
            written = torch.from_numpy(written_B[part])
            texts = [np.concatenate([contexts.rows[i], responses.tokens_BK[i, : written_B[i]]]) for i in part]
            ids, lengths = _padded(texts)
            hidden, cache = self.model(ids)
            columns = torch.arange(int(written.max()))
            places = ((lengths - written)[:, None] + columns - 1).clamp(max=ids.shape[1] - 2)
            rows = torch.arange(len(part))[:, None]
            wrote = columns < written[:, None]
            yield (
                torch.from_numpy(part)[:, None],
                wrote,
                ids[rows, places + 1],
                hidden[rows, places],
                places,
                cache,
            )


def _padded(texts: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Ids (B, S) with padding on the right, and the lengths (B)."""
    lengths = torch.tensor([len(text) for text in texts])
    ids_BS = torch.full((len(texts), int(lengths.max())), PAD)
    for row, text in enumerate(texts):
        ids_BS[row, : len(text)] = torch.from_numpy(text)
    return ids_BS, lengths
