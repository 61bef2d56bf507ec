"""Episodes of several questions: sums, places and answers; and what a memory is worth by itself."""

from __future__ import annotations

import io
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from mempo_agents import AGENTS, make_agent
from mempo_agents.rounds import ModelAgent
from mempo_benchmarks.report import report_page, tables
from mempo_benchmarks.results import FullRow, read_plan, read_rows
from mempo_benchmarks.run import bench, make_plan
from mempo_benchmarks.summary import Comparison, compare
from mempo_env.errors import ConfigError
from mempo_env.questions.world import synthetic

N, EPISODES = 4, 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Agents with and without a memory, four questions an episode, six rounds: too few for all of them."""
    out = tmp_path_factory.mktemp("several") / "run"
    plan = make_plan(
        "synthetic", ["react", "no_memory", "mempo"], objectives=N, episodes=EPISODES, max_rounds=10
    )
    bench(plan, out)
    return out


@pytest.fixture(scope="module")
def compared(run: Path) -> Comparison:
    return compare([run])


def test_sums_places_and_answers_are_those_of_the_episodes(run: Path, compared: Comparison) -> None:
    rows = list(read_rows(run, read_plan(run), FullRow))
    for arm in compared.arms:
        episodes = [row.episode for row in rows if row.agent == arm.agent]
        em_EN = np.array([[objective.em for objective in episode.score.objectives] for episode in episodes])
        assert arm.several is not None and em_EN.shape == (EPISODES, N)
        assert arm.several.em.value == pytest.approx(em_EN.sum(1).mean())
        assert [place.value for place in arm.several.positions] == pytest.approx(em_EN.mean(0))
        f1 = [sum(objective.f1 for objective in episode.score.objectives) for episode in episodes]
        assert arm.several.f1.value == pytest.approx(np.mean(f1))
        given = [sum(o.prediction != "" for o in e.score.objectives) for e in episodes]
        assert arm.several.answered == pytest.approx([given.count(k) / EPISODES for k in range(N + 1)])
        assert sum(arm.several.answered) == pytest.approx(1)


def test_the_rounds_are_those_that_were_asked_for(run: Path) -> None:
    plan = read_plan(run)
    assert plan.settings["max_rounds"] == 10
    assert max(row.rounds for row in read_rows(run, plan, FullRow)) <= 10


def test_the_gain_is_paired_to_no_memory_with_the_same_model(compared: Comparison) -> None:
    gains = {pair.a: pair for pair in compared.gains}
    assert set(gains) == {"react", "mempo"} and {pair.b for pair in compared.gains} == {"no_memory"}
    gain = gains["mempo"].metrics["em"]
    em = {arm.agent: arm.metrics["em"].value for arm in compared.arms if arm.metrics["em"]}
    assert gain.value == pytest.approx(em["mempo"] - em["no_memory"])
    assert gain.value > 0, "ten rounds suffice with a memory, and not without"
    assert compared.notes == ()


def test_tables_and_page_tell_it(run: Path, compared: Comparison) -> None:
    titles = [str(made.title) for made in tables(compared)]
    assert any(title.startswith("Sums over the questions of an episode") for title in titles)
    assert any(title.startswith("Episodes by how many") for title in titles)
    assert any(title.startswith("Memory-isolated gain") for title in titles)
    page = report_page(compared, run)
    assert '"gains"' in page and '"positions"' in page


def printed(run: Path, only: str = "") -> str:
    """The tables whose title has a text, in a terminal of 80 columns."""
    console = Console(width=80, file=io.StringIO())
    for made in tables(compare([run])):
        if only in str(made.title):
            console.print(made)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_sixteen_places_fit_into_eighty_columns(tmp_path: Path) -> None:
    """They were cut: "1.…" in every other column."""
    bench(make_plan("synthetic", ["iterresearch"], objectives=16, episodes=2, max_rounds=3), tmp_path)
    said = printed(tmp_path)
    assert "EM of the question in each place" in said and "…" not in said


def test_floors_and_ceiling_are_marked_in_sixteen_places(tmp_path: Path) -> None:
    """Right in every place is the widest that a line gets."""
    bench(make_plan("synthetic", ["iterresearch"], objectives=16, episodes=2, max_rounds=60), tmp_path)
    for title, row in (
        ("in each place", f"oracle (ceiling){' 100' * 16}"),
        ("got an answer", "oracle (ceiling) "),
    ):
        lines = printed(tmp_path, title).splitlines()
        assert "…" not in "".join(lines)
        for start in ("empty (floor) ", "random (floor) ", row):
            assert sum(line.startswith(start) for line in lines) == 1, start


def test_one_question_has_no_places(tmp_path: Path) -> None:
    plan = make_plan("synthetic", ["mempo"], episodes=4)
    bench(plan, tmp_path)
    found = compare([tmp_path])
    assert all(arm.several is None for arm in found.arms)
    titles = [str(made.title) for made in tables(found)]
    assert not any(title.startswith(("Sums", "Episodes by", "Memory-isolated")) for title in titles)


def test_answers_are_asked_for_as_wanted() -> None:
    numbered, semicolon = (
        gym.make("MemPO-SearchQA-MultiObj2-v0", **kwargs).reset(seed=0)[0]
        for kwargs in ({}, {"answers": "semicolon"})
    )
    assert "numbered lines" in numbered and "semicolon" not in numbered
    assert "with a semicolon between two answers" in semicolon and "numbered" not in semicolon
    with pytest.raises(ConfigError, match="did you mean 'semicolon'"):
        gym.make("MemPO-SearchQA-v0", answers="semicolons")
    with pytest.raises(ConfigError, match="did you mean 'semicolon'"):
        gym.make("MemPO-SearchQA-v0", answers="semicolons", system_prompt="mine")


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_every_agent_with_a_model_asks_for_the_form_that_is_wanted(name: str) -> None:
    """Prompts of agents' own asked for numbered lines, whatever was wanted."""
    agent = make_agent(name, synthetic())
    if not isinstance(agent, ModelAgent):
        pytest.skip("asks no model")
    for answers, wanted, other in (
        ("numbered", "numbered lines", "semicolon"),
        ("semicolon", "with a semicolon between two answers", "numbered"),
    ):
        kwargs = {"answers": answers, **agent.env_kwargs}
        obs, _ = gym.make("MemPO-SearchQA-MultiObj2-v0", **kwargs).reset(seed=0)
        assert wanted in obs and other not in obs and "{answers}" not in obs


