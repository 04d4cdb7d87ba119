"""Clients that change messages on the way: user messages, call ids, answers. They keep one conversation, and each
message is there once."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.live import Reply, completion
from tests.scenarios.rewriting import (
    LOGS_ONLY,
    LOOK,
    Body,
    Client,
    Kept,
    StrictModel,
    Tell,
    kept,
    mask,
    question,
    slide,
    words,
)
from tests.support.gateway import assistant, call, is_summary, user

TURNS = 20
SESSION = {"headers": {"session-id": "0198f2c4-changing-session"}}


def newest_user(messages: Sequence[Body]) -> int:
    return max(index for index, message in enumerate(messages) if message["role"] == "user")


def retrieve(messages: Sequence[Body]) -> list[Body]:
    """Text that was retrieved stands around the newest question only, as Open WebUI sends it."""
    at = newest_user(messages)
    asked = str(messages[at]["content"])
    text = words(("found", at), 250)
    found = f"### Task: answer by the context.\n<context>\n{text}\n</context>\n\n<query>{asked}</query>"
    return [*messages[:at], user(found), *messages[at + 1 :]]


def remind(messages: Sequence[Body]) -> list[Body]:
    at = newest_user(messages)
    reminder = f"{messages[at]['content']}\n\n<system-reminder>Today is day {at}. Be brief.</system-reminder>"
    return [*messages[:at], user(reminder), *messages[at + 1 :]]


def tell_time(messages: Sequence[Body]) -> list[Body]:
    return [user(f"It is {len(messages)} past nine.\n{messages[0]['content']}"), *messages[1:]]


def add_context(messages: Sequence[Body]) -> list[Body]:
    at = newest_user(messages)
    return [*messages[:at], user(f"Context: {words(('context', at), 40)}"), *messages[at:]]


def add_footers(messages: Sequence[Body]) -> list[Body]:
    return [
        message | {"content": f"{message['content']}\n\n---\nAnswer of a machine. Read it with care."}
        if message["role"] == "assistant"
        else message
        for message in messages
    ]


CHANGES: dict[str, tuple[Tell, int]] = {
    "nothing": (list, 1),
    "retrieved text around the newest question": (retrieve, 1),
    "a reminder behind the newest message": (remind, 1),
    "the time in the first message": (tell_time, 2),
    "a message of context before the question": (add_context, 2),
    "a footer under each answer": (add_footers, 2),
}


@pytest.mark.parametrize("session", [{}, SESSION], ids=["no hint", "session"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_client_that_changes_its_user_messages_keeps_its_conversation(
    change: str, session: dict[str, Any], tmp_path: Path
) -> None:
    tell, most = CHANGES[change]
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, tell, **session)
        for turn in range(TURNS):
            await client.say(question(turn, 110))
        assert model.refused == []
        assert len(client.ids) <= most
        assert len(place.ids()) <= most
        told = [str(item) for item in await place.items(client.bodies[-1]["conversation_id"])]
        counts = [sum(f"Question {turn}:" in text for text in told) for turn in range(TURNS)]
        assert counts == [1] * TURNS
        assert_no_waits_in_a_row(client)


def assert_no_waits_in_a_row(client: Client) -> None:
    """A turn that waits for a summary leaves room for several."""
    waits = [number for number, body in enumerate(client.bodies) if body["context"]["compaction"]["ran"]]
    assert all(later - earlier > 2 for earlier, later in itertools.pairwise(waits)), waits
    assert len(waits) <= TURNS // 4, waits


async def test_retrieved_text_costs_no_more_storage_than_the_same_texts_of_a_plain_client(tmp_path: Path) -> None:
    used: dict[str, int] = {}
    for name in ("retrieves", "plain"):
        async with kept(tmp_path / f"{name}.db", StrictModel(), **LOGS_ONLY) as place:
            empty = place.used_bytes()
            client = Client(place, retrieve if name == "retrieves" else list)
            for turn in range(30):
                told = question(turn)
                if name == "plain":
                    told = retrieve([*client.messages, told])[-1]
                await client.say(told)
            used[name] = place.used_bytes() - empty
    print(used)
    assert used["retrieves"] <= 1.5 * used["plain"]


async def test_a_message_between_known_ones_is_in_the_log_in_search_and_in_views(tmp_path: Path) -> None:
    """Somebody writes while the bot answers. The client orders by time: that message stands before the answer."""
    async with kept(tmp_path / "kept.db", StrictModel()) as place:
        client = Client(place)
        await client.say(question(0))
        await client.say(question(1))
        said = user("Meanwhile I found a quokka in the hedge.")
        client.messages.insert(3, said)
        await client.say(question(2))
        await client.say(question(3))
        await client.say(question(4))
        await check_message_is_there_once(place, client, said["content"], "quokka")


async def test_messages_between_known_ones_of_a_window_that_slides_are_kept(tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", StrictModel()) as place:
        client = Client(place, slide(9))
        said = user("Meanwhile I found a quokka in the hedge.")
        for turn in range(16):
            await client.say(question(turn))
            if turn == 7:
                client.messages.insert(len(client.messages) - 1, said)
        await check_message_is_there_once(place, client, said["content"], "quokka")


async def test_several_people_who_write_while_the_bot_answers_are_all_in_the_log(tmp_path: Path) -> None:
    """A group chat, twenty turns: after each answer two messages are put before it."""
    async with kept(tmp_path / "kept.db", StrictModel()) as place:
        client = Client(place)
        for turn in range(TURNS):
            await client.say(question(turn, 10) | {"name": "ann"})
            for name in ("ben", "eve"):
                meanwhile = user(f"{name} says at {turn}: {words((name, turn), 6)}.") | {"name": name}
                client.messages.insert(len(client.messages) - 1, meanwhile)
        await client.say(question(99))
        await client.say(question(100))
        assert len(client.ids) == len(place.ids()) == 1
        stored = place.contents()
        assert sorted(stored) == sorted(str(message["content"]) for message in client.messages)


async def test_a_group_chat_in_which_several_write_before_each_answer_is_one_conversation(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place)
        for turn in range(TURNS):
            said = [user(f"{name} at {turn}: {words((name, turn), 6)}.") | {"name": name} for name in ("ann", "ben")]
            await client.say(*said)
        assert model.refused == []
        assert len(client.ids) == len(place.ids()) == 1
        assert place.contents() == [message["content"] for message in client.messages]


async def check_message_is_there_once(place: Kept, client: Client, text: str, word: str) -> None:
    assert len(client.ids) == len(place.ids()) == 1
    (conversation_id,) = client.ids
    items = await place.items(conversation_id)
    assert [item["content"][0]["text"] for item in items].count(text) == 1
    found = await place.call("GET", f"{conversation_id}/search", q=word)
    assert len(found["data"]) == 1
    view = await place.call("GET", f"{conversation_id}/context", order="asc", limit=100)
    assert [row["text"] for row in view["messages"]["data"]].count(text) == 1


CALL_IDS: dict[str, Callable[[int], str]] = {
    "counted": lambda number: f"functions.bash:{number}",
    "repeated": lambda number: "call_0",
    "nine digits": lambda number: f"{(number + 1) * 7919 % 1_000_000_000:09d}",
}


class NumberedModel(StrictModel):
    """Answers with a call; its id depends on how many calls the request has, as with models that count them.

    Args:
        name_id: makes the id of the call with a number.
    """

    def __init__(self, name_id: Callable[[int], str]) -> None:
        super().__init__()
        self.name_id = name_id

    def _reply(self, body: Body) -> Reply:
        if is_summary(body) or not body.get("tools"):
            return super()._reply(body)
        number = sum(message["role"] == "tool" for message in body["messages"])
        return completion(None, tool_calls=[call("look", f'{{"at": "place {number}"}}', self.name_id(number))])


async def run_numbered(client: Client, turns: int, name: str, first: int = 0) -> None:
    client.fields["tools"] = [LOOK]
    for number in range(first, turns):
        if not client.messages:
            await client.say(user(f"{name}: find out what grows where."))
            continue
        (asked,) = client.messages[-1]["tool_calls"]
        output = f"{name} output {number}: {words((name, number), 60)}"
        await client.say({"role": "tool", "tool_call_id": asked["id"], "content": output})


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("ids", CALL_IDS)
async def test_an_agent_whose_call_ids_say_nothing_keeps_its_conversation(
    ids: str, masks: bool, tmp_path: Path
) -> None:
    model = NumberedModel(CALL_IDS[ids])
    async with kept(tmp_path / "kept.db", model, window=1_000_000) as place:
        client = Client(place, mask(3) if masks else list)
        await run_numbered(client, 30, "ann")
        assert model.refused == []
        assert len(client.ids) == len(place.ids()) == 1
        assert place.contents() == [message["content"] for message in client.messages]


@pytest.mark.parametrize("ids", CALL_IDS)
async def test_agents_with_equal_call_ids_never_meet(ids: str, tmp_path: Path) -> None:
    """Their calls are equal in ids, names and arguments; only the tasks and the results differ."""
    model = NumberedModel(CALL_IDS[ids])
    async with kept(tmp_path / "kept.db", model, window=1_000_000) as place:
        ann, bob = Client(place, mask(2)), Client(place, mask(2))
        for turns in (4, 8, 12):
            await run_numbered(ann, turns, "ann", len(ann.bodies))
            await run_numbered(bob, turns, "bob", len(bob.bodies))
        assert ann.ids.isdisjoint(bob.ids)
        for conversation_id in place.ids():
            told = str(await place.items(conversation_id))
            assert not ("ann output" in told and "bob output" in told)


@pytest.mark.parametrize("gone", ["not stored", "deleted"])
async def test_equal_calls_of_an_agent_that_is_gone_prove_nothing(gone: str, tmp_path: Path) -> None:
    """Counted ids with equal arguments, of runs that keep only their newest results."""
    model = NumberedModel(CALL_IDS["counted"])
    async with kept(tmp_path / "kept.db", model, window=1_000_000) as place:
        ann, bob = Client(place, mask(2)), Client(place, mask(2), store=gone == "deleted")
        await run_numbered(ann, 10, "ann")
        await run_numbered(bob, 6, "bob")
        if gone == "deleted":
            for conversation_id in bob.ids:
                await place.call("DELETE", conversation_id)
        bob.fields["store"] = True
        bob.bodies.clear()
        await run_numbered(bob, 12, "bob", 6)
        for conversation_id in bob.ids:
            assert "ann output" not in str(await place.items(conversation_id))
        assert ann.ids.isdisjoint(bob.ids)


def interrupt(text: str) -> str:
    return f"{text[: len(text) * 2 // 3]}\n\n[Response interrupted by user]"


ANSWERS: dict[str, Callable[[str], str]] = {
    "interrupted": interrupt,
    "collapsed newlines": lambda text: re.sub(r"\s+", " ", text),
    "stripped citations": lambda text: re.sub(r"\s*(\[\d+\]|【[^】]*】)", "", text),
}


class CitingModel(StrictModel):
    """Answers in paragraphs with citations."""

    def _reply(self, body: Body) -> Reply:
        if is_summary(body):
            return super()._reply(body)
        parts = [words((str(body["messages"][-1]["content"]), number), 10) for number in range(4)]
        return completion(
            f"So it is [1]: {parts[0]} [2].\n\n{parts[1]}【4†source】.\n\n- {parts[2]}\n- {parts[3]} [1][3]"
        )


@pytest.mark.parametrize("session", [{}, SESSION], ids=["no hint", "session"])
@pytest.mark.parametrize("change", ANSWERS)
async def test_answers_that_come_back_changed_continue_their_conversation(
    change: str, session: dict[str, Any], tmp_path: Path
) -> None:
    model, alter = CitingModel(), ANSWERS[change]
    async with kept(tmp_path / "kept.db", model) as place:
        client, given = Client(place, **session), list[str]()
        for turn in range(TURNS):
            await client.say(question(turn))
            given.append(client.messages[-1]["content"])
            client.messages[-1] = assistant(alter(given[-1]))
        assert alter(given[0]) != given[0]
        assert len(client.ids) == len(place.ids()) == 1
        asked = [message["content"] for message in client.messages if message["role"] == "user"]
        assert place.contents() == [text for pair in zip(asked, given, strict=True) for text in pair]
        sent = [message["content"] for message in model.asked[-1]["messages"]]
        assert alter(given[-2]) in sent


@pytest.mark.parametrize("change", ANSWERS)
async def test_changed_answers_of_some_turns_only_continue_their_conversation(change: str, tmp_path: Path) -> None:
    async with kept(tmp_path / "kept.db", CitingModel()) as place:
        client = Client(place, slide(9))
        for turn in range(TURNS):
            await client.say(question(turn))
            if turn % 3 == 1:
                client.messages[-1] = assistant(ANSWERS[change](client.messages[-1]["content"]))
        assert len(client.ids) == len(place.ids()) == 1
        assert len(place.contents()) == 2 * TURNS
