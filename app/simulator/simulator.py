"""A simulated model server without a socket: a call in, status, headers and bytes out."""

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

from app.conversation.json_depth import TOO_DEEP, is_too_deep, may_be_too_deep
from app.errors import GatewayError, InvalidRequest, MethodNotAllowed, ModelNotFound, NotFound
from app.simulator.context_window import LISTED_MODELS, error_body, window_of
from app.simulator.model import Counter, SimulatedAnswer, reply
from app.simulator.openai_bytes import Envelope, completion, events
from app.simulator.options import Faults, SimulatorOptions, faults_in
from app.simulator.request_schemas import check_embeddings

BIG_BODY_BYTES = 65_536
"""Larger requests are counted and answered in a thread."""
DEFAULT_DIMENSIONS = 64
MOST_NUMBERS = 1_000_000
"""In all vectors of one answer."""
LIST_CREATED = 1_767_225_600
JSON_HEADERS = {"content-type": "application/json"}
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
GARBAGE = b'{"id": "chatcmpl-broken", "choices": [{"mess'


class BrokenOff(Exception):
    """The simulated connection is cut here."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it arrives: path below the API's base, lower-case header names."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """What goes back; `pieces` may raise `BrokenOff`."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


@dataclass(slots=True)
class Simulator:
    """The server's state: how often it was asked, and the last requests.

    Args:
        options: speed and faults.
        counter_for: the token counter for a model's name.
        clock: seconds since the epoch.
        new_id: makes the random part of answer ids.
        sleep: waits; tests move time instead.
    """

    options: SimulatorOptions
    counter_for: Callable[[str], Counter]
    clock: Callable[[], float]
    new_id: Callable[[], str]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    requests: deque[dict[str, Any]] = field(init=False)
    _tally: Tally[str] = field(init=False, default_factory=Tally)

    def __post_init__(self) -> None:
        self.requests = deque(maxlen=self.options.recorded_requests)

    async def handle(self, asked: Asked) -> Answered:
        """Answer one call; errors are answers too."""
        try:
            return await self._route(asked)
        except GatewayError as error:
            return _json(error.status, error.body())

    def model_list(self) -> list[dict[str, Any]]:
        """OpenAI's `data` array, with the window in the two spellings that servers use."""
        return [self._model(name) for name in LISTED_MODELS]

    async def _route(self, asked: Asked) -> Answered:
        path = asked.path.rstrip("/")
        if asked.method == "GET" and path == "/models":
            return _json(200, {"object": "list", "data": self.model_list()})
        if asked.method == "GET" and path.startswith("/models/"):
            name = path.removeprefix("/models/")
            if not name.startswith("sim"):
                raise ModelNotFound(f"The model {name!r} does not exist.", param="model")
            return _json(200, self._model(name))
        if path not in {"/chat/completions", "/embeddings"}:
            raise NotFound(f"Unknown path {asked.path!r}.")
        if asked.method != "POST":
            raise MethodNotAllowed(f"Method {asked.method} is not allowed on {asked.path!r}; use POST.")
        body = _object(asked.body)
        self.requests.append({"at": self.clock(), "path": path, "headers": dict(asked.headers), "body": body})
        if path == "/chat/completions":
            return await self._chat(body, len(asked.body))
        check_embeddings(body)
        return await asyncio.to_thread(self._embeddings, body)

    async def _chat(self, body: dict[str, Any], body_bytes: int) -> Answered:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise InvalidRequest("you must provide a model parameter", param="model")
        window = window_of(model, self.options.default_window)
        counter = self.counter_for(model)
        if body_bytes > BIG_BODY_BYTES:
            answer = await asyncio.to_thread(reply, body, window=window, counter=counter)
        else:
            answer = reply(body, window=window, counter=counter)
        faults = self._faults(model, answer)
        if faults.hang:
            await self.sleep(86_400.0)
        if faults.error_status is not None:
            return _failed(faults.error_status, faults.retry_after)
        if answer.error is not None:
            return _json(400, answer.error)
        if faults.empty:
            answer = SimulatedAnswer(text="", prompt_tokens=answer.prompt_tokens, is_summary=answer.is_summary)
        await self._pause(self.options.first_token_seconds + self.options.summary_seconds * answer.is_summary)
        if body.get("stream"):
            pieces = self._streamed(body, model, answer)
            return Answered(200, self._headers(STREAM_HEADERS), self._paced(pieces, faults))
        await self._pause(self.options.seconds_per_token * answer.completion_tokens)
        whole = completion(answer, self._envelope(model))
        return Answered(200, self._headers(JSON_HEADERS), _plain(whole, faults))

    def _faults(self, model: str, answer: SimulatedAnswer) -> Faults:
        """The faults that strike this request; each rule counts the requests in its scope."""
        named = faults_in(model)
        faults = self.options.faults if named is None else named
        if not faults.any or faults.on not in {"all", "summary" if answer.is_summary else "answer"}:
            return Faults()
        rule = "" if named is None else model
        self._tally[rule] += 1
        return faults if faults.strike(self._tally[rule]) else Faults()

    def _streamed(self, body: Mapping[str, Any], model: str, answer: SimulatedAnswer) -> Iterator[bytes]:
        include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return events(answer, self._envelope(model), include_usage=include_usage)

    async def _paced(self, pieces: Iterator[bytes], faults: Faults) -> AsyncIterator[bytes]:
        for sent, piece in enumerate(pieces):
            if sent == faults.break_after:
                raise BrokenOff
            if faults.garbage and sent:
                yield b"data: " + GARBAGE + b"\n\n"
                return
            if sent:
                await self._pause(self.options.seconds_per_token)
            yield piece

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self.sleep(seconds)

    def _embeddings(self, body: Mapping[str, Any]) -> Answered:
        model = str(body.get("model", "sim"))
        told = body.get("input", "")
        inputs = told if isinstance(told, list) and told and not isinstance(told[0], int) else [told]
        dimensions = body.get("dimensions") or DEFAULT_DIMENSIONS
        if dimensions * len(inputs) > MOST_NUMBERS:
            raise InvalidRequest(f"The simulated model writes at most {MOST_NUMBERS} numbers in one answer.")
        vectors = [vector(orjson.dumps(one), dimensions) for one in inputs]
        packed = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(one) if packed else one}
            for index, one in enumerate(vectors)
        ]
        count = self.counter_for(model).count
        tokens = sum(count(one) if isinstance(one, str) else len(one) if isinstance(one, list) else 1 for one in inputs)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json(200, {"object": "list", "data": data, "model": model, "usage": usage})

    def _model(self, name: str) -> dict[str, Any]:
        window = window_of(name, self.options.default_window)
        facts = {"id": name, "object": "model", "created": LIST_CREATED, "owned_by": "simulator"}
        return {**facts, "context_window": window, "max_model_len": window}

    def _envelope(self, model: str) -> Envelope:
        return Envelope(f"chatcmpl-{self.new_id()}", int(self.clock()), model)

    def _headers(self, kind: Mapping[str, str]) -> dict[str, str]:
        return {**kind, "x-request-id": f"req_{self.new_id()}", "openai-processing-ms": "1"}


