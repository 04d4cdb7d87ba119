"""What the model saw for an answer is put together again from what is stored."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

from app.dialects.item_decoding import decode_item
from app.pipeline.view.view_restoration import _pack_answer, _unpack_answer, restore_view
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
            assert all(one.passages for one in view.plan.quotations)
            assert [json.loads(raw) for raw, _ in view.messages] == sent
        assert body["context_status"] in {"summarized", "trimmed"}


async def test_what_an_answer_keeps_of_its_view_does_not_grow_with_the_conversation() -> None:
    async with world(ScriptedUpstream(default=answering), window=100_000) as gateway:
        history = [user("Hello")]
        for number in range(40):
            answer = await gateway.say(history)
            history += [{**answer["choices"][0]["message"], "refusal": None}, user(f"Question {number}")]
        (conversation,) = gateway.conversations()
        sizes = [
            len(json.dumps(entry.meta["view"]))
            for entry in await gateway.store.read_log(conversation, 0, 80)
            if entry.meta
        ]
    assert len(sizes) == 40
    assert max(sizes) < 400


def test_a_packed_answer_is_read_by_its_content_only() -> None:
    """It is stored with another answer, so whoever erases this answer must erase its words there, too."""
    sent = json.dumps({"content": "Straße Nummer 77, Zürich", "refusal": None, "role": "assistant"}).encode()
    stored = '{"role":"assistant","content":"Straße Nummer 77, Zürich"}'.encode()
    packed = _pack_answer(sent)
    assert _unpack_answer(packed, stored) == sent
    assert _unpack_answer(packed, b'{"role":"assistant","content":"[erased]"}') is None
    assert _unpack_answer("", stored) is None
    plain = base64.b64decode(packed)
    assert not any(word in plain for word in (b"Nummer", b"rich", b"content"))
    with pytest.raises(zlib.error):
        zlib.decompressobj(zdict=decode_item(stored).canonical_form or b"").decompress(plain)
