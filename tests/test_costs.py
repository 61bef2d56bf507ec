"""Costs: read off the calls, by prices that a user gives, for each episode and each right answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from browser import overflow, page_at
from episodes import aborted, multi, right, wrong
from mempo_agents.models.base import ModelError, ModelTimeout, Prompt
from mempo_agents.rollout import episodes
from mempo_agents.selfask import selfask_agent
from mempo_benchmarks.costs import Price, dollars, read_prices
from mempo_benchmarks.results import Arm, Row, read_plan, read_rows
from mempo_benchmarks.stats import cluster_intervals, mean_intervals, ratio_intervals
from mempo_benchmarks.summary import compare
from mempo_env.cli import main
from mempo_env.errors import ConfigError
from mempo_env.types import Call, Episode, StopReason
from runs import write_run
from small import QUESTIONS, TitleRetriever

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PRICE = Price(prompt=2.0, cached=0.5, output=10.0)


def called(episode: Episode, *cached: int | None) -> Episode:
    """The episode with one call more in its first round for each number of cached tokens."""
    calls = tuple(Call(prompt_tokens=100, output_tokens=10, cached_tokens=n) for n in cached)
    first = structs.replace(episode.rounds[0], calls=calls)
    return structs.replace(episode, rounds=(first, *episode.rounds[1:]))


def counted(episode: Episode, prompt: int, total: int, cached: int | None = None) -> Episode:
    """The episode as if it had one round with these tokens."""
    tokens = structs.replace(episode.tokens, prompt=prompt, output=total - prompt, total=total)
    only = structs.replace(called(episode, cached).rounds[0], tokens=tokens)
    return structs.replace(episode, rounds=(only,), tokens=tokens)


def run_of(folder: Path, played: dict[str, list[Episode]], model: str = "org/m") -> Path:
    """A run whose agents have a model; that of "random" has none."""
    arms = tuple(Arm(n, f"{n}-1", {}, "e0", "" if n == "random" else model) for n in played)
    write_run(folder / "run", played, arms=arms)
    return folder / "run"


def rows_of(run: Path, agent: str) -> list[Row]:
    return [row for row in read_rows(run, read_plan(run), Row) if row.agent == agent]


# --- What is read off the calls ----------------------------------------------------------------------------


def test_cached_tokens_are_the_sum_of_those_that_were_told(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"a": [called(right(), 30, None, 12), called(right(), None), right()]})
    assert [row.cached_tokens for row in rows_of(run, "a")] == [42, None, None]


def test_a_call_says_how_many_cached_tokens_it_had() -> None:
    assert Call(cached_tokens=0).cached_tokens == 0
    for wrong_number in (-1, 1.5, True, "3"):
        with pytest.raises(ValueError, match="wanted a number of tokens"):
            Call(cached_tokens=wrong_number)  # type: ignore[arg-type]


class Failing:
    """Answers a search each; fails the third prompt and all after it, by one error for all of them."""

    name = fingerprint = "org/m"

    def __init__(self) -> None:
        self.asked = 0
        self.error = ModelTimeout("no answer")

    def generate(self, prompts: Sequence[Prompt]) -> list[Call | ModelError]:
        answers: list[Call | ModelError] = []
        for one in prompts:
            self.asked += 1
            answers.append(
                self.error
                if self.asked > 2
                else Call(
                    segments=one.segments,
                    output="<search> Aldo Verne </search>",
                    prompt_tokens=100 * self.asked,
                    output_tokens=10,
                    cached_tokens=7,
                )
            )
        return answers


def test_calls_before_one_that_failed_in_the_same_round_are_paid_for(tmp_path: Path) -> None:
    """Round 1 is one call. Round 2 reads (100 x 2 + 10) and then acts, and that call fails."""
    agent = selfask_agent(Failing())
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    ((_, episode),) = episodes(agent, ["q0"], env_kwargs=kwargs)
    assert (episode.stop_reason, len(episode.rounds)) == (StopReason.TIMEOUT, 1)
    (call,) = episode.broken_off
    assert (call.prompt_tokens, call.output) == (200, "<search> Aldo Verne </search>")
    assert (episode.tokens.total, episode.tokens.peak) == (100 + 10 + 200 + 10, 210)
    assert episode.tokens.dependency == (2 * 100 + 10) * 10 / 2 + (2 * 200 + 10) * 10 / 2
    (found,) = rows_of(run_of(tmp_path, {"a": [episode]}), "a")
    assert (found.prompt_tokens, found.rounds, found.cached_tokens) == ((100, 200), 1, 14)
    assert dollars(found, PRICE) == pytest.approx((286 * 2.0 + 14 * 0.5 + 20 * 10.0) / 1e6)


def test_an_error_that_ended_several_calls_has_those_of_each_round() -> None:
    model = Failing()
    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    played = dict(episodes(selfask_agent(model), ["q0", "q1"], env_kwargs=kwargs, num_envs=2))
    assert [episode.broken_off for episode in played.values()] == [(), ()], "both failed in their first call"
    assert [episode.tokens.total for episode in played.values()] == [110, 210]
    assert model.error.calls == ()


def row(prompt: int, total: int, cached: int | None) -> Row:
    run: dict[str, Any] = dict.fromkeys(Row.__struct_fields__)
    return Row(**run | {"prompt_tokens": (prompt,), "total": total, "cached_tokens": cached})


def test_dollars_by_hand() -> None:
    # 1,000,000 tokens of prompts at $2, 400,000 of them at $0.50, and 50,000 of outputs at $10:
    # 600,000 x 2 / 10^6 + 400,000 x 0.5 / 10^6 + 50,000 x 10 / 10^6 = 1.20 + 0.20 + 0.50.
    assert dollars(row(1_000_000, 1_050_000, 400_000), PRICE) == pytest.approx(1.9)
    assert dollars(row(1_000_000, 1_050_000, None), PRICE) == pytest.approx(2.5)
    same = Price(prompt=2.0, output=10.0)
    assert dollars(row(1_000_000, 1_050_000, 400_000), same) == pytest.approx(2.5)
    assert dollars(row(1_000_000, 1_050_000, 400_000), None) is None


def test_more_cached_tokens_than_the_prompt_has_cost_no_negative_dollars() -> None:
    """900 tokens of a server's tokenizer, in a prompt that was counted as 40 words: 40 x 0.5 / 10^6."""
    assert dollars(row(40, 40, 900), PRICE) == pytest.approx(0.00002)


