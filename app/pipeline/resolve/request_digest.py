"""Decides when two requests are the same: by their bodies, and by the options that are not in the body."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Hashable
from typing import Any, Final

import msgspec

from app.pipeline.resolve.client_history import ClientHistory
from app.pipeline.resolve.item_references import has_item_references
from app.pipeline.turn.chat_request import ChatRequest

TAIL_BYTES: Final = 4096
"""How many bytes of a body's end are part of the coalescing key. The newest words stand there, so the end tells nearly
all requests apart before whole bodies are compared."""
MIN_THREAD_BYTES: Final = 1_000_000
"""Longer bodies are hashed in a thread."""
DISTINGUISHING_HEADERS: Final = ("openai-organization", "openai-project", "openai-beta")
_NO_HEADER_VALUES: Final = (None,) * len(DISTINGUISHING_HEADERS)


def list_distinguishing_options(request: ChatRequest) -> tuple[Any, ...]:
    """Returns the options in which two requests with the same body can differ."""
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
    """Returns the key under which a request is looked up: the client's idempotency key, or values that tell nearly all
    bodies apart."""
    tenant = request.caller.tenant
    # Without the body: a reused key with another body must be found, so that it can be refused.
    if request.idempotency_key is not None:
        return tenant, request.idempotency_key
    body = request.body
    return tenant, request.caller.api_key_id, list_distinguishing_options(request), len(body), body[-TAIL_BYTES:]


def are_same_request(one: ChatRequest, other: ChatRequest) -> bool:
    """Returns whether two requests with the same coalescing key are the same request."""
    return one.body == other.body and list_distinguishing_options(one) == list_distinguishing_options(other)


async def compute_retry_digest(request: ChatRequest, client_history: ClientHistory) -> str:
    """Returns 32 hex digits that name a request of one tenant, its idempotency key included. They are stored with its
    answer.

    If a digest of the messages exists already, because a long history was looked up by it, this digest stands for the
    messages. Hashing two megabytes again would take 3 ms.
    """
    options, digest = (*list_distinguishing_options(request), request.idempotency_key), client_history.history_digest
    # The messages of a request with item references are not in its body, so only the body names the request.
    if digest is None or has_item_references(request):
        return (await _hash_options_and_body(msgspec.json.encode(options), request.body)).hex()[:32]
    instructions = request.raw_messages[: len(request.raw_messages) - len(client_history.raw_messages)]
    fields = {name: raw for name, raw in request.raw_fields.items() if name != request.messages_field}
    # The sizes make the joined parts unambiguous: no two splits of the same bytes give one digest.
    sizes = [*map(len, instructions), *map(len, fields.values())]
    head = msgspec.json.encode((options, [*fields], sizes))
    return hashlib.sha256(b"".join((head, digest, *instructions, *fields.values()))).hexdigest()[:32]


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
