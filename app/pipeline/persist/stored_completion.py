"""Completions that a client asked to store (`store: true`): what the log does not say of them is kept beside it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeGuard

from app.conversation.messages import Conversation, StoredCompletion
from app.errors import InvalidRequest
from app.observability.tracing import traced
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import Recollection
from app.store.contract import Store

REPEATED_FIELDS: Final = (
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
"""Fields of a request that OpenAI's object of a stored completion repeats."""
NUL: Final = "\0"
"""PostgreSQL keeps no text with it."""
MAX_ID_CHARS: Final = 256


class Storing:
    """Keeps completions, once their answers are in the log."""

    def __init__(self, store: Store, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    @traced("store completion")
    async def keep(
        self, request: ChatRequest, place: Recollection, conversation: Conversation, completion_id: str | None
    ) -> None:
        """Keep the completion whose answer is the last message of `conversation`.

        Raises:
            StoreUnavailable: it was not kept.
        """
        await self._store.keep_completion(
            StoredCompletion(
                id=completion_id if _can_be_kept(completion_id) else _id_for(conversation),
                tenant=conversation.tenant,
                root=conversation.root,
                conversation_id=conversation.id,
                seq=conversation.head_seq,
                model=request.model.replace(NUL, ""),
                created_at=self._now(),
                metadata=_metadata(request),
                parameters=_parameters(request),
                instructions=tuple(message.raw.decode() for message in place.instructions),
            )
        )


def _can_be_kept(completion_id: str | None) -> TypeGuard[str]:
    return bool(completion_id) and NUL not in str(completion_id) and len(str(completion_id)) <= MAX_ID_CHARS


def _id_for(conversation: Conversation) -> str:
    """The id of a completion whose provider gave it none that can be kept: its place."""
    return f"chatcmpl-{conversation.id.removeprefix('conv_')}-{conversation.head_seq}"


def _metadata(request: ChatRequest) -> dict[str, str]:
    pairs = _value(request, "metadata")
    if not isinstance(pairs, dict):
        return {}
    return {name: value for name, value in pairs.items() if isinstance(value, str)}


def _parameters(request: ChatRequest) -> dict[str, Any]:
    found = {name: _value(request, name) for name in REPEATED_FIELDS}
    return {"request_id": request.request_id, **{name: value for name, value in found.items() if value is not None}}


def _value(request: ChatRequest, name: str) -> Any:
    """A field of a request that was answered; nothing of one that only the provider could read."""
    try:
        return request.value(name)
    except InvalidRequest:
        return None
