"""Compactions that a client asks for and keeps: by a trigger, by the endpoint, and with an answer."""

from __future__ import annotations

import itertools
import json
from typing import Any, Final

import pytest
from openai import AsyncOpenAI
from openai.types.responses import ResponseCompactionItem

from app.errors import StoreUnavailable
from app.pipeline.compact.capsule_builder import CapsuleBuilder
from tests.live import ScriptedUpstream
from tests.support.gateway import answering
from tests.support.response_types import accumulate_events
from tests.support.responses_upstream import ResponsesUpstream, respond
from tests.support.responses_world import ResponsesWorld, message, responses_world

TRIGGER: Final = {"type": "compaction_trigger"}
RULE: Final = "The gate code is 4711. Never write it down."
WINDOW: Final = 8192
COMPACTION: Final = [{"type": "compaction", "compact_threshold": 3000}]


def long_input(turns: int, words: int = 120) -> list[dict[str, Any]]:
    """A rule, then answers with questions."""
    talk = [message(RULE)]
    for turn in range(turns):
        talk.append(message(f"Fine {turn}. " + f"word{turn} " * words, "assistant"))
        talk.append(message(f"Question {turn}? " + f"ask{turn} " * words))
    return talk


def make_upstream(protocol: str) -> ScriptedUpstream:
    if protocol == "chat":
        return ScriptedUpstream(default=answering)
    return ResponsesUpstream(default=lambda body: respond("A summary: 4711." if is_summary(body) else "Fine."))


def is_summary(body: dict[str, Any]) -> bool:
    return "material to be summarized" in json.dumps(body)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def last_view(w: ResponsesWorld) -> str:
    """What the model got last, without summarizers."""
    return json.dumps([body for body in w.upstream.requests if not is_summary(body)][-1])


@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_trigger_gets_exactly_one_compaction(stream: bool, protocol: str) -> None:
    async with responses_world(make_upstream(protocol), window=WINDOW) as w:
        response = await w.respond_either([*long_input(12), TRIGGER], stream=stream)
        (item,) = response["output"]
        assert (item["type"], item["encrypted_content"][:4]) == ("compaction", "cc1.")
        ResponseCompactionItem.model_validate(item, strict=True)
        assert response["context"]["compaction"]["ran"]
        assert response["usage"]["total_tokens"] > 0
        assert all(map(is_summary, w.upstream.requests)), "the model is not asked for an answer"
        following = await w.respond([message(RULE), item, message("Go on.")])
        assert following["context_status"] == "summarized"
        assert following["conversation_id"] == response["conversation_id"]
        assert "ask11 ask11" in last_view(w), "the newest turn is verbatim"
        assert "ask1 ask1" not in last_view(w)
        assert "Go on." in last_view(w)
        assert "cc1." not in json.dumps(w.upstream.requests)


async def test_the_events_of_a_trigger_come_in_order() -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        events = await w.respond_streamed([*long_input(12), TRIGGER])
        told = [name for name, _ in itertools.groupby(kinds(events))]
        assert told == [
            *("created", "in_progress", "output_item.added", "compaction.compacting", "output_item.done", "completed")
        ]
        added, done = events[2]["item"], events[-2]["item"]
        assert added == {**done, "encrypted_content": ""}
        assert events[3]["item_id"] == added["id"]
        assert accumulate_events(events)[1].output[0].encrypted_content == done["encrypted_content"]


