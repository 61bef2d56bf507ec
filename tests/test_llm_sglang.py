"""Training with a server that generates and scores: a stand-in over a real socket, and a real one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import scripted
from llm_help import make_network, make_tokenizer, needs_transformers, save
from mempo_agents.models.sglang import open_sglang, wait_until_ready
from mempo_env.cli import main
from mempo_env.errors import ConfigError
from mempo_trainers import checkpoint
from mempo_trainers.credit.data import Floats, Trajectories
from mempo_trainers.llm import engines
from mempo_trainers.llm.settings import Sampler, Setup, Task
from mempo_trainers.llm.train import train
from mempo_trainers.policies.huggingface import PolicySettings
from mempo_trainers.run_files import CHECKPOINT, RESULT
from mempo_trainers.scoring.base import Asked
from mempo_trainers.scoring.naive import Naive
from mempo_trainers.scoring.server import ServerScorer
from mempo_trainers.text import persistently
from train_help import metrics, toml

needs_transformers()

SERVE = Path(__file__).parent / "sglang_serve.py"
ENVIRONMENT = {"system_prompt": "", "hint": False, "top_k": 1, "max_rounds": 2}
TASK = Task(objectives=1, sets=6, held_out=3, environment=ENVIRONMENT)  # type: ignore[arg-type]


def alternating(data: Trajectories) -> Floats:
    """Advantages that are alive whatever is played, so that every step changes the weights."""
    sign_B = np.where(data.rollout_B % 2, -1.0, 1.0)
    advantages: Floats = np.where(data.mask_BK, sign_B[:, None], 0.0).astype(np.float32)
    return advantages


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer()
    return save(tmp_path_factory.mktemp("model"), make_network(tokenizer, window=4096), tokenizer)


@contextmanager
def serving(model: Path, **faults: Any) -> Iterator[str]:
    """The address of a stand-in, which may still be starting."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVE, str(model), str(port), json.dumps(faults)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def setup(model: Path, url: str, scorer: str = "server", every: int = 0, **changes: Any) -> Setup:
    sampler: dict[str, Any] = {"wait": 60.0, "scorer": scorer if url else "naive"}
    loop: dict[str, Any] = {"steps": 5, "questions": 2, "rollouts": 2, "learning_rate": 1e-2}
    for name, value in changes.items():
        (sampler if name in Sampler.__struct_fields__ else loop)[name] = value
    loop = {"credit": f"{__name__}:alternating", "checkpoint_every": 10, **loop}
    return Setup(
        policy=PolicySettings(model=str(model), max_new=12),
        task=TASK,
        sampler=Sampler(url=url, **sampler),
        config=msgspec.structs.replace(Setup.__struct_defaults__[2], **loop),
        evaluate_every=every,
    )


def arguments(setup: Setup, file: Path, out: Path) -> list[str]:
    """Of the command that trains so."""
    parts = msgspec.to_builtins(setup)
    lines = [f"evaluate_every = {parts.pop('evaluate_every')}"]
    for name, part in parts.items():
        lines += [
            f"[{name}]",
            *(f"{key} = {toml(value)}" for key, value in part.items() if value is not None),
        ]
    file.write_text("\n".join(lines))
    return ["train", "llm", "--config", str(file), "--out", str(out)]


def asked(url: str) -> dict[str, int]:
    """How often the stand-in was asked for what."""
    with urllib.request.urlopen(f"{url}/asked") as answer:
        counts: dict[str, int] = json.load(answer)
    return counts


class Both:
    """Asks the server, and compares with the network in this process."""

    name, fallback = "server", ""

    def __init__(self, server: ServerScorer, naive: Naive) -> None:
        self.server, self.naive, self.compared = server, naive, 0

    def logprobs(self, asked: list[Asked]) -> list[Floats]:
        told = self.server.logprobs(asked)
        for one, other in zip(told, self.naive.logprobs(asked), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
        self.compared += len(told)
        return told


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> list[Both]:
    """Scorers of servers, each beside `naive`, as they are opened."""
    opened: list[Any] = []
    real: Callable[..., Any] = engines.open_scorer

    def open_both(name: str, network: Any = None, **rest: Any) -> Any:
        made = real(name, network, **rest)
        if name == "server":
            made = Both(made, opened.pop())
        opened.append(made)
        return made

    monkeypatch.setattr(engines, "open_scorer", open_both)
    return opened


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a server that stayed alive."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with serving(model) as url:
        train(setup(model, url, steps=4, every=4), out)
    return out


# --- Steps -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_server_gets_new_weights_each_step_and_agrees_with_the_trainer(
    model: Path, tmp_path: Path, both: list[Both]
) -> None:
    """And what is learned is what is learned without a server: seeds are the same."""
    with serving(model) as url:
        train(setup(model, url), tmp_path / "served")
        counts = asked(url)
    (scorer,) = both
    rows = metrics(tmp_path / "served")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert all(row["sampler_gap"] < 1e-4 and row["grad_norm"] > 0 and row["failed"] == 0 for row in rows)
    assert counts["update"] == 6  # before each step, and before the evaluation at the end
    assert scorer.compared == counts["score"] > 0
    both.clear()
    train(setup(model, ""), tmp_path / "inside")
    for row, other in zip(rows, metrics(tmp_path / "inside"), strict=True):
        assert (row["completion_tokens"], row["edit_distance"]) == (
            other["completion_tokens"],
            other["edit_distance"],
        )
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-3)


