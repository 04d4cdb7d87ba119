"""What browsers are told with each answer, and what is not told of what answers."""

from __future__ import annotations

import asyncio
import re
import socket

from app.api.docs_page import render_docs_page
from tests.live import Reply, ScriptedUpstream
from tests.support.gateway import user, world

PATHS = (
    *("/v1/conversations", "/v1/models", "/v1/chat/completions", "/v1/conversations/conv_x", "/nothing", "/healthz"),
    *("/readyz", "/metrics", "/docs", "/openapi.json", "/console/", "/console/nothing"),
)


async def test_no_answer_is_guessed_at_kept_by_caches_or_says_who_gave_it() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        root = w.base_url.removesuffix("/v1")
        answers = [await w.post([user("x")]), await w.post([user("x")], stream=True), await w.post([])]
        upstream.replies = [Reply({"error": {"message": "no"}}, 400), Reply({}, headers={"server": "nginx/1.2"})]
        answers.append(await w.post([user("y")]))
        answers.append(await w.client.post(f"{w.base_url}/embeddings", json={"model": "m", "input": "x"}))
        answers += [await w.client.get(root + path) for path in PATHS]
        answers.append(await w.client.put(f"{root}/console/session"))
        for answer in answers:
            assert answer.headers.get("x-content-type-options") == "nosniff", answer.request.url
            assert "server" not in answer.headers or answer.headers["server"] == "uvicorn"  # the test's own server's
            assert "x-powered-by" not in answer.headers
            if answer.request.url.path.startswith("/v1/"):
                assert "no-store" in answer.headers["cache-control"], answer.request.url


async def test_what_could_not_be_read_is_told_no_more() -> None:
    async with world(ScriptedUpstream()) as w:
        port = int(re.findall(r":(\d+)", w.base_url)[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"NO SUCH\r\n\r\n")
        told = await reader.read()
        writer.close()
    assert b"x-content-type-options: nosniff" in told
    assert socket.gethostname().encode() not in told


async def test_the_page_of_endpoints_loads_nothing_and_runs_nothing() -> None:
    async with world(ScriptedUpstream()) as w:
        root = w.base_url.removesuffix("/v1")
        page = await w.client.get(f"{root}/docs")
        document = (await w.client.get(f"{root}/openapi.json")).json()
        assert (await w.client.get(f"{root}/redoc")).status_code == 404
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert re.findall(r"<script|<link|<img|<iframe|\son\w+=|src=|url\(|@import", page.text) == []
    assert re.findall(r'href="([^"]*)"', page.text) == ["openapi.json"]
    for path in document["paths"]:
        assert f"<code>{path}</code>" in page.text


def test_the_page_shows_markup_as_text() -> None:
    evil = '"><script>alert(1)</script>'
    operation = {"tags": [evil], "summary": evil, "parameters": [{"name": evil, "in": evil}], "responses": {evil: {}}}
    page = render_docs_page({"info": {"title": evil, "version": evil}, "paths": {f"/{evil}": {"get": operation}}})
    assert "<script" not in page