def test_costs_of_an_episode_and_of_a_right_answer(tmp_path: Path) -> None:
    """Three episodes: one right, one wrong, one of two questions with one right: two right answers."""
    played = [
        counted(right(), 1_000, 1_100, 600),
        counted(wrong(), 4_000, 4_300, 0),
        counted(multi(), 1_000, 1_200, None),
    ]
    run = run_of(tmp_path, {"random": [wrong()] * 3, "a": played})
    assert [sum(reason is None for reason in row.failure) for row in rows_of(run, "a")] == [1, 0, 1]
    _, a = compare([run], prices={"org/m": PRICE}).arms
    found = {key: (s.episode.value, s.right and s.right.value) for key, s in a.spent.items()}
    assert found["prompt"] == (2_000, 3_000)
    assert found["cached"] == (200, 300)
    assert found["output"] == (200, 300)
    assert found["seconds"] == (0.5, 0.75)
    # (6,000 - 600) x 2 + 600 x 0.5 + 600 x 10 = 10,800 + 300 + 6,000 = 17,100 millionths of a dollar.
    assert found["dollars"] == pytest.approx((17.1 / 3, 17.1 / 2)), "of a thousand"


def test_what_is_not_known_is_not_there(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"random": [wrong()] * 2, "a": [wrong(), aborted()]})
    for arm in compare([run]).arms:
        assert arm.spent.keys() == {"prompt", "output", "seconds"}
        assert {spent.right for spent in arm.spent.values()} == {None}  # nothing was right
    random, a = compare([run], prices={"org/m": PRICE}).arms
    assert "dollars" in a.spent and "dollars" not in random.spent
    empty = compare([run_of(tmp_path / "never", {"random": [wrong()], "a": []})]).arms[1]
    assert empty.spent == {}


# --- Intervals ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=30), st.integers(1, 5))
def test_a_ratio_to_equal_counts_is_a_mean(values: list[int], count: int) -> None:
    x_NM = np.array(values, dtype=np.float64)[:, None]
    (ratio,) = ratio_intervals(x_NM * count, np.full(len(values), count))
    (mean,) = mean_intervals(x_NM)
    assert [ratio.value, ratio.low, ratio.high] == pytest.approx([mean.value, mean.low, mean.high])


def test_a_ratio_is_near_the_bootstrap_of_the_statistic_itself() -> None:
    rng = np.random.default_rng(5)
    right_N = rng.integers(0, 3, 200)
    cost_NM = rng.gamma(2.0, 300.0, (200, 1)) + 100 * right_N[:, None]
    (ratio,) = ratio_intervals(cost_NM, right_N)
    (other,) = cluster_intervals(np.arange(200), lambda i: cost_NM[i].sum(axis=0) / right_N[i].sum())
    assert ratio.value == pytest.approx(other.value)
    assert [ratio.low, ratio.high] == pytest.approx([other.low, other.high], rel=0.03)


def test_ratios_cover_what_they_should() -> None:
    """200 samples of 80: the true ratio, 600 / 0.4, lies in the 95 % interval in 90 % of them at least."""
    rng, held = np.random.default_rng(6), 0
    for _ in range(200):
        (found,) = ratio_intervals(rng.gamma(2.0, 300.0, (80, 1)), rng.random(80) < 0.4, resamples=500)
        assert found.low is not None and found.high is not None
        held += found.low <= 1500 <= found.high
    assert held >= 180


def test_ratios_without_spread_or_without_counts() -> None:
    (alone,) = ratio_intervals([[4.0]], [2])
    assert (alone.value, alone.low, alone.high) == (2.0, None, None)
    (same,) = ratio_intervals([[4.0], [4.0]], [2, 2])
    assert (same.value, same.low, same.high) == (2.0, 2.0, 2.0)
    for counts in ([0, 0], [1, -1], [1]):
        with pytest.raises(ValueError, match="wanted values"):
            ratio_intervals([[4.0], [4.0]], counts)


