"""A stored answer given once more: to a retry of the request that it answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from app.conversation.messages import Conversation, LogMessage
from app.errors import StoreUnavailable, release_frames
from app.pipeline.admission.request_digest import digest_request
from app.pipeline.chat_request import RETRY_SECONDS, ChatRequest
from app.pipeline.resolve.resent_history import History, split_messages
from app.pipeline.resolve.resolved_request import REDACTED
from app.pipeline.respond.answer import Answer, StreamedAnswer, WholeAnswer
from app.pipeline.respond.stream_frames import DONE_FRAME
from app.store.contract import Store

REPLAYED: Final = {"idempotent-replayed": "true"}
"""Sent with an answer that was made for an earlier request, of which this one is the repetition."""
DIGEST: Final = "request"
"""`LogMessage.meta` of an answer: the digest of the request that it answers."""


class StoredAnswers:
    """Finds the answer of a request in the log.

    Args:
        now: the time of day.
    """

    def __init__(self, store: Store, *, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    async def find(self, conversation: Conversation, request: ChatRequest, log: History) -> LogMessage | None:
        """The last message of a conversation, if it is the whole answer to this request and not too old, and the
        request says that it is a repetition: by its count of retries, or by its key. A conversation that went on has
        been heard: the same words are a new request then."""
        seq = conversation.head_seq
        is_repetition = request.retry or request.idempotency_key is not None
        if not is_repetition or seq < 0 or seq in conversation.marks.get(REDACTED, ()):
            return None
        (entry,) = await self._store.read(conversation, seq, seq + 1)
        meta = entry.meta or {}
        if entry.incomplete or entry.created_at is None or DIGEST not in meta:
            return None
        since = request.first_attempt_at or self._now() - timedelta(seconds=RETRY_SECONDS)
        if entry.created_at < since:
            return None
        return entry if meta[DIGEST] == await digest_request(request, log) else None

    async def replay(self, request: ChatRequest, conversation_id: str) -> Answer | None:
        """The answer to a request that a conversation ends with, in the form that is asked for now."""
        try:
            conversation = await self._store.get(tenant=request.caller.tenant, conversation_id=conversation_id)
            if conversation is None:
                return None
            _, log = split_messages(request)
            answer = await self.find(conversation, request, log)
        except StoreUnavailable as error:
            release_frames(error)
            return None
        return None if answer is None else replayed(answer, conversation.id, request)


def replayed(entry: LogMessage, conversation_id: str, request: ChatRequest) -> Answer:
    """The answer that was stored as `entry`, in the form that is asked for now."""
    meta = entry.meta or {}
    status = meta.get("context_status", "full")
    ours = {"context_status": status, "conversation_id": conversation_id}
    headers = {
        "x-conversation-id": conversation_id,
        "x-context-status": str(status),
        "x-request-id": request.request_id,
        **REPLAYED,
    }
    context = meta.get("context", {})
    if "prompt_tokens" in context:
        headers["x-context-tokens"] = f"{context['prompt_tokens']}/{context['limit']}"
    if request.stream:
        return StreamedAnswer(headers, _frames(list(_chunks(entry, meta, ours, request))))
    body = {**completion_of(entry, request.model), **ours, "context": context}
    return WholeAnswer(orjson.dumps(body), headers)


def completion_of(entry: LogMessage, model: str) -> dict[str, Any]:
    """OpenAI's object of the completion that was stored as `entry`.

    Args:
        model: the name that was asked for, where the provider named none.
    """
    meta = entry.meta or {}
    messages = [entry.message.body, *meta.get("alternatives", ())]
    return {
        **_identity(entry, meta, model, "chat.completion"),
        "choices": [
            {"index": index, "message": message, "logprobs": None, "finish_reason": meta.get("finish_reason")}
            for index, message in enumerate(messages)
        ],
        "usage": meta.get("usage"),
    }


def _chunks(
    entry: LogMessage, meta: Mapping[str, Any], ours: Mapping[str, Any], request: ChatRequest
) -> Iterator[dict[str, Any]]:
    identity = _identity(entry, meta, request.model, "chat.completion.chunk")
    messages = [entry.message.body, *meta.get("alternatives", ())]
    for index, message in enumerate(messages):
        yield {**identity, "choices": [_choice(index, _delta(message), None)], **ours}
    for index in range(len(messages)):
        told = {**ours, "context": meta.get("context", {})}
        yield {**identity, "choices": [_choice(index, {}, meta.get("finish_reason"))], **told}
    if request.include_usage:
        yield {**identity, "choices": [], "usage": meta.get("usage"), **ours}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    return {**message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)]}


def _choice(index: int, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _identity(entry: LogMessage, meta: Mapping[str, Any], model: str, kind: str) -> dict[str, Any]:
    created = int(entry.created_at.timestamp()) if entry.created_at else 0
    return {"id": meta.get("id"), "object": kind, "created": created, "model": meta.get("model") or model}


async def _frames(chunks: list[dict[str, Any]]) -> AsyncGenerator[bytes, None]:
    for chunk in chunks:
        yield b"data: " + orjson.dumps(chunk) + b"\n\n"
    yield DONE_FRAME
