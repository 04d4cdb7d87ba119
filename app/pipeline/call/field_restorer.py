"""Give our own answers back what a client left out of them, where a provider insists on it."""

from __future__ import annotations

from collections.abc import Sequence

from app.errors import StoreUnavailable
from app.pipeline.resolve.resolved_request import ResolvedRequest
from app.store.contract import Store
from app.upstream.provider import ProviderQuirks
from app.upstream.quirks.field_restoration import find_messages_missing_fields, restore_missing_fields

_READ_BACK_FACTOR = 2
"""How much further back to look in the log where the client's history leaves out part of it."""


class FieldRestorer:
    """Reads the stored answers that a view's messages came from. Nothing is read unless `restore_fields` says so."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    async def restore_fields(
        self,
        quirks: ProviderQuirks,
        resolved_request: ResolvedRequest,
        view_messages: Sequence[bytes] | None,
        client_messages: Sequence[bytes],
    ) -> Sequence[bytes] | None:
        """The messages of a view with the fields that the provider wants back, as far as they are stored.

        Args:
            view_messages: JSON text of each message of the view; None for the client's own, untouched.
            client_messages: JSON text of each of the client's own messages.

        Returns:
            `view_messages` itself where nothing is missing or found: a view from the store, which has everything, and
            while the
            store is away, when the provider is the one to judge.
        """
        if not quirks.restore_fields or resolved_request.client_messages is None or resolved_request.is_log_empty:
            return view_messages
        messages = [bytes(raw) for raw in (client_messages if view_messages is None else view_messages)]
        missing = find_messages_missing_fields(messages, quirks.restore_fields, quirks.restore_scope)
        if not missing:
            return view_messages
        stored_answers = await self._read_stored_answers(resolved_request, len(messages) - missing[0])
        filled = restore_missing_fields(messages, stored_answers, quirks.restore_fields, quirks.restore_scope)
        return view_messages if filled == messages else filled

    async def _read_stored_answers(self, resolved_request: ResolvedRequest, message_count: int) -> list[bytes]:
        """The newest stored messages, as far as `message_count` from the end of the log."""
        end = resolved_request.conversation.head_seq + 1
        read_back_count = message_count if resolved_request.is_aligned else message_count * _READ_BACK_FACTOR
        try:
            entries = await self._store.read_log(
                resolved_request.conversation, max(0, resolved_request.next_seq - read_back_count), end
            )
        except StoreUnavailable:
            return []
        return [entry.message.raw for entry in entries if entry.message.role == "assistant"]
