"""What the words of the protocol mean, as sentences for people."""

from __future__ import annotations

from mempo_env.types import Failure, StopReason

FAILURES: dict[Failure, str] = {
    Failure.ENVIRONMENT: "The environment failed, through no fault of the agent.",
    Failure.AGENT_ERROR: "The agent itself failed: its code raised, or wrote what is no text.",
    Failure.OUT_OF_BUDGET: "The episode ended before the agent gave an answer.",
    Failure.UNKNOWN: "No gold evidence is known for this question, so the reason can't be told.",
    Failure.NOT_RETRIEVED: "Some of the gold evidence was never shown: no search brought it up.",
    Failure.RETRIEVED_NOT_KEPT: "The gold evidence was shown, but the agent never kept what matters in it.",
    Failure.KEPT_THEN_LOST: "What mattered was kept at first, and was gone by the time of the answer.",
    Failure.WRONG_FORM: "The answer is right in substance, but not in the form that exact match asks for.",
    Failure.KEPT_NOT_USED: "Everything needed was at hand when the agent answered, yet the answer is wrong.",
}

STOPS: dict[StopReason, str] = {
    StopReason.ANSWERED: "The agent answered.",
    StopReason.MAX_ROUNDS: "The last allowed round passed without an answer.",
    StopReason.CONTEXT_OVERFLOW: "The next prompt would have been longer than the context budget.",
    StopReason.GENERATION_LENGTH: "The output of the last allowed round was cut off by its length limit.",
    StopReason.RETRIEVER_ERROR: "The retriever failed, also when asked again.",
    StopReason.MEMORY_ERROR: "The memory, which is the user's own code, failed.",
    StopReason.MODEL_ERROR: "The model failed, also when asked again.",
    StopReason.TIMEOUT: "The time for the episode ran out.",
    StopReason.AGENT_ERROR: "The agent itself failed.",
}

FLAWS: dict[str, str] = {
    "no_memory_write": "wrote no memory; the old one stays",
    "unclosed": "the last tag was not closed",
    "trailing": "text after the action was dropped",
    "stray_close": "an end tag without its beginning",
    "nested_tag": "a tag inside the memory",
}
"""The flaws that have more to say than their name."""
