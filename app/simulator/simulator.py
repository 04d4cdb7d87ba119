"""A simulated model server without a socket: takes a request, returns status, headers and bytes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from collections import Counter as Tally
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from app.conversation.json_depth import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.errors import GatewayError, InvalidRequest, MethodNotAllowed, ModelNotFound, NotFound
from app.simulator.context_window import LISTED_MODELS, SIMULATED_PREFIX, build_error_body, parse_window_from_name
from app.simulator.openai_encoding import AnswerEnvelope, encode_completion, encode_stream_events
from app.simulator.options_and_faults import SimulatedFaults, SimulatorOptions, parse_faults_from_name
from app.simulator.request_schemas import check_embeddings_request
from app.simulator.simulated_model import SimulatedAnswer, SimulatorTokenCounter, answer_request

THREAD_BODY_BYTES = 65_536
"""Larger requests are counted and answered in a thread."""
DEFAULT_DIMENSIONS = 64
MAX_EMBEDDING_NUMBERS = 1_000_000
"""The most numbers in all vectors of one answer."""
MODELS_CREATED_AT = 1_767_225_600
JSON_HEADERS = {"content-type": "application/json"}
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
INVALID_JSON = b'{"id": "chatcmpl-broken", "choices": [{"mess'


class SimulatedDisconnect(Exception):
    """The simulated connection is cut at this point."""


@dataclass(frozen=True, slots=True)
class SimulatorRequest:
    """A request as it arrives: path below the API's base, lower-case header names."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class SimulatorResponse:
    """The response; iterating over `pieces` may raise `SimulatedDisconnect`."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


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

    async def handle(self, request: SimulatorRequest) -> SimulatorResponse:
        """Answers one request. Errors are responses, too."""
        try:
            return await self._route_request(request)
        except GatewayError as error:
            return _make_json_response(error.status, error.build_body())

    def list_models(self) -> list[dict[str, Any]]:
        """Returns OpenAI's `data` array, with the window under both names that servers use."""
        return [self._build_model_entry(name) for name in LISTED_MODELS]

    async def _route_request(self, request: SimulatorRequest) -> SimulatorResponse:
        path = request.path.rstrip("/")
        if request.method == "GET" and path == "/models":
            return _make_json_response(200, {"object": "list", "data": self.list_models()})
        if request.method == "GET" and path.startswith("/models/"):
            name = path.removeprefix("/models/")
            if not name.startswith(SIMULATED_PREFIX):
                raise ModelNotFound(f"The model {name!r} does not exist.", param="model")
            return _make_json_response(200, self._build_model_entry(name))
        if path not in {"/chat/completions", "/embeddings"}:
            raise NotFound(f"Unknown path {request.path!r}.")
        if request.method != "POST":
            raise MethodNotAllowed(f"Method {request.method} is not allowed on {request.path!r}; use POST.")
        body = _parse_request_body(request.body)
        self.recorded_requests.append(
            {"at": self.clock(), "path": path, "headers": dict(request.headers), "body": body}
        )
        if path == "/chat/completions":
            return await self._answer_chat(body, len(request.body))
        check_embeddings_request(body)
        return await asyncio.to_thread(self._answer_embeddings, body)

    async def _answer_chat(self, body: dict[str, Any], body_bytes: int) -> SimulatorResponse:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise InvalidRequest("you must provide a model parameter", param="model")
        window = parse_window_from_name(model, self.options.default_window)
        counter = self.counter_for(model)
        if body_bytes > THREAD_BODY_BYTES:
            answer = await asyncio.to_thread(answer_request, body, window=window, counter=counter)
        else:
            answer = answer_request(body, window=window, counter=counter)
        # After the answer is made: faults may be only for summaries, and only the answer says whether it is one.
        faults = self._choose_faults(model, answer)
        if faults.hang:
            # A day: longer than any client's time limit.
            await self.sleep(86_400.0)
        if faults.error_status is not None:
            return _make_failure_response(faults.error_status, faults.retry_after)
        if answer.error_body is not None:
            return _make_json_response(400, answer.error_body)
        if faults.empty:
            answer = SimulatedAnswer(text="", prompt_tokens=answer.prompt_tokens, is_summary=answer.is_summary)
        await self._pause(self.options.first_token_seconds + self.options.summary_seconds * answer.is_summary)
        if body.get("stream"):
            pieces = self._encode_stream(body, model, answer)
            return SimulatorResponse(200, self._build_headers(STREAM_HEADERS), self._stream_with_faults(pieces, faults))
        await self._pause(self.options.seconds_per_token * answer.completion_tokens)
        completion_bytes = encode_completion(answer, self._make_envelope(model))
        return SimulatorResponse(200, self._build_headers(JSON_HEADERS), _stream_whole_body(completion_bytes, faults))

    def _choose_faults(self, model: str, answer: SimulatedAnswer) -> SimulatedFaults:
        """Returns the faults for this request. Each rule counts the requests in its scope."""
        named_faults = parse_faults_from_name(model)
        faults = self.options.faults if named_faults is None else named_faults
        if not faults.has_fault or faults.on not in {"all", "summary" if answer.is_summary else "answer"}:
            return SimulatedFaults()
        rule = "" if named_faults is None else model
        self._request_counts[rule] += 1
        return faults if faults.is_request_affected(self._request_counts[rule]) else SimulatedFaults()

    def _encode_stream(self, body: Mapping[str, Any], model: str, answer: SimulatedAnswer) -> Iterator[bytes]:
        include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return encode_stream_events(answer, self._make_envelope(model), include_usage=include_usage)

    async def _stream_with_faults(self, pieces: Iterator[bytes], faults: SimulatedFaults) -> AsyncIterator[bytes]:
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

    def _answer_embeddings(self, body: Mapping[str, Any]) -> SimulatorResponse:
        model = str(body.get("model", "sim"))
        given_input = body.get("input", "")
        inputs = (
            given_input
            if isinstance(given_input, list) and given_input and not isinstance(given_input[0], int)
            else [given_input]
        )
        dimensions = body.get("dimensions") or DEFAULT_DIMENSIONS
        if dimensions * len(inputs) > MAX_EMBEDDING_NUMBERS:
            raise InvalidRequest(f"The simulated model writes at most {MAX_EMBEDDING_NUMBERS} numbers in one answer.")
        vectors = [make_embedding_vector(orjson.dumps(one), dimensions) for one in inputs]
        is_base64 = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _encode_vector(one) if is_base64 else one}
            for index, one in enumerate(vectors)
        ]
        count = self.counter_for(model).count
        tokens = sum(count(one) if isinstance(one, str) else len(one) if isinstance(one, list) else 1 for one in inputs)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _make_json_response(200, {"object": "list", "data": data, "model": model, "usage": usage})

    def _build_model_entry(self, name: str) -> dict[str, Any]:
        window = parse_window_from_name(name, self.options.default_window)
        facts = {"id": name, "object": "model", "created": MODELS_CREATED_AT, "owned_by": "simulator"}
        return {**facts, "context_window": window, "max_model_len": window}

    def _make_envelope(self, model: str) -> AnswerEnvelope:
        return AnswerEnvelope(f"chatcmpl-{self.new_id()}", int(self.clock()), model)

    def _build_headers(self, kind: Mapping[str, str]) -> dict[str, str]:
        return {**kind, "x-request-id": f"req_{self.new_id()}", "openai-processing-ms": "1"}


def make_embedding_vector(text: bytes, dimensions: int) -> list[float]:
    """Returns a vector of length one that depends only on the text."""
    stream = hashlib.shake_256(text).digest(dimensions * 2)
    raw = [value - 32_767.5 for value in struct.unpack(f"<{dimensions}H", stream)]
    length = sum(value * value for value in raw) ** 0.5
    return [value / length for value in raw]


def _encode_vector(values: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


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
    response = _make_json_response(status, build_error_body("A simulated failure.", type=kind))
    if retry_after_seconds is None:
        return response
    headers = {**response.headers, "retry-after": f"{retry_after_seconds:g}"}
    return SimulatorResponse(status, headers, response.pieces)


def _make_json_response(status: int, body: object) -> SimulatorResponse:
    return SimulatorResponse(status, JSON_HEADERS, _stream_whole_body(orjson.dumps(body), SimulatedFaults()))


async def _stream_whole_body(body: bytes, faults: SimulatedFaults) -> AsyncIterator[bytes]:
    if faults.garbage:
        yield INVALID_JSON
    elif faults.break_after is not None:
        yield body[: len(body) // 2]
        raise SimulatedDisconnect
    else:
        yield body
