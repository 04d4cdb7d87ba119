"""Turns of the Responses API on a store, without a model: a request is resolved, its question and an answer are
stored."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from app.compaction.capsule import CapsuleSealer
from app.context.count.token_counter import load_token_counter
from app.conversation.conversation_types import Conversation
from app.conversation.identity import PrefixCache
from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from app.dialects.items.input_items import encode_instructions, encode_text_input
from app.dialects.items.message import ResponsesMessage
from app.pipeline.persist.completion_writer import CompletionWriter
from app.pipeline.persist.turn_writer import AnswerToStore, TurnWriter
from app.pipeline.resolve.answer_replay import StoredAnswers
from app.pipeline.resolve.conversation_resolver import ConversationResolver
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import (
    Caller,
    ChatRequest,
    ContextParameters,
    Continuation,
    RetryOptions,
    StoringOptions,
)
from app.pipeline.turn.resolved_request import REQUEST_DIGEST, ResolvedRequest
from app.pipeline.turn.token_counting import MessageCounter
from app.store.leases import LeaseKeeper
from app.store.unwritten_fingerprints import UnwrittenFingerprints
from tests.support.input_items import group_input_items

ENCODING = "o200k_base"
_numbers = itertools.count(1)


def said(text: str) -> Item:
    """An answer of a chat provider."""
    return ChatMessage.from_body({"role": "assistant", "content": text})


def items(*answer: dict[str, Any]) -> Item:
    """An answer of a Responses provider."""
    return ResponsesMessage.from_items(list(answer))


def function_call(call_id: str, item_id: str | None = None) -> dict[str, Any]:
    named = {} if item_id is None else {"id": item_id}
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", **named}


def output(call_id: str, text: str = "42") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def said_by(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


class ResponsesTurns:
    """The parts of the pipeline that find and store a conversation."""

    def __init__(self, store: Any, tenant: str = "one") -> None:
        self.store = store
        self.tenant = tenant
        self.leases = LeaseKeeper(store, holder=f"holder-{next(_numbers)}")
        self.tasks = BackgroundTasks()
        counter = MessageCounter(load_token_counter)
        prefix_memory: PrefixCache[Any] = PrefixCache()
        unwritten = UnwrittenFingerprints(store)
        self.stored_answers = StoredAnswers(store, now=lambda: datetime.now(UTC))
        self.resolver = ConversationResolver(
            store=store,
            stored_answers=self.stored_answers,
            leases=self.leases,
            message_counter=counter,
            prefix_memory=prefix_memory,
            unwritten_fingerprints=unwritten,
            capsule_sealer=CapsuleSealer(),
            random_bytes=os.urandom,
            lease_wait_seconds=0.2,
            serves_degraded=True,
        )
        self.writer = TurnWriter(
            store=store,
            leases=self.leases,
            message_counter=counter,
            prefix_memory=prefix_memory,
            unwritten_fingerprints=unwritten,
            random_bytes=os.urandom,
            tasks=self.tasks,
        )
        self.completions = CompletionWriter(store, clock=lambda: datetime.now(UTC))

    def request(self, given: str | Sequence[dict[str, Any]], **fields: Any) -> ChatRequest:
        """A request as the parser makes it: `given` is `input`, other fields are those of the body."""
        mode = fields.pop("context_mode", "append" if fields.get("conversation") else "auto")
        is_retry, keeps_context_only = fields.pop("is_retry", False), fields.pop("keeps_context_only", False)
        hints = fields.pop("conversation_hints", {})
        tenant = fields.pop("tenant", self.tenant)
        body = {"model": "m", "input": given, **fields}
        raw_fields = {name: json.dumps(value).encode() for name, value in body.items()}
        continues = bool(fields.get("previous_response_id") or fields.get("conversation"))
        if isinstance(given, str):
            messages = [encode_text_input(raw_fields["input"])] if given else []
        else:
            raw_items = [json.dumps(item).encode() for item in given]
            refers = any(item.get("type") == "item_reference" for item in given)
            messages = group_input_items(raw_items, may_begin_with_result=continues or refers)
        if fields.get("instructions"):
            messages.insert(0, encode_instructions(raw_fields["instructions"]))
        return ChatRequest(
            caller=Caller(tenant=tenant),
            request_id="req",
            body=json.dumps(body).encode(),
            raw_fields=raw_fields,
            raw_messages=messages,
            model="m",
            storing=StoringOptions(fields.get("store", True), keeps_context_only, fields.get("store", True)),
            continuation=Continuation(
                fields.get("conversation"), previous_response_id=fields.get("previous_response_id"), hints=hints
            ),
            context=ContextParameters(mode),
            retry=RetryOptions(is_retry),
            protocol="responses",
        )

    @asynccontextmanager
    async def resolved(self, request: ChatRequest) -> AsyncIterator[ResolvedRequest]:
        async with AsyncExitStack() as leases:
            yield await self.resolver.resolve(request, ENCODING, leases)

    async def store_question(self, resolved_request: ResolvedRequest) -> ResolvedRequest:
        return await self.writer.finish_question_write(self.writer.start_question_write(resolved_request))

    async def store_answer(
        self, request: ChatRequest, resolved_request: ResolvedRequest, answer: Item
    ) -> tuple[str, Conversation]:
        """Stores an answer; returns the response's id and the conversation that ends with it."""
        response_id = f"resp_{next(_numbers):048x}"
        meta = {"id": response_id, REQUEST_DIGEST: resolved_request.storage.request_digest, "context_status": "full"}
        conversation = await self.writer.write_answer(resolved_request, AnswerToStore(answer, meta=meta))
        if request.storing.stores_completion and resolved_request.storage.is_stored:
            await self.completions.write_completion(request, resolved_request, conversation, response_id, answer)
        return response_id, conversation

    async def ask(self, given: str | Sequence[dict[str, Any]], answer: Item | None = None, **fields: Any) -> Turn:
        """A whole turn."""
        request = self.request(given, **fields)
        async with self.resolved(request) as resolved_request:
            stored = await self.store_question(resolved_request)
            response_id, conversation = await self.store_answer(
                request, stored, answer or said(f"Answer {next(_numbers)}.")
            )
        return Turn(response_id, conversation, resolved_request)

    async def log(self, conversation: Conversation) -> list[str]:
        """The texts of a conversation's log."""
        entries = await self.store.read_log(conversation, 0, conversation.head_seq + 1)
        return [entry.message.text or "·" for entry in entries]


class Turn:
    def __init__(self, response_id: str, conversation: Conversation, resolved_request: ResolvedRequest) -> None:
        self.response_id = response_id
        self.conversation = conversation
        self.resolved_request = resolved_request
