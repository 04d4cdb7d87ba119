"""Token counts of whole messages, off the event loop when they are long."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from app.context.count.token_counter import PRIMING, TokenCounter, is_long
from app.conversation.messages import Message, size_of
from app.pipeline.chat_request import ChatRequest

INSTRUCTIONS_REMEMBERED: Final = 1024
SCHEMA_FIELDS: Final = frozenset({"tools", "functions", "response_format"})


class Counting:
    """Counts messages with the tokenizer of an encoding.

    Instructions and tool schemas come again with every request of an application, so their counts are remembered.
    """

    def __init__(self, counter_for: Callable[[str], TokenCounter]) -> None:
        self._counter_for = counter_for
        self._instructions: OrderedDict[tuple[object, ...], int] = OrderedDict()

    def counter(self, encoding: str) -> TokenCounter:
        return self._counter_for(encoding)

    async def messages(self, messages: Sequence[Message], encoding: str) -> list[int]:
        """Tokens of each message."""
        count = self._counter_for(encoding).message
        if is_long(size_of(messages)):
            return await asyncio.to_thread(lambda: [count(message.body) for message in messages])
        return [count(message.body) for message in messages]

    async def instructions(self, instructions: Sequence[Message], request: ChatRequest, encoding: str) -> int:
        """Tokens of the leading system messages, the tool schemas and the fixed overhead of a request."""
        fields = request.fields
        if not instructions and SCHEMA_FIELDS.isdisjoint(fields):
            return PRIMING
        schemas = {name: bytes(fields[name]) for name in sorted(SCHEMA_FIELDS & fields.keys())}
        key = (encoding, *[message.raw for message in instructions], *schemas.items())
        known = self._instructions.get(key)
        if known is not None:
            self._instructions.move_to_end(key)
            return known
        bodies = [message.body for message in instructions]
        arguments: dict[str, Any] = {name: request.value(name) for name in schemas}
        counter = self._counter_for(encoding)
        if is_long(sum(len(raw) for raw in schemas.values()) + size_of(instructions)):
            tokens = await asyncio.to_thread(counter.request, bodies, **arguments)
        else:
            tokens = counter.request(bodies, **arguments)
        self._instructions[key] = tokens
        if len(self._instructions) > INSTRUCTIONS_REMEMBERED:
            self._instructions.popitem(last=False)
        return tokens
