"""Entries of a memory bank in what a policy wrote: who wrote them, who used them, and the credit for it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from mempo_env.errors import ConfigError
from mempo_env.memory.bank import BankConfig
from mempo_trainers import credit
from mempo_trainers.batching import join, split_groups
from mempo_trainers.credit.data import MEM, Ints
from mempo_trainers.episodes import from_episodes
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.text import Player, play, rollouts
from tiny_lm_help import ENV, TOKENIZER, Told

BORN = "<memory_write> born in Marrow Bay </memory_write>"
MAYOR = "<memory_write> the mayor is Ines Calder </memory_write>"
READ = "<memory_read> where was Aldo Verne born? </memory_read>"


def played(texts: list[str], ids: tuple[str, ...] = ("q0",), **kwargs: object) -> Rollouts:
    """Every rollout writes these texts, round by round."""
    agent = Player(Told(_in_turn(texts, len(ids))), torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    env = {**ENV, "context": "last_step", "memory": "bank", "max_rounds": len(texts), **kwargs}
    return rollouts(agent, TOKENIZER, list(ids), env, seed=0)


def _in_turn(texts: list[str], rollouts: int) -> object:
    said = [text for text in texts for _ in range(rollouts)]
    return lambda _context: said.pop(0)


def wrote(rolled: Rollouts) -> dict[int, str]:
    """The text of each entry that tokens wrote."""
    entry_BK = rolled.data.entry_BK
    assert entry_BK is not None
    return {
        int(e): TOKENIZER.decode(rolled.responses.tokens_BK[entry_BK == e].tolist())
        for e in np.unique(entry_BK[entry_BK >= 0])
    }


def pairs(rows: Ints | None) -> list[tuple[int, ...]]:
    assert rows is not None
    return [tuple(row) for row in rows.tolist()]


def test_who_wrote_an_entry_and_who_used_it() -> None:
    search, answer = "<search> Marrow Bay </search>", "<answer> Ines Calder </answer>"
    rolled = played([f"{BORN}{READ}{search}", f"<think> so </think>{MAYOR}{search}", answer])
    texts = wrote(rolled)
    assert sorted(text.strip() for text in texts.values()) == sorted([BORN, MAYOR])
    (born,) = [e for e, text in texts.items() if text.strip() == BORN]
    assert pairs(rolled.data.used_UC) == [(1, born)]  # read in the first round, seen in the second
    assert pairs(rolled.data.merged_MC) == []
    assert rolled.data.entry_BK is not None
    assert (rolled.data.roles_BK[rolled.data.entry_BK >= 0] == MEM).all()


def test_a_refused_write_is_no_entry_and_a_joined_one_is_made_of_both() -> None:
    search = "<search> Marrow Bay </search>"
    texts = [f"{BORN}{search}", f"{BORN}{READ}{search}", "<answer> x </answer>"]
    refused = played(texts)
    assert len(wrote(refused)) == 1 and pairs(refused.data.used_UC) == [(2, 0)]
    joined = played(texts, memory=BankConfig(on_duplicate="merge"))
    first, second = wrote(joined)
    assert joined.data.merged_MC is not None
    (whole,) = set(joined.data.merged_MC[:, 0].tolist())
    assert pairs(joined.data.merged_MC) == [(whole, first), (whole, second)]
    assert pairs(joined.data.used_UC) == [(2, whole)]


def test_a_merge_with_a_text_of_its_own_shares_with_what_it_replaced() -> None:
    search = "<search> Marrow Bay </search>"
    merge = '<memory_merge ids="1"> born there, mayor Ines Calder </memory_merge>'
    rolled = played([f"{BORN}{search}", f"{merge}{READ}{search}", "<answer> Ines Calder </answer>"])
    texts = {text.strip(): e for e, text in wrote(rolled).items()}
    assert set(texts) == {BORN, merge}
    assert rolled.data.merged_MC is not None
    (whole,) = set(rolled.data.merged_MC[:, 0].tolist())
    assert whole not in texts.values()
    assert pairs(rolled.data.merged_MC) == sorted([(whole, texts[BORN]), (whole, texts[merge])])
    assert pairs(rolled.data.used_UC) == [(2, whole)]


def test_discarded_entries_do_not_shift_what_comes_after() -> None:
    search = "<search> Marrow Bay </search>"
    both = '<memory_discard ids="1,2"/>'
    rolled = played([f"{BORN}{MAYOR}{search}", f"{both}{BORN}{READ}{search}", "<answer> x </answer>"])
    assert [text.strip() for text in wrote(rolled).values()] == [BORN, MAYOR, BORN]
    assert pairs(rolled.data.used_UC) == [(2, 2)]


def test_the_write_is_paid_for_the_progress_of_the_round_that_read_it() -> None:
    """By hand: round 2 finds the second of two gold passages, so c = 1/2 for its only entry; unused: -0.1."""
    texts = [
        f"{BORN}{READ}<search> Aldo Verne </search>",
        f"{MAYOR}<search> Marrow Bay </search>",
        "<answer> Ines Calder </answer>",
    ]
    rolled = played(texts)
    assert rolled.data.recall_R is not None and rolled.data.recall_R.tolist() == [0.5, 1.0, 1.0]
    found = credit.make("attribution")(rolled.data).advantages_BK
    entry_BK = rolled.data.entry_BK
    assert entry_BK is not None
    mean, std = (0.5 - 0.1) / 2, 0.6 / np.sqrt(2)  # of 0.5 and -0.1, ddof 1
    for e, wanted in ((0, (0.5 - mean) / std), (1, (-0.1 - mean) / std)):
        np.testing.assert_allclose(found[entry_BK == e], wanted, rtol=1e-4)
    assert (found[entry_BK < 0] == 0).all()


def test_parts_of_a_batch_keep_their_entries_apart() -> None:
    search = "<search> Marrow Bay </search>"
    merge = '<memory_merge ids="1"> mayor Ines Calder </memory_merge>'
    texts = [f"{BORN}{search}", f"{merge}{READ}{search}", "<answer> Ines Calder </answer>"]
    one, two = played(texts), played(texts, ids=("q0", "q0"))
    both = join([one, two])
    alone, together = (credit.make("attribution") for _ in range(2))
    assert both.data.merged_MC is not None and one.data.merged_MC is not None
    assert len(np.unique(both.data.merged_MC)) == 3 * len(np.unique(one.data.merged_MC))
    parts = split_groups(both)
    joined = together(both.data).advantages_BK
    apart = [alone(part.data).advantages_BK for part in parts]
    np.testing.assert_array_equal(joined[: len(apart[0])], apart[0])


def test_of_an_agent_that_works_on_its_bank_by_rules_no_entries_are_known() -> None:
    """Who wrote them is known to the agent alone: they had uses, and no tokens."""
    agent = Player(Told(_in_turn([f"{BORN}<search> Marrow Bay </search>"], 1)), torch.Generator())  # type: ignore[arg-type]
    env = {**ENV, "context": "last_step", "memory": "bank", "max_rounds": 1}
    (episode,) = play(agent, ["q0"], env, seed=0)
    assert from_episodes([episode], TOKENIZER).data.entry_BK is not None
    composed = msgspec.structs.replace(episode.rounds[0], token_ids=(), logprobs=())
    changed = msgspec.structs.replace(episode, rounds=(composed,))
    assert from_episodes([changed], TOKENIZER).data.entry_BK is None


@pytest.mark.parametrize("memory", ["inline", "none"])
def test_without_a_bank_there_are_no_entries(memory: str) -> None:
    rolled = played(["<answer> x </answer>"], memory=memory)
    with pytest.raises(ConfigError, match="entry_BK, used_UC, which were not measured"):
        credit.make("attribution")(rolled.data)
