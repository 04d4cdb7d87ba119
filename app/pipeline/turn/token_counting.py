"""Counts the tokens of messages. Long messages are counted in a thread."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from app.context.count.token_counter import PRIMING_TOKENS, TokenCounter, must_count_off_event_loop
from app.conversation.item import Item, count_item_bytes
from app.dialects.client_dialects import CLIENT_DIALECTS, select_schema_fields
from app.pipeline.turn.chat_request import ChatRequest

MAX_CACHED_INSTRUCTIONS: Final = 1024
MAX_KEY_BYTES: Final = 256
"""Of longer texts, the cache keeps digests: a client may send megabytes."""


class MessageCounter:
    """Counts messages with the tokenizer of an encoding. The counts of instructions and tool schemas are cached,
    because an application sends the same ones with every request."""

    def __init__(self, find_counter: Callable[[str], TokenCounter]) -> None:
        self.find_token_counter = find_counter
        """Returns the counter of an encoding."""
        self._instructions_cache: OrderedDict[tuple[object, ...], int] = OrderedDict()

    async def count_message_tokens(self, messages: Sequence[Item], encoding: str) -> list[int]:
        """Returns the raw tokens of each message."""
        count = self.find_token_counter(encoding).count_message
        if must_count_off_event_loop(count_item_bytes(messages)):
            return await asyncio.to_thread(lambda: [count(message) for message in messages])
        return [count(message) for message in messages]

    async def count_instruction_tokens(self, instructions: Sequence[Item], request: ChatRequest, encoding: str) -> int:
        """Returns the raw tokens of the leading system messages, the tool schemas and the fixed overhead of a
        request."""
        if not instructions and CLIENT_DIALECTS[request.protocol].schema_fields.isdisjoint(request.raw_fields):
            return PRIMING_TOKENS
        schemas = select_schema_fields(request.protocol, request.raw_fields)
        texts = [message.raw for message in instructions]
        key = (encoding, *map(_shorten_key, texts), *[(name, _shorten_key(raw)) for name, raw in schemas.items()])
        cached_tokens = self._instructions_cache.get(key)
        if cached_tokens is not None:
            self._instructions_cache.move_to_end(key)
            return cached_tokens
        counted_schemas = CLIENT_DIALECTS[request.protocol].read_schemas(
            {name: request.decode_field(name) for name in schemas}
        )
        counter = self.find_token_counter(encoding)
        if must_count_off_event_loop(sum(len(raw) for raw in schemas.values()) + count_item_bytes(instructions)):
            tokens = await asyncio.to_thread(counter.count_request, instructions, counted_schemas)
        else:
            tokens = counter.count_request(instructions, counted_schemas)
        self._instructions_cache[key] = tokens
        if len(self._instructions_cache) > MAX_CACHED_INSTRUCTIONS:
            self._instructions_cache.popitem(last=False)
        return tokens


def _shorten_key(raw: bytes) -> bytes:
    return raw if len(raw) <= MAX_KEY_BYTES else hashlib.sha256(raw).digest()
