"""A headless Chromium for tests of pages; tests that use it are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PHONE, DESKTOP = 360, 1280
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that is closed at the end; skips the test where playwright or chromium is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    if not Path(path).exists():
        pytest.skip(f"no chromium at {path}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@contextmanager
def page_at(
    browser: Browser, url: str, width: int = DESKTOP, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Page]:
    """Open an address; assert at the end that the page wrote no error and asked for nothing but files."""
    height = 800 if width >= 800 else 740
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    faults: list[str] = []
    addresses: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(url)
    yield page
    context.close()
    assert not faults, faults
    assert [address for address in addresses if not address.startswith("file:")] == []


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def contrasts(page: Page, selector: str) -> list[float]:
    """The contrast (WCAG 2.1, 1 to 21) of text and background of every element that a selector finds."""
    return list(page.evaluate(_CONTRAST, selector))


_CONTRAST = """
selector => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = rgb => rgb.slice(0, 3)
    .map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const background = node => {
    for (; node; node = node.parentElement) {
      const colour = numbers(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll(selector)].map(node => {
    const pair = [numbers(getComputedStyle(node).color), background(node)].map(luminance);
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  });
}
"""
