"""The messages of a request after its instructions: decoded and hashed at most once, and only when they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import msgspec

from app.conversation.conversation_types import Conversation
from app.conversation.fingerprints import Fingerprint, FingerprintScope
from app.conversation.identity import (
    LinkPosition,
    PrefixCache,
    compute_family_root,
    compute_links_after_messages,
    compute_prefix_digests,
    compute_start_position,
)
from app.conversation.item import INSTRUCTION_ROLES, Item, count_item_bytes
from app.dialects.body.message import check_messages
from app.dialects.item_decoding import decode_item, is_instructions_field, may_be_answer
from app.dialects.missing_tool_results import has_missing_tool_results, may_have_tool_calls
from app.pipeline.turn.chat_request import ChatRequest

MIN_FAST_PATH_MESSAGES: Final = 3
"""Shorter histories are recognised as quickly by their links, so their bytes are not remembered: most requests with one
message are never continued."""
LONG_HISTORY_BYTES: Final = 64 * 1024
"""The links of longer histories are computed in a thread: 64 KiB take about 1 ms."""


class RememberedPrefix(msgspec.Struct, frozen=True):
    """What the prefix cache remembers of a history that came before, byte for byte. Message i of it is message i of its
    log. It finds a conversation's position, and proves nothing."""

    position: LinkPosition
    has_missing_results: bool = False
    """Whether tool calls in the prefix have no result."""


PrefixMemory = PrefixCache[RememberedPrefix]


class ClientHistory:
    """The client's history.

    Args:
        first_message: the first message, which is decoded already; None if there are no messages.
        instructions: the leading system and developer messages, which are not part of the history.
        prefix_memory: knows the position of the chains after histories that came before.
    """

    def __init__(
        self,
        tenant: str,
        raw_messages: Sequence[bytes],
        first_message: Item | None,
        instructions: tuple[Item, ...] = (),
        prefix_memory: PrefixMemory | None = None,
    ) -> None:
        self.instructions = instructions
        self.start_position = compute_start_position(tenant)
        self._tenant = tenant
        self.raw_messages = raw_messages
        self._first_message = first_message
        self._messages: list[Item] | None = None
        self._tail: tuple[int, list[Item]] = (len(raw_messages), [])
        """The newest messages, decoded without the others: the index of the first, and they."""
        self._positions: list[LinkPosition] | None = None
        self._answer_indexes: dict[int, list[int]] = {}
        self._newest_positions: list[LinkPosition] | None = None
        self.prefix_count = 0
        """How many first messages came before, byte for byte."""
        self._prefix: RememberedPrefix | None = None
        self.history_digest: bytes | None = None
        """The digest under which the whole history is remembered; None if it is short, or not to be remembered."""
        if prefix_memory is not None and len(raw_messages) >= MIN_FAST_PATH_MESSAGES:
            digests = compute_prefix_digests(raw_messages, tenant)
            self.history_digest = digests[-1][1]
            if found := prefix_memory.find_longest_prefix(digests):
                self.prefix_count, self._prefix = found

    @property
    def messages(self) -> list[Item]:
        if self._messages is None:
            rest = self.raw_messages[1:]
            first = [] if self._first_message is None else [self._first_message]
            self._messages = [*first, *[decode_item(bytes(raw)) for raw in rest]] if rest else first
        return self._messages

    def decode_messages(self, from_index: int) -> list[Item]:
        """Returns the messages from an index on. Earlier messages are not decoded."""
        if self._messages is not None or not from_index:
            return self.messages[from_index:]
        first, tail = self._tail
        if from_index < first:
            tail = [*[decode_item(bytes(raw)) for raw in self.raw_messages[from_index:first]], *tail]
            first = from_index
            self._tail = first, tail
        return tail[from_index - first :]

    @cached_property
    def may_contain_answer(self) -> bool:
        """Whether the history may contain an assistant message. The raw bytes are searched: a false yes costs one
        query."""
        return any(map(may_be_answer, map(bytes, self.raw_messages)))

    async def compute_link_positions(self) -> list[LinkPosition]:
        """Returns the position of the chains after each message. A long history is hashed in a thread."""
        if self._positions is None:
            self._positions = await _compute_positions(self.messages, self.start_position)
        return self._positions

    async def compute_newest_positions(self) -> tuple[int, list[LinkPosition]]:
        """Returns an index, and the position of the chains after each message from that index on: those after the known
        prefix, or all."""
        if self._prefix is None or self._positions is not None:
            return 0, await self.compute_link_positions()
        if self._newest_positions is None:
            rest = self.decode_messages(self.prefix_count)
            self._newest_positions = await _compute_positions(rest, self._prefix.position)
        return self.prefix_count, self._newest_positions

    async def find_log_root(self) -> str:
        """Returns the root of a log that begins with this history."""
        return compute_log_root(self._tenant, self.start_position, await self.compute_link_positions())

    async def has_missing_results(self, request: ChatRequest) -> bool:
        """Returns whether tool calls of the history have no result."""
        if self._prefix is not None and self.prefix_count:
            return self._prefix.has_missing_results or has_missing_tool_results(
                self.raw_messages[self.prefix_count - 1 :]
            )
        # A search for the bytes is cheaper than decoding the messages, and most requests have no tool calls.
        if not may_have_tool_calls(request.body):
            return False
        if count_item_bytes(self.messages) >= LONG_HISTORY_BYTES:
            return await asyncio.to_thread(has_missing_tool_results, self.raw_messages)
        return has_missing_tool_results(self.raw_messages)

    def list_answer_indexes(self, from_index: int = 0) -> list[int]:
        """Returns the indexes of the assistant messages from an index on, the newest first."""
        if from_index not in self._answer_indexes:
            rest = self.decode_messages(from_index)
            self._answer_indexes[from_index] = [
                from_index + index
                for index in reversed(range(len(rest)))
                if rest[index].role == "assistant" and not self._is_skipped(from_index + index, rest[index])
            ]
        return self._answer_indexes[from_index]

    def _is_skipped(self, index: int, message: Item) -> bool:
        """Returns whether the chain skips a message: its link is that of the message before."""
        if self._positions is None:
            return message.canonical_form is None
        before = self._positions[index - 1] if index else self.start_position
        return self._positions[index].link == before.link

    async def compute_fingerprints(self, index: int, scopes: Sequence[FingerprintScope]) -> list[Fingerprint]:
        """Returns all fingerprints of the assistant message at an index."""
        positions = await self.compute_link_positions()
        found: list[Fingerprint] = []
        for scope in scopes:
            found += scope.list_fingerprints(
                positions[index],
                self.messages[index],
                (message for message in reversed(self.messages[:index]) if message.role == "assistant"),
                has_tool_traffic=True,  # the client may have left it out
            )
        return found


