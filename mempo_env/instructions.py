"""What an agent is told of the protocol, unless the caller has words of their own."""

from __future__ import annotations

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


def system_prompt(memory: str, objectives: int, top_k: int, answers: str = ANSWERS["numbered"]) -> str:
    """The protocol in words, for the kind of memory, the number of objectives and of passages a search."""
    what = "the question" if objectives == 1 else f"all {objectives} questions"
    parts = [
        f"Answer {what} with the help of a search engine over an encyclopedia, in as few words as possible.",
        _RULES.get(memory, "").rstrip(),
        "In each round think inside <think> ... </think>, then do exactly one of two things:\n"
        f"<search> one query </search>, answered by at most {top_k} passages in <information>, or\n"
        "<answer> the answer </answer>, which ends the episode.",
        answers if objectives > 1 else "",
    ]
    return "\n".join(part for part in parts if part)
