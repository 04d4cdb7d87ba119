"""Imports conversations from the gateway's exports or in OpenAI's form: all conversations of a file, or none.

Imported messages count as answered here: a client that continues such a history continues the imported conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.identity import (
    compute_family_root,
    compute_links_after_messages,
    compute_start_position,
    make_conversation_id,
)
from app.conversation.item import may_precede_tool_result
from app.conversations.answer_fingerprints import build_answers_of_others
from app.conversations.transfer.import_file_parser import (
    Format,
    ImportedConversation,
    ImportedMessage,
    parse_import_file,
)
from app.dialects.body.message import check_messages
from app.errors import ConversationBusy, StoreUnavailable
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.conversation_builders import advance_head, build_empty_conversation, build_log_entries
from app.pipeline.turn.resolved_request import OPEN_TOOL_CALLS, STORED_INSTRUCTIONS, UNANSWERED_MESSAGES
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.conversations import ConversationStore, LogAppend, WriteConflict

log = logging.getLogger(__name__)

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch ends with the message by which it reaches this size."""

ImportedLog = Sequence[ImportedMessage]


class ImportResult(msgspec.Struct, frozen=True):
    """The result of an import."""

    conversations: tuple[Conversation, ...]
    """As they are stored, in the file's order."""
    warnings: tuple[str, ...]


@dataclass(eq=False, kw_only=True)
class ConversationImporter:
    """Stores the conversations of files."""

    store: ConversationStore
    message_counter: MessageCounter
    tasks: BackgroundTasks
    random_bytes: Callable[[int], bytes]
    encoding: str

    async def import_file(
        self, tenant: str, data: bytes, file_format: Format = "auto", *, on_stored: Callable[[int], None] | None = None
    ) -> ImportResult:
        """Stores all conversations of a file.

        Args:
            on_stored: called after each batch with its number of messages.

        Raises:
            InvalidRequest: the file cannot be parsed; the error names the place. Nothing was stored.
            StoreUnavailable: what had been stored was removed again, as far as the store answers.
        """
        return await self.import_conversations(
            tenant, await asyncio.to_thread(parse_and_check_import_file, data, file_format), on_stored=on_stored
        )

    async def import_conversations(
        self,
        tenant: str,
        imported_conversations: Sequence[ImportedConversation],
        *,
        on_stored: Callable[[int], None] | None = None,
    ) -> ImportResult:
        """Stores conversations that were parsed and checked, all or none."""
        created: list[Conversation] = []
        warnings: list[str] = []
        try:
            for imported in imported_conversations:
                empty = self._build_empty_conversation(tenant, imported)
                # Before the write: if the write fails after it took effect, it is still known what to remove.
                created.append(empty)
                conversation = await self._write_log(empty, imported.log, on_stored)
                warnings += await self._assign_external_id(imported, conversation)
        except BaseException:
            # Shielded: a client that disconnects cancels this task, and half an import must not stay.
            await self.tasks.run_shielded(self._delete_created(created))
            raise
        final = [await self.store.find_conversation(tenant=tenant, conversation_id=one.id) for one in created]
        return ImportResult(tuple(one for one in final if one is not None), tuple(warnings))

    async def _write_log(
        self, conversation: Conversation, log: ImportedLog, on_stored: Callable[[int], None] | None
    ) -> Conversation:
        """Stores a new conversation and appends `log` to it; returns the conversation as it is stored.

        Raises:
            ConversationBusy: a client continued the conversation while it was written.
            StoreUnavailable: a part may be stored.
        """
        creates = True
        for batch in _split_log_batches(log):
            after, entries = await self._prepare_append(conversation, batch)
            write = LogAppend(
                conversation=after,
                after_seq=conversation.head_seq,
                messages=entries,
                creates_conversation=creates,
                issued=await build_answers_of_others(self.store, after, entries),
            )
            try:
                await self.store.append(write)
            except WriteConflict as moved:
                raise ConversationBusy("A client continued a conversation while it was imported.") from moved
            conversation, creates = after, False
            if on_stored is not None:
                on_stored(len(entries))
        return conversation

    async def _prepare_append(
        self, before: Conversation, log: ImportedLog
    ) -> tuple[Conversation, Sequence[LogMessage]]:
        """Returns the conversation with the messages appended, and their log entries."""
        if not log:
            return before, []
        entries = await build_log_entries(before, [one.message for one in log], self.message_counter)
        state: dict[str, Any] = {**before.state, OPEN_TOOL_CALLS: may_precede_tool_result(entries[-1].message)}
        pending = _count_unanswered_messages(int(state.pop(UNANSWERED_MESSAGES, 0)), log)
        if pending:
            state[UNANSWERED_MESSAGES] = pending
        return replace(advance_head(before, entries), state=state), entries

    def _build_empty_conversation(self, tenant: str, imported: ImportedConversation) -> Conversation:
        """Builds a conversation without messages; its root follows from the first message of its future log."""
        instructions = [instruction.message.raw.decode() for instruction in imported.instructions]
        start = compute_start_position(tenant)
        links = (
            position.link
            for position in compute_links_after_messages((message.message for message in imported.log), start)
        )
        first_link = next((link for link in links if link != start.link), None)
        root = compute_family_root(tenant, first_link or self.random_bytes(len(start.link)))
        return replace(
            build_empty_conversation(tenant, self.encoding),
            id=make_conversation_id(root, self.random_bytes),
            root=root,
            state={STORED_INSTRUCTIONS: instructions} if instructions else {},
            metadata=imported.metadata,
            created_at=imported.created_at,
        )

    async def _assign_external_id(self, imported: ImportedConversation, conversation: Conversation) -> list[str]:
        """Assigns the exported client id to the new conversation; returns a warning if the id is taken."""
        name, tenant = imported.external_id, conversation.tenant
        if name is None:
            return []
        if await self.store.find_conversation(tenant=tenant, conversation_id=name) is not None:
            location = imported.location or "The file"
            return [f"{location}: the id {name!r} is taken; this conversation is {conversation.id!r} only."]
        await self.store.assign_external_id(tenant=tenant, external_id=name, conversation=conversation)
        return []

    async def _delete_created(self, created: Sequence[Conversation]) -> None:
        for conversation in created:
            try:
                await self.store.erase_conversation(tenant=conversation.tenant, conversation_id=conversation.id)
            except StoreUnavailable as error:
                log.warning("could not remove conversation %s of a failed import: %s", conversation.id, error.message)


