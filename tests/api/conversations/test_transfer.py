"""Conversations in and out over HTTP: nothing lost on the way, nothing kept of a file that cannot be used."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from app.conversation.conversation_types import Conversation
from app.errors import StoreUnavailable
from app.store.contract.conversations import LogAppend
from tests.live import ScriptedUpstream
from tests.support.gateway import Messages, World, answered, answering, assistant, call, result, system, user, world
from tests.support.memory_store import MemoryStore

HISTORY: list[dict[str, Any]] = [
    system("Be brief."),
    user("What is the weather?"),
    assistant(None, tool_calls=[call("look_up", '{"where": "here"}')]),
    result("Rain."),
    assistant("It rains."),
    user("Thanks."),
    assistant("You are welcome."),
]


def jsonl(messages: Messages) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in messages)


async def taken(w: World, data: bytes | object, *, key: str = "sk-one", **query: str) -> httpx.Response:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return await w.client.post(
        f"{w.base_url}/conversations/import", content=body, params=query, headers={"authorization": f"Bearer {key}"}
    )


async def kept(w: World, data: bytes | object, **options: str) -> dict[str, Any]:
    answer = await taken(w, data, **options)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def exported(w: World, conversation_id: str, *, key: str = "sk-one", **query: str) -> httpx.Response:
    return await w.client.get(
        f"{w.base_url}/conversations/{conversation_id}/export",
        params=query,
        headers={"authorization": f"Bearer {key}"},
    )


def upstream() -> ScriptedUpstream:
    return ScriptedUpstream(default=answering)


async def test_an_export_is_the_stored_text_line_by_line() -> None:
    spaced = b'{ "content" : "Hello",\n  "role":"user", "x_vendor": 1.0 }'
    async with world(upstream()) as w:
        answer = await w.client.post(
            f"{w.base_url}/chat/completions",
            content=b'{"model": "m", "messages": [' + spaced + b"]}",
            headers={"authorization": "Bearer sk-one", "x-context-mode": "append"},
        )
        conversation_id = answer.json()["conversation_id"]
        got = await exported(w, conversation_id)
    first, second = got.content.splitlines()
    assert first == spaced.replace(b"\n", b" ")
    assert json.loads(second)["content"] == "You said: Hello"
    assert got.headers["content-type"].startswith("application/x-ndjson")
    assert got.headers["content-disposition"] == f'attachment; filename="{conversation_id}.jsonl"'


async def test_what_was_exported_can_be_imported_again() -> None:
    async with world(upstream()) as w:
        first = await kept(w, jsonl(HISTORY))
        out = await exported(w, first["data"][0]["id"])
        second = await kept(w, out.content)
        again = await exported(w, second["data"][0]["id"])
    assert out.content == again.content == jsonl(HISTORY)
    assert first["data"][0]["id"] != second["data"][0]["id"]
    assert first["data"][0]["messages"] == len(HISTORY) - 1
    assert first["data"][0]["metadata"] == {"imported_from": "concertina"}
    assert first["warnings"] == []


async def test_an_export_in_openais_form_is_one_line() -> None:
    async with world(upstream()) as w:
        (first,) = (await kept(w, jsonl(HISTORY)))["data"]
        out = await exported(w, first["id"], format="openai")
    assert out.content.count(b"\n") == 1
    assert json.loads(out.content) == {"messages": HISTORY}


@pytest.mark.parametrize("format", ["jsonl", "openai"])
async def test_an_empty_conversation_is_exported_as_such(format: str) -> None:
    async with world(upstream()) as w:
        (first,) = (await kept(w, {"messages": []}))["data"]
        out = await exported(w, first["id"], format=format)
    assert out.content == (b"" if format == "jsonl" else b'{"messages":[]}\n')


async def test_a_client_that_resends_an_imported_history_continues_it_by_naming_it() -> None:
    async with world(upstream()) as w:
        (imported,) = (await kept(w, {"messages": HISTORY}))["data"]
        body = await w.say([*HISTORY, user("And tomorrow?")], conversation=imported["id"])
        assert body["conversation_id"] == imported["id"]
        assert await w.log(imported["id"]) == [
            *HISTORY[1:],
            user("And tomorrow?"),
            answered("And tomorrow?"),
        ]
        edited = await w.say([*HISTORY[:5], user("Really?")])
        assert edited["conversation_id"] != imported["id"]
        (branch,) = [one for one in w.conversations() if one.id == edited["conversation_id"]]
        assert branch.lineage == ((imported["id"], 3),)


async def test_a_client_that_appends_to_an_imported_conversation_has_its_instructions() -> None:
    async with world(upstream()) as w:
        (imported,) = (await kept(w, {"messages": HISTORY}))["data"]
        body = await w.say([user("And tomorrow?")], conversation=imported["id"])
        assert body["conversation_id"] == imported["id"]
    (sent,) = w.upstream.requests
    assert sent["messages"] == [*HISTORY, user("And tomorrow?")]


async def test_a_question_at_the_end_of_an_import_is_answered_and_not_added_twice() -> None:
    async with world(upstream()) as w:
        (imported,) = (await kept(w, {"messages": [user("One"), assistant("1"), user("Two")]}))["data"]
        body = await w.say([user("Two")], conversation=imported["id"], headers={"x-context-mode": "append"})
        assert body["conversation_id"] == imported["id"]
        assert [one["content"] for one in await w.log(imported["id"])] == ["One", "1", "Two", "You said: Two"]


async def test_several_histories_become_several_conversations() -> None:
    one, two = {"messages": [user("One"), assistant("1")]}, {"messages": [user("Two"), assistant("2")]}
    async with world(upstream()) as w:
        for data in ([one, two], jsonl([one, two])):
            body = await kept(w, data)
            assert [await w.log(entry["id"]) for entry in body["data"]] == [one["messages"], two["messages"]]
            assert (body["first_id"], body["last_id"]) == (body["data"][0]["id"], body["data"][1]["id"])


async def test_what_a_line_says_of_its_conversation_is_kept() -> None:
    line = {
        "id": "conv_of_old",
        "created_at": 1_700_000_000,
        "metadata": {"topic": "demo"},
        "external_id": "my-own",
        "messages": HISTORY,
    }
    async with world(upstream()) as w:
        (first,) = (await kept(w, line))["data"]
        again = await kept(w, line)
        (second,) = again["data"]
        body = await w.say([user("Next")], conversation="my-own")
    assert first["created_at"] == second["created_at"] == 1_700_000_000
    assert first["metadata"] == {"topic": "demo", "imported_from": "openai"}
    assert (first["external_id"], second["external_id"]) == ("my-own", None)
    assert "'my-own' is taken" in again["warnings"][0]
    assert body["conversation_id"] == first["id"]


@pytest.mark.parametrize(
    ("data", "param", "expected"),
    [
        (b"", None, "one chat message per line"),
        (b"hello", "line 1", "one chat message per line"),
        (jsonl(HISTORY[:2]) + b'{"role": "user"', "line 3", "valid JSON"),
        (jsonl([*HISTORY[:2], result("Rain.")]), "line 3.role", "does not follow"),
        ([{"messages": HISTORY}, {"messages": [user("x"), {"role": "robot"}]}], "[1].messages[1].role", "one of"),
        ([{"messages": HISTORY}, {"messages": "x"}], "[1].messages", "array"),
        ({"messages": [user("x"), result("Rain.")]}, "messages[1].role", "does not follow"),
        ([{"mapping": {"a": {"parent": "b"}}}], "[0]", "array of 'messages'"),
        ([{"type": "human", "data": {"content": "x"}}], "[0]", "array of 'messages'"),
    ],
)
async def test_nothing_is_kept_of_a_file_with_a_fault_and_the_place_is_named(
    data: Any, param: str | None, expected: str
) -> None:
    async with world(upstream()) as w:
        answer = await taken(w, data)
        assert w.conversations() == []
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert expected in error["message"]


class Failing(MemoryStore):
    """Goes away after so many appends."""

    def __init__(self, appends: int) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self._left = appends

    async def append(self, write: LogAppend) -> None:
        if not self._left:
            raise StoreUnavailable("gone")
        self._left -= 1
        await super().append(write)


async def test_what_was_begun_is_taken_back_when_the_store_fails() -> None:
    long = {"messages": [user(f"Message {number}") for number in range(1200)]}
    async with world(upstream(), store=Failing(3)) as w:
        answer = await taken(w, [{"messages": HISTORY}, long])
        assert w.conversations() == []
        assert w.rows() == 0
    assert answer.status_code == 503


async def test_tenants_import_for_themselves_and_export_what_is_theirs() -> None:
    async with world(upstream()) as w:
        (mine,) = (await kept(w, {"messages": HISTORY}))["data"]
        assert (await exported(w, mine["id"], key="sk-two")).status_code == 404
        theirs = await w.say([*HISTORY, user("And tomorrow?")], key="sk-two")
        assert theirs["conversation_id"] != mine["id"]


async def test_what_was_deleted_is_left_out_unless_it_is_asked_for() -> None:
    async with world(upstream()) as w:
        (one,) = (await kept(w, {"messages": HISTORY}))["data"]
        place = f"{w.base_url}/conversations/{one['id']}/items"
        headers = {"authorization": "Bearer sk-one"}
        items = (await w.client.get(place, params={"order": "asc"}, headers=headers)).json()["data"]
        ids = {_text(item): item["id"] for item in items}
        for text, erase in (("What is the weather?", "false"), ("Thanks.", "true")):
            gone = await w.client.delete(f"{place}/{ids[text]}", params={"erase": erase}, headers=headers)
            assert gone.status_code == 200, gone.text
        plain, full = await exported(w, one["id"]), await exported(w, one["id"], include="deleted")
    assert _lines(plain) == [one for one in HISTORY if one["content"] not in ("What is the weather?", "Thanks.")]
    assert _lines(full) == [one for one in HISTORY if one["content"] != "Thanks."]


def _lines(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.text.splitlines()]


def _text(item: dict[str, Any]) -> str:
    parts: Sequence[dict[str, Any]] = item.get("content") or ()
    return "".join(part.get("text", "") for part in parts)


class Watched(MemoryStore):
    """Notes how many messages are asked for and handed over at once."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.reads: list[int] = []
        self.appends: list[int] = []

    async def read_log(self, conversation: Conversation, from_seq: int, to_seq: int) -> Any:
        self.reads.append(to_seq - from_seq)
        return await super().read_log(conversation, from_seq, to_seq)

    async def append(self, write: LogAppend) -> None:
        self.appends.append(len(write.messages))
        await super().append(write)


