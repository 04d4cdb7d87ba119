"""What Python cannot do without: three pass-through proxies on the gateway's own foundation, each a process of its own.

    python -m tests.benchmarks.floors pass|client|store PORT UPSTREAM_URL [DATABASE_FILE]

`pass`: bare ASGI on uvicorn (uvloop, httptools), aiohttp to the upstream; bytes in, bytes out.
`client`: the same, by the gateway's own client for providers (httpx over aiohttp, decision 51).
`store`: besides `pass`, both sides are parsed, and each turn becomes a row in SQLite, written in batches by a thread.
"""

from __future__ import annotations

import queue
import sqlite3
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import orjson
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from app.upstream.http.http_client import HttpClient
from app.upstream.http.http_client_contract import HttpTimeouts, RequestHead

BATCH_SECONDS = 0.02
JSON_HEADERS = {"content-type": "application/json", "authorization": "Bearer sk-up"}
Row = tuple[float, str, int, bytes, bytes]


class Keeper(Protocol):
    """What is made of a turn beside passing it on."""

    def asked(self, body: bytes) -> Any: ...

    def answered(self, question: Any, body: bytes) -> None: ...

    def close(self) -> None: ...


class Nothing:
    def asked(self, body: bytes) -> None: ...

    def answered(self, question: None, body: bytes) -> None: ...

    def close(self) -> None: ...


class Rows:
    """Parses both sides; a thread writes what came within `BATCH_SECONDS` in one transaction."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._waiting: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def asked(self, body: bytes) -> dict[str, Any]:
        parsed: dict[str, Any] = orjson.loads(body)
        return parsed

    def answered(self, question: dict[str, Any], body: bytes) -> None:
        messages = question["messages"]
        answer = _streamed_text(body) if question.get("stream") else orjson.loads(body)["choices"][0]["message"]
        row = (time.time(), question["model"], len(messages), orjson.dumps(messages[-1]), orjson.dumps(answer))
        self._waiting.put(row)

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _write(self) -> None:
        database = sqlite3.connect(self._file, isolation_level=None)
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=normal")
        database.execute("create table turns(id integer primary key, at real, model text, n int, asked, answered)")
        open_for_more = True
        while open_for_more:
            batch = [self._waiting.get()]
            time.sleep(BATCH_SECONDS)
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            open_for_more = batch[-1] is not None
            rows = [row for row in batch if row is not None]
            database.execute("begin")
            database.executemany("insert into turns(at, model, n, asked, answered) values (?, ?, ?, ?, ?)", rows)
            database.execute("commit")
        database.close()


class Proxy:
    """The ASGI application."""

    def __init__(self, upstream: str, keeper: Keeper) -> None:
        self._upstream = upstream
        self._keeper = keeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body = await _body(receive)
        question = self._keeper.asked(body)
        url = self._upstream + scope["path"]
        async with self._session.request(scope["method"], url, data=body, headers=JSON_HEADERS) as answer:
            kind = answer.headers.get("content-type", "").encode()
            if kind.startswith(b"text/event-stream"):
                whole = await self._stream(answer, kind, send)
            else:
                whole = await answer.read()
                headers = [(b"content-type", kind), (b"content-length", b"%d" % len(whole))]
                await send({"type": "http.response.start", "status": answer.status, "headers": headers})
                await send({"type": "http.response.body", "body": whole})
        self._keeper.answered(question, whole)

    async def _stream(self, answer: aiohttp.ClientResponse, kind: bytes, send: Send) -> bytes:
        await send({"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]})
        pieces = []
        async for piece in answer.content.iter_any():
            pieces.append(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return b"".join(pieces)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._session.close()
        self._keeper.close()
        await send({"type": "lifespan.shutdown.complete"})


class ClientProxy(Proxy):
    """The ASGI application that asks by the gateway's client."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        head = RequestHead(scope["method"], scope["path"], JSON_HEADERS)
        answer = await self._client.send(head, await _body(receive), None, None)
        kind = answer.headers.get("content-type", "").encode()
        headers = [(b"content-type", kind)]
        if kind.startswith(b"text/event-stream"):
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for piece in answer.iter_bytes():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        else:
            whole = await answer.read()
            headers.append((b"content-length", b"%d" % len(whole)))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": whole})
        await answer.aclose()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._client = HttpClient("floor", urlsplit(self._upstream), HttpTimeouts(), None, None)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})


async def _body(receive: Receive) -> bytes:
    message: Message = await receive()
    if not message.get("more_body"):
        return bytes(message["body"])
    pieces = [message["body"]]
    while message.get("more_body"):
        message = await receive()
        pieces.append(message["body"])
    return b"".join(pieces)


def _streamed_text(body: bytes) -> str:
    text = []
    for event in body.split(b"\n\n"):
        if event.startswith(b"data: {"):
            choices = orjson.loads(event[6:])["choices"]
            if choices:
                text.append(choices[0]["delta"].get("content") or "")
    return "".join(text)


def main(kind: str, port: str, upstream: str, file: str = "") -> None:
    keeper: Keeper = Rows(Path(file)) if kind == "store" else Nothing()
    proxy = ClientProxy if kind == "client" else Proxy
    uvicorn.run(
        proxy(upstream, keeper),
        host="127.0.0.1",
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="error",
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
