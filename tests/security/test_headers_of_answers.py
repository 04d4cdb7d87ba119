"""What browsers are told with each answer, and what is not told of what answers."""

from __future__ import annotations

import asyncio
import re
import socket

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


async def test_the_api_reference_loads_and_runs_files_of_the_gateway_only() -> None:
    async with world(ScriptedUpstream()) as w:
        root = w.base_url.removesuffix("/v1")
        page = await w.client.get(f"{root}/docs")
        assert (await w.client.get(f"{root}/redoc")).status_code == 404
        loaded = re.findall(r'(?:src|href)="([^"]*)"', page.text)
        assert "docs/vendor/scalar.js" in loaded
        for path in loaded:
            assert not re.match(r"[a-z]+:|/", path)
            answer = await w.client.get(f"{root}/{path}")
            assert answer.status_code == 200
            if path != "openapi.json":
                assert answer.headers["content-security-policy"] == page.headers["content-security-policy"]
        for path in ("index.html", "nothing.js", "vendor/scalar.js.gz", "../openapi.json", ""):
            missing = await w.client.get(f"{root}/docs/{path.replace('..', '%2e%2e')}")
            assert missing.status_code == 404, path
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    # No script stands in the page itself.
    assert re.findall(r"<script>|\son\w+=|style=|javascript:", page.text) == []
    told = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert told == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "vue",
    }


async def test_the_library_of_the_api_reference_is_sent_compressed_and_once() -> None:
    async with world(ScriptedUpstream()) as w:
        url = w.base_url.removesuffix("/v1") + "/docs/vendor/scalar.js"
        first = await w.client.get(url)
        assert first.headers["content-encoding"] == "gzip"
        assert int(first.headers["content-length"]) < 1_500_000 < len(first.content)
        again = await w.client.get(url, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