async def _compute_positions(messages: Sequence[Item], start: LinkPosition) -> list[LinkPosition]:
    if count_item_bytes(messages) >= LONG_HISTORY_BYTES:
        return await asyncio.to_thread(lambda: list(compute_links_after_messages(messages, start)))
    return list(compute_links_after_messages(messages, start))


def build_client_history(request: ChatRequest, prefix_memory: PrefixMemory | None = None) -> ClientHistory:
    """Splits a request into its instructions and its client history. The last message belongs to the history, whatever
    its role. The history is empty only if a request continues an earlier response and brings no message."""
    raw_messages, tenant = request.raw_messages, request.log_tenant
    instructions: list[Item] = []
    for index, raw in enumerate(raw_messages):
        message = decode_item(bytes(raw))
        if message.role not in INSTRUCTION_ROLES:
            history = raw_messages[index:] if index else raw_messages
            return ClientHistory(tenant, history, message, tuple(instructions), prefix_memory)
        instructions.append(message)
    if not instructions or is_instructions_field(instructions[-1].raw):
        return ClientHistory(tenant, (), None, tuple(instructions))
    return ClientHistory(tenant, raw_messages[-1:], instructions[-1], tuple(instructions[:-1]))


def compute_log_root(tenant: str, start_position: LinkPosition, positions: Sequence[LinkPosition]) -> str:
    """Returns the root of a log: that of its first message that the chain does not skip."""
    for position in positions:
        if position.link != start_position.link:
            return compute_family_root(tenant, position.link)
    return compute_family_root(tenant, start_position.link)


async def check_new_messages(messages: Sequence[Item], *, first_index: int, has_open_calls: bool) -> None:
    """Checks new messages (`check_messages`). Long messages are checked in a thread, so that the event loop stays
    free."""
    if count_item_bytes(messages) > LONG_HISTORY_BYTES:
        await asyncio.to_thread(check_messages, messages, first_index=first_index, may_begin_with_result=has_open_calls)
    else:
        check_messages(messages, first_index=first_index, may_begin_with_result=has_open_calls)


def may_append(request: ChatRequest, client_history: ClientHistory) -> bool:
    """Returns whether the request names a conversation and brings no history. Chat UIs name their chat in unrelated
    calls, too, so they never append."""
    return (
        request.continuation.conversation_id is not None
        and not request.continuation.is_chat_ui
        and not client_history.may_contain_answer
    )


def is_append_request(
    request: ChatRequest, named_conversation: Conversation | None, client_history: ClientHistory
) -> bool:
    """Returns whether a request without a mode header is an append: its client names a conversation, has not been seen
    to resend, and sends no history."""
    if (
        request.continuation.conversation_id is None
        or request.context.mode != "auto"
        or not may_append(request, client_history)
    ):
        return False
    return named_conversation is None or named_conversation.mode != "resend"
