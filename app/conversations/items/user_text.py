"""Lists what the newest view keeps of the user's own text, for the API, and drops messages from it. The log stays as it
is."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from app.context.plan.outline import LastView
from app.context.user_text.user_text import UserLine, find_user_text
from app.context.view.client_words import NO_WORDS
from app.conversation.conversation_types import Conversation
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.pins import MAX_ATTEMPTS, make_conversation_busy_error
from app.conversations.views.view_and_summary_objects import build_user_text_object
from app.pipeline.turn.chat_request import Caller
from app.pipeline.turn.last_view_and_calibration import LAST_VIEWS
from app.pipeline.turn.resolved_request import DROPPED_USER_TEXT
from app.pipeline.view.user_text import find_gone_seqs
from app.store.contract.conversations import ConversationStore, WriteConflict

MAX_DROPPED: Final = 1_000
"""How many dropped messages a conversation remembers."""


class UserTextRecords:
    """The kept user text of a conversation as a resource: one object for each message, in the order of the log."""

    def __init__(self, *, store: ConversationStore, records: ConversationRecords) -> None:
        self._store = store
        self._records = records

    async def list_user_text(
        self, caller: Caller, conversation_id: str, limit: int, after: str | None
    ) -> tuple[list[dict[str, Any]], bool]:
        """Returns a page of kept messages, and whether more follow.

        Args:
            after: the id of the last item of the page before.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation, or no item `after`.
        """
        conversation = await self._records.find_conversation(caller, conversation_id)
        last = -1 if after is None else (await self._records.find_message(conversation, after))[0].seq
        lines: dict[int, list[UserLine]] = {}
        for one in list_kept_lines(conversation):
            if one.seq > last:
                lines.setdefault(one.seq, []).append(one)
        page = list(lines)[:limit]
        entries = await self._store.read_log_ranges(conversation, [(seq, seq + 1) for seq in page]) if page else []
        return [build_user_text_object(entry, lines[entry.seq]) for entry in entries], len(lines) > limit

    async def drop_message(self, caller: Caller, conversation_id: str, item_id: str) -> dict[str, Any]:
        """Drops a message from user text for good. The message stays in the log.

        Returns:
            The id, and that it is dropped.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation or item.
            ConversationBusy: others keep changing the conversation's marks.
        """
        for _ in range(MAX_ATTEMPTS):
            conversation = await self._records.find_conversation(caller, conversation_id)
            seq = (await self._records.find_message(conversation, item_id))[0].seq
            dropped = [*conversation.marks.get(DROPPED_USER_TEXT, ()), [seq, 0]]
            marks = {**conversation.marks, DROPPED_USER_TEXT: dropped[-MAX_DROPPED:]}
            try:
                await self._store.replace_marks(conversation, marks)
            except WriteConflict:
                continue
            return {"id": item_id, "object": "conversation.user_text.deleted", "deleted": True}
        raise make_conversation_busy_error(conversation_id)


def list_kept_lines(conversation: Conversation) -> tuple[UserLine, ...]:
    """Returns the user text that the newest view of a conversation kept."""
    views = list(conversation.state.get(LAST_VIEWS, {}).values())
    if not views:
        return ()
    view = msgspec.convert(views[-1], LastView)
    lines = find_user_text((view.user_text,), view.boundary.to_seq).select_before(view.boundary.to_seq)
    gone_seqs = find_gone_seqs(conversation, NO_WORDS, (one.seq for one in lines))
    return tuple(one for one in lines if one.seq not in gone_seqs)
