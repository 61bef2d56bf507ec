"""Rollouts of a language model: what is trained on is what was read and written, token for token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from mempo_agents.base import Context
from mempo_agents.models.base import ModelOverflow
from mempo_agents.table import make_agent
from mempo_env.errors import ConfigError, RetrieverError, RolloutError
from mempo_env.rewards import RewardConfig
from mempo_trainers import credit
from mempo_trainers.batching import join, split_groups
from mempo_trainers.config import Config
from mempo_trainers.credit.data import ANSWER, CALL, MEM, THINK
from mempo_trainers.episodes import from_episodes
from mempo_trainers.grpo import grpo
from mempo_trainers.policies.base import Rollouts
from mempo_trainers.policies.tiny_lm import lines
from mempo_trainers.ppo import ppo
from mempo_trainers.run import Run
from mempo_trainers.scores import needed, scored
from mempo_trainers.sft import SftConfig, sft, shown, texts_used, tokenised
from mempo_trainers.text import Player, drawing, play, players, rollouts
from mempo_trainers.tokens import Ragged, View
from small import TitleRetriever
from tiny_lm_help import ENV, QUESTIONS, TOKENIZER, Told, sharp, tiny

FIRST = "<mem> Aldo Verne </mem><think>first marker</think><search> Aldo Verne </search>"
SECOND = "<mem> born in Marrow Bay </mem>\n<search> Marrow Bay </search>"
LAST = "<mem> the mayor is Ines Calder </mem>\n<answer> Ines Calder </answer>"


def right(context: str) -> str:
    """Search for the person, then for the town, then answer."""
    if "Its mayor is" in context:
        return LAST
    return SECOND if "Marrow Bay" in context else FIRST


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def told(write: Any) -> Player:
    """An agent that writes what it is told."""
    return Player(Told(write), generator())  # type: ignore[arg-type]


def played(write: Any, ids: list[str], **kwargs: Any) -> Rollouts:
    return rollouts(told(write), TOKENIZER, ids, {**ENV, **kwargs}, seed=0)


def texts(rolled: Rollouts) -> list[tuple[str, str]]:
    """(context, what was written) of each segment, decoded."""
    ids, roles = rolled.responses.tokens_BK, rolled.responses.roles_BK
    return [
        (TOKENIZER.decode(context.tolist()), TOKENIZER.decode(row[role != 0].tolist()))
        for context, row, role in zip(rolled.contexts, ids, roles, strict=True)
    ]


def test_the_training_context_is_the_sampler_s_and_hides_what_it_hid() -> None:
    seen: list[str] = []

    def write(context: str) -> str:
        seen.append(context)
        return right(context)

    rolled = played(write, ["q0"])
    contexts = [context for context, _ in texts(rolled)]
    assert contexts == seen
    assert [text for _, text in texts(rolled)] == [FIRST, SECOND, LAST]
    assert not any("first marker" in context for context in contexts)
    assert "Aldo Verne </mem>" in contexts[1] and "Aldo Verne </mem>" not in contexts[2]
    history = [TOKENIZER.decode(view.context.tolist()) for view in rolled.history_views if view is not None]
    assert all("first marker" in text for text in history)  # which no context of the policy is
    assert rolled.data.logprobs_BK is not None
    assert (rolled.data.logprobs_BK == -0.5 * (rolled.data.roles_BK != 0)).all()


def test_roles_at_the_borders_of_spans() -> None:
    rolled = played(right, ["q0"])
    pieces = [TOKENIZER.decode([id]) for id in rolled.responses.tokens_BK[0].tolist()]
    roles = rolled.responses.roles_BK[0].tolist()
    end = pieces.index("</mem>")
    assert pieces[end + 1] == "<think>" and roles[end : end + 2] == [MEM, THINK]
    call = pieces.index("<search>")
    assert pieces[call - 1] == "</think>" and roles[call - 1 : call + 1] == [THINK, CALL]
    assert roles[0] == MEM
    assert roles[pieces.index("</search>") :] == [CALL] + [0] * (len(roles) - pieces.index("</search>") - 1)
    answer = rolled.responses.roles_BK[2]
    assert answer[answer != 0][-1] == ANSWER


def test_an_invalid_round_is_thought_and_keeps_the_memory_in_force() -> None:
    def write(context: str) -> str:
        if "ambiguous" in context:
            return "<answer> x </answer>"
        if "Marrow Bay is a harbour" in context:
            return "<mem> lost </mem><answer> a </answer><answer> b </answer>"
        return right(context)

    rolled = played(write, ["q0"])
    invalid = rolled.responses.roles_BK[2]
    assert set(invalid.tolist()) <= {0, THINK} and (invalid == THINK).sum() > 5
    memory = TOKENIZER.decode(rolled.memory_views.rows[2].context.tolist())
    assert memory.endswith("<mem> born in Marrow Bay </mem>\n") and "lost" not in memory
    assert rolled.extra["invalid"] == pytest.approx(1 / 4)


def test_what_is_scored_is_spelt_as_a_right_answer_was_sampled() -> None:
    rolled = played(right, ["q0"])
    (before, answer) = rolled.memory_views.rows[2].answers[0]
    sampled = rolled.responses.tokens_BK[2].tolist()
    tag = sampled.index(TOKENIZER.ids["<answer>"])
    assert before.tolist() == [TOKENIZER.ids["<answer>"]]
    assert sampled[tag + 1 : tag + 1 + len(answer)] == answer.tolist()
    assert TOKENIZER.decode(sampled[tag + 1 + len(answer) :]) == " </answer>"


def test_each_of_several_answers_is_scored_behind_its_number() -> None:
    text = "<answer> 1. Ines Calder\n2. Tomas Reve </answer>"
    rolled = played(lambda _: text, ["q0+q1"], objectives=2)
    assert rolled.success_N.tolist() == [True]
    view = rolled.prior_views.rows[0]
    spelt = [tuple(TOKENIZER.decode(part.tolist()) for part in answer) for answer in view.answers]
    assert spelt == [("<answer> 1.", " Ines Calder"), ("<answer> 2.", " Tomas Reve")]
    sampled = rolled.responses.tokens_BK[0].tolist()
    for _, answer in view.answers:
        starts = range(len(sampled) - len(answer) + 1)
        assert sum(sampled[i : i + len(answer)] == answer.tolist() for i in starts) == 1


def test_what_is_scored_holds_what_it_should() -> None:
    rolled = played(right, ["q0"])
    question = f"Question: {QUESTIONS.by_id('q0').text}\n"

    def told(views: Any) -> list[str | None]:
        return [None if view is None else TOKENIZER.decode(view.context.tolist()) for view in views]

    assert told(rolled.prior_views) == [question]
    second, last = (f"{text.splitlines()[0]}\n" for text in (SECOND, LAST))
    assert told(rolled.memory_views) == [None, question + second, question + last]
    histories, seen = told(rolled.history_views), told(rolled.seen_views)
    assert histories[0] is None
    assert histories[1:] == seen[:-1]  # all before a round is all up to the observation of the one before
    assert seen[0] is not None and seen[0].startswith(question + "<mem> Aldo Verne </mem>\n<think>")
    assert seen[1] is not None and seen[1].startswith(seen[0]) and "harbour town" in seen[1]


def test_numbers_of_rounds_and_rewards() -> None:
    reward = RewardConfig(invalid_action=-0.25)

    def write(context: str) -> str:
        return "nothing" if "Bela" in context else right(context)

    rolled = played(write, ["q0", "q1", "q0"], reward=reward)
    data = rolled.data
    assert data.question_N.tolist() == [0, 1, 0]
    assert data.outcome_N.tolist() == [1, 0, 1]
    assert data.shaping_N.tolist() == [0, -1, 0]  # four rounds of it
    assert data.rollout_R.tolist() == [0] * 3 + [1] * 4 + [2] * 3
    assert data.number_R.tolist() == [1, 2, 3, 1, 2, 3, 4, 1, 2, 3]
    assert data.round_B.tolist() == list(range(10))
    assert data.reward_R is not None and data.reward_R.tolist() == [0, 0, 1] + [-0.25] * 4 + [0, 0, 1]
    assert data.found_R is not None and data.found_R.tolist() == [1, 1, 0] + [0] * 4 + [1, 1, 0]
    assert data.recall_R is not None and data.recall_R.tolist() == [0.5, 1, 1] + [0] * 4 + [0.5, 1, 1]
    assert rolled.success_N.tolist() == [True, False, True]
    assert data.state_R is not None
    state = data.state_R.tolist()
    assert state[:3] == state[7:] and len(set(state[:3])) == 3  # the same observations of one question
    assert state[3] != state[0]


def test_equal_observations_are_one_state_whatever_the_hint_says() -> None:
    rolled = played(lambda _: "<search> Port Ostrel </search>", ["q0"], hint=True)
    assert rolled.data.state_R is not None
    first, second, third, _ = rolled.data.state_R.tolist()
    assert first != second == third


class Broken(TitleRetriever):
    """Out of order for its first calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.broken = calls

    def search(self, queries: Any, k: int) -> Any:
        self.broken -= 1
        if self.broken >= 0:
            raise RetrieverError("out of order")
        return super().search(queries, k)


