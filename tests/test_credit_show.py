"""`mempo credit show`: decisions in words, strips in the terminal and on a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from browser import DESKTOP, PHONE, contrasts, overflow, page_at
from mempo_benchmarks.credit import show
from mempo_benchmarks.credit.batch import play_batch, sample_segments, states_of
from mempo_benchmarks.credit.estimators import rows
from mempo_benchmarks.credit.report import show_page
from mempo_benchmarks.credit.show import told, toy_strips
from mempo_benchmarks.credit.strip_text import render
from mempo_benchmarks.credit.strips import Decision, Strips, against, settled, sizes
from mempo_env.arrays.observe import View
from mempo_env.arrays.text import write
from mempo_env.cli import main
from mempo_env.errors import ConfigError
from mempo_trainers.config import Config
from mempo_trainers.toy import Toy, restore
from train_help import MEMPO, train, wild

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TASK = Toy(objectives=2, worlds=60, reward="em_mean")
CONFIG = Config(credit="grpo", steps=10, questions=6, rollouts=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "taught"
    train(folder, TASK, CONFIG)
    return folder


def by_hand(**changes: Any) -> Strips:
    """Two rounds; b blames what a praises in the second."""
    roles = ["mem", "mem", "call", "mem", "answer"]
    decisions = tuple(Decision(f"decision {i}", role, 1 if i < 4 else 2) for i, role in enumerate(roles, 1))
    values = {"a": (1.0, 1.0, 1.0, 0.5, 0.0), "b": (0.0, 0.25, 0.5, -1.0, -0.5), "c": (0.0,) * 5}
    fields: dict[str, Any] = {
        "title": "a rollout",
        "questions": ("Who?",),
        "facts": {"reward": "1"},
        "decisions": decisions,
        "rows": values,
    }
    return Strips(**{**fields, **changes})


def lines(strips: Strips, reference: str = "a", width: int = 100) -> list[str]:
    return [line.plain for line in render(strips, reference, width)]


# --- Words --------------------------------------------------------------------------------------------------


def test_decisions_are_told_as_the_text_face_writes_them() -> None:
    """What is kept, searched and answered is what the same action says in the text protocol."""
    task = msgspec.structs.replace(TASK, hops=2)
    policy = wild(task.envs(1), seed=1, size=0.7)
    batch = play_batch(task, policy, 6, 4, 0)
    checked = {"search": 0, "answer": 0}
    for group in states_of(batch, sample_segments(batch, 20, 0)):
        tokens = policy.choose(group.contexts, _generator())
        for i in range(group.envs.num_envs):
            envs = group.envs.fork([i])
            words = told(envs, tokens[i])
            assert len(words) == envs.layout.decisions
            state = envs.state
            view = View(state.asked_Nn, state.view_NV, (state.memory_Nc >= 0).sum(1), state.searched_N, 0)
            text = write(envs.task, view, False, tokens[i])
            kept = [word.removeprefix("keep ") for word in words if re.match("keep .", word)]
            memory = re.search("<mem> (.*) </mem>", text)
            assert memory is not None and (" ".join(kept) or "nothing") == memory[1]
            searched = re.search("<search>(.*)</search>", text)
            if searched is not None:
                assert f"search {searched[1]}" in words and "to search, not to answer" in words
                checked["search"] += 1
            else:
                given = re.findall(r"\d\. (\S*)", text[text.index("<answer>") : text.index("</answer>")])
                assert [word for word in words if word.startswith("answer ")] == [
                    f"answer {n}: {part}" for n, part in enumerate(given, 1)
                ]
                checked["answer"] += 1
    assert min(checked.values()) > 3


def _generator() -> Any:
    import torch

    return torch.Generator().manual_seed(0)


def test_strips_hold_every_decision_of_a_rollout(run: Path) -> None:
    task, config, policy = restore(run)
    strips = toy_strips(task, config, policy, reference="grpo", name="taught")
    assert strips.rows.keys() == rows().keys()
    assert [d.round for d in strips.decisions] == sorted(d.round for d in strips.decisions)
    assert {d.role for d in strips.decisions} == {"mem", "call", "answer"}
    assert not any(d.text in ("keep ", "drop ") for d in strips.decisions)  # empty slots are no decisions
    assert len(set(strips.rows["grpo"])) == 1  # one number for the whole rollout
    assert len(strips.questions) == 2 and strips.facts["reward"].endswith("(em_mean)")


def test_the_rollout_is_the_one_with_most_disagreement(run: Path) -> None:
    task, config, policy = restore(run)

    def score(question: int | None) -> int:
        strips = toy_strips(task, config, policy, reference="grpo", question=question, name="x")
        return sum(int(flags.sum()) for flags in against(strips, "grpo").values())

    assert score(None) == max(score(question) for question in range(config.questions))


def test_the_same_seed_gives_the_same_rollout(run: Path) -> None:
    task, config, policy = restore(run)
    one, two, other = (
        toy_strips(task, config, policy, reference="grpo", seed=seed, name="x") for seed in (0, 0, 1)
    )
    assert one == two and one.decisions != other.decisions


# --- Signs --------------------------------------------------------------------------------------------------


def test_disagreement_is_of_signs_and_zero_takes_no_side() -> None:
    found = {name: flags.tolist() for name, flags in against(by_hand(), "a").items()}
    assert found == {"a": [False] * 5, "b": [False, False, False, True, False], "c": [False] * 5}
    assert {name for name, flags in against(by_hand(), "b").items() if flags.any()} == {"a"}


def test_rounding_takes_no_side() -> None:
    """1e-9 beside 1 is what float32 leaves of 0; beside 1e-8 it is a value."""
    strips = by_hand(rows={"a": (1.0,) * 5, "b": (-1e-9, 1.0, 0.5, -1e-5, 0.0), "c": (-1e-9, 1e-8, 0, 0, 0)})
    found = {name: flags.tolist() for name, flags in against(strips, "a").items()}
    assert found["b"] == [False, False, False, True, False]
    assert found["c"] == [True, False, False, False, False]
    assert sizes(strips.rows["b"])[0] == 0.0 and sizes(strips.rows["c"])[0] == -0.1
    assert any(line.startswith("b | . +9 +5 |-0!") for line in lines(strips))
    assert settled([]).tolist() == [] and settled([0.0, 0.0]).tolist() == [0.0, 0.0]


def test_a_reference_that_takes_no_side_is_told_in_a_line() -> None:
    shown = lines(by_hand(), "c")
    assert shown[-1] == (
        "c takes no side in this rollout: it gives 0 to every decision, as where all rollouts of a group are "
        "paid alike; take another --reference: a"
    )
    assert not any(line.startswith("Signs against") or " of 5" in line for line in shown)
    silent = by_hand(rows={"a": (0.0,) * 5, "b": (0.0,) * 5})
    assert lines(silent)[-1].endswith("it gives 0 to every decision, as all others do")


def test_sizes_are_of_the_greatest_of_the_row() -> None:
    assert sizes((1.0, -2.0, 0.0)) == [0.5, -1.0, 0.0]
    assert sizes((0.0, 0.0)) == [0.0, 0.0] and sizes(()) == []


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="a: wanted an advantage for each of 5 decisions, got 2"):
        by_hand(rows={"a": (1.0, 2.0)})


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_advantages_that_are_no_numbers_are_refused(value: float) -> None:
    """Nothing can be drawn of them, in a terminal or on a page."""
    with pytest.raises(ConfigError, match=rf"a: wanted finite advantages, got {value} for decision 2"):
        by_hand(rows={"a": (1.0, value, 0.0, 0.0, 0.0)})


def test_a_rollout_without_decisions_is_refused() -> None:
    with pytest.raises(ConfigError, match="a rollout: wanted at least one decision, got none"):
        by_hand(decisions=(), rows={"a": ()})


# --- The terminal -------------------------------------------------------------------------------------------


def test_strips_can_be_read_without_colours() -> None:
    shown = lines(by_hand())
    start = next(i for i, line in enumerate(shown) if "round 1" in line and "|" in line)
    assert [line.rstrip() for line in shown[start : start + 6]] == [
        "  |round 1  |r2",
        "  | 1  2  3 | 4  5",
        "  | m  m  c | m  a",
        "a |+9 +9 +9 |+5  .",
        "b | . +2 +5 |-9!-5",
        "c | .  .  . | .  .",
    ]
    assert "  b: 1 of 5; most in round 2: decision 4 (−1.00, a +0.50)" in shown
    assert "  c: 0 of 5" in shown


@pytest.mark.parametrize("width", [20, 40, 61, 120])
def test_strips_fit_the_width_and_lose_nothing(run: Path, width: int) -> None:
    strips = toy_strips(*restore(run), reference="grpo", name="x")
    shown = [line for line in lines(strips, "grpo", width) if "|" in line and "|r" not in line]
    margin = max(map(len, strips.rows)) + 1
    assert max(map(len, shown)) <= max(width, margin + 4)

    def cells(name: str) -> list[str]:
        mine = [line[margin:] for line in shown if line[:margin].strip() == name]
        parts = [part for line in mine for part in line.split("|")[1:]]
        return [part[i : i + 3].strip() for part in parts for i in range(0, len(part), 3)]

    unnamed = cells("")
    numbers = [int(cell) for cell in unnamed if cell.isdigit()]
    roles = [cell for cell in unnamed if cell in ("m", "t", "c", "a")]
    assert numbers[0] == 1 and numbers == sorted(set(numbers)) and len(numbers) < len(strips.decisions)
    stands = np.searchsorted(numbers, np.arange(1, len(strips.decisions) + 1), side="right") - 1
    assert [roles[i] for i in stands] == [decision.role[0] for decision in strips.decisions]
    for name, values in strips.rows.items():
        signs = [cell[0] for cell in cells(name)]
        wanted = ["+" if value > 0 else "-" if value < 0 else "." for value in values]
        assert [signs[i] for i in stands] == wanted, name


def test_decisions_to_which_all_say_the_same_share_a_column() -> None:
    roles = ["mem", "mem", "mem", "mem", "call"]
    decisions = tuple(Decision(f"d{i}", role, 1) for i, role in enumerate(roles))
    values = {"a": (1.0,) * 5, "b": (0.5, 0.5, 0.25, 0.25, 0.25)}
    shown = [line for line in lines(by_hand(decisions=decisions, rows=values)) if "|" in line]
    assert [line.rstrip() for line in shown] == [
        "  |round 1",
        "  | 1  3  5",
        "  | m  m  c",
        "a |+9 +9 +9",
        "b |+9 +5 +5",
    ]
    apart = by_hand(decisions=tuple(msgspec.structs.replace(d, round=i) for i, d in enumerate(decisions)))
    assert any(line.startswith("  | 1 | 2 | 3 | 4 | 5") for line in lines(apart))


def test_numbers_of_a_thousand_decisions_stand_apart() -> None:
    decisions = tuple(Decision(f"w{i}", "think", 1) for i in range(1200))
    strips = by_hand(decisions=decisions, rows={"a": tuple(np.linspace(-1, 1, 1200).tolist())})
    heads = [line.split("|")[1].split() for line in lines(strips) if re.match(r"  \| *\d[ \d]*$", line)]
    assert [int(number) for head in heads for number in head] == [*range(1, 1201)]


def test_a_rollout_that_ends_within_hundreds_of_tokens_is_shown() -> None:
    decisions = tuple(Decision(f"w{i}", "think", 1) for i in range(250))
    strips = by_hand(decisions=decisions, rows={"a": tuple(np.linspace(-1, 1, 250).tolist())})
    shown = lines(strips)
    assert any("250" in line and "w249" in line for line in shown)
    assert all(len(line) <= 100 for line in shown if "|" in line)


def test_piped_output_is_plain(run: Path) -> None:
    import subprocess

    done = subprocess.run(
        [*MEMPO, "credit", "show", str(run)], capture_output=True, text=True, check=True, timeout=300
    )
    assert "\x1b" not in done.stdout and "Signs against grpo" in done.stdout
    assert re.search(r"^mempo +\|", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--question", "6"], "--question: wanted 0 to 5, got 6"),
        (["--seed", "-1"], "seed: wanted 0 to 4611686018427387904, got -1"),
        (["--seed", str(2**70)], f"seed: wanted 0 to 4611686018427387904, got {2**70}"),
        (["--reference", "grop"], "unknown estimator 'grop': did you mean 'grpo'?"),
    ],
)
def test_misuse_is_one_line(
    run: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["credit", "show", str(run), *args]) == 2
    out, err = capsys.readouterr()
    assert message in err and err.count("\n") == 1 and not out


def test_tied_groups_are_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four objectives, all of which must be right: an untrained policy never is paid."""
    train(tmp_path / "run", Toy(objectives=4, worlds=60), msgspec.structs.replace(CONFIG, steps=1))
    assert main(["credit", "show", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "grpo takes no side in this rollout" in out and "--reference: mempo" in out.replace("\n", " ")
    assert main(["credit", "show", str(tmp_path / "run"), "--reference", "mempo"]) == 0
    assert "Signs against mempo" in capsys.readouterr().out


def test_where_no_page_can_be_written_nothing_is_played(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any, **__: Any) -> Strips:
        raise AssertionError("played")

    monkeypatch.setattr(show, "toy_strips", never)
    (tmp_path / "file").write_text("a file")
    for place in (tmp_path / "file" / "show.html", tmp_path, Path("/dev/null")):
        assert main(["credit", "show", str(run), "--html", str(place)]) == 2
        out, err = capsys.readouterr()
        assert not out and err.count("\n") == 1
        assert str(place) in err or f"{place.parent}: File exists" in err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_run_of_another_loop_is_told_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("stable_baselines3", reason="needs mempo[sb3]")
    assert main(["train", "sb3", "--steps", "1", "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    for command in (["show", str(tmp_path / "run")], ["lab", "--run", str(tmp_path / "run"), "--out", "x"]):
        assert main(["credit", *command]) == 2
        out, err = capsys.readouterr()
        assert not out and "wanted a run of `mempo train toy`, got one of `mempo train sb3`" in err
    assert not Path("x").exists()


def test_a_folder_that_is_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["credit", "show", str(tmp_path)]) == 2
    assert "wanted a training run, found none" in capsys.readouterr().err


# --- The page -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "show.html"
    assert main(["credit", "show", str(run), "--html", str(file)]) == 0
    return file


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_can_be_read(page_file: Path, browser: Browser, width: int, scheme: Any) -> None:
    with page_at(browser, page_file.as_uri(), width, scheme) as page:
        page.wait_for_selector(".strips td")
        assert overflow(page) <= 0
        assert page.locator("h2").all_inner_texts() == [
            "What each estimator says",
            "Signs against the reference",
            "The decisions",
        ]
        assert min(contrasts(page, "p, h2, h3, li, th, td, .role, thead button, select")) >= 4.5
        # Cells are mixed of two colours, which the browser reports as `color(srgb ...)`.
        assert min(page.evaluate(_MIXED)) >= 4.5


_MIXED = """
() => [...document.querySelectorAll(".strips td span")].map((node) => {
  const style = getComputedStyle(node), numbers = (text) => text.match(/[\\d.]+/g).map(Number).slice(0, 3);
  const rgb = (text) => text.startsWith("color(") ? numbers(text) : numbers(text).map((c) => c / 255);
  const light = (text) => rgb(text).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const pair = [light(style.color), light(style.backgroundColor)];
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
})
"""


def open_hand(browser: Browser, folder: Path, strips: Strips) -> Any:
    file = folder / "hand.html"
    file.write_text(show_page(strips, "a"), encoding="utf-8")
    return page_at(browser, file.as_uri())


def cells(page: Page, name: str) -> list[str]:
    row = page.locator(".strips tbody tr", has=page.get_by_role("rowheader", name=name, exact=True))
    return row.locator("td").all_inner_texts()


def marks(page: Page, name: str) -> list[int]:
    row = page.locator(".strips tbody tr", has=page.get_by_role("rowheader", name=name, exact=True))
    return [
        i
        for i, cell in enumerate(row.locator("td").all())
        if "against" in (cell.get_attribute("class") or "")
    ]


def test_the_page_marks_what_is_against_the_reference_that_is_chosen(
    browser: Browser, tmp_path: Path
) -> None:
    with open_hand(browser, tmp_path, by_hand()) as page:
        page.wait_for_selector(".strips td")
        assert cells(page, "b") == ["·", "+", "+", "−", "−"]
        assert marks(page, "b") == [3] and marks(page, "c") == [] and marks(page, "a") == []
        page.get_by_label("reference", exact=True).select_option("b")
        assert marks(page, "a") == [3] and marks(page, "b") == []
        told_ = page.locator(".counts tr", has_text="a").first.inner_text()
        assert "1 of 5" in told_ and "decision 4 (+0.50, b −1.00)" in told_


def test_the_page_says_where_the_reference_takes_no_side(browser: Browser, tmp_path: Path) -> None:
    rows_ = {**by_hand().rows, "d": (-1e-9, 1.0, 1.0, 1.0, 1.0)}
    with open_hand(browser, tmp_path, by_hand(rows=rows_)) as page:
        page.wait_for_selector(".strips td")
        assert marks(page, "d") == []  # rounding is no side
        page.get_by_label("reference", exact=True).select_option("c")
        assert "c takes no side in this rollout" in page.locator("main").inner_text()
        assert page.locator(".counts").count() == 0
        page.get_by_label("reference", exact=True).select_option("a")
        assert page.locator(".counts tr").count() == 3


def test_the_page_is_walked_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    with open_hand(browser, tmp_path, by_hand()) as page:
        page.wait_for_selector(".strips td")
        page.get_by_label("reference", exact=True).focus()
        page.keyboard.press("Tab")
        assert "decision 1" in page.locator(".detail").inner_text()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        about = page.locator(".detail").inner_text()
        assert (
            "round 2: decision 4" in about and "for it: a +0.50" in about and "against it: b −1.00" in about
        )
        assert page.locator(".strips [aria-pressed=true]").count() == 1
        page.keyboard.press("End")
        assert "decision 5" in page.locator(".detail").inner_text()
        assert "a takes no side" in page.locator(".detail").inner_text()
        page.keyboard.press("ArrowRight")
        assert "decision 5" in page.locator(".detail").inner_text()
        page.keyboard.press("Home")
        assert "decision 1" in page.locator(".detail").inner_text()


def test_hostile_text_is_inert(browser: Browser, tmp_path: Path) -> None:
    evil = '</script><img src=x onerror="document.title=1"><b>&amp;{{style}}\u202e'
    strips = by_hand(title=evil, questions=(evil,), facts={evil: evil}, about={"a": evil})
    decisions = tuple(msgspec.structs.replace(d, text=evil) for d in strips.decisions)
    with open_hand(browser, tmp_path, msgspec.structs.replace(strips, decisions=decisions)) as page:
        page.wait_for_selector(".strips td")
        assert page.locator("img, b").count() == 0 and page.title() != "1"
        assert "</script><img" in page.locator(".detail").inner_text()
        assert "⟨U+202E⟩" in page.locator(".detail").inner_text()
