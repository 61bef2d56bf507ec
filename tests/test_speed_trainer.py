"""A training step beside TRL's: the work, what is refused, the tables by hand, and that both run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mempo_benchmarks.speed import trainer
from mempo_benchmarks.speed.peers import LOOPS, PeerError, System, installed, ours
from mempo_env.files import cache_folder

pytest.importorskip("transformers", reason="needs mempo[llm]")

MINE, THEIRS = (System(name, Path("python"), "play", "json", {"v": "1"}) for name in ("mempo", "trl"))


def told(seconds: Sequence[float], tokens: int = 100, reward: float = 0.5) -> dict[str, Any]:
    parts = {"generation": 0.5, "reference": 0.1, "log-probs": 0.2, "optimiser": 0.05}
    return {
        "seconds": list(seconds),
        "processor": [1.0] * len(seconds),
        "tokens": [tokens] * len(seconds),
        "reward": reward,
        "parts": parts,
    }


def test_the_work_is_that_of_the_comparison(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer.write_work(tmp_path, prompts=5)
    network = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert sum(weight.numel() for weight in network.parameters()) == 135_744
    work = json.loads((tmp_path / "work.json").read_bytes())
    assert (work["questions"] * work["group"], work["completion"], work["beta"]) == (16, 64, 1e-3)
    lengths = [len(tokenizer.encode(prompt)) for prompt in work["prompts"]]
    assert len(lengths) == 5 and all(64 <= length <= 128 for length in lengths)
    assert lengths == [len(prompt) for prompt in work["prompts"]]


def test_ours_trains_on_it(tmp_path: Path) -> None:
    from mempo_benchmarks.speed.players import play_trainer

    trainer.write_work(tmp_path, prompts=4)
    run = play_trainer.train(str(tmp_path), steps=2, before=1, threads=1)
    assert len(run["seconds"]) == len(run["processor"]) == len(run["tokens"]) == 2
    assert all(16 < tokens <= 16 * 64 for tokens in run["tokens"]) and 0.3 < run["reward"] < 0.7
    assert run["parts"].keys() == set(trainer.PARTS)
    assert sum(run["parts"].values()) <= sum(run["processor"]) / 2


@pytest.mark.slow
def test_trl_does_the_same_work(tmp_path: Path) -> None:
    folder = cache_folder() / "speed" / LOOPS["trl"].requirements[0].replace("==", "-")
    if not (folder / "requirements.json").is_file():
        pytest.skip("TRL is not installed: `python -m mempo_benchmarks.speed.trainer` does it")
    mine = msgspec.structs.replace(ours(("torch",)), player=trainer.PLAYER)
    both = trainer.compare([mine, installed("trl")], rounds=1, steps=2, threads=1)
    assert [run["parts"].keys() for (run,) in both] == [set(trainer.PARTS)] * 2
    assert [len(run["tokens"]) for (run,) in both] == [2, 2]


def test_other_work_is_refused() -> None:
    trainer.check_same(told([1.0]), told([3.0], tokens=95, reward=0.53), "trl")
    with pytest.raises(PeerError, match=r"about 100 tokens a step .* got 80 and"):
        trainer.check_same(told([1.0]), told([1.0], tokens=80), "trl")
    with pytest.raises(PeerError, match=r"a reward of 0.500, got 100 and 0.600"):
        trainer.check_same(told([1.0]), told([1.0], reward=0.6), "trl")


def test_the_tables_by_hand() -> None:
    """Two rounds: 3 s and 4 s for 200 tokens each, beside 6 s and 6 s: 2 and 1.5 times, 1.75 between."""
    runs = [[told([1.0, 2.0]), told([2.0, 2.0])], [told([3.0, 3.0]), told([3.0, 3.0])]]
    text = trainer.report([MINE, THEIRS], {1: runs})
    assert "| mempo | 17.5 ms | 15 ms to 20 ms | 57 |  |" in text
    assert "| trl | 30 ms | 30 ms to 30 ms | 33 | 1.75 times (1.50 to 2.00) |" in text
    assert text.count("| mempo | 500.0 | 100.0 | 200.0 | 50.0 | 150.0 | 1000.0 |") == 1


def test_without_trl_it_is_skipped(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    def gone(name: str) -> System:
        raise PeerError("pip: no matching\ndistribution")

    monkeypatch.setattr(trainer, "installed", gone)
    monkeypatch.setattr(trainer, "ours", lambda told: MINE)
    assert trainer.main(["--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "SKIP: without trl: pip: no matching distribution\n"
    assert not (tmp_path / "out").exists()
