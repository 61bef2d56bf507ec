"""SGLang as an engine of training: scores of given ids and new weights, from servers right and wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_help import chatting, make_network, prompt, save
from mempo_agents.models.base import ModelError, ModelOverflow, ModelTimeout, Sampling
from mempo_agents.models.chat import load_tokenizer
from mempo_agents.models.huggingface import open_huggingface
from mempo_agents.models.sglang import SGLang, open_sglang
from mempo_env.errors import ConfigError
from mempo_env.types import Call
from scripted import Asked, Behaviour, drip, hang, ok, raw, serving, status
from sglang_help import generated, refusing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("llm") / "tiny"
    chatting().save_pretrained(folder)
    yield folder
    load_tokenizer.cache_clear()


# --- Scores ------------------------------------------------------------------------------------------------


def scored(*told: tuple[float | None, int]) -> dict[str, Any]:
    """What SGLang 0.5.23 answers to a prompt whose log-probabilities were asked for, and no text."""
    meta = {
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": 15,
        "input_token_logprobs": [[logprob, token, None] for logprob, token in told],
        "output_token_logprobs": [],
        "completion_tokens": 0,
        "cached_tokens": 0,
    }
    return {"text": "", "output_ids": [], "meta_info": meta}


def opened(folder: Path, server: Any, **settings: Any) -> SGLang:
    return SGLang(model=str(folder), url=server.url, **{"tries": 2, "pause": 0.001, "read": 0.5, **settings})


def sent(server: Any) -> list[tuple[bytes, dict[str, Any]]]:
    """Path and body of each request."""
    parts = [request.partition(b"\r\n\r\n") for request in server.requests]
    return [(head.split()[1], json.loads(body)) for head, _, body in parts]


def test_it_is_asked_for_log_probabilities_of_the_answer_alone(folder: Path) -> None:
    """At temperature 1, whatever it samples at; the last of the ids before has none itself."""
    with serving(ok(scored((None, 7), (-0.25, 8), (-1.5, 9)))) as server:
        model = opened(folder, server, sampling=Sampling(temperature=0.3, top_p=0.5, max_tokens=64))
        assert model.score([((5, 6, 7), (8, 9))]) == [(-0.25, -1.5)]
    assert sent(server) == [
        (
            b"/generate",
            {
                "input_ids": [5, 6, 7, 8, 9],
                "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
                "return_logprob": True,
                "logprob_start_len": 2,
                "stream": False,
            },
        )
    ]


def test_each_of_many_gets_its_own_scores(folder: Path) -> None:
    """Whatever order they come in; what needs no server does not go there."""

    def by_ids(told: Any) -> bool:
        body = json.loads(told.body)
        first, *then = body["input_ids"][body["logprob_start_len"] :]
        return ok(scored((None, first), *((-token / 8, token) for token in then)))(told)

    asked = [((1,) * (1 + i), tuple(range(i, i + i % 4))) for i in range(1, 20)]
    with serving(by_ids) as server:
        found = opened(folder, server).score([*asked, ((), (3,))])
    assert found[:-1] == [tuple(-token / 8 for token in then) for _, then in asked]
    assert isinstance(found[-1], ModelError) and "at least one id before" in str(found[-1])
    assert len(server.requests) == sum(bool(then) for _, then in asked)


def test_the_last_id_of_a_vocabulary_is_told_as_0(folder: Path) -> None:
    """As a real server does, with the right log-probability."""
    with serving(ok(scored((None, 7), (-0.25, 0), (-1.5, 9)))) as server:
        assert opened(folder, server).score([((7,), (359, 9))]) == [(-0.25, -1.5)]


BAD_SCORES: dict[str, tuple[Behaviour, type[ModelError], str, int]] = {
    "of other ids": (ok(scored((None, 7), (-0.25, 8), (-1.5, 8))), ModelError, "or those of others", 1),
    "of too few": (ok(scored((None, 7), (-0.25, 8))), ModelError, "2 given ids, got 1", 1),
    "of the whole prompt": (
        ok(scored((None, 6), (-1.0, 7), (-0.25, 8), (-1.5, 9))),
        ModelError,
        "2 given ids, got 3",
        1,
    ),
    "one that is none": (ok(scored((None, 7), (None, 8), (-1.5, 9))), ModelError, "2 given ids, got 1", 1),
    "above 0": (
        ok(scored((None, 7), (0.25, 8), (-1.5, 9))),
        ModelError,
        "log-probabilities that are none",
        2,
    ),
    "none": (ok(generated("x")), ModelError, "without log-probabilities of the prompt", 2),
    "too long": (
        refusing("The input (3001 tokens) is longer than the model's context length (2048 tokens)."),
        ModelOverflow,
        "fits the model's window",
        1,
    ),
    "hangs": (hang, ModelTimeout, "no answer in time", 2),
    "garbage": (status(200, body=b"\xff"), ModelError, "not what was asked for", 2),
}


@pytest.mark.parametrize("fault", BAD_SCORES)
def test_scores_that_are_none_are_errors(folder: Path, fault: str) -> None:
    behaviour, kind, told, tries = BAD_SCORES[fault]
    with serving(behaviour) as server:
        (error,) = opened(folder, server).score([((7,), (8, 9))])
    assert type(error) is kind and told in str(error)
    assert len(server.requests) == tries


# --- New weights -------------------------------------------------------------------------------------------

TAKEN = ok({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model."""
    return save(tmp_path_factory.mktemp("llm") / "saved", make_network(chatting()), chatting())