# --- Prices ------------------------------------------------------------------------------------------------

PRICES = """
["org/m"]
prompt = 2
cached = 0.5
output = 10.0

["another:7b"]
prompt = 0.1
output = 0.3
"""


def prices_file(folder: Path, text: str) -> Path:
    (folder / "prices.toml").write_text(text)
    return folder / "prices.toml"


def test_prices_are_read_by_model(tmp_path: Path) -> None:
    prices = read_prices(prices_file(tmp_path, PRICES))
    assert prices == {"org/m": PRICE, "another:7b": Price(prompt=0.1, output=0.3)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt = 2", "prices.toml, 'prompt': wanted dollars for a million tokens under the model's name"),
        ("[org.m]\nprompt = 2\noutput = 1", "'org': wanted dollars for a million tokens"),
        ('["m"]\nprompt = 2', "'m': wanted dollars for a million tokens"),
        ('["m"]\nprompt = 2\noutput = -1', "'m': output: wanted a number from 0 to"),
        ('["m"]\nprompt = "2"\noutput = 1', "'m': prompt: wanted a number from 0 to"),
        (
            '["m"]\nprompt = 2\noutput = 1\ncache = 1',
            "'m': unknown keyword 'cache': did you mean 'cached'",
        ),
        ("[[", "prices.toml: wanted a TOML file of prices, got none"),
    ],
)
def test_prices_that_do_not_fit_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_prices(prices_file(tmp_path, text))
    assert said in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="wanted a TOML file of prices"):
        read_prices(tmp_path / "none.toml")


def test_the_report_shows_dollars_where_there_are_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, {"random": [wrong()] * 2, "a": [counted(right(), 1_000, 1_100, 600)] * 2})
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert main(["bench", "report", str(run), "--all"]) == 0
    plain = capsys.readouterr().out
    assert "Spent for an episode" in plain and "cached" in plain
    assert "$" not in plain
    prices = prices_file(tmp_path, PRICES)
    assert main(["bench", "report", str(run), "--prices", str(prices)]) == 0
    told = capsys.readouterr().out
    # 400 x 2 + 600 x 0.5 + 100 x 10 = 2,100 millionths of a dollar.
    assert "dollars" in told and "$2.10" in told, "of a thousand"
    assert {name: (run / name).read_bytes() for name in before} == before


def test_the_page_shows_what_it_cost_and_sorts_by_it(tmp_path: Path, browser: Browser) -> None:
    dear = [counted(right(), 5_000_000, 5_100_000)] * 2
    cheap = [counted(right(), 100, 110, 60), counted(wrong(), 100, 110, 60)]
    run = run_of(tmp_path, {"random": [wrong()] * 2, "cheap": cheap, "dear": dear})
    assert main(["bench", "report", str(run), "--prices", str(prices_file(tmp_path, PRICES))]) == 0
    with page_at(browser, (run / "report.html").as_uri()) as page:
        table = page.get_by_role("region", name="What it cost")
        cells = {
            row.locator("th").inner_text(): [
                cell.split("\n")[0] for cell in row.locator("td").all_inner_texts()
            ]
            for row in table.locator("tbody tr").all()
        }
        heads = table.locator("thead th").all_inner_texts()
        assert heads[:4] == ["agent", "model", "prompt tokens", "prompt tokens per right answer"]
        at = heads.index("dollars for 1,000 episodes") - 1
        assert heads[at + 2] == "dollars for 1,000 right answers"
        # cheap: 40 x 2 + 60 x 0.5 + 10 x 10 = 210 millionths an episode, and one of the two is right.
        assert cells["cheap"][0] == "org/m" and cells["cheap"][at : at + 2] == ["$0.21", "$0.42"]
        assert cells["dear"][at : at + 2] == ["$11,000.00", "$11,000.00"]
        assert cells["random\nfloor"][0] == "–" and cells["random\nfloor"][at : at + 2] == ["–", "–"]
        table.locator("thead button", has_text="dollars").first.click()
        assert [name.split("\n")[0] for name in table.locator("tbody th").all_inner_texts()] == [
            "dear",
            "cheap",
            "random",
        ]
        assert overflow(page) <= 0


def test_prices_for_no_model_of_the_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(tmp_path, {"random": [wrong()], "a": [right()]}, model="org/other")
    assert main(["bench", "report", str(run), "--prices", str(prices_file(tmp_path, PRICES))]) == 2
    said = capsys.readouterr().err
    assert "prices: wanted one of a model that was run (org/other), got prices of another:7b, org/m" in said
    assert not (run / "report.html").exists()


def test_prices_and_cached_tokens_do_not_decide_whether_runs_compare(tmp_path: Path) -> None:
    one = run_of(tmp_path / "1", {"random": [wrong()], "a": [called(right(), 30)]}, "org/m")
    two = run_of(tmp_path / "2", {"random": [wrong()], "b": [right()]}, "another:7b")
    assert compare([one, two], prices={"org/m": PRICE}).differing == ()
