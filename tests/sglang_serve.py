"""A small stand-in for an SGLang server: `python sglang_serve.py MODEL PORT [FAULTS]`.

It answers by a network in its process, one request at a time, and heeds seeds. FAULTS is JSON: `die`
[kind, update, call] kills the process with SIGKILL in such a call after so many updates, `hang` stops it with
SIGSTOP; `fail` refuses every so many-th call that generates; `stale` takes no weights any more from such an
update on; `short` [first, every] leaves a log-prob out of every so many-th score from the first on; `shift`
is taken from each log-prob of a score.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mempo_agents.models.base import Sampling
from mempo_agents.models.decoding import Task, sample
from mempo_agents.models.huggingface import HuggingFace, open_huggingface


class Stub:
    """The network, what was asked of it, and when it fails."""

    def __init__(self, folder: str, faults: dict[str, Any]) -> None:
        self.model: HuggingFace = open_huggingface(folder)
        self.faults, self.asked, self.since = faults, Counter[str](), Counter[str]()
        self.lock = threading.Lock()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and JSON for a request."""
        kind = {"/health": "health", "/model_info": "health", "/asked": "asked", "/generate": "generate"}.get(
            path, "update"
        )
        if kind == "generate" and body["sampling_params"]["max_new_tokens"] == 0:
            kind = "score"
        with self.lock:
            self.asked[kind] += 1
            self.since[kind] += 1
            for fault, number in (("die", signal.SIGKILL), ("hang", signal.SIGSTOP)):
                if [kind, self.asked["update"], self.since[kind]] == self.faults.get(fault):
                    os.kill(os.getpid(), number)
                    threading.Event().wait()  # SIGSTOP takes some time to stop every thread
            if kind == "generate" and self.asked[kind] % self.faults.get("fail", 1 << 40) == 0:
                return 400, {"error": {"message": "this call was to fail"}}
            return 200, getattr(self, f"_{kind}")(body)

    def _health(self, body: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return dict(self.asked)

    def _update(self, body: dict[str, Any]) -> dict[str, Any]:
        self.since.clear()
        if self.asked["update"] < self.faults.get("stale", 1 << 40):
            self.model.update_weights(Path(body["model_path"]))
        return {"success": True, "message": ""}

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        wanted = body["sampling_params"]
        task = Task(tuple(body["input_ids"]), tuple(wanted["stop"]), wanted["sampling_seed"])
        sampling = Sampling(
            temperature=wanted["temperature"], top_p=wanted["top_p"], max_tokens=wanted["max_new_tokens"]
        )
        (found,) = sample(self.model.loaded, [task], sampling, 1)
        told = [[logprob, token, None] for logprob, token in zip(found.logprobs, found.ids, strict=True)]
        return {"meta_info": {"finish_reason": {"type": found.finish_reason}, "output_token_logprobs": told}}

    def _score(self, body: dict[str, Any]) -> dict[str, Any]:
        start, ids = body["logprob_start_len"], body["input_ids"]
        first, then = ids[: start + 1], ids[start + 1 :]
        (logprobs,) = self.model.score([(first, then)])
        shift, (begin, every) = self.faults.get("shift", 0.0), self.faults.get("short", (1 << 40, 1))
        rest = [[p - shift, token, None] for p, token in zip(logprobs, then, strict=True)]
        told, late = [[None, first[-1], None], *rest], self.asked["score"] - begin
        if late >= 0 and late % every == 0:
            told.pop()
        end = {"finish_reason": {"type": "length"}, "output_token_logprobs": []}
        return {"meta_info": {**end, "input_token_logprobs": told}}


def main(folder: str, port: str, faults: str = "{}") -> None:
    """Serve until the process is ended."""
    stub = Stub(folder, json.loads(faults))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            status, answer = stub.answer(self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
