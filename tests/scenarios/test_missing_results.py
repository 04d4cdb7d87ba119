"""Calls whose results never came: the model is shown a result in their place, and the log stays as it was said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.dialects.missing_tool_results import MISSING_RESULT_TEXT
from app.pipeline.resolve.client_history import MIN_FAST_PATH_MESSAGES
from tests.live import completion
from tests.scenarios.rewriting import (
    COUNTER,
    LOOK,
    Client,
    Kept,
    StrictModel,
    kept,
    message_in,
    question,
    run_agent,
    words,
)
from tests.support.gateway import call, user


def drop_results(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All results but the newest are left out, and no call is."""
    results = [index for index, message in enumerate(messages) if message["role"] == "tool"]
    return [message for index, message in enumerate(messages) if index not in results[:-1]]


def count_missing(body: dict[str, Any]) -> int:
    return sum(message.get("content") == MISSING_RESULT_TEXT for message in body["messages"])


async def check_views(place: Kept, conversation_id: str, model: StrictModel) -> None:
    """Nothing was refused, tokens are those of what was sent, and nothing that was added is in the log or is lost when
    somebody asks what the model saw."""
    assert model.refused == []
    assert not any(MISSING_RESULT_TEXT in str(content) for content in place.contents())
    assert MISSING_RESULT_TEXT.encode() not in place.stored_bytes()
    answers = [item for item in await place.items(conversation_id) if item.get("role") == "assistant"]
    path = f"{conversation_id}/items/{answers[-1]['id']}/context"
    seen = await place.call("GET", path, **{"include[]": "sent", "limit": 1000})
    assert len(seen["sent"]) == len(seen["sent_places"])
    assert seen["sent"] == model.asked[-1]["messages"]


async def test_results_that_a_client_drops_from_its_history_are_shown_as_missing(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, drop_results)
        await run_agent(client, 6, result_words=20)
        body = await client.say(user("What did you find?"))
        assert count_missing(model.asked[-1]) == 5, "four that were dropped, and that of the last call"
        assert body["context"]["prompt_tokens"] == COUNTER.count_request(model.asked[-1]["messages"], tools=[LOOK])
        assert body["context_status"] == "full"
        await check_views(place, body["conversation_id"], model)
        assert len(client.ids) == 1


async def test_dropped_results_are_counted_and_shown_as_missing_after_a_compaction(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, drop_results)
        client.fields["tools"] = [LOOK]
        for turn in range(5):
            body = await client.say(user(f"TOOL {turn}: {words(f'q{turn}', 300)}"))
            (asked,) = body["choices"][0]["message"]["tool_calls"]
            body = await client.say({"role": "tool", "tool_call_id": asked["id"], "content": words(turn, 300)})
            sent = model.asked[-1]
            counted = COUNTER.count_request(sent["messages"], tools=sent["tools"])
            assert body["context"]["prompt_tokens"] == pytest.approx(counted, rel=0.02)
        assert model.summaries
        assert count_missing(model.asked[-1])
        assert len(client.ids) == 1
        await check_views(place, body["conversation_id"], model)


@pytest.mark.parametrize("mode", ["append", "resend"])
async def test_the_results_that_are_missing_beside_others_are_shown_as_missing(mode: str, tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        both = [call("look", "{}", "call_a"), call("look", "{}", "call_b")]
        model.replies = [completion(None, tool_calls=both)]
        history = [question(0)]
        named = {"conversation": "c"} if mode == "append" else {}
        for new in (
            [{"role": "tool", "tool_call_id": "call_b", "content": "Beans."}],
            [question(1)],
        ):
            body = await place.say(history, tools=[LOOK], **named)
            history = new if mode == "append" else [*history, message_in(body), *new]
        body = await place.say(history, **named)
        ids = [message.get("tool_call_id") for message in model.asked[-1]["messages"]]
        assert ids == [None, None, "call_b", "call_a", None, None]
        assert count_missing(model.asked[1]) == count_missing(model.asked[2]) == 1
        assert len(place.contents()) == 6
        await check_views(place, body["conversation_id"], model)


async def test_an_appending_client_may_go_on_without_a_result(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        await place.say([user("TOOL: look.")], conversation="c", tools=[LOOK])
        body = await place.say([question(1)], conversation="c", tools=[LOOK])
        assert count_missing(model.asked[-1]) == 1
        assert body["context"]["prompt_tokens"] == COUNTER.count_request(model.asked[-1]["messages"], tools=[LOOK])
        assert [message["role"] for message in model.asked[-1]["messages"]] == ["user", "assistant", "tool", "user"]
        assert len(place.contents()) == 4
        await check_views(place, body["conversation_id"], model)


async def test_a_result_stays_missing_in_a_long_history_that_is_sent_again(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        asking = {"role": "assistant", "content": None, "tool_calls": [call("look", "{}", "call_a")]}
        history = [question(0), asking, *[question(at) for at in range(1, 2 * MIN_FAST_PATH_MESSAGES)]]
        for turn in range(3):
            body = await place.say(history, tools=[LOOK])
            assert [message.get("tool_call_id") for message in model.asked[-1]["messages"]].index("call_a") == 2
            assert count_missing(model.asked[-1]) == 1, f"in turn {turn}"
            history = [*history, message_in(body), question(100 + turn)]
        await check_views(place, body["conversation_id"], model)


async def test_a_result_is_missing_behind_a_long_history_that_was_whole(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        history = [question(at) for at in range(2 * MIN_FAST_PATH_MESSAGES)]
        body = await place.say(history, tools=[LOOK])
        asking = {"role": "assistant", "content": None, "tool_calls": [call("look", "{}", "call_a")]}
        history = [*history, message_in(body), asking, question(100)]
        body = await place.say(history, tools=[LOOK])
        assert count_missing(model.asked[-1]) == 1
        await check_views(place, body["conversation_id"], model)
