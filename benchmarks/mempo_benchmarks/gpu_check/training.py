"""Sampling, gradients, and GRPO of a random network: on texts of its own, and in the environment."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from mempo_agents.models.base import Sampling
from mempo_agents.models.huggingface import HuggingFace
from mempo_agents.table import make_agent
from mempo_benchmarks.gpu_check.report import Report
from mempo_benchmarks.gpu_check.sizes import Size, loaded
from mempo_trainers.config import Config
from mempo_trainers.credit import Trajectories
from mempo_trainers.credit.data import MEM, NOT_GENERATED
from mempo_trainers.grpo import grpo
from mempo_trainers.llm.engines import InProcess
from mempo_trainers.losses import SAMPLER_GAP
from mempo_trainers.policies.base import Responses, Rollouts
from mempo_trainers.policies.huggingface import HuggingFacePolicy, PolicySettings
from mempo_trainers.run import Run
from mempo_trainers.run_files import read_metrics
from mempo_trainers.sample import Draw
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.prefix_tree import tree_logprobs
from mempo_trainers.scoring.table import open_scorer
from mempo_trainers.tokens import Ids, Ragged, View, plain_responses

ANSWER = np.arange(1, 9)


def synchronised(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def peak(device: str, reset: bool = False) -> float:
    """The most memory (GB) that tensors held since the last reset; 0 on a CPU."""
    if device == "cpu":
        return 0.0
    if reset:
        torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.max_memory_allocated(device) / 1e9


def policy_of(
    size: Size, device: str, dtype: Any, new: int, learning_rate: float = 1e-5
) -> HuggingFacePolicy:
    """A policy around the random network, whose memories are scored by trees."""
    settings = PolicySettings(
        model="random",
        device=device,
        dtype=dtype,
        max_new=new,
        batch_tokens=16_384,
        gradient_checkpointing=True,
    )

    def scorer(network: Any) -> Any:
        return open_scorer("prefix_tree", network, batch_tokens=settings.batch_tokens)

    return HuggingFacePolicy(loaded(size, device), settings, scorer, learning_rate=learning_rate)


def texts(size: Size, count: int, length: int, seed: int = 0) -> list[Ids]:
    """Random ids."""
    return list(np.random.default_rng(seed).integers(1, size.shape["vocab_size"], (count, length)))


def sampler(report: Report, size: Size, device: str) -> None:
    """How fast the engine samples, and how far its log-probs are from the trainer's."""
    for dtype in ("float32", "bfloat16"):
        policy = policy_of(size, device, dtype, size.new)
        prompts = texts(size, -(-size.rows // 8), size.prompt)
        seen = Ragged(tuple(prompts[i // 8] for i in range(size.rows)))
        policy.act(seen, torch.Generator().manual_seed(0))
        synchronised(device)
        began = time.perf_counter()
        written = policy.act(seen, torch.Generator().manual_seed(1))
        synchronised(device)
        seconds = time.perf_counter() - began
        mask_BK = written.roles_BK != NOT_GENERATED
        report.tell("sampler", f"{dtype}, {size.rows} rows (tokens/s)", float(mask_BK.sum()) / seconds)
        with torch.no_grad():
            same_BK = policy.logprobs(seen, written)[0].numpy()
        far = float(np.abs(same_BK - written.logprobs_BK)[mask_BK].max())
        most = 1e-3 if dtype == "float32" else SAMPLER_GAP
        report.tell("sampler", f"{dtype}, largest gap to the trainer (nats)", far, most=most)


def gradients(report: Report, size: Size, device: str) -> None:
    """Gradients of batches, and of trees, beside those of texts read one by one, in float32."""
    policy = policy_of(size, device, "float32", size.new)
    lengths = np.random.default_rng(1).integers(size.prompt // 2, size.prompt, 6)
    prompt = texts(size, 1, size.prompt)[0]
    seen = [prompt[:length] for length in lengths]
    written = [text[: 4 + 3 * i] for i, text in enumerate(texts(size, 6, 32, seed=2))]

    def batched() -> torch.Tensor:
        return policy.logprobs(Ragged(tuple(seen)), plain_responses(written))[0].sum()

    def by_tree() -> torch.Tensor:
        asked = [Asked(*pair) for pair in zip(seen, written, strict=True)]
        return torch.cat(tree_logprobs(policy.loaded.network, asked)).sum()

    def one_by_one() -> torch.Tensor:
        pairs = zip(seen, written, strict=True)
        return torch.stack([_alone(policy, one, two) for one, two in pairs]).sum()

    right = _gradient(policy, one_by_one)
    for name, function in (("batches", batched), ("trees", by_tree)):
        far = _gradient(policy, function).sub_(right).norm() / right.norm()
        report.tell("gradients", f"{name}, relative difference", float(far), most=1e-4)
    report.tell("gradients", "norm", float(right.norm()))


def _alone(policy: HuggingFacePolicy, seen: Ids, written: Ids) -> torch.Tensor:
    """The log-prob of a text by a plain pass over all of it."""
    network = policy.loaded.network
    ids = torch.from_numpy(np.concatenate([seen, written])).to(network.device)
    logp_SV = network(input_ids=ids[None], use_cache=False).logits[0, len(seen) - 1 : -1].log_softmax(-1)
    total: torch.Tensor = logp_SV.gather(1, ids[len(seen) :, None]).sum()
    return total


def _gradient(policy: HuggingFacePolicy, function: Callable[[], torch.Tensor]) -> torch.Tensor:
    """All of it, as one vector."""
    policy.optimizer.zero_grad()
    function().backward()  # type: ignore[no-untyped-call]
    held = [weight.grad for weight in policy.loaded.network.parameters() if weight.grad is not None]
    return torch.cat([gradient.flatten() for gradient in held])


def grpo_run(report: Report, size: Size, device: str) -> None:
    """GRPO with the memory term on texts of its own; the reward is the share of ids of the lower half."""
    policy = policy_of(size, device, "bfloat16", size.written, learning_rate=1e-4)
    _train(report, "training", policy, drawing(policy, size), size, device, size.steps)


def environment(report: Report, size: Size, device: str) -> None:
    """Two steps in the environment, on its embedded questions, by the agent whose memory is trained."""
    if missing := [name for name in ("gymnasium", "tantivy") if find_spec(name) is None]:
        report.tell("environment", "left out", f"without {', '.join(missing)}")
        return
    from mempo_trainers.llm.settings import Task
    from mempo_trainers.text import drawing as played

    policy = policy_of(size, device, "bfloat16", size.written)
    task = Task(sets=8, environment={"max_rounds": 3})
    sampling = Sampling(temperature=1.0, max_tokens=policy.max_new)
    engine = InProcess(HuggingFace(loaded=policy.loaded, batch=size.rows, sampling=sampling), policy)
    draw = played(
        lambda _: make_agent("mempo", model=engine),
        policy.tokenizer,
        task.asked("train"),
        task.env_kwargs("train"),
        size.group,
        seed=0,
    )
    _train(report, "environment", policy, draw, size, device, steps=2)


class _Over(Exception):
    """All steps that were wanted are done."""


def _train(
    report: Report, part: str, policy: HuggingFacePolicy, draw: Draw, size: Size, device: str, steps: int
) -> None:
    """Train without a checkpoint, which would be of gigabytes; tell what the metrics say."""

    def ending(step: int, attempt: int, questions: int) -> Rollouts:
        if step > steps:
            raise _Over
        return draw(step, attempt, questions)

    config = Config(
        steps=steps + 1,
        questions=size.questions,
        rollouts=size.group,
        kl=1e-3,
        kl_kind="low_var_kl",
        checkpoint_every=steps + 1,
        sampler_gap=10.0,
    )
    peak(device, reset=True)
    with tempfile.TemporaryDirectory() as scratch:
        with suppress(_Over), Run(Path(scratch), {}) as run:
            grpo(policy, ending, config, run, watch=lambda step: _memory(device))
        rows = read_metrics(Path(scratch))
    _tell(report, part, rows, steps)


def _memory(device: str) -> Mapping[str, float]:
    synchronised(device)
    return {"peak_gb": peak(device)}


def _tell(report: Report, part: str, rows: Sequence[Mapping[str, Any]], steps: int) -> None:
    report.tell(part, "steps", float(len(rows)), least=steps)
    report.tell(part, "KL of the first step", abs(float(rows[0]["kl"])), most=1e-6)
    report.tell(part, "losses", ", ".join(f"{row['loss']:.3g}" for row in rows))
    report.tell(part, "rewards", ", ".join(f"{row['reward']:.3f}" for row in rows))
    report.tell(part, "updates skipped", float(sum(row["skipped_updates"] for row in rows)), most=0)
    gap = max(float(row["sampler_gap"]) for row in rows)
    report.tell(part, "largest gap of sampler and trainer (nats)", gap, most=SAMPLER_GAP)
    report.tell(part, "peak memory (GB)", max(float(row["peak_gb"]) for row in rows))
    later = rows[1:] or rows
    whole, play, score = (
        float(np.mean([row[name] for row in later]))
        for name in ("seconds", "rollout_seconds", "score_seconds")
    )
    tokens = float(np.mean([row["completion_tokens"] for row in later]))
    report.tell(part, "a step (s)", whole)
    report.tell(part, "of it rollouts (s)", play)
    report.tell(part, "of it scoring (s)", score)
    report.tell(part, "of it log-probs, reference, update (s)", whole - play - score)
    report.tell(part, "completion tokens/s", tokens / whole)


def drawing(policy: HuggingFacePolicy, size: Size) -> Draw:
    """Rollouts of two rounds: the second reads what the first wrote, whose first third is a memory."""

    def draw(step: int, attempt: int, questions: int) -> Rollouts:
        n = questions * size.group
        prompts = texts(size, questions, size.prompt, seed=step)
        first = [prompts[i // size.group] for i in range(n)]
        generator = torch.Generator().manual_seed(step)
        begun = _remembering(policy.act(Ragged(tuple(first)), generator))
        second = [np.concatenate([one, ids]) for one, ids in zip(first, _ids(begun), strict=True)]
        ended = _remembering(policy.act(Ragged(tuple(second)), generator))
        seen = [context for pair in zip(first, second, strict=True) for context in pair]
        wrote = [ids for pair in zip(_ids(begun), _ids(ended), strict=True) for ids in pair]
        written = _interleaved(begun, ended)
        share_N = np.array(
            [(np.concatenate(wrote[2 * i : 2 * i + 2]) < _half(size)).mean() for i in range(n)]
        )
        notes = [np.concatenate([first[i // 2], ids[: max(1, len(ids) // 3)]]) for i, ids in enumerate(wrote)]
        data = Trajectories(
            question_N=np.repeat(np.arange(questions), size.group),
            outcome_N=share_N,
            shaping_N=np.zeros(n),
            masked_N=np.zeros(n, bool),
            rollout_R=np.repeat(np.arange(n), 2),
            number_R=np.tile([1, 2], n),
            round_B=np.arange(2 * n),
            roles_BK=written.roles_BK,
        )
        views = _views(notes), _views(seen), _views(seen), _views(first)
        return Rollouts(data, Ragged(tuple(seen)), written, *views, share_N > 0.5)

    return draw


def _half(size: Size) -> int:
    return size.shape["vocab_size"] // 2


def _views(contexts: Sequence[Ids]) -> Ragged:
    return Ragged(tuple(View(context, ((ANSWER[:1], ANSWER),)) for context in contexts))


def _ids(written: Responses) -> list[Ids]:
    n_B = (written.roles_BK != NOT_GENERATED).sum(1)
    return [row[:n] for row, n in zip(written.tokens_BK, n_B, strict=True)]


def _remembering(written: Responses) -> Responses:
    """The same with the first third of each text as memory."""
    n_B = (written.roles_BK != NOT_GENERATED).sum(1)
    memory_BK = np.arange(written.roles_BK.shape[1]) < np.maximum(1, n_B // 3)[:, None]
    roles_BK = np.where(memory_BK, MEM, written.roles_BK).astype(np.int8)
    return msgspec.structs.replace(written, roles_BK=roles_BK)


def _interleaved(one: Responses, two: Responses) -> Responses:
    """Rows of both in turn."""
    width = max(one.tokens_BK.shape[1], two.tokens_BK.shape[1])

    def both(name: str) -> Any:
        arrays = [getattr(each, name) for each in (one, two)]
        wide = [np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays]
        return np.stack(wide, axis=1).reshape(-1, width)

    return Responses(both("tokens_BK"), both("roles_BK"), both("logprobs_BK"))