def test_an_episode_that_failed_by_no_fault_of_the_policy_is_masked_or_played_again() -> None:
    def calls(spare: int) -> Rollouts:
        player = told(right)
        return rollouts(player, TOKENIZER, ["q0", "q1"], {**ENV, "retriever": Broken(1)}, 0, spare)

    one = calls(spare=1)
    assert one.data.masked_N.tolist() == [False, True] and one.extra["failed"] == 1
    assert not one.data.mask_BK[one.data.rollout_B == 1].any() and one.extra["em"] == 1
    both = calls(spare=3)
    assert both.data.masked_N.tolist() == [False, False] and both.extra["failed"] == 1


def test_a_step_without_any_rollout_ends_by_saying_why() -> None:
    with pytest.raises(RolloutError, match=r"2 that all failed .* retriever_error: out of order"):
        played(right, ["q0", "q1"], retriever=Broken(9))


class Full:
    """An agent whose model has no room for any prompt."""

    name = fingerprint = "full"
    env_kwargs: Mapping[str, Any] = MappingProxyType({})

    def act(self, contexts: Sequence[Context]) -> list[ModelOverflow]:
        return [ModelOverflow("wanted a shorter prompt") for _ in contexts]


def test_a_step_whose_episodes_never_began_ends_by_saying_why() -> None:
    why = r"2 that all ended before their first round, .* context_overflow: .*wanted a shorter prompt"
    with pytest.raises(RolloutError, match=why):
        rollouts(Full(), TOKENIZER, ["q0", "q1"], ENV, seed=0)


