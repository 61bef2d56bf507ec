"""One self-contained HTML page for one episode or thousands: no network, opens from a file.

The episodes travel as one JSON block, compressed where it is large. Their text reaches the page as text nodes
only; a content security policy that names the page's own script by its hash lets nothing else run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec

from mempo_env.viewer.pack import Entry, pack

LARGE = 100_000
"""Bytes of JSON above which a page holds it compressed."""


def document(template: str, *, title: str, style: str, script: str, data: bytes) -> str:
    """Assemble a self-contained page; text in `data` and `title` can't become markup or script in it.

    Args:
        template: HTML with `{{policy}}`, `{{title}}`, `{{style}}`, `{{data}}` and `{{script}}` where they go.
        title: Plain text.
        style: CSS of the one style element; the policy allows no other.
        script: JavaScript of the one script element, likewise.
        data: JSON, put in a `<script id="data">` that does not run; `load()` in parts.js reads it.

    Returns:
        The document. What a part holds is never searched for the names of others.
    """
    policy = (
        f"default-src 'none'; style-src {_hash_source(style)}; script-src {_hash_source(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(title),
        "style": style,
        "script": script,
        "data": _data_element(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def episodes_page(entries: Sequence[Entry], title: str) -> str:
    """An HTML document, to be written as UTF-8, that shows the episodes one round at a time.

    Token ids and log-probabilities stay out of it; all else of an episode is in it.
    """
    return document(
        resource("viewer.html"),
        title=title,
        style=resource("base.css") + resource("viewer.css"),
        script=resource("parts.js") + resource("episode.js") + resource("viewer.js"),
        data=msgspec.json.encode(pack(entries)),
    )


@cache
def resource(name: str) -> str:
    """The text of a file of this package, such as `base.css`."""
    return (files(__package__) / name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data_element(data: bytes) -> str:
    if len(data) > LARGE:
        kind, text = "application/gzip", base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()
    else:
        # "<" occurs within strings alone, where it must not look like the end of the element or a comment.
        kind, text = "application/json", data.decode().replace("<", "\\u003c")
    return f'<script type="{kind}" id="data">{text}</script>'
