"""Policies of a few hundred numbers for the array face: features of what is in view to scores of choices."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import nn

from mempo_env.arrays.layout import ANSWER as ANSWERING
from mempo_env.arrays.layout import SEARCH, Features, Layout, Masks
from mempo_env.arrays.observe import answers, match
from mempo_env.arrays.world import World
from mempo_env.errors import ConfigError, lookup
from mempo_trainers.credit.data import ANSWER, CALL, MEM
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.scorers import SCORERS
from mempo_trainers.policies.subsets import log_probs, sample

FLOOR = 1e-3
"""Least probability of an answer when memories are scored: what is absent is not impossible."""

_NEVER = float(torch.finfo(torch.float32).min)  # not -inf: rows without any choice are uniform


class ArrayContexts(Struct, frozen=True, eq=False):
    """What an array policy sees before B segments: observations and action masks of the environment."""

    observation_BD: NDArray[np.float32]
    mask_BA: NDArray[np.bool_]

    def __getitem__(self, segments_b: NDArray[np.int64]) -> ArrayContexts:
        return ArrayContexts(self.observation_BD[segments_b], self.mask_BA[segments_b])

    def __add__(self, more: ArrayContexts) -> ArrayContexts:
        return ArrayContexts(
            np.concatenate([self.observation_BD, more.observation_BD]),
            np.concatenate([self.mask_BA, more.mask_BA]),
        )


class FactViews(Struct, frozen=True, eq=False):
    """Questions and facts to score them by: rows of questions (R, n), ids of facts (R, S), -1 for none."""

    world: World
    asked_Rn: NDArray[np.int64]
    facts_RS: NDArray[np.int64]

    def __getitem__(self, rounds_r: NDArray[np.int64]) -> FactViews:
        return FactViews(self.world, self.asked_Rn[rounds_r], self.facts_RS[rounds_r])

    def __add__(self, more: FactViews) -> FactViews:
        return FactViews(
            self.world,
            np.concatenate([self.asked_Rn, more.asked_Rn]),
            np.concatenate([self.facts_RS, more.facts_RS]),
        )


class Heads(nn.Module):
    """A scorer for each kind of choice, and the critic.

    Features are those of `mempo_env.arrays.layout`; those of a fact or entity about several objectives are
    joined by their maximum.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        scorer = lookup(SCORERS, kind, "array policy")
        self.keep, self.operation, self.entity, self.candidate = scorer(7), scorer(4), scorer(6), scorer(7)
        self.value = scorer(4)
        self.unknown = nn.Parameter(torch.zeros(()))


