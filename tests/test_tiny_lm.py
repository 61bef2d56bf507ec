"""The small language model: its cache, its padding, its scores, its steps."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from mempo_env.errors import DataError
from mempo_trainers.credit.data import ANSWER, CALL, MEM, THINK
from mempo_trainers.policies.base import Responses
from mempo_trainers.policies.tiny_lm import TinyLM
from mempo_trainers.policies.tiny_lm.tokenizer import PAD
from mempo_trainers.tokens import Ragged, View
from tiny_lm_help import TOKENIZER, contexts, responses, sharp, tiny


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numpy_logprobs(policy: TinyLM, seen: Ragged, written: Responses) -> np.ndarray:
    with torch.no_grad():
        return policy.logprobs(seen, written)[0].numpy()


def naive(policy: TinyLM, context: np.ndarray, text: np.ndarray) -> list[float]:
    """Log-probs of a text, one forward pass a token, nothing batched, nothing cached."""
    scores = []
    for k, id in enumerate(text):
        ids = torch.from_numpy(np.concatenate([context, text[:k]]))[None]
        with torch.no_grad():
            hidden, cache = policy.model(ids)
            last = torch.tensor([[ids.shape[1] - 1]])
            logp = policy.model.log_probs(hidden[:, -1:], last, cache)[0, 0]
        scores.append(float(logp[id]))
        assert float(logp.exp().sum()) == pytest.approx(1, abs=1e-5)
    return scores


@pytest.mark.parametrize("seed", range(3))
def test_the_sampler_and_the_training_pass_agree(seed: int) -> None:
    policy, seen = sharp(seed, max_new=24), contexts([1, 2, 3, 9, 40, 17, 17, 5], seed)
    written = policy.act(seen, generator())
    there = written.roles_BK != 0
    assert there.sum() > 30
    gap = np.abs(numpy_logprobs(policy, seen, written) - written.logprobs_BK)[there]
    assert gap.max() < 1e-4


def test_log_probs_are_those_of_one_token_at_a_time() -> None:
    policy, seen, written = sharp(), contexts([4, 11, 7]), responses([5, 2, 9])
    logp = numpy_logprobs(policy, seen, written)
    for row, n in enumerate([5, 2, 9]):
        expected = naive(policy, seen.rows[row], written.tokens_BK[row, :n])
        np.testing.assert_allclose(logp[row, :n], expected, atol=1e-4)
        assert (logp[row, n:] == 0).all()


def test_padding_company_and_order_change_nothing() -> None:
    policy, lengths, sizes = sharp(), [4, 60, 11, 7, 30], [5, 9, 2, 9, 1]
    seen, written = contexts(lengths), responses(sizes)
    together = numpy_logprobs(policy, seen, written)
    wide = Responses(
        *(np.pad(a, ((0, 0), (0, 7))) for a in (written.tokens_BK, written.roles_BK, written.logprobs_BK))
    )
    np.testing.assert_allclose(numpy_logprobs(policy, seen, wide)[:, :9], together, atol=1e-5)
    order = np.array([3, 0, 4, 2, 1])
    np.testing.assert_allclose(
        numpy_logprobs(policy, seen[order], written.take(order)), together[order], atol=1e-5
    )
    for row in range(5):
        alone = numpy_logprobs(policy, seen[np.array([row])], written.take(np.array([row])))
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)


def test_padding_is_by_length_and_never_by_id() -> None:
    policy, seen, written = sharp(), contexts([6]), responses([4])
    seen.rows[0][2] = PAD  # an id of padding inside a text is a token like any other
    expected = naive(policy, seen.rows[0], written.tokens_BK[0])
    np.testing.assert_allclose(numpy_logprobs(policy, seen, written)[0], expected, atol=1e-4)


def test_what_comes_later_is_never_seen() -> None:
    policy, seen, written = sharp(), contexts([6]), responses([8])
    before = numpy_logprobs(policy, seen, written)
    written.tokens_BK[0, 5] += 1
    after = numpy_logprobs(policy, seen, written)
    np.testing.assert_allclose(after[0, :5], before[0, :5], atol=1e-6)
    assert abs(after[0, 6] - before[0, 6]) > 1e-4


def test_entropies_are_those_of_the_whole_distribution() -> None:
    policy, seen, written = sharp(), contexts([6]), responses([1])
    with torch.no_grad():
        entropy = policy.logprobs(seen, written)[1][0, 0].item()
        every = responses([1]).tokens_BK[0, 0] * 0 + np.arange(1, len(TOKENIZER))
        many = Ragged((seen.rows[0],) * len(every))
        written = Responses(
            every[:, None], np.full((len(every), 1), THINK, np.int8), np.zeros((len(every), 1))
        )
        logp = policy.logprobs(many, written)[0][:, 0].double()
    assert float(logp.exp().sum()) == pytest.approx(1, abs=1e-4)
    assert entropy == pytest.approx(float(-(logp.exp() * logp).sum()), abs=1e-3)


def test_the_same_generator_writes_the_same() -> None:
    policy, seen = sharp(max_new=24), contexts([3, 20, 8, 8])
    first, again = policy.act(seen, generator(5)), policy.act(seen, generator(5))
    other = policy.act(seen, generator(6))
    assert (first.tokens_BK == again.tokens_BK).all() and (first.logprobs_BK == again.logprobs_BK).all()
    assert first.tokens_BK.shape != other.tokens_BK.shape or (first.tokens_BK != other.tokens_BK).any()


def test_the_company_of_a_context_changes_nothing_of_what_is_written_in_it() -> None:
    policy = sharp(max_new=24)
    seen, others = contexts([9, 4, 12]), contexts([9, 50, 33], seed=2)
    mixed = Ragged((seen.rows[0], others.rows[1], seen.rows[2]))
    a, b = policy.act(seen, generator()), policy.act(mixed, generator())
    for row in (0, 2):
        n = int((a.roles_BK[row] != 0).sum())
        assert a.tokens_BK[row, :n].tolist() == b.tokens_BK[row, : int((b.roles_BK[row] != 0).sum())].tolist()


def test_it_samples_with_the_probabilities_it_tells() -> None:
    policy = sharp(max_new=1)
    seen = Ragged((contexts([7]).rows[0],) * 4000)
    written = policy.act(seen, generator())
    counts = np.bincount(written.tokens_BK[:, 0], minlength=len(TOKENIZER))
    top = int(counts.argmax())
    p = float(np.exp(written.logprobs_BK[written.tokens_BK[:, 0] == top][0, 0]))
    assert counts[PAD] == 0
    assert abs(counts[top] / 4000 - p) < 5 * np.sqrt(p * (1 - p) / 4000)


def test_it_stops_at_the_end_of_an_action_or_is_cut() -> None:
    policy = sharp(max_new=6)
    end = TOKENIZER.ids["</search>"]
    with torch.no_grad():
        policy.model.copies.bias.fill_(-50.0)  # nothing is copied
        policy.model.embed.weight.zero_()  # and every token is as likely as another
        policy.model.possible.fill_(-1e9)[end] = 0.0  # but there is only one
    stopped = policy.act(contexts([3, 5]), generator())
    assert stopped.tokens_BK.tolist() == [[end], [end]]
    assert policy.finish_reason(stopped.tokens_BK[0].tolist()) == "stop"
    with torch.no_grad():
        policy.model.possible[end], policy.model.possible[end - 1] = -1e9, 0.0
    cut = policy.act(contexts([3, 5]), generator())
    assert cut.tokens_BK.tolist() == [[end - 1] * 6] * 2
    assert policy.finish_reason(cut.tokens_BK[0].tolist()) == "length"


def test_scores_are_means_over_the_answers_tokens_alone() -> None:
    policy = sharp()
    context, (before, first, second) = contexts([12]).rows[0], contexts([2, 3, 1], seed=4).rows
    view = View(context, ((before, first), (before, second)))
    scores = policy.score(Ragged((view, None, view)))
    lead = np.concatenate([context, before])
    expected = [np.mean(naive(policy, lead, first)), np.mean(naive(policy, lead, second))]
    np.testing.assert_allclose(scores[[0, 2]], [expected, expected], atol=1e-4)
    assert np.isnan(scores[1]).all()
    assert policy.score(Ragged((None, None))).shape == (2, 1)


def test_eight_micro_batches_step_like_one() -> None:
    seen, written = contexts([4, 9, 30, 6, 6, 2, 14, 21]), responses([5, 1, 4, 8, 2, 2, 3, 6])
    weights = torch.rand(8, 8, generator=generator())
    steps = []
    for parts in ([np.arange(8)], [np.array([i]) for i in range(8)]):
        policy = sharp()
        for rows in parts:
            logp, entropy = policy.logprobs(seen[rows], written.take(rows))
            values = policy.values(seen[rows], written.take(rows))
            (-(weights[rows] * (logp + 0.1 * entropy + values)).sum()).backward()
        norm = policy.update()
        steps.append((norm, torch.cat([weight.flatten() for weight in policy.model.parameters()])))
    assert steps[0][0] == pytest.approx(steps[1][0], rel=1e-4)
    torch.testing.assert_close(steps[0][1], steps[1][1], atol=2e-4, rtol=1e-3)


def test_no_step_is_taken_down_a_gradient_that_is_not_finite() -> None:
    policy = sharp()
    before = copy.deepcopy(policy.model.state_dict())
    (policy.logprobs(contexts([4]), responses([3]))[0].sum() * float("nan")).backward()
    assert not np.isfinite(policy.update())
    after = policy.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_batches_hold_every_segment_once_and_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mempo_trainers.policies.tiny_lm.policy.BATCH_TOKENS", 64)
    lengths, sizes = [4, 9, 30, 6, 200, 2, 14, 21], [5, 1, 4, 8, 2, 2, 3, 6]
    seen, written = contexts(lengths), responses(sizes)
    parts = tiny().batches(seen, written)
    assert sorted(np.concatenate(parts).tolist()) == list(range(8))
    whole = np.array(lengths) + sizes
    assert all(len(part) * whole[part].max() <= 64 or len(part) == 1 for part in parts)
    np.testing.assert_allclose(
        numpy_logprobs(sharp(), seen, written),
        np.stack([numpy_logprobs(sharp(), seen[r], written.take(r))[0] for r in np.arange(8)[:, None]]),
        atol=1e-5,
    )


def test_a_saved_policy_is_the_same(tmp_path: Path) -> None:
    policy, seen, written = sharp(), contexts([4, 9]), responses([3, 2])
    policy.save(tmp_path / "saved")
    again = TinyLM.load(tmp_path / "saved", learning_rate=1.0)
    assert (numpy_logprobs(again, seen, written) == numpy_logprobs(policy, seen, written)).all()
    twin = tiny(seed=3)
    twin.load_state_dict(policy.state_dict())
    assert (numpy_logprobs(twin, seen, written) == numpy_logprobs(policy, seen, written)).all()
    shape = tmp_path / "saved" / "shape.json"
    for heads in (b"3", b"0"):
        text = shape.read_bytes()
        shape.write_bytes(text.replace(b'"heads":2', b'"heads":' + heads))
        with pytest.raises(DataError, match="wanted a saved policy: width: wanted a multiple of"):
            TinyLM.load(tmp_path / "saved", learning_rate=1.0)
        shape.write_bytes(text)
    (tmp_path / "saved" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="wanted a saved policy"):
        TinyLM.load(tmp_path / "saved", learning_rate=1.0)


def test_roles_follow_the_first_character_of_a_token() -> None:
    policy = tiny()
    text = "<mem>\nBela\n</mem>\n<think> hm </think>\n<search> Port Ostrel </search>"
    ids = TOKENIZER.encode(text)
    roles = policy.roles(list(ids))
    mem, call = TOKENIZER.encode("<mem>\nBela\n</mem>"), TOKENIZER.encode("<search> Port Ostrel </search>")
    assert roles == [MEM] * len(mem) + [THINK] * (len(ids) - len(mem) - len(call)) + [CALL] * len(call)
    answer = list(TOKENIZER.encode("<answer> Ines Calder </answer>"))
    assert policy.roles(answer) == [ANSWER] * len(answer)
    both = list(TOKENIZER.encode("<mem> a </mem><answer> b </answer><answer> c </answer>"))
    assert policy.roles(both) == [THINK] * len(both)  # ambiguous: nothing was done
