"""The list of the episode viewer, its keys, links and looks, in a real browser."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

import episodes
from browser import DESKTOP, PHONE, contrasts, overflow
from episodes import SEVERAL
from mempo_env.types import ObjectiveScore, Question
from mempo_env.viewer import Entry

if TYPE_CHECKING:
    from playwright.sync_api import Page


Show = Callable[..., "Page"]


def heading(page: Page) -> str:
    return page.inner_text("#episode h2")


def listed(page: Page) -> list[str]:
    """Agents of the rows of the list, from the top."""
    return page.locator(".row bdi").all_inner_texts()


def anchor(page: Page) -> str:
    return page.evaluate("location.hash")


def test_it_opens_from_a_file_at_the_first_episode(show: Show) -> None:
    page = show(SEVERAL)
    assert page.url.startswith("file:")
    assert heading(page) == episodes.QUESTION.text
    assert page.inner_text("#count") == "6 of 6 episodes · EM 0.3 · F1 0.3"  # (1 + 0 + 0.5 + 0 + 0) / 5
    assert page.inner_text(".pairs").split("\n")[:2] == ["Gold", "1871 or the year 1871"]
    assert page.inner_text("#where") == "Round 1 of 3"


def test_sorting_by_each_key_and_back(show: Show) -> None:
    page = show(SEVERAL)
    by_rounds = sorted(SEVERAL, key=lambda entry: len(entry.episode.rounds))
    page.select_option("#sort", "rounds")
    assert listed(page) == [entry.label for entry in by_rounds]
    page.click("#direction")
    assert page.locator(".row .about").first.inner_text().endswith("5 rounds · peak 107 · not retrieved")
    page.select_option("#sort", "f1")
    assert listed(page)[:2] == ["mempo", "mempo"]
    assert "F1 1 " in page.locator(".row .about").first.inner_text()
    assert "F1" not in page.locator(".row .about").last.inner_text(), "an unfinished episode comes last"
    page.select_option("#sort", "failure")
    page.click("#direction")
    assert [text.split(" · ")[-1] for text in page.locator(".row .about").all_inner_texts()][:4] == [
        "environment",
        "kept not used",
        "not retrieved",
        "out of budget",
    ]
    page.select_option("#sort", "agent")
    assert listed(page) == sorted(entry.label for entry in SEVERAL)


def test_filtering_by_words_and_by_each_list(show: Show) -> None:
    page = show(SEVERAL)
    page.fill("#search", "harrowgate")
    assert listed(page) == [], "passages are not searched"
    assert page.inner_text("#count") == "0 of 6 episodes"
    page.fill("#search", "SÁLT ledger")
    assert page.inner_text("#count").startswith("1 of 6")
    page.fill("#search", "")
    page.select_option("#by-agent", "=mempo")
    assert listed(page) == ["mempo"] * 3
    page.select_option("#by-result", "=partly")
    assert listed(page) == ["mempo"]
    page.select_option("#by-agent", "")
    page.select_option("#by-result", "=wrong")
    assert listed(page) == ["react", "window", "own/agent 1 %"]
    page.select_option("#by-failure", "=not_retrieved")
    assert listed(page) == ["react"]
    page.select_option("#by-failure", "")
    page.select_option("#by-stop", "=timeout")
    assert listed(page) == ["window"]
    assert page.locator("#by-stop option").all_inner_texts() == [
        "Stop reason: all",
        "answered (3)",
        "retriever error (1)",
        "timeout (1)",
        "unfinished (1)",
    ]


def test_stepping_through_rounds_by_click_and_by_key(show: Show) -> None:
    page = show(SEVERAL)
    page.click("#forth")
    assert page.inner_text("#round h3") == "Round 2: searched for “Ilse Corvane born”"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#where") == "Round 3 of 3"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Alt+ArrowLeft")
    assert page.inner_text("#where") == "Round 2 of 3", "Alt+Left belongs to the browser"
    page.click("#strip button >> nth=0")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.ariaCurrent") == "step", "the focus follows"
    page.click("#back")
    assert page.inner_text("#where") == "Round 1 of 3"
    page.locator("#chart .column").nth(2).click()
    assert page.inner_text("#where") == "Round 3 of 3"


def test_moving_between_episodes_by_key_and_click(show: Show) -> None:
    page = show(SEVERAL)
    page.keyboard.press("j")
    assert anchor(page) == "#react/syn-0017/1"
    page.keyboard.press("j")
    assert heading(page) == "2 questions"
    page.keyboard.press("k")
    page.focus("#list")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert anchor(page) == "#mempo/syn-0017/1"
    page.keyboard.press("ArrowDown")
    chosen = page.get_attribute("#list", "aria-activedescendant")
    assert page.get_attribute(f"#{chosen}", "aria-selected") == "true"
    assert page.inner_text(f"#{chosen} bdi") == "react"
    page.focus("#search")
    page.keyboard.type("jk")
    assert anchor(page) == "#react/syn-0017/1", "letters typed into the search move nothing"
    page.fill("#search", "")
    page.locator(".row").nth(4).click()
    assert heading(page) == "What is in the box"


@pytest.mark.parametrize(
    ("link", "agent", "where"),
    [
        ("#react/syn-0017/4", "react", "Round 4 of 5"),
        (
            f"#{quote('own/agent 1 %', safe='')}/{quote('own/1 %', safe='')}/1",
            "own/agent 1 %",
            "Round 1 of 1",
        ),
        ("#mempo/syn-0017/1/2", "mempo", "Round 1 of 2"),  # the second of this agent and question
        ("#react/syn-0017/99", "react", "Round 5 of 5"),
        ("#react/syn-0017/x", "react", "Round 1 of 5"),
        ("#nobody/%/1", "mempo", "Round 1 of 3"),
    ],
)
def test_a_link_opens_its_agent_question_and_round(show: Show, link: str, agent: str, where: str) -> None:
    page = show(SEVERAL, link)
    assert page.inner_text("#episode .title .chip >> nth=0") == agent
    assert page.inner_text("#where") == where


def test_every_episode_and_round_has_a_link_of_its_own(show: Show) -> None:
    page = show(SEVERAL)
    chosen = "document.querySelector('[aria-selected=true]').id"
    sight = f"() => {chosen} + document.getElementById('where')?.innerText"
    seen = {}
    for i, entry in enumerate(SEVERAL):
        page.locator(".row").nth(i).click()
        for _ in entry.episode.rounds or [None]:
            seen[anchor(page)] = page.evaluate(sight)
            page.keyboard.press("ArrowRight")
    assert len(seen) == len(set(seen.values())) == 3 + 5 + 2 + 1 + 1 + 2
    for link, there in seen.items():
        page.evaluate("link => { location.hash = link }", link)
        page.wait_for_function(f"there => ({sight})() === there", arg=there)


@pytest.mark.parametrize("width", [PHONE, 700, DESKTOP])
@pytest.mark.parametrize("index", range(len(SEVERAL)))
def test_nothing_is_wider_than_the_window(show: Show, width: int, index: int) -> None:
    page = show([SEVERAL[index], *SEVERAL], width=width)
    page.evaluate("document.querySelectorAll('details').forEach(item => { item.open = true })")
    for _ in SEVERAL[index].episode.rounds or [None]:
        assert overflow(page) <= 0
        page.keyboard.press("ArrowRight")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_background(show: Show, scheme: str) -> None:
    page = show(SEVERAL, "#react/syn-0017/5", scheme=scheme)
    light = page.evaluate("matchMedia('(prefers-color-scheme: light)').matches")
    assert light == (scheme == "light")
    for link in (
        "#react/syn-0017/5",
        "#react/syn-0017/3",
        "#react/syn-0017/2",
        "#mempo/syn-0017%2Bsyn-0018/2",
    ):
        page.evaluate("link => { location.hash = link }", link)
        page.wait_for_function("link => location.hash === link", arg=link)
        ratios = contrasts(
            page, "body, h1, h2, h3, h4, p, small, dt, dd, b, .text, .chip, .step, ins, del, mark, .row *"
        )
        assert len(ratios) > 50
        assert min(ratios) >= 4.5


def test_headings_names_and_focus(show: Show) -> None:
    page = show(SEVERAL, "#react/syn-0017/3")
    levels = [
        int(tag[1])
        for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(h => h.tagName)")
    ]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    nameless = "x => !x.ariaLabel && !x.textContent.trim()"
    assert (
        page.evaluate(f"[...document.querySelectorAll('button, select, input')].filter({nameless}).length")
        == 0
    )
    page.keyboard.press("Tab")
    focused = "(s => [s.outlineStyle, s.outlineWidth])(getComputedStyle(document.activeElement))"
    assert page.evaluate(focused) == ["solid", "2px"]


def test_on_a_phone_the_list_folds_away(show: Show) -> None:
    page = show(SEVERAL, width=PHONE)
    assert page.is_visible("#list")
    page.locator(".row").nth(1).click()
    assert not page.is_visible("#list")
    assert page.inner_text("#where") == "Round 1 of 5"
    page.click("#toggle")
    assert page.is_visible("#list")
    assert page.get_attribute("#toggle", "aria-expanded") == "true"


def many() -> list[Entry]:
    """4,000 episodes: 10 agents by 400 questions."""

    def entry(agent: int, i: int) -> Entry:
        question = Question(id=f"q{i}", text=f"What is number {i} called?", answers=(f"name {i}",))
        right = float((agent + i) % 4 == 0)
        score = ObjectiveScore(f"name {i}", right, right, right, bool(right))
        steps = [
            (episodes.search(f"number {i}", f"{i}"), (episodes.hit("p-11", 1.0),)),
            (episodes.answer(f"{i}"), ()),
        ]
        return Entry(f"agent-{agent}", episodes.play(steps, (question,), scores=(score,)))

    return [entry(agent, i) for agent in range(10) for i in range(400)]


def test_four_thousand_episodes_open_sort_and_filter(show: Show) -> None:
    page = show(many(), "#agent-7/q123/2")
    assert heading(page) == "What is number 123 called?"
    assert page.inner_text("#count") == "4,000 of 4,000 episodes · EM 0.25 · F1 0.25"
    assert page.locator(".row").count() < 60, "only the rows in sight are drawn"
    page.evaluate("document.getElementById('list').scrollTop = 1e9")
    page.wait_for_selector("#row-3999")
    assert page.inner_text("#row-3999 .asked") == "What is number 399 called?"
    page.fill("#search", "number 39")
    assert page.inner_text("#count").startswith("140 of 4,000")  # 39, 139, 239, 339, 390 to 399; 10 agents
    page.select_option("#by-agent", "=agent-3")
    assert page.inner_text("#count").startswith("14 of 4,000")
    page.click("#direction")
    page.select_option("#sort", "question")
    assert page.locator(".row .asked").first.inner_text() == "What is number 399 called?"
