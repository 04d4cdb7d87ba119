"""What the model saw for an answer is put together again from what is stored."""

from __future__ import annotations

import json

import pytest

from app.pipeline.view.view_restoration import restore_view, restore_view_messages
from tests.live import ScriptedUpstream
from tests.support.gateway import answering, user, world
from tests.support.gateway import shown as shown_to


@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune", "window"])
async def test_a_view_is_replayed_from_what_is_stored_byte_for_byte(policy: str) -> None:
    """The client appends, so every byte that was sent is one that is stored."""
    upstream = ScriptedUpstream(default=answering)
    changed = {"recall": "quote", "clear_tool_results": {"trigger_tokens": 1_000}}
    async with world(upstream, window=4096, policy=policy, policies={policy: changed}) as gateway:
        for number in range(60):
            text = f"Parcel {number} for Maria weighs {number * 3} kg. " + "It went on and on. " * 20
            told = [user(text if number % 9 else "What does the parcel for Maria weigh, number 3?")]
            body = await gateway.say(told, conversation="c", headers={"x-context-mode": "append"})
        (conversation,) = gateway.conversations()
        answers = [entry for entry in await gateway.store.read_log(conversation, 0, 120) if entry.meta]
        for answer, sent in zip(answers, shown_to(upstream), strict=True):
            view = await restore_view(gateway.store, conversation, answer)
            assert view is not None
            assert view.difference is None
            replayed = await restore_view_messages(gateway.store, conversation, view)
            assert [json.loads(raw) for raw in replayed] == sent
        assert body["context_status"] in {"summarized", "trimmed"}