def test_an_episode_that_never_began_found_nothing() -> None:
    (whole,), (never,) = play(told(right), ["q0"], ENV, seed=0), play(Full(), ["q0"], ENV, seed=0)
    assert whole.rounds and not never.rounds and not never.mask_episode
    both = from_episodes([whole, never], TOKENIZER).extra
    assert both["recall"] == from_episodes([whole], TOKENIZER).extra["recall"] / 2 > 0


def test_where_all_are_masked_nothing_is_measured() -> None:
    masked = [
        msgspec.structs.replace(episode, mask_episode=True)
        for episode in play(told(right), ["q0", "q1"], ENV, seed=0)
    ]
    rolled = from_episodes(masked, TOKENIZER)
    assert np.isnan([rolled.extra[name] for name in ("em", "rounds", "recall", "output_tokens")]).all()
    assert not rolled.data.mask_BK.any()


def test_a_text_without_ids_is_no_rollout() -> None:
    class Plain(Player):
        def act(self, contexts: Any) -> Any:
            return [str(text) for text in super().act(contexts)]

    plain = Plain(Told(right), generator())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="round 1: wanted exact token ids"):
        rollouts(plain, TOKENIZER, ["q0"], ENV, 0)


def test_a_policy_that_fails_is_no_rollout() -> None:
    def fail(context: str) -> str:
        raise ZeroDivisionError("weights are gone")

    with pytest.raises(RuntimeError, match="ZeroDivisionError: weights are gone"):
        played(fail, ["q0"])


def test_what_is_measured_is_of_episodes_that_are_not_masked() -> None:
    episodes = play(told(right), ["q0", "q1"], ENV, seed=0)
    masked = [episodes[0], msgspec.structs.replace(episodes[1], mask_episode=True)]
    alone, both = (from_episodes(some, TOKENIZER).extra for some in (episodes[:1], masked))
    assert both == alone != from_episodes(episodes, TOKENIZER).extra


def test_frozen_episodes_give_the_same_rollouts() -> None:
    episodes = play(told(right), ["q0", "q1"], ENV, 0)
    a, b = from_episodes(episodes, TOKENIZER), played(right, ["q0", "q1"])
    assert texts(a) == texts(b)
    np.testing.assert_array_equal(a.data.roles_BK, b.data.roles_BK)


def test_groups_are_taken_apart_and_put_together() -> None:
    rolled = played(right, ["q0", "q1", "q0", "q1"])
    joined = join(split_groups(rolled))
    assert sorted(texts(joined)) == sorted(texts(rolled))
    assert len(joined.memory_views) == len(rolled.memory_views)


