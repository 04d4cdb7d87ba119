"""Compaction on request: estimated, made, watched; and pins, which it leaves alone."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import httpx
import pytest

from tests.api.edge.test_api_keys import locked
from tests.live import TEST_DEPENDENCIES, Reply, ScriptedUpstream, completion
from tests.support.conversations_client import KEY, call, done, every_message, question, refused, talk
from tests.support.gateway import (
    World,
    answering,
    assistant,
    is_summary,
    result,
    shown,
    summaries_asked,
    until,
    user,
    world,
)
from tests.support.gateway import call as tool_call

WINDOW = 32_000
QUICK_HEARTBEAT = dataclasses.replace(TEST_DEPENDENCIES, heartbeat_seconds=0.02)


def model() -> ScriptedUpstream:
    return ScriptedUpstream(default=answering)


async def ids(gateway: World) -> list[str]:
    """The item ids of the conversation's messages, by seq."""
    return [row["id"] for row in await every_message(gateway, "c/context", order="asc")]


async def watched(gateway: World, **wish: Any) -> list[dict[str, Any]]:
    """The events of a streamed compaction."""
    answer = await call(gateway, "POST", "c/compact", json={"stream": True, **wish})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = answer.text.removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


async def test_a_compaction_is_made_at_once_and_holds_for_the_next_turns() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 12)
        told = await done(gateway, "POST", "c/compact")
        assert (told["object"], told["ran"], told["outcome"]) == ("conversation.compaction", True, "completed")
        assert told["tokens_after"] < told["tokens_before"]
        (summary,) = told["summaries"]
        assert (summary["from_seq"], summary["to_seq"], summary["kind"]) == (0, 16, "model")
        assert told["usage"]["prompt_tokens"] == 1000
        assert (told["model"], told["warnings"]) == ("m", [])
        body = await talk(gateway, 1, first=12)
        assert body["context_status"] == "summarized"
        view = shown(upstream)[-1]
        assert summary["text"] in str(view[0]["content"])
        assert "<user_said>" in str(view[1]["content"])
        assert [message["content"] for message in view[2::2]] == [question(number, 60) for number in range(8, 13)]
        assert len(summaries_asked(upstream)) == 1
        told = await done(gateway, "GET", "c/context")
        assert told["status"] == "summarized"


async def test_a_dry_run_tells_what_would_be_and_asks_no_model() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 12)
        named, asked = await ids(gateway), len(upstream.requests)
        told = await done(gateway, "POST", "c/compact", json={"dry_run": True})
        (wanted,) = told["to_summarize"]
        assert (wanted["from_item"], wanted["through_item"]) == (named[0], named[15])
        assert (told["ran"], told["dry_run"], told["summaries"]) == (False, True, [])
        assert told["tokens_after"] < told["tokens_before"]
        assert len(upstream.requests) == asked
        assert gateway.chunks() == []


async def test_what_to_focus_on_reaches_the_summarizer() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 12)
        await done(gateway, "POST", "c/compact", json={"instructions": "Focus on parcels.", "model": "other"})
        (request,) = summaries_asked(upstream)
        assert request["model"] == "other"
        assert "Focus on parcels." in str(request["messages"][-1]["content"])


@pytest.mark.parametrize("policy", ["additive", "checkpoint"])
async def test_a_compaction_can_end_at_a_given_item(policy: str) -> None:
    upstream = model()
    async with world(upstream, window=WINDOW, policy=policy) as gateway:
        await talk(gateway, 12, words=200)
        named = await ids(gateway)
        for place in (7, 21):
            wish = {"through_item": named[place]}
            estimate = await done(gateway, "POST", "c/compact", json={**wish, "dry_run": True})
            assert estimate["to_summarize"][-1]["through_item"] == named[place]
            told = await done(gateway, "POST", "c/compact", json=wish)
            assert told["summaries"][-1]["through_item"] == named[place]
            assert (await done(gateway, "POST", "c/compact", json=wish))["ran"] is False
        await talk(gateway, 1, first=12, words=200)
        assert question(11, 200) in str(shown(upstream)[-1])
        assert question(10, 200) not in str(shown(upstream)[-1])


