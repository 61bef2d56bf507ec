"""Every block of docs/retrieval.md runs, in order and as it stands."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "retrieval.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
MEMPO = (sys.executable, "-c", "import sys; from mempo_env.cli import main; sys.exit(main())")


def serve(arguments: list[str], stack: ExitStack) -> None:
    """Start a server and wait until it says that it is ready; it ends with the stack."""
    server = stack.enter_context(subprocess.Popen([*MEMPO, *arguments], stdout=subprocess.PIPE))
    stack.callback(server.terminate)
    assert server.stdout is not None and server.stdout.readline().startswith(b"serving")


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn", reason="needs mempo[server]")
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    names: dict[str, Any] = {}
    with ExitStack() as stack:
        for language, text in BLOCKS:
            block = text.replace("8765", port)
            if language == "python":
                exec(compile(block, str(PAGE), "exec"), names)
                continue
            command, *arguments = shlex.split(block)
            assert (language, command) == ("sh", "mempo")
            if "serve" in arguments:
                serve(arguments, stack)
            else:
                subprocess.run([*MEMPO, *arguments], check=True)
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
