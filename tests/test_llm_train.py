"""A language model of transformers in the loops: settings, runs, what a killed run goes on with."""

from __future__ import annotations

import json
import shutil
import signal
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch

from llm_help import make_network, make_tokenizer, needs_transformers, save
from mempo_agents.models.base import ModelError, Prompt
from mempo_env.cli import main
from mempo_env.errors import ConfigError, DataError, ResultsError
from mempo_env.types import Call
from mempo_trainers import checkpoint
from mempo_trainers.llm.engines import Served, opened, save_anew
from mempo_trainers.llm.settings import Sampler, Setup, SftSetup, Task, read_setup
from mempo_trainers.llm.train import BEST, POLICY, Watcher, imitate, train
from mempo_trainers.policies.huggingface import PolicySettings, open_policy
from mempo_trainers.run_files import CHECKPOINT, RESULT, SETTINGS
from mempo_trainers.text import play
from mempo_trainers.threads import fitting
from tiny_lm_help import sharp
from train_help import disk_of, ended, mempo, metrics, toml

needs_transformers()

ENVIRONMENT = {"system_prompt": "", "hint": False, "top_k": 1, "max_rounds": 2}
TASK = Task(objectives=1, sets=6, held_out=3, environment=ENVIRONMENT)  # type: ignore[arg-type]
LOOP = {"steps": 3, "questions": 2, "rollouts": 2, "learning_rate": 1e-3, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = make_tokenizer()
    return save(tmp_path_factory.mktemp("model"), make_network(tokenizer, window=4096), tokenizer)


def setup(model: Path, evaluate_every: int = 2, loop: dict[str, Any] | None = None, **policy: Any) -> Setup:
    return Setup(
        policy=PolicySettings(model=str(model), max_new=12, **policy),
        task=TASK,
        config=msgspec.structs.replace(Setup.__struct_defaults__[2], **{**LOOP, **(loop or {})}),
        evaluate_every=evaluate_every,
    )


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(setup(model), out)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = checkpoint.read(out / CHECKPOINT)["policy"]["weights"]
    return found


def assert_same(one: Path, other: Path) -> None:
    assert metrics(one) == metrics(other)
    here, there = weights(one), weights(other)
    assert all(torch.equal(here[name], there[name]) for name in here | there)


# --- Settings ----------------------------------------------------------------------------------------------


def test_each_table_of_settings_has_at_most_25_fields() -> None:
    for kind in (Setup, SftSetup):
        tables = [field.type for field in msgspec.structs.fields(kind)]
        assert max(len(getattr(table, "__struct_fields__", ())) for table in (kind, *tables)) <= 25


def test_a_file_and_single_changes_make_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[policy]\nmodel = "m"\nlora_rank = 8\n[config]\nsteps = 7\ncredit_options = {weight = 2.0}\n'
    )
    made = read_setup(Setup, file, ["config.steps=9", "task.environment.top_k=1", "policy.device=cuda"])
    assert (made.config.steps, made.policy.lora_rank, made.policy.device) == (9, 8, "cuda")
    assert made.config.credit_options == {"weight": 2.0} and made.task.environment == {"top_k": 1}
    default = Setup(policy=PolicySettings(model="m"))
    assert made.config.learning_rate == default.config.learning_rate and made.config.kl == default.config.kl