async def test_ten_thousand_messages_go_in_and_out_in_pieces_and_others_are_answered_meanwhile() -> None:
    history = [
        one
        for number in range(5_000)
        for one in (user(f"Question {number}: " + "word " * 40), assistant(f"Answer {number}"))
    ]
    store = Watched()
    async with world(upstream(), store=store) as w:
        gc.collect()
        gc.freeze()  # what earlier tests left is not to be collected in the middle of a pause
        importing = asyncio.ensure_future(kept(w, jsonl(history)))
        pauses = []
        while not importing.done():
            before = time.thread_time()  # of the event loop's thread, whatever else the machine does
            await asyncio.sleep(0.002)
            pauses.append(time.thread_time() - before)
        gc.unfreeze()
        (one,) = (await importing)["data"]
        assert one["messages"] == 10_000
        assert max(store.appends) <= 500
        assert max(pauses) < 0.2
        store.reads.clear()
        out = await exported(w, one["id"])
    assert out.content == jsonl(history)
    assert max(store.reads) <= 256


async def test_large_messages_are_read_a_few_at_a_time() -> None:
    history = [user("word " * 40_000) for _ in range(60)]
    store = Watched()
    async with world(upstream(), store=store) as w:
        conversation_id = (await kept(w, jsonl(history)))["data"][0]["id"]
        assert max(store.appends) <= 21
        store.reads.clear()
        await exported(w, conversation_id)
    assert store.reads[0] == 32
    assert max(store.reads[1:]) <= 6
