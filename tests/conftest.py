"""Fixtures that several test modules share."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, and so do the processes they start

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from browser import chromium, page_at
from mempo_env.viewer import Entry, episodes_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

settings.register_profile("untimed", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("untimed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium; the test is skipped where there is none."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_html(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Function (text, anchor="", **window of page_at) that opens an HTML text from a file."""
    with ExitStack() as pages:

        def open_html(text: str, anchor: str = "", **window: Any) -> Page:
            path = tmp_path / "page.html"
            path.write_text(text, encoding="utf-8")
            return pages.enter_context(page_at(browser, path.as_uri() + anchor, **window))

        yield open_html


@pytest.fixture
def show(open_html: Callable[..., Page]) -> Callable[..., Page]:
    """Function (entries, anchor="", title="Run", **window) that opens the viewer's page of them."""

    def show(entries: Sequence[Entry], anchor: str = "", title: str = "Run", **window: Any) -> Page:
        page = open_html(episodes_page(entries, title), anchor, **window)
        page.wait_for_selector("body[data-ready]", state="attached")
        return page

    return show


@pytest.fixture(scope="session")
def toy_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `mempo train toy` (`train_help.COMMAND`) that nothing disturbed; to be copied, not changed."""
    from mempo_env.cli import main
    from train_help import COMMAND

    run = tmp_path_factory.mktemp("toy") / "run"
    assert main([*COMMAND, "--out", str(run)]) == 0
    return run
