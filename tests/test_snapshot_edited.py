"""States that were edited, and signed anew, so that their digest is right: they work, or are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mempo_env.errors import StateError
from mempo_env.snapshot import Snapshot, _digest
from small import make

SEARCH = "<search> Aldo Verne </search>"


class Notes:
    """A memory of one's own."""

    def __init__(self, state: Any = None) -> None:
        self.notes = list(state or [])

    def write(self, text: str, round: int) -> None:
        self.notes.append(text)

    def show(self) -> str:
        return "\n".join(self.notes)

    def state(self) -> Any:
        return self.notes


MEMORIES: dict[str, Any] = {"inline": "inline", "bank": "bank", "own": Notes}


@cache
def state_of(memory: str) -> str:
    """A state after two rounds."""
    env = make(memory=MEMORIES[memory])
    env.reset(seed=0)
    env.step("<memory_write> a fact </memory_write><memory_write> others </memory_write>" + SEARCH)
    env.step('<mem> a </mem><memory_merge ids="1,2"/><memory_read> q </memory_read>' + SEARCH)
    return env.get_state()


def signed(state: Any) -> str:
    """The text of edited JSON data with the digest that belongs to it, if it has the form of a state."""
    try:
        snapshot = msgspec.convert(state, Snapshot)
    except msgspec.ValidationError:
        return json.dumps(state)
    return msgspec.json.encode(replace(snapshot, digest=_digest(snapshot))).decode()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of JSON data, as (what it is in, its key or index)."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield value, key
        yield from places(part)


def rng(**inner: Any) -> str:
    state = {"bit_generator": "PCG64", "state": {"state": 1, "inc": 3}, "has_uint32": 0, "uinteger": 0}
    return json.dumps({**state, **inner})


ODD = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 2, 3, 7, 10**6, 2**62, -(2**62), 1.5, "", "x", "q1", [], [0], {}, [[]]),
        *([[0, 3], [3, 9]], [[9, 3]], {"entries": [], "log": []}),
        *(
            rng(),
            rng(state={"state": -1, "inc": 3}),
            rng(state={"state": 2**200, "inc": 3}),
            rng(uinteger=-5),
        ),
        *(rng(bit_generator="MT19937"), rng(state=None), rng(state={"state": "x", "inc": []}), "[]", "1"),
    ]
)


@settings(max_examples=600, deadline=None)
@given(st.data(), st.sampled_from(sorted(MEMORIES)), st.integers(1, 2))
def test_a_state_that_was_edited_and_signed_anew_works_or_is_refused(
    data: st.DataObject, memory: str, edits: int
) -> None:
    state = json.loads(state_of(memory))
    for _ in range(edits):
        all_places = list(places(state))
        part, key = all_places[data.draw(st.integers(0, len(all_places) - 1))]
        if data.draw(st.integers(0, 3)) == 0:
            del part[key]
        else:
            part[key] = deepcopy(data.draw(ODD))
    env = make(memory=MEMORIES[memory])
    env.reset(seed=1)
    before = env.get_state()
    try:
        env.reset(options={"state": signed(state)})
    except StateError:
        assert env.get_state() == before, "a state that was refused has changed nothing"
        return
    env.get_state()
    env.fork(1)[0].step(SEARCH)
    if json.loads(env.get_state())["stop_reason"] is None:
        env.step(
            '<mem> b </mem><memory_read> a </memory_read><memory_merge ids="3"> x </memory_merge>' + SEARCH
        )


@pytest.mark.parametrize(
    ("way", "value", "told"),
    [
        (("question_ids",), ["q99"], "unknown question id"),
        (("question_ids",), ["q0", "q1"], "1 question"),
        (("head",), 99, "segments"),
        (("memory_index",), 10**6, "segments"),
        (("steps",), [[0, 99], [3, 4]], "segments"),
        (("rng",), rng(state={"state": 2**200, "inc": 3}), "random state"),
    ],
)
def test_it_says_what_is_wrong_with_a_state(way: tuple[str, ...], value: Any, told: str) -> None:
    state = json.loads(state_of("inline"))
    state[way[0]] = value
    env = make()
    with pytest.raises(StateError, match=f"state: .*{told}"):
        env.reset(options={"state": signed(state)})
