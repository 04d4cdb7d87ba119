"""When two requests are the same one."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Hashable
from typing import Any, Final

import msgspec

from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resent_history import ClientHistory

TAIL_BYTES: Final = 4096
"""How much of a body's end tells requests apart before whole bodies are compared: the newest words stand there."""
MIN_THREAD_BYTES: Final = 1_000_000
"""Longer bodies are hashed off the event loop."""
DISTINGUISHING_HEADERS: Final = ("openai-organization", "openai-project", "openai-beta")
_NO_HEADER_VALUES: Final = (None,) * len(DISTINGUISHING_HEADERS)


def request_options(request: ChatRequest) -> tuple[Any, ...]:
    """What two requests with the same body may still differ in."""
    headers = (
        tuple(map(request.forwarded_headers.get, DISTINGUISHING_HEADERS))
        if request.forwarded_headers
        else _NO_HEADER_VALUES
    )
    return (
        request.conversation_id,
        request.is_chat_ui,
        request.context_mode,
        request.policy,
        request.event_style,
        *headers,
    )


def make_coalescing_key(request: ChatRequest) -> Hashable:
    """What a request is looked for by: its client's key for it, or what tells nearly all bodies apart."""
    tenant = request.caller.tenant
    if request.idempotency_key is not None:
        return tenant, request.idempotency_key
    body = request.body
    return tenant, request.caller.api_key_id, request_options(request), len(body), body[-TAIL_BYTES:]


def are_same_request(one: ChatRequest, other: ChatRequest) -> bool:
    """Whether two requests of the same name are one and the same."""
    return one.body == other.body and request_options(one) == request_options(other)


async def digest_request(request: ChatRequest, client_history: ClientHistory) -> str:
    """32 hex digits that name a request of one tenant, its key included; they are stored with its answer.

    A digest of the messages, which was made in order to recognise a long history, stands for them: a second pass over
    two megabytes would cost 3 ms.
    """
    options, digest = (*request_options(request), request.idempotency_key), client_history.history_digest
    if digest is None:
        return (await _hash_body(msgspec.json.encode(options), request.body)).hex()[:32]
    instructions = request.raw_messages[: len(request.raw_messages) - len(client_history.raw_messages)]
    fields = {name: raw for name, raw in request.raw_fields.items() if name != "messages"}
    sizes = [*map(len, instructions), *map(len, fields.values())]
    head = msgspec.json.encode((options, [*fields], sizes))
    return hashlib.sha256(b"".join((head, digest, *instructions, *fields.values()))).hexdigest()[:32]


async def digest_body(request: ChatRequest) -> bytes:
    """32 bytes that name what is asked for. They are stored with an idempotency key."""
    return await _hash_body(msgspec.json.encode(request_options(request)), request.body)


async def _hash_body(head: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(head)
    if len(body) > MIN_THREAD_BYTES:
        await asyncio.to_thread(digest.update, body)
    else:
        digest.update(body)
    return digest.digest()
