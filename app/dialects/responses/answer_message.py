"""Chooses how the log keeps an answer that the gateway has written as items. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.conversation.item import Item
from app.dialects.items.message import ResponsesMessage, build_items_message
from app.dialects.message_rendering import build_output_items
from app.dialects.responses.response_object import ResponseObject


def build_answer_message(message: Item, items: Sequence[Mapping[str, Any]], response: ResponseObject) -> Item:
    """Returns an answer of which the gateway has written the items as the log keeps it.

    A chat message is kept as it came, with fields that items do not have. But the client has seen the items, and a
    later read must show the same ones: where a chat message cannot say them (text after a call, a call of a tool in a
    namespace, an item that is incomplete), the items are kept.
    Logarithmic probabilities are kept in neither.

    Args:
        message: the answer as a chat message, or of another protocol.
        items: the items that the client has got.
        response: names the items, and hides what the client did not ask for.
    """
    kept_items = [_drop_logprobs(item) for item in items]
    built_items = build_output_items(message, response.response_id)
    if not items or [response.hide_item(item) for item in built_items] == kept_items:
        return message
    return ResponsesMessage.from_items(kept_items)


def build_kept_items(items: Sequence[Mapping[str, Any]], passed_items: Mapping[int, bytes]) -> Item:
    """Returns the items that the client has got as the log keeps them.

    Args:
        passed_items: some of them as their provider wrote them, by index.
    """
    return build_items_message(
        [passed_items.get(index) or orjson.dumps(_drop_logprobs(item)) for index, item in enumerate(items)]
    )


def _drop_logprobs(item: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an item without logarithmic probabilities: they are many times longer than the text."""
    if item["type"] != "message":
        return dict(item)
    return {**item, "content": [{**part, "logprobs": []} if "logprobs" in part else part for part in item["content"]]}