def vector(text: bytes, dimensions: int) -> list[float]:
    """A vector of length one that depends on the text only."""
    stream = hashlib.shake_256(text).digest(dimensions * 2)
    raw = [value - 32_767.5 for value in struct.unpack(f"<{dimensions}H", stream)]
    length = sum(value * value for value in raw) ** 0.5
    return [value / length for value in raw]


def _packed(values: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def _object(body: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest("We could not parse the JSON body of your request.") from error
    if not isinstance(decoded, dict):
        raise InvalidRequest("The body of your request must be a JSON object.")
    if may_be_too_deep(body) and is_too_deep(decoded):
        raise InvalidRequest(f"The body of your request {TOO_DEEP}")
    return decoded


def _failed(status: int, retry_after_seconds: float | None) -> Answered:
    kind = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    answered = _json(status, error_body("A simulated failure.", type=kind))
    if retry_after_seconds is None:
        return answered
    headers = {**answered.headers, "retry-after": f"{retry_after_seconds:g}"}
    return Answered(status, headers, answered.pieces)


def _json(status: int, body: object) -> Answered:
    return Answered(status, JSON_HEADERS, _plain(orjson.dumps(body), Faults()))


async def _plain(body: bytes, faults: Faults) -> AsyncIterator[bytes]:
    if faults.garbage:
        yield GARBAGE
    elif faults.break_after is not None:
        yield body[: len(body) // 2]
        raise BrokenOff
    else:
        yield body