@pytest.mark.parametrize("stream", [False, True])
async def test_there_is_a_compaction_however_little_there_is_to_compact(stream: bool) -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        response = await w.respond_either([message("Hello."), TRIGGER], stream=stream)
        (item,) = response["output"]
        assert not response["context"]["compaction"]["ran"]
        assert response["usage"] == {
            "input_tokens": 0,
            "output_tokens": 0,
            "total_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        assert w.upstream.requests == []
        await w.respond([item, message("And now?")])
        assert [one["content"] for one in w.upstream.requests[-1]["messages"]] == ["Hello.", "And now?"]


async def test_a_trigger_elsewhere_than_at_the_end_is_refused() -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        answer = await w.ask([message("Hello."), TRIGGER, message("Hello?")])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[1]")


async def test_a_stored_chain_is_compacted_by_its_last_response() -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        first = await w.respond(long_input(12))
        compacted = await w.respond([TRIGGER], previous_response_id=first["id"])
        assert compacted["conversation_id"] == first["conversation_id"]
        following = await w.respond([compacted["output"][0], message("Go on.")])
        assert following["conversation_id"] == first["conversation_id"]
        again = await w.respond([message("And then?")], previous_response_id=following["id"])
        assert again["conversation_id"] == first["conversation_id"]
        assert len(w.conversations()) == 1


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_a_compaction_with_an_answer_is_its_first_item(protocol: str) -> None:
    async with responses_world(make_upstream(protocol), window=WINDOW) as w:
        events = await w.respond_streamed(long_input(12), context_management=COMPACTION)
        told = [name for name, _ in itertools.groupby(kinds(events)) if name != "in_progress"]
        assert told[:4] == ["created", "output_item.added", "compaction.compacting", "output_item.done"]
        assert told[4:6] == ["output_item.added", "content_part.added"]
        response = events[-1]["response"]
        assert [item["type"] for item in response["output"]] == ["compaction", "message"]
        assert {event["output_index"] for event in events if event.get("part")} == {1}
        snapshot, completed = accumulate_events(events)
        assert [item.type for item in snapshot] == [item.type for item in completed.output]
        check_continued = await w.respond([*response["output"], message("Go on.")], context_management=COMPACTION)
        assert check_continued["conversation_id"] == response["conversation_id"]
        assert check_continued["output"][0]["type"] == "message", "nothing is compacted anew"
        assert len(w.conversations()) == 1
        (conversation,) = w.conversations()
        log = await w.log(conversation.id)
        assert len(log) == 25 + 3
        assert "cc1." not in json.dumps(log)
        assert "Go on." in last_view(w)


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_a_whole_answer_has_the_compaction_too(protocol: str) -> None:
    async with responses_world(make_upstream(protocol), window=WINDOW) as w:
        response = await w.respond(long_input(12), context_management=COMPACTION)
        assert [item["type"] for item in response["output"]] == ["compaction", "message"]
        assert (await w.read_response(response["id"]))["output"] == response["output"][1:]
        plain = await w.respond(long_input(13))
        assert [item["type"] for item in plain["output"]] == ["message"], "nobody asked for an item"


async def test_a_store_that_goes_away_costs_the_item_and_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise StoreUnavailable("The store is away.")

    monkeypatch.setattr(CapsuleBuilder, "build", fail)
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        response = await w.respond(long_input(12), context_management=COMPACTION)
        assert [item["type"] for item in response["output"]] == ["message"]
        assert response["context"]["compaction"]["ran"]


async def test_a_summary_that_was_prepared_gives_an_item_too() -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        talk = long_input(10)
        before = await w.respond(talk, context_management=COMPACTION)
        assert before["output"][0]["type"] == "compaction"
        found = []
        for turn in range(8):
            talk += [before["output"][-1], message(f"More {turn}? " + "more " * 300)]
            before = await w.respond(talk, context_management=COMPACTION)
            found.append(before["output"][0]["type"])
        assert "compaction" in found
        assert "message" in found


async def test_the_sdk_compacts_a_history_by_the_endpoint() -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        talk = [message("Answer in German.", "developer"), *long_input(12)]
        async with AsyncOpenAI(base_url=w.base_url, api_key="sk-one") as client:
            compacted = await client.responses.compact(model="m", input=talk, instructions="Be brief.")  # type: ignore[arg-type]
            output = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
            following: Any = [*output, message("Go on.")]
            answer: Any = await client.responses.create(model="m", input=following)
        assert compacted.object == "response.compaction"
        assert compacted.usage.total_tokens > 0
        assert output[-1]["type"] == "compaction"
        said = [item["content"][0]["text"] for item in output[:-1]]
        assert said == [one["content"] for one in talk if one["role"] != "assistant"]
        view = last_view(w)
        assert answer.context_status == "full"
        assert "Answer in German." in view
        assert "compacted_conversation" in view, "what was kept for continuing only is not made a stored conversation"
        assert RULE in view
        assert "word1 word1" not in view


async def test_the_endpoint_stores_no_more_than_the_responses_before_it() -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        unknown = await w.client.post(
            f"{w.base_url}/responses/compact",
            json={"model": "m", "input": long_input(12)},
            headers={"authorization": "Bearer sk-one"},
        )
        assert unknown.status_code == 200
        (conversation,) = w.conversations()
        assert conversation.tenant.endswith("context-only")
        stored = await w.respond(long_input(13))
        known = await w.client.post(
            f"{w.base_url}/responses/compact",
            json={"model": "m", "input": [*long_input(13), *stored["output"]]},
            headers={"authorization": "Bearer sk-one"},
        )
        assert known.json()["conversation_id"] == stored["conversation_id"]
        assert len(w.conversations()) == 2


@pytest.mark.parametrize(
    ("body", "param"), [({"input": "Hi."}, "model"), ({"model": "m"}, "input"), ({"model": "m", "input": 1}, "input")]
)
async def test_the_endpoint_refuses_what_it_cannot_compact(body: dict[str, Any], param: str) -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        answer = await w.client.post(
            f"{w.base_url}/responses/compact", json=body, headers={"authorization": "Bearer sk-one"}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_compaction_on_request_answers_with_a_capsule() -> None:
    async with responses_world(make_upstream("chat"), window=WINDOW) as w:
        stored = await w.respond(long_input(12), safety_identifier="alice")
        compacted = await w.client.post(
            f"{w.base_url}/conversations/{stored['conversation_id']}/compact",
            json={},
            headers={"authorization": "Bearer sk-one"},
        )
        item = {"type": "compaction", "encrypted_content": compacted.json()["capsule"]}
        response = await w.respond([item, message("Go on.")])
        assert response["conversation_id"] == stored["conversation_id"]
        assert response["context_status"] == "summarized"
        refused = await w.ask([item, message("Go on.")], safety_identifier="bob")
        assert refused.status_code == 400
