"""Reads a completion object that is not stored as an answer, such as a summarizer's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.answer_events import AnswerValue, CallBegin, Text
from app.dialects.body.message_fields import extract_text
from app.dialects.chat.stream_decoder import ChatStreamDecoder

PARAGRAPH_BREAK: Final = "\n\n"


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


def read_decoded_choice(answer: AnswerDecoder, values: Iterable[AnswerValue]) -> FirstChoice:
    """Reads the first choice of an answer.

    Args:
        values: what the decoder said.
    """
    if isinstance(answer, ChatStreamDecoder):
        choice = {"message": answer.build_message(), "finish_reason": answer.finish}
        return read_first_choice({"choices": [choice], "usage": answer.usage})
    blocks: dict[int | None, str] = {}
    has_calls = False
    for value in values:
        if isinstance(value, Text):
            blocks[value.block] = blocks.get(value.block, "") + value.text
        has_calls = has_calls or isinstance(value, CallBegin)
    return FirstChoice(PARAGRAPH_BREAK.join(blocks.values()), has_calls, answer.finish or "", answer.usage)


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
