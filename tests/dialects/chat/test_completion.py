"""What is read of a completion that is no answer to a client, in whatever form a provider sends it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.first_choice import FirstChoice, read_first_choice


def read(body: dict[str, Any]) -> FirstChoice:
    decoder = ChatStreamDecoder()
    raw = orjson.dumps(body)
    decoder.add_whole(raw)
    return read_first_choice(decoder, decoder.decode_whole(raw))


def say(message: Any, reason: Any = "stop", **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], **fields}


@pytest.mark.parametrize(
    ("body", "completion"),
    [
        (say({"content": "A."}, usage={"prompt_tokens": 1}), FirstChoice("A.", False, "stop", {"prompt_tokens": 1})),
        (
            say({"content": [{"type": "text", "text": "A"}, {"type": "text", "text": "."}]}),
            FirstChoice("A.", False, "stop"),
        ),
        (say({"content": None, "tool_calls": [{"id": "a"}]}, "tool_calls"), FirstChoice("", True, "tool_calls")),
        (say({"content": "", "function_call": {"name": "f"}}, None), FirstChoice("", True, "")),
        (say({"content": "", "tool_calls": []}), FirstChoice("", False, "stop")),
        (say("text", usage=[]), FirstChoice("", False, "stop")),
        ({"choices": ["text"]}, FirstChoice("", False, "")),
        ({"choices": {}}, FirstChoice("", False, "")),
        ({}, FirstChoice("", False, "")),
    ],
)
def test_what_a_completion_says(body: dict[str, Any], completion: FirstChoice) -> None:
    assert read(body) == completion


def test_an_answer_at_the_limit_of_its_tokens_was_cut_off_and_a_filtered_one_was_not() -> None:
    ends = [read(say({"content": "A"}, reason)) for reason in ("length", "content_filter", "stop")]
    assert [(end.is_cut_off, end.is_filtered) for end in ends] == [(True, False), (False, True), (False, False)]
