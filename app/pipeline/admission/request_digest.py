"""When two requests are the same one."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Hashable
from typing import Any, Final

import msgspec

from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resent_history import History

TAIL_BYTES: Final = 4096
"""How much of a body's end tells requests apart before whole bodies are compared: the newest words stand there."""
THREAD_BYTES: Final = 1_000_000
"""Longer bodies are hashed off the event loop."""
MEANING_HEADERS: Final = ("openai-organization", "openai-project", "openai-beta")
_NO_HEADERS: Final = (None,) * len(MEANING_HEADERS)


def meaning_of(request: ChatRequest) -> tuple[Any, ...]:
    """What two requests with the same body may still differ in."""
    headers = tuple(map(request.forwarded.get, MEANING_HEADERS)) if request.forwarded else _NO_HEADERS
    return request.conversation_id, request.chat_ui, request.mode, request.policy, request.events, *headers


def name_of(request: ChatRequest) -> Hashable:
    """What a request is looked for by: its client's key for it, or what tells nearly all bodies apart."""
    tenant = request.caller.tenant
    if request.idempotency_key is not None:
        return tenant, request.idempotency_key
    body = request.body
    return tenant, request.caller.key_id, meaning_of(request), len(body), body[-TAIL_BYTES:]


def are_same(one: ChatRequest, other: ChatRequest) -> bool:
    """Whether two requests of the same name are one and the same."""
    return one.body == other.body and meaning_of(one) == meaning_of(other)


async def digest_request(request: ChatRequest, log: History) -> str:
    """32 hex digits that name a request of one tenant, its key included; they are stored with its answer.

    A digest of the messages, which was made in order to recognise a long history, stands for them: a second pass over
    two megabytes would cost 3 ms.
    """
    meaning, digest = (*meaning_of(request), request.idempotency_key), log.digest
    if digest is None:
        return (await _hash(msgspec.json.encode(meaning), request.body)).hex()[:32]
    instructions = request.raws[: len(request.raws) - len(log.raws)]
    fields = {name: raw for name, raw in request.fields.items() if name != "messages"}
    sizes = [*map(len, instructions), *map(len, fields.values())]
    head = msgspec.json.encode((meaning, [*fields], sizes))
    return hashlib.sha256(b"".join((head, digest, *instructions, *fields.values()))).hexdigest()[:32]


async def digest_body(request: ChatRequest) -> bytes:
    """32 bytes that name what is asked for. They are stored with an idempotency key."""
    return await _hash(msgspec.json.encode(meaning_of(request)), request.body)


async def _hash(head: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(head)
    if len(body) > THREAD_BYTES:
        await asyncio.to_thread(digest.update, body)
    else:
        digest.update(body)
    return digest.digest()