@pytest.mark.parametrize(
    ("text", "changes", "told"),
    [
        ("", (), "policy"),
        ('[policy]\nmodel = "m"\n[confg]\n', (), "did you mean 'config'"),
        ('[policy]\nmodel = "m"\nlora_rnk = 3', (), r"\[policy\] .*did you mean 'lora_rank'"),
        ('[policy]\nmodel = "m"', ("config.steps=many",), r"\[config\] steps: wanted a whole number"),
        ('[policy]\nmodel = "m"', ("sampler.scorer=tree",), r"\[sampler\] .*scorer"),
        ("[policy", (), "wanted settings in TOML that can be read"),
        ('policy = "m"', (), "policy: wanted PolicySettings"),
        ('[policy]\nmodel = "m"', ("task.environment.objectives=3",), "none of the task's own settings"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_file_and_name(
    text: str, changes: Sequence[str], told: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        read_setup(Setup, file, changes)
    assert str(file) in str(caught.value)


# --- Runs --------------------------------------------------------------------------------------------------


def test_a_run_says_what_it_did(whole: Path, model: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rows = metrics(whole)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["kl"] == 0 and all(row["sampler_gap"] < 1e-4 for row in rows)
    assert "dev_em" not in rows[0] and 0 <= rows[1]["dev_em"] <= 1 and rows[1]["dev_episodes"] == 3
    settings = json.loads((whole / SETTINGS).read_text())
    assert settings["policy"]["model"] == str(model) and len(settings["model"]) == 16
    assert json.loads((whole / RESULT).read_text())["episodes"] == 3
    best = [f"{BEST}-000002"] if rows[1]["dev_em"] > 0 else []  # none is best while none is right
    assert [path.name for path in whole.glob(f"{BEST}-*")] == best
    learned = AutoModelForCausalLM.from_pretrained(whole / POLICY).state_dict()
    assert all(
        torch.equal(learned[name.removeprefix("network.")], value)
        for name, value in weights(whole).items()
        if name.startswith("network.")
    )
    AutoTokenizer.from_pretrained(whole / POLICY)


@pytest.mark.parametrize("step", [1, 2])
def test_a_run_that_was_killed_goes_on_bit_for_bit(
    step: int, model: Path, whole: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "run"
    held = msgspec.to_builtins(setup(model))
    parts = {name: part for name, part in held.items() if isinstance(part, dict)}
    lines = [f"evaluate_every = {held['evaluate_every']}"]
    for name, part in parts.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {toml(value)}" for key, value in part.items() if value is not None]
    file.write_text("\n".join(lines))
    process = mempo("train", "llm", "--config", file, "--out", out)
    rows = out / "metrics.jsonl"
    while len(rows.read_bytes().splitlines() if rows.exists() else ()) < step:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    code, err = ended(mempo("train", "llm", "--config", file, "--out", out))
    assert code == 0, err
    assert_same(out, whole)
    assert (out / RESULT).read_bytes() == (whole / RESULT).read_bytes()


@pytest.mark.parametrize(
    ("loop", "policy"),
    [
        ({"algo": "ppo", "credit": "mempo"}, {}),
        ({"dynamic_sampling": 1, "credit": "grpo"}, {}),
        ({"epochs": 2, "credit": "igpo"}, {"gradient_checkpointing": True}),
        ({"credit": "mempo", "kl": 0.1}, {"lora_rank": 2, "lora_alpha": 4}),
    ],
)
def test_each_way_to_train_learns_something(
    loop: dict[str, Any], policy: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    if policy.get("lora_rank"):
        pytest.importorskip("peft", reason="needs mempo[llm]")
    made = setup(model, 0, loop, **policy)
    train(made, tmp_path / "run")
    rows = metrics(tmp_path / "run")
    assert rows[0]["kl"] == 0 and all(row["sampler_gap"] < 1e-4 for row in rows)
    first = open_policy(made.policy).state_dict()["weights"]
    learned = any(row["grad_norm"] > 0 for row in rows)
    assert learned == any(
        not torch.equal(first[name], value) for name, value in weights(tmp_path / "run").items()
    )


def test_the_best_policy_stays_until_a_better_one_is_whole(model: Path, tmp_path: Path) -> None:
    made = opened(setup(model).policy, Sampler(scorer="naive"), "mempo", tmp_path, learning_rate=1e-3)
    (tmp_path / "metrics.jsonl").write_text('{"step":1,"dev_em":-0.5}\n')
    (tmp_path / f"{BEST}-000001").mkdir()
    watch = Watcher(made, TASK, TASK.asked("dev"), 2, tmp_path)
    with disk_of(50_000), pytest.raises(OSError):
        watch(2)
    assert [path.name for path in tmp_path.glob(f"{BEST}-*")] == [f"{BEST}-000001"]
    assert watch(2)["dev_seconds"] > 0
    assert [path.name for path in tmp_path.glob(f"{BEST}-*")] == [f"{BEST}-000002"]


def test_a_finished_run_is_left_as_it_is(model: Path, tmp_path: Path) -> None:
    made = setup(model, 0, {"steps": 1})
    result = train(made, tmp_path / "run", board=False)

    def files() -> dict[Path, Any]:
        found = (file for file in (tmp_path / "run").rglob("*") if file.is_file())
        return {file: (file.stat().st_ino, file.read_bytes()) for file in found}

    before = files()
    assert train(made, tmp_path / "run", board=False) == result
    assert files() == before
    (tmp_path / "run" / RESULT).write_text('{"em":')
    with pytest.raises(ResultsError, match=f"{RESULT}: .* was it edited by hand"):
        train(made, tmp_path / "run", board=False)
    longer = setup(model, 0, {"steps": 2})
    with disk_of(len(before[tmp_path / "run" / CHECKPOINT][1]) // 2), pytest.raises(OSError):
        train(longer, tmp_path / "run", board=False)
    train(longer, tmp_path / "run", board=False)
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


class Writes:
    """What can be saved as a file with a text."""

    text, fails = "", False

    def save(self, folder: Path) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        folder.mkdir()
        (folder / "text").write_text(self.text)


@pytest.mark.parametrize("killed", [1, 2, 3, 4, 5])
def test_a_policy_is_there_whole_whatever_ends_its_saving(
    killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a process killed at one of its steps; the next one saves, or its disk is full, too."""
    policy, place = cast(Any, Writes()), tmp_path / "policy"
    for policy.text in ("one", "two"):
        save_anew(policy, place)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    policy.fails = True
    with pytest.raises(OSError):
        save_anew(policy, place)
    assert (place / "text").read_text() == "two"
    policy.fails, policy.text, left = False, "three", killed

    def stops(name: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    for owner, name in ((Path, "rename"), (shutil, "rmtree")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, _r=real, _n=name, **k: (stops(_n), _r(*a, **k))[1])
    with suppress(KeyboardInterrupt):
        save_anew(policy, place)
    monkeypatch.undo()
    policy.fails = True
    with pytest.raises(OSError):
        save_anew(policy, place)
    assert (place / "text").read_text() in ("two", "three")
    policy.fails, policy.text = False, "four"
    save_anew(policy, place)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert (place / "text").read_text() == "four"


@pytest.mark.parametrize("em", [0.0, 0.25])
def test_no_policy_is_best_while_none_is_right(
    em: float, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mempo_trainers.llm.train.evaluate", lambda *_: {"em": em})
    made = opened(setup(model).policy, Sampler(scorer="naive"), "mempo", tmp_path, learning_rate=1e-3)
    Watcher(made, TASK, [], 2, tmp_path)(2)
    assert [path.name for path in tmp_path.glob(f"{BEST}-*")] == ([f"{BEST}-000002"] if em else [])


def test_another_model_under_the_same_name_is_refused(model: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(model, tmp_path / "model"))
    train(setup(here, 0, {"steps": 1}), tmp_path / "run")
    network = make_network(make_tokenizer(), window=4096)
    with torch.no_grad():
        network.lm_head.weight[0, 0] += 1
    network.save_pretrained(here)
    with pytest.raises(ResultsError, match="model: "):
        train(setup(here, 0, {"steps": 2}), tmp_path / "run")


def test_questions_too_few_or_unknown_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    made = Setup(policy=PolicySettings(model="none"), task=Task(objectives=500))
    with pytest.raises(ConfigError, match="objectives: wanted at most"):
        train(made, tmp_path / "run")
    made = Setup(policy=PolicySettings(model="none"), task=msgspec.structs.replace(TASK, sets=1))
    with pytest.raises(ConfigError, match="questions: wanted at most the 1 different"):
        train(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["random", "oracle", "mempoo"])
def test_an_agent_that_asks_no_model_is_refused_before_the_model_is_loaded(name: str, tmp_path: Path) -> None:
    task, policy = msgspec.structs.replace(TASK, agent=name), PolicySettings(model="none")
    with pytest.raises(ConfigError, match="agent"):
        train(Setup(policy=policy, task=task), tmp_path / "run")
    with pytest.raises(ConfigError, match="agent"):
        imitate(SftSetup(policy=policy, task=task), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_window_without_room_for_a_prompt_is_refused(model: Path, tmp_path: Path) -> None:
    """Every episode would end before its first round."""
    made = msgspec.structs.replace(setup(model), policy=PolicySettings(model=str(model), max_new=4096))
    with pytest.raises(ConfigError, match="max_new: wanted less than the 4,096 tokens"):
        train(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_server_gets_the_weights_when_they_have_changed(model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    class Server:
        name = fingerprint = "server"

        def __init__(self) -> None:
            self.given: list[dict[str, torch.Tensor]] = []

        def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
            return []

        def score(self, asked: Any) -> list[tuple[float, ...] | ModelError]:
            return []

        def update_weights(self, folder: Path) -> None:
            self.given.append(load_file(folder / "model.safetensors"))

    policy, server = open_policy(PolicySettings(model=str(model)), learning_rate=0.1), Server()
    served = Served(server, policy, tmp_path / "weights")
    assert served() is server and served() is server and len(server.given) == 1
    for weight in policy.loaded.network.parameters():
        weight.grad = torch.ones_like(weight)
    policy.update()
    served()
    assert len(server.given) == 2
    (name,) = [name for name in server.given[0] if "embed_tokens" in name]
    assert not torch.equal(server.given[0][name], server.given[1][name])


def test_a_dead_server_ends_the_run_with_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ["train", "llm", "--out", str(tmp_path / "run"), "--set", f"policy.model={model}"]
    assert main([*made, "--set", "sampler.url=http://127.0.0.1:9", "--set", "sampler.wait=1"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("mempo: ") and "127.0.0.1:9" in error


def test_a_small_network_gets_one_thread_and_a_large_one_all() -> None:
    """Two threads made a network of 135,744 weights half as fast."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with fitting(torch.nn.Linear(500, 1_000)):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with fitting(torch.nn.Linear(1_000, 1_000)):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_a_run_of_a_small_model_is_the_same_whatever_threads_there_are(model: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            train(setup(model), tmp_path / str(n))
    finally:
        torch.set_num_threads(threads)
    assert metrics(tmp_path / "1") == metrics(tmp_path / "2")


def test_a_tiny_policy_learns_here_as_it_does_from_the_toy_command(tmp_path: Path) -> None:
    """The same questions, the same warm start, the same numbers: there is one loop."""
    from mempo_env.questions.prepared import open_corpus, prepared
    from mempo_env.questions.world import synthetic
    from mempo_trainers.toy_text import WARM, askable
    from mempo_trainers.toy_text import train as toy_train
    from tiny_lm_help import LEARN, SMALL

    toy_train(SMALL, LEARN, tmp_path / "toy", board=False)
    world = synthetic(SMALL.world)
    with prepared(tmp_path / "data", "places", "synthetic") as writer:
        for question in filter(askable, world):
            writer.question(question, "world")
        for passage in open_corpus(world.folder):  # type: ignore[arg-type]
            writer.passage(passage)
    environment = SMALL.environment("train")
    plain = {name: environment[name] for name in ("top_k", "max_rounds", "reward", "system_prompt", "hint")}
    task = Task(
        dataset=str(tmp_path / "data"), objectives=2, sets=SMALL.episodes, held_out=2, environment=plain
    )
    policy = PolicySettings(model=str(tmp_path / "toy" / WARM / POLICY), max_new=SMALL.max_new)
    made = Setup(policy=policy, task=task, config=LEARN, evaluate_every=0)
    train(made, tmp_path / "run")
    assert metrics(tmp_path / "run") == metrics(tmp_path / "toy")
    here, there = (checkpoint.read(tmp_path / name / CHECKPOINT)["policy"] for name in ("run", "toy"))
    assert all(torch.equal(value, there["model"][name]) for name, value in here["model"].items())


@pytest.mark.parametrize(("agent", "memory"), [("bank", "bank"), ("react", "none"), ("memagent", None)])
def test_a_tiny_policy_plays_as_an_agent_that_is_asked_by_the_environment(
    agent: str, memory: str | None, tmp_path: Path
) -> None:
    tiny = sharp()
    tiny.save(tmp_path / "tiny")
    settings = PolicySettings(model=str(tmp_path / "tiny"), max_new=4)
    if memory is None:
        with pytest.raises(ConfigError, match=f"task.agent: wanted one .* got '{agent}': choose mempo"):
            opened(settings, Sampler(), agent, tmp_path, learning_rate=1e-3)
        return
    made = opened(settings, Sampler(), agent, tmp_path, learning_rate=1e-3)
    (episode,) = play(
        made.players(np.random.default_rng(0)), TASK.asked("dev")[:1], TASK.env_kwargs("dev"), 0
    )
    assert episode.settings["memory"] == memory


# --- Imitation ---------------------------------------------------------------------------------------------


def sft_setup(model: Path, **changes: Any) -> SftSetup:
    loop = msgspec.structs.replace(SftSetup.__struct_defaults__[3], steps=4, batch=4, learning_rate=0.01)
    policy = PolicySettings(model=str(model), max_new=250)
    task = msgspec.structs.replace(TASK, environment={**ENVIRONMENT, "max_rounds": 6})
    return SftSetup(**{"policy": policy, "task": task, "sft": loop, "evaluate_every": 0, **changes})


def test_imitation_lowers_the_loss_and_goes_on(model: Path, tmp_path: Path) -> None:
    imitate(sft_setup(model), tmp_path / "run")
    rows = metrics(tmp_path / "run")
    assert rows[-1]["loss"] < rows[0]["loss"]
    imitate(sft_setup(model), tmp_path / "run")
    assert metrics(tmp_path / "run") == rows


def test_an_expert_that_reads_more_than_the_model_can_is_refused_at_once(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    small = save(tmp_path / "small", make_network(tokenizer, window=256), tokenizer)
    with pytest.raises(ConfigError, match="wanted texts of at most the 256 tokens"):
        imitate(sft_setup(small), tmp_path / "run")
    assert not (tmp_path / "run").exists()


CHATS = [
    [("system", "Search."), ("user", "Who?"), ("assistant", "<search> who </search>")],
    [("user", "Where?"), ("assistant", "<answer> there </answer>")],
]


def write_chats(file: Path, chats: Sequence[Sequence[tuple[str, str]]]) -> Path:
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in chats]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_file_of_chats_is_imitated_in_its_last_messages(model: Path, tmp_path: Path) -> None:
    from mempo_trainers.llm.examples import examples_of

    file = write_chats(tmp_path / "chats.jsonl", CHATS)
    policy = open_policy(PolicySettings(model=str(model)))
    examples, _ = examples_of(sft_setup(model, examples=str(file)), [], policy)
    texts = [policy.loaded.tokenizer.decode(ids) for ids in examples.contexts]
    assert texts[0].endswith("<|start|>user\nWho?<|end|>\n<|start|>assistant\n") and "Search." in texts[0]
    assert "You are Tiny" not in texts[1]  # the template's own system message
    written = examples.responses.tokens_BK[1][examples.responses.roles_BK[1] != 0]
    assert policy.tokenizer.decode(written.tolist()) == "<answer> there </answer>"


def test_chats_that_are_longer_than_the_policy_writes_are_left_out_or_refused(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mempo_trainers.llm.examples import examples_of

    policy = open_policy(PolicySettings(model=str(model), max_new=12))
    long = ("assistant", "<answer> " + "far " * 40 + "</answer>")
    some = [[("user", f"Who {i}?"), ("assistant", "x")] for i in range(18)]
    file = write_chats(tmp_path / "chats.jsonl", [[some[0][0], long], *some, some[0]])
    examples, told = examples_of(sft_setup(model, examples=str(file)), [], policy)
    assert len(examples.contexts) == told["texts_used"] == 19 and told["texts"] == 20
    assert f"{file}: 19 of 20 texts are used, of at most " in (said := capsys.readouterr().err)
    assert "the others are longer than policy.max_new (12)" in said
    file = write_chats(tmp_path / "chats.jsonl", [[turn[0], long] for turn in some])
    with pytest.raises(ConfigError, match=r"^policy.max_new: wanted .* which leaves out 18 of 18 texts"):
        examples_of(sft_setup(model, examples=str(file)), [], policy)


def test_one_long_chat_does_not_make_all_of_them_long(model: Path, tmp_path: Path) -> None:
    """Padded to the longest, these would take 400 times 4,000 ids, 13 MB."""
    from mempo_trainers.llm.examples import examples_of

    policy = open_policy(PolicySettings(model=str(model), max_new=4_000))
    some = [[("user", f"Who {i}?"), ("assistant", "x")] for i in range(400)]
    file = write_chats(tmp_path / "chats.jsonl", [[some[0][0], ("assistant", "y " * 2_000)], *some])
    tracemalloc.start()
    try:
        examples, _ = examples_of(sft_setup(model, examples=str(file)), [], policy)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(examples.texts) == 401 and max(map(len, examples.texts)) > 3_000 and most < 4e6


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"messages": [{"role": "user", "content": "x"}]}', r":1: wanted messages of which the last"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', r":1: "),
        ('{"chat": []}', r":1: "),
        ("", "wanted at least one chat"),
        (
            '\n{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}',
            ":2: wanted a last message with a text",
        ),
        (
            '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "y"}]}'
            % ("x " * 4096),
            ":1: wanted texts of at most the 4,096 tokens of the model's window",
        ),
    ],
)
def test_a_file_that_holds_no_chats_is_refused_by_line(
    text: str, told: str, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=told) as caught:
        imitate(sft_setup(model, examples=str(file)), tmp_path / "run")
    assert str(file) in str(caught.value) and not (tmp_path / "run").exists()
