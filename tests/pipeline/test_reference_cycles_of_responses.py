"""As `test_reference_cycles`, for turns of the Responses API. Their answers have a state of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.api.edge.test_disconnect import BEGUN
from tests.live import DROP, STEP_SECONDS, Reply, ScriptedUpstream
from tests.pipeline.test_reference_cycles import TURNS, circles
from tests.store.test_database_outage import Flaky
from tests.support.gateway import World, world
from tests.support.raw_http import until

LONG = "word " * 9_000
"""More than the window of `world`."""


async def respond(w: World, text: str, **fields: Any) -> httpx.Response:
    body = {"model": "m", "input": text, **fields}
    headers = {"authorization": "Bearer sk-one"}
    return await w.client.post(f"{w.base_url}/responses", json=body, headers=headers)


async def whole(w: World, number: int) -> None:
    assert (await respond(w, f"question {number}")).status_code == 200


async def streamed(w: World, number: int) -> None:
    assert "response.completed" in (await respond(w, f"question {number}", stream=True)).text


async def continued(w: World, number: int) -> None:
    first = (await respond(w, f"question {number}")).json()["id"]
    assert (await respond(w, "and then", previous_response_id=first, stream=True)).status_code == 200


async def left(w: World, number: int) -> None:
    rows = w.rows()
    w.upstream.replies.append(Reply(pieces=[*BEGUN, 60]))
    body = {"model": "m", "input": f"question {number}", "stream": True}
    async with w.client.stream("POST", f"{w.base_url}/responses", json=body) as answer:
        lines = answer.aiter_lines()
        while "output_text.delta" not in await anext(lines):
            pass
    await until(lambda: w.rows() == rows + 2)


async def refused(w: World, number: int) -> None:
    w.upstream.replies.append(Reply({"error": {"message": "no"}}, status=400))
    assert (await respond(w, f"question {number}")).status_code == 400


async def refused_by_the_gateway(w: World, _: int) -> None:
    assert (await respond(w, LONG, instructions=LONG)).json()["error"]["code"] == "context_length_exceeded"
    assert (await respond(w, LONG, previous_response_id=f"resp_{'0' * 48}")).status_code == 400
    assert (await respond(w, LONG, tool_choice={"type": "web_search"})).status_code == 400


async def broken(w: World, number: int) -> None:
    w.upstream.replies.append(Reply(pieces=[*BEGUN, DROP]))
    assert "response.failed" in (await respond(w, f"question {number}", stream=True)).text


async def not_stored_of_a_stream(w: World, number: int) -> None:
    w.store.go("append")
    assert "response.completed" in (await respond(w, f"question {number}", stream=True)).text
    w.store.come_back()


@pytest.mark.parametrize(
    "turn", [whole, streamed, continued, left, refused, refused_by_the_gateway, broken, not_stored_of_a_stream]
)
async def test_a_turn_leaves_no_circles(turn: Callable[[World, int], Awaitable[None]]) -> None:
    async with world(ScriptedUpstream(), store=Flaky()) as w:
        await turn(w, 0)
        with circles() as found:
            for number in range(1, 1 + TURNS):
                await turn(w, number)
            await asyncio.sleep(STEP_SECONDS)  # connections close, tasks end
        assert found == {}
