"""Reads the items of a conversation page by page. The cost of a page does not depend on the conversation's length."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES
from app.conversations.history.conversation_history import find_summary_chains
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.item_building import (
    ItemObject,
    build_compaction_item,
    build_instruction_items,
    build_items,
    find_instruction_index,
    parse_item_id,
)
from app.errors import ItemNotFound
from app.store.contract.summaries import ConversationAndSummaryStore

MAX_ROUND_MESSAGES: Final = 128
"""How many messages before a result are searched for its call."""
INSTRUCTIONS_SEQ: Final = -1
AFTER_ALL_PARTS: Final = 1 << 32

ItemPosition = tuple[int, int]
"""The position of an item: the `seq` of its message, and its part. Instructions come before all messages, a summary
after the last item that it covers."""


class ItemQuery(msgspec.Struct, frozen=True):
    """Selects a page of items."""

    limit: int
    descending: bool = True
    after: str | None = None
    """Id of the last item of the page before."""


class ItemReader:
    """Reads items of conversations."""

    def __init__(self, store: ConversationAndSummaryStore, records: ConversationRecords) -> None:
        self._store = store
        self._records = records

    async def list_items(self, conversation: Conversation, query: ItemQuery) -> tuple[list[ItemObject], bool]:
        """Returns a page of a conversation's items, and whether more follow.

        Raises:
            ItemNotFound: there is no item `query.after`.
        """
        summaries = await self._read_active_summaries(conversation)
        position = None if query.after is None else await self._find_item_position(conversation, summaries, query.after)
        items: list[ItemObject] = []
        async for item_position, item in self._stream_items(conversation, summaries, query, position):
            if position is None or (item_position < position if query.descending else item_position > position):
                items.append(item)
                if len(items) > query.limit:
                    return items[:-1], True
        return items, False

    async def find_item(self, conversation: Conversation, item_id: str) -> ItemObject:
        """Returns the item with this id.

        Raises:
            ItemNotFound: there is none, or it was deleted.
        """
        if (index := find_instruction_index(conversation, item_id)) is not None:
            return build_instruction_items(conversation)[index]
        if parse_item_id(item_id) is None:
            summaries = await self._read_active_summaries(conversation)
            matching_summaries = [summary for summary in summaries if summary.id == item_id]
            matching_items = [
                build_compaction_item(summary)
                for summary in await self._read_summary_texts(conversation, matching_summaries)
            ]
        else:
            entry, _ = await self._records.find_message(conversation, item_id)
            calls = await self._find_call_messages(conversation, [entry])
            matching_items = [item for item in build_items(entry, call=calls[0]) if item["id"] == item_id]
        if not matching_items:
            raise _item_not_found_error(conversation, item_id)
        return matching_items[0]

    async def _stream_items(
        self, conversation: Conversation, summaries: Sequence[Summary], query: ItemQuery, position: ItemPosition | None
    ) -> AsyncIterator[tuple[ItemPosition, ItemObject]]:
        """Yields items with their positions, from the beginning of the page or shortly before it."""
        instructions: list[tuple[ItemPosition, ItemObject]] = [
            ((INSTRUCTIONS_SEQ, index), item) for index, item in enumerate(build_instruction_items(conversation))
        ]
        size = query.limit + 1
        if query.descending:
            end = conversation.head_seq + 1 if position is None else position[0] + 1
            for to_seq in range(end, 0, -size):
                for positioned_items in reversed(
                    await self._read_item_range(conversation, summaries, max(0, to_seq - size), to_seq)
                ):
                    yield positioned_items
            for positioned_items in reversed(instructions):
                yield positioned_items
        else:
            for positioned_items in instructions:
                yield positioned_items
            for from_seq in range(0 if position is None else max(0, position[0]), conversation.head_seq + 1, size):
                for positioned_items in await self._read_item_range(conversation, summaries, from_seq, from_seq + size):
                    yield positioned_items

    async def _read_item_range(
        self, conversation: Conversation, summaries: Sequence[Summary], from_seq: int, to_seq: int
    ) -> list[tuple[ItemPosition, ItemObject]]:
        entries = await self._store.read_log(conversation, from_seq, min(to_seq, conversation.head_seq + 1))
        ending = [summary for summary in summaries if from_seq < summary.to_seq <= to_seq]
        shown_summaries = await self._read_summary_texts(conversation, ending)
        positioned_items: list[tuple[ItemPosition, ItemObject]] = []
        for entry, call in zip(entries, await self._find_call_messages(conversation, entries), strict=True):
            for item in build_items(entry, call=call):
                item_id_parts = parse_item_id(item["id"])
                assert item_id_parts is not None
                positioned_items.append(((entry.seq, item_id_parts.part), item))
            positioned_items += [
                (_summary_item_position(summary), build_compaction_item(summary))
                for summary in shown_summaries
                if summary.to_seq == entry.seq + 1
            ]
        return sorted(positioned_items, key=lambda one: one[0])

    async def _find_call_messages(
        self, conversation: Conversation, entries: Sequence[LogMessage]
    ) -> list[LogMessage | None]:
        """Returns for each message the one with the tool call that it answers; None for other messages, or if the call
        is too far back."""
        earlier_entries: list[LogMessage] = []
        if entries and entries[0].message.role in TOOL_RESULT_ROLES:
            first_seq = entries[0].seq
            earlier_entries = await self._store.read_log(
                conversation, max(0, first_seq - MAX_ROUND_MESSAGES), first_seq
            )
        calls: list[LogMessage | None] = []
        call: LogMessage | None = None
        for entry in (*earlier_entries, *entries):
            if entry.message.role not in TOOL_RESULT_ROLES:
                call = entry
            near = call is not None and 0 < entry.seq - call.seq <= MAX_ROUND_MESSAGES
            calls.append(call if near else None)
        return calls[len(earlier_entries) :]

    async def _read_active_summaries(self, conversation: Conversation) -> list[Summary]:
        """Returns the summaries that views are built with, without texts, ordered by the end of their range.

        They include the summaries of policies that add one to another, and of those that replace one by a longer one.
        """
        stored = await self._store.find_summaries(
            tenant=conversation.tenant, root=conversation.root, path=conversation.lineage_with_self, with_texts=False
        )
        chain, replacing = await find_summary_chains(self._store, conversation, stored)
        summaries_by_id = {summary.id: summary for summary in (*chain, *replacing)}
        return sorted(summaries_by_id.values(), key=_summary_item_position)

    async def _read_summary_texts(self, conversation: Conversation, summaries: Sequence[Summary]) -> list[Summary]:
        """Returns the summaries with their texts, without those that were deleted meanwhile."""
        if not summaries:
            return []
        end_links = list({summary.to_link for summary in summaries})
        stored = await self._store.find_summaries(tenant=conversation.tenant, root=conversation.root, links=end_links)
        known = {summary.id: summary for summary in stored}
        return [known[summary.id] for summary in summaries if summary.id in known]

    async def _find_item_position(
        self, conversation: Conversation, summaries: Sequence[Summary], item_id: str
    ) -> ItemPosition:
        if (index := find_instruction_index(conversation, item_id)) is not None:
            return INSTRUCTIONS_SEQ, index
        if parse_item_id(item_id) is None:
            position = next((_summary_item_position(summary) for summary in summaries if summary.id == item_id), None)
            if position is None:
                raise _item_not_found_error(conversation, item_id)
            return position
        entry, part = await self._records.find_message(conversation, item_id)
        return entry.seq, part


def _summary_item_position(summary: Summary) -> ItemPosition:
    """Returns the position of a summary. Of two that end at the same message the shorter one comes first."""
    return summary.to_seq - 1, AFTER_ALL_PARTS - summary.from_seq


def _item_not_found_error(conversation: Conversation, item_id: str) -> ItemNotFound:
    return ItemNotFound(f"Item with id {item_id!r} not found in conversation {conversation.id!r}.")
