"""Agents whose turn failed carry their calls out anew, and append other results of the same calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import World, assistant, call, result, texts, user, world

NAMED = {"x-conversation-id": "agent-1"}
APPEND = {**NAMED, "x-context-mode": "append"}
ONE, TWO = call("look", call_id="c1"), call("look", call_id="c2")
FAILURE = Reply({"error": {"message": "no"}}, status=400)


async def fail(gateway: World, messages: list[dict[str, Any]], headers: dict[str, str]) -> None:
    gateway.upstream.replies = [FAILURE]
    assert (await gateway.post(messages, headers=headers)).status_code == 400


async def begin(gateway: World, *calls: dict[str, Any], headers: dict[str, str] = APPEND) -> str:
    """Has the model call its tools; returns the conversation's id."""
    gateway.upstream.replies = [completion(None, tool_calls=list(calls))]
    ours: str = (await gateway.say([user("Look")], headers=headers))["conversation_id"]
    return ours


def results_shown(gateway: World) -> list[tuple[str, str]]:
    messages = gateway.upstream.requests[-1]["messages"]
    return [(one["tool_call_id"], one["content"]) for one in messages if one["role"] == "tool"]


@pytest.mark.parametrize("mode", ["append", "auto"])
async def test_the_model_sees_the_newest_result_of_a_call(mode: str) -> None:
    headers = {**NAMED, "x-context-mode": mode}
    begun = [] if mode == "append" else [user("Look"), assistant(None, tool_calls=[ONE])]
    async with world(ScriptedUpstream(default=lambda _: completion("Fine."))) as gateway:
        ours = await begin(gateway, ONE, headers=headers)
        for content in ("7", "8"):
            await fail(gateway, [*begun, result(content, "c1")], headers)
        await gateway.say([*begun, result("9", "c1")], headers=headers)
        assert texts(gateway.upstream.requests[-1]["messages"]) == ["Look", None, "9"]
        await gateway.say([user("Next")], headers=headers)
        assert texts(gateway.upstream.requests[-1]["messages"]) == ["Look", None, "9", "Fine.", "Next"]
        assert texts(await gateway.log(ours)) == ["Look", None, "7", "8", "9", "Fine.", "Next", "Fine."]


@pytest.mark.parametrize("words", [[], [user("Hurry")]])
async def test_results_of_parallel_calls_may_come_in_another_order(words: list[dict[str, Any]]) -> None:
    async with world(ScriptedUpstream(default=lambda _: completion("Fine."))) as gateway:
        await begin(gateway, ONE, TWO)
        await fail(gateway, [result("7", "c1"), result("same", "c2"), *words], APPEND)
        await gateway.say([result("same", "c2"), result("8", "c1"), *words], headers=APPEND)
        assert results_shown(gateway) == [("c2", "same"), ("c1", "8")]
        assert texts(gateway.upstream.requests[-1]["messages"])[4:] == texts(words)


async def test_one_of_several_results_may_be_given_anew() -> None:
    async with world(ScriptedUpstream(default=lambda _: completion("Fine."))) as gateway:
        ours = await begin(gateway, ONE, TWO)
        await fail(gateway, [result("7", "c1"), result("same", "c2")], APPEND)
        await fail(gateway, [result("8", "c1")], APPEND)
        await gateway.say([result("9", "c1"), user("Hurry")], headers=APPEND)
        assert results_shown(gateway) == [("c2", "same"), ("c1", "9")]
        await gateway.say([user("Next")], headers=APPEND)
        assert results_shown(gateway) == [("c2", "same"), ("c1", "9")]
        assert texts(await gateway.log(ours))[2:7] == ["7", "same", "8", "9", "Hurry"]


async def test_an_attempt_may_lack_a_result_that_comes_with_newer_ones() -> None:
    async with world(ScriptedUpstream(default=lambda _: completion("Fine."))) as gateway:
        await begin(gateway, ONE, TWO)
        await fail(gateway, [result("7", "c1")], APPEND)
        await gateway.say([result("8", "c1"), result("new", "c2")], headers=APPEND)
        assert results_shown(gateway) == [("c1", "8"), ("c2", "new")]


async def test_an_attempt_may_bring_its_calls_itself() -> None:
    run = [user("Look"), assistant(None, tool_calls=[ONE])]
    async with world(ScriptedUpstream(default=lambda _: completion("Fine."))) as gateway:
        await gateway.say([user("Hi")], headers=APPEND)
        await fail(gateway, [*run, result("7", "c1")], APPEND)
        await gateway.say([*run, result("8", "c1")], headers=APPEND)
        assert texts(gateway.upstream.requests[-1]["messages"]) == ["Hi", "Fine.", "Look", None, "8"]


async def test_a_result_that_would_follow_other_words_is_refused() -> None:
    """The model must be shown the words of the attempt that failed, and a result follows its call."""
    async with world(ScriptedUpstream(default=lambda _: completion("Fine."))) as gateway:
        await begin(gateway, ONE)
        await fail(gateway, [result("7", "c1"), user("Mind the rule.")], APPEND)
        refused = await gateway.post([result("8", "c1"), user("Hurry.")], headers=APPEND)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].role")
        await gateway.say([user("Hurry.")], headers=APPEND)
        assert texts(gateway.upstream.requests[-1]["messages"])[2:] == ["7", "Mind the rule.", "Hurry."]


@pytest.mark.parametrize("ids", [("c1", "c1"), ("c1", "c2")])
async def test_results_of_different_calls_are_all_shown(ids: tuple[str, str]) -> None:
    """Some providers give their calls the same id."""
    async with world(ScriptedUpstream(default=lambda _: completion("Fine."))) as gateway:
        await begin(gateway, *(call("look", call_id=one) for one in ids))
        await fail(gateway, [result("7", ids[0])], APPEND)
        await gateway.say([result("8", ids[1])], headers=APPEND)
        assert results_shown(gateway) == [(ids[0], "7"), (ids[1], "8")]


@pytest.mark.parametrize("way", ["conversation", "previous_response_id"])
async def test_outputs_of_a_response_are_given_anew(way: str) -> None:
    async with world(ScriptedUpstream(default=lambda _: completion("Fine."))) as gateway:
        created = (await gateway.client.post(f"{gateway.base_url}/conversations", json={})).json()["id"]

        async def respond(given: Any, **fields: Any) -> dict[str, Any]:
            sent = {"model": "m", "input": given, **fields}
            body: dict[str, Any] = (await gateway.client.post(f"{gateway.base_url}/responses", json=sent)).json()
            return body

        gateway.upstream.replies = [completion(None, tool_calls=[ONE])]
        first = await respond("Look", **({"conversation": created} if way == "conversation" else {}))
        continued = {way: created if way == "conversation" else first["id"]}
        output = {"type": "function_call_output", "call_id": "c1"}
        gateway.upstream.replies = [FAILURE]
        assert "error" in await respond([{**output, "output": "7"}], **continued)
        assert (await respond([{**output, "output": "8"}], **continued))["status"] == "completed"
        assert results_shown(gateway) == [("c1", "8")]
