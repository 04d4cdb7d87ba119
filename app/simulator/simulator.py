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
from functools import partial
from typing import Annotated, Any

import msgspec
import orjson

from app.conversation.json_depth import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.errors import GatewayError, InvalidRequest, MethodNotAllowed, ModelNotFound, NotFound
from app.simulator.context_window import LISTED_MODELS, SIMULATED_PREFIX, parse_window_from_name
from app.simulator.openai_encoding import encode_completion, encode_stream_events
from app.simulator.options_and_faults import SimulatedFaults, SimulatorOptions, parse_faults_from_name
from app.simulator.simulated_model import SimulatedAnswer, SimulatorTokenCounter, answer_request, check_fields

THREAD_BODY_BYTES = 65_536
"""Larger requests are counted and answered in a thread."""
MAX_EMBEDDING_NUMBERS = 1_000_000
"""The most numbers in all vectors of one answer."""
MODELS_CREATED_AT = 1_767_225_600
JSON_HEADERS = {"content-type": "application/json"}
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
INVALID_JSON = b'{"id": "chatcmpl-broken", "choices": [{"mess'


class _EmbeddingsRequestFields(msgspec.Struct):
    """The fields of an embeddings request."""

    model: str = "sim"
    input: str | list[str | int | list[int]] = ""
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    encoding_format: str | None = None


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
            return make_json_response(error.status, error.build_body())

    def list_models(self) -> list[dict[str, Any]]:
        """Returns OpenAI's `data` array, with the window under both names that servers use."""
        return [self._build_model_entry(name) for name in LISTED_MODELS]

    async def _route_request(self, request: SimulatorRequest) -> SimulatorResponse:
        path = request.path.rstrip("/")
        if request.method == "GET" and path == "/models":
            return make_json_response(200, {"object": "list", "data": self.list_models()})
        if request.method == "GET" and path.startswith("/models/"):
            name = path.removeprefix("/models/")
            if not name.startswith(SIMULATED_PREFIX):
                raise ModelNotFound(f"The model {name!r} does not exist.", param="model")
            return make_json_response(200, self._build_model_entry(name))
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
        return await asyncio.to_thread(self._answer_embeddings, check_fields(body, _EmbeddingsRequestFields))

    async def _answer_chat(self, body: dict[str, Any], body_bytes: int) -> SimulatorResponse:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise InvalidRequest("you must provide a model parameter", param="model")
        answer_model = partial(
            answer_request,
            body,
            window=parse_window_from_name(model, self.options.default_window),
            counter=self.counter_for(model),
        )
        answer = await asyncio.to_thread(answer_model) if body_bytes > THREAD_BODY_BYTES else answer_model()
        # After the answer is made: faults may be only for summaries, and only the answer says whether it is one.
        faults = self._choose_faults(model, answer)
        if faults.hang:
            # A day: longer than any client's time limit.
            await self.sleep(86_400.0)
        if faults.error_status is not None:
            return _make_failure_response(faults.error_status, faults.retry_after)
        if answer.error_body is not None:
            return make_json_response(400, answer.error_body)
        if faults.empty:
            answer = SimulatedAnswer(text="", prompt_tokens=answer.prompt_tokens, is_summary=answer.is_summary)
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

    def _choose_faults(self, model: str, answer: SimulatedAnswer) -> SimulatedFaults:
        """Returns the faults for this request. Each rule counts the requests in its scope."""
        named_faults = parse_faults_from_name(model)
        faults = self.options.faults if named_faults is None else named_faults
        if not faults.has_fault or faults.on not in {"all", "summary" if answer.is_summary else "answer"}:
            return SimulatedFaults()
        rule = "" if named_faults is None else model
        self._request_counts[rule] += 1
        return faults if faults.is_request_affected(self._request_counts[rule]) else SimulatedFaults()

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

    def _answer_embeddings(self, fields: _EmbeddingsRequestFields) -> SimulatorResponse:
        is_list_of_inputs = isinstance(fields.input, list) and fields.input and not isinstance(fields.input[0], int)
        inputs: Any = fields.input if is_list_of_inputs else [fields.input]
        dimensions = fields.dimensions or 64
        if dimensions * len(inputs) > MAX_EMBEDDING_NUMBERS:
            raise InvalidRequest(f"The simulated model writes at most {MAX_EMBEDDING_NUMBERS} numbers in one answer.")
        vectors = [make_embedding_vector(orjson.dumps(one), dimensions) for one in inputs]
        encode = _encode_vector if fields.encoding_format == "base64" else list
        data = [{"object": "embedding", "index": index, "embedding": encode(one)} for index, one in enumerate(vectors)]
        count = self.counter_for(fields.model).count
        tokens = sum(count(one) if isinstance(one, str) else len(one) if isinstance(one, list) else 1 for one in inputs)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return make_json_response(200, {"object": "list", "data": data, "model": fields.model, "usage": usage})

    def _build_model_entry(self, name: str) -> dict[str, Any]:
        window = parse_window_from_name(name, self.options.default_window)
        facts = {"id": name, "object": "model", "created": MODELS_CREATED_AT, "owned_by": "simulator"}
        return {**facts, "context_window": window, "max_model_len": window}


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
    body = {"error": {"message": "A simulated failure.", "type": kind, "param": None, "code": None}}
    response = make_json_response(status, body)
    retry_headers = {} if retry_after_seconds is None else {"retry-after": f"{retry_after_seconds:g}"}
    return SimulatorResponse(status, {**response.headers, **retry_headers}, response.pieces)


def make_json_response(status: int, body: object) -> SimulatorResponse:
    """Returns a response with a JSON body, without faults."""
    return SimulatorResponse(status, JSON_HEADERS, _stream_whole_body(orjson.dumps(body), SimulatedFaults()))


async def _stream_whole_body(body: bytes, faults: SimulatedFaults) -> AsyncIterator[bytes]:
    if faults.garbage:
        yield INVALID_JSON
    elif faults.break_after is not None:
        yield body[: len(body) // 2]
        raise SimulatedDisconnect
    else:
        yield body