WITH_A_MODEL = sorted(set(AGENTS) - {"empty", "random", "oracle"})


@pytest.mark.parametrize("name", WITH_A_MODEL)
def test_mem1s_form_is_asked_for_and_scored_the_same(name: str, tmp_path: Path) -> None:
    """Consecutive questions, answers with semicolons between them: the same answers, so the same score."""
    scores = []
    for answers in ("numbered", "semicolon"):
        out = tmp_path / answers
        bench(make_plan("synthetic", [name], objectives=N, episodes=6, answers=answers, max_rounds=20), out)
        rows = [row for row in read_rows(out, read_plan(out), FullRow) if row.agent == name]
        scores.append([row.em for row in rows])
        texts = [row.episode.rounds[-1].action.text for row in rows]  # type: ignore[union-attr]
        assert all((text.count(";") == N - 1) == (answers == "semicolon") for text in texts)
    assert scores[0] == scores[1] and sum(scores[0]) > 0


def test_in_the_last_round_a_bank_guesses_as_other_memories_do(tmp_path: Path) -> None:
    """Where rounds are scarce it said "unknown" of questions that the others guess from two names."""
    bench(make_plan("synthetic", ["bank", "mempo"], objectives=8, episodes=8, max_rounds=3), tmp_path)
    said: dict[str, list[str]] = {}
    for row in read_rows(tmp_path, read_plan(tmp_path), FullRow):
        said.setdefault(row.agent, []).append(row.episode.rounds[-1].action.text)  # type: ignore[union-attr]
    known = {name: sum(text.count("\n") + 1 - text.count("unknown") for text in said[name]) for name in said}
    assert known["bank"] >= known["mempo"] / 2 > 8, known
