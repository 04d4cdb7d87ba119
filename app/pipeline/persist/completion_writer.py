"""Stores chat completions that a client asked to store (`store: true`) and responses that it did not ask to forget: the
facts that the log does not have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeGuard

from app.conversation.conversation_types import RESPONSE_ID_PREFIX, Conversation, StoredCompletion
from app.conversation.item import Item
from app.dialects.client_dialects import CLIENT_DIALECTS
from app.errors import InvalidRequest
from app.observability.request_record import timed_step
from app.pipeline.resolve.item_references import build_item_anchors
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import ResolvedRequest
from app.store.contract.conversations import ConversationStore

NUL_CHARACTER: Final = "\0"
"""PostgreSQL refuses texts that contain this character."""
MAX_ID_CHARS: Final = 256
"""A provider's id above this length is replaced by an id of ours."""


class CompletionWriter:
    """Stores completions and responses after their answers are in the log."""

    def __init__(self, store: ConversationStore, *, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock

    @timed_step("store", span="store completion")
    async def write_completion(
        self,
        request: ChatRequest,
        resolved_request: ResolvedRequest,
        conversation: Conversation,
        completion_id: str | None,
        answer: Item,
    ) -> None:
        """Stores the completion or response whose answer is the last message of `conversation`.

        Args:
            completion_id: the provider's id of a chat completion, if it sent one; our id of a response.
            answer: the answer's message.

        Raises:
            StoreUnavailable: the completion was not stored.
        """
        is_response = request.protocol == "responses"
        # Ids that begin as those of responses are kept for responses: the two are read by different endpoints.
        is_storable = _is_storable_id(completion_id) and completion_id.startswith(RESPONSE_ID_PREFIX) == is_response
        stored_id = completion_id if is_storable and completion_id is not None else _build_completion_id(conversation)
        if is_response:
            # A reference to an item comes as early as the next request, perhaps at another replica, and cannot be
            # answered without these anchors. So they are written before the client has the whole answer.
            await self._store.add_anchors(build_item_anchors(conversation, answer, stored_id))
        await self._store.save_completion(
            StoredCompletion(
                id=stored_id,
                tenant=conversation.tenant,
                root=conversation.root,
                conversation_id=conversation.id,
                seq=conversation.head_seq,
                model=request.model,
                created_at=self._clock(),
                metadata=_read_metadata(request),
                parameters=CLIENT_DIALECTS[request.protocol].read_kept_parameters(
                    request.raw_fields, request.request_id
                ),
                instructions=tuple(message.raw.decode() for message in resolved_request.instructions),
            )
        )


def _build_completion_id(conversation: Conversation) -> str:
    """Builds a completion's id from its place in the log, if the provider's id is missing or cannot be stored."""
    return f"chatcmpl-{conversation.id.removeprefix('conv_')}-{conversation.head_seq}"


def _is_storable_id(completion_id: str | None) -> TypeGuard[str]:
    return bool(completion_id) and NUL_CHARACTER not in str(completion_id) and len(str(completion_id)) <= MAX_ID_CHARS


def _read_metadata(request: ChatRequest) -> dict[str, str]:
    """Returns the texts of the field `metadata`; none if it is missing or only the provider could read it."""
    try:
        pairs = request.decode_field("metadata")
    except InvalidRequest:
        return {}
    return {name: value for name, value in pairs.items() if isinstance(value, str)} if isinstance(pairs, dict) else {}
