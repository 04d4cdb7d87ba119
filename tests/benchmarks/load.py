"""A load generator: closed loop, raw sockets, prebuilt bodies. A process that takes jobs on stdin, one JSON a line.

    python -m tests.benchmarks.load

A job names a port, how many connections, and either a `question` (asked over and over for `seconds`, a number in each)
or a `history` (so many conversations of a size, each sent for so many turns, on from where an earlier job with
the same `key` left it). Every answer is checked: status 200 and a whole body, a stream up to its `[DONE]`. The
result is one JSON line.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import httptools
import msgspec
import orjson
import uvloop

from tests.benchmarks.messages import KEY, History, question

ASKED_PER_SECOND_AT_MOST = 30_000
DEADLINE_SECONDS = 90.0
STREAM_END = b"data: [DONE]\n\n"
_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %b\r\nAccept: */*\r\n%bContent-Length: %d\r\n\r\n"
)


class Job(msgspec.Struct):
    """What to send. `salt` numbers questions and conversations: no two jobs of a run share any."""

    port: int
    connections: int
    salt: int
    model: str = "scripted-1-0"
    stream: bool = False
    chunks: int = 1
    """Content chunks that a stream must bring, at least."""
    seconds: float = 0.0
    """How long questions are asked; 0: `turns` turns of each of `conversations` histories are sent."""
    key: str = ""
    conversations: int = 0
    size_bytes: int = 0
    turns: int = 1
    headers: dict[str, str] = {}
    """What each request has beside its key."""


@dataclass
class Results:
    milliseconds: list[float] = field(default_factory=list)
    first_byte_milliseconds: list[float] = field(default_factory=list)
    sent_bytes: int = 0
    events: int = 0
    faults: list[str] = field(default_factory=list)


class Source(Protocol):
    """Where a connection's next request comes from, and who reads its answer."""

    def next(self) -> bytes | None:
        """A request body; None when there is no more."""

    def answered(self, body: bytes) -> None:
        """The answer to the last one.

        Raises:
            ValueError: it is not what it must be.
        """


class Questions:
    """One question after another until the time is over, all connections drawing from one counter."""

    def __init__(self, job: Job, numbers: Iterator[int], until_seconds: float) -> None:
        self._before, self._after = question(model=job.model, stream=job.stream)
        self._numbers = numbers
        self._until_seconds = until_seconds
        self._stream = job.stream
        self._chunks = job.chunks

    def next(self) -> bytes | None:
        if time.perf_counter() >= self._until_seconds:
            return None
        return b"%b%08d%b" % (self._before, next(self._numbers) % 100_000_000, self._after)

    def answered(self, body: bytes) -> None:
        if self._stream:
            if not body.endswith(STREAM_END):
                raise ValueError(f"a stream ended without its end: {body[-200:]!r}")
            if body.count(b'"content":"word') < self._chunks:
                raise ValueError(f"a stream lost chunks: {body.count(b'data: ')} events")
        elif not orjson.loads(body)["choices"][0]["message"]["content"].startswith("Answer "):
            raise ValueError(f"not the answer that was scripted: {body[:200]!r}")


class Turns:
    """Conversations, each sent for some turns before the next one is begun."""

    def __init__(self, histories: list[History], turns: int) -> None:
        self._due = [history for history in histories for _ in range(turns)]
        self._at = 0

    def next(self) -> bytes | None:
        return self._due[self._at].body() if self._at < len(self._due) else None

    def answered(self, body: bytes) -> None:
        self._due[self._at].answered(body)
        self._at += 1


