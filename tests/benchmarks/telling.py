"""What a turn pays for being counted and told of: whole turns in this process, with telemetry and without it.

The database is SQLite, and a model answers that needs no time and no socket. Function calls are counted exactly;
seconds are those of this thread's processor, the best of many turns that take turns with each other.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import orjson
import uvicorn
from uvicorn.lifespan.on import LifespanOn

from app.api.edge.request_telemetry import RequestTelemetry
from app.api.edge.unknown_paths import CHAT_PATH
from app.assembly import gateway
from app.main import create_app
from app.observability.log import configure_logging
from app.settings import load_settings
from app.upstream.provider_contract import ClientKeyRule, ProviderProtocol, UpstreamReply, UpstreamRequest
from migrations import run as migrations
from tests.benchmarks.messages import words
from tests.live import DONE, chunk, completion, usage_chunk

MODEL: Final = "gpt-4o"
QUESTION: Final = words(1024, seed=1)
WARMING_TURNS: Final = 30
COUNTED_TURNS: Final = 20
BLOCKS: Final = 5
BLOCK_TURNS: Final = 200
"""One after the other: the interpreter adapts itself to what it does just now."""
CHUNKS: Final = 200
OFF: Final = {"metrics": False, "request_log": False, "recent_requests": 0}
WHOLE: Final = orjson.dumps(completion(words(300, seed=2), prompt_tokens=260).body)
PIECES: Final = (
    *(chunk({"content": f"word{number} "}) for number in range(CHUNKS)),
    *(chunk({}, "stop"), usage_chunk(260), DONE),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one turn, or of one piece of a stream."""

    calls: float
    seconds: float

    def beyond(self, other: Cost) -> Cost:
        return Cost(self.calls - other.calls, self.seconds - other.seconds)


class _Answer:
    """Implements `upstream.provider_contract.Reply`."""

    status = 200

    def __init__(self, call: UpstreamRequest) -> None:
        self._times = call.times
        streams = b'"stream":true' in call.body
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream" if streams else "application/json"}

    async def read(self) -> bytes:
        self._note()
        return WHOLE

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        for piece in PIECES:
            yield piece
        self._note()

    async def aclose(self) -> None:
        return None

    def _note(self) -> None:
        if self._times is not None:
            self._times.first_byte_at = self._times.ended_at = time.monotonic()


class _Provider:
    """Implements `upstream.provider_contract.Provider`."""

    name = "p"
    protocol: ProviderProtocol = "openai"
    client_key_rule: ClientKeyRule = "never"

    async def send(self, call: UpstreamRequest) -> UpstreamReply:
        return _Answer(call)

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        return []

    async def aclose(self) -> None:
        return None


@contextmanager
def _silenced() -> Iterator[None]:
    """Lines are written, and go nowhere."""
    with Path(os.devnull).open("w") as nowhere:
        configure_logging("info", "json", nowhere)
        yield
        configure_logging("error")


async def _application(stack: AsyncExitStack, telemetry: Mapping[str, Any]) -> RequestTelemetry:
    url = f"sqlite+aiosqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/kept.db"
    await asyncio.to_thread(migrations.prepare_database, url, auto_migrate=True)
    values: dict[str, Any] = {
        "database": {"url": url},
        "telemetry": telemetry,
        "providers": {"p": {"base_url": "http://provider.invalid/v1", "api_key": "sk-x"}},
        "models": {MODEL: {"provider": "p"}},
    }
    app: RequestTelemetry = create_app(
        load_settings(environ={}, arguments={(name,): value for name, value in values.items()})
    )
    lifespan = LifespanOn(uvicorn.Config(app))
    await lifespan.startup()
    stack.push_async_callback(lifespan.shutdown)
    return app


class _Turns:
    """Turns of one application, each of a conversation of its own."""

    def __init__(self, app: RequestTelemetry, *, streams: bool) -> None:
        self._app = app
        self._streams = streams
        self._number = 0
        self.best_seconds = float("inf")

    async def one(self) -> None:
        """A turn, and how long it took this thread."""
        self._number += 1
        question = {"role": "user", "content": f"{self._number} {self._streams} {QUESTION}"}
        body = orjson.dumps({"model": MODEL, "messages": [question], "stream": self._streams})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "method": "POST", "path": CHAT_PATH, "headers": headers}
        arriving, statuses = [{"type": "http.request", "body": body}], []

        async def receive() -> dict[str, Any]:
            if not arriving:
                await asyncio.Event().wait()
            return arriving.pop()

        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append(message["status"])

        begun = time.thread_time()
        await self._app(scope, receive, send)
        self.best_seconds = min(self.best_seconds, time.thread_time() - begun)
        assert statuses == [200]

    async def calls(self) -> float:
        """Function calls of a turn in this thread, those of C included."""
        count = 0

        def note(_frame: object, event: str, _of: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        for _ in range(COUNTED_TURNS):
            sys.setprofile(note)
            await self.one()
            sys.setprofile(None)
        return count / COUNTED_TURNS


async def _costs(*, streams: bool) -> tuple[Cost, Cost]:
    async with AsyncExitStack() as stack:
        both = [_Turns(await _application(stack, each), streams=streams) for each in ({}, OFF)]
        for _ in range(WARMING_TURNS):
            for turns in both:
                await turns.one()
        calls = [await turns.calls() for turns in both]
        for _ in range(BLOCKS):
            for turns in both:
                for _ in range(BLOCK_TURNS // (10 if streams else 1)):
                    await turns.one()
        with_it, without = (Cost(each, turns.best_seconds) for each, turns in zip(calls, both, strict=True))
        return with_it, without


def costs(*, streams: bool) -> tuple[Cost, Cost]:
    """A turn with telemetry as it is configured by default, and one with all of it switched off.

    Args:
        streams: the answer comes in `CHUNKS` pieces.
    """
    with _silenced(), mock.patch.object(gateway, "build_providers", return_value={"p": _Provider()}):
        return asyncio.run(_costs(streams=streams))
