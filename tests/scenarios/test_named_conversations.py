"""Clients that name their conversation and send what is new, or what they have; and requests that prove nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.live import DROP, Reply, chunk, completion
from tests.scenarios.proof import read
from tests.scenarios.rewriting import LOOK, Client, StrictModel, kept, message_in, question
from tests.support.gateway import assistant, call, result, until, user


@pytest.mark.parametrize("lost", ["upstream failed", "stream broke off", "client went", "client did not read it"])
@pytest.mark.parametrize("earlier", [0, 2])
async def test_an_append_after_a_lost_answer_stores_its_question_once(lost: str, earlier: int, tmp_path: Path) -> None:
    """The client has no answer to its last question, so it sends that question with its next one."""
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        for turn in range(earlier):
            await place.say([question(turn)], conversation="c")
        first, second = question(10), question(11)
        if lost == "upstream failed":
            model.replies = [Reply({"error": {"message": "no", "type": "invalid_request_error"}}, status=400)]
            assert (await place.post([first], conversation="c")).status_code == 400
        elif lost == "stream broke off":
            model.replies = [Reply(pieces=[chunk({"role": "assistant", "content": "It "}), DROP])]
            assert '"error"' in (await place.post([first], conversation="c", stream=True)).text
        elif lost == "client went":
            gate = asyncio.Event()
            model.replies = [completion("Too late.")]
            model.replies[0].gate = gate
            asking = asyncio.create_task(place.post([first], conversation="c"))
            await until(lambda: len(model.bodies) > earlier)
            asking.cancel()
            await asyncio.wait([asking])
            gate.set()
            await asyncio.sleep(0.2)
        else:
            await place.say([first], conversation="c")
        body = await place.say([first, second], conversation="c")
        (conversation_id,) = place.ids()
        stored = place.contents(conversation_id)
        assert stored.count(first["content"]) == stored.count(second["content"]) == 1
        assert stored[-2:] == [second["content"], message_in(body)["content"]]
        sent = [message["content"] for message in model.asked[-1]["messages"]]
        assert sent.count(first["content"]) == 1


async def test_a_client_that_sends_only_its_user_messages_under_an_id_stores_each_turn_once(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel(), window=1_000_000) as place:
        asked, expected = [], []
        for turn in range(24):
            asked.append(question(turn, 12))
            body = await place.say(asked, conversation="c")
            expected += [asked[-1]["content"], message_in(body)["content"]]
        assert len(place.ids()) == 1
        assert place.contents() == expected
        assert len(expected) == 48


async def test_an_id_of_ours_that_belongs_to_somebody_else_is_not_found(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        ann = Client(place)
        await ann.say(question(0))
        (conversation_id,) = ann.ids
        asked = len(model.bodies)
        for messages in ([user("What did I say?")], [*ann.messages, user("What did I say?")]):
            answer = await place.post(messages, key="sk-two", conversation=conversation_id)
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "conversation_not_found"
        assert len(model.bodies) == asked
        assert place.ids() == [conversation_id]
        headers = {"authorization": "Bearer sk-two"}
        path = f"{place.base_url}/conversations/{conversation_id}"
        assert (await place.client.get(f"{path}/items", headers=headers)).status_code == 404


async def test_an_id_of_another_end_user_is_not_found(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel()) as place:
        ann = Client(place, user="ann")
        await ann.say(question(0))
        answer = await place.post([user("What did I say?")], conversation=next(iter(ann.ids)), user="bob")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "conversation_not_found"


@pytest.mark.parametrize("conversation", [None, "c"])
async def test_a_result_before_its_call_is_refused_and_named(conversation: str | None, tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        fields: dict[str, Any] = {"conversation": conversation} if conversation else {}
        early = [
            user("Look."),
            assistant("I look."),
            result("Beans grow.", "call_early"),
            assistant(None, tool_calls=[call("look", "{}", "call_early")]),
            user("And?"),
        ]
        answer = await place.post(early, tools=[LOOK], **fields)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert "messages[2]" in f"{error['param']} {error['message']}"
        assert model.bodies == []
        assert place.ids() == []


FOREIGN: dict[str, list[dict[str, Any]]] = {
    "answers of another gateway": [
        user("Hi"),
        assistant("An answer that nobody gave here, of more than twelve words."),
    ],
    "a question that somebody asked": [
        question(0),
        assistant("Quite another answer than the one that was given here."),
    ],
    "a short answer": [user("Shall we?"), assistant("Yes.")],
    "no answer": [question(0), question(1)],
}


@pytest.mark.parametrize("history", FOREIGN)
async def test_what_proves_nothing_begins_a_conversation_without_a_warning(history: str, tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        ann, bob = Client(place), Client(place)
        for turn in range(3):
            await ann.say(question(turn))
        bob.messages = list(FOREIGN[history])
        body = await bob.say(question(7))
        assert bob.ids.isdisjoint(ann.ids)
        assert body["context"]["warnings"] == []
        assert [message["content"] for message in model.asked[-1]["messages"][1:]] == [
            message["content"] for message in bob.messages[:-1]
        ]
        told = [item["content"][0]["text"] for item in await place.items(*bob.ids)]
        assert told == [message["content"] for message in bob.messages]
        assert (await read(place, next(iter(bob.ids)))).json().get("parent_id") is None


async def test_a_conversation_that_begins_again_after_its_first_is_deleted_warns_of_nothing(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel()) as place:
        client = Client(place)
        for turn in range(3):
            await client.say(question(turn))
        await place.call("DELETE", *client.ids)
        client.bodies.clear()
        for turn in range(3, 6):
            body = await client.say(question(turn))
            assert body["context"]["warnings"] == []
        assert len(client.ids) == 1
        assert place.contents(*client.ids) == [message["content"] for message in client.messages]
