"""The Hugging Face policy learns: steps, checkpoints, folders, the loops of the tiny policies, kills."""

from __future__ import annotations

import copy
import errno
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from llm_help import chatting, save, small_network
from llm_policy_help import VOCABULARY, contexts, drawing, policy, responses, texts, told, weights, wrapped
from mempo_env.errors import ConfigError
from mempo_trainers import checkpoint
from mempo_trainers.config import Config
from mempo_trainers.grpo import grpo
from mempo_trainers.policies.huggingface import HuggingFacePolicy, PolicySettings, open_policy
from mempo_trainers.ppo import ppo
from mempo_trainers.run import Run
from mempo_trainers.run_files import read_metrics
from mempo_trainers.sft import Examples, SftConfig, sft
from mempo_trainers.tokens import Ragged
from train_help import disk_of

SEEN, WRITTEN = contexts([4, 30, 11, 7]), responses([5, 9, 2, 9])


def learn(here: HuggingFacePolicy, steps: int = 1) -> list[float]:
    """Steps up the likelihood of fixed texts; returns the norms."""
    norms = []
    for _ in range(steps):
        (-here.logprobs(SEEN, WRITTEN)[0].mean() + here.values(SEEN, WRITTEN).square().mean()).backward()
        norms.append(here.update())
    return norms


def copied(here: HuggingFacePolicy) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in weights(here).items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one), "weights differ"


# --- Steps -------------------------------------------------------------------------------------------------


def test_micro_batches_step_like_one() -> None:
    steps = []
    for parts in ([np.arange(4)], [np.array([i]) for i in (2, 0, 3, 1)]):
        here = policy("gemma2")
        for rows in parts:
            logp, entropies = here.logprobs(SEEN[rows], WRITTEN.take(rows))
            (-(logp + 0.1 * entropies).sum() + here.values(SEEN[rows], WRITTEN.take(rows)).sum()).backward()
        norm = here.update()
        steps.append((norm, copied(here)))
    assert steps[0][0] == pytest.approx(steps[1][0], rel=1e-4)
    for name, weight in steps[0][1].items():
        torch.testing.assert_close(weight, steps[1][1][name], atol=2e-4, rtol=1e-3)


def test_the_learning_rate_warms_up_linearly_and_stays() -> None:
    """0.25, 0.5, 0.75, then 1 times 0.004, from the first update on."""
    here = policy(learning_rate=0.004, warmup_steps=4)
    rates = []
    for _ in range(6):
        rates.append([group["lr"] for group in here.optimizer.param_groups])
        learn(here)
    np.testing.assert_allclose(rates, [[x] * 2 for x in (0.001, 0.002, 0.003, 0.004, 0.004, 0.004)])
    assert [group["lr"] for group in policy(learning_rate=0.004).optimizer.param_groups] == [0.004] * 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_step_is_taken_down_a_gradient_that_is_not_finite(bad: float) -> None:
    here = policy(warmup_steps=9)
    learn(here)
    before, state = copied(here), copy.deepcopy(here.state_dict())
    (here.logprobs(SEEN, WRITTEN)[0].sum() * bad).backward()
    assert not math.isfinite(here.update())
    assert_same(copied(here), before)
    assert here.state_dict()["schedule"] == state["schedule"]
    assert learn(here)[0] > 0  # and nothing of that gradient is left
    there = policy(warmup_steps=9)
    learn(there, 2)
    assert_same(copied(here), copied(there))


def test_gradients_are_clipped_and_the_norm_is_that_before() -> None:
    free, tight = policy(max_grad_norm=1e6), policy(max_grad_norm=1e-3)
    assert learn(free) == learn(tight)
    moments = [
        float(torch.cat([s["exp_avg"].flatten() for s in p.optimizer.state.values()]).norm())
        for p in (free, tight)
    ]
    assert moments[1] == pytest.approx(0.1 * 1e-3, rel=1e-3)  # 1 - beta_1 of a gradient of that norm
    assert moments[0] > 100 * moments[1]


def test_matrices_decay_and_vectors_do_not() -> None:
    """Without a gradient but of 0, AdamW multiplies by 1 - 0.1 * 0.5."""
    here = policy("llama", weight_decay=0.5, learning_rate=0.1)
    before = copied(here)
    for weight in weights(here).values():
        weight.grad = torch.zeros_like(weight)
    here.update()
    for name, weight in copied(here).items():
        share = 0.95 if weight.dim() > 1 else 1.0
        torch.testing.assert_close(weight, share * before[name])


