"""Lists of a chat completion have ends; what is too long is told with the setting that allows it, and asks nobody."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge.kept import assistant, user, world
from tests.live import ScriptedUpstream

LIMITS = {"max_messages": 4, "max_tools": 3}


def tools(count: int, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}}
        for number in range(count)
    ]


async def test_too_many_messages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")]
    upstream = ScriptedUpstream()
    async with world(monkeypatch, upstream, limits=LIMITS) as w:
        await w.say(said[2:])
        answer = await w.post(said)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "array_above_max_length", "messages")
        assert "limits.max_messages" in error["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert (len(upstream.bodies), w.rows()) == (1, 4)


async def test_too_many_tools_are_refused_and_long_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ScriptedUpstream()
    long = {"type": "object", "properties": {"x": {"type": "string", "description": "long " * 100}}}
    async with world(monkeypatch, upstream, limits=LIMITS) as w:
        await w.say([user("a")], tools=tools(3, long))
        answer = await w.post([user("b")], tools=tools(4, long))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "array_above_max_length", "tools")
        assert "limits.max_tools" in error["message"]
        assert len(upstream.bodies) == 1