async def test_an_item_may_be_named_by_its_place_in_the_log() -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 12, words=200)
        named = await ids(gateway)
        estimate = await done(gateway, "POST", "c/compact", json={"through_item": "#7", "dry_run": True})
        assert estimate["to_summarize"][-1]["through_item"] == named[7]
        for beyond in ("#24", "#999999999", "#", "#-1", "#7x"):
            error = await refused(gateway, 400, "POST", "c/compact", json={"through_item": beyond})
            assert (error["param"], error["code"]) == ("through_item", "item_not_found")


async def test_a_log_is_cut_between_rounds_only() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 6)
        calls = [tool_call("look_up", '{"q": 1}', "a"), tool_call("look_up", '{"q": 2}', "b")]
        answers = [result("Shelf 31.", "a"), result("Shelf 32.", "b")]
        upstream.replies.append(completion(None, tool_calls=calls))
        await gateway.say([user("Where?")], conversation="c")
        await gateway.say(answers, conversation="c")
        named = await ids(gateway)
        assert len(named) == 17
        for place, nearest in ((13, 12), (14, 15)):
            error = await refused(gateway, 400, "POST", "c/compact", json={"through_item": named[place]})
            assert (error["param"], error["code"]) == ("through_item", "invalid_value")
            assert repr(named[nearest]) in error["message"]
        told = await done(gateway, "POST", "c/compact", json={"through_item": named[15]})
        assert told["summaries"][-1]["to_seq"] == 16
        error = await refused(gateway, 400, "POST", "c/compact", json={"through_item": "msg_unheard_of"})
        assert error["code"] == "item_not_found"


async def test_a_question_that_waits_for_its_answer_is_not_summarized() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 6)
        upstream.replies.append(Reply({"error": {"message": "No."}}, 400))
        await gateway.post([user("And?")], conversation="c")
        named = await ids(gateway)
        error = await refused(gateway, 400, "POST", "c/compact", json={"through_item": named[12]})
        assert repr(named[11]) in error["message"]


async def test_where_there_is_nothing_to_gain_it_says_so() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 1)
        for wish in ({}, {"dry_run": True}):
            told = await done(gateway, "POST", "c/compact", json=wish)
            assert (told["ran"], told["outcome"], told["summaries"]) == (False, "nothing_to_do", [])
            assert told["reason"]
            assert told["tokens_after"] == told["tokens_before"]
        assert summaries_asked(upstream) == []


@pytest.mark.parametrize(
    ("wish", "code", "param"),
    [
        ({"policy": "fade"}, "invalid_value", "policy"),
        ({"policy": "fold"}, "policy_not_found", "context.policy"),
        ({"focus": "parcels"}, "unknown_parameter", "focus"),
        ({"dry_run": "perhaps"}, "invalid_type", "dry_run"),
    ],
)
async def test_what_cannot_be_done_is_refused(
    wish: dict[str, Any],
    code: str | None,
    param: str,
) -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 6)
        error = await refused(gateway, 400, "POST", "c/compact", json=wish)
        assert (error["code"], error["param"]) == (code, param)


async def test_a_failing_summarizer_leaves_a_summary_without_a_model() -> None:
    failing = Reply({"error": {"message": "No."}}, 500)
    upstream = ScriptedUpstream(default=lambda body: failing if is_summary(body) else answering(body))
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 12)
        told = await done(gateway, "POST", "c/compact")
        assert (told["ran"], told["outcome"]) == (True, "failed")
        assert told["summaries"][0]["kind"] == "mechanical"
        assert "Summarized without a model" in told["warnings"][0]


async def test_the_conversation_is_held_meanwhile() -> None:
    upstream = model()
    compaction = {"wait_seconds": 0.1}
    async with world(upstream, window=WINDOW, compaction=compaction) as gateway:
        await talk(gateway, 12)
        gate = asyncio.Event()
        waiting = completion("They spoke about gardens.")
        waiting.gate = gate
        upstream.replies.append(waiting)
        compacting = asyncio.ensure_future(call(gateway, "POST", "c/compact"))
        await until(lambda: bool(summaries_asked(upstream)))
        error = await refused(gateway, 409, "POST", "c/compact")
        assert error["code"] == "conversation_busy"
        assert (await gateway.post([user("Hello")], conversation="c")).status_code == 409
        assert (await done(gateway, "GET", "c/context"))["status"] == "full"
        gate.set()
        assert (await compacting).json()["ran"] is True
        await talk(gateway, 1, first=12)


