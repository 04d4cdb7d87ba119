"""Gives a stored answer again, to a retry of the request that it answers.

Two requests are the same by their bodies, and by the options that are not in the body.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Hashable
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from app.conversation.conversation_types import Conversation, LogMessage
from app.dialects.answer_decoding import PROTOCOL_FACTS
from app.dialects.answer_format import StoredAnswer
from app.pipeline.turn.answer_types import Answer, StreamedAnswer, WholeAnswer
from app.pipeline.turn.chat_request import RETRY_MAX_AGE_SECONDS, ChatRequest, select_context_fields
from app.pipeline.turn.resolved_request import REDACTED, REQUEST_DIGEST
from app.store.contract.conversations import ConversationStore

TAIL_BYTES: Final = 4096
"""How many bytes of a body's end are part of the coalescing key. The newest words stand there, so the end tells nearly
all requests apart before whole bodies are compared."""
MIN_THREAD_BYTES: Final = 1_000_000
"""Longer bodies are hashed in a thread."""
DISTINGUISHING_HEADERS: Final = ("openai-organization", "openai-project", "openai-beta")


def list_distinguishing_options(request: ChatRequest) -> tuple[Any, ...]:
    """Returns the options in which two requests with the same body can differ."""
    return (
        request.continuation.conversation_id,
        request.continuation.is_chat_ui,
        request.context.mode,
        request.context.policy,
        request.delivery.event_style,
        *map(request.forwarded.headers.get, DISTINGUISHING_HEADERS),
    )


def make_coalescing_key(request: ChatRequest) -> Hashable:
    """Returns the key under which a request is looked up: the client's idempotency key, or values that tell nearly all
    bodies apart."""
    tenant = request.caller.tenant
    # Without the body: a reused key with another body must be found, so that it can be refused.
    if request.retry.idempotency_key is not None:
        return tenant, request.retry.idempotency_key
    body = request.body
    return tenant, request.caller.api_key_id, list_distinguishing_options(request), len(body), body[-TAIL_BYTES:]


def are_same_request(one: ChatRequest, other: ChatRequest) -> bool:
    """Returns whether two requests with the same coalescing key are the same request."""
    return one.body == other.body and list_distinguishing_options(one) == list_distinguishing_options(other)


async def compute_retry_digest(request: ChatRequest) -> str:
    """Returns 32 hex digits that name a request of one tenant, its idempotency key included. They are stored with its
    answer."""
    options = (*list_distinguishing_options(request), request.retry.idempotency_key)
    return (await _hash_options_and_body(msgspec.json.encode(options), request.body)).hex()[:32]


async def compute_idempotency_digest(request: ChatRequest) -> bytes:
    """Returns 32 bytes that name the body and options of a request. They are stored with an idempotency key."""
    return await _hash_options_and_body(msgspec.json.encode(list_distinguishing_options(request)), request.body)


async def _hash_options_and_body(head: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(head)
    if len(body) > MIN_THREAD_BYTES:
        await asyncio.to_thread(digest.update, body)
    else:
        digest.update(body)
    return digest.digest()


REPLAY_HEADERS: Final = {"idempotent-replayed": "true"}
"""Headers of an answer that was made for an earlier request."""


class StoredAnswers:
    """Finds the stored answer to a request.

    Args:
        now: returns the time of day.
    """

    def __init__(self, store: ConversationStore, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    async def find_retry_answer(self, conversation: Conversation, request: ChatRequest) -> LogMessage | None:
        """Returns the last message of a conversation, if it is the complete answer to this request; else None. Only a
        retry gets a stored answer: a request with a retry count above 0 or with an idempotency key
        (docs/decisions/0036)."""
        # Only the head counts: if the conversation has gone on, its client has received the answer, and the same words
        # are a new request.
        if not (request.retry.is_retry or request.retry.idempotency_key is not None):
            return None
        entry = await self._read_answer(conversation, conversation.head_seq)
        is_answer = entry is not None and await self.is_answer_to(entry, request)
        return entry if is_answer else None

    async def _read_answer(self, conversation: Conversation, seq: int) -> LogMessage | None:
        """Returns a complete answer of a log; None if there is none at this place, or if it was erased."""
        if not 0 <= seq <= conversation.head_seq or seq in conversation.marks.get(REDACTED, ()):
            return None
        (entry,) = await self._store.read_log(conversation, seq, seq + 1)
        return None if entry.incomplete or entry.meta is None else entry

    async def is_answer_to(self, entry: LogMessage, request: ChatRequest) -> bool:
        """Returns whether an answer, or the beginning of one, was made for this request or for a first attempt at it
        in the last ten minutes."""
        meta = entry.meta or {}
        if entry.created_at is None or REQUEST_DIGEST not in meta:
            return False
        oldest_allowed = request.retry.first_attempt_at or self._now() - timedelta(seconds=RETRY_MAX_AGE_SECONDS)
        # An answer older than the request's first attempt was made for another request with the same words.
        if entry.created_at < oldest_allowed:
            return False
        return bool(meta[REQUEST_DIGEST] == await compute_retry_digest(request))

    async def replay_answer(self, request: ChatRequest, conversation_id: str, seq: int | None = None) -> Answer | None:
        """Returns the stored answer to a request, as a whole answer or as a stream.

        Args:
            seq: the answer's place; None: the end of the conversation, if it answers this request.
        """
        conversation = await self._store.find_conversation(tenant=request.log_tenant, conversation_id=conversation_id)
        if conversation is None:
            return None
        if seq is None:
            entry = await self.find_retry_answer(conversation, request)
        else:
            entry = await self._read_answer(conversation, seq)
        return None if entry is None else render_stored_answer(entry, conversation.id, request)


def render_stored_answer(entry: LogMessage, conversation_id: str, request: ChatRequest) -> Answer:
    """Renders a stored answer in the form that the request asks for: as a whole answer or as a stream."""
    meta = entry.meta or {}
    status = meta.get("context_status", "full")
    gateway_fields = {"context_status": status, "conversation_id": conversation_id, **meta.get(PROTOCOL_FACTS, {})}
    headers = {
        "x-conversation-id": conversation_id,
        "x-context-status": str(status),
        "x-request-id": request.request_id,
        **REPLAY_HEADERS,
    }
    context = meta.get("context", {})
    if "prompt_tokens" in context:
        headers["x-context-tokens"] = f"{context['prompt_tokens']}/{context['limit']}"
    context = select_context_fields(context, request.delivery.context_detail)
    stored = StoredAnswer(entry, request.model, gateway_fields, context, request.delivery.wants_usage)
    if request.delivery.stream:
        return StreamedAnswer(
            headers, _stream_frames(list(request.delivery.answer_format.render_stored_stream(stored)))
        )
    return WholeAnswer(request.delivery.answer_format.render_stored_answer(stored), headers)


async def _stream_frames(frames: list[bytes]) -> AsyncGenerator[bytes, None]:
    for frame in frames:
        yield frame
