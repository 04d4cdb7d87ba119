"""Deletes or erases items of a conversation: the message's text, its copies, and the summaries that were made of it.
The message keeps its place in the log, so that no other message changes its `seq`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.compaction.acceptance.mechanical_summary import build_mechanical_replacement
from app.compaction.compaction_job import build_lease_key
from app.conversation.conversation_types import RESPONSE_ID_PREFIX, Conversation, LogMessage, Summary
from app.conversations.erase.redaction import read_deleted_parts, redact_item
from app.conversations.history.conversation_records import ConversationRecords, stream_conversation_pages
from app.conversations.items.item_building import build_items, find_instruction_index
from app.errors import ConversationBusy, ItemNotFound, StoreUnavailable
from app.pipeline.persist.kept_instructions import drop_instructions
from app.pipeline.turn.chat_request import Caller
from app.pipeline.turn.resolved_request import STORED_INSTRUCTIONS
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.view.client_words_reader import read_owner_words
from app.store.contract.conversations import CompletionQuery, ConversationQuery, LogAppend, WriteConflict
from app.store.contract.leases import LeaseLost
from app.store.contract.summaries import ConversationAndSummaryStore
from app.store.leases import LeaseKeeper
from app.store.lineage import first_own_seq

PAGE_SIZE: Final = 500
MAX_MECHANICAL_SUMMARY_MESSAGES: Final = 2_000
"""The most messages for which a mechanical summary is made here; longer ranges are summarized by the next turn that
needs it."""


@dataclass(eq=False, kw_only=True)
class ItemRemover:
    """Removes items from conversations."""

    store: ConversationAndSummaryStore
    records: ConversationRecords
    leases: LeaseKeeper
    message_counter: MessageCounter
    clock: Callable[[], datetime]
    new_chunk_id: Callable[[], str]
    wait_seconds: float

    async def remove_item(
        self, caller: Caller, conversation: Conversation, item_id: str, *, erase: bool
    ) -> Conversation:
        """Removes an item from a conversation; returns the changed conversation.

        Neither the item nor a summary that covered its message is shown to a client or a model again: a mark replaces
        the item, and a mechanical summary replaces each summary until a model writes a better one.

        Args:
            erase: remove the text from the database, too. Otherwise the original message is kept; it can be erased
                later.

        Raises:
            ItemNotFound: there is no such item; or it is deleted already and `erase` is false.
            ConversationBusy: the conversation was in use for too long.
        """
        index = find_instruction_index(conversation, item_id)
        if index is not None:
            await self._remove_instruction(conversation, index, erase=erase)
        else:
            async with self.leases.hold_lease(conversation.root, conversation.id, self.wait_seconds):
                # Read again under the lease: a turn may have been appended while the lease was waited for.
                conversation = await self.records.find_conversation(caller, conversation.id)
                await self._remove_message_item(conversation, item_id, erase=erase)
        return await self.records.find_conversation(caller, conversation.id)

    async def _remove_message_item(self, conversation: Conversation, item_id: str, *, erase: bool) -> None:
        entry, part = await self.records.find_message(conversation, item_id)
        items = build_items(entry, with_deleted=True)
        item = next((one for one in items if one["id"] == item_id), None)
        is_gone = part in read_deleted_parts(entry)
        if item is None or (is_gone and not erase):
            raise ItemNotFound(f"Item with id {item_id!r} not found in conversation {conversation.id!r}.")
        changed = redact_item(entry, item, items, erase=erase)
        (tokens,) = await self.message_counter.count_message_tokens([changed.message], conversation.token_counter_name)
        await self.store.add_tombstone(root=conversation.root, family_id=conversation.family_id)
        try:
            gone = await self.store.redact_messages(conversation, [replace(changed, tokens=tokens)])
        except WriteConflict as moved:
            raise _conversation_busy_error() from moved
        await self._add_mechanical_replacements(conversation, gone)

    async def _add_mechanical_replacements(
        self, conversation: Conversation, deleted_summaries: Sequence[Summary]
    ) -> None:
        """Replaces deleted summaries by mechanical ones, so that the chain of summaries has no gap. Folds are not
        replaced: they are made again when they are needed."""
        stored = await self.store.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
        if stored is None or not deleted_summaries:
            return
        words = await read_owner_words(self.store, stored)
        for summary in deleted_summaries:
            if summary.folds or summary.to_seq - summary.from_seq > MAX_MECHANICAL_SUMMARY_MESSAGES:
                continue
            messages = await self.store.read_log(conversation, summary.from_seq, summary.to_seq)
            if [entry.seq for entry in messages] == list(range(summary.from_seq, summary.to_seq)):
                digest = words.compute_digest(summary.from_seq, summary.to_seq)
                await self._store_mechanical_summary(conversation, replace(summary, versions_digest=digest), messages)

    async def _store_mechanical_summary(
        self, conversation: Conversation, summary: Summary, messages: Sequence[LogMessage]
    ) -> None:
        count = self.message_counter.find_token_counter(conversation.token_counter_name)
        replacement = await asyncio.to_thread(
            build_mechanical_replacement,
            summary,
            messages,
            new_id=self.new_chunk_id(),
            created_at=self.clock(),
            counter=count,
        )
        if replacement is None:
            return
        root = conversation.root
        # If another task holds this lease, it makes a summary of the range itself. Without the replacement the next
        # turn that needs it makes one, so none of these errors matters.
        with contextlib.suppress(ConversationBusy, LeaseLost, StoreUnavailable):
            async with self.leases.hold_lease(root, build_lease_key(summary.from_link, is_fold=False), 0) as lease:
                await self.store.add_summary(tenant=conversation.tenant, root=root, summary=replacement, fence=lease)

    async def _remove_instruction(self, conversation: Conversation, index: int, *, erase: bool) -> None:
        """Removes an instruction from a conversation; with `erase`, also from its family and from stored completions.
        The conversation itself comes last: if a branch is busy, the client still finds the item and can send the
        request again."""
        raw = conversation.state[STORED_INSTRUCTIONS][index]
        family_ids = {conversation.id}
        if erase:
            await self._remove_instruction_from_answers(conversation, raw)
            async for relative in self._stream_relatives(conversation):
                family_ids.add(relative.id)
                await self._remove_instruction_from_answers(relative, raw)
                if raw in relative.state.get(STORED_INSTRUCTIONS, ()):
                    await self._remove_instruction_from_state(relative, raw)
        # A response hands its instructions on to the next one, so a deleted instruction must not stay there, either.
        await self._remove_instruction_from_completions(conversation, raw, family_ids, erase=erase)
        await self._remove_instruction_from_state(conversation, raw)

    async def _remove_instruction_from_state(self, conversation: Conversation, raw: str) -> None:
        """Removes an instruction from one conversation, under its lease: a turn that is appended at the same time would
        write the old state back."""
        async with self.leases.hold_lease(conversation.root, conversation.id, self.wait_seconds):
            stored = await self.store.find_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
            if stored is None:
                return
            instructions = [one for one in stored.state.get(STORED_INSTRUCTIONS, ()) if one != raw]
            changed = replace(stored, state={**stored.state, STORED_INSTRUCTIONS: instructions})
            try:
                await self.store.append(LogAppend(conversation=changed, after_seq=stored.head_seq, messages=[]))
            except WriteConflict as moved:
                raise _conversation_busy_error() from moved

    async def _remove_instruction_from_answers(self, conversation: Conversation, raw: str) -> None:
        """Removes an instruction from what is kept with a conversation's own answers."""
        for from_seq in range(first_own_seq(conversation), conversation.head_seq + 1, PAGE_SIZE):
            before_seq = min(from_seq + PAGE_SIZE, conversation.head_seq + 1)
            entries = await self.store.read_log(conversation, from_seq, before_seq)
            changed = [dropped for entry in entries if (dropped := drop_instructions(entry, {raw})) is not entry]
            if changed:
                await self.store.rewrite_sealed_fields(conversation, entries=changed)

    async def _stream_relatives(self, conversation: Conversation) -> AsyncIterator[Conversation]:
        """Yields the other conversations of the family. Each branch has a copy of its parent's instructions."""
        query = ConversationQuery(limit=PAGE_SIZE, ancestor_id=conversation.family_id)
        async for page in stream_conversation_pages(self.store, conversation.tenant, query):
            for relative in page:
                if relative.family_id == conversation.family_id and relative.id != conversation.id:
                    yield relative

    async def _remove_instruction_from_completions(
        self, conversation: Conversation, raw: str, family_ids: Collection[str], *, erase: bool
    ) -> None:
        """Removes an instruction from the stored responses of a conversation; with `erase`, from all responses and
        completions of its family."""
        tenant, query = conversation.tenant, CompletionQuery(limit=PAGE_SIZE)
        while page := await self.store.list_completions(tenant=tenant, query=query):
            for completion in page:
                is_meant = completion.conversation_id in family_ids and (
                    erase or completion.id.startswith(RESPONSE_ID_PREFIX)
                )
                if is_meant and raw in completion.instructions:
                    instructions = tuple(one for one in completion.instructions if one != raw)
                    await self.store.save_completion(replace(completion, instructions=instructions))
            query = CompletionQuery(limit=PAGE_SIZE, after=(page[-1].created_at, page[-1].id))


def _conversation_busy_error() -> ConversationBusy:
    return ConversationBusy("The conversation changed while an item was removed from it.", retry_after_seconds=1)
