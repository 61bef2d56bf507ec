"""The text of a round: what the agent writes is parsed, what it is shown is rendered.

One round is

    <mem> what is known so far </mem> <think> ... </think> <search> one query </search>
    <mem> what is known so far </mem> <think> ... </think> <answer> the answer </answer>

and a search is answered by <information> ... </information>. `parse` is total: it never raises, and it never
guesses. Text that comes from elsewhere (documents, questions) is neutralised before it is shown, with the
very pattern that the parser reads, so that no document can act.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from mempo_env.memory.operations import TAGS as _BANK_TAGS
from mempo_env.memory.operations import Fault, read_operation
from mempo_env.types import (
    Action,
    Answer,
    FinishReason,
    Hit,
    Invalid,
    Operation,
    Role,
    Search,
    Segment,
    Span,
    storable,
)

_SHOWN = ("information", "memory_bank", "memory_recall")  # tags that only the environment writes
_NAMES = ("think", "mem", "search", "answer", "tool_call", *_SHOWN, *_BANK_TAGS)
_NAME = r"(?ai:" + "|".join(_NAMES) + r")\b"
_TAG_START = re.compile(rf"<\s*(/\s*)?({_NAME})")
_TAG = re.compile(rf"<\s*(/\s*)?({_NAME})([^<>]*)>")
_OPEN_TAG = re.compile(rf"<\s*(?:/\s*)?{_NAME}[^<>]*(?:>|\Z)")
_BEGIN = re.compile(rf"<\s*{_NAME}[^<>]*>")
_END = {name: re.compile(rf"<\s*/\s*(?ai:{name})\b[^<>]*>") for name in _NAMES}

_ROLES: dict[str, Role] = {"mem": "mem", "search": "call", "tool_call": "call", "answer": "answer"}
_BANK_ROLES: dict[str, Role] = {**_ROLES, **dict.fromkeys(_BANK_TAGS, "mem")}
del _BANK_ROLES["mem"]
_ACTIONS = frozenset({"search", "tool_call", "answer"})

ONE_ACTION = "write exactly one <search>query</search> or one <answer>answer</answer>"

REASONS: dict[str, str] = {
    "no_action": f"no action was found; {ONE_ACTION}",
    "cut_off": f"the text was cut off before an action; write less, and {ONE_ACTION}",
    "ambiguous": f"more than one action or memory was written; {ONE_ACTION}, after at most one <mem>",
    "empty": "a query, an answer or a memory was empty",
    "fabricated_observation": "what the environment shows, as in <information>, is never written by you",
    "nested_tag": "a tag stood inside the action",
    "malformed_call": 'a tool call is {"name": "search", "arguments": {"query": "..."}}',
    "unknown_tool": "the only tool is search",
    "missing_parameter": "a parameter of the call is missing",
    "unknown_parameter": "a call or tag has a parameter that it does not take",
    "bad_parameter": "a parameter of the call has the wrong type",
    "memory_too_long": "the memory is longer than its budget",
    "unknown_id": "there is no such entry in the memory bank",
    "k_too_large": "more entries were to be read than one read may return",
}
"""Why an action can be invalid, and the line that the agent reads."""


class _Block(Struct, gc=False):
    """A tagged stretch of text, thoughts apart: [start, end) with its tags, [inner, outer) without."""

    name: str
    start: int
    inner: int
    outer: int
    end: int
    nested: bool
    parameters: str


# --- Reading -----------------------------------------------------------------------------------------------


def parse(
    text: str, finish_reason: FinishReason = "", wants_memory: bool = False, bank: bool = False
) -> Action:
    """Read what the policy wrote in one round: a `Search`, an `Answer`, or `Invalid` with the reason.

    Args:
        text: The policy's own text, any string whatever.
        finish_reason: "length" turns a missing action into `cut_off`.
        wants_memory: Whether a round without `<mem>` has the flaw `no_memory_write`.
        bank: Whether operations on a memory bank are read, in place of `<mem>`.

    Flaws are what was accepted all the same: `unclosed` (a tag without its end), `trailing` (text after the
    action, dropped), `stray_close` (an end without its tag), `nested_tag` (a tag inside the memory),
    `no_memory_write`, `wrong_memory` (`<mem>` where there is a bank, or the other way round; not read).
    """
    blocks, flaws = _blocks(text)
    spans = _spans(blocks, len(text), _BANK_ROLES if bank else _ROLES)
    actions: list[_Block] = []
    memories: list[_Block] = []

    def invalid(reason: str, detail: str = "") -> Invalid:
        return Invalid(reason=reason, detail=detail or REASONS[reason], flaws=tuple(flaws), spans=spans)

    for block in blocks:
        if block.name in _SHOWN:
            return invalid("fabricated_observation")
        if block.name in _ACTIONS:
            actions.append(block)
        elif bank is not (block.name in _BANK_TAGS):
            _note(flaws, "wrong_memory")
        elif not actions:
            memories.append(block)
    if not actions:
        return invalid("cut_off" if finish_reason == "length" else "no_action")
    if len(actions) > 1 or (len(memories) > 1 and not bank):
        return invalid("ambiguous")
    action = actions[0]
    if action.nested:
        return invalid("nested_tag")
    if action.parameters:
        return invalid("unknown_parameter")
    if text[action.end :].strip():
        flaws.append("trailing")
    memory, operations = _memory(memories, text, bank)
    if isinstance(operations, Fault):
        return invalid(*operations)
    if any(block.nested for block in memories):
        flaws.append("nested_tag")
    if wants_memory and memory is None:
        flaws.append("no_memory_write")
    argument = text[action.inner : action.outer].strip()
    if action.name == "tool_call":
        argument, reason = _read_call(argument)
        if reason:
            return invalid(reason)
    if not argument:
        return invalid("empty")
    if action.name == "answer":
        return Answer(text=argument, memory=memory, operations=operations, flaws=tuple(flaws), spans=spans)
    return Search(query=argument, memory=memory, operations=operations, flaws=tuple(flaws), spans=spans)


def _memory(
    blocks: Sequence[_Block], text: str, bank: bool
) -> tuple[str | None, tuple[Operation, ...] | Fault]:
    """What was written into memory, and the operations on a bank, or what is wrong with one of them."""
    if not blocks:
        return None, ()
    if not bank:
        memory = text[blocks[0].inner : blocks[0].outer].strip()
        if blocks[0].parameters:
            return None, Fault("unknown_parameter", "")
        return memory, () if memory else Fault("empty", "")
    operations = []
    for block in blocks:
        operation = read_operation(block.name, block.parameters, text[block.inner : block.outer])
        if isinstance(operation, Fault):
            return None, operation
        operations.append(operation)
    return None, tuple(operations)


def _blocks(text: str) -> tuple[list[_Block], list[str]]:
    """Split a text into its top-level blocks, left to right, in linear time; those of thoughts are left out.

    A block ends at the first end tag of its own name; where there is none, at the next opening tag, or with
    the text.
    """
    blocks: list[_Block] = []
    flaws: list[str] = []
    endless: set[str] = set()  # names that no further tag ends, so that none is looked for twice
    after = 0
    while tag := _TAG.search(text, after):
        name, inner = tag[2].lower(), tag.end()
        if tag[1]:
            _note(flaws, "stray_close")
            after = inner
            continue
        if name in _BANK_TAGS and tag[3].rstrip().endswith("/"):
            after = inner
            blocks.append(_Block(name, tag.start(), inner, inner, inner, False, tag[3].rstrip()[:-1].strip()))
            continue
        end = None if name in endless else _END[name].search(text, inner)
        if end is not None:
            outer, after = end.span()
        else:
            endless.add(name)
            _note(flaws, "unclosed")
            following = _BEGIN.search(text, inner)
            outer = after = following.start() if following else len(text)
        if name != "think":
            nested = _TAG.search(text, inner, outer) is not None
            blocks.append(_Block(name, tag.start(), inner, outer, after, nested, tag[3].strip()))
    return blocks, flaws


def _note(flaws: list[str], flaw: str) -> None:
    if flaw not in flaws:
        flaws.append(flaw)


def _spans(blocks: list[_Block], length: int, roles: Mapping[str, Role]) -> tuple[Span, ...]:
    """Roles that cover the text: tags belong to their block, all that is not memory or action is thought.

    So is memory behind an action, which is dropped.
    """
    spans: list[Span] = []
    at, acted = 0, False
    for block in blocks:
        role = roles.get(block.name)
        if role is None or (role == "mem" and acted):
            continue
        acted = acted or role != "mem"
        if block.start > at:
            spans.append(Span("think", at, block.start))
        spans.append(Span(role, block.start, block.end))
        at = block.end
    if at < length:
        spans.append(Span("think", at, length))
    return tuple(spans)


def _read_call(text: str) -> tuple[str, str]:
    """Return (query, "") of a tool call in JSON, or ("", reason)."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return "", "malformed_call"
    if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict) or "name" not in call:
        return "", "malformed_call"
    arguments = call["arguments"]
    if call["name"] != "search":
        return "", "unknown_tool"
    if "query" not in arguments:
        return "", "missing_parameter"
    if len(arguments) > 1 or len(call) > 2:
        return "", "unknown_parameter"
    if not isinstance(arguments["query"], str):
        return "", "bad_parameter"
    return storable(arguments["query"]).strip(), ""


