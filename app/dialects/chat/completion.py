"""Reads a completion object that is not stored as an answer, such as a summarizer's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from app.dialects.chat.message_fields import extract_text
from app.dialects.chat.stream_collector import StreamCollector

ANSWER_KEY: Final = b'"choices"'
"""Data with this key is an answer, not an error, even if its text speaks of context windows."""


class FirstChoice(msgspec.Struct, frozen=True):
    """What a completion says in its first choice; the other choices are not read."""

    text: str
    has_calls: bool
    """Whether it calls a tool."""
    finish: str
    """The provider's word for how it ended; empty if it does not say."""
    usage: Mapping[str, Any] | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended at the limit of its tokens."""
        return self.finish == "length"

    @property
    def is_filtered(self) -> bool:
        return self.finish == "content_filter"


def read_streamed_choice(collector: StreamCollector) -> FirstChoice:
    """Reads the first choice of a completion that was streamed."""
    choice = {"message": collector.build_message(), "finish_reason": collector.finish}
    return read_first_choice({"choices": [choice], "usage": collector.usage})


def read_first_choice(body: Mapping[str, Any]) -> FirstChoice:
    """Reads a decoded completion object. What it lacks, or has in another form, is empty."""
    choices, usage = body.get("choices"), body.get("usage")
    first = choices[0] if isinstance(choices, list) and choices else None
    choice = first if isinstance(first, dict) else {}
    raw_message = choice.get("message")
    message = raw_message if isinstance(raw_message, dict) else {}
    return FirstChoice(
        text=extract_text(message.get("content")),
        has_calls=bool(message.get("tool_calls") or message.get("function_call")),
        finish=str(choice.get("finish_reason") or ""),
        usage=usage if isinstance(usage, dict) else None,
    )
