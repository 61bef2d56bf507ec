"""What a causal language model of transformers says of given texts, exactly.

Texts are padded on the right, by their lengths: in a causal network what stands behind a place is never seen
from it, so no mask is needed, and no id means padding. The network's own head is run on the places that are
asked for and no others, so that whatever a model does to its logits (soft caps, scales) is done here too.

Dropout is off in all passes, those with gradients too: the network is in evaluation mode throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor, nn

from mempo_agents.models.network import Network
from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import NOT_GENERATED
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.huggingface.told import told
from mempo_trainers.tokens import Ids, Ragged, buckets


class Reader(Struct, frozen=True, kw_only=True, eq=False):
    """Reads contexts (`Ragged` arrays of token ids, none empty) and responses; changes nothing.

    Attributes:
        network: The network, in evaluation mode.
        batch_tokens: Tokens, padding included, that one pass takes.
        window: Tokens of a text at most; None: no limit is known.
        bfloat16: Multiply in bfloat16 (autocast).
        without: The model of peft around the network, if it is to be read without its adapter.
    """

    network: Network
    batch_tokens: int
    window: int | None = None
    bfloat16: bool = False
    without: Any = None

    def logprobs(self, contexts: Ragged, responses: Responses) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies (B, K) of the responses' tokens, with gradients, on the CPU; 0 where none.

        At temperature 1, over all tokens, nats.

        Raises:
            ConfigError: for an empty context, or a text that is longer than the model's window.
        """
        logprobs_BK, entropies_BK, _ = self.logprobs_and_values(contexts, responses, None)
        return logprobs_BK, entropies_BK

    def logprobs_and_values(
        self, contexts: Ragged, responses: Responses, value: nn.Module | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `logprobs` and `values` tell, of one pass; without a head of values these are 0."""
        logprobs_BK, entropies_BK, values_BK = torch.zeros(3, *responses.tokens_BK.shape)
        for where, logits_NV, hidden_NW in self._read(contexts, responses, head=True):
            ids_N = torch.from_numpy(responses.tokens_BK)[where].to(logits_NV.device)
            logprobs_N, entropies_N = told(logits_NV, ids_N)
            logprobs_BK = logprobs_BK.index_put(where, logprobs_N.cpu())
            entropies_BK = entropies_BK.index_put(where, entropies_N.cpu())
            if value is not None:
                values_BK = values_BK.index_put(where, value(hidden_NW.float())[:, 0].cpu())
        return logprobs_BK, entropies_BK, values_BK

    def values(self, contexts: Ragged, responses: Responses, value: nn.Module) -> Tensor:
        """What a head (W to 1) makes of the hidden state before each token (B, K); 0 where none."""
        values_BK = torch.zeros(responses.tokens_BK.shape)
        for where, _, hidden_NW in self._read(contexts, responses, head=False):
            values_BK = values_BK.index_put(where, value(hidden_NW.float())[:, 0].cpu())
        return values_BK

    def batches(self, contexts: Ragged, responses: Responses) -> list[Ids]:
        """Rows of like lengths, at most `batch_tokens` ids at a time, padding included."""
        return buckets(_lengths(contexts, responses).sum(0), self.batch_tokens)

    @contextmanager
    def mode(self) -> Iterator[None]:
        """How the network is to be run: multiplying in bfloat16, without its adapter."""
        with ExitStack() as use:
            if self.bfloat16:
                use.enter_context(torch.autocast(self.network.device.type, torch.bfloat16))
            if self.without is not None:
                use.enter_context(self.without.disable_adapter())
            yield

    def _read(
        self, contexts: Ragged, responses: Responses, head: bool
    ) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor, Tensor]]:
        """Read batch by batch.

        Yields:
            Which (row, column) of the responses each of N tokens is; the logits (N, V) that it was drawn
            from, or none without the head; the hidden states (N, W) before it.
        """
        self.check(contexts, responses)
        before_B, written_B = _lengths(contexts, responses)
        for part in self.batches(contexts, responses):
            texts = [
                np.concatenate([contexts.rows[i], responses.tokens_BK[i, : written_B[i]]])[:-1] for i in part
            ]
            row_N, column_N = np.nonzero(np.arange(written_B[part].max()) < written_B[part][:, None])
            place_N = before_B[part][row_N] + column_N - 1
            places = torch.from_numpy(row_N), torch.from_numpy(place_N)
            logits_NV, hidden_NW = self._pass(_padded(texts), places, head)
            yield (torch.from_numpy(part[row_N]), torch.from_numpy(column_N)), logits_NV, hidden_NW

    def _pass(self, ids_BS: Tensor, places: tuple[Tensor, Tensor], head: bool) -> tuple[Tensor, Tensor]:
        """Logits (N, V), if wanted, and last hidden states (N, W) at some (row, place)."""
        device, seen = self.network.device, list[Tensor]()
        row_N, place_N = (array.to(device) for array in places)

        def choose(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
            seen.append(inputs[0][row_N, place_N])
            return (seen[0][None, : None if head else 0],)

        hook = self.network.get_output_embeddings().register_forward_pre_hook(choose)
        try:
            with self.mode():
                logits_1NV = self.network(input_ids=ids_BS.to(device), use_cache=False).logits
        finally:
            hook.remove()
        return logits_1NV[0], seen[0]

    def check(self, contexts: Ragged, responses: Responses) -> None:
        """ConfigError for an empty context, or a text that is longer than the model's window."""
        before_B, written_B = _lengths(contexts, responses)
        whole_B = before_B + written_B
        if not before_B.all():
            raise ConfigError(
                "context: wanted at least one token, which the first of a response is read after, got none"
            )
        if self.window is not None and whole_B.max(initial=0) > self.window:
            raise ConfigError(
                f"wanted texts of at most the {self.window:,} tokens of the model's window, got one of "
                f"{whole_B.max():,}: fewer rounds in view, shorter rounds (max_new), or a longer window"
            )


def _lengths(contexts: Ragged, responses: Responses) -> Ids:
    """Tokens (2, B) of contexts and of responses."""
    before_B = np.array([len(context) for context in contexts], np.int64)
    return np.stack([before_B, (responses.roles_BK != NOT_GENERATED).sum(1)])


def _padded(texts: Sequence[Ids]) -> Tensor:
    """Ids (B, S), with some id on the right of shorter texts."""
    ids_BS = np.zeros((len(texts), max(1, *map(len, texts))), np.int64)
    for row, text in enumerate(texts):
        ids_BS[row, : len(text)] = text
    return torch.from_numpy(ids_BS)