class ArrayPolicy:
    """`pointer` (small networks) or `tabular` (an entry for each pattern of features).

    A response has K = V + 2 + n choices, each with its own log-prob: a memory token for each fact in view,
    one for what to do, one for the entity searched or one for each objective answered. Facts are kept by
    independent coins, given that the memory's capacity is not passed (`subsets`).

    Args:
        layout: Of the environment.
        kind: "pointer" or "tabular".
        learning_rate: Of Adam.
        max_grad_norm: Gradients are clipped to this norm.
        seed: Of the first weights.
    """

    def __init__(
        self, layout: Layout, kind: str = "pointer", *, learning_rate: float, max_grad_norm: float, seed: int
    ) -> None:
        self.layout, self.max_grad_norm, self.updates = layout, max_grad_norm, 0
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.heads = Heads(kind)
        self.optimizer = torch.optim.Adam(self.heads.parameters(), lr=learning_rate)

    def act(self, contexts: ArrayContexts, generator: torch.Generator) -> Responses:
        """Choose in each of B contexts."""
        return self.written(contexts, self.choose(contexts, generator))

    @torch.no_grad()
    def choose(
        self,
        contexts: ArrayContexts,
        generator: torch.Generator,
        kept_BV: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """The choices (B, K) alone, without their log-probs.

        Args:
            contexts: What is seen.
            generator: Its random numbers are used up in the same way whatever is chosen or given.
            kept_BV: Which facts are kept, 0 or 1, where that is given and only the rest is to be chosen; -1
                in the rows in which the policy chooses that too.
        """
        features, masks = self._read(contexts)
        scores = self._keep(features)
        if not torch.isfinite(scores).all():
            raise ConfigError(
                "policy: wanted finite scores, got nan or infinity: its weights overflowed; train anew with "
                "a smaller learning rate"
            )
        keep = sample(scores, masks.keep_BV2[..., 1], self.layout.capacity, generator)
        if kept_BV is not None:
            given = torch.from_numpy(kept_BV)
            keep = torch.where(given >= 0, given, keep)
        operation, entity, candidates = (
            torch.multinomial(logits.exp().flatten(0, -2), 1, generator=generator).view(logits.shape[:-1])
            for logits in self._rest(features, masks, keep)
        )
        chosen: NDArray[np.int64] = torch.cat(
            [keep, operation[:, None], entity[:, None], candidates], 1
        ).numpy()
        return chosen

    @torch.no_grad()
    def written(self, contexts: ArrayContexts, tokens_BK: NDArray[np.int64]) -> Responses:
        """Choices with their roles and log-probs."""
        features, masks = self._read(contexts)
        logp, _ = self._evaluate(features, masks, torch.from_numpy(tokens_BK))
        return Responses(tokens_BK, self._roles(contexts, tokens_BK), logp.numpy())

    def logprobs(self, contexts: ArrayContexts, responses: Responses) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies (B, K), with gradients; 0 where nothing was to be chosen."""
        features, masks = self._read(contexts)
        return self._evaluate(features, masks, torch.from_numpy(responses.tokens_BK))

    def values(self, contexts: ArrayContexts, responses: Responses) -> torch.Tensor:
        """The critic's value of the round, (B, K): the same before each of its choices."""
        features, _ = self._read(contexts)
        value: torch.Tensor = self.heads.value(features.budget_B4)
        return value[:, None].expand(responses.tokens_BK.shape)

    def logprobs_and_values(
        self, contexts: ArrayContexts, responses: Responses
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All three."""
        features, masks = self._read(contexts)
        told = self._evaluate(features, masks, torch.from_numpy(responses.tokens_BK))
        return *told, self.heads.value(features.budget_B4)[:, None].expand(responses.tokens_BK.shape)

    @torch.no_grad()
    def score(self, views: FactViews) -> NDArray[np.float64]:
        """Log-prob (R, n) of each gold answer under the candidates' scores, given only some facts.

        Not below log(`FLOOR`).
        """
        matches = torch.from_numpy(match(views.world, views.asked_Rn, views.facts_RS))
        present = torch.from_numpy(views.facts_RS >= 0)
        slots = present.float()[..., None].expand(*present.shape, 2)
        logits = torch.where(present[:, None], self._candidates(slots, matches), _NEVER)
        share = torch.softmax(logits, -1).double() * present[:, None]
        right = torch.from_numpy(answers(views.world, views.asked_Rn, views.facts_RS)).transpose(1, 2)
        logp_RJ: NDArray[np.float64] = np.log(np.maximum((share * right).sum(-1).numpy(), FLOOR))
        return logp_RJ

    def batches(self, contexts: ArrayContexts, responses: Responses) -> list[NDArray[np.int64]]:
        """All segments at once: they are small."""
        return [np.arange(len(responses.tokens_BK))]

    def reference(self) -> ArrayPolicy:
        """A copy."""
        return copy.deepcopy(self)

    def update(self) -> float:
        """One step of Adam."""
        norm = float(nn.utils.clip_grad_norm_(self.heads.parameters(), self.max_grad_norm))
        if np.isfinite(norm):
            self.optimizer.step()
            self.updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimiser."""
        return {"heads": self.heads.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])

    # --- Scores ---------------------------------------------------------------------------------------------

    def _read(self, contexts: ArrayContexts) -> tuple[Features, Masks]:
        for what, array, width in (
            ("observations", contexts.observation_BD, self.layout.features),
            ("masks", contexts.mask_BA, self.layout.choices),
        ):
            if array.ndim != 2 or array.shape[1] != width:
                raise ConfigError(
                    f"{what}: wanted rows of {width}, as for the task of this policy, got {array.shape}"
                )
        observation, mask = torch.from_numpy(contexts.observation_BD), torch.from_numpy(contexts.mask_BA)
        return self.layout.split(observation), self.layout.split_mask(mask)

    def _keep(self, features: Features) -> torch.Tensor:
        joined = torch.cat([features.slots_BV2, features.matches_BVN5.amax(2)], -1)
        logits: torch.Tensor = self.heads.keep(joined)
        return logits

    def _candidates(self, slots_BV2: torch.Tensor, matches_BVN5: torch.Tensor) -> torch.Tensor:
        """Scores (B, n, V) of each slot as the answer of each objective."""
        slots = slots_BV2[:, :, None].expand(*matches_BVN5.shape[:3], 2)
        scores: torch.Tensor = self.heads.candidate(torch.cat([slots, matches_BVN5], -1))
        return scores.transpose(1, 2)

    def _rest(self, features: Features, masks: Masks, kept_BV: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Log-probs of the operation (B, 2), the entity (B, E), the candidates (B, n, V + 1).

        What to do is one choice among all entities and to answer; the answer is one of the facts kept.
        """
        entity = torch.where(masks.entity_BE, self.heads.entity(features.entities_BE6), _NEVER)
        answer = self.heads.operation(features.budget_B4)
        operation = torch.stack([entity.logsumexp(-1), answer], -1)
        candidates = self._candidates(features.slots_BV2, features.matches_BVN5)
        unknown = self.heads.unknown.expand(*candidates.shape[:2], 1)
        candidates = torch.cat([candidates, unknown], -1)
        known_B1C = torch.cat([kept_BV == 1, ~kept_BV.any(1, keepdim=True)], 1)[:, None]
        return (
            _log_softmax(operation, masks.operation_B2),
            _log_softmax(entity, masks.entity_BE),
            _log_softmax(candidates, known_B1C.expand_as(candidates)),
        )

    def _evaluate(
        self, features: Features, masks: Masks, tokens_BK: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layout = self.layout
        keep, keep_entropy = log_probs(
            self._keep(features), masks.keep_BV2[..., 1], tokens_BK[:, layout.keep], layout.capacity
        )
        operation, entity, candidates = self._rest(features, masks, tokens_BK[:, layout.keep])
        did = tokens_BK[:, layout.operation, None]
        searched, answered = did == SEARCH, did == ANSWERING
        rest = [
            (operation, did, torch.ones_like(searched)),
            (entity, tokens_BK[:, layout.entity, None], searched),
            (candidates, tokens_BK[:, layout.candidates, None], answered),
        ]
        logp, entropy = [keep], [keep_entropy]
        for logits, chosen, counts in rest:
            mine = logits.gather(-1, chosen)[..., 0].reshape(len(did), -1)
            spread = -(logits.exp() * logits).sum(-1).reshape(len(did), -1)
            logp.append(torch.where(counts, mine, 0.0))
            entropy.append(torch.where(counts, spread, 0.0))
        return torch.cat(logp, 1), torch.cat(entropy, 1)

    def _roles(self, contexts: ArrayContexts, tokens_BK: NDArray[np.int64]) -> NDArray[np.int8]:
        """Facts that can be kept are memory tokens; the rest is the call or the answer, as it was chosen."""
        layout, roles = self.layout, np.zeros(tokens_BK.shape, np.int8)
        searched = tokens_BK[:, layout.operation] == SEARCH
        roles[:, layout.keep][layout.split_mask(contexts.mask_BA).keep_BV2[..., 1]] = MEM
        roles[:, layout.operation] = np.where(searched, CALL, ANSWER)
        roles[searched, layout.entity] = CALL
        roles[:, layout.candidates] = np.where(searched, 0, ANSWER)[:, None]
        return roles


def _log_softmax(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Over the choices whose mask is 1; rows without any are uniform, and nobody chooses in them."""
    return torch.log_softmax(torch.where(mask, logits, _NEVER), -1)
