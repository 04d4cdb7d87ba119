"""What a client pins stays in every view, whole rounds at a time, as long as it leaves room for the rest."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge.kept import answered, answering, assistant, long_history, shown, user, world
from tests.live import ScriptedUpstream

WINDOW = 4096
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "Shelf 31."}


async def test_an_appending_client_pins_what_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(monkeypatch, upstream, window=WINDOW) as gateway:
        await gateway.say([user("The code is 7719.")], conversation="c", context={"pin": [0]})
        for question in long_history(40)[::2]:
            body = await gateway.say([question], conversation="c")
        assert body["context"]["pinned"] == 1
        assert user("The code is 7719.") in shown(upstream)[-1]


async def test_results_that_come_later_belong_to_the_pinned_call(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(monkeypatch, upstream, window=WINDOW) as gateway:
        begun = [user("Where is it?"), CALL]
        await gateway.say([*begun, RESULT], conversation="c", headers={"x-context-mode": "append"})
        await gateway.say([user("Thanks")], conversation="c")
        history = [user("Where is it?"), CALL, RESULT]
        body = await gateway.say(history, context={"pin": [2]})
        history += [assistant(body["choices"][0]["message"]["content"]), *long_history(40), user("And?")]
        body = await gateway.say(history)
        assert body["context"]["pinned"] == 2
        view = shown(upstream)[-1]
        assert view[view.index(CALL) + 1] == RESULT


async def test_pins_above_their_share_are_refused_and_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(monkeypatch, upstream, window=WINDOW) as gateway:
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
async def test_what_cannot_be_pinned_is_refused(pin: object, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(monkeypatch, ScriptedUpstream(default=answering), window=WINDOW) as gateway:
        answer = await gateway.post([user("Hi")], context={"pin": pin})
        body = answer.json()
        assert answer.status_code == 400
        assert (body["error"]["code"], body["error"]["param"]) == (code, "context.pin")


async def test_a_branch_keeps_the_pins_that_it_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(monkeypatch, upstream, window=WINDOW) as gateway:
        begun = [user("The code is 7719."), answered("The code is 7719.")]
        await gateway.say(begun[:1], context={"pin": [0]})
        await gateway.say([*begun, user("Left")])
        other = [*begun, user("Right"), answered("Right"), *long_history(40), user("And?")]
        await gateway.say(other[:3])
        body = await gateway.say(other)
        assert body["context"]["pinned"] == 1
        assert begun[0] in shown(upstream)[-1]
