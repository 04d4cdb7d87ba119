"""A counter for tests: four characters a token, four tokens a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.conversation.conversation_types import extract_text


class RoughCounter:
    def count(self, text: str) -> int:
        return (len(text) + 3) // 4

    def count_request(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> int:
        told = sum(4 + self.count(extract_text(message.get("content"))) for message in messages)
        return told + 3 + (self.count(orjson.dumps(tools).decode()) if tools else 0)
