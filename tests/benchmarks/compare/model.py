"""A provider for gateways of all kinds: it knows its script, its window and its rules, and takes what it gets.

Gateways change what they pass on, so nothing that a client adds to its request can be relied on. The provider is in the
client's process and knows which message the client has just sent: a request whose last message holds it is the client's
request, any other request is one of the gateway's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from tests.benchmarks.quality.cache import CHARS_PER_TOKEN, PrefixCache, serialize_prompt
from tests.benchmarks.quality.summaries import extractive
from tests.benchmarks.quality.texts import text_of

SUMMARY_SECONDS: Final = 0.05
REPLY_TOKENS: Final = 20
_NOTES_IN_PLACE: Final = "the first line of your reply is the words NEW RULES:"
_NOTES: Final = "the first line of your reply is the word RULES:"


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """A request that reached the provider. `status` 400: it was over the window, or had an orphaned call or result."""

    body: Mapping[str, Any]
    is_gateways_own: bool
    prompt_tokens: int
    cached_tokens: int
    status: int
    orphans: int

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        messages: Sequence[Mapping[str, Any]] = self.body["messages"]
        return messages


@dataclass(slots=True)
class Provider:
    """An ASGI application with chat completions. It counts four characters as a token, tools included.

    Attributes:
        window: above so many tokens a prompt is refused as OpenAI refuses it.
        sent: the client's newest message.
        reply: the assistant's message that follows it.
        is_due: whether the client's request has not arrived yet.
    """

    window: int
    sent: Mapping[str, Any] = field(default_factory=dict)
    reply: Mapping[str, Any] = field(default_factory=dict)
    is_due: bool = False
    calls: list[ReceivedCall] = field(default_factory=list)
    summarizing: int = 0
    """The gateway's own calls in flight."""
    awaited_calls: int = 0
    """The gateway's own calls that ended before it passed on the request that a client waited for."""
    _cache: PrefixCache = field(default_factory=PrefixCache)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw, more = b"", True
        while more:
            event = await receive()
            raw, more = raw + event.get("body", b""), event.get("more_body", False)
        if not scope["path"].endswith("/chat/completions"):
            await _send(send, 404, _build_error("not here", "not_found"))
            return
        body = orjson.loads(raw)
        call = self._receive(body)
        self.calls.append(call)
        self.is_due = self.is_due and call.is_gateways_own
        if call.status != 200:
            await _send(send, call.status, _refuse(call, self.window))
            return
        message = self.reply if not call.is_gateways_own else await self._summarize(body)
        await (_stream if body.get("stream") else _send_whole)(send, message, call)

    def _receive(self, body: Mapping[str, Any]) -> ReceivedCall:
        tokens, orphans = count_tokens(body), count_orphans(body["messages"])
        refused = tokens > self.window or orphans > 0
        cached = 0 if refused else min(tokens, self._cache.cached_tokens(body))
        return ReceivedCall(body, not self._is_clients(body), tokens, cached, 400 if refused else 200, orphans)

    def _is_clients(self, body: Mapping[str, Any]) -> bool:
        last = body["messages"][-1]
        said, expected = text_of(last.get("content")).strip(), text_of(self.sent.get("content")).strip()
        # A gateway may put notes and quotations before or behind what the client said, or shorten a tool's result.
        return last.get("role") == self.sent.get("role") and (
            last.get("role") == "tool" or said.startswith(expected) or said.endswith(expected)
        )

    async def _summarize(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Writes a summary: the sentences with the most names and numbers, in the layout that is asked for."""
        self.summarizing += 1
        try:
            await asyncio.sleep(SUMMARY_SECONDS)
        finally:
            self.summarizing -= 1
            self.awaited_calls += self.is_due
        text, asked = extractive(body), text_of(body["messages"][-1].get("content"))
        lines = text.replace(". ", ".\n").splitlines()
        if _NOTES_IN_PLACE in asked:
            changes = (f"note {number}: {line}" for number, line in enumerate(lines, len(self.calls) * 100))
            text = "\n".join(["NEW RULES", "(none)", "CHANGES", *changes, "OPEN"])
        elif _NOTES in asked:
            text = "\n".join(["RULES", "(none)", "STATE", *lines, "OPEN"])
        return {"role": "assistant", "content": text}


def count_tokens(body: Mapping[str, Any]) -> int:
    """Returns the tokens of a prompt, as this provider counts them."""
    return len(serialize_prompt(body)) // CHARS_PER_TOKEN


def count_orphans(messages: Sequence[Mapping[str, Any]]) -> int:
    """Returns how many tool calls have no result after them, and how many results have no call before them."""
    open_calls: list[str] = []
    orphans = 0
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") in open_calls:
                open_calls.remove(message["tool_call_id"])
            else:
                orphans += 1
            continue
        orphans += len(open_calls)
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
    return orphans + len(open_calls)


def _refuse(call: ReceivedCall, window: int) -> Mapping[str, Any]:
    if call.orphans:
        return _build_error("A tool call has no result, or a result no call.", "invalid_request_error")
    return _build_error(
        f"This model's maximum context length is {window} tokens. However, your messages resulted in "
        f"{call.prompt_tokens} tokens. Please reduce the length of the messages.",
        "context_length_exceeded",
    )


def _build_error(message: str, code: str) -> Mapping[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": "messages", "code": code}}


def _build_usage(call: ReceivedCall) -> Mapping[str, Any]:
    return {
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": REPLY_TOKENS,
        "total_tokens": call.prompt_tokens + REPLY_TOKENS,
        "prompt_tokens_details": {"cached_tokens": call.cached_tokens},
    }


def _build_choice(message: Mapping[str, Any], key: str) -> dict[str, Any]:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {"index": 0, key: dict(message), "logprobs": None, "finish_reason": finish}


def _build_envelope(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 1_700_000_000, "model": "scripted"}


async def _send_whole(send: Any, message: Mapping[str, Any], call: ReceivedCall) -> None:
    choices = [_build_choice(message, "message")]
    await _send(send, 200, {**_build_envelope("chat.completion"), "choices": choices, "usage": _build_usage(call)})


async def _send(send: Any, status: int, body: Mapping[str, Any]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": orjson.dumps(body)})


async def _stream(send: Any, message: Mapping[str, Any], call: ReceivedCall) -> None:
    """Streams an answer in one chunk: gateways may ask for a stream where the client does not."""
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    calls = [{"index": number, **one} for number, one in enumerate(message.get("tool_calls") or ())]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    envelope = _build_envelope("chat.completion.chunk")
    for chunk in (
        {**envelope, "choices": [_build_choice(delta, "delta")]},
        {**envelope, "choices": [], "usage": _build_usage(call)},
    ):
        data = b"data: " + orjson.dumps(chunk) + b"\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
