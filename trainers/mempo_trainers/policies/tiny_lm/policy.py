"""The small language model as a policy: it writes, tells log-probs, scores answers and learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mempo_env.files import atomic_folder
from mempo_env.protocol import parse
from mempo_trainers.credit.data import NOT_GENERATED
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.tiny_lm.model import Shape, Transformer
from mempo_trainers.policies.tiny_lm.sample import write
from mempo_trainers.policies.tiny_lm.tokenizer import EOS, PAD, Tokenizer
from mempo_trainers.tokens import Contexts, Ids, plain_responses, ragged, token_roles

BATCH_TOKENS = 8_192
"""Tokens, padding included, that one pass of the network takes."""

STOPS = ("</search>", "</answer>")
"""The tags that end a round."""


class TinyLM:
    """A `Transformer` behind the protocol of policies; contexts are `ragged` arrays of token ids.

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
        self.max_grad_norm, self.max_new = max_grad_norm, max_new
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = Transformer(shape)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
        self.stops = frozenset({EOS, *(tokenizer.ids[tag] for tag in STOPS)})

    # --- The protocol ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, contexts: Contexts, generator: torch.Generator) -> Responses:
        """Sample at temperature 1 until the end tag of an action, the end of text, or `max_new` tokens.

        Each context has random numbers of its own, by its place among the contexts, so that what is written
        in it depends on the others only as far as batching moves the last digits of a probability.
        """
        chance_BK = torch.rand(len(contexts), self.max_new, generator=generator, dtype=torch.float64)
        tokens = torch.zeros(chance_BK.shape, dtype=torch.long)
        logprobs, written = torch.zeros(chance_BK.shape), torch.zeros(len(contexts), dtype=torch.long)
        for part in buckets([len(context) + self.max_new for context in contexts], 4 * BATCH_TOKENS):
            prompts = _padded(list(contexts[part]))
            made = write(self.model, *prompts, chance_BK[part], self.stops)
            tokens[part], logprobs[part], written[part] = made
        longest = int(written.max())
        roles_BK = np.zeros((len(contexts), longest), np.int8)
        for row, n in enumerate(written.tolist()):
            ids = tokens[row, :n].tolist()
            action = parse(self.tokenizer.decode(ids), self.finish_reason(ids))
            roles_BK[row, :n] = token_roles(self.tokenizer.starts(ids), action)
        return Responses(tokens[:, :longest].numpy(), roles_BK, logprobs[:, :longest].numpy())

    def logprobs(self, contexts: Contexts, responses: Responses) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (B, K) of the responses' tokens, with gradients; 0 where none."""
        logprobs_BK = torch.zeros(responses.tokens_BK.shape)
        entropies_BK = torch.zeros(responses.tokens_BK.shape)
        for hidden, place, ids in self._read(contexts, responses):
            logp = self.model.log_probs(hidden)
            logprobs_BK = logprobs_BK.index_put(place, logp.gather(1, ids[:, None])[:, 0])
            entropies_BK = entropies_BK.index_put(place, -(logp.exp() * logp).sum(-1))
        return logprobs_BK, entropies_BK

    def values(self, contexts: Contexts, responses: Responses) -> Tensor:
        """The critic's values (B, K) before each token, with gradients; 0 where none."""
        values_BK = torch.zeros(responses.tokens_BK.shape)
        for hidden, place, _ in self._read(contexts, responses):
            values_BK = values_BK.index_put(place, self.model.value(hidden)[:, 0])
        return values_BK

    @torch.no_grad()
    def score(self, views: NDArray[np.object_]) -> NDArray[np.float64]:
        """Mean log-prob (R, J) of the ids of each objective's answer in each `View`; NaN where it is None."""
        asked = [
            (r, j, np.concatenate([view.context, before]), answer)
            for r, view in enumerate(views)
            if view is not None
            for j, (before, answer) in enumerate(view.answers)
        ]
        objectives = max((j + 1 for _, j, _, _ in asked), default=1)
        scores_RJ = np.full((len(views), objectives), np.nan)
        if not asked:
            return scores_RJ
        rounds, numbers, contexts, answers = zip(*asked, strict=True)
        responses = plain_responses(answers)
        logprobs_BK, _ = self.logprobs(ragged(contexts), responses)
        lengths_B = (responses.roles_BK != NOT_GENERATED).sum(1)
        scores_RJ[rounds, numbers] = logprobs_BK.double().sum(1).numpy() / lengths_B
        return scores_RJ

    def batches(self, contexts: Contexts, responses: Responses) -> list[Ids]:
        """Segments of like lengths, at most `BATCH_TOKENS` ids at a time, padding included."""
        lengths = [len(context) for context in contexts] + (responses.roles_BK != NOT_GENERATED).sum(1)
        return buckets(lengths, BATCH_TOKENS)

    def update(self) -> float:
        """One step of Adam down the gradients that `backward` calls have summed; none if not finite."""
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm))
        if np.isfinite(norm):
            self.optimizer.step()
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

    def finish_reason(self, ids: Sequence[int]) -> Literal["stop", "length"]:
        """Why a text ended."""
        return "stop" if len(ids) and ids[-1] in self.stops else "length"

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), shape and tokenizer (JSON) as a new folder, whole or not at all."""
        from safetensors.torch import save_file

        with atomic_folder(folder) as draft:
            self.tokenizer.save(draft / "tokenizer.json")
            (draft / "shape.json").write_bytes(msgspec.json.encode(self.shape))
            save_file(self.model.state_dict(), draft / "model.safetensors")

    def load(self, folder: Path) -> None:
        """Take the weights that a policy of the same shape has saved."""
        from safetensors.torch import load_file

        self.model.load_state_dict(load_file(folder / "model.safetensors"))

    def _read(
        self, contexts: Contexts, responses: Responses
    ) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor], Tensor]]:
        """Yield, batch by batch, the hidden states (n, W) before n tokens, their (row, column), their ids."""
        written_B = (responses.roles_BK != NOT_GENERATED).sum(1)
        for part in self.batches(contexts, responses):
            texts = [
                np.concatenate([contexts[row], responses.tokens_BK[row, : written_B[row]]]) for row in part
            ]
            ids, _ = _padded(texts)
            hidden, _ = self.model(ids)
            n = torch.from_numpy(written_B[part])
            row = torch.repeat_interleave(torch.arange(len(part)), n)
            column = torch.arange(len(row)) - torch.repeat_interleave(n.cumsum(0) - n, n)
            first = torch.tensor([len(contexts[row]) for row in part])[row]
            place = (torch.from_numpy(part)[row], column)
            yield hidden[row, first + column - 1], place, ids[row, first + column]


def buckets(lengths: Sequence[int] | Ids, most: int) -> list[Ids]:
    """Split rows, shortest first, so that rows times longest is at most `most` (or one row)."""
    parts: list[list[int]] = []
    for row in np.argsort(lengths, kind="stable").tolist():
        if not parts or lengths[row] * (len(parts[-1]) + 1) > most:
            parts.append([])
        parts[-1].append(row)
    return [np.array(part, np.int64) for part in parts]


def _padded(texts: Sequence[Ids]) -> tuple[Tensor, Tensor]:
    """Ids (B, S) with padding on the right, and the lengths (B)."""
    lengths = torch.tensor([len(text) for text in texts])
    ids_BS = torch.full((len(texts), int(lengths.max())), PAD)
    for row, text in enumerate(texts):
        ids_BS[row, : len(text)] = torch.from_numpy(text)
    return ids_BS, lengths
