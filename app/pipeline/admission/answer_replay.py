"""Gives a stored answer again, to a retry of the request that it answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from app.conversation.conversation_types import Conversation, LogMessage
from app.dialects.chat.message import decode_body
from app.errors import StoreUnavailable, drop_tracebacks
from app.pipeline.admission.request_digest import compute_retry_digest
from app.pipeline.chat_request import RETRY_MAX_AGE_SECONDS, ChatRequest
from app.pipeline.resolve.client_history_matching import ClientHistory, build_client_history
from app.pipeline.resolve.resolved_request import REDACTED
from app.pipeline.respond.answer_types import Answer, StreamedAnswer, WholeAnswer
from app.pipeline.respond.stream_frames import DONE_FRAME
from app.store.contract import Store

REPLAY_HEADERS: Final = {"idempotent-replayed": "true"}
"""Headers of an answer that was made for an earlier request."""
REQUEST_DIGEST: Final = "request"
"""`LogMessage.meta` of an answer: the digest of the request that it answers."""


class StoredAnswers:
    """Finds the stored answer to a request.

    Args:
        now: returns the time of day.
    """

    def __init__(self, store: Store, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    async def find_retry_answer(
        self, conversation: Conversation, request: ChatRequest, client_history: ClientHistory
    ) -> LogMessage | None:
        """Returns the last message of a conversation, if it is the complete answer to this request; else None. Only a
        retry gets a stored answer: a request with a retry count above 0 or with an idempotency key
        (docs/decisions/0036)."""
        # Only the head counts: if the conversation has gone on, its client has received the answer, and the same words
        # are a new request.
        seq = conversation.head_seq
        is_retry = request.is_retry or request.idempotency_key is not None
        if not is_retry or seq < 0 or seq in conversation.marks.get(REDACTED, ()):
            return None
        (entry,) = await self._store.read_log(conversation, seq, seq + 1)
        meta = entry.meta or {}
        if entry.incomplete or entry.created_at is None or REQUEST_DIGEST not in meta:
            return None
        oldest_allowed = request.first_attempt_at or self._now() - timedelta(seconds=RETRY_MAX_AGE_SECONDS)
        # An answer older than the request's first attempt was made for another request with the same words.
        if entry.created_at < oldest_allowed:
            return None
        return entry if meta[REQUEST_DIGEST] == await compute_retry_digest(request, client_history) else None

    async def replay_answer(self, request: ChatRequest, conversation_id: str) -> Answer | None:
        """Returns the answer that a conversation ends with, if it answers this request, as a whole answer or as a
        stream."""
        try:
            conversation = await self._store.find_conversation(
                tenant=request.caller.tenant, conversation_id=conversation_id
            )
            if conversation is None:
                return None
            client_history = build_client_history(request)
            stored_answer = await self.find_retry_answer(conversation, request, client_history)
        except StoreUnavailable as error:
            # Without the store, the retry is answered anew instead of refused.
            drop_tracebacks(error)
            return None
        return None if stored_answer is None else render_stored_answer(stored_answer, conversation.id, request)


def render_stored_answer(entry: LogMessage, conversation_id: str, request: ChatRequest) -> Answer:
    """Renders a stored answer in the form that the request asks for: as a whole answer or as a stream."""
    meta = entry.meta or {}
    status = meta.get("context_status", "full")
    gateway_fields = {"context_status": status, "conversation_id": conversation_id}
    headers = {
        "x-conversation-id": conversation_id,
        "x-context-status": str(status),
        "x-request-id": request.request_id,
        **REPLAY_HEADERS,
    }
    context = meta.get("context", {})
    if "prompt_tokens" in context:
        headers["x-context-tokens"] = f"{context['prompt_tokens']}/{context['limit']}"
    if request.stream:
        return StreamedAnswer(headers, _stream_frames(list(_build_stream_chunks(entry, meta, gateway_fields, request))))
    body = {**build_stored_completion(entry, request.model), **gateway_fields, "context": context}
    return WholeAnswer(orjson.dumps(body), headers)


def build_stored_completion(entry: LogMessage, model: str) -> dict[str, Any]:
    """Builds OpenAI's completion object of a stored answer.

    Args:
        model: the name that the request has, used if the provider reported none.
    """
    meta = entry.meta or {}
    messages = [decode_body(entry.message), *meta.get("alternatives", ())]
    return {
        **_build_common_fields(entry, meta, model, "chat.completion"),
        "choices": [
            {"index": index, "message": message, "logprobs": None, "finish_reason": meta.get("finish_reason")}
            for index, message in enumerate(messages)
        ],
        "usage": meta.get("usage"),
    }


def _build_stream_chunks(
    entry: LogMessage, meta: Mapping[str, Any], gateway_fields: Mapping[str, Any], request: ChatRequest
) -> Iterator[dict[str, Any]]:
    common_fields = _build_common_fields(entry, meta, request.model, "chat.completion.chunk")
    messages = [decode_body(entry.message), *meta.get("alternatives", ())]
    for index, message in enumerate(messages):
        yield {**common_fields, "choices": [_build_chunk_choice(index, _build_delta(message), None)], **gateway_fields}
    for index in range(len(messages)):
        last_chunk_fields = {**gateway_fields, "context": meta.get("context", {})}
        yield {
            **common_fields,
            "choices": [_build_chunk_choice(index, {}, meta.get("finish_reason"))],
            **last_chunk_fields,
        }
    if request.include_usage:
        yield {**common_fields, "choices": [], "usage": meta.get("usage"), **gateway_fields}


def _build_delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    return {**message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)]}


def _build_chunk_choice(index: int, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _build_common_fields(entry: LogMessage, meta: Mapping[str, Any], model: str, object_type: str) -> dict[str, Any]:
    created = int(entry.created_at.timestamp()) if entry.created_at else 0
    return {"id": meta.get("id"), "object": object_type, "created": created, "model": meta.get("model") or model}


async def _stream_frames(chunks: list[dict[str, Any]]) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield b"data: " + orjson.dumps(chunk) + b"\n\n"
    yield DONE_FRAME