async def test_progress_is_told_in_a_stream() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW, dependencies=QUICK_HEARTBEAT) as gateway:
        await talk(gateway, 12)
        slow = completion("They spoke about gardens.")
        upstream.replies.append(Reply(pieces=[0.1, json.dumps(slow.body).encode()]))
        events = await watched(gateway)
        progress = [event for event in events if event["type"] == "compaction_progress"]
        started, summary, last = (event for event in events if event not in progress)
        assert events[:2] == [started, progress[0]]
        assert [event["type"] for event in (started, summary)] == ["compaction_started", "summary_completed"]
        assert started["context_window"] == WINDOW
        assert (progress[0]["done"], progress[0]["ranges"]) == (0, 1)
        assert progress[-1]["elapsed_ms"] >= progress[0]["elapsed_ms"]
        assert events[-1] == last
        late = events[events.index(summary) + 1 : -1]
        assert all((event["done"], event["ranges"]) == (1, 1) for event in late)
        assert (last["type"], last["object"], last["ran"]) == ("compaction_completed", "conversation.compaction", True)
        assert [one["id"] for one in last["summaries"]] == [summary["id"]]
        (again,) = [event for event in await watched(gateway) if event["type"] != "compaction_progress"]
        assert (again["type"], again["ran"]) == ("compaction_completed", False)


async def test_a_stream_is_had_by_asking_for_its_type() -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 12)
        answer = await gateway.client.post(
            f"{gateway.base_url}/conversations/c/compact",
            headers={"authorization": f"Bearer {KEY}", "accept": "text/event-stream"},
        )
        assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_failure_after_the_start_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        await talk(gateway, 12)

        async def fail(*_: object, **__: object) -> None:
            raise RuntimeError("the disk is gone")

        monkeypatch.setattr(gateway.store, "append", fail)
        events = await watched(gateway)
        assert events[0]["type"] == "compaction_started"
        assert events[-1]["error"]["code"] == "internal_error"
        answer = await call(gateway, "POST", "unheard-of/compact", json={"stream": True})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "conversation_not_found")


async def test_a_client_that_hangs_up_does_not_end_it() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW, dependencies=QUICK_HEARTBEAT) as gateway:
        await talk(gateway, 12)
        gate = asyncio.Event()
        waiting = completion("They spoke about gardens.")
        waiting.gate = gate
        upstream.replies.append(waiting)
        url = f"{gateway.base_url}/conversations/c/compact"
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", url, json={"stream": True}, headers={"authorization": f"Bearer {KEY}"}) as answer,
        ):
            async for line in answer.aiter_lines():
                if "compaction_progress" in line:
                    break
        gate.set()
        await until(lambda: bool(gateway.chunks()))
        body = await talk(gateway, 1, first=12)
        assert body["context_status"] == "summarized"


async def test_a_resending_client_goes_on_with_the_compacted_view() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        history: list[dict[str, Any]] = []
        for number in range(12):
            history.append(user(question(number, 60)))
            body = await gateway.say(history)
            history.append(assistant(body["choices"][0]["message"]["content"]))
        named = body["conversation_id"]
        told = await done(gateway, "POST", f"{named}/compact")
        assert told["ran"] is True
        body = await gateway.say([*history, user("And?")])
        assert (body["conversation_id"], body["context_status"]) == (named, "summarized")


async def test_pins_hold_whole_rounds_and_are_taken_off_again() -> None:
    upstream = model()
    async with world(upstream, window=WINDOW) as gateway:
        upstream.replies.append(completion(None, tool_calls=[tool_call("look_up", "{}", "a")]))
        await gateway.say([user("Where?")], conversation="c")
        await gateway.say([result("Shelf 31.", "a")], conversation="c")
        await talk(gateway, 11)
        named = await ids(gateway)
        for _ in range(2):
            pinned = await done(gateway, "POST", f"c/items/{named[2]}/pin")
            assert (pinned["id"], pinned["pinned"], pinned["output"]) == (named[2], True, "Shelf 31.")
        await done(gateway, "POST", "c/compact")
        rows = await every_message(gateway, "c/context", order="asc")
        assert [row["seq"] for row in rows if row["pinned"]] == [1, 2]
        assert [row["disposition"] for row in rows[:4]] == ["summarized", "pinned", "pinned", "summarized"]
        for _ in range(2):
            assert (await done(gateway, "DELETE", f"c/items/{named[1]}/pin"))["pinned"] is False
        rows = await every_message(gateway, "c/context", order="asc")
        assert not any(row["pinned"] for row in rows)


