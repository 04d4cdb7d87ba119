"""Exports conversations in exactly the JSON text that is stored, or as chat messages, batch by batch.

The memory used does not depend on the conversation's length, and no database connection is held between two batches: a
client may read slowly.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import orjson

from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.item import may_precede_tool_result
from app.conversations.erase.redaction import DELETED_MARK, ERASED_MARK
from app.conversations.items.item_building import DELETED
from app.dialects.message_rendering import ChatRenderer
from app.errors import ConversationNotFound
from app.pipeline.turn.resolved_request import STORED_INSTRUCTIONS
from app.store.contract.conversations import ConversationStore

FIRST_BATCH_MESSAGES, MAX_BATCH_MESSAGES = 32, 256
"""How many messages are read at once, at first and at most."""
BATCH_BYTES: Final = 1024 * 1024
"""The largest batch that is aimed at; the number of messages follows from the sizes in the batch before."""
_LINE_BREAKS_TO_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")


class ConversationExporter:
    """Exports logs.

    Args:
        on_read: called after each batch with its number of messages.
    """

    def __init__(self, store: ConversationStore, *, on_read: Callable[[int], None] | None = None) -> None:
        self._store = store
        self._on_read = on_read

    async def stream_message_lines(self, conversation: Conversation, *, with_hidden: bool) -> AsyncIterator[bytes]:
        """Yields a conversation as lines, one message in each, several lines at a time.

        Args:
            with_hidden: with deleted messages that were not erased.

        Raises:
            ConversationNotFound: the conversation was deleted meanwhile.
        """
        async for texts in self._stream_batches(conversation, with_hidden=with_hidden):
            yield b"".join([text + b"\n" for text in texts])

    async def stream_json_object(
        self,
        conversation: Conversation,
        *,
        with_hidden: bool,
        fields: Mapping[str, Any] | None = None,
        as_chat: bool = False,
    ) -> AsyncIterator[bytes]:
        """Yields a conversation as one line `{"messages": […]}`, in pieces.

        Args:
            with_hidden: with deleted messages that were not erased.
            fields: further fields of the object, before `messages`.
            as_chat: whether messages of the Responses API are rendered as chat messages.

        Raises:
            ConversationNotFound: the conversation was deleted meanwhile.
        """
        opening = orjson.dumps(dict(fields or {}))[:-1] + (b"," if fields else b"") + b'"messages":['
        batches = self._stream_batches(conversation, with_hidden=with_hidden)
        async for texts in _render_batches_for_chat(batches) if as_chat else batches:
            if texts:
                yield opening + b",".join(texts)
                opening = b","
        yield b"]}\n" if opening == b"," else opening + b"]}\n"

    async def _stream_batches(self, conversation: Conversation, *, with_hidden: bool) -> AsyncIterator[list[bytes]]:
        """Yields batches of the messages' JSON texts, instructions first. Line breaks between JSON tokens become
        spaces, so that a message stays on one line."""
        instructions: list[str] = conversation.state.get(STORED_INSTRUCTIONS, [])
        if instructions:
            yield [text.encode().translate(_LINE_BREAKS_TO_SPACES) for text in instructions]
        seq, count = 0, FIRST_BATCH_MESSAGES
        while seq <= conversation.head_seq:
            until = min(seq + count, conversation.head_seq + 1)
            entries = await self._store.read_log(conversation, seq, until)
            if len(entries) != until - seq:
                raise ConversationNotFound(f"Conversation {conversation.id!r} was deleted while it was read.")
            texts = [_render_message(entry, with_hidden=with_hidden) for entry in entries]
            yield [text.translate(_LINE_BREAKS_TO_SPACES) for text in texts if text is not None]
            if self._on_read is not None:
                self._on_read(len(entries))
            size = sum(len(entry.message.raw) for entry in entries)
            count = max(1, min(MAX_BATCH_MESSAGES, len(entries) * BATCH_BYTES // max(1, size)))
            seq = until


async def _render_batches_for_chat(batches: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    renderer = ChatRenderer()
    async for texts in batches:
        for text in texts:
            renderer.add_message(text)
        yield renderer.take_messages()
    renderer.flush_attachments()
    yield renderer.take_messages()


def build_export_fields(conversation: Conversation) -> dict[str, Any]:
    """Returns the fields that the export of a whole conversation has beside `messages`."""
    return {
        "id": conversation.id,
        "created_at": int(conversation.created_at.timestamp()) if conversation.created_at else 0,
        "metadata": dict(conversation.metadata),
        "external_id": conversation.external_id,
    }


def _render_message(entry: LogMessage, *, with_hidden: bool) -> bytes | None:
    """Returns a message's JSON text; None for a deleted message. A deleted tool call or result stays, with a mark,
    because calls and results must stay together."""
    deleted = (entry.meta or {}).get(DELETED)
    if not deleted:
        return entry.message.raw
    body = deleted.get("body")
    if with_hidden and body:
        return str(body).encode()
    is_mark = entry.message.text in (DELETED_MARK, ERASED_MARK)
    return None if is_mark and not may_precede_tool_result(entry.message) else entry.message.raw
