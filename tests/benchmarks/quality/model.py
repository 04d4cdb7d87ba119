"""A model behind a socket that plays a script, tells answers from summary calls and keeps what it was asked.

A request carries its place in the script in the field `MARK`, which the gateway passes on like any field it does not
know; a call without it is a summary call. Answers and summaries are functions of the call alone.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tests.benchmarks.quality.cache import PrefixCache
from tests.benchmarks.quality.summaries import COUNTER, Summaries, extractive
from tests.benchmarks.quality.texts import text_of

MARK: Final = "x_bench_place"
BYTES_PER_TOKEN: Final = 4

Reply = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the body of a request to the assistant's message."""
Count = Callable[[Mapping[str, Any]], int]
"""Prompt tokens of a body, as this provider reports them."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was answered. Times are of the monotonic clock, in seconds."""

    body: Mapping[str, Any]
    is_summary: bool
    began: float
    ended: float
    prompt_tokens: int
    cached_tokens: int
    failed: bool = False

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        messages: Sequence[Mapping[str, Any]] = self.body["messages"]
        return messages

    @property
    def place(self) -> object:
        """Where in the script the client was."""
        return self.body.get(MARK)


def acknowledge(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A short answer that says nothing."""
    return {"role": "assistant", "content": "All right, thank you for telling me."}


def counted(body: Mapping[str, Any]) -> int:
    """Prompt tokens in the encoding of current models."""
    return COUNTER.count_request(body["messages"], tools=body.get("tools"))


def by_length(body: Mapping[str, Any]) -> int:
    """Prompt tokens as four bytes each, and four a message; tool schemas are not counted."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    calls = (json.dumps(message["tool_calls"]) for message in messages if message.get("tool_calls"))
    texts = [text_of(message.get("content")) for message in messages]
    return sum(map(_quarter, [*texts, *calls])) + 4 * len(messages) + 3


class ScriptedModel:
    """An ASGI application: chat completions, streamed or whole.

    Args:
        reply: answers requests.
        summaries: answers summary calls.
        summary_seconds: how long a summary call takes.
        answer_seconds: how long an answer takes.
        count: what it reports as prompt tokens.
        cache: makes it report cached tokens too.
    """

    def __init__(
        self,
        *,
        reply: Reply = acknowledge,
        summaries: Summaries = extractive,
        summary_seconds: float = 0.0,
        answer_seconds: float = 0.0,
        count: Count = counted,
        cache: PrefixCache | None = None,
    ) -> None:
        self._reply = reply
        self._summaries = summaries
        self._summary_seconds = summary_seconds
        self._answer_seconds = answer_seconds
        self._count = count
        self._cache = cache
        self.calls: list[Call] = []
        self.summarizing = 0
        """Summary calls in flight."""

    @property
    def answers(self) -> list[Call]:
        return [call for call in self.calls if not call.is_summary]

    @property
    def summary_calls(self) -> list[Call]:
        return [call for call in self.calls if call.is_summary]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw, more = b"", True
        while more:
            event = await receive()
            raw, more = raw + event.get("body", b""), event.get("more_body", False)
        if not scope["path"].endswith("/chat/completions"):
            await _send(send, 404, {"error": {"message": "not here", "type": "invalid_request_error", "code": None}})
            return
        body = orjson.loads(raw)
        await (self._answer(body, send) if MARK in body else self._summarize(body, send))

    async def _answer(self, body: Mapping[str, Any], send: Any) -> None:
        began = time.monotonic()
        usage = self._usage(body)
        message = self._reply(body)
        await asyncio.sleep(self._answer_seconds)
        self._keep(body, began, usage, is_summary=False)
        await (_stream(send, message, usage) if body.get("stream") else _send(send, 200, _whole(message, usage)))

    async def _summarize(self, body: Mapping[str, Any], send: Any) -> None:
        began = time.monotonic()
        usage = self._usage(body)
        self.summarizing += 1
        try:
            await asyncio.sleep(self._summary_seconds)
        finally:
            self.summarizing -= 1
        text = self._summaries(body)
        self._keep(body, began, usage, is_summary=True, failed=text is None)
        if text is None:
            await _send(send, 500, {"error": {"message": "out of order", "type": "server_error", "code": None}})
        else:
            await _send(send, 200, _whole({"role": "assistant", "content": text}, usage))

    def _keep(
        self,
        body: Mapping[str, Any],
        began: float,
        usage: Mapping[str, Any],
        *,
        is_summary: bool,
        failed: bool = False,
    ) -> None:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.calls.append(Call(body, is_summary, began, time.monotonic(), usage["prompt_tokens"], cached, failed))

    def _usage(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        prompt = self._count(body)
        cached = min(prompt, self._cache.cached_tokens(body)) if self._cache else 0
        return {
            "prompt_tokens": prompt,
            "completion_tokens": 20,
            "total_tokens": prompt + 20,
            "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        }


def _quarter(text: str) -> int:
    return max(1, (len(text.encode()) + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN) if text else 0


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1_700_000_000, "model": "scripted"}


def _whole(message: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": dict(message), "logprobs": None, "finish_reason": _finish_reason(message)}
    return {**_envelope("chat.completion"), "choices": [choice], "usage": dict(usage)}


def _finish_reason(message: Mapping[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


async def _send(send: Any, status: int, body: Mapping[str, Any]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": orjson.dumps(body)})


async def _stream(send: Any, message: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    await send(start)
    deltas: list[tuple[dict[str, Any], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": message.get("content") or ""}, None), ({}, _finish_reason(message))]
    for delta, finish_reason in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        await _event(send, {**_envelope("chat.completion.chunk"), "choices": [choice]})
    await _event(send, {**_envelope("chat.completion.chunk"), "choices": [], "usage": dict(usage)})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _event(send: Any, body: Mapping[str, Any]) -> None:
    await send({"type": "http.response.body", "body": b"data: " + orjson.dumps(body) + b"\n\n", "more_body": True})
