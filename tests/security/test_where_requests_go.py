"""Nothing that a client sends becomes an address, nor a header, a path or a line of a request that is not its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import user, world
from tests.support.raw_http import chunks, raw

LINES = "a\r\nx-evil: 1\r\n\r\nGET /evil HTTP/1.1\r\n"


@asynccontextmanager
async def canary() -> AsyncIterator[tuple[int, list[tuple[str, int]]]]:
    """A port at which nobody has any business, and who came there."""
    came: list[tuple[str, int]] = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer.get_extra_info("peername"))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], came


async def test_no_address_that_a_client_names_is_ever_called() -> None:
    async with canary() as (port, came):
        upstream = ScriptedUpstream()
        place = f"http://127.0.0.1:{port}"
        async with world(upstream, window=200_000) as w:
            names = (
                f"{place}/v1/m",
                f"//127.0.0.1:{port}/m",
                f"upstream@127.0.0.1:{port}",
                "../../m",
            )
            # A name with a line break is none.
            assert (await raw(w, {"model": f"m\r\nHost: {place}", "messages": [user("x")]})).status_code == 400
            for model in names:
                told = {"model": model, "messages": [user("x")], "base_url": place, "api_base": place, "proxy": place}
                assert (await raw(w, told)).status_code == 200
                await w.client.post(f"{w.base_url}/embeddings", json={"model": model, "input": "x", "base_url": place})
            image = {"type": "image_url", "image_url": {"url": f"{place}/a.png"}}
            parts = [image, {"type": "file", "file": {"file_id": place}}, {"type": "text", "text": place}]
            assert (await raw(w, {"model": "m", "messages": [user("x") | {"content": parts}]})).status_code == 200
            named = {
                "x-forwarded-host": f"127.0.0.1:{port}",
                "forwarded": f"host=127.0.0.1:{port}",
                "x-base-url": place,
            }
            assert (await raw(w, {"model": "m", "messages": [user("x")]}, named)).status_code == 200
            assert (
                await raw(w, {"model": "m", "messages": [user("x")]}, {"host": f"127.0.0.1:{port}"})
            ).status_code == 200
            for path in (f"//127.0.0.1:{port}/x", f"/{place}", f"/@127.0.0.1:{port}/x", "/%2e%2e/%2e%2e/x", "/..%2fx"):
                await w.client.post(f"{w.base_url}{path}", json={"model": "m"})
            item = {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_image", "image_url": f"{place}/b.png"}],
            }
            await w.client.post(f"{w.base_url}/conversations", json={"items": [item]})
            hosts = {headers["host"] for headers in upstream.headers}
        assert came == []
        assert len(hosts) == 1, "of the provider that is configured"
        assert str(port) not in hosts.pop()
        assert [path for path in upstream.paths if not path.startswith("/v1/") or "/../" in path] == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_providers_redirect_is_not_followed(status: int) -> None:
    async with canary() as (port, came):
        away = Reply({"error": {"message": "moved"}}, status, headers={"location": f"http://127.0.0.1:{port}/v1"})
        async with world(ScriptedUpstream(*[away] * 9)) as w:
            assert (await w.post([user("x")])).status_code >= 300
            refused = await w.client.post(f"{w.base_url}/embeddings", json={"model": "m"})
            assert (refused.status_code, "location" in refused.headers) == (502, False)
            assert f"status {status}, a redirect" in refused.json()["error"]["message"]
        assert came == []


async def test_no_value_of_a_request_becomes_a_header_or_a_line_of_the_answer() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        answers = [
            await raw(w, {"model": LINES, "messages": [user("x")]}),
            await raw(w, {"model": "m", "messages": [user("x")], "conversation_id": LINES}),
            await raw(w, {"model": "m", "messages": [user("x")], "context": {"policy": LINES}}),
            await raw(w, {"model": "m", "messages": [user("x")], "metadata": {"conversation_id": LINES}}),
            await raw(w, {"model": "m", "messages": [user("x")]}, {"x-request-id": "mine", "x-context-policy": "a\tb"}),
            await w.client.get(f"{w.base_url}/conversations/conv%0d%0ax-evil:%201"),
            await w.client.get(f"{w.base_url.removesuffix('/v1')}/console?%0d%0ax-evil:%201"),
        ]
        upstream.replies = [Reply({"error": {"message": LINES, "code": LINES, "type": LINES}}, 429)] * 9
        answers.append(await raw(w, {"model": "m", "messages": [user("y")]}))
    assert [answer for answer in answers if "x-evil" in answer.headers] == []
    assert all(answer.headers["x-request-id"] not in ("mine", "") for answer in answers)
    assert [headers for headers in upstream.headers if "x-evil" in headers] == []
    assert [path for path in upstream.paths if "evil" in path] == []


async def test_no_text_of_anybodys_makes_an_event_of_its_own() -> None:
    forged = 'x\n\ndata: {"forged":1}\r\n\r\nevent: forged\ndata: [DONE]\n\n'
    call = {"id": forged, "type": "function", "function": {"name": forged, "arguments": forged}}
    failed = json.dumps({"error": {"message": forged, "code": forged}}).encode()
    said = stream(forged, forged)
    upstream = ScriptedUpstream(said, Reply(pieces=[b"data: " + failed + b"\n\n"]), Reply({"error": forged}, 400))
    async with world(upstream) as w:
        answer = await raw(w, {"model": forged, "messages": [user(forged)], "stream": True})
        assert (answer.status_code, answer.text.count("\n")) == (400, 0)
        for _ in range(2):
            answer = await raw(w, {"model": "m", "messages": [user(forged)], "stream": True})
            events = chunks(answer)
            assert [event for event in events if "forged" in event] == []
        asked: dict[str, Any] = {"model": "m", "stream": True}
        asked["messages"] = [user("a"), {"role": "assistant", "tool_calls": [call]}]
        asked["messages"].append({"role": "tool", "tool_call_id": forged, "content": forged})
        refused = await raw(w, asked)
        assert (refused.status_code, refused.json()["error"]) == (400, forged)
        upstream.replies = [completion(forged)]
        assert "forged" not in (await raw(w, {"model": forged, "messages": [user("b")]})).json()
