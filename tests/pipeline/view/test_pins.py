"""What a client pins stays in every view, whole rounds at a time, as long as it leaves room for the rest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import ScriptedUpstream
from tests.support.conversations_client import done, refused
from tests.support.gateway import answered, answering, assistant, long_history, shown, user, world

WINDOW = 4096
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "Shelf 31."}


async def test_an_appending_client_pins_what_it_sends() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=WINDOW) as gateway:
        await gateway.say([user("The code is 7719.")], conversation="c", context={"pin": [0]})
        for question in long_history(40)[::2]:
            body = await gateway.say([question], conversation="c")
        assert body["context"]["pinned"] == 1
        assert user("The code is 7719.") in shown(upstream)[-1]


async def test_results_that_come_later_belong_to_the_pinned_call() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=WINDOW) as gateway:
        begun = [user("Where is it?"), CALL]
        await gateway.say([*begun, RESULT], conversation="c", headers={"x-context-mode": "append"})
        await gateway.say([user("Thanks")], conversation="c")
        history = [user("Where is the key?"), CALL, RESULT]
        body = await gateway.say(history, context={"pin": [2]})
        history += [assistant(body["choices"][0]["message"]["content"]), *long_history(40), user("And?")]
        body = await gateway.say(history)
        assert body["context"]["pinned"] == 2
        view = shown(upstream)[-1]
        assert view[view.index(CALL) + 1] == RESULT


async def test_pins_above_their_share_are_refused_and_nothing_is_stored() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=WINDOW) as gateway:
        long = "word " * 2_500
        answer = await gateway.post([user(long)], context={"pin": [0]})
        body = answer.json()
        assert answer.status_code == 400
        assert body["error"]["code"] == "pins_too_large"
        assert body["error"]["param"] == "context.pin"
        assert "at most 2048" in body["error"]["message"]
        assert gateway.conversations() == []


@pytest.mark.parametrize(
    ("pin", "code"), [([5], "invalid_value"), ([-1], "invalid_value"), ("0", "invalid_type"), ([True], "invalid_type")]
)
async def test_what_cannot_be_pinned_is_refused(
    pin: object,
    code: str,
) -> None:
    async with world(ScriptedUpstream(default=answering), window=WINDOW) as gateway:
        answer = await gateway.post([user("Hi")], context={"pin": pin})
        body = answer.json()
        assert answer.status_code == 400
        assert (body["error"]["code"], body["error"]["param"]) == (code, "context.pin")


async def test_a_branch_keeps_the_pins_that_it_shares() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, window=WINDOW) as gateway:
        begun = [user("The code is 7719."), answered("The code is 7719.")]
        await gateway.say(begun[:1], context={"pin": [0]})
        await gateway.say([*begun, user("Left")])
        other = [*begun, user("Right"), answered("Right"), *long_history(40), user("And?")]
        await gateway.say(other[:3])
        body = await gateway.say(other)
        assert body["context"]["pinned"] == 1
        assert begun[0] in shown(upstream)[-1]


async def test_what_is_pinned_is_listed_in_the_order_of_the_log() -> None:
    async with world(ScriptedUpstream(default=answering), window=WINDOW) as gateway:
        history = [user("Where is the key?"), CALL, RESULT]
        body = await gateway.say(history, conversation="c")
        assert (await done(gateway, "GET", "c/pins"))["data"] == []
        history += [assistant(body["choices"][0]["message"]["content"]), user("Keep this.")]
        await gateway.say(history, conversation="c", context={"pin": [4, 1]})
        page = await done(gateway, "GET", "c/pins")
        call, kept = page["data"]
        assert [(pin["from_seq"], pin["to_seq"]) for pin in (call, kept)] == [(1, 3), (4, 5)]
        assert [(one["seq"], one["role"], one["text"]) for one in call["messages"]] == [
            (1, "assistant", "calls look_up"),
            (2, "tool", "Shelf 31."),
        ]
        assert kept["messages"][0]["text"] == "Keep this."
        assert (page["first_id"], page["last_id"], page["has_more"]) == (call["id"], kept["id"], False)
        first = await done(gateway, "GET", "c/pins", limit=1)
        assert (first["data"], first["has_more"]) == ([call], True)
        rest = await done(gateway, "GET", "c/pins", after=call["id"])
        assert (rest["data"], rest["has_more"]) == ([kept], False)
        await done(gateway, "DELETE", f"c/items/{call['id']}/pin")
        assert (await done(gateway, "GET", "c/pins"))["data"] == [kept]
        await refused(gateway, 404, "GET", "c/pins", key="sk-two")
        await refused(gateway, 404, "GET", "c/pins", after="msg_made-up")
