"""Lists of a chat completion have ends; what is too long is told with the setting that allows it, and asks nobody."""

from __future__ import annotations

import threading
from collections.abc import Sized
from types import ModuleType
from typing import Any

import pytest

from app.pipeline.resolve import client_history, client_log
from tests.live import ScriptedUpstream, completion
from tests.support.gateway import assistant, user, world

LIMITS = {"max_messages": 4, "max_tools": 3}


def tools(count: int, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}}
        for number in range(count)
    ]


async def test_too_many_messages_are_refused() -> None:
    said = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")]
    upstream = ScriptedUpstream()
    async with world(upstream, limits=LIMITS) as w:
        await w.say(said[2:])
        answer = await w.post(said)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "array_above_max_length", "messages")
        assert "limits.max_messages" in error["message"]
        assert answer.headers["x-should-retry"] == "false"
        assert (len(upstream.bodies), w.rows()) == (1, 4)


async def test_no_more_than_20_000_messages_are_taken_at_once_by_default() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        answer = await w.post([user("a")] * 20_001)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "array_above_max_length", "messages")
        assert "20001 elements; there may be 20000" in error["message"]
        assert "limits.max_messages" in error["message"]
        assert upstream.bodies == []


async def test_messages_of_a_long_history_are_looked_at_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[tuple[str, bool]] = []

    def watch(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def called(*arguments: Any, **named: Any) -> Any:
            if max(len(one) for one in arguments if isinstance(one, Sized)) > 500:
                looked_at.append((name, threading.current_thread() is threading.main_thread()))
            return function(*arguments, **named)

        monkeypatch.setattr(module, name, called)

    watch(client_history, "check_messages")
    watch(client_log, "align")
    said = [user("a " * 100), assistant("b " * 100)] * 500
    answer = "one two three four five six seven eight nine ten eleven"
    upstream = ScriptedUpstream(default=lambda body: completion(f"{body['messages'][-1]['content']} {answer}"))
    async with world(upstream) as w:
        await w.say([*said, user("c")])
        await w.say([user("A " * 100), *said[1:], user("c")])  # another beginning
        await w.say([*said, user("d")])
        await w.say([*said, user("d"), assistant(f"d {answer} [1]"), user("e")])  # a changed answer
    assert {name for name, _ in looked_at} == {"check_messages", "align"}
    assert not any(on_event_loop for _, on_event_loop in looked_at)


async def test_too_many_tools_are_refused_and_long_ones_are_not() -> None:
    upstream = ScriptedUpstream()
    long = {"type": "object", "properties": {"x": {"type": "string", "description": "long " * 100}}}
    async with world(upstream, limits=LIMITS) as w:
        await w.say([user("a")], tools=tools(3, long))
        answer = await w.post([user("b")], tools=tools(4, long))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "array_above_max_length", "tools")
        assert "limits.max_tools" in error["message"]
        assert len(upstream.bodies) == 1
