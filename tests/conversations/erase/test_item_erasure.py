"""An item that is erased is nowhere: not in the database, not in a summary, not in what a model sees next."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import Reply, ScriptedUpstream, completion, gateway, serving
from tests.support.gateway import call, is_summary, material, pick_word, result, system, user

SECRET = "xylograph7781"
WINDOW = 2_000
POLICIES = {"additive": {"token_floor": 1, "prepare_ratio": 1.0}}


def telling(body: dict[str, Any]) -> Reply:
    """An upstream whose summaries tell the secret wherever they read it."""
    if is_summary(body):
        return completion(
            f"They spoke of {SECRET}." if SECRET in material(body) else f"They spoke of {pick_word(body)}."
        )
    return completion("Noted.")


class Talk:
    """A client that names its conversation and sends what is new."""

    def __init__(self, client: httpx.AsyncClient, base_url: str, upstream: ScriptedUpstream, path: Path) -> None:
        self.client = client
        self.base_url = base_url
        self.upstream = upstream
        self.path = path
        self.id = ""

    async def say(self, *messages: dict[str, Any], mode: str = "append", **fields: Any) -> dict[str, Any]:
        headers = {"x-context-mode": mode, **({"x-conversation-id": self.id} if self.id else {})}
        body = {"model": "m", "messages": list(messages), **fields}
        answer = await self.client.post(f"{self.base_url}/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        self.id = told["conversation_id"]
        return told

    async def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        answer = await self.client.get(f"{self.base_url}/conversations/{self.id}{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def items(self) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = (await self.get("/items", order="asc", limit=100))["data"]
        return data

    async def delete(self, item_id: str, *, erase: bool) -> httpx.Response:
        path = f"{self.base_url}/conversations/{self.id}/items/{item_id}"
        return await self.client.delete(path, params={"erase": "true"} if erase else {})

    def stored_bytes(self) -> bytes:
        return b"".join(file.read_bytes() for file in sorted(self.path.parent.glob(f"{self.path.name}*")))

    def shown(self) -> str:
        """What the model saw last."""
        return json.dumps([body for body in self.upstream.requests if not is_summary(body)][-1]["messages"])


@asynccontextmanager
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    upstream, path = ScriptedUpstream(default=telling), tmp_path / "kept.db"
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(address, database=f"sqlite:///{path}", window=WINDOW, policies=POLICIES) as base_url,
        httpx.AsyncClient(timeout=30) as client,
    ):
        yield Talk(client, base_url, upstream, path)


def filler(turn: int) -> dict[str, Any]:
    return user(f"Question {turn}: " + " ".join(f"item{turn}n{word}" for word in range(40)))


def said(item: dict[str, Any]) -> str:
    return json.dumps(item.get("content"))


async def test_an_erased_message_is_in_no_file_no_summary_and_no_view(tmp_path: Path) -> None:
    async with talk(tmp_path) as client:
        await client.say(filler(0))
        await client.say(user(f"My secret is {SECRET}."))
        for turn in range(1, 12):
            await client.say(filler(turn))
        assert SECRET in client.shown(), "the summary told it"
        before = await client.items()
        assert any(item["type"] == "compaction" and SECRET in item["text"] for item in before)
        (item,) = (one for one in before if one["type"] == "message" and SECRET in said(one))

        answer = await client.delete(item["id"], erase=True)
        assert answer.status_code == 200, answer.text
        assert answer.json()["object"] == "conversation"

        assert SECRET.encode() not in client.stored_bytes()
        await client.say(filler(12))
        assert SECRET not in client.shown()
        after = await client.items()
        assert SECRET not in json.dumps(after)
        assert item["id"] not in [one["id"] for one in after]
        assert any(one["type"] == "compaction" for one in after), "a summary without a model stands in"
        assert (await client.get("/search", q=SECRET))["data"] == []
        assert (await client.delete(item["id"], erase=False)).status_code == 404
        for turn in range(13, 22):
            await client.say(filler(turn))
        assert SECRET not in client.shown()


async def test_a_deleted_item_is_hidden_and_can_be_erased_later(tmp_path: Path) -> None:
    async with talk(tmp_path) as client:
        await client.say(user(f"My secret is {SECRET}."))
        (item,) = (one for one in await client.items() if SECRET in said(one))
        assert (await client.delete(item["id"], erase=False)).status_code == 200
        assert SECRET not in json.dumps(await client.items())
        await client.say(filler(1))
        assert SECRET not in client.shown()
        assert SECRET.encode() in client.stored_bytes()
        assert (await client.delete(item["id"], erase=False)).status_code == 404
        assert (await client.delete(item["id"], erase=True)).status_code == 200
        assert SECRET.encode() not in client.stored_bytes()


async def test_a_branch_loses_what_is_erased_in_the_conversation_it_shares_it_with(tmp_path: Path) -> None:
    async with talk(tmp_path) as client:
        history = [user(f"My secret is {SECRET}.")]
        told = await client.say(*history, mode="auto")
        history.append(told["choices"][0]["message"])
        await client.say(*history, user("One way."), mode="resend")
        first = client.id
        await client.say(*history, user("Another way."), mode="resend")
        branch = client.id
        assert branch != first
        (item,) = (one for one in await client.items() if SECRET in said(one))
        assert (await client.delete(item["id"], erase=True)).status_code == 200
        assert SECRET.encode() not in client.stored_bytes()
        client.id = first
        assert SECRET not in json.dumps(await client.items())
        await client.say(user("Go on."))
        assert SECRET not in client.shown()


async def test_the_copy_that_a_client_sends_again_does_not_bring_it_back(tmp_path: Path) -> None:
    async with talk(tmp_path) as client:
        history = [user(f"My secret is {SECRET}.")]
        told = await client.say(*history, mode="auto")
        (item,) = (one for one in await client.items() if SECRET in said(one))
        await client.delete(item["id"], erase=True)
        again = await client.say(*history, told["choices"][0]["message"], user("And now?"), mode="resend")
        assert again["conversation_id"] == told["conversation_id"]
        assert SECRET not in client.shown()
        assert "And now?" in client.shown()
        assert SECRET.encode() not in client.stored_bytes()


async def test_a_call_that_is_erased_keeps_its_result_in_place(tmp_path: Path) -> None:
    async with talk(tmp_path) as client:
        client.upstream.replies.append(
            completion(None, tool_calls=[call("look", json.dumps({"at": SECRET})), call("wait", "{}", "call_2")])
        )
        await client.say(user("Look it up."))
        await client.say(result("Found."), result("Waited.", "call_2"))
        (item,) = (one for one in await client.items() if one["type"] == "function_call" and one["name"] == "look")
        assert (await client.delete(item["id"], erase=True)).status_code == 200
        await client.say(user("Thanks."))
        view = json.loads(client.shown())
        assert [message["role"] for message in view] == ["user", "assistant", "tool", "tool", "assistant", "user"]
        assert view[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
        assert SECRET.encode() not in client.stored_bytes()


async def test_an_instruction_that_is_erased_is_in_no_branch_and_no_completion(tmp_path: Path) -> None:
    async with talk(tmp_path) as client:
        told = await client.say(system(f"Never say {SECRET}."), user("Hi."))
        first = client.id
        history = [user("Hi."), told["choices"][0]["message"]]
        await client.say(*history, user("One way."), mode="resend")
        await client.say(*history, user("Another way."), mode="resend")
        assert client.id != first
        client.id = first
        await client.say(user("Go on."), store=True)
        (item,) = (one for one in await client.items() if one.get("role") == "system")
        assert (await client.delete(item["id"], erase=True)).status_code == 200
        for conversation in (await client.client.get(f"{client.base_url}/conversations")).json()["data"]:
            client.id = conversation["id"]
            assert SECRET not in json.dumps(await client.items())
        (completion_id,) = [
            one["id"] for one in (await client.client.get(f"{client.base_url}/chat/completions")).json()["data"]
        ]
        asked = await client.client.get(f"{client.base_url}/chat/completions/{completion_id}/messages")
        assert SECRET not in asked.text


async def test_an_instruction_can_be_deleted(tmp_path: Path) -> None:
    async with talk(tmp_path) as client:
        await client.say(system("Speak like a pirate."), user("Hi."))
        (item,) = (one for one in await client.items() if one["role"] == "system")
        assert (await client.delete(item["id"], erase=True)).status_code == 200
        await client.say(user("Go on."))
        assert "pirate" not in client.shown()


@pytest.mark.parametrize("item_id", ["msg_1", "sum_00", "msg_00000000" + "0" * 24 + "00"])
async def test_what_is_not_there_cannot_be_erased(tmp_path: Path, item_id: str) -> None:
    async with talk(tmp_path) as client:
        await client.say(user("Hi."))
        answer = await client.delete(item_id, erase=True)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "item_not_found"
