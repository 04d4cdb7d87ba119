"""Fields of our answers that clients drop and a provider wants back, over real requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import call, result, shown, user, world

SIGNED = {**call("look"), "extra_content": {"google": {"thought_signature": "s+/="}}}
QUIRKS = {"restore_fields": ["reasoning_content", "tool_calls.extra_content"]}
MODELS = {"*": {"provider": "upstream", "context_window": 8192, "quirks": QUIRKS}}


def calls_then_answers(body: dict[str, Any]) -> Reply:
    if body["messages"][-1]["role"] == "tool":
        return completion("It is there.")
    return completion(None, reasoning_content="Where is it?", tool_calls=[SIGNED])


@pytest.mark.parametrize("quirks", [QUIRKS, {}])
async def test_a_dropped_thought_and_signature_go_back_upstream_where_they_are_wanted(quirks: dict[str, Any]) -> None:
    upstream = ScriptedUpstream(default=calls_then_answers)
    models = {"*": {**MODELS["*"], "quirks": quirks}}
    async with world(upstream, models=models) as gateway:
        question = [{"role": "system", "content": "s"}, user("Where?")]
        await gateway.say(question)
        bare = {"role": "assistant", "content": "", "tool_calls": [call("look")]}
        await gateway.say([*question, bare, result("here")])

    sent = shown(upstream)[-1][2]
    restored = {"reasoning_content": "Where is it?", "tool_calls": [SIGNED]} if quirks else {}
    assert sent == {**bare, **restored}