class Client(asyncio.Protocol):
    """One connection that asks, waits for the whole answer, and asks again."""

    def __init__(self, job: Job, source: Source, results: Results, on_end: Callable[[], None]) -> None:
        self._port = job.port
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in job.headers.items()).encode()
        self._source = source
        self._results = results
        self._on_end = on_end
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was closed: {exc}")

    def on_message_begin(self) -> None:
        self._pieces.clear()
        self._first_byte_at = 0.0

    def on_body(self, body: bytes) -> None:
        if not self._pieces:
            self._first_byte_at = time.perf_counter()
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        body = b"".join(self._pieces)
        status = self._parser.get_status_code()
        if status != 200:
            self._end(f"status {status}: {body[:500]!r}")
            return
        try:
            self._source.answered(body)
        except (ValueError, LookupError, TypeError) as error:
            self._end(str(error))
            return
        self._results.milliseconds.append((now - self._asked_at) * 1000)
        self._results.first_byte_milliseconds.append((self._first_byte_at - self._asked_at) * 1000)
        self._results.events += body.count(b"data: ")
        if not self._parser.should_keep_alive():
            self._end("the connection was not kept alive")
            return
        self._ask()

    def _ask(self) -> None:
        body = self._source.next()
        if body is None:
            self._end(None)
            return
        self._parser = httptools.HttpResponseParser(self)
        self._results.sent_bytes += len(body)
        self._asked_at = time.perf_counter()
        self._transport.writelines([_HEAD % (self._port, KEY.encode(), self._headers, len(body)), body])

    def _end(self, fault: str | None) -> None:
        if self._ended:
            return
        self._ended = True
        if fault is not None:
            self._results.faults.append(fault)
        self._transport.close()
        self._on_end()


async def run(job: Job, kept: dict[str, list[History]]) -> dict[str, Any]:
    """Do a job; `kept` holds the conversations that later jobs go on with."""
    results = Results()
    sources = _sources(job, kept)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    left = len(sources)

    def on_end() -> None:
        nonlocal left
        left -= 1
        if not left:
            ended.set()

    begun = time.perf_counter()
    for source in sources:
        make = lambda source=source: Client(job, source, results, on_end)  # noqa: E731 - bound to this turn
        await loop.create_connection(make, "127.0.0.1", job.port)
    try:
        await asyncio.wait_for(ended.wait(), job.seconds + DEADLINE_SECONDS)
    except TimeoutError:
        results.faults.append("no answer in time")
    wall_seconds = time.perf_counter() - begun
    return {
        "requests": len(results.milliseconds),
        "faults": len(results.faults),
        "first_fault": results.faults[0] if results.faults else None,
        "wall_seconds": wall_seconds,
        "requests_per_second": len(results.milliseconds) / wall_seconds,
        "sent_bytes": results.sent_bytes,
        "events": results.events,
        "latency_ms": percentiles(results.milliseconds),
        "first_byte_ms": percentiles(results.first_byte_milliseconds),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and the highest, empty where nothing was measured."""
    ordered = sorted(values)
    if not ordered:
        return {}
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)], "max": ordered[-1]}


def question_numbers(job: Job) -> range:
    """The numbers of its questions."""
    return range(job.salt, job.salt + int((job.seconds + 1) * ASKED_PER_SECOND_AT_MOST))


def _sources(job: Job, kept: dict[str, list[History]]) -> list[Source]:
    if job.seconds:
        numbers = iter(question_numbers(job))
        until_seconds = time.perf_counter() + job.seconds
        return [Questions(job, numbers, until_seconds) for _ in range(job.connections)]
    if job.key not in kept:
        kept[job.key] = [
            History(model=job.model, size_bytes=job.size_bytes, salt=job.salt + number)
            for number in range(job.conversations)
        ]
    histories = kept[job.key]
    return [Turns(histories[place :: job.connections], job.turns) for place in range(job.connections)]


def main() -> None:
    decode = msgspec.json.Decoder(Job | None).decode
    kept: dict[str, list[History]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        job = decode(line)
        if job is None:
            kept.clear()
            continue
        print(orjson.dumps(uvloop.run(run(job, kept))).decode(), flush=True)


if __name__ == "__main__":
    main()
