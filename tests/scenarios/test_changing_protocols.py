"""A conversation that begins in one protocol and goes on in the other has every item once: in the log, in what the
provider gets, and in an export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest

from tests.live import ScriptedUpstream, completion, gateway, serving
from tests.support.responses_upstream import (
    ResponsesUpstream,
    custom_call_item,
    function_call_item,
    reasoning_item,
    respond,
)

Body = dict[str, Any]
Fact = tuple[str, ...]
"""Something that was said, in the words of neither protocol: its kind, its text, the id of its call."""
IMAGE = "data:image/png;base64,iVBORw0KGgo="
SYSTEM: list[Fact] = [("system", "Be brief.")]
STEPS: list[tuple[list[Fact], list[Fact]]] = [
    (
        [("user", "Look at this."), ("image", IMAGE)],
        [
            ("reasoning", "A picture."),
            ("assistant", "I look."),
            ("function", "look", "c1", "{}"),
            ("custom", "run", "c2", "ls"),
        ],
    ),
    (
        [("result", "c1", "7"), ("custom result", "c2", "ok"), ("custom result", "c2", "done")],
        [("assistant", "Seven.")],
    ),
    ([("user", "Again?")], [("function", "look", "c3", "{}")]),
    ([("result", "c3", "8")], [("assistant", "Eight.")]),
]
"""What the client says in each request, and what the model answers."""
TALK = [fact for said, answered in STEPS for fact in (*said, *answered)]


def build_chat_messages(facts: Sequence[Fact]) -> list[Body]:
    """Returns facts as chat messages; what is of one message stands together."""
    messages: list[Body] = []
    for kind, *values in facts:
        last: Body = messages[-1] if messages else {"role": None}
        match kind:
            case "image":
                last["content"] = [
                    {"type": "text", "text": last["content"]},
                    {"type": "image_url", "image_url": {"url": values[0], "detail": "low"}},
                ]
            case "reasoning":
                messages.append({"role": "assistant", "content": None, "reasoning_content": values[0]})
            case "assistant" if last["role"] == "assistant":
                last["content"] = values[0]
            case "function" | "custom":
                if last["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                name, call_id, text = values
                called = {"name": name, "arguments" if kind == "function" else "input": text}
                messages[-1].setdefault("tool_calls", []).append({"id": call_id, "type": kind, kind: called})
            case "result" | "custom result" if last.get("tool_call_id") == values[0]:
                last["content"] = [{"type": "text", "text": text} for text in (last["content"], values[1])]
            case "result" | "custom result":
                messages.append({"role": "tool", "tool_call_id": values[0], "content": values[1]})
            case _:
                messages.append({"role": kind, "content": values[0]})
    return messages


def build_items(facts: Sequence[Fact]) -> list[Body]:
    """Returns facts as Responses items."""
    items: list[Body] = []
    for kind, *values in facts:
        last = items[-1] if items else {}
        match kind:
            case "image":
                text = {"type": "input_text", "text": last["content"]}
                last["content"] = [text, {"type": "input_image", "image_url": values[0], "detail": "low"}]
            case "reasoning":
                text = {"type": "reasoning_text", "text": values[0]}
                items.append({"type": "reasoning", "summary": [], "content": [text]})
            case "function":
                items.append(function_call_item(values[0], values[2], values[1]))
            case "custom":
                items.append(custom_call_item(values[0], values[2], values[1]))
            case "result" | "custom result" if "output" in last and last["call_id"] == values[0]:
                last["output"] = [{"type": "input_text", "text": one} for one in (last["output"], values[1])]
            case "result" | "custom result":
                output_type = "function_call_output" if kind == "result" else "custom_tool_call_output"
                items.append({"type": output_type, "call_id": values[0], "output": values[1]})
            case "assistant":
                items.append(respond(values[0]).items[0])
            case _:
                items.append({"type": "message", "role": kind, "content": values[0]})
    return items


def read_chat_messages(messages: Sequence[Mapping[str, Any]]) -> list[Fact]:
    facts: list[Fact] = []
    custom_ids = set()
    for message in messages:
        role = message["role"]
        if message.get("reasoning_content"):
            facts.append(("reasoning", message["reasoning_content"]))
        if role == "tool":
            call_id = message["tool_call_id"]
            kind = "custom result" if call_id in custom_ids else "result"
            facts += [(kind, call_id, text) for _, text in read_content(message["content"], role)]
        else:
            facts += read_content(message.get("content"), role)
        for call in message.get("tool_calls") or ():
            called = call[call["type"]]
            facts.append((call["type"], called["name"], call["id"], called.get("arguments", called.get("input"))))
            if call["type"] == "custom":
                custom_ids.add(call["id"])
    return facts


def read_items(items: Sequence[Mapping[str, Any]]) -> list[Fact]:
    facts: list[Fact] = []
    for item in items:
        match item:
            case {"type": "reasoning"}:
                facts += [("reasoning", part["text"]) for part in item.get("content") or item["summary"]]
            case {"type": "function_call"}:
                facts.append(("function", item["name"], item["call_id"], item["arguments"]))
            case {"type": "custom_tool_call"}:
                facts.append(("custom", item["name"], item["call_id"], item["input"]))
            case {"type": "function_call_output" | "custom_tool_call_output" as kind}:
                name = "result" if kind == "function_call_output" else "custom result"
                facts += [(name, item["call_id"], text) for _, text in read_content(item["output"], "tool")]
            case _:
                facts += read_content(item["content"], item["role"])
    return facts


def read_content(content: Any, role: str) -> list[tuple[str, str]]:
    if not content:
        return []
    if isinstance(content, str):
        return [(role, content)]
    facts = []
    for part in content:
        image = part.get("image_url")
        if image:
            facts.append(("image", image["url"] if isinstance(image, dict) else image))
        else:
            facts.append((role, part["text"]))
    return facts


def build_upstream(protocol: str) -> ScriptedUpstream:
    """A provider that gives the answers of `STEPS`."""
    if protocol == "responses":
        answers = []
        for _, answered in STEPS:
            items = [
                reasoning_item(texts=[item["content"][0]["text"]]) if item["type"] == "reasoning" else item
                for item in build_items(answered)
            ]
            answers.append(respond(*items))
        return ResponsesUpstream(*answers)
    replies = []
    for _, answered in STEPS:
        (message,) = build_chat_messages(answered)
        replies.append(completion(message.pop("content"), **{k: v for k, v in message.items() if k != "role"}))
    return ScriptedUpstream(*replies)


def read_request(body: Body) -> list[Fact]:
    """Returns what a provider was told."""
    if "messages" in body:
        return read_chat_messages(body["messages"])
    instructions = [("system", body["instructions"])] if body.get("instructions") else []
    return [*instructions, *read_items(body["input"])]


class Client:
    """Speaks both protocols, and continues a conversation in one of two ways."""

    def __init__(self, client: httpx.AsyncClient, way: str) -> None:
        self.client = client
        self.way = way
        self.conversation_id = ""
        self.said: list[Fact] = []

    async def send(self, protocol: str, new: list[Fact]) -> list[Fact]:
        """Sends new facts and returns those of the answer."""
        continues = bool(self.conversation_id) and self.way == "conversation"
        facts = [*SYSTEM, *(new if continues else [*self.said, *new])]
        if protocol == "chat":
            named = {"conversation_id": self.conversation_id} if continues else {}
            tools = [{"type": "function", "function": {"name": "look"}}, {"type": "custom", "custom": {"name": "run"}}]
            body = {"messages": build_chat_messages(facts), "tools": tools, **named}
            answer = await self._post("/chat/completions", body)
            answered = read_chat_messages([answer["choices"][0]["message"]])
        else:
            named = {"conversation": self.conversation_id} if continues else {}
            tools = [{"type": "function", "name": "look", "parameters": {}}, {"type": "custom", "name": "run"}]
            body = {"input": build_items(facts), "tools": tools, **named}
            answer = await self._post("/responses", body)
            answered = read_items(answer["output"])
        self.conversation_id = self.conversation_id or answer["conversation_id"]
        assert answer["conversation_id"] == self.conversation_id
        self.said += [*new, *answered]
        return answered

    async def _post(self, path: str, body: Body) -> Body:
        answer = await self.client.post(path, json={"model": "m", **body})
        assert answer.status_code == 200, answer.text
        found: Body = answer.json()
        return found

    async def read(self, path: str) -> Any:
        answer = await self.client.get(f"/conversations/{self.conversation_id}{path}")
        assert answer.status_code == 200, answer.text
        return answer


async def check_exports(client: Client) -> None:
    exported = (await client.read("/export?format=openai")).json()
    assert without_system(read_chat_messages(exported["messages"])) == TALK
    lines = (await client.read("/export")).content
    stranger = {"authorization": "Bearer sk-two"}
    taken = await client.client.post("/conversations/import", content=lines, headers=stranger)
    assert taken.status_code == 200, taken.text
    (found,) = taken.json()["data"]
    items = await client.client.get(f"/conversations/{found['id']}/items?order=asc&limit=100", headers=stranger)
    assert without_system(read_items(items.json()["data"])) == TALK


def without_system(facts: list[Fact]) -> list[Fact]:
    """Leaves out the instructions, which a log has only of clients that append."""
    return [fact for fact in facts if fact not in SYSTEM]


@pytest.mark.parametrize("upstream_protocol", ["chat", "responses"])
@pytest.mark.parametrize("way", ["conversation", "resent"])
@pytest.mark.parametrize("protocols", ["ccrr", "rrcc", "crcr", "rcrc"])
async def test_every_item_is_there_once(protocols: str, way: str, upstream_protocol: str) -> None:
    upstream = build_upstream(upstream_protocol)
    protocol = "openai" if upstream_protocol == "chat" else "responses"
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(
            address,
            providers={"upstream": {"base_url": f"{address}/v1", "api_key": "sk-upstream", "protocol": protocol}},
        ) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=30, headers={"authorization": "Bearer sk-one"}) as http,
    ):
        client = Client(http, way)
        for letter, (said, answered) in zip(protocols, STEPS, strict=True):
            told = [*SYSTEM, *client.said, *said]
            assert await client.send({"c": "chat", "r": "responses"}[letter], said) == answered
            assert read_request(upstream.requests[-1]) == told
        assert client.said == TALK
        items = (await client.read("/items?order=asc&limit=100")).json()["data"]
        assert without_system(read_items(items)) == TALK
        await check_exports(client)
        listed = (await http.get("/conversations")).json()["data"]
        assert [one["id"] for one in listed] == [client.conversation_id]
