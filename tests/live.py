"""Applications behind real sockets in the test's own event loop, and an upstream that plays what a test wrote."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from fastapi.dependencies import models as fastapi_memory

from app.api.edge.connections import ClientConnections, ConnectionLimits
from app.assembly.dependencies import Dependencies
from app.assembly.endpoints import build_worker_application
from app.main import build_connection_limits
from app.settings import Settings, load_settings
from migrations import run as migrations

STEP_SECONDS = 0.005
END_SECONDS = 2.0
DROP = object()
"""In a script's pieces: cut the connection here."""
TEST_DEPENDENCIES = Dependencies(collect_garbage=functools.cache(gc.collect), freeze_garbage=functools.cache(gc.freeze))
"""Each application looks through the whole memory when it starts and freezes what it finds, for the garbage collector
to pass over. In a process that runs thousands of them, the first look takes as long as each later one, and what the
others leave behind would never be collected: a test process does both once."""


class _PromptServer(uvicorn.Server):
    """Looks more often whether it is to end, and whether it may: uvicorn takes a tenth of a second over each."""

    async def main_loop(self) -> None:
        while not self.should_exit:  # noqa: ASYNC110 - uvicorn sets a flag
            await asyncio.sleep(STEP_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        deadline = time.monotonic() + END_SECONDS
        while (self.server_state.connections or self.server_state.tasks) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(STEP_SECONDS)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


def create_test_app(
    settings: Settings,
    connections: ClientConnections | None = None,
    dependencies: Dependencies = TEST_DEPENDENCIES,
) -> Any:
    """The whole application of one process, as `app.main.create_app` makes it."""
    return build_worker_application(settings, None, connections, dependencies)


@asynccontextmanager
async def serving(
    app: Any, *, lifespan: Literal["on", "off"] = "on", connections: ClientConnections | None = None
) -> AsyncIterator[str]:
    """Run an ASGI application; gives its address. Without `connections` its clients may be as slow as they like."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http="auto" if connections is None else connections.create_connection,  # type: ignore[arg-type]  # whatever makes protocols
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    server = _PromptServer(config)
    running = asyncio.ensure_future(server.serve())
    while not server.started:
        if running.done():
            await running
            raise RuntimeError("the application did not start")
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        _forget_routes()


def _forget_routes() -> None:
    """FastAPI remembers the last thousands of functions that it looked at: with their routes, some seventy whole
    applications of 4 MB."""
    for remembered in vars(fastapi_memory).values():
        if isinstance(remembered, functools._lru_cache_wrapper):
            remembered.cache_clear()


@asynccontextmanager
async def gateway(
    upstream: str,
    *,
    database: str = "memory://",
    window: int = 8192,
    dependencies: Dependencies = TEST_DEPENDENCIES,
    create_connections: Callable[[ConnectionLimits], ClientConnections] = ClientConnections,
    **sections: Any,
) -> AsyncIterator[str]:
    """A gateway in front of `upstream`; gives its base URL. Every model has the same window.

    Turns wait for the summaries that they need, and none is made ahead, unless a test sets `blocking` and
    `prepare_ratio` of policy `additive`.
    """
    policies = dict(sections.pop("policies", {}))
    policies["additive"] = {"prepare_ratio": 1.0, "blocking": True, **policies.get("additive", {})}
    values: dict[str, Any] = {
        "database": {"url": database},
        "providers": {"upstream": {"base_url": f"{upstream}/v1", "api_key": "sk-upstream"}},
        "models": {"*": {"provider": "upstream", "context_window": window}},
        "retries": {"base_seconds": 0.01},
        "policies": policies,
    }
    merged = {**values, **sections}
    settings = load_settings(environ={}, arguments={(name,): value for name, value in merged.items()})
    await asyncio.to_thread(migrations.prepare_database, merged["database"]["url"], auto_migrate=True)
    connections = create_connections(build_connection_limits(settings))
    async with serving(create_test_app(settings, connections, dependencies), connections=connections) as address:
        yield f"{address}/v1"


@dataclass
class Reply:
    """One scripted answer: a whole body, or `pieces` sent one by one (`DROP` cuts the connection, a number waits).
    Nothing of it is sent before `gate` is open."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Sequence[Any] | None = None
    gate: asyncio.Event | None = None


def completion(content: str | None = "Fine.", *, prompt_tokens: int = 10, **message: Any) -> Reply:
    """An ordinary whole answer."""
    return Reply(
        {
            "id": "chatcmpl-upstream",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "upstream-model",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": content, "refusal": None, **message},
                    "logprobs": None,
                    "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
                }
            ],
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2},
            "x_vendor": {"kept": True},
        }
    )


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **extra: Any) -> bytes:
    """One event of an upstream's stream."""
    body = {
        "id": "chatcmpl-upstream",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "upstream-model",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
        **extra,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def usage_chunk(prompt_tokens: int = 10) -> bytes:
    body = {
        "id": "chatcmpl-upstream",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "upstream-model",
        "choices": [],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 2, "total_tokens": prompt_tokens + 2},
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream(*words: str, usage: bool = True) -> Reply:
    """An ordinary streamed answer."""
    pieces = [chunk({"role": "assistant", "content": ""})]
    pieces += [chunk({"content": word}) for word in words]
    pieces += [chunk({}, "stop"), *([usage_chunk()] if usage else []), DONE]
    return Reply(pieces=pieces)


class ScriptedUpstream:
    """An ASGI upstream: answers each call with the next scripted reply, or with what `default` makes of it.

    `bodies` and `requests` hold what it was asked, raw and decoded; `hung_up` counts clients that left early.
    """

    def __init__(self, *replies: Reply, default: Callable[[dict[str, Any]], Reply] | None = None) -> None:
        self.replies = list(replies)
        self.default = default or (lambda body: stream("Fine.") if body.get("stream") else completion())
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.queries: list[str] = []
        self.models = Reply({"object": "list", "data": [{"id": "upstream-model", "object": "model"}]})
        self.hung_up = 0
        self.left = asyncio.Event()

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "GET" and scope["path"].endswith("/models"):
            await self._send(self.models, send)
            return
        self.bodies.append(body)
        self.paths.append(scope["path"])
        self.queries.append(scope["query_string"].decode())
        self.headers.append({name.decode(): value.decode("latin-1") for name, value in scope["headers"]})
        reply = self.replies.pop(0) if self.replies else self.default(json.loads(body))
        sending = asyncio.ensure_future(self._send(reply, send))
        leaving = asyncio.ensure_future(receive())
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            self.hung_up += 1
            self.left.set()
            sending.cancel()
        leaving.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, reply: Reply, send: Any) -> None:
        if reply.gate is not None:
            await reply.gate.wait()
        kind = "text/event-stream" if reply.pieces is not None else "application/json"
        headers = {"content-type": kind, **reply.headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": raw})
        if reply.pieces is None:
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            await send({"type": "http.response.body", "body": body})
            return
        for piece in reply.pieces:
            if piece is DROP:
                raise ConnectionError("the script cuts the connection here")
            if isinstance(piece, int | float):
                await asyncio.sleep(piece)
            else:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
