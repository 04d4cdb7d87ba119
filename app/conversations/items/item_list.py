"""The items of a conversation, page by page. What a page costs does not depend on how long the conversation is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from app.context.plan.summary_chain import active_chain
from app.conversation.message_checks import TOOL_ROLES
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.conversations.history.conversations import Records
from app.conversations.items.items import (
    Item,
    compaction_item,
    instruction_index,
    instruction_items,
    items_of,
    parse_item_id,
)
from app.errors import ItemNotFound
from app.pipeline.compact.summary_chain import read_omitted
from app.store.contract import Store

LONGEST_ROUND: Final = 128
"""How far back the call of a result is looked for."""
INSTRUCTIONS_SEQ: Final = -1
BEHIND_ALL_PARTS: Final = 1 << 32

Place = tuple[int, int]
"""Where an item stands: its message and its part. Instructions come before all messages, a summary behind the last
item that it covers."""


class Wanted(msgspec.Struct, frozen=True):
    """Which page."""

    limit: int
    descending: bool = True
    after: str | None = None
    """Id of the last item of the page before."""


class Listing:
    """Reads items."""

    def __init__(self, store: Store, records: Records) -> None:
        self._store = store
        self._records = records

    async def page(self, conversation: Conversation, wanted: Wanted) -> tuple[list[Item], bool]:
        """A page of a conversation's items, and whether there are more behind it.

        Raises:
            ItemNotFound: there is no item `wanted.after`.
        """
        summaries = await self._summaries(conversation)
        place = None if wanted.after is None else await self._place(conversation, summaries, wanted.after)
        found: list[Item] = []
        async for at, item in self._items(conversation, summaries, wanted, place):
            if place is None or (at < place if wanted.descending else at > place):
                found.append(item)
                if len(found) > wanted.limit:
                    return found[:-1], True
        return found, False

    async def one(self, conversation: Conversation, item_id: str) -> Item:
        """The item with this id.

        Raises:
            ItemNotFound: there is none, or it was deleted.
        """
        if (index := instruction_index(conversation, item_id)) is not None:
            return instruction_items(conversation)[index]
        if parse_item_id(item_id) is None:
            summaries = await self._summaries(conversation)
            named = [chunk for chunk in summaries if chunk.id == item_id]
            found = [compaction_item(chunk) for chunk in await self._with_texts(conversation, named)]
        else:
            entry, _ = await self._records.entry(conversation, item_id)
            calls = await self._calls(conversation, [entry])
            found = [item for item in items_of(entry, call=calls[0]) if item["id"] == item_id]
        if not found:
            raise _unknown(conversation, item_id)
        return found[0]

    async def _items(
        self, conversation: Conversation, summaries: Sequence[Chunk], wanted: Wanted, place: Place | None
    ) -> AsyncIterator[tuple[Place, Item]]:
        """Items with their places, from where the page begins or shortly before."""
        instructions: list[tuple[Place, Item]] = [
            ((INSTRUCTIONS_SEQ, index), item) for index, item in enumerate(instruction_items(conversation))
        ]
        size = wanted.limit + 1
        if wanted.descending:
            end = conversation.head_seq + 1 if place is None else place[0] + 1
            for to_seq in range(end, 0, -size):
                for found in reversed(await self._stretch(conversation, summaries, max(0, to_seq - size), to_seq)):
                    yield found
            for found in reversed(instructions):
                yield found
        else:
            for found in instructions:
                yield found
            for from_seq in range(0 if place is None else max(0, place[0]), conversation.head_seq + 1, size):
                for found in await self._stretch(conversation, summaries, from_seq, from_seq + size):
                    yield found

    async def _stretch(
        self, conversation: Conversation, summaries: Sequence[Chunk], from_seq: int, to_seq: int
    ) -> list[tuple[Place, Item]]:
        entries = await self._store.read(conversation, from_seq, min(to_seq, conversation.head_seq + 1))
        ending = [chunk for chunk in summaries if from_seq < chunk.to_seq <= to_seq]
        shown = await self._with_texts(conversation, ending)
        found: list[tuple[Place, Item]] = []
        for entry, call in zip(entries, await self._calls(conversation, entries), strict=True):
            for item in items_of(entry, call=call):
                place = parse_item_id(item["id"])
                assert place is not None
                found.append(((entry.seq, place.part), item))
            found += [(_behind(chunk), compaction_item(chunk)) for chunk in shown if chunk.to_seq == entry.seq + 1]
        return sorted(found, key=lambda one: one[0])

    async def _calls(self, conversation: Conversation, entries: Sequence[LogMessage]) -> list[LogMessage | None]:
        """Of each message the one with the call that it answers, if it is a tool's result."""
        before: list[LogMessage] = []
        if entries and entries[0].message.role in TOOL_ROLES:
            first = entries[0].seq
            before = await self._store.read(conversation, max(0, first - LONGEST_ROUND), first)
        calls: list[LogMessage | None] = []
        call: LogMessage | None = None
        for entry in (*before, *entries):
            if entry.message.role not in TOOL_ROLES:
                call = entry
            near = call is not None and 0 < entry.seq - call.seq <= LONGEST_ROUND
            calls.append(call if near else None)
        return calls[len(before) :]

    async def _summaries(self, conversation: Conversation) -> list[Chunk]:
        """The summaries that views are made with, without their texts, by the place they cover up to.

        Those of policies that add one summary to another, and those of policies that replace one by a longer one.
        """
        stored = await self._store.chunks(
            tenant=conversation.tenant, root=conversation.root, path=conversation.path, texts=False
        )
        omitted = await read_omitted(self._store, conversation)
        chain, _ = active_chain(stored, omitted=omitted)
        replacing, _ = active_chain([chunk for chunk in stored if not chunk.folds], replacing=True)
        shown = {chunk.id: chunk for chunk in (*chain, *replacing)}
        return sorted(shown.values(), key=_behind)

    async def _with_texts(self, conversation: Conversation, summaries: Sequence[Chunk]) -> list[Chunk]:
        """The same with their texts; not those that are gone by now."""
        if not summaries:
            return []
        ends = list({chunk.to_link for chunk in summaries})
        stored = await self._store.chunks(tenant=conversation.tenant, root=conversation.root, links=ends)
        known = {chunk.id: chunk for chunk in stored}
        return [known[chunk.id] for chunk in summaries if chunk.id in known]

    async def _place(self, conversation: Conversation, summaries: Sequence[Chunk], item_id: str) -> Place:
        if (index := instruction_index(conversation, item_id)) is not None:
            return INSTRUCTIONS_SEQ, index
        if parse_item_id(item_id) is None:
            place = next((_behind(chunk) for chunk in summaries if chunk.id == item_id), None)
            if place is None:
                raise _unknown(conversation, item_id)
            return place
        entry, part = await self._records.entry(conversation, item_id)
        return entry.seq, part


def _behind(chunk: Chunk) -> Place:
    """The place of a summary. Of two that end at the same message the one that covers less comes first."""
    return chunk.to_seq - 1, BEHIND_ALL_PARTS - chunk.from_seq


def _unknown(conversation: Conversation, item_id: str) -> ItemNotFound:
    return ItemNotFound(f"Item with id {item_id!r} not found in conversation {conversation.id!r}.")
