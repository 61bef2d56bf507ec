"""The comparison of one model's back ends, with a model made here."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from llm_help import make_network, make_tokenizer, save
from mempo_agents.models.base import Sampling
from mempo_agents.models.huggingface import open_huggingface
from mempo_benchmarks import real_models
from mempo_env.types import Episode


def test_a_model_plays_the_same_episodes_twice_and_another_one_others(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    folder = save(tmp_path / "wild", make_network(tokenizer, window=8192), tokenizer)
    assert real_models.main(["--model", str(folder), "--questions", "2", "--out", str(tmp_path / "out")]) == 0
    report = (tmp_path / "out" / "results.md").read_text()
    lines = (tmp_path / "out" / "huggingface.jsonl").read_bytes().splitlines()
    episodes = [msgspec.json.decode(line, type=Episode) for line in lines]
    rounds = sum(len(episode.rounds) for episode in episodes)
    (row,) = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.splitlines()[2:]]
    assert row[:2] == ["`huggingface`", "2"] and row[6:8] == ["2", f"{rounds} of {rounds}"]
    assert 0 <= float(row[8]) < 1e-4
    assert all(json.loads(line)["rounds"][0]["token_ids"] for line in lines)

    here = open_huggingface(str(folder), sampling=real_models.SAMPLING)
    drawn = msgspec.structs.replace(here, sampling=Sampling(temperature=1.0, max_tokens=96))
    both = {"one": real_models.played(here, 2), "drawn": real_models.played(drawn, 2)}
    assert both["one"].episodes == tuple(episodes)
    other = real_models.table(both, here.loaded).splitlines()[3].split("|")
    assert other[7:9] == [" 0 ", f" 0 of {rounds} "]
    assert float(other[9]) < 1e-4


def test_a_log_probability_that_is_wrong_is_seen(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    folder = save(tmp_path / "wild", make_network(tokenizer, window=8192), tokenizer)
    here = open_huggingface(str(folder), sampling=Sampling(max_tokens=4))
    (episode, *_) = real_models.played(here, 1).episodes
    first = episode.rounds[0]
    (call,) = first.calls
    moved = msgspec.structs.replace(call, logprobs=(call.logprobs[0] + 0.5, *call.logprobs[1:]))
    wrong = msgspec.structs.replace(
        episode, rounds=(msgspec.structs.replace(first, calls=(moved,)), *episode.rounds[1:])
    )
    found = real_models.largest_difference(here.loaded, [wrong])
    assert found is not None and abs(found - 0.5) < 1e-4
    assert real_models.largest_difference(here.loaded, []) is None


def test_rounds_are_compared_up_to_the_first_that_differs() -> None:
    assert real_models._alike(["a", "b", "c"], ["a", "x", "c"]) == 1
    assert real_models._alike(["a", "b"], ["a", "b", "c"]) == 2
    assert real_models._alike([], ["a"]) == 0
