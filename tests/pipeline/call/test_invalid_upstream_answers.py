"""Answers that are none: the error names who gave them, and says what to look at."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.live import DROP, Reply, ScriptedUpstream, chunk, completion, gateway, serving, stream
from tests.support.gateway import user, world
from tests.support.raw_http import chunks
from tests.upstream.http.loopback_server import Received, loopback, whole

FAILING = Reply({"error": {"message": "broken"}}, status=500)
HTML = Reply(b"<html>It works!</html>", headers={"content-type": "text/html"})
WHOLE: dict[str, Reply] = {
    "html": HTML,
    "no JSON": Reply(b"{"),
    "an empty body": Reply(b""),
    "another object": Reply({"object": "list", "data": []}),
    "a list": Reply([1]),
    "a stream": stream("Fine."),
}
STREAMED: dict[str, Reply] = {
    "html": HTML,
    "a whole answer that is none": Reply({"object": "list"}),
    "no event": Reply(pieces=[]),
    "no JSON": Reply(pieces=[b"data: {\n\n"]),
    "no JSON behind good chunks": Reply(pieces=[chunk({"content": "Half"}), b"data: {\n\n"]),
    "no object": Reply(pieces=[chunk({"content": "Half"}), b"data: 5\n\n"]),
    "an early end": Reply(pieces=[chunk({"content": "Half"})]),
    "a cut": Reply(pieces=[chunk({"content": "Half"}), DROP]),
}


def failure(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer, or the one that its stream ends with."""
    last = chunks(answer)[-1] if answer.status_code == 200 else answer.json()
    error: dict[str, Any] = last["error"]
    assert error["code"] == "upstream_unavailable"
    return error


def behind(first: str, second: str) -> dict[str, Any]:
    """Settings of a model whose fallback is at another provider."""
    return {
        "providers": {
            "first": {"base_url": f"{first}/v1", "api_key": "k"},
            "second": {"base_url": f"{second}/v1", "api_key": "k"},
        },
        "models": {
            "asked": {"provider": "first", "fallbacks": ["spare"], "context_window": 8192},
            "spare": {"provider": "second", "context_window": 8192},
        },
        "retries": {"attempts": 1, "base_seconds": 0.01},
    }


@pytest.mark.parametrize(
    ("streamed", "name"),
    [*((False, name) for name in WHOLE), *((True, name) for name in STREAMED)],
)
async def test_the_error_names_the_fallback_whose_answer_is_broken(streamed: bool, name: str) -> None:
    first = ScriptedUpstream(default=lambda _: FAILING)
    second = ScriptedUpstream(default=lambda _: (STREAMED if streamed else WHOLE)[name])
    async with (
        serving(first, lifespan="off") as one,
        serving(second, lifespan="off") as other,
        gateway("", **behind(one, other)) as base_url,
        httpx.AsyncClient() as client,
    ):
        body = {"model": "asked", "messages": [user("x")], "stream": streamed}
        error = failure(await client.post(f"{base_url}/chat/completions", json=body))
    assert second.bodies
    assert "second" in error["message"]
    assert "asked" not in error["message"].replace("asked for", "")
    assert "first" not in error["message"]


STATUSES = {
    "201 Created": "answered with status 201",
    "202 Accepted": "answered with status 202",
    "204 No Content": "answered with status 204",
    "304 Not Modified": "answered with status 304",
    "307 Temporary Redirect": "answered with status 307",
    "399 Odd": "answered with status 399",
    "600 Odd": "answered with status 600",
    "799 Odd": "answered with status 799",
    "999 Odd": "answered with status 999",
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("status", STATUSES)
async def test_a_status_that_no_answer_has_is_named(status: str, streamed: bool) -> None:
    async def answer(_: Received, writer: asyncio.StreamWriter) -> None:
        elsewhere = b"Location: http://elsewhere.example/v1\r\nContent-Type: text/html\r\n"
        has_body = not status.startswith(("204", "304"))
        writer.write(whole(b"secret" if has_body else b"", status, elsewhere))

    async with loopback(answer) as server:
        upstream = server.url.removesuffix("/v1")
        async with gateway(upstream, retries={"attempts": 1}) as base_url, httpx.AsyncClient() as client:
            body = {"model": "m", "messages": [user("x")], "stream": streamed}
            reply = await client.post(f"{base_url}/chat/completions", json=body)
    error = failure(reply)
    assert reply.status_code == 502
    assert "'upstream/m' " + STATUSES[status] in error["message"]
    assert "providers.upstream.base_url" in error["message"]
    assert ("Redirects are not followed" in error["message"]) == status.startswith("307")
    assert not any(word in error["message"] for word in ("elsewhere", "secret", "127.0.0.1"))


@pytest.mark.parametrize("status", [201, 203])
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_with_another_status_of_success_is_an_answer(status: int, streamed: bool) -> None:
    reply = stream("Fine.") if streamed else completion()
    reply.status = status
    async with world(ScriptedUpstream(reply)) as w:
        answer = await w.post([user("x")], stream=streamed)
    assert answer.status_code == 200
    assert "Fine." in answer.text
