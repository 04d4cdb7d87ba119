"""Counts the decoded JSON of chat messages and requests, for tests that write messages as such."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.context.count.token_counter import TokenCounter
from app.conversation.item import NO_SCHEMAS, CountedSchemas, Item
from app.dialects.body.message import ChatMessage, decode_body
from app.dialects.body.message_fields import read_schemas

AnyMessage = Item | Mapping[str, Any]


def as_item(message: AnyMessage) -> Item:
    return message if isinstance(message, Item) else ChatMessage(b"", dict(message))


def as_body(message: AnyMessage) -> dict[str, Any]:
    return decode_body(message) if isinstance(message, Item) else dict(message)


class ChatCounter(TokenCounter):
    """The gateway's counter, which takes decoded messages, too."""

    def count_message(self, message: AnyMessage) -> int:
        return super().count_message(as_item(message))

    def count_attachments(self, message: AnyMessage) -> int:
        return super().count_attachments(as_item(message))

    def count_request(
        self, messages: Iterable[AnyMessage], schemas: CountedSchemas = NO_SCHEMAS, **fields: object
    ) -> int:
        return super().count_request(map(as_item, messages), read_schemas(fields) if fields else schemas)

    def count_tools(self, tools: object, *, functions: object = None) -> int:
        return self.count_schemas(read_schemas({"tools": tools, "functions": functions}))

    def count_response_format(self, response_format: object) -> int:
        return self.count_schemas(read_schemas({"response_format": response_format}))
