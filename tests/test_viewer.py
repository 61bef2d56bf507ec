"""What the page of the episode viewer holds, and that no text in it becomes markup."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import episodes
from episodes import ATTACK, SEVERAL
from mempo_env.types import Failure, StopReason
from mempo_env.viewer import FAILURES, STOPS, Entry, episodes_page, resource

if TYPE_CHECKING:
    pass


class Markup(HTMLParser):
    """The tags of a page, its title, and the kind and text of its data element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.kind, self.data, self.title, self.inside = "", "", "", ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.inside = "data" if values.get("id") == "data" else tag
        if self.inside == "data":
            self.kind = values["type"] or ""
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "data":
            self.data += data
        if self.inside == "title":
            self.title += data


def read_back(page: str) -> list[Entry]:
    """The entries of a page, from its data element alone."""
    markup = Markup(page)
    text: str | bytes = markup.data
    if markup.kind == "application/gzip":
        text = gzip.decompress(base64.b64decode(markup.data))
    data = json.loads(text)

    def prose(lines: Sequence[int]) -> str:
        return "\n".join(data["lines"][i] for i in lines)

    def segment(index: int) -> dict[str, Any]:
        kind, number, tokens, lines = data["segments"][index]
        return {"kind": kind, "round": number, "tokens": tokens, "text": prose(lines)}

    def hit(index: int, score: float) -> dict[str, Any]:
        id, title, row, lines = data["passages"][index]
        return {"id": id, "title": title, "row": row, "score": score, "text": prose(lines)}

    for entry in data["entries"]:
        episode = entry["episode"]
        episode["questions"] = [data["questions"][i] for i in episode["questions"]]
        episode["ledger"] = [segment(i) for i in episode["ledger"]]
        for number in episode["rounds"]:
            number["text"], number["memory"] = prose(number["text"]), prose(number["memory"])
            number["hits"] = [hit(*pair) for pair in number["hits"]]
            for call in number["calls"]:
                call["segments"] = [segment(i) for i in call["segments"]]
                call["output"] = prose(call["output"])
    return msgspec.convert(data["entries"], list[Entry])


def shown(entry: Entry) -> Entry:
    """The entry without what a page leaves out: ids and log-probabilities (their number stays)."""

    def call(call: Any) -> Any:
        return replace(
            call,
            prompt_ids=(),
            output_ids=(),
            logprobs=(),
            prompt_tokens=len(call.prompt_ids) or call.prompt_tokens,
            output_tokens=len(call.output_ids) or call.output_tokens,
        )

    rounds = tuple(
        replace(item, token_ids=(), logprobs=(), calls=tuple(map(call, item.calls)))
        for item in entry.episode.rounds
    )
    return replace(entry, episode=replace(entry.episode, rounds=rounds))


def test_a_small_page_holds_its_episodes_as_plain_json() -> None:
    page = episodes_page(SEVERAL[:2], "Two")
    assert Markup(page).kind == "application/json"
    assert read_back(page) == [shown(entry) for entry in SEVERAL[:2]]


def test_a_large_page_holds_its_episodes_compressed() -> None:
    entries = [replace(SEVERAL[i % 6], label=f"agent {i}") for i in range(60)]
    page = episodes_page(entries, "Many")
    assert Markup(page).kind == "application/gzip"
    assert read_back(page) == [shown(entry) for entry in entries]


def test_questions_and_passages_are_stored_once() -> None:
    def times(page: str) -> list[int]:
        _, text = episodes.PASSAGES["p-11"]
        return [Markup(page).data.count(part) for part in (text, episodes.QUESTION.source + '"')]

    once = episodes_page([Entry("a", episodes.right())], "")
    many = episodes_page([Entry(label, episodes.right()) for label in "abc"], "")
    assert Markup(many).kind == "application/json"
    assert times(once) == times(many) == [1, 1]


@given(st.text(), st.text(), st.text())
def test_no_text_becomes_markup(text: str, label: str, title: str) -> None:
    entry = Entry(label, episodes.hostile(text))
    page = episodes_page([entry], title)
    assert read_back(page) == [shown(entry)]
    assert Markup(page).tags == Markup(episodes_page([Entry("a", episodes.hostile("b"))], "c")).tags


def test_an_attack_does_not_become_markup() -> None:
    markup = Markup(episodes_page([Entry(ATTACK, episodes.hostile(ATTACK))], ATTACK))
    assert [tag for tag, _ in markup.tags].count("script") == 2
    assert not {"img", "svg", "iframe"} & {tag for tag, _ in markup.tags}
    assert "window.ran = 1" in markup.title


def test_the_same_episodes_give_the_same_bytes() -> None:
    entries = [replace(SEVERAL[i % 6], label=f"agent {i}") for i in range(60)]
    assert episodes_page(entries, "Many") == episodes_page(entries, "Many")


def test_the_scripts_never_parse_markup() -> None:
    script = resource("parts.js") + resource("episode.js") + resource("viewer.js")
    assert "textContent" in script
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|\beval\b|Function\(", script
    )


def test_every_failure_and_stop_reason_is_explained() -> None:
    assert set(FAILURES) == set(Failure)
    assert set(STOPS) == set(StopReason)
