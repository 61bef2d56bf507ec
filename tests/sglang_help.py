"""What an SGLang server answers."""

from __future__ import annotations

import json
from typing import Any

from llm_help import chatting
from scripted import Behaviour, status


def generated(text: str, finish: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """What SGLang 0.5.23 answers to /generate, with the ids of a text and made-up log-probabilities.

    It tells `prompt_tokens`, too, which depend on the prompt.
    """
    ids = chatting().encode(text, add_special_tokens=False)
    return {
        "text": "not looked at",
        "output_ids": ids,
        "meta_info": {
            "id": "2f0c",
            "finish_reason": finish or {"type": "stop", "matched": "</search>"},
            "completion_tokens": len(ids),
            "cached_tokens": 4,
            "input_token_logprobs": [],
            "output_token_logprobs": [[-0.5 - i, token, None] for i, token in enumerate(ids)],
            "e2e_latency": 0.1,
            **meta,
        },
    }


def refusing(message: str) -> Behaviour:
    return status(400, body=json.dumps({"error": {"message": message}}).encode())
