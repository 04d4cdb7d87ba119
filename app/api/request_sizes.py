"""How many messages and tools a chat completion may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from app.errors import InvalidRequest
from app.pipeline.chat_request import ChatRequest

LEAST_TOOL_BYTES: Final = 40
"""Of a tool with a name. What stands for less is not counted: so many cannot do harm."""
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Sizes:
    """The part of the settings that concerns lists in a request."""

    max_messages: int = 20_000
    max_tools: int = 1000

    def check(self, request: ChatRequest) -> None:
        """
        Raises:
            InvalidRequest: there is more in a list than may be.
        """
        if len(request.raws) > self.max_messages:
            raise _too_many("messages", len(request.raws), self.max_messages)
        tools = request.fields.get("tools")
        if tools is not None and len(tools) > self.max_tools * LEAST_TOOL_BYTES:
            self._check_tools(tools)

    def _check_tools(self, tools: bytes) -> None:
        try:
            count = len(_decode_array(tools))
        except msgspec.ValidationError:
            return  # no array: the provider's business
        if count > self.max_tools:
            raise _too_many("tools", count, self.max_tools)


def _too_many(name: str, count: int, most: int) -> InvalidRequest:
    return InvalidRequest(
        f"`{name}` has {count} elements; there may be {most}.",
        code="array_above_max_length",
        param=name,
        hint=f"Send fewer, or raise `limits.max_{name}`.",
    )


DEFAULT_SIZES: Final = Sizes()