_NUMBERED = re.compile(r"\s*([0-9]{1,4})\s*[.):](?!\d)\s*(.*)")


def split_answer(text: str, n: int) -> tuple[tuple[str, ...], bool]:
    """Split an answer into one part for each of n objectives; the flag tells whether all were there.

    Accepted: numbered lines ("1. ..."), a JSON list of n, or exactly n parts separated by ";". For one
    objective the whole text is the answer. A numbered line that is missing leaves its own part empty and
    shifts no other; anything that cannot be assigned without a guess (a number twice, a list of another
    length) leaves all parts empty.
    """
    if n == 1:
        return (text.strip(),), True
    nothing = ("",) * n
    listed = _json_list(text)
    if listed is not None:
        return (listed, all(listed)) if len(listed) == n else (nothing, False)
    lines = [line for line in text.splitlines() if line.strip()]
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    if matches and all(matches):
        parts = list(nothing)
        numbers = [int(match[1]) for match in matches if match]
        if len(set(numbers)) != len(numbers) or not set(numbers) <= set(range(1, n + 1)):
            return nothing, False
        for match in matches:
            if match:
                parts[int(match[1]) - 1] = match[2].strip()
        return tuple(parts), all(parts)
    divided = tuple(part.strip() for part in text.split(";"))
    return (divided, all(divided)) if len(divided) == n else (nothing, False)