# --- Checkpoints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"lora_rank": 3}, {"warmup_steps": 5, "gradient_checkpointing": True}]
)
@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_a_checkpoint_goes_on_bit_for_bit(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    here = policy(family, **changes)
    learn(here, 2)
    checkpoint.write(tmp_path / "there", here.state_dict())
    norms = learn(here, 3)
    again = policy(family, **changes)
    learn(again)
    again.load_state_dict(checkpoint.read(tmp_path / "there"))
    assert learn(again, 3) == norms
    assert_same(copied(again), copied(here))
    assert (told(again, SEEN, WRITTEN) == told(here, SEEN, WRITTEN)).all()


def test_a_checkpoint_holds_the_weights_that_learn_and_each_once() -> None:
    whole, adapter = (policy("gpt2", lora_rank=rank).state_dict()["weights"] for rank in (0, 2))
    assert whole.keys() >= {"network.transformer.wte.weight", "value.weight", "value.bias"}
    assert "network.lm_head.weight" not in whole  # tied to wte
    assert len(whole) == 2 + 2 + 2 * 12 + 2
    assert all("lora_" in name or name.startswith("value.") for name in adapter)
    assert len(adapter) == 2 * 4 * 2 + 2  # A and B of four linear layers in each of two, value


@pytest.mark.parametrize("other", [{"lora_rank": 2}, {"config": {"num_hidden_layers": 1}}])
def test_a_checkpoint_of_another_policy_is_refused_and_changes_nothing(other: dict[str, Any]) -> None:
    here, there = policy(), policy(**other)
    learn(here), learn(there)
    before, state = copied(here), copy.deepcopy(here.optimizer.state_dict())
    with pytest.raises(ValueError, match="weights of other names or shapes, network"):
        here.load_state_dict(there.state_dict())
    assert_same(copied(here), before)
    moments = here.optimizer.state_dict()["state"]
    assert all(torch.equal(moments[i]["exp_avg"], state["state"][i]["exp_avg"]) for i in moments)


# --- Folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("family", ["qwen2", "llama", "gpt2", "gemma2"])
def test_a_saved_folder_is_the_policy_for_transformers(family: str, rank: int, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    here = policy(family, lora_rank=rank, learning_rate=0.02)
    learn(here, 3)
    before = copied(here)
    here.save(tmp_path / "made")
    assert_same(copied(here), before)
    network, report = AutoModelForCausalLM.from_pretrained(tmp_path / "made", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    there = wrapped(network.eval())
    np.testing.assert_allclose(told(there, SEEN, WRITTEN), told(here, SEEN, WRITTEN), atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    assert tokenizer.get_vocab().items() >= chatting().get_vocab().items()  # Qwen2's adds one of its own
    assert tokenizer.chat_template == chatting().chat_template
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "made"]


@pytest.mark.parametrize("rank", [0, 3])
def test_a_policy_of_bfloat16_is_saved_in_it(rank: int, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    here = policy("llama", dtype="bfloat16", lora_rank=rank)
    learn(here)
    here.save(tmp_path / "made")
    assert {weight.dtype for weight in load_file(tmp_path / "made" / "model.safetensors").values()} == {
        torch.bfloat16
    }
    told_dtype = msgspec.json.decode((tmp_path / "made" / "config.json").read_bytes())["dtype"]
    assert told_dtype == "bfloat16"
    again = open_policy(PolicySettings(model=str(tmp_path / "made")))
    assert np.abs(told(again, SEEN, WRITTEN) - told(here, SEEN, WRITTEN)).max() < 0.5


def test_a_folder_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = policy()
    with monkeypatch.context() as patch:
        patch.setattr(type(here.loaded.tokenizer), "save_pretrained", full_disk)
        with pytest.raises(OSError, match="No space left"):
            here.save(tmp_path / "made")
    assert not list(tmp_path.iterdir())
    here.save(tmp_path / "made")
    with pytest.raises(ConfigError, match="made: wanted a new folder for a model, found something there"):
        here.save(tmp_path / "made")


def test_a_folder_that_fills_the_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    with disk_of(30_000), pytest.raises(OSError) as caught:
        policy().save(tmp_path / "made")
    assert caught.value.errno == errno.EFBIG and caught.value.filename == str(tmp_path / "made")
    assert not list(tmp_path.iterdir())


def test_a_folder_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    """A server may be another user's."""
    before = os.umask(0o027)
    try:
        policy().save(tmp_path / "made")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "made").iterdir()} == {0o640}


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_an_engine_that_shares_the_weights_says_what_the_policy_says() -> None:
    """As it learns, under an adapter too."""
    from mempo_agents.models.huggingface import HuggingFace

    for rank in (0, 3):
        here = policy(lora_rank=rank)
        engine = HuggingFace(loaded=here.loaded)
        prints = {engine.fingerprint}
        learn(here, 2)
        ids = [
            (row.tolist(), text[text >= 0].tolist())
            for row, text in zip(SEEN, WRITTEN.tokens_BK, strict=True)
        ]
        for row, scores in enumerate(engine.score(ids)):
            n = int((WRITTEN.roles_BK[row] != 0).sum())
            np.testing.assert_allclose(scores[:n], told(here, SEEN, WRITTEN)[row, :n], atol=1e-5)
        assert engine.fingerprint not in prints


# --- Loops -------------------------------------------------------------------------------------------------

CONFIG = Config(steps=3, questions=2, rollouts=4, kl=0.1, checkpoint_every=1)
LOOPS = {"grpo": (grpo, CONFIG), "ppo": (ppo, msgspec.structs.replace(CONFIG, algo="ppo"))}


def run_loop(
    here: HuggingFacePolicy, folder: Path, algo: str = "grpo", **changes: Any
) -> list[dict[str, Any]]:
    loop, config = LOOPS[algo]
    config = msgspec.structs.replace(config, **changes)
    with Run(folder, {"config": msgspec.to_builtins(config)}) as run:
        loop(here, drawing(here), config, run)
    return read_metrics(folder)


@pytest.mark.parametrize("algo", LOOPS)
@pytest.mark.parametrize(
    "changes", [{}, {"lora_rank": 4}, {"gradient_checkpointing": True, "batch_tokens": 20}]
)
def test_the_loops_train_it_as_they_are(algo: str, changes: dict[str, Any], tmp_path: Path) -> None:
    here = policy("qwen2", learning_rate=0.01, **changes)
    before = copied(here)
    rows = run_loop(here, tmp_path / "run", algo)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["kl"] == 0 and rows[1]["kl"] > 0
    for row in rows:
        assert row["sampler_gap"] < 1e-5 and row["skipped_updates"] == 0
        assert math.isfinite(row["loss"]) and row["grad_norm"] > 0
    assert any(not torch.equal(weight, before[name]) for name, weight in copied(here).items())


def test_it_learns_what_pays(tmp_path: Path) -> None:
    """Tokens that pay are written more and more: at first a little more than one of four."""
    here = policy("qwen2", {"initializer_range": 0.02}, learning_rate=0.01, max_new=4)
    config = Config(credit="grpo", steps=30, questions=2, rollouts=8, checkpoint_every=30)
    with Run(tmp_path / "run", {}) as run:
        grpo(here, drawing(here, size=8), config, run)
    rewards = [row["reward"] for row in read_metrics(tmp_path / "run")]
    assert np.mean(rewards[:3]) < 0.5 and np.mean(rewards[-5:]) > 0.8, rewards


def examples() -> Examples:
    written = texts([2 + i % 5 for i in range(20)], seed=1)
    return Examples(contexts([3 + i % 7 for i in range(20)]), Ragged(tuple(written)))


def test_the_loss_of_supervised_learning_falls(tmp_path: Path) -> None:
    here = policy("qwen2", lora_rank=0, max_new=12)
    with Run(tmp_path / "run", {}) as run:
        sft(here, examples(), SftConfig(steps=40, batch=20, learning_rate=0.02), run)
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert losses[-1] < 0.5 * losses[0]


def test_supervised_learning_takes_no_step_down_a_loss_that_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = policy("qwen2")
    real, before = here.logprobs, copied(here)
    monkeypatch.setattr(here, "logprobs", lambda *args: (real(*args)[0] - math.inf, None))
    with Run(tmp_path / "run", {}) as run:
        sft(here, examples(), SftConfig(steps=2, batch=20), run)
    assert [row["skipped_updates"] for row in read_metrics(tmp_path / "run")] == [1, 1]
    assert_same(copied(here), before)


KILLED = """
import os, signal, sys
from pathlib import Path
import msgspec, torch
torch.set_num_threads(1)
from llm_policy_help import drawing
from mempo_trainers.config import Config
from mempo_trainers.grpo import grpo
from mempo_trainers.policies.huggingface import PolicySettings, open_policy
from mempo_trainers.run import Run
model, folder, dies = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
here = open_policy(PolicySettings(model=model, max_new=6, warmup_steps=3), learning_rate=0.01)
config = Config(steps=5, questions=2, rollouts=4, kl=0.1, checkpoint_every=2)
calls, update = [0], here.update
def dying():
    calls[0] += 1
    if calls[0] == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return update()
here.update = dying
with Run(folder, {"config": msgspec.to_builtins(config)}) as run:
    grpo(here, drawing(here), config, run)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Killed in the middle of the fourth step, after a checkpoint at the second."""
    model = save(tmp_path / "model", small_network("qwen2", VOCABULARY), chatting())
    paths = [str(Path(__file__).parent), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}

    def train(folder: str, dies: int) -> int:
        arguments = [str(model), str(tmp_path / folder), str(dies)]
        return subprocess.run([sys.executable, "-c", KILLED, *arguments], env=env).returncode

    assert train("whole", 0) == 0
    assert train("killed", 4) == -signal.SIGKILL
    assert train("killed", 0) == 0
    whole, killed = (
        [{name: row[name] for name in row if "seconds" not in name} for row in read_metrics(tmp_path / f)]
        for f in ("whole", "killed")
    )
    assert whole == killed and len(whole) == 5
