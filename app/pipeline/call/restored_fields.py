"""Give our own answers back what a client left out of them, where a provider insists on it."""

from __future__ import annotations

from collections.abc import Sequence

from app.errors import StoreUnavailable
from app.pipeline.resolve.resolved_request import Recollection
from app.store.contract import Store
from app.upstream.provider import Quirks
from app.upstream.quirks.restored_fields import missing_fields, restored

_STORED_PER_SENT = 2
"""How much further back to look in the log where the client's history leaves out part of it."""


class Restoring:
    """Reads the stored answers that a view's messages came from. Nothing is read unless `restore_fields` says so."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    async def fill(
        self, quirks: Quirks, place: Recollection, shown: Sequence[bytes] | None, asked: Sequence[bytes]
    ) -> Sequence[bytes] | None:
        """The messages of a view with the fields that the provider wants back, as far as they are stored.

        Args:
            shown: JSON text of each message of the view; None for the client's own, untouched.
            asked: JSON text of each of the client's own messages.

        Returns:
            `shown` itself where nothing is missing or found: a view from the store, which has everything, and while the
            store is away, when the provider is the one to judge.
        """
        if not quirks.restore_fields or place.client_log is None or place.is_fresh:
            return shown
        messages = [bytes(raw) for raw in (asked if shown is None else shown)]
        missing = missing_fields(messages, quirks.restore_fields, quirks.restore_scope)
        if not missing:
            return shown
        stored = await self._answers(place, len(messages) - missing[0])
        filled = restored(messages, stored, quirks.restore_fields, quirks.restore_scope)
        return shown if filled == messages else filled

    async def _answers(self, place: Recollection, reach: int) -> list[bytes]:
        """The newest stored messages, as far as `reach` from the end of the log."""
        end = place.conversation.head_seq + 1
        back = reach if place.aligned else reach * _STORED_PER_SENT
        try:
            entries = await self._store.read(place.conversation, max(0, place.next_seq - back), end)
        except StoreUnavailable:
            return []
        return [entry.message.raw for entry in entries if entry.message.role == "assistant"]
