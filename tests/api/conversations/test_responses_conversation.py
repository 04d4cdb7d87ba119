"""A conversation of the Responses API with every kind of item, as the endpoints of stored conversations show it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.live import ScriptedUpstream
from tests.support.gateway import World, answering, world

IMAGE = "data:image/png;base64,iVBORw0KGgo="


def secret(kind: str) -> str:
    """A word that stands in one item only."""
    return f"zebra{kind.replace('_', '')}x"


def message(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts)}


HISTORY: list[dict[str, Any]] = [
    message(
        "user",
        {"type": "input_text", "text": f"Look at this: {secret('question')}"},
        {"type": "input_image", "image_url": IMAGE, "detail": "high"},
    ),
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": f"I think {secret('reasoning')}"}],
        "encrypted_content": f"sealed{secret('reasoning')}",
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "look_up",
        "arguments": json.dumps({"q": secret("function_call")}),
    },
    {"type": "function_call_output", "call_id": "call_1", "output": f"Found {secret('function_call_output')}"},
    {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": f"+ {secret('custom_tool_call')}"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": f"Done {secret('custom_tool_call_output')}"},
    {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": secret("web_search_call")},
    },
    {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "files",
        "name": "read",
        "arguments": json.dumps({"path": secret("mcp_call")}),
        "output": f"contents {secret('mcp_call')}",
    },
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": f"iVBOR{secret('image')}"},
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "call_3",
        "status": "completed",
        "pending_safety_checks": [],
        "action": {"type": "type", "text": secret("computer_call")},
    },
    {
        "type": "computer_call_output",
        "call_id": "call_3",
        "output": {"type": "computer_screenshot", "image_url": f"{IMAGE}#{secret('computer_call_output')}"},
    },
    {"type": "compaction", "id": "cmp_1", "encrypted_content": f"sealed{secret('compaction')}"},
    {"type": "hologram_call", "id": "ho_1", "shape": secret("hologram")},
    message("assistant", {"type": "output_text", "text": f"It is {secret('answer')}.", "annotations": []}),
    message("user", {"type": "input_text", "text": "Go on."}),
]


SEARCHED = (
    *("question", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    *("web_search_call", "mcp_call", "computer_call", "hologram", "answer"),
)
UNREADABLE = ("reasoning", "image", "compaction")
"""Kinds whose secret is reasoning, encrypted, or an image: no search finds it, as in Chat Completions."""


@asynccontextmanager
async def stored() -> AsyncIterator[tuple[World, dict[str, Any]]]:
    """A gateway that has answered the history, and the response."""
    async with world(ScriptedUpstream(default=answering)) as w:
        answer = await w.client.post(f"{w.base_url}/responses", json={"model": "m", "input": HISTORY})
        assert answer.status_code == 200, answer.text
        yield w, answer.json()


async def read(w: World, path: str, **query: Any) -> Any:
    answer = await w.client.get(f"{w.base_url}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer


async def list_items(w: World, conversation_id: str) -> list[dict[str, Any]]:
    listed = await read(w, f"conversations/{conversation_id}/items", limit=100, order="asc")
    items: list[dict[str, Any]] = listed.json()["data"]
    return items


async def test_each_item_is_listed_as_it_came() -> None:
    async with stored() as (w, response):
        *items, _ = await list_items(w, response["conversation_id"])
        one_by_one = [
            (await read(w, f"conversations/{response['conversation_id']}/items/{item['id']}")).json() for item in items
        ]
    assert one_by_one == items
    for item, sent in zip(items, HISTORY, strict=True):
        # The gateway gives each item an id of its own.
        told = {"id": item.get("client_id"), **{name: item[name] for name in sent if name != "id"}}
        assert told == {"id": None, **sent}


@pytest.mark.parametrize("kind", SEARCHED)
async def test_each_readable_item_is_found_by_its_words(kind: str) -> None:
    async with stored() as (w, response):
        place = f"conversations/{response['conversation_id']}/search"
        (found,) = (await read(w, place, q=secret(kind))).json()["data"]
        (everywhere,) = (await read(w, "search", q=secret(kind))).json()["data"]
        (row,) = [
            row
            for row in (await read(w, f"conversations/{response['conversation_id']}/log")).json()["data"]
            if row["seq"] == found["seq"]
        ]
    assert everywhere["conversation_id"] == found["conversation_id"]
    assert secret(kind) in json.dumps(row)


@pytest.mark.parametrize("kind", UNREADABLE)
async def test_what_is_not_for_people_is_not_searched(kind: str) -> None:
    async with stored() as (w, response):
        found = await read(w, f"conversations/{response['conversation_id']}/search", q=secret(kind))
    assert found.json()["data"] == []


async def test_hosted_calls_show_in_the_log_and_in_the_view() -> None:
    async with stored() as (w, response):
        place = f"conversations/{response['conversation_id']}"
        rows = (await read(w, f"{place}/log")).json()["data"]
        seen = (await read(w, f"{place}/context", model="m")).json()["messages"]["data"]
    called = [[call["name"] for call in row["tool_calls"]] for row in rows if row["tool_calls"]]
    assert called == [
        ["look_up"],
        ["patch"],
        ["computer_call", "web_search_call", "mcp_call", "image_generation_call"],
        ["compaction", "hologram_call"],
    ]
    assert rows[1]["reasoning"] == f"I think {secret('reasoning')}"
    texts = {message["seq"]: message["text"] for message in seen}
    assert texts[5] == "calls computer_call calls web_search_call calls mcp_call calls image_generation_call"
    assert not [kind for kind in ("image", "compaction") if secret(kind) in json.dumps(rows)]


async def test_an_export_is_imported_with_its_items() -> None:
    async with stored() as (w, response):
        exported = await read(w, f"conversations/{response['conversation_id']}/export")
        imported = await w.client.post(
            f"{w.base_url}/conversations/import",
            content=exported.content,
            headers={"content-type": exported.headers["content-type"]},
        )
        assert imported.status_code == 200, imported.text
        (copy,) = imported.json()["data"]
        again = await read(w, f"conversations/{copy['id']}/export")
        before, after = [await list_items(w, name) for name in (response["conversation_id"], copy["id"])]
        one, other = sorted(w.conversations(), key=lambda conversation: conversation.id != copy["id"])
        logs = [
            [entry.message.raw for entry in await w.store.read_log(kept, 0, kept.head_seq + 1)] for kept in (one, other)
        ]
    assert exported.content == again.content
    assert logs[0] == logs[1]
    assert [strip(item) for item in after] == [strip(item) for item in before]


async def test_an_export_for_other_programs_has_chat_messages_only() -> None:
    async with stored() as (w, response):
        exported = await read(w, f"conversations/{response['conversation_id']}/export", format="openai")
    messages = json.loads(exported.text)["messages"]
    assert [message["role"] for message in messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant", "tool"),
        *("user", "assistant"),  # the image of the last result, which a tool message cannot have
        *("user", "assistant"),
    ]
    assert messages[1]["tool_calls"][0]["function"]["name"] == "look_up"


def strip(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "created_at")}


async def test_an_erased_item_is_nowhere_and_all_others_stay() -> None:
    async with stored() as (w, response):
        place = f"conversations/{response['conversation_id']}"
        items = await list_items(w, response["conversation_id"])
        words = set(re.findall("zebra[a-z]+", json.dumps(HISTORY)))
        assert len(words) == 14
        for item in items:
            words -= set(re.findall("zebra[a-z]+", json.dumps(item)))
            gone = await w.client.delete(f"{w.base_url}/{place}/items/{item['id']}", params={"erase": "true"})
            assert gone.status_code == 200, gone.text
            paths = [
                f"{place}/{kind}" for kind in ("items?limit=100", "log", "export?include=deleted", "context?model=m")
            ]
            paths += [f"responses/{response['id']}", f"responses/{response['id']}/input_items?limit=100"]
            kept = "".join([(await read_text(w, path)) for path in paths])
            assert set(re.findall("zebra[a-z]+", kept)) == words, item["type"]


async def read_text(w: World, path: str) -> str:
    return str((await w.client.get(f"{w.base_url}/{path}")).text)


async def test_pins_take_items_of_every_kind() -> None:
    async with stored() as (w, response):
        place = f"{w.base_url}/conversations/{response['conversation_id']}"
        for item in await list_items(w, response["conversation_id"]):
            pinned = await w.client.post(f"{place}/items/{item['id']}/pin")
            unpinned = await w.client.delete(f"{place}/items/{item['id']}/pin")
            assert (pinned.status_code, unpinned.status_code) == (200, 200), pinned.text + unpinned.text


async def test_the_log_shows_what_is_left_of_a_message() -> None:
    async with stored() as (w, response):
        place = f"conversations/{response['conversation_id']}"
        items = {item["type"]: item["id"] for item in (await list_items(w, response["conversation_id"]))[:-2]}
        await w.client.delete(f"{w.base_url}/{place}/items/{items['hologram_call']}", params={"erase": "true"})
        row = (await read(w, f"{place}/log")).json()["data"][7]
        await w.client.delete(f"{w.base_url}/{place}/items/{items['message']}", params={"erase": "true"})
        after = (await read(w, f"{place}/log")).json()["data"][7]
    assert (row["deleted"], row["erased"]) == (True, True)
    assert row["text"].endswith(f"It is {secret('answer')}.")
    assert [call["name"] for call in row["tool_calls"]] == ["compaction"]
    assert (after["text"], after["deleted"]) == ("", True)


async def test_a_view_shows_sent_messages_as_objects() -> None:
    async with world(ScriptedUpstream(default=answering)) as w:
        asked = {"model": "m", "instructions": "Be brief.", "input": "Hi", "conversation": "c"}
        response = (await w.client.post(f"{w.base_url}/responses", json=asked)).json()
        path = f"conversations/{response['conversation_id']}/context"
        view = (await read(w, path, model="m", **{"include[]": "sent"})).json()
    assert [message["role"] for message in view["sent"]][-2:] == ["user", "assistant"]
