"""Whole logs written at once: a conversation with its first messages, then the others, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from app.conversation.message_checks import leaves_calls_open
from app.conversation.messages import Conversation, LogMessage
from app.conversations.transfer.formats.imported_history import ImportedMessage
from app.errors import ConversationBusy
from app.pipeline.persist.log_entries import ending_with, entries_behind
from app.pipeline.resolve.resolved_request import CALLS_OPEN, PENDING
from app.pipeline.token_counting import Counting
from app.store.contract import Append, HeadMoved, Store

BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch ends with the message that makes it weigh as much."""

Log = Sequence[ImportedMessage]


class LogWriter:
    """Begins conversations that have a log already.

    Args:
        on_kept: told of how many messages more are stored.
        on_begun: told of each conversation before it is.
    """

    def __init__(
        self,
        store: Store,
        counting: Counting,
        *,
        on_kept: Callable[[int], None] | None,
        on_begun: Callable[[Conversation], None],
    ) -> None:
        self._store = store
        self._counting = counting
        self._on_kept = on_kept
        self._on_begun = on_begun

    async def write(self, conversation: Conversation, log: Log) -> Conversation:
        """Store a new conversation, `log` following on what it shares with others; the conversation as it then stands.

        Raises:
            ConversationBusy: somebody went on with it while it was written.
            StoreUnavailable: it may have been begun.
        """
        self._on_begun(conversation)
        creates = True
        for batch in _batches(log):
            after, entries = await self._grown(conversation, batch)
            write = Append(conversation=after, after_seq=conversation.head_seq, messages=entries, creates=creates)
            try:
                await self._store.append(write)
            except HeadMoved as moved:
                raise ConversationBusy("Somebody went on with a conversation while it was imported.") from moved
            conversation, creates = after, False
            if self._on_kept is not None:
                self._on_kept(len(entries))
        return conversation

    async def _grown(self, before: Conversation, log: Log) -> tuple[Conversation, list[LogMessage]]:
        """A conversation with messages at its end, and these messages in their places."""
        if not log:
            return before, []
        entries = await entries_behind(before, [one.message for one in log], self._counting)
        entries = [replace(entry, created_at=one.created_at) for entry, one in zip(entries, log, strict=True)]
        state: dict[str, Any] = {**before.state, CALLS_OPEN: leaves_calls_open(entries[-1].message)}
        pending = _pending(int(state.pop(PENDING, 0)), log)
        if pending:
            state[PENDING] = pending
        return replace(ending_with(before, entries), state=state), entries


def _batches(log: Log) -> Iterator[Log]:
    """A log in pieces of a bounded size; one empty piece of an empty log."""
    begun, size = 0, 0
    for index, one in enumerate(log):
        size += len(one.message.raw)
        if index + 1 - begun >= BATCH_MESSAGES or size >= BATCH_BYTES:
            yield log[begun : index + 1]
            begun, size = index + 1, 0
    if begun < len(log) or not log:
        yield log[begun:]


def _pending(before: int, log: Log) -> int:
    """How many messages at the end have no answer yet, of which `before` stood there already."""
    since = next((n for n, one in enumerate(reversed(log)) if one.message.role == "assistant"), None)
    return before + len(log) if since is None else since