def test_new_weights_are_named_by_their_folder(
    folder: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved.parent)
    with serving(TAKEN) as server:
        opened(folder, server).update_weights(Path("saved"))
    body = {"model_path": str(saved), "flush_cache": True}
    assert sent(server) == [(b"/update_weights_from_disk", body)]


NOT_TAKEN: dict[str, tuple[Behaviour, type[ModelError], str, int]] = {
    "refused": (
        status(400, body=b'{"success": false, "message": "Failed to get weights iterator: no such file"}'),
        ModelError,
        "Failed to get weights iterator: no such file",
        1,
    ),
    "refused with 200": (
        ok({"success": False, "message": "out of memory"}),
        ModelError,
        "the weights were not taken: out of memory",
        1,
    ),
    "another server": (ok({"choices": []}), ModelError, "required field `success`", 2),
    "not known there": (status(404), ModelError, "status 404", 1),
    "hangs": (hang, ModelTimeout, "no answer in time", 2),
    "dies": (raw(b""), ModelError, "connection closed", 2),
}


@pytest.mark.parametrize("fault", NOT_TAKEN)
def test_weights_that_are_not_taken_are_an_error(folder: Path, saved: Path, fault: str) -> None:
    behaviour, kind, told, tries = NOT_TAKEN[fault]
    with serving(behaviour) as server:
        model = opened(folder, server)
        with pytest.raises(ModelError) as error:
            model.update_weights(saved)
    assert type(error.value) is kind and told in str(error.value)
    assert len(server.requests) == tries


RUNNING = (
    b'{"success": false, "message": "Weights were updated, but the cache was not flushed because requests '
    b'are still running or queued. Retract or finish them, then call /flush_cache."}'
)


def test_weights_are_given_again_while_requests_are_under_way(folder: Path, saved: Path) -> None:
    """A question whether it is well, which nobody waits for any more, is one (SGLang 0.5.23)."""
    with serving(status(400, body=RUNNING), status(400, body=RUNNING), TAKEN) as server:
        opened(folder, server, tries=3).update_weights(saved)
    assert len(sent(server)) == 3
    with serving(status(400, body=RUNNING)) as server, pytest.raises(ModelError, match="still running"):
        opened(folder, server, tries=2).update_weights(saved)


def test_no_token_is_generated_to_ask_whether_weights_are_loaded(folder: Path, saved: Path) -> None:
    def slow(asked: Asked) -> bool:
        while asked.body and not any(request.startswith(b"GET ") for request in server.requests):
            asked.stopped.wait(0.01)
        return ok({"success": True})(asked)

    with serving(slow) as server:
        opened(folder, server, read=20.0, total=20.0, patience=0.4).update_weights(saved)
    assert {request.split(b" ")[1] for request in server.requests if request.startswith(b"GET ")} == {
        b"/model_info"
    }


