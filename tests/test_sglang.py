"""SGLang's own interface: what is asked, what is read, what goes wrong, and waiting for it to start."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from answering import agent_of
from llm_help import STOP, chatting, make_network, prompt, save
from mempo_agents.models.answers import Fault
from mempo_agents.models.base import ModelError, ModelOverflow, ModelTimeout, Prompt, Sampling
from mempo_agents.models.chat import encode, load_tokenizer
from mempo_agents.models.sglang import SGLang, open_sglang, read_generated, wait_until_ready
from mempo_agents.models.table import make_model
from mempo_agents.rollout import episodes
from mempo_env.errors import ConfigError
from mempo_env.types import Call, Segment, StopReason
from scripted import Asked, Behaviour, drip, hang, ok, raw, serving, status
from sglang_help import generated, refusing
from small import QUESTIONS, TitleRetriever


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("llm") / "tiny"
    chatting().save_pretrained(folder)
    yield folder
    load_tokenizer.cache_clear()


def asked(folder: Path, *behaviours: Behaviour, **settings: Any) -> tuple[SGLang, Any, list[dict[str, Any]]]:
    """The model, what it made of one prompt, and the bodies that the server was sent."""
    with serving(*behaviours) as server:
        model = SGLang(
            model=str(folder), url=server.url, **{"tries": 2, "pause": 0.001, "read": 0.5, **settings}
        )
        (answer,) = model.generate([prompt("one")])
        bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]
        assert all(request.startswith(b"POST /generate HTTP/1.1\r\n") for request in server.requests)
    return model, answer, bodies


# --- What it asks and reads --------------------------------------------------------------------------------


def test_it_is_asked_with_ids_and_for_log_probabilities(folder: Path) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=64, seed=11)
    _, _, bodies = asked(folder, ok(generated("x")), sampling=sampling)
    assert bodies == [
        {
            "input_ids": list(encode(chatting(), prompt("one"))),
            "sampling_params": {
                "temperature": 0.7,
                "top_p": 0.9,
                "max_new_tokens": 64,
                "sampling_seed": 11,
                "stop": list(STOP),
            },
            "return_logprob": True,
            "stream": False,
        }
    ]


def test_ids_and_log_probabilities_come_back_untouched(folder: Path) -> None:
    text = "<mem> a <search> b </search></mem>"  # one token is "></"
    ids = chatting().encode(text, add_special_tokens=False)
    _, call, _ = asked(folder, ok(generated(text)))
    assert call == Call(
        output="<mem> a <search> b </search>",
        prompt_ids=encode(chatting(), prompt("one")),
        output_ids=ids,
        logprobs=[-0.5 - i for i in range(len(ids))],
        finish_reason="stop",
        cached_tokens=4,
    )


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ({"type": "length", "length": 7}, "length"),
        ({"type": "stop", "matched": 2}, "stop"),
        ({"type": "of a later version"}, ""),
    ],
)
def test_why_it_ended(folder: Path, finish: dict[str, Any], reason: str) -> None:
    _, call, _ = asked(folder, ok(generated("so it is<|end|>", finish)))
    assert (call.output, call.finish_reason, call.output_ids[-1]) == ("so it is", reason, 2)


def test_each_prompt_gets_its_answer_and_segments(folder: Path) -> None:
    def echo(told: Any) -> bool:
        last = json.loads(told.body)["input_ids"][-40:]
        return ok(generated(chatting().decode(last, skip_special_tokens=True)))(told)

    segments = (Segment("question", 0, "Question: Who?", 2),)
    prompts = [msgspec.structs.replace(prompt(f"number {i}"), segments=segments) for i in range(12)]
    with serving(echo) as server:
        calls = SGLang(model=str(folder), url=server.url).generate(prompts)
    for i, call in enumerate(calls):
        assert isinstance(call, Call) and call.segments == segments
        assert f"number {i}\n" in call.output


def test_nothing_to_ask_asks_nothing(folder: Path) -> None:
    with serving(ok(generated("x"))) as server:
        assert SGLang(model=str(folder), url=server.url).generate([]) == []
    assert server.connections == 0


# --- What goes wrong ---------------------------------------------------------------------------------------

GOOD = {"type": "stop", "matched": 2}


def meta(**changed: Any) -> Behaviour:
    whole = {"finish_reason": GOOD, "output_token_logprobs": [[-1.0, 5, None]], **changed}
    return ok({"meta_info": {key: value for key, value in whole.items() if value is not ...}})


FAULTS: dict[str, tuple[Behaviour, type[ModelError], str, int]] = {
    "hangs": (hang, ModelTimeout, "no answer in time", 2),
    "closes at once": (raw(b""), ModelError, "connection closed", 2),
    "garbage": (status(200, body=b"\xff\x00<html>"), ModelError, "not what was asked for", 2),
    "truncated": (status(200, body=b'{"meta_info": {'), ModelError, "not what was asked for", 2),
    "the answer of another interface": (ok({"choices": []}), ModelError, "required field `meta_info`", 2),
    "no log-probabilities": (meta(output_token_logprobs=...), ModelError, "output_token_logprobs", 2),
    "a log-probability that is none": (
        meta(output_token_logprobs=[[None, 5, None]]),
        ModelError,
        "Expected `float`, got `null`",
        2,
    ),
    "no tokens": (meta(output_token_logprobs=[]), ModelError, "an answer without tokens", 2),
    "still running": (meta(finish_reason=None), ModelError, "Expected `object`, got `null`", 2),
    "a positive log-probability": (
        meta(output_token_logprobs=[[3.5, 5, None]]),
        ModelError,
        "log-probabilities that are none",
        2,
    ),
    "an endless log-probability": (
        meta(output_token_logprobs=[[-1e308, 5, None]]),
        ModelError,
        "log-probabilities that are none",
        2,
    ),
    "not a number": (
        meta(output_token_logprobs=[[float("nan"), 5, None]]),
        ModelError,
        "log-probabilities that are none",
        2,
    ),
    "log-probabilities of other ids": (
        ok(generated("so it is") | {"output_ids": [70, 71]}),
        ModelError,
        "of other ids than those that were sampled",
        2,
    ),
    "an answer to another prompt": (meta(prompt_tokens=3), ModelError, "an answer to 3 ids instead of 27", 1),
    "more than was asked for": (
        meta(output_token_logprobs=[[-1.0, 5, None]] * 65),
        ModelError,
        "65 ids instead of at most 64",
        1,
    ),
    "an id of another model": (
        meta(output_token_logprobs=[[-1.0, 360, None]]),
        ModelError,
        "the id 360, where a vocabulary of 360 ends",
        1,
    ),
    "aborted": (meta(finish_reason={"type": "abort"}), ModelError, "status 500: the server broke", 2),
    "aborted, as it was asked for nonsense": (
        meta(finish_reason={"type": "abort", "message": "stop: no text", "status_code": 400}),
        ModelError,
        "status 400: stop: no text",
        1,
    ),
    "aborted, as the prompt is too long": (
        meta(
            finish_reason={
                "type": "abort",
                "message": "Input length (9001 tokens) exceeds the maximum allowed length (8186 tokens).",
                "status_code": 400,
            }
        ),
        ModelOverflow,
        "fits the model's window",
        1,
    ),
    "the prompt is too long": (
        refusing("The input (10015 tokens) is longer than the model's context length (8192 tokens)."),
        ModelOverflow,
        "fits the model's window",
        1,
    ),
    "max_tokens are too many": (
        refusing("Requested token count exceeds the model's maximum context length of 8192 tokens."),
        ModelOverflow,
        "fits the model's window",
        1,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_of_its_kind_after_bounded_tries(folder: Path, fault: str) -> None:
    behaviour, kind, told, tries = FAULTS[fault]
    _, error, bodies = asked(folder, behaviour, sampling=Sampling(max_tokens=64))
    assert type(error) is kind and told in str(error)
    assert len(bodies) == tries


@pytest.mark.parametrize(("cached", "wanted"), [(27, 27), (28, None), (10**30, None), ("many", None)])
def test_no_more_of_a_prompt_is_cached_than_it_has(folder: Path, cached: Any, wanted: int | None) -> None:
    _, call, _ = asked(folder, meta(prompt_tokens=27, cached_tokens=cached))
    assert isinstance(call, Call) and len(call.prompt_ids) == 27
    assert call.cached_tokens == wanted


def test_an_id_that_is_no_token_but_the_network_has_is_taken(folder: Path, tmp_path: Path) -> None:
    """Embeddings are padded to round numbers: a network of 384 ids with a tokenizer of 360."""
    padded = tmp_path / "padded"
    save(padded, make_network(chatting()), chatting())
    config = json.loads((padded / "config.json").read_text())
    (padded / "config.json").write_text(json.dumps(config | {"vocab_size": 384}))
    for token, kind in ((383, Call), (384, ModelError)):
        _, answer, _ = asked(padded, meta(output_token_logprobs=[[-1.0, token, None]]))
        assert isinstance(answer, kind)


def test_what_passes_is_tried_again(folder: Path) -> None:
    _, call, bodies = asked(folder, status(503), ok(generated("x")))
    assert isinstance(call, Call) and len(bodies) == 2


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "status_code", "message"]), inner, max_size=3)
    ),
    max_leaves=12,
)
finishes = st.fixed_dictionaries({"type": st.sampled_from(["stop", "length", "abort"])}) | json_values
tokens = st.lists(st.tuples(st.floats() | json_values, st.integers(-2, 10**12), st.none()), max_size=3)
metas = st.fixed_dictionaries(
    {"finish_reason": finishes, "output_token_logprobs": tokens | json_values},
    optional={"cached_tokens": st.integers()},
)


answers = json_values | metas.map(lambda told: {"meta_info": told})


@given(st.binary() | answers.map(lambda told: json.dumps(told).encode()))
def test_whatever_is_answered_is_a_call_or_a_fault(body: bytes) -> None:
    try:
        answer = read_generated(body)
    except Fault:
        return
    call = Call(output_ids=answer.ids, logprobs=answer.logprobs, cached_tokens=answer.cached_tokens)
    assert len(call.output_ids) == len(call.logprobs) > 0


def test_a_failed_call_ends_its_episode_alone(folder: Path) -> None:
    def some(told: Any) -> bool:
        text = chatting().decode(json.loads(told.body)["input_ids"])
        return (status(400) if "variant 1" in text else ok(generated("<answer> yes </answer>")))(told)

    kwargs = {"dataset": QUESTIONS, "retriever": TitleRetriever()}
    with serving(some) as server:
        agent = agent_of(SGLang(model=str(folder), url=server.url))
        found = dict(episodes(agent, ["q0", "q1", "q2"], env_kwargs=kwargs))
    assert [found[i].stop_reason for i in range(3)] == [
        StopReason.ANSWERED,
        StopReason.MODEL_ERROR,
        StopReason.ANSWERED,
    ]
    (played,) = found[0].rounds
    assert played.token_ids == played.calls[0].output_ids and len(played.logprobs) == len(played.token_ids)


def test_a_template_that_refuses_a_chat_fails_it_alone(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    tokenizer.save_pretrained(tmp_path / "strict")
    strict = (
        "{% if messages[-1]['content'] == 'no' %}{{ raise_exception('refused') }}{% endif %}"
        "{{ messages[-1]['content'] }}"
    )
    (tmp_path / "strict" / "chat_template.jinja").write_text(strict)
    with serving(ok(generated("x"))) as server:
        found = SGLang(model=str(tmp_path / "strict"), url=server.url).generate([prompt("no"), prompt("yes")])
    assert isinstance(found[0], ModelError) and "refused" in str(found[0])
    assert isinstance(found[1], Call)
    assert len(server.requests) == 1


# --- Starting, names ---------------------------------------------------------------------------------------


def test_it_waits_until_the_server_is_healthy(folder: Path) -> None:
    with serving(status(503), status(503), status(200)) as server:
        model = SGLang(model=str(folder), url=server.url)
        assert not wait_until_ready(model)  # at once
        assert wait_until_ready(model)
    assert [request.split(b" HTTP")[0] for request in server.requests] == [b"GET /health"] * 4


STUCK = {
    "not healthy": (status(503), "status 503"),
    "no answer": (hang, "no answer"),
    "a head without an end": (drip(b"HTTP/1.1 200 OK\r\nX: "), "no answer"),
    "closed at once": (lambda asked: False, "connection closed before the answer was whole"),
}


@pytest.mark.parametrize("how", STUCK)
def test_it_waits_no_longer_than_it_says(how: str, folder: Path) -> None:
    """Whatever a connection may take, and however much a server sends."""
    behaviour, told = STUCK[how]
    with serving(behaviour) as server:
        model, errors = SGLang(model=str(folder), url=server.url, connect=3_600.0), list[BaseException]()

        def wait() -> None:
            try:
                wait_until_ready(model, 0.6)
            except ModelTimeout as error:
                errors.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(60)
        assert not waiting.is_alive()
    assert f"wanted a healthy SGLang server within 0.6 s, got {told}" in str(errors[0])


def test_an_answer_that_takes_longer_than_a_connection_may_counts(folder: Path) -> None:
    def slow(asked: Asked) -> bool:
        asked.stopped.wait(1.0)
        return status(200)(asked)

    with serving(slow) as server:
        assert wait_until_ready(SGLang(model=str(folder), url=server.url, connect=0.3, read=0.3), 20.0)
    assert len(server.requests) == 1


def test_an_answer_that_was_lost_is_asked_for_again(folder: Path) -> None:
    with serving(hang, status(200)) as server:
        wait_until_ready(SGLang(model=str(folder), url=server.url, concurrency=1), 4.0)
    assert len(server.requests) == 2


def test_a_body_that_is_no_gzip_makes_no_server_unhealthy(folder: Path) -> None:
    with serving(status(200, "Content-Encoding: gzip\r\n", b"abcd")) as server:
        wait_until_ready(SGLang(model=str(folder), url=server.url), 0.5)
    assert len(server.requests) == 1


def test_where_nothing_listens_it_says_so(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ModelTimeout, match="got no connection: nothing listens there"):
        wait_until_ready(SGLang(model=str(folder), url=f"http://127.0.0.1:{port}"), 0.1)


def test_it_is_named_model_at_address(folder: Path) -> None:
    model = make_model(f"sglang:{folder}@http://127.0.0.1:30000")
    assert isinstance(model, SGLang)
    assert (model.name, model.url) == ("tiny", "http://127.0.0.1:30000")
    assert open_sglang(f"{folder}@http://h:1", concurrency=2).concurrency == 2
    for name in ("", "http://127.0.0.1:30000", "@http://127.0.0.1:30000"):
        with pytest.raises(ConfigError, match="wanted MODEL@URL"):
            open_sglang(name)
    with pytest.raises(ConfigError, match="wanted the name or the folder of a causal language model"):
        open_sglang(f"{folder / 'nothing'}@http://127.0.0.1:30000")


def test_the_fingerprint_tells_tokenizer_and_sampling_but_no_place(folder: Path, tmp_path: Path) -> None:
    one = SGLang(model=str(folder), url="http://127.0.0.1:30000")
    moved, other = tmp_path / "moved" / "tiny", tmp_path / "other" / "tiny"
    load_tokenizer(str(folder)).save_pretrained(moved)
    load_tokenizer(str(folder)).save_pretrained(other)
    (other / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert SGLang(model=str(moved), url="http://elsewhere:1", tries=9).fingerprint == one.fingerprint
    assert str(folder) not in one.fingerprint and "127.0.0.1" not in one.fingerprint
    others = [
        SGLang(model=str(other), url=one.url),
        SGLang(model=str(folder), url=one.url, sampling=Sampling(seed=1)),
        SGLang(model=str(folder), url=one.url, sampling=Sampling(temperature=0.5)),
    ]
    assert len({one.fingerprint, *(model.fingerprint for model in others)}) == 4


def test_two_networks_in_folders_of_one_name_have_two_fingerprints(tmp_path: Path) -> None:
    """By config and by the shapes of their weights; a copy has that of the first."""
    folders = [tmp_path / which / "tiny" for which in ("first", "copy", "wider", "other")]
    changes: list[dict[str, Any]] = [{}, {}, {"head_dim": 32}, {"rope_theta": 5e5}]
    for place, changed in zip(folders, changes, strict=True):
        save(place, make_network(chatting(), **changed), chatting())
    first, copy, wider, other = (SGLang(model=str(one), url="http://h:1").fingerprint for one in folders)
    assert first == copy and len({first, wider, other}) == 3
    (folders[1] / "config.json").write_bytes((folders[2] / "config.json").read_bytes())
    assert SGLang(model=str(folders[1]), url="http://h:1").fingerprint not in (first, wider)


def test_a_prompt_without_segments_or_stop_is_fine(folder: Path) -> None:
    with serving(ok(generated("x"))) as server:
        (call,) = SGLang(model=str(folder), url=server.url).generate([Prompt(prompt("one").messages)])
    assert isinstance(call, Call) and call.output == "x"
    assert json.loads(server.requests[0].partition(b"\r\n\r\n")[2])["sampling_params"]["stop"] == []


def test_each_draw_of_a_prompt_has_a_seed_of_its_own(folder: Path) -> None:
    with serving(ok(generated("x"))) as server:
        model = SGLang(model=str(folder), url=server.url, concurrency=1, sampling=Sampling(seed=11))
        model.generate([msgspec.structs.replace(prompt("one"), draw=draw) for draw in (0, 1, 2, 1)])
    seeds = [
        json.loads(request.partition(b"\r\n\r\n")[2])["sampling_params"]["sampling_seed"]
        for request in server.requests
    ]
    assert seeds[0] == 11 and seeds[1] == seeds[3] and len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)
