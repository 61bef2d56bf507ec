"""The benchmark runner: what it plays, and that a row is written once whatever happens."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from mempo_agents import AGENTS
from mempo_agents.base import Context
from mempo_benchmarks.results import RESULTS, read_plan
from mempo_benchmarks.run import bench, make_plan
from mempo_env.cli import main
from mempo_env.errors import ConfigError, RetrieverError
from mempo_env.types import Failure, Hit, StopReason
from runs import AGENTS_RUN, COMMAND, EPISODES, MEMPO, RUN, copy, ended, mempo, rows, small_plan


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert main([*RUN, str(run)]) == 0
    return run


# --- What it plays -----------------------------------------------------------------------------------------


def test_every_agent_plays_every_question_and_floors_and_ceiling_are_among_them(whole: Path) -> None:
    found = rows(whole)
    assert [arm.agent for arm in read_plan(whole).arms] == AGENTS_RUN
    assert {(row.agent, row.index) for row in found} == {(a, i) for a in AGENTS_RUN for i in range(EPISODES)}
    assert len(found) == len(AGENTS_RUN) * EPISODES


def test_questions_are_the_first_of_the_split_in_order(whole: Path) -> None:
    import gymnasium as gym

    questions = gym.make("MemPO-SearchQA-v0", split="dev").unwrapped.questions  # type: ignore[attr-defined]
    ids = [question.id for question in questions]
    assert read_plan(whole).questions == tuple("+".join(ids[4 * i : 4 * i + 4]) for i in range(EPISODES))
    for row in rows(whole):
        assert row.question_id == read_plan(whole).questions[row.index] == row.episode.question_id


def test_a_row_says_what_its_episode_says(whole: Path) -> None:
    for row in rows(whole):
        episode = row.episode
        assert (row.em, row.f1, row.em_relaxed) == (
            episode.score.em,
            episode.score.f1,
            episode.score.em_relaxed,
        )
        assert (row.peak, row.total, row.dependency) == (
            episode.tokens.peak,
            episode.tokens.total,
            episode.tokens.dependency,
        )
        assert row.rounds == len(episode.rounds) == len(row.prompt_tokens)
        assert row.total == sum(row.prompt_tokens) + sum(played.tokens.output for played in episode.rounds)
        assert row.evidence_recall == episode.rounds[-1].diagnostics.evidence_recall
        if row.rounds > 1:
            assert row.evidence_kept == episode.rounds[-2].diagnostics.evidence_kept


def test_an_agent_plays_in_the_environment_it_asks_for(whole: Path) -> None:
    contexts = {row.agent: row.episode.settings["context"] for row in rows(whole)}
    assert contexts["react"] == "full"
    assert contexts["mempo"] != "full"
    marks = {row.agent: row.fingerprints for row in rows(whole)}
    assert marks["react"].settings != marks["mempo"].settings
    assert len({(mark.data, mark.index, mark.scorer, mark.code) for mark in marks.values()}) == 1


def test_the_number_of_environments_changes_nothing(tmp_path: Path) -> None:
    plan = small_plan()
    bench(plan, tmp_path / "one", num_envs=1)
    bench(plan, tmp_path / "many", num_envs=5)
    assert rows(tmp_path / "one") == rows(tmp_path / "many")


def test_the_largest_seed_is_played(tmp_path: Path) -> None:
    plan = make_plan("synthetic", [], episodes=2, seed=2**32 - 1)
    bench(plan, tmp_path / "run")
    assert len(rows(tmp_path / "run")) == 2 * len(plan.arms)


def test_more_episodes_than_there_are_questions_for_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"episodes: wanted 1 to \d+, what split 'dev' has, got 100,000"):
        make_plan("synthetic", [], episodes=100_000)


@pytest.mark.parametrize(
    "args, told",
    [
        (("--agents", "mempoo"), "did you mean 'mempo'"),
        (("--split", "deu"), "did you mean 'dev'"),
        (("--dataset", "/nowhere"), "wanted 'synthetic'"),
        (("--episodes", "0"), "wanted 1 to"),
        (("--objectives", "0"), "objectives"),
        (("--num-envs", "0"), "num_envs: wanted at least 1, got 0"),
        (("--num-envs", "-3"), "num_envs: wanted at least 1, got -3"),
        (("--seed", "-1"), "seed: wanted 0 to 4,294,967,295, got -1"),
        (("--seed", "9" * 30), "seed: wanted 0 to 4,294,967,295, got 999"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    args: tuple[str, str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *args, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# --- Failures are results ----------------------------------------------------------------------------------


class _Faulty:
    """Fails in two ways, else answers."""

    name = "faulty"
    env_kwargs: Mapping[str, object] = MappingProxyType({})
    fingerprint = "faulty-1"

    def act(self, contexts: Sequence[Context]) -> list[str | Exception]:
        faults: dict[int, Exception] = {1: ValueError("broken"), 2: TimeoutError("late")}
        return [faults.get(int(context.question_id[-1]) % 3, "<answer>x</answer>") for context in contexts]  # type: ignore[misc]


def test_failed_episodes_are_rows_and_are_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGENTS, "faulty", lambda *_: _Faulty())
    plan = make_plan("synthetic", ["faulty"], episodes=9)
    bench(plan, tmp_path / "run")
    found = [row for row in rows(tmp_path / "run") if row.agent == "faulty"]
    assert len(found) == 9
    reasons = {row.stop_reason for row in found}
    assert reasons == {StopReason.ANSWERED, StopReason.AGENT_ERROR, StopReason.TIMEOUT}
    for row in found:
        if row.stop_reason is not StopReason.ANSWERED:
            late = row.stop_reason is StopReason.TIMEOUT
            failure = Failure.OUT_OF_BUDGET if late else Failure.AGENT_ERROR
            assert (row.em, row.rounds, row.evidence_recall, row.failure) == (0, 0, 0, (failure,))
            assert "broken" in row.episode.stop_detail or "late" in row.episode.stop_detail
    before = (tmp_path / "run" / RESULTS).read_bytes()
    bench(plan, tmp_path / "run")
    assert (tmp_path / "run" / RESULTS).read_bytes() == before


class _Down:
    """Answers the first call, then never again."""

    fingerprint = "down"
    calls = 0

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        self.calls += 1
        if self.calls > 1:
            raise RetrieverError("refused")
        return [()] * len(queries)


def test_episodes_whose_retriever_failed_are_masked_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mempo_env.retrieval import RETRIEVERS

    retriever = _Down()
    monkeypatch.setitem(RETRIEVERS, "down", lambda corpus, folder: retriever)
    bench(small_plan(retriever="down"), tmp_path / "run")
    for row in rows(tmp_path / "run"):
        if row.agent == "empty":
            assert (row.stop_reason, row.masked) == (StopReason.ANSWERED, False)
        else:
            assert (row.stop_reason, row.masked) == (StopReason.RETRIEVER_ERROR, True)
            assert row.failure == (Failure.ENVIRONMENT,)


def test_a_retriever_that_is_down_from_the_start_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*RUN, str(run), "--retriever", "http://127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert "127.0.0.1:9" in error
    assert error.count("\n") == 1
    assert not run.exists()


# --- Killed, and gone on with ------------------------------------------------------------------------------


def test_killed_again_and_again_no_row_is_lost_or_doubled(whole: Path, tmp_path: Path) -> None:
    run, kills, undecided = tmp_path / "run", 0, 0
    size = (whole / RESULTS).stat().st_size
    for share in (0.0, 0.02, 0.2, 0.45, 0.7, 0.85):
        process = mempo(*RUN, run, "--num-envs", "3")
        while process.poll() is None:
            if (run / RESULTS).exists() and (run / RESULTS).stat().st_size >= share * size:
                process.kill()
                break
            time.sleep(0.001)
        code, _ = ended(process)
        kills += code == -signal.SIGKILL
        undecided += code not in (0, -signal.SIGKILL)
        lines = (run / RESULTS).read_bytes().splitlines() if (run / RESULTS).exists() else []
        assert len(lines) <= len(AGENTS_RUN) * EPISODES
    assert kills >= 4
    assert not undecided
    assert ended(mempo(*RUN, run))[0] == 0
    assert rows(run) == rows(whole)


@pytest.mark.parametrize(
    "keep", [1, 200, -2, -1], ids=["a byte", "a start", "all but two", "all but its end"]
)
def test_a_torn_last_line_is_cut_off_and_played_again(whole: Path, tmp_path: Path, keep: int) -> None:
    run = copy(whole, tmp_path)
    *lines, last = (run / RESULTS).read_bytes().splitlines(keepends=True)
    (run / RESULTS).write_bytes(b"".join(lines) + last[:keep])
    assert len(rows(run)) == len(lines)
    assert main([*RUN, str(run)]) == 0
    assert rows(run) == rows(whole)


def test_rows_that_are_missing_are_played_with_the_seeds_that_they_had(whole: Path, tmp_path: Path) -> None:
    run = copy(whole, tmp_path)
    lines = (run / RESULTS).read_bytes().splitlines(keepends=True)
    (run / RESULTS).write_bytes(b"".join(lines[::3]))
    assert main([*RUN, str(run)]) == 0
    assert rows(run) == rows(whole)


def test_seeds_of_an_episode_are_its_index_not_its_place_among_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mempo_benchmarks.run as runner

    asked: list[tuple[tuple[str, ...], tuple[int, ...]]] = []
    play = runner.play

    def spy(agent, question_ids, **kwargs):  # type: ignore[no-untyped-def]
        asked.append((tuple(question_ids), tuple(kwargs["seed"])))
        return play(agent, question_ids, **kwargs)

    monkeypatch.setattr(runner, "play", spy)
    plan = small_plan(seed=40)
    bench(plan, tmp_path / "run")
    lines = (tmp_path / "run" / RESULTS).read_bytes().splitlines(keepends=True)
    lost = [i for i, line in enumerate(lines) if json.loads(line)["index"] in (1, 4)]
    (tmp_path / "run" / RESULTS).write_bytes(b"".join(x for i, x in enumerate(lines) if i not in lost))
    asked.clear()
    bench(plan, tmp_path / "run")
    assert set(asked) == {((plan.questions[1], plan.questions[4]), (41, 44))}


def test_a_run_that_is_whole_plays_nothing(whole: Path, tmp_path: Path) -> None:
    run = copy(whole, tmp_path)
    before = (run / RESULTS).read_bytes()
    assert main([*RUN, str(run)]) == 0
    assert (run / RESULTS).read_bytes() == before


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    limit = (whole / RESULTS).stat().st_size // 2 + 1_000
    process = subprocess.Popen(
        [*MEMPO, *RUN, str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    code, error = ended(process)
    complaints = [line for line in error.splitlines() if line.startswith("mempo:")]
    assert code == 2
    assert len(complaints) == 1
    assert f"{run / RESULTS}: could not be written (File too large)" in complaints[0]
    assert "Traceback" not in error
    assert (run / RESULTS).read_bytes().endswith(b"\n")
    assert 0 < len(rows(run)) < len(rows(whole))
    assert main([*RUN, str(run)]) == 0
    assert rows(run) == rows(whole)


def test_a_place_that_can_not_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert main([*RUN, str(tmp_path / "file" / "run")]) == 2
    error = capsys.readouterr().err
    assert "could not be written (Not a directory)" in error
    assert error.count("\n") == 1


def test_a_run_is_not_put_into_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="found a prepared data set"):
        bench(make_plan("synthetic", [], episodes=1), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_an_own_agent_is_known_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    marks = set()
    for text in ("x", "y"):
        (tmp_path / f"own_{text}.py").write_text(
            "class Mine:\n    name, fingerprint, env_kwargs = 'mine', 'mine-1', {}\n"
            f"    def act(self, contexts):\n        return ['<answer>{text}</answer>' for _ in contexts]\n"
        )
        plan = make_plan("synthetic", [f"own_{text}:Mine"], episodes=1)
        marks |= {arm.fingerprint for arm in plan.arms if ":" in arm.agent}
    assert len(marks) == 2


LAST = """
class Last:
    def __init__(self, state=None):
        self.note = state or ""

    def write(self, text, round):
        self.note = text

    def show(self):
        return self.note

    def state(self):
        return self.note
