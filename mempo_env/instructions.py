"""What an agent is told of the protocol, unless the caller has words of their own."""

from __future__ import annotations

from mempo_env.errors import ConfigError, lookup

_MEMORY_RULES = """\
You see only your last step and your memory. Begin every round after the first with
<mem> ... </mem>
which rewrites the whole memory: write down all you will still need, for whatever is not in it is gone.
"""

_BANK_RULES = """\
You see only your last step, and have a memory bank in which you find again what you wrote. Before the search
or the answer you may do any number of operations on it:
<memory_write> one fact that you will need </memory_write>
<memory_read k="4"> what you look for </memory_read>, answered by the entries nearest to it
<memory_merge ids="3,7"> one text for both, or nothing to join them </memory_merge>
<memory_discard ids="2"/>
What is neither in the bank nor in your last step is gone.
"""

_RULES = {"inline": _MEMORY_RULES, "own": _MEMORY_RULES, "bank": _BANK_RULES}

ANSWERS = {
    "numbered": "Answer with numbered lines, one for each question, in order:\n1. ...\n2. ...",
    "semicolon": "Answer all questions in order, with a semicolon between two answers: first; second",
}
"""How several answers may be asked for."""

FORM = "{answers}"
"""In a system prompt of the caller's own, what stands for a sentence of `SEVERAL`."""

SEVERAL = {
    "numbered": "Several questions are answered by numbered lines, one for each, in order.",
    "semicolon": "Several questions are answered in order, with a semicolon between two answers: one; two",
}
"""The same for a prompt that is written for any number of questions."""


def system_prompt(
    memory: str, objectives: int, top_k: int, answers: str = "numbered", own: str | None = None
) -> str:
    """The text of the first segment.

    Args:
        memory: Kind of memory.
        objectives: Questions in an episode.
        top_k: Passages that a search returns at most.
        answers: How several answers are asked for, a name in `ANSWERS`.
        own: The caller's, in which `FORM` is replaced; None: the protocol in words.

    Raises:
        ConfigError: if there is no such way to ask, or the caller's is no text.
    """
    asked = lookup(ANSWERS, answers, "answers")
    if own is not None:
        if not isinstance(own, str):
            raise ConfigError(f"system_prompt: wanted a text or None, got {own!r}")
        return own.replace(FORM, SEVERAL[answers])
    what = "the question" if objectives == 1 else f"all {objectives} questions"
    parts = [
        f"Answer {what} with the help of a search engine over an encyclopedia, in as few words as possible.",
        _RULES.get(memory, "").rstrip(),
        "In each round think inside <think> ... </think>, then do exactly one of two things:\n"
        f"<search> one query </search>, answered by at most {top_k} passages in <information>, or\n"
        "<answer> the answer </answer>, which ends the episode.",
        asked if objectives > 1 else "",
    ]
    return "\n".join(part for part in parts if part)