def test_draws_are_the_same_whenever_they_are_asked_for() -> None:
    policy = sharp(max_new=12)
    draw = drawing(players(policy), TOKENIZER, [f"q{i}" for i in range(20)], ENV, group=3, seed=4)
    first, other, again = draw(7, 0, 2), draw(8, 0, 2), draw(7, 0, 2)
    assert first.data.question_N.tolist() == [0, 0, 0, 1, 1, 1]
    assert texts(first) == texts(again) != texts(other)
    np.testing.assert_array_equal(first.responses.logprobs_BK, again.responses.logprobs_BK)


POOLS = {
    "questions": [f"q{i % 5}" for i in range(15)],
    "sets": [f"q{i}+q{j}" for i in range(5) for j in range(5) if i != j],
}


@pytest.mark.parametrize("pool", POOLS)
def test_a_draw_asks_nothing_twice_and_is_as_ever_where_it_would_not(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all there is must be asked; chance behind the draw is as ever, whatever was drawn."""
    ids, asked = POOLS[pool], list[tuple[list[str], int, int]]()

    def noted(player: Player, _: Any, ids: list[str], env: Any, seed: int, spare: int) -> None:
        asked.append((ids, player.generator.initial_seed(), seed))

    monkeypatch.setattr("mempo_trainers.text.rollouts", noted)
    draw, repeated = drawing(players(sharp()), TOKENIZER, ids, ENV, group=2, seed=4), 0
    for step in range(40):
        chance = np.random.default_rng([4, step, 0])
        plain = [ids[i] for i in chance.choice(len(ids), 3, replace=False)]
        rest = int(chance.integers(1 << 62)), int(chance.integers(1 << 31))
        draw(step, 0, 3)
        drawn, *behind = asked.pop()
        assert drawn[::2] == drawn[1::2] and tuple(behind) == rest
        assert len({frozenset(one.split("+")) for one in drawn}) == 3
        alone = len({frozenset(one.split("+")) for one in plain}) == 3
        repeated += not alone
        assert drawn[::2] == plain or not alone
    assert 0 < repeated < 40
    most = len({frozenset(one.split("+")) for one in ids})
    draw(0, 0, most)
    assert len({frozenset(one.split("+")) for one in asked.pop()[0]}) == most
    with pytest.raises(
        ConfigError, match=f"questions: wanted at most the {most} different ones, got {most + 1}"
    ):
        draw(0, 0, most + 1)


def test_groups_are_as_large_as_they_were_drawn() -> None:
    draw = drawing(
        players(sharp(max_new=12)), TOKENIZER, ["q0", "q1", "q0", "q1", "q0", "q2"], ENV, group=3, seed=4
    )
    for step in range(4):
        assert draw(step, 0, 3).data.question_N.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_every_estimator_finds_what_it_needs() -> None:
    policy = sharp(max_new=12)
    rolled = drawing(players(policy), TOKENIZER, ["q0", "q1"], ENV, group=2, seed=0)(1, 0, 2)
    for name in ("mempo", "grpo", "spread", "igpo", "turn_level", "gigpo"):
        got = credit.make(name)(scored(policy, rolled, needed(name, {})).data)
        assert np.isfinite(got.advantages_BK).all()
        assert not got.advantages_BK[rolled.responses.roles_BK == 0].any()


@pytest.mark.slow
def test_a_better_memory_scores_higher(tmp_path: Any) -> None:
    """It learns the expert's episodes, and with them to find the answer in a memory that has it."""
    policy = tiny(max_new=128)
    ids = ["q0", "q1"]
    pairs = shown(make_agent("oracle", QUESTIONS), ids, ENV)
    assert len(pairs) == 6
    with Run(tmp_path / "run", {}) as run:
        sft(policy, tokenised(pairs, policy), SftConfig(steps=250, batch=6, learning_rate=1e-2), run)
    losses = [
        msgspec.json.decode(line)["loss"]
        for line in (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    ]
    assert losses[-1] < 0.05 * losses[0]
    rolled = rollouts(Player(policy, generator()), TOKENIZER, ids * 8, ENV, seed=0)
    assert rolled.success_N.mean() >= 0.5
    written = {text for _, text in pairs}
    assert np.mean([text in written for _, text in texts(rolled)]) > 0.7  # the expert's own words
    (before, answer) = rolled.prior_views.rows[0].answers[0]
    asked, noted = f"Question: {QUESTIONS.by_id('q0').text}\n", pairs[2][1].split("<answer>")[0]
    views = [np.array(TOKENIZER.encode(text), np.int64) for text in (asked, asked + noted)]
    nothing, memory = (policy.score(Ragged((View(view, ((before, answer),)),)))[0, 0] for view in views)
    assert memory > nothing


def test_an_expert_that_sees_other_contexts_is_refused() -> None:
    with pytest.raises(ConfigError, match="context: the agent 'mempo' plays with 'last_step'"):
        shown(make_agent("mempo"), ["q0"], ENV)


@pytest.mark.parametrize(
    ("told", "start"),
    [
        ({}, "Answer the question"),
        ({"system_prompt": ""}, "Question:"),
        ({"system_prompt": "Go."}, "Go.\nQuestion:"),
    ],
)
def test_contexts_begin_with_what_the_policy_is_told(told: dict[str, Any], start: str) -> None:
    """The expert is told the protocol all the same: one with a model behind it would not know what to do."""
    env = {name: value for name, value in ENV.items() if name != "system_prompt"}
    pairs = shown(make_agent("oracle", QUESTIONS), ["q0"], {**env, **told})
    assert len(pairs) == 3
    assert all(lines(segments).startswith(start) for segments, _ in pairs)


def test_nothing_to_learn_from_is_refused() -> None:
    pairs = shown(make_agent("oracle", QUESTIONS), ["q0"], ENV)
    longest = max(len(TOKENIZER.encode(text)) for _, text in pairs)
    told = f"max_new: wanted {longest} tokens, .*, got {longest - 1}, which leaves out 1 of 3 texts"
    with pytest.raises(ConfigError, match=told):
        tokenised(pairs, tiny(max_new=longest - 1))
    with pytest.raises(ConfigError, match="wanted texts to imitate, got none"):
        tokenised([], tiny())


def test_few_texts_that_are_too_long_are_left_out() -> None:
    texts = [list(range(n)) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 20)]
    assert texts_used(texts, 9) == list(range(9)) and texts_used(texts, 20) == list(range(10))
    with pytest.raises(ConfigError, match=r"wanted 20 tokens, .* or at least 9, got 8, which leaves out 2"):
        texts_used(texts, 8)


def test_supervised_learning_reproduces_and_goes_on(tmp_path: Any) -> None:
    examples = tokenised(shown(make_agent("oracle", QUESTIONS), ["q0", "q1"], ENV), tiny())
    config = SftConfig(steps=6, batch=3, checkpoint_every=2)

    def weights(folder: str, steps: int) -> torch.Tensor:
        policy = tiny()
        with Run(tmp_path / folder, {}) as run:
            sft(policy, examples, SftConfig(steps=6, batch=3, checkpoint_every=2), _Until(run, steps))
        return torch.cat([weight.detach().flatten() for weight in policy.model.parameters()])

    whole = weights("whole", config.steps)
    weights("broken", 3)
    assert torch.equal(weights("broken", config.steps), whole)


class _Until:
    """A run that is broken off after some steps."""

    def __init__(self, run: Run, last: int) -> None:
        self.run, self.last, self.log = run, last, run.log

    def steps(self, policy: Any, total: int, every: int, label: str = "training") -> Any:
        """The steps up to the last one."""
        for step in self.run.steps(policy, total, every, label):
            yield step
            if step == self.last:
                return


@pytest.mark.parametrize(("algo", "credit"), [("grpo", "mempo"), ("grpo", "grpo"), ("ppo", "gae")])
def test_the_loops_train_it_and_go_on_bit_for_bit(tmp_path: Any, algo: str, credit: str) -> None:
    config = Config(
        algo=algo,  # type: ignore[arg-type]
        credit=credit,
        steps=3,
        questions=2,
        rollouts=2,
        learning_rate=1e-3,
        kl=0.1,
        entropy=0.01,  # what it writes earns nothing yet: this alone moves it
        checkpoint_every=1,
    )

    def train(folder: str, steps: int) -> tuple[torch.Tensor, list[dict[str, Any]]]:
        policy = sharp(max_new=12, learning_rate=1e-3)
        draw = drawing(players(policy), TOKENIZER, ["q0", "q1", "q2"], ENV, config.rollouts, config.seed)
        with Run(tmp_path / folder, {}) as run:
            {"grpo": grpo, "ppo": ppo}[algo](policy, draw, config, _Until(run, steps))  # type: ignore[arg-type]
        lines = (tmp_path / folder / "metrics.jsonl").read_bytes().splitlines()
        weights = torch.cat([weight.detach().flatten() for weight in policy.model.parameters()])
        return weights, [msgspec.json.decode(line) for line in lines]

    whole, rows = train("whole", config.steps)
    assert abs(rows[0]["kl"]) < 1e-5 and rows[0]["sampler_gap"] < 1e-4
    assert not torch.equal(whole, train("short", 1)[0])
    train("broken", 2)
    assert torch.equal(train("broken", config.steps)[0], whole)