"""

NOTES = """
from last_note import Last
from mempo_agents.models.table import make_model
from mempo_agents.rounds import ModelAgent, one_call


def noting(memory):
    kwargs = {"memory": memory, "max_rounds": 5}
    return ModelAgent(name="notes", play=one_call, model=make_model("scripted"), env_kwargs=kwargs)


def by_name():
    return noting("last_note:Last")


def by_class():
    return noting(Last)
"""


def test_an_agent_with_a_memory_of_its_own_is_played_and_known_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "last_note.py").write_text(LAST)
    (tmp_path / "noting.py").write_text(NOTES)
    agents = ["noting:by_name", "noting:by_class"]
    plan = make_plan("synthetic", agents, episodes=2)
    by_name, by_class = (arm for arm in plan.arms if ":" in arm.agent)
    assert by_name.env_kwargs == by_class.env_kwargs == {"memory": "last_note:Last", "max_rounds": 5}
    assert (by_name.fingerprint, by_name.settings) == (by_class.fingerprint, by_class.settings)
    bench(plan, tmp_path / "run")
    played = [row.episode for row in rows(tmp_path / "run") if ":" in row.agent]
    assert len(played) == 4
    for episode in played:
        told = episode.settings["max_rounds"], episode.settings["memory"], episode.settings["memory_of"]
        assert told == (5, "own", "last_note:Last") and any(round.memory for round in episode.rounds)
    (tmp_path / "last_note.py").write_text(LAST + "# changed")
    changed = make_plan("synthetic", agents, episodes=2)
    assert not {arm.fingerprint for arm in changed.arms if ":" in arm.agent} & {by_name.fingerprint}
