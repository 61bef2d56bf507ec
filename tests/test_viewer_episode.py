"""What the episode viewer shows of an episode and its rounds, in a real browser."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import episodes
from browser import PHONE, overflow, page_at
from episodes import ATTACK, SEVERAL
from mempo_env.types import Failure
from mempo_env.viewer import FAILURES, Entry, episodes_page, resource

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


Show = Callable[..., "Page"]


@pytest.mark.parametrize("copies", [1, 60])
def test_hostile_text_is_shown_and_does_nothing(show: Show, copies: int) -> None:
    page = show(
        [Entry(ATTACK + str(i), episodes.hostile(ATTACK)) for i in range(copies)], title=ATTACK, width=PHONE
    )
    for _ in range(3):
        page.evaluate("document.querySelectorAll('details').forEach(item => { item.open = true })")
        assert (
            page.locator("img, iframe, object, embed, svg [onload], #episode script, #side script").count()
            == 0
        )
        assert page.locator("script").count() == 2
        assert overflow(page) <= 0
        page.keyboard.press("ArrowRight")
    assert page.evaluate("window.ran") is None
    assert page.evaluate("({}).ran") is None
    told = page.inner_text("#episode h2")
    assert "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>" in told
    assert "⟨U+0000⟩" in told
    assert "⟨U+202E⟩evil" in told, "text that would turn others around is named instead"
    assert "{{data}}" in told
    assert "&lt;i&gt; &amp;" in told


def test_the_difference_of_memories_is_marked_not_by_colour_alone(show: Show) -> None:
    page = show(SEVERAL, "#mempo/syn-0017/2")
    assert page.locator(".memory ins, .memory del").count() == 0, "the first memory is no change"
    page.keyboard.press("ArrowRight")
    before, after = (item.memory for item in episodes.right().rounds[1:])
    assert before == "The Velmora Observatory was founded in 1904 by Ilse Corvane. Needed: her year of birth."
    assert after == "The observatory was founded in 1904 by Ilse Corvane, who was born in 1871."
    assert page.locator(".memory del").all_inner_texts() == [
        "Velmora Observatory",
        "Corvane. Needed: her year of birth.",
    ]
    assert page.locator(".memory ins").all_inner_texts() == ["observatory", "Corvane, who was born in 1871."]
    style = "node => getComputedStyle(node).textDecorationLine"
    assert page.locator(".memory ins").first.evaluate(style) == "underline"
    assert page.locator(".memory del").first.evaluate(style) == "line-through"


def common_words(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, by its recurrence."""
    best = [0] * (len(b) + 1)
    for word in a:
        previous = best[:]
        for j, other in enumerate(b):
            best[j + 1] = previous[j] + 1 if word == other else max(previous[j + 1], best[j])
    return best[-1]


def test_a_difference_keeps_as_many_words_as_can_be_kept(browser: Browser) -> None:
    chance = random.Random(5)
    pairs = [[" ".join(chance.choices("abcd", k=chance.randrange(12))) for _ in "xy"] for _ in range(200)]
    long = " ".join(f"old{i}" for i in range(3000)), " ".join(f"new{i}" for i in range(3000))
    pairs += [["", "a"], ["a", ""], ["a\n\nb  c", "a b c"], ["start " + long[0], "start " + long[1]]]
    with page_at(browser, "about:blank") as page:
        page.add_script_tag(content=resource("parts.js"))
        results = page.evaluate("pairs => pairs.map(pair => difference(...pair))", pairs)
    for (before, after), runs in zip(pairs, results, strict=True):
        words = {
            kind: [w for k, part in runs if k in (kind, "same") for w in part.split()]
            for kind in ("del", "ins")
        }
        assert (words["del"], words["ins"]) == (before.split(), after.split())
        kept = [word for kind, part in runs if kind == "same" for word in part.split()]
        assert len(kept) == common_words(before.split(), after.split())


def test_what_was_seen_written_and_retrieved(show: Show) -> None:
    page = show(SEVERAL, "#react/syn-0017/4")
    kinds = page.locator("#round .segment .role").all_text_contents()
    assert kinds == ["system", "question", "mem", "think", "call", "information", "hint"]
    assert page.locator("#round .segment:not([open]) .role").all_text_contents() == ["system"]
    assert page.locator("#round .segment.information small").inner_text() == "round 3 · 39 tokens"
    # "🔭" is one character for the spans, and two units for the browser.
    assert page.locator("#round .span .text").all_inner_texts() == [
        "<mem>Founded by Ilse Corvane 🔭 in 1904.</mem>",
        "<think>Let me look that up.</think>",
        "<search>Corvane</search>",
    ]
    page.keyboard.press("ArrowLeft")
    assert (
        page.locator("#round .hit.gold")
        .inner_text()
        .startswith("Velmora Observatory ★ gold evidence score 9.25")
    )
    assert page.locator("#round mark").all_inner_texts() == list(episodes.QUESTION.evidence[0].sentences)
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#round h3") == "Round 2: invalid action: “ambiguous”"
    assert "a search and an answer in one round" in page.inner_text("#round")
    assert (
        page.locator("#strip button").nth(2).get_attribute("aria-label")
        == "Round 3: search, gold evidence retrieved"
    )
    assert FAILURES[Failure.NOT_RETRIEVED] in page.inner_text("#episode section >> nth=0")
    assert "−0.05" in page.inner_text(".facts")


def test_a_segment_that_was_opened_stays_open_in_the_next_round(show: Show) -> None:
    page = show(SEVERAL, "#react/syn-0017/3")
    page.click("#round .segment.system summary")
    page.click("#round .segment.hint summary")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#round .segment.system", "open") == ""
    assert page.get_attribute("#round .segment.hint", "open") is None


def test_several_objectives_are_told_apart(show: Show) -> None:
    page = show([SEVERAL[2]])
    first, second = page.locator(".objective").all_inner_texts()
    assert "✗ wrong" in first
    assert FAILURES[Failure.KEPT_NOT_USED] in first
    assert "✓ right" in second
    assert page.inner_text(".title").startswith("mempo ◐ partly right: 1 of 2")
    assert not page.is_visible("#chooser"), "a single episode needs no list"


def test_an_unfinished_an_aborted_and_a_masked_episode(show: Show) -> None:
    page = show(SEVERAL)
    rows = page.locator(".row")
    rows.nth(5).click()
    assert "… unfinished" in page.inner_text(".title")
    assert "EM" not in page.inner_text(".facts")
    assert page.get_attribute("#episode > details >> nth=0", "open") == "", "what comes next is in sight"
    rows.nth(3).click()
    assert "No round has been played." in page.inner_text("#episode")
    page.keyboard.press("ArrowRight")
    rows.nth(4).click()
    result = page.inner_text("#episode section >> nth=0")
    assert "http://127.0.0.1:9: refused" in result
    assert "Masked" in result
    page.click("text=Calls of the model: 2")
    assert page.locator("section.call h5").all_inner_texts() == [
        "Call 1 prompt 4 · output 2 tokens",
        "Call 2 prompt 2 · output 1 tokens",
    ]
    assert "No gold evidence is known to compare with." in page.inner_text(".diagnosis")


def test_a_page_without_episodes_and_one_with_broken_data(
    browser: Browser, show: Show, tmp_path: Path
) -> None:
    assert show([]).inner_text("#episode") == "There are no episodes to show."
    path = tmp_path / "broken.html"
    whole = episodes_page(SEVERAL, "Broken")
    path.write_text(whole.replace('id="data">', 'id="data">x', 1), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.inner_text("[role=alert]").startswith("The page's data can't be read")
    context.close()
