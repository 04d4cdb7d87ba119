"""A simulated model server without a socket: takes a request, returns status, headers and bytes."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from app.conversation.json_text import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.errors import GatewayError, InvalidRequest, NotFound
from app.simulator.openai_encoding import encode_completion, encode_stream_events
from app.simulator.options_and_faults import SimulatedFaults, SimulatorOptions, parse_faults_from_name
from app.simulator.request_checks import LISTED_MODELS, parse_window_from_name
from app.simulator.simulated_model import SimulatedAnswer, SimulatorTokenCounter, answer_request

THREAD_BODY_BYTES = 65_536
"""Larger requests are counted and answered in a thread."""
MODELS_CREATED_AT = 1_767_225_600
CALL_PATH = "/chat/completions"
JSON_HEADERS = {"content-type": "application/json"}
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
INVALID_JSON = b'{"id": "chatcmpl-broken", "choices": [{"mess'


class SimulatedDisconnect(Exception):
    """The simulated connection is cut at this point."""


@dataclass(frozen=True, slots=True)
class SimulatorResponse:
    """The response; iterating over `pieces` may raise `SimulatedDisconnect`."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncGenerator[bytes]


@dataclass(slots=True)
class Simulator:
    """A simulated model server: its options, counters of requests, and the last requests.

    Args:
        options: speed and faults.
        counter_for: returns the token counter for a model's name.
        clock: seconds since the epoch.
        new_id: makes the random part of answer ids.
        sleep: waits; tests pass one that moves time instead.
    """

    options: SimulatorOptions
    counter_for: Callable[[str], SimulatorTokenCounter]
    clock: Callable[[], float]
    new_id: Callable[[], str]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    recorded_requests: deque[dict[str, Any]] = field(init=False)
    _request_counts: Tally[str] = field(init=False, default_factory=Tally)

    def __post_init__(self) -> None:
        self.recorded_requests = deque(maxlen=self.options.max_recorded_requests)

    async def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> SimulatorResponse:
        """Answers one request. Errors are responses, too.

        Args:
            method: the HTTP method.
            path: the path below the API's base.
            headers: with lower-case names.
            body: the body.
        """
        try:
            if (method, path) == ("GET", "/models"):
                return make_json_response(200, {"object": "list", "data": self.list_models()})
            if method != "POST" or path != CALL_PATH:
                raise NotFound(f"The simulated model does not know {method} {path!r}.")
            fields = _parse_request_body(body)
            self.recorded_requests.append({"path": path, "headers": dict(headers), "body": fields})
            return await self._answer_call(fields, len(body))
        except GatewayError as error:
            return make_json_response(error.status, error.build_body())

    def list_models(self) -> list[dict[str, Any]]:
        """Returns OpenAI's `data` array, with the window under both names that servers use."""
        facts = {"object": "model", "created": MODELS_CREATED_AT, "owned_by": "simulator"}
        windows = {name: parse_window_from_name(name, self.options.default_window) for name in LISTED_MODELS}
        return [
            {"id": name, **facts, "context_window": window, "max_model_len": window} for name, window in windows.items()
        ]

    async def _answer_call(self, body: dict[str, Any], body_bytes: int) -> SimulatorResponse:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise InvalidRequest("you must provide a model parameter", param="model")
        answer = await self.make_answer(body, body_bytes)
        # After the answer is made: faults may be only for summaries, and only the answer says whether it is one.
        faults = self._choose_faults(model, answer)
        if faults.hang:
            # A day: longer than any client's time limit.
            await self.sleep(86_400.0)
        if faults.error_status is not None:
            return _make_failure_response(faults.error_status, faults.retry_after)
        if faults.empty:
            answer = replace(answer, text="", tool_calls=(), finish_reason="stop", completion_tokens=0)
        await self._pause(self.options.first_token_seconds + self.options.summary_seconds * answer.is_summary)
        envelope = {"id": f"chatcmpl-{self.new_id()}", "created": int(self.clock()), "model": model}
        headers = {"x-request-id": f"req_{self.new_id()}", "openai-processing-ms": "1"}
        if body.get("stream"):
            include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            pieces = encode_stream_events(answer, envelope, include_usage=include_usage)
            return SimulatorResponse(200, {**STREAM_HEADERS, **headers}, self._stream_with_faults(pieces, faults))
        await self._pause(self.options.seconds_per_token * answer.completion_tokens)
        whole_body = _stream_whole_body(encode_completion(answer, envelope), faults)
        return SimulatorResponse(200, {**JSON_HEADERS, **headers}, whole_body)

    async def make_answer(self, body: Mapping[str, Any], body_bytes: int) -> SimulatedAnswer:
        """Makes the answer to a decoded request, in a thread if the request is long."""
        model = body["model"]
        window, counter = parse_window_from_name(model, self.options.default_window), self.counter_for(model)
        if body_bytes > THREAD_BODY_BYTES:
            return await asyncio.to_thread(answer_request, body, window=window, counter=counter)
        return answer_request(body, window=window, counter=counter)

    def _choose_faults(self, model: str, answer: SimulatedAnswer) -> SimulatedFaults:
        """Returns the faults for this request. Each name of a model has its own count of requests."""
        faults = parse_faults_from_name(model) or self.options.faults
        if faults.on not in {"all", "summary" if answer.is_summary else "answer"}:
            return SimulatedFaults()
        if faults.first:
            self._request_counts[model] += 1
        return SimulatedFaults() if faults.first < self._request_counts[model] else faults

    async def _stream_with_faults(self, pieces: Iterator[bytes], faults: SimulatedFaults) -> AsyncGenerator[bytes]:
        for sent, piece in enumerate(pieces):
            if sent == faults.break_after:
                raise SimulatedDisconnect
            if faults.garbage and sent:
                yield b"data: " + INVALID_JSON + b"\n\n"
                return
            if sent:
                await self._pause(self.options.seconds_per_token)
            yield piece

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self.sleep(seconds)


def _parse_request_body(body: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest("We could not parse the JSON body of your request.") from error
    if not isinstance(decoded, dict):
        raise InvalidRequest("The body of your request must be a JSON object.")
    if may_be_too_deep(body) and is_too_deep(decoded):
        raise InvalidRequest(f"The body of your request {TOO_DEEP_MESSAGE}")
    return decoded


def _make_failure_response(status: int, retry_after_seconds: float | None) -> SimulatorResponse:
    kind = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    response = make_json_response(
        status, {"error": {"message": "A simulated failure.", "type": kind, "param": None, "code": None}}
    )
    retry_headers = {} if retry_after_seconds is None else {"retry-after": f"{retry_after_seconds:g}"}
    return replace(response, headers={**response.headers, **retry_headers})


def make_json_response(status: int, body: object) -> SimulatorResponse:
    """Returns a response with a JSON body, without faults."""
    return SimulatorResponse(status, JSON_HEADERS, _stream_whole_body(orjson.dumps(body), SimulatedFaults()))


async def _stream_whole_body(body: bytes, faults: SimulatedFaults) -> AsyncGenerator[bytes]:
    if faults.garbage:
        yield INVALID_JSON
    elif faults.break_after is not None:
        yield body[: len(body) // 2]
        raise SimulatedDisconnect
    else:
        yield body
