"""Episodes as one self-contained HTML page: `episodes_page`, and the parts that other pages can share."""

from mempo_env.viewer.pack import SAMPLES, SETTINGS, Entry
from mempo_env.viewer.page import document, episodes_page, resource
from mempo_env.viewer.words import FAILURES, FLAWS, STOPS

__all__ = [
    "FAILURES",
    "FLAWS",
    "SAMPLES",
    "SETTINGS",
    "STOPS",
    "Entry",
    "document",
    "episodes_page",
    "resource",
]
