"""Deleting and erasing what a conversation holds: the message's words, what was kept of them, and the summaries that
were made of them. The log keeps the message's place, so that everything else stays where it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.compaction.acceptance.mechanical_summary import stand_in
from app.compaction.compaction_job import lease_key_of
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.conversations.erase.redaction import deleted_parts, redacted
from app.conversations.history.conversations import Records
from app.conversations.items.items import instruction_index, items_of
from app.errors import ConversationBusy, ItemNotFound, StoreUnavailable
from app.pipeline.chat_request import Caller
from app.pipeline.resolve.resolved_request import INSTRUCTIONS
from app.pipeline.token_counting import Counting
from app.store.contract import Append, CompletionQuery, HeadMoved, LeaseLost, ListQuery, Store
from app.store.leases import LeaseKeeper

PAGE: Final = 500
LONGEST_STAND_IN_MESSAGES: Final = 2_000
"""Summaries of more than this are left to the next turn that needs them."""


class Erasing:
    """Removes items from conversations."""

    def __init__(
        self,
        *,
        store: Store,
        records: Records,
        leases: LeaseKeeper,
        counting: Counting,
        clock: Callable[[], datetime],
        new_chunk_id: Callable[[], str],
        wait_seconds: float,
    ) -> None:
        self._store = store
        self._records = records
        self._leases = leases
        self._counting = counting
        self._clock = clock
        self._new_chunk_id = new_chunk_id
        self._wait_seconds = wait_seconds

    async def remove(self, caller: Caller, conversation: Conversation, item_id: str, *, erase: bool) -> Conversation:
        """Take an item out of a conversation; the conversation as it then is.

        Neither the item nor a summary that covered its message is shown again, to a client or to a model: a mark stands
        in the item's place, and a summary without a model in that of each summary until a model writes a better one.

        Args:
            erase: for good. Otherwise the message as it was stays in the database; it may be erased later.

        Raises:
            ItemNotFound: there is no such item; or it was deleted before, and is not to be erased now.
            ConversationBusy: the conversation was in use for too long.
        """
        index = instruction_index(conversation, item_id)
        if index is not None:
            await self._remove_instruction(conversation, index, erase=erase)
        else:
            async with self._leases.hold(conversation.root, conversation.id, self._wait_seconds):
                conversation = await self._records.of(caller, conversation.id)
                await self._remove_item(conversation, item_id, erase=erase)
        return await self._records.of(caller, conversation.id)

    async def _remove_item(self, conversation: Conversation, item_id: str, *, erase: bool) -> None:
        entry, part = await self._records.entry(conversation, item_id)
        items = items_of(entry, with_deleted=True)
        item = next((one for one in items if one["id"] == item_id), None)
        is_gone = part in deleted_parts(entry)
        if item is None or (is_gone and not erase):
            raise ItemNotFound(f"Item with id {item_id!r} not found in conversation {conversation.id!r}.")
        changed = redacted(entry, item, items, erase=erase)
        (tokens,) = await self._counting.messages([changed.message], conversation.counter)
        try:
            gone = await self._store.redact(conversation, [replace(changed, tokens=tokens)])
        except HeadMoved as moved:
            raise _busy() from moved
        await self._stand_in_for(conversation, gone)

    async def _stand_in_for(self, conversation: Conversation, gone: Sequence[Chunk]) -> None:
        """Keep the chain of summaries whole. Folds are made again when they are needed."""
        for chunk in gone:
            if chunk.folds or chunk.to_seq - chunk.from_seq > LONGEST_STAND_IN_MESSAGES:
                continue
            messages = await self._store.read(conversation, chunk.from_seq, chunk.to_seq)
            if [entry.seq for entry in messages] == list(range(chunk.from_seq, chunk.to_seq)):
                await self._keep_stand_in(conversation, chunk, messages)

    async def _keep_stand_in(self, conversation: Conversation, chunk: Chunk, messages: Sequence[LogMessage]) -> None:
        count = self._counting.counter(conversation.counter)
        made = await asyncio.to_thread(
            stand_in, chunk, messages, new_id=self._new_chunk_id(), created_at=self._clock(), count=count
        )
        if made is None:
            return
        root = conversation.root
        # Whoever is at work on that range now makes a summary of it in its own time.
        with contextlib.suppress(ConversationBusy, LeaseLost, StoreUnavailable):
            async with self._leases.hold(root, lease_key_of(chunk.from_link, is_fold=False), 0) as lease:
                await self._store.add_chunk(tenant=conversation.tenant, root=root, chunk=made, fence=lease)

    async def _remove_instruction(self, conversation: Conversation, index: int, *, erase: bool) -> None:
        """The conversation's own comes last: whoever is told that a branch is busy can ask again."""
        raw = conversation.state[INSTRUCTIONS][index]
        if erase:
            async for relative in self._relatives(conversation):
                if raw in relative.state.get(INSTRUCTIONS, ()):
                    await self._forget_instruction(relative, raw)
            await self._forget_in_completions(conversation, raw)
        await self._forget_instruction(conversation, raw)

    async def _forget_instruction(self, conversation: Conversation, raw: str) -> None:
        """Each conversation under its own lease: a turn that is appended writes back the state that it read."""
        async with self._leases.hold(conversation.root, conversation.id, self._wait_seconds):
            stored = await self._store.get(tenant=conversation.tenant, conversation_id=conversation.id)
            if stored is None:
                return
            kept = [one for one in stored.state.get(INSTRUCTIONS, ()) if one != raw]
            changed = replace(stored, state={**stored.state, INSTRUCTIONS: kept})
            try:
                await self._store.append(Append(conversation=changed, after_seq=stored.head_seq, messages=[]))
            except HeadMoved as moved:
                raise _busy() from moved

    async def _relatives(self, conversation: Conversation) -> AsyncIterator[Conversation]:
        """The other conversations of its family of branches: each copied what its parent was told once."""
        query = ListQuery(limit=PAGE)
        while page := await self._store.conversations(tenant=conversation.tenant, query=query):
            for one in page:
                if one.root == conversation.root and one.id != conversation.id:
                    yield one
            last = page[-1]
            assert last.created_at is not None
            query = ListQuery(limit=PAGE, after=(last.created_at, last.id))

    async def _forget_in_completions(self, conversation: Conversation, raw: str) -> None:
        tenant, query = conversation.tenant, CompletionQuery(limit=PAGE)
        while page := await self._store.completions(tenant=tenant, query=query):
            for one in page:
                if one.root == conversation.root and raw in one.instructions:
                    kept = tuple(told for told in one.instructions if told != raw)
                    await self._store.keep_completion(replace(one, instructions=kept))
            query = CompletionQuery(limit=PAGE, after=(page[-1].created_at, page[-1].id))


def _busy() -> ConversationBusy:
    return ConversationBusy("The conversation changed while an item was removed from it.", retry_after_seconds=1)
