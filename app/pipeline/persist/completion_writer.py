"""Stores completions that a client asked to store (`store: true`): the facts that the log does not have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeGuard

from app.conversation.conversation_types import Conversation, StoredCompletion
from app.errors import InvalidRequest
from app.observability.tracing import trace_span
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import ResolvedRequest
from app.store.contract import Store

ECHOED_FIELDS: Final = (
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "seed",
    "response_format",
    "presence_penalty",
    "frequency_penalty",
    "service_tier",
    "user",
)
"""Fields of the request that OpenAI's stored completion object contains."""
NUL_CHARACTER: Final = "\0"
"""PostgreSQL refuses texts that contain this character."""
MAX_ID_CHARS: Final = 256
"""A provider's id above this length is replaced by an id of ours."""


class CompletionWriter:
    """Stores completions after their answers are in the log."""

    def __init__(self, store: Store, *, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock

    @trace_span("store completion")
    async def write_completion(
        self,
        request: ChatRequest,
        resolved_request: ResolvedRequest,
        conversation: Conversation,
        completion_id: str | None,
    ) -> None:
        """Stores the completion whose answer is the last message of `conversation`.

        Args:
            completion_id: the provider's id of the completion, if it sent one.

        Raises:
            StoreUnavailable: the completion was not stored.
        """
        await self._store.save_completion(
            StoredCompletion(
                id=completion_id if _is_storable_id(completion_id) else _build_completion_id(conversation),
                tenant=conversation.tenant,
                root=conversation.root,
                conversation_id=conversation.id,
                seq=conversation.head_seq,
                model=request.model.replace(NUL_CHARACTER, ""),
                created_at=self._clock(),
                metadata=_read_metadata(request),
                parameters=_read_parameters(request),
                instructions=tuple(message.raw.decode() for message in resolved_request.instructions),
            )
        )


def _is_storable_id(completion_id: str | None) -> TypeGuard[str]:
    return bool(completion_id) and NUL_CHARACTER not in str(completion_id) and len(str(completion_id)) <= MAX_ID_CHARS


def _build_completion_id(conversation: Conversation) -> str:
    """Builds a completion's id from its place in the log, if the provider's id is missing or cannot be stored."""
    return f"chatcmpl-{conversation.id.removeprefix('conv_')}-{conversation.head_seq}"


def _read_metadata(request: ChatRequest) -> dict[str, str]:
    pairs = _read_field(request, "metadata")
    if not isinstance(pairs, dict):
        return {}
    return {name: value for name, value in pairs.items() if isinstance(value, str)}


def _read_parameters(request: ChatRequest) -> dict[str, Any]:
    values = {name: _read_field(request, name) for name in ECHOED_FIELDS}
    return {"request_id": request.request_id, **{name: value for name, value in values.items() if value is not None}}


def _read_field(request: ChatRequest, name: str) -> Any:
    """Decodes a field of the request; None if the field is missing or only the provider could read it."""
    try:
        return request.decode_field(name)
    except InvalidRequest:
        return None
