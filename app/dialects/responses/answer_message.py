"""Chooses how the log keeps an answer that the gateway has written as items. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import build_output_items
from app.dialects.responses.response_object import ResponseObject

EMPTY_ANSWER: Final[Mapping[str, Any]] = {"role": "assistant", "content": ""}


def build_items_message(items: Sequence[bytes]) -> Item:
    """Returns an answer of these items, each with its bytes, as the log keeps it."""
    return ResponsesMessage.from_raw_items(items) if items else ChatMessage.from_body(dict(EMPTY_ANSWER))


def build_answer_message(body: dict[str, Any], items: Sequence[Mapping[str, Any]], response: ResponseObject) -> Item:
    """Returns the answer of a chat provider as the log keeps it.

    A chat message is kept as it came, with fields that items do not have. But the client has seen the items, and a
    later read must show the same ones: where a chat message cannot say them (text after a call, a call of a tool in a
    namespace, an item that is incomplete), the items are kept.
    Logarithmic probabilities are kept in neither.

    Args:
        body: the chat message.
        items: the items that the client has got.
        response: names the items, and hides what the client did not ask for.
    """
    message = ChatMessage.from_body(body)
    kept_items = [_drop_logprobs(item) for item in items]
    built_items = build_output_items(message, response.response_id)
    if not items or [response.hide_item(item) for item in built_items] == kept_items:
        return message
    return ResponsesMessage.from_items(kept_items)


def _drop_logprobs(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an item without logarithmic probabilities: they are many times longer than the text."""
    if item["type"] != "message":
        return dict(item)
    return {**item, "content": [{**part, "logprobs": []} if "logprobs" in part else part for part in item["content"]]}