async def test_pins_above_their_share_are_refused() -> None:
    async with world(model(), window=4096) as gateway:
        await gateway.say([user("word " * 2_500)], conversation="c")
        (first, _) = await ids(gateway)
        error = await refused(gateway, 400, "POST", f"c/items/{first}/pin")
        assert (error["code"], error["param"]) == ("pins_too_large", "item_id")


async def test_instructions_are_always_shown_pinned_or_not() -> None:
    async with world(model(), window=WINDOW) as gateway:
        items = [{"role": "system", "content": "Be brief."}]
        headers = {"authorization": f"Bearer {KEY}"}
        begun = await gateway.client.post(f"{gateway.base_url}/conversations", json={"items": items}, headers=headers)
        path = f"{begun.json()['id']}/items"
        (told,) = (await done(gateway, "GET", path))["data"]
        for method in ("POST", "DELETE"):
            assert (await done(gateway, method, f"{path}/{told['id']}/pin"))["pinned"] is True


async def test_pins_that_are_made_at_the_same_time_are_all_kept() -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 4)
        named = await ids(gateway)
        await asyncio.gather(*(done(gateway, "POST", f"c/items/{one}/pin") for one in named))
        rows = await every_message(gateway, "c/context")
        assert all(row["pinned"] for row in rows)


async def test_others_cannot_compact_or_pin() -> None:
    async with world(model(), window=WINDOW) as gateway:
        await talk(gateway, 2)
        (conversation,) = gateway.conversations()
        named = await ids(gateway)
        for method, path in (
            ("POST", "compact"),
            ("POST", f"items/{named[0]}/pin"),
            ("DELETE", f"items/{named[0]}/pin"),
        ):
            error = await refused(gateway, 404, method, f"{conversation.id}/{path}", key="sk-two")
            assert error["code"] == "conversation_not_found"


async def test_a_key_compacts_with_its_own_models_only() -> None:
    async with locked(window=WINDOW) as gateway:
        everything, _ = await gateway.key(tenant="us")
        chats = [{"model": "m", "messages": [user(question(n))], "conversation": "c"} for n in range(12)]
        for chat in chats:
            assert (await gateway.ask("POST", "/chat/completions", everything, json=chat)).status_code == 200
        reading, _ = await gateway.key(tenant="us", scopes=("read",), models=("other",))
        told = await gateway.ask("GET", "/conversations/c/context", reading)
        assert (told.status_code, told.json()["model"]) == (200, "m")
        assert (await gateway.ask("POST", "/conversations/c/compact", reading)).status_code == 403
        bound, _ = await gateway.key(tenant="us", scopes=("read", "manage"), models=("other",))
        for wish in ({}, {"model": "m"}, {"dry_run": True}):
            refusal = await gateway.ask("POST", "/conversations/c/compact", bound, json=wish)
            assert (refusal.status_code, refusal.json()["error"]["param"]) == (403, "model")
        done_by_other = await gateway.ask("POST", "/conversations/c/compact", bound, json={"model": "other"})
        assert done_by_other.json()["ran"] is True
        (summary,) = done_by_other.json()["summaries"]
        place = f"/conversations/c/summaries/{summary['id']}/regenerate"
        assert (await gateway.ask("POST", place, bound)).status_code == 403
        assert (await gateway.ask("POST", place, bound, json={"model": "other"})).json()["revision"] == 2


async def test_a_key_s_own_policy_is_the_one_that_is_looked_with() -> None:
    async with locked(window=WINDOW) as gateway:
        fading, _ = await gateway.key(tenant="us", policy="fade")
        chat = {"model": "m", "messages": [user("Hello")], "conversation": "c"}
        await gateway.ask("POST", "/chat/completions", fading, json=chat)
        told = await gateway.ask("GET", "/conversations/c/context", fading)
        assert told.json()["policy"] == "fade"
