r"""One language model played in this process and behind servers: are these the same episodes?

python -m mempo_benchmarks.real_models --model FOLDER --endpoint http://127.0.0.1:8000/v1 \
    --sglang http://127.0.0.1:30000 --out runs/real_models

The agent `mempo` plays the first questions of the synthetic Wikipedia's test split with the same model, the
likeliest token always, through each back end. The episodes of the servers are compared with those of
`huggingface`, word for word; where ids are known, each log-probability with that of one forward pass over
prompt and output, which is what a trainer computes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import msgspec
import torch
from msgspec import Struct

from mempo_agents import make_agent
from mempo_agents.models.base import Model, Sampling
from mempo_agents.models.endpoint import Endpoint
from mempo_agents.models.huggingface import open_huggingface
from mempo_agents.models.network import Loaded
from mempo_agents.models.sglang import SGLang, wait_until_ready
from mempo_agents.rollout import episodes as play
from mempo_env import ENVIRONMENTS
from mempo_env.env import SearchQAEnv
from mempo_env.files import atomic_file
from mempo_env.types import Call, Episode

ENV: dict[str, Any] = {"dataset": "synthetic", "split": "test", "max_rounds": 4}
SAMPLING = Sampling(max_tokens=96)
PATIENT: dict[str, Any] = {"sampling": SAMPLING, "read": 600.0, "total": 1800.0, "concurrency": 4}
"""A CPU that does other work, too, may take minutes for an answer."""


class Played(Struct, frozen=True):
    """What came of one back end: its episodes in the order of the questions, and seconds of wall time."""

    episodes: tuple[Episode, ...]
    seconds: float


def played(model: Model, questions: int) -> Played:
    """Play the first questions with a model, all at a time."""
    env = gym.make(next(iter(ENVIRONMENTS)), **ENV).unwrapped
    assert isinstance(env, SearchQAEnv)
    ids = [question.id for question in env.questions[:questions]]
    started = time.monotonic()
    found = dict(play(make_agent("mempo", model=model), ids, env_kwargs=ENV, num_envs=len(ids)))
    return Played(tuple(found[i] for i in range(len(ids))), time.monotonic() - started)


def calls(episodes: Sequence[Episode]) -> Iterator[Call]:
    """Every call in some episodes."""
    return (call for episode in episodes for played in episode.rounds for call in played.calls)


def largest_difference(model: Loaded, episodes: Sequence[Episode]) -> float | None:
    """Largest |log-probability in a call - that of one forward pass| in nats; None without log-probs."""
    known = [call for call in calls(episodes) if call.logprobs]
    return max((_difference(model, call) for call in known), default=None)


def _difference(model: Loaded, call: Call) -> float:
    ids_T = torch.tensor([*call.prompt_ids, *call.output_ids], device=model.network.device)
    with torch.inference_mode():
        logits_TV = model.network(input_ids=ids_T[None], logits_to_keep=len(call.output_ids) + 1).logits[0]
    wanted = logits_TV[:-1].float().log_softmax(-1).gather(1, ids_T[-len(call.output_ids) :, None])[:, 0]
    return float((wanted.cpu() - torch.tensor(call.logprobs)).abs().max())


def table(played: Mapping[str, Played], model: Loaded) -> str:
    """A row for each back end, the first one being what the others are compared with."""
    first = next(iter(played.values())).episodes
    lines = [
        "| back end | episodes | ended by | rounds | prompt tokens | output tokens | the same episodes "
        "| the same rounds | log-probs within | wall time |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in played.items():
        difference = largest_difference(model, one.episodes)
        texts, other = _texts(one.episodes), _texts(first)
        same = sum(mine == its for mine, its in zip(texts, other, strict=True))
        rounds = [_alike(mine, its) for mine, its in zip(texts, other, strict=True)]
        cells = [
            f"`{name}`",
            len(one.episodes),
            _counted(str(episode.stop_reason) for episode in one.episodes),
            sum(map(len, texts)),
            sum(played.tokens.prompt for episode in one.episodes for played in episode.rounds),
            sum(played.tokens.output for episode in one.episodes for played in episode.rounds),
            same,
            f"{sum(rounds)} of {sum(map(len, other))}",
            "-" if difference is None else f"{difference:.1e}",
            f"{one.seconds:.0f} s",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _texts(episodes: Sequence[Episode]) -> list[list[str]]:
    return [[played.text for played in episode.rounds] for episode in episodes]


def _alike(mine: Sequence[str], other: Sequence[str]) -> int:
    """Rounds that are the same before the first that is not: what follows has another prompt."""
    for number, (one, two) in enumerate(zip(mine, other, strict=False)):
        if one != two:
            return number
    return min(len(mine), len(other))


def _counted(words: Iterator[str]) -> str:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return ", ".join(f"{word} {number}" for word, number in sorted(found.items()))


def main(argv: Sequence[str] | None = None) -> int:
    """Play, compare, and write the table and all episodes."""
    parser = argparse.ArgumentParser(prog="python -m mempo_benchmarks.real_models", description=__doc__)
    parser.add_argument("--model", required=True, help="folder or name of the model")
    parser.add_argument("--endpoint", help="address of an OpenAI-compatible server of the same model")
    parser.add_argument("--sglang", help="address of an SGLang server of the same model")
    parser.add_argument("--questions", type=int, default=10, help="how many")
    parser.add_argument("--out", type=Path, required=True, help="folder for the table and the episodes")
    options = parser.parse_args(argv)
    here = open_huggingface(options.model, sampling=SAMPLING, batch=options.questions)
    models: dict[str, Model] = {"huggingface": here}
    if options.endpoint:
        models["endpoint"] = Endpoint(model=options.model, url=options.endpoint, **PATIENT)
    if options.sglang:
        server = SGLang(model=options.model, url=options.sglang, **PATIENT)
        wait_until_ready(server)
        models["sglang"] = server
    found = {name: played(model, options.questions) for name, model in models.items()}
    report = table(found, here.loaded)
    for name, one in found.items():
        with atomic_file(options.out / f"{name}.jsonl") as file:
            file.writelines(msgspec.json.encode(episode) + b"\n" for episode in one.episodes)
    with atomic_file(options.out / "results.md") as file:
        file.write(report.encode())
    sys.stdout.write(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
