"""The simulated model with prompt caches, and as a provider of the Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from app.dialects.message_rendering import render_messages_for_chat
from app.dialects.messages.errors import build_error_body
from app.dialects.messages.request import parse_messages_fields
from app.dialects.messages.request_fields import translate_messages_fields_to_chat
from app.dialects.request_body import decode_body_fields
from app.errors import GatewayError
from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.simulated_model import SimulatedAnswer, SimulatorTokenCounter
from app.simulator.simulator import JSON_HEADERS, STREAM_HEADERS, Simulator, SimulatorResponse
from tests.support.messages_checks import check_messages_request, iterate_cacheable, sign_thinking
from tests.support.messages_encoding import build_message, encode_message_events
from tests.support.prompt_caches import (
    CacheRule,
    PromptCache,
    list_chat_pieces,
    list_messages_pieces,
    refuse_breakpoints,
)

MESSAGES_PATH: Final = "/messages"
THOUGHT: Final = "The context has what is needed."


class CachingSimulator(Simulator):
    """A simulated model with a prompt cache by a rule, for chat completions; messages have Anthropic's.

    Args:
        rule: of the cache.
        options: speed.
        counter_for, clock, new_id: as of `Simulator`.
    """

    def __init__(
        self,
        rule: CacheRule,
        options: SimulatorOptions,
        counter_for: Callable[[str], SimulatorTokenCounter],
        *,
        clock: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        super().__init__(options, counter_for, clock, new_id)
        self.rule = rule
        self.caches = {"chat": PromptCache(rule, clock), "messages": PromptCache("anthropic", clock)}

    async def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> SimulatorResponse:
        if path != MESSAGES_PATH:
            return await super().handle(method, path, headers, body)
        try:
            return await self._answer_message(orjson.loads(body))
        except GatewayError as error:
            return SimulatorResponse(error.status, JSON_HEADERS, _send([build_error_body(error, "")]))

    async def make_answer(self, body: Mapping[str, Any], body_bytes: int) -> SimulatedAnswer:
        if self.rule == "prefix":
            refuse_breakpoints(body)
        answer = await super().make_answer(body, body_bytes)
        if self.rule == "none":
            return answer
        use = self.caches["chat"].read_and_write(list_chat_pieces(body), answer.prompt_tokens)
        return replace(answer, cached_tokens=use.read, written_tokens=use.written)

    async def _answer_message(self, request: Mapping[str, Any]) -> SimulatorResponse:
        check_messages_request(request)
        answer = await super().make_answer(translate_request(request), 0)
        pieces = list_messages_pieces(iterate_cacheable(request))
        message = build_message(
            answer,
            message_id=f"msg_{self.new_id()}",
            model=request["model"],
            thinking=think(request),
            cache_use=self.caches["messages"].read_and_write(pieces, answer.prompt_tokens),
        )
        if request.get("stream"):
            return SimulatorResponse(200, STREAM_HEADERS, _send(encode_message_events(message)))
        return SimulatorResponse(200, JSON_HEADERS, _send([orjson.dumps(message)]))


async def _send(pieces: Iterable[bytes]) -> AsyncGenerator[bytes]:
    for piece in pieces:
        yield piece


def translate_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request in the form of Chat Completions.

    Raises:
        InvalidRequest: the request is not valid.
    """
    fields = decode_body_fields(orjson.dumps(request))
    parsed = parse_messages_fields(fields, may_begin_with_result=False)
    messages, _ = render_messages_for_chat(parsed.raw_messages)
    translated = translate_messages_fields_to_chat(fields).fields
    return {
        **{name: orjson.loads(bytes(raw)) for name, raw in translated.items()},
        "messages": [orjson.loads(raw) for raw in messages],
    }


def think(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the signed thinking of an answer, if the request asks for it."""
    if (request.get("thinking") or {}).get("type") not in ("enabled", "adaptive"):
        return []
    block = {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    messages = [one for one in request["messages"] if one["role"] != "system"]
    return [{**block, "signature": sign_thinking(messages, block)}]