# --- What goes wrong ---------------------------------------------------------------------------------------

DEATHS = {
    "in the middle of a step": (["generate", 3, 4], 2),
    "while it scores": (["score", 3, 2], 2),
    "before it takes the weights": (["update", 3, 1], 2),
    "in an evaluation": (["generate", 5, 1], 4),  # the fifth weights are those after step 4
}
"""When a server dies, and the step of the checkpoint that is left."""


@pytest.mark.slow
@pytest.mark.parametrize("when", DEATHS)
def test_a_server_that_is_killed_ends_the_run_which_goes_on_bit_for_bit(
    when: str, model: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    die, saved = DEATHS[when]
    out = tmp_path / "run"
    with serving(model, die=die) as url:
        wait_until_ready(open_sglang(f"{model}@{url}"))
        made = setup(model, url, steps=4, every=4, wait=4.0)
        command = arguments(made, tmp_path / "run.toml", out)
        assert main(command) == 2
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mempo: ")]
        assert len(told) == 1 and url in told[0]
        assert checkpoint.read(out / CHECKPOINT)["step"] == saved
    with serving(model) as other:
        wait_until_ready(open_sglang(f"{model}@{other}"))
        assert main([*command, "--set", f"sampler.url={other}"]) == 0
    expected = metrics(whole)
    if when == "in an evaluation":  # nor are they told again: the step was learned
        told = {"score_failed", "score_gap", *(name for name in expected[-1] if name.startswith("dev_"))}
        expected[-1] = {name: value for name, value in expected[-1].items() if name not in told}
    assert metrics(out) == expected
    assert (out / RESULT).read_bytes() == (whole / RESULT).read_bytes()


@pytest.mark.parametrize("call", [["generate", 1, 2], ["update", 1, 1]])
def test_a_server_that_hangs_gets_as_long_as_it_may_be_unwell(
    call: list[Any], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the ten minutes that a call to a server may take that says that it is well."""
    with serving(model, hang=call) as url:
        wait_until_ready(open_sglang(f"{model}@{url}"))
        made = setup(model, url, scorer="prefix_tree", steps=3, wait=1.0)
        assert main(arguments(made, tmp_path / "run.toml", tmp_path / "run")) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mempo: ")]
    assert len(told) == 1 and "1 s" in told[0]


def test_an_answer_that_is_late_is_no_fault_of_the_policy(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its episodes would be rollouts of reward 0."""

    def late(asked: scripted.Asked) -> bool:
        if b"input_ids" in asked.body:
            return scripted.hang(asked)
        return scripted.ok({"success": True})(asked)

    monkeypatch.setattr(engines, "LONGEST", 0.3)
    with scripted.serving(late) as server:
        made = setup(model, server.url)
        learner = engines.opened(made.policy, made.sampler, "mempo", tmp_path, learning_rate=1e-3)
        player = learner.players(np.random.default_rng(0))
        played, failed = persistently(player, TASK.asked("dev"), TASK.env_kwargs("dev"), 0, 1)
    assert all(episode.mask_episode and "no answer in time" in episode.stop_detail for episode in played)
    assert failed == TASK.held_out + 1


@pytest.mark.slow
@pytest.mark.parametrize(("spare", "masked"), [(8, False), (0, True)])
def test_calls_that_fail_are_counted_played_again_or_masked(
    spare: int, masked: bool, model: Path, tmp_path: Path
) -> None:
    with serving(model, fail=5) as url:
        train(setup(model, url, scorer="prefix_tree", steps=3, spare=spare, every=1), tmp_path / "run")
    rows = metrics(tmp_path / "run")
    assert any(row["dev_failed"] > 0 for row in rows)
    asked = TASK.held_out
    lost = [round(row["dev_failed"] * asked) if masked else 0 for row in rows]
    assert [row["dev_episodes"] for row in rows] == [asked - n for n in lost]
    assert len(rows) == 3 and any(row["failed"] > 0 for row in rows)
    if masked:
        assert all(row["failed"] == row["masked"] for row in rows)
        assert [row["rollouts"] for row in rows] == [round(4 * (1 - row["masked"])) for row in rows]
    else:
        assert all(row["masked"] == 0 and row["rollouts"] == 4 for row in rows)


MEMPO = {"credit": "mempo", "learning_rate": 1e-3}


def test_scores_that_fail_are_told_in_each_row_and_the_weights_sent_once_a_step(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(model, short=[3, 4]) as url:
        train(setup(model, url, steps=2, **MEMPO), tmp_path / "run")
        counts = asked(url)
    rows = metrics(tmp_path / "run")
    assert [0 < row["score_failed"] < 1 and row["score_gap"] < 1e-4 for row in rows] == [True, True]
    assert counts["update"] == 3
    told = [line for line in capsys.readouterr().err.splitlines() if "score_failed" in line]
    assert len(told) == 1 and "wanted log-probabilities of" in told[0]


def test_a_step_without_any_score_ends_the_run_after_the_step_before(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with serving(model) as url:
        train(setup(model, url, steps=1, **MEMPO), tmp_path / "one")
        first = asked(url)["score"]
    with serving(model, short=[first + 1, 1]) as url:
        assert main(arguments(setup(model, url, steps=3, **MEMPO), tmp_path / "run.toml", out)) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mempo: ")]
    assert len(told) == 1 and "wanted scores of memories, got none" in told[0]
    assert [row["step"] for row in metrics(out)] == [1]
    assert checkpoint.read(out / CHECKPOINT)["step"] == 1


def test_a_server_with_other_weights_is_found_by_an_evaluation(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last of a run, before which nothing else looks at the weights of the last step."""
    made = {"scorer": "prefix_tree", "steps": 1, "every": 1, "learning_rate": 1e-2}
    with serving(model) as url:
        result = train(setup(model, url, **made), tmp_path / "fine")
    assert result["sampler_gap"] < 1e-4 and metrics(tmp_path / "fine")[0]["dev_sampler_gap"] < 1e-4
    assert json.loads((tmp_path / "fine" / RESULT).read_bytes())["sampler_gap"] == result["sampler_gap"]
    out = tmp_path / "run"
    with serving(model, stale=2) as url:
        assert main(arguments(setup(model, url, **{**made, "every": 0}), tmp_path / "run.toml", out)) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mempo: ")]
    wanted = "mempo: log-probs of the server in an evaluation: wanted the trainer's own within 0.05 nats"
    assert len(told) == 1 and told[0].startswith(wanted)
    assert checkpoint.read(out / CHECKPOINT)["step"] == 1 and not (out / RESULT).exists()


@pytest.mark.parametrize("sampler_gap", [0.05, 1.0])
def test_a_server_with_other_weights_is_found_by_its_scores(
    sampler_gap: float, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beyond the limit of the run."""
    with serving(model, shift=0.3) as url:
        made = setup(model, url, steps=1, sampler_gap=sampler_gap, **MEMPO)
        ended = main(arguments(made, tmp_path / "run.toml", tmp_path / "run"))
    if sampler_gap == 1.0:
        assert ended == 0
        assert metrics(tmp_path / "run")[0]["score_gap"] == pytest.approx(0.3, abs=1e-4)
    else:
        told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mempo: ")]
        assert ended == 2 and len(told) == 1 and "log-probs of the server that scores" in told[0]


def test_no_server_is_told_before_anything_is_written(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    out = tmp_path / "run"
    assert main(arguments(setup(model, url, wait=0.5), tmp_path / "run.toml", out)) == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert told.startswith(
        f"mempo: sampler.url {url}: wanted a healthy SGLang server within 0.5 s, got no connection"
    )
    assert not out.exists()


def test_a_run_does_not_go_on_without_a_server_or_with_one_it_never_had(
    model: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = setup(model, "", steps=4, every=4)
    assert main(arguments(made, tmp_path / "run.toml", whole)) == 2
    assert "sampler.url: 'http" in capsys.readouterr().err


def test_a_scorer_by_the_server_needs_one() -> None:
    with pytest.raises(ConfigError, match=r"scorer: .server. needs sampler\.url"):
        Sampler(scorer="server")


# --- A real server -----------------------------------------------------------------------------------------

REAL = "MEMPO_TEST_SGLANG"
"""Names a server that runs: MODEL@URL, with the folder of the model that it serves in float32."""


@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL}=FOLDER@URL names no SGLang server that runs")
@pytest.mark.parametrize("scorer", ["server", "prefix_tree"])
def test_a_real_server_plays_and_scores_as_the_trainer_does(
    scorer: str, tmp_path: Path, both: list[Both]
) -> None:
    """Five steps with new weights each; then it gets its own back."""
    folder, _, url = os.environ[REAL].rpartition("@")
    try:
        train(setup(Path(folder), url, scorer=scorer, learning_rate=1e-3), tmp_path / "run")
    finally:
        open_sglang(os.environ[REAL]).update_weights(Path(folder))
    rows = metrics(tmp_path / "run")
    assert len(rows) == 5 and all(row["sampler_gap"] < 1e-4 and row["grad_norm"] > 0 for row in rows)
    assert scorer == "prefix_tree" or both[0].compared > 0
