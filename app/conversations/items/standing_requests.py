"""Lists the standing requests of a conversation for the API, and removes single ones. The log stays as it is."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from app.context.standing.standing_requests import StandingRequest
from app.conversation.conversation_types import Conversation
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.pins import MAX_ATTEMPTS, make_conversation_busy_error
from app.conversations.views.stored_turn import build_bare_resolved_request
from app.conversations.views.view_and_summary_objects import build_standing_request_object, make_standing_request_id
from app.errors import ItemNotFound
from app.pipeline.chat_request import Caller
from app.pipeline.resolve.resolved_request import REMOVED_STANDING_REQUESTS
from app.pipeline.view.standing_requests import StandingRequestReader, build_standing_state, select_valid_requests
from app.store.contract.conversations import ConversationStore, WriteConflict

MAX_REMOVED: Final = 1_000
"""How many removals a conversation remembers."""


class StandingRequestRecords:
    """The standing requests of a conversation as a resource: those that hold, in the order of the log."""

    def __init__(
        self, *, store: ConversationStore, records: ConversationRecords, reader: StandingRequestReader
    ) -> None:
        self._store = store
        self._records = records
        self._reader = reader

    async def list_requests(
        self, caller: Caller, conversation_id: str, limit: int, after: str | None
    ) -> tuple[list[dict[str, Any]], bool]:
        """Returns a page of standing requests in the order of the log, and whether more follow.

        Args:
            after: the id of the last standing request of the page before.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation, or no standing request `after`.
        """
        conversation = await self._records.find_conversation(caller, conversation_id)
        requests = await self._find_requests_in_force(conversation)
        if after is not None:
            last = _find_by_id(requests, after, conversation)
            requests = requests[requests.index(last) + 1 :]
        page = requests[:limit]
        seqs = sorted({one.seq for one in page})
        entries = await self._store.read_log_ranges(conversation, [(seq, seq + 1) for seq in seqs]) if seqs else []
        by_seq = {entry.seq: entry for entry in entries}
        return [build_standing_request_object(one, by_seq[one.seq]) for one in page], len(requests) > limit

    async def remove_request(self, caller: Caller, conversation_id: str, request_id: str) -> dict[str, Any]:
        """Removes a standing request for good. The message stays in the log.

        Returns:
            The id, and that it is removed.

        Raises:
            ConversationNotFound, ItemNotFound: there is no such conversation or standing request.
            ConversationBusy: others keep changing the conversation's marks.
        """
        for _ in range(MAX_ATTEMPTS):
            conversation = await self._records.find_conversation(caller, conversation_id)
            request = _find_by_id(await self._find_requests_in_force(conversation), request_id, conversation)
            removed = [*conversation.marks.get(REMOVED_STANDING_REQUESTS, ()), [request.seq, request.start]]
            marks = {**conversation.marks, REMOVED_STANDING_REQUESTS: removed[-MAX_REMOVED:]}
            try:
                await self._store.replace_marks(conversation, marks)
            except WriteConflict:
                continue
            return {"id": request_id, "object": "conversation.standing_request.deleted", "deleted": True}
        raise make_conversation_busy_error(conversation_id)

    async def _find_requests_in_force(self, conversation: Conversation) -> list[StandingRequest]:
        """Returns the requests that no later one replaces and nobody removed. Scans what no turn has scanned yet."""
        while True:
            resolved_request = build_bare_resolved_request(conversation)
            scan = await self._reader.scan_log(resolved_request)
            if scan.before_seq > conversation.head_seq:
                break
            state = {**conversation.state, **build_standing_state(conversation.state, scan)}
            conversation = replace(conversation, state=state)
        valid = select_valid_requests(scan, conversation, {*conversation.redacted_seqs})
        return [one for one in valid if one.replaced_by is None]


def _find_by_id(requests: list[StandingRequest], request_id: str, conversation: Conversation) -> StandingRequest:
    for one in requests:
        if make_standing_request_id(one) == request_id:
            return one
    raise ItemNotFound(f"Standing request with id {request_id!r} not found in conversation {conversation.id!r}.")
