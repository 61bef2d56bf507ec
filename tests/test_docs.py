"""Every block of code in the README and the docs runs, in order and as it stands, page by page."""

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

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MEMPO = (sys.executable, "-c", "import sys; from mempo_env.cli import main; sys.exit(main())")
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def serve(arguments: list[str], stack: ExitStack) -> None:
    """Start a server and wait until it says that it is ready; it ends with the stack."""
    server = stack.enter_context(subprocess.Popen([*MEMPO, *arguments], stdout=subprocess.PIPE))
    stack.callback(server.terminate)
    assert server.stdout is not None and server.stdout.readline().startswith(b"serving")


def run_line(line: str, stack: ExitStack) -> None:
    """Run one line of a shell block: `mempo ...`, `python ...`, or an existing target of the Makefile."""
    command, *arguments = shlex.split(line, comments=True)
    if command == "make":
        assert set(arguments) <= TARGETS, line
    elif command == "mempo" and "serve" in arguments:
        serve(arguments, stack)
    else:
        program = {"mempo": MEMPO, "python": (sys.executable,)}[command]
        subprocess.run([*program, *arguments], check=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn", reason="needs mempo[server]")
    if "from transformers" in page.read_text():
        pytest.importorskip("transformers", reason="needs mempo[llm]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    names: dict[str, Any] = {"__name__": "__main__"}
    with ExitStack() as stack:
        for language, text in BLOCK.findall(page.read_text()):
            block = text.replace("8765", port)
            if language == "python":
                exec(compile(block, str(page), "exec"), names)
            elif language == "sh":
                for line in filter(str.strip, block.replace("\\\n", " ").splitlines()):
                    run_line(line, stack)
            else:
                assert language == "text", f"{page}: a block of {language!r} is not run by anything"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
