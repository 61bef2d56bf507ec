"""A round as text for a terminal."""

from __future__ import annotations

from mempo_env.types import Episode, Round, Segment

_BOLD, _DIM, _OFF = "\033[1m", "\033[2m", "\033[0m"


def render_round(episode: Episode) -> str:
    """The last round: what was written, what came back, memory and counts; before the first, the prompt.

    Args:
        episode: So far, or whole.
    """
    if not episode.rounds:
        prompt = (episode.ledger[i] for i in episode.final_view)
        return "\n".join([_title(f"{episode.question_id}: before the first round"), *map(_segment, prompt)])
    last = episode.rounds[-1]
    made = [s for s in episode.ledger if s.round == last.number and s.kind != "hint"]
    told = any(s.kind == "memory" for s in made)  # by a bank
    lines = [
        _title(f"{episode.question_id}: round {last.number}"),
        *map(_segment, made),
        *([] if told else [_line("memory", last.memory or "(empty)")]),
        _line("tokens", _tokens(last)),
        _line("evidence", _evidence(last)),
    ]
    if episode.stop_reason is not None:
        score, reward = episode.score, last.reward.weighted.total()
        lines.append(
            _line("ended", f"{episode.stop_reason}, EM {score.em:g}, F1 {score.f1:.2f}, reward {reward:g}")
        )
    return "\n".join(lines)


def _title(text: str) -> str:
    return f"{_BOLD}── {printable(text)} {'─' * max(2, 76 - len(text))}{_OFF}"


def _line(label: str, text: str) -> str:
    return f"{_DIM}{label:>11}{_OFF}  {printable(text)}"


def _segment(segment: Segment) -> str:
    return _line(segment.kind, segment.text)


def printable(text: str) -> str:
    """The text with control characters shown, not obeyed, and its lines indented."""
    shown = "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)
    return shown.replace("\n", "\n" + " " * 13)


def _tokens(done: Round) -> str:
    t = done.tokens
    return f"prompt {t.prompt}, output {t.output}, memory {t.memory}, peak {t.peak}, total {t.total}"


def _evidence(done: Round) -> str:
    d = done.diagnostics
    if d.evidence_recall is None:
        return "unknown"
    redundant = ", the query was asked before" if d.redundant_query else ""
    return f"{d.evidence_recall:.0%} seen, {d.evidence_kept:.0%} kept, {d.facts_lost} lost{redundant}"