def _json_list(text: str) -> tuple[str, ...] | None:
    if not text.lstrip().startswith("["):
        return None
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parts, list):
        return None
    return tuple("" if isinstance(p, (dict, list)) or p is None else storable(str(p)).strip() for p in parts)


# --- Rendering ---------------------------------------------------------------------------------------------


def neutralise(text: str) -> str:
    """Make every protocol tag in a text inert: `<answer>` becomes `‹answer›`; any other "<" is left alone.

    Where one would live on (`<answer<mem>>`), or is left open for what is shown next to close it (`<answer`
    at the end), every beginning of a tag goes.
    """
    if "<" not in text:
        return text
    safe = _TAG.sub(lambda tag: f"‹{tag[0][1:-1]}›", text)
    return _TAG_START.sub(lambda start: f"‹{start[0][1:]}", safe) if _OPEN_TAG.search(safe) else safe


def render_question(questions: Sequence[str]) -> str:
    """The question, or the numbered questions."""
    if len(questions) == 1:
        return f"Question: {one_line(questions[0])}"
    lines = (f"{i}. {one_line(question)}" for i, question in enumerate(questions, 1))
    return "Questions:\n" + "\n".join(lines)


def render_information(hits: Sequence[Hit]) -> str:
    """The passages of one search: "[rank] title" on one line, its text on the next."""
    if not hits:
        return "<information>\nNo passage was found.\n</information>"
    lines = [f"[{i}] {one_line(hit.title)}\n{one_line(hit.text)}" for i, hit in enumerate(hits, 1)]
    return "<information>\n" + "\n".join(lines) + "\n</information>"


def one_line(text: str) -> str:
    """Text from elsewhere on one line, without tags that could act."""
    tidy = text.isprintable() and "  " not in text  # of all white space only the blank is printable
    return neutralise(text.strip() if tidy else " ".join(text.split()))


def render_error(invalid: Invalid) -> str:
    """One line that says what was wrong, and nothing about the answer."""
    return f"Invalid action ({invalid.reason}): {invalid.detail}."


RETRIEVER_FAILED = "The search is out of order."
MEMORY_FAILED = "The memory is out of order."


def render_hint(rounds_left: int, tokens_left: int | None, check_memory: bool = False) -> str:
    """Budgets: rounds left, and tokens left in the context where they are limited; what is due."""
    rounds = f"{rounds_left} round{'' if rounds_left == 1 else 's'} left"
    budgets = rounds if tokens_left is None else f"{rounds}, {tokens_left} tokens of context left"
    due = "; nothing was written for a while: check whether the memory has all you will need"
    return f"({budgets}{due if check_memory else ''})"


def own_segments(text: str, action: Action) -> list[tuple[Role, str]]:
    """The policy's text up to the end of its action, cut by role; a tag left open is closed."""
    pieces: list[tuple[Role, str]] = []
    for span in action.spans:
        piece = text[span.start : span.end].strip()
        if piece:
            pieces.append((span.role, _close(piece) if "unclosed" in action.flaws else piece))
        if span.role in ("call", "answer"):
            break
    return pieces


def _close(piece: str) -> str:
    tags = list(_TAG.finditer(piece))
    if not tags or tags[0][1] or tags[0].start() > 0 or tags[0][3].rstrip().endswith("/"):
        return piece
    name = tags[0][2].lower()
    closed = tags[-1][1] and tags[-1][2].lower() == name
    return piece if closed else f"{piece}</{name}>"


def messages(segments: Sequence[Segment], prompt: str) -> tuple[dict[str, str], ...]:
    """The prompt as chat messages: the system's, and one of the user that holds all the rest.

    Earlier steps are not rendered as turns of the assistant: chat templates drop or rewrite parts of those.

    Args:
        segments: What is in view.
        prompt: Their texts, joined by newlines.
    """
    if segments[0].kind != "system":
        return ({"role": "user", "content": prompt},)
    system = segments[0].text
    return {"role": "system", "content": system}, {"role": "user", "content": prompt[len(system) + 1 :]}
