"""Restores fields of stored answers that a client leaves out of its history and the provider requires."""

from __future__ import annotations

from collections.abc import Sequence

from app.errors import StoreUnavailable
from app.pipeline.resolve.resolved_request import ResolvedRequest
from app.store.contract.conversations import ConversationStore
from app.upstream.provider_contract import ProviderQuirks
from app.upstream.quirks.field_restoration import find_messages_missing_fields, restore_missing_fields

_READ_BACK_FACTOR = 2
"""How many log messages to read for each message of a client history that leaves out some of the log."""


class FieldRestorer:
    """Reads stored answers to fill in the fields named by the quirk `restore_fields`. Without the quirk it reads
    nothing."""

    def __init__(self, *, store: ConversationStore) -> None:
        self._store = store

    async def restore_fields(
        self,
        quirks: ProviderQuirks,
        resolved_request: ResolvedRequest,
        view_messages: Sequence[bytes] | None,
        client_messages: Sequence[bytes],
    ) -> Sequence[bytes] | None:
        """Adds the fields that the provider requires to the messages of a view, as far as they are stored.

        Args:
            quirks: the quirks of the deployment that gets the messages.
            resolved_request: the request whose conversation holds the stored answers.
            view_messages: JSON text of each message of the view; None for the client's messages, unchanged.
            client_messages: JSON text of each of the client's messages.

        Returns:
            `view_messages` itself if no field is missing or none is found. If the store is away, none is found, and the
            provider decides whether the messages will do.
        """
        # A view from the store has all fields. Without a log there is nothing to restore from.
        if not quirks.restore_fields or resolved_request.client_messages is None or resolved_request.is_log_unstored:
            return view_messages
        messages = [bytes(raw) for raw in (client_messages if view_messages is None else view_messages)]
        missing = find_messages_missing_fields(messages, quirks.restore_fields, quirks.restore_scope)
        if not missing:
            return view_messages
        stored_answers = await self._read_stored_answers(resolved_request, len(messages) - missing[0])
        filled = restore_missing_fields(messages, stored_answers, quirks.restore_fields, quirks.restore_scope)
        return view_messages if filled == messages else filled

    async def _read_stored_answers(self, resolved_request: ResolvedRequest, message_count: int) -> list[bytes]:
        """Reads the stored answers among the last messages of the log.

        Args:
            message_count: how many messages of the client history to cover, counted from its end.
        """
        end = resolved_request.conversation.head_seq + 1
        read_back_count = message_count if resolved_request.is_aligned_by_index else message_count * _READ_BACK_FACTOR
        try:
            entries = await self._store.read_log(
                resolved_request.conversation, max(0, resolved_request.next_seq - read_back_count), end
            )
        except StoreUnavailable:
            return []
        return [entry.message.raw for entry in entries if entry.message.role == "assistant"]
