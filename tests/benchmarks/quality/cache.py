"""A provider's prompt cache, simulated: the longest prefix that a prompt shares with one of the last prompts."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from tests.benchmarks.quality.texts import text_of

KEPT_PROMPTS: Final = 200
LEAST_TOKENS: Final = 1_024
STEP_TOKENS: Final = 128
"""OpenAI caches prompts from 1,024 tokens up, in steps of 128 (developers' guide "Prompt caching")."""
CHARS_PER_TOKEN: Final = 4


class PrefixCache:
    """Knows the last prompts by model, tools and messages."""

    def __init__(self) -> None:
        self._prompts: deque[str] = deque(maxlen=KEPT_PROMPTS)

    def cached_tokens(self, body: Mapping[str, Any]) -> int:
        """Tokens of a prompt that an earlier one began with; the prompt is known from then on."""
        prompt = serialize_prompt(body)
        best = 0
        for earlier in reversed(self._prompts):
            if prompt[:best] == earlier[:best]:
                best = common_prefix(prompt, earlier, at_least=best)
        self._prompts.append(prompt)
        tokens = best // CHARS_PER_TOKEN
        return tokens // STEP_TOKENS * STEP_TOKENS if tokens >= LEAST_TOKENS else 0


def serialize_prompt(body: Mapping[str, Any]) -> str:
    """Returns what a provider reads of a request, in the order in which it reads it."""
    said = (
        (message.get("role"), text_of(message.get("content")), message.get("tool_calls"), message.get("tool_call_id"))
        for message in body["messages"]
    )
    return json.dumps([body.get("model"), body.get("tools"), *chain.from_iterable(said)], ensure_ascii=False)


def common_prefix(one: str, other: str, *, at_least: int = 0) -> int:
    """How many characters two texts begin with in common, `at_least` being known."""
    low, high = at_least, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
