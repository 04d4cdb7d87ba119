"""Request bodies in gzip, deflate, zstd and br are read on every path, within the limits, off the event loop."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import brotli
import pytest
from backports import zstd

from app.api.edge.request_reader import BodyBudget, BodyLimitMiddleware, read_body
from app.upstream.http.decompression import Decompressor
from tests.live import ScriptedUpstream
from tests.support.gateway import user, world

MB = 1024 * 1024
BODY = json.dumps({"model": "m", "messages": [user("compressed " + "x" * 3000)]}).encode()
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "GZIP": gzip.compress,
    "x-gzip": lambda body: gzip.compress(body[:100]) + gzip.compress(body[100:]),
    "deflate": zlib.compress,
    "zstd": lambda body: zstd.compress(body[:100]) + zstd.compress(body[100:]),
    "br": brotli.compress,
}


@pytest.mark.parametrize("encoding", COMPRESSIONS)
async def test_a_compressed_body_is_read_on_every_path(encoding: str) -> None:
    headers = {"content-encoding": encoding}
    packed = COMPRESSIONS[encoding](BODY)

    async def pieces() -> Any:
        for at in range(0, len(packed), 7):
            yield packed[at : at + 7]

    async with world(ScriptedUpstream()) as w:
        for path in ("chat/completions", "context/count", "embeddings"):
            for content in (packed, pieces()):
                answer = await w.client.post(f"{w.base_url}/{path}", content=content, headers=headers)
                assert answer.status_code == 200, (path, answer.text)
        made = await w.client.post(
            f"{w.base_url}/conversations",
            content=COMPRESSIONS[encoding](b'{"metadata":{"a":"b"}}'),
            headers={**headers, "content-type": "application/json"},
        )
        assert made.json()["metadata"] == {"a": "b"}
        seen = w.upstream.requests
    assert [body["messages"] for body in seen] == [json.loads(BODY)["messages"]] * 4
    assert all("content-encoding" not in one for one in w.upstream.headers)


@pytest.mark.parametrize("encoding", ["compress", "gzip, zstd", "gzip;q=1", "none"])
async def test_an_encoding_that_is_not_known_is_refused_with_those_that_are(encoding: str) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await w.client.post(
            f"{w.base_url}/chat/completions", content=BODY, headers={"content-encoding": encoding}
        )
        assert (answer.status_code, w.upstream.bodies) == (400, [])
    assert "send br, deflate, gzip, x-gzip, zstd, or none" in answer.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
@pytest.mark.parametrize("broken", ["plain", "cut", "more"])
async def test_a_body_that_is_not_compressed_as_announced_is_refused(encoding: str, broken: str) -> None:
    packed = COMPRESSIONS[encoding](BODY)
    content = {"plain": BODY, "cut": packed[:-5], "more": packed + b"rest"}[broken]
    async with world(ScriptedUpstream()) as w:
        answer = await w.client.post(
            f"{w.base_url}/chat/completions", content=content, headers={"content-encoding": encoding}
        )
        assert (w.rows(), w.upstream.bodies) == (0, [])
    assert answer.status_code == 400
    assert encoding in answer.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br"])
async def test_a_small_body_that_becomes_large_is_refused_before_it_is_held(encoding: str) -> None:
    bomb = COMPRESSIONS[encoding](b" " * 64 * MB)
    async with world(ScriptedUpstream(), server={"body_limit_bytes": 8 * MB}) as w:
        answer = await w.client.post(
            f"{w.base_url}/chat/completions", content=bomb, headers={"content-encoding": encoding}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert (await w.post([user("x")])).status_code == 200


async def test_what_is_decompressed_counts_among_the_bodies_in_flight() -> None:
    limits = {"max_concurrent_body_bytes": 4 * MB}
    async with world(ScriptedUpstream(), limits=limits, server={"body_limit_bytes": 8 * MB}) as w:
        content = gzip.compress(b" " * 5 * MB + BODY)
        answer = await w.client.post(
            f"{w.base_url}/chat/completions", content=content, headers={"content-encoding": "gzip"}
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
        assert (await w.post([user("x")])).status_code == 200


async def test_no_step_is_decompressed_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    decompress = Decompressor.decompress

    def watch(self: Decompressor, piece: bytes) -> Iterator[bytes]:
        for step in decompress(self, piece):
            threads.add(threading.get_ident())
            yield step

    monkeypatch.setattr(Decompressor, "decompress", watch)

    async def receive() -> Any:
        return {"type": "http.request", "body": zstd.compress(b" " * 10 * MB), "more_body": False}

    async def read(scope: Any, receive: Any, send: Any) -> None:
        assert len(await read_body(scope, receive, "a")) == 10 * MB

    application = BodyLimitMiddleware(read, 20 * MB, BodyBudget(0, 20 * MB))
    await application({"type": "http", "headers": [(b"content-encoding", b"zstd")]}, receive, None)  # type: ignore[arg-type]
    assert threads
    assert threading.get_ident() not in threads
