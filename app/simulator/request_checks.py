"""Refuses prompts as strictly as OpenAI's API does: over the window, or with unpaired tool calls. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from app.errors import InvalidRequest

DEFAULT_WINDOW_TOKENS = 128_000
SIMULATED_PREFIX = "sim"
"""Without a provider, the gateway's own simulated model answers only names that begin so."""
LISTED_MODELS = ("sim", "sim-8k", "sim-32k", "sim-128k")

_SIZE_IN_NAME = re.compile(r"(?:^|-)(\d{1,9})(k?)(?:-|$)", re.IGNORECASE)
_MIN_WINDOW_TOKENS = 64


def parse_window_from_name(model: str, default: int = DEFAULT_WINDOW_TOKENS) -> int:
    """Returns the window of a model by its name, in tokens: `sim-4096`, `sim-8k`. Text after ``!`` is not part of the
    name.

    As with vendors, a k is 1,024 tokens up to 64k and 1,000 above: 8k is 8,192 and 128k is 128,000.
    """
    sized = _SIZE_IN_NAME.search(model.partition("!")[0])
    if sized is None:
        return default
    number = int(sized.group(1))
    if sized.group(2):
        number *= 1024 if number <= 64 else 1000
    return number if number >= _MIN_WINDOW_TOKENS else default


def check_window(window: int, prompt_tokens: int, requested_tokens: int) -> None:
    """Refuses a request that does not fit, in OpenAI's words.

    Args:
        window: tokens of prompt and answer together.
        prompt_tokens: tokens of the prompt.
        requested_tokens: `max_tokens`; 0 if the request has none.

    Raises:
        InvalidRequest: the prompt, or prompt and answer together, are larger than the window.
    """
    total_tokens = prompt_tokens + requested_tokens
    if total_tokens <= window:
        return
    if prompt_tokens > window:
        reason = f"your messages resulted in {prompt_tokens} tokens. Please reduce the length of the messages."
    else:
        reason = (
            f"you requested {total_tokens} tokens ({prompt_tokens} in the messages, {requested_tokens} in the "
            "completion). Please reduce the length of the messages or completion."
        )
    message = f"This model's maximum context length is {window} tokens. However, {reason}"
    raise InvalidRequest(message, param="messages", code="context_length_exceeded")


def check_tool_pairing(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuses a call without a result, or a result without a call, in OpenAI's words.

    Raises:
        InvalidRequest: the first of them.
    """
    open_ids: Counter[str] = Counter()
    # The empty message after the last one closes the calls of the last message.
    for index, message in enumerate([*messages, {}]):
        if message.get("role") == "tool":
            call_id = str(message.get("tool_call_id"))
            if not open_ids[call_id]:
                description = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                raise InvalidRequest(f"Invalid parameter: {description}", param=f"messages.[{index}].role")
            open_ids[call_id] -= 1
            continue
        if open_ids.total():
            raise InvalidRequest(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: "
                f"{', '.join(open_ids.elements())}",
                param=f"messages.[{index}].role",
            )
        open_ids = Counter(str(call.get("id")) for call in message.get("tool_calls") or ())
