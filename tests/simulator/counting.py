"""A counter for tests: four characters a token, four tokens a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from app.conversation.item import NO_SCHEMAS, CountedSchemas
from app.dialects.body.message_fields import read_schemas
from tests.support.chat_counter import AnyMessage, as_item


class RoughCounter:
    def count(self, text: str) -> int:
        return (len(text) + 3) // 4

    def count_request(self, messages: Iterable[AnyMessage], schemas: CountedSchemas = NO_SCHEMAS, **fields: Any) -> int:
        told = sum(4 + self.count(as_item(message).text) for message in messages)
        schemas = read_schemas(fields) if fields else schemas
        tools = [*schemas.functions, *schemas.custom_tools, *schemas.other_tools]
        return told + 3 + (self.count(orjson.dumps(tools).decode()) if tools else 0)