def parse_and_check_import_file(data: bytes, file_format: Format) -> list[ImportedConversation]:
    """Parses a file and checks that its conversations can be stored.

    Raises:
        InvalidRequest: a conversation cannot be stored; the error names the place.
    """
    conversations = parse_import_file(data, file_format)
    for found in conversations:
        check_messages(
            (one.message for one in found.messages),
            first_index=0,
            may_begin_with_result=False,
            format_position=[one.location for one in found.messages].__getitem__,
        )
    return conversations


def _split_log_batches(log: ImportedLog) -> Iterator[ImportedLog]:
    """Splits a log into batches of a bounded size. An empty log gives one empty batch, so that its conversation is
    created."""
    begun, size = 0, 0
    for index, one in enumerate(log):
        size += len(one.message.raw)
        if index + 1 - begun >= BATCH_MESSAGES or size >= BATCH_BYTES:
            yield log[begun : index + 1]
            begun, size = index + 1, 0
    if begun < len(log) or not log:
        yield log[begun:]


def _count_unanswered_messages(pending_before: int, log: ImportedLog) -> int:
    """Returns how many messages at the end of the log have no answer yet.

    Args:
        pending_before: how many there were before `log` was appended.
    """
    since = next((n for n, one in enumerate(reversed(log)) if one.message.role == "assistant"), None)
    return pending_before + len(log) if since is None else since