def test_a_server_that_is_gone_is_an_error_of_scores_and_weights(folder: Path, saved: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    model = SGLang(model=str(folder), url=f"http://127.0.0.1:{port}", tries=2, pause=0.001)
    found = model.score([((5,), (6,))] * 40)
    assert all(isinstance(one, ModelError) and "nothing listens there" in str(one) for one in found)
    with pytest.raises(ModelError, match=r"in 2 of 2 tries \(no connection: nothing listens there"):
        model.update_weights(saved)


def test_weights_of_another_network_do_not_reach_the_server(
    folder: Path, saved: Path, tmp_path: Path
) -> None:
    """A real one dies of them. It does not need to be asked where there are none either."""
    other = save(tmp_path / "other", make_network(chatting(), head_dim=32), chatting())
    with serving(TAKEN) as server:
        with pytest.raises(ConfigError, match=r"self_attn.k_proj.weight is \(32, 32\) instead of \(16, 32\)"):
            opened(saved, server).update_weights(other)
        with pytest.raises(ConfigError, match=r"found none: save the model there"):
            opened(folder, server).update_weights(tmp_path)
        assert server.requests == []
        opened(saved, server).update_weights(saved)
    assert len(server.requests) == 1


# --- Servers that hang -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stuck", [hang, drip(b"HTTP/1.1 200 OK\r\nX: ")])
def test_calls_to_a_server_that_is_not_well_end(stuck: Behaviour, folder: Path, saved: Path) -> None:
    with serving(stuck) as server:
        model = opened(folder, server, read=20.0, total=20.0, patience=0.2, concurrency=2)
        answers = [*model.generate([prompt("one")] * 5), *model.score([((1,), (2,))] * 5)]
        with pytest.raises(ModelError, match=UNWELL):
            model.update_weights(saved)
    assert all(
        isinstance(answer, ModelError) and answer.reason == "model_error" and UNWELL in str(answer)
        for answer in answers
    )
    assert len(answers) == 10


UNWELL = "it has not said for 0.2 s that it is well"


@pytest.mark.parametrize("well", [True, False])
def test_calls_may_last_while_the_server_is_well(well: bool, folder: Path, saved: Path) -> None:
    """Or while it loads weights, when it says that it is not."""

    def slow(asked: Asked) -> bool:
        if not asked.body:
            return status(200 if well else 503)(asked)
        while sum(request.startswith(b"GET ") for request in server.requests) < 10:
            asked.stopped.wait(0.01)
        return ok({"success": True} if b"model_path" in asked.body else generated("<search> x </search>"))(
            asked
        )

    with serving(slow) as server:
        model = opened(folder, server, read=20.0, total=20.0, patience=0.4, concurrency=2)
        model.update_weights(saved)
        server.requests.clear()
        answers = model.generate([prompt("one"), prompt("two")])
    assert all(isinstance(answer, Call if well else ModelError) for answer in answers)


def test_a_lost_answer_of_a_server_that_is_well_ends_nothing(folder: Path) -> None:
    """The first question used up all the patience."""
    healthy = iter([hang])

    def once_deaf(asked: Asked) -> bool:
        if not asked.body:
            return next(healthy, status(200))(asked)
        while sum(request.startswith(b"GET /health ") for request in server.requests) < 5:
            if asked.stopped.wait(0.01):
                return False
        return ok(generated("<search> x </search>"))(asked)

    with serving(once_deaf) as server:
        model = opened(folder, server, read=60.0, total=60.0, patience=3.0)
        (answer,) = model.generate([prompt("one")])
    assert isinstance(answer, Call), answer


def test_a_server_may_take_its_time_to_say_that_it_is_well(folder: Path) -> None:
    """All the time that there is, for each question."""
    said: list[bool] = []

    def slow(asked: Asked) -> bool:
        if not asked.body:
            asked.stopped.wait(1.4)
            return status(200)(asked) and not said.append(True)
        while len(said) < 3:
            if asked.stopped.wait(0.01):
                return False
        return ok(generated("<search> x </search>"))(asked)

    with serving(slow) as server:
        (answer,) = opened(folder, server, read=60.0, total=60.0, patience=3.0).generate([prompt("one")])
    assert isinstance(answer, Call), answer


def test_a_server_that_answers_calls_is_alive_whatever_it_says_else(folder: Path) -> None:
    """And not any more when it has stopped answering them."""
    answers = iter([0.7] * 4)

    def busy(asked: Asked) -> bool:
        if not asked.body or (time := next(answers, None)) is None:
            return hang(asked)
        asked.stopped.wait(time)
        return ok(generated("<search> x </search>"))(asked)

    with serving(busy) as server:
        model = opened(folder, server, read=60.0, total=60.0, patience=2.0, concurrency=1)
        *answered, last = model.generate([prompt("one")] * 5)
    assert [type(answer) for answer in answered] == [Call] * 4
    assert isinstance(last, ModelError) and "it has not said for 2 s that it is well" in str(last)


# --- A real server -----------------------------------------------------------------------------------------

REAL = "MEMPO_TEST_SGLANG"
"""Names a server that runs: MODEL@URL, with the folder of the model that it serves in float32."""


@pytest.mark.skipif(REAL not in os.environ, reason=f"{REAL}=FOLDER@URL names no SGLang server that runs")
def test_a_real_server_agrees_with_the_network_in_this_process(tmp_path: Path) -> None:
    """Scores and what it samples, also after it was given other weights; then it gets its own back."""
    sampling = Sampling(temperature=1.0, max_tokens=16)
    there = open_sglang(os.environ[REAL], sampling=sampling)
    here = open_huggingface(there.model, sampling=sampling)
    own = Path(there.model)

    def compare() -> list[tuple[float, ...] | ModelError]:
        calls = [
            one for one in there.generate([prompt(text) for text in ("a", "so")]) if isinstance(one, Call)
        ]
        assert len(calls) == 2
        asked = [
            ((*call.prompt_ids, *call.output_ids[:i]), call.output_ids[i:]) for call in calls for i in (0, 5)
        ]
        wanted = here.score(asked)
        for told, right in zip(there.score(asked), wanted, strict=True):
            assert isinstance(told, tuple) and isinstance(right, tuple)
            assert max(abs(one - other) for one, other in zip(told, right, strict=True)) < 3e-5
        for call, right in zip(calls, wanted[::2], strict=True):
            assert isinstance(right, tuple)
            assert max(abs(one - other) for one, other in zip(call.logprobs, right, strict=True)) < 3e-5
        return here.score([((5, 6, 7), (8, 9))])

    first = compare()
    shutil.copytree(own, tmp_path / "changed")
    for tensor in here.loaded.network.parameters():
        tensor.data *= 0.9
    here.loaded.network.save_pretrained(tmp_path / "changed")
    there.update_weights(tmp_path / "changed")
    try:
        assert compare() != first
    finally:
        there.update_weights(own)
    here.update_weights(own)
    assert compare() == first
