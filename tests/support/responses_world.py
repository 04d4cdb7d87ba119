"""A gateway in this process in front of providers of either protocol, and a client of the Responses API."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import httpx
import orjson

from app.dialects.item_decoding import decode_item
from tests.live import TEST_DEPENDENCIES, ScriptedUpstream, gateway, serving
from tests.support.gateway import World
from tests.support.memory_store import MemoryStore
from tests.support.response_events import check_event_order, read_events
from tests.support.response_types import validate_event, validate_response
from tests.support.responses_upstream import ResponsesUpstream

NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})
Input = str | bytes | Sequence[Mapping[str, Any]]


class ResponsesWorld(World):
    """One gateway with its scripted upstreams, asked by the Responses API."""

    async def ask(self, given: Input | None, *, key: str = "sk-one", **fields: Any) -> httpx.Response:
        """Sends a request. Bytes are the JSON text of `input`."""
        members = [b"%b:%b" % (orjson.dumps(name), orjson.dumps(value)) for name, value in fields.items()]
        if given is not None:
            members.append(b'"input":' + (given if isinstance(given, bytes) else orjson.dumps(given)))
        if "model" not in fields:
            members.insert(0, b'"model":"m"')
        return await self.client.post(
            f"{self.base_url}/responses",
            content=b"{" + b",".join(members) + b"}",
            headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
        )

    async def respond(self, given: Input | None, **fields: Any) -> dict[str, Any]:
        """The response object of a request that must succeed."""
        answer = await self.ask(given, **fields)
        assert answer.status_code == 200, answer.text
        validate_response(answer.json())
        body: dict[str, Any] = answer.json()
        return body

    async def respond_streamed(self, given: Input | None, **fields: Any) -> list[dict[str, Any]]:
        """The events of a streamed answer, which are valid and in order."""
        answer = await self.ask(given, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        events = read_events(answer.content)
        check_event_order(events)
        for event in events:
            validate_event(event)
        return events

    async def respond_either(self, given: Input | None, *, stream: bool, **fields: Any) -> dict[str, Any]:
        """The last response object, of a whole answer or of a stream."""
        if not stream:
            return await self.respond(given, **fields)
        response: dict[str, Any] = (await self.respond_streamed(given, **fields))[-1]["response"]
        return response

    async def read_response(self, response_id: str, **query: Any) -> dict[str, Any]:
        answer = await self.client.get(
            f"{self.base_url}/responses/{response_id}", params=query, headers={"authorization": "Bearer sk-one"}
        )
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def raw_log(self) -> list[bytes]:
        """The stored bytes of each message of the only conversation."""
        (conversation,) = self.conversations()
        entries = await self.store.read_log(conversation, 0, conversation.head_seq + 1)
        return [bytes(entry.message.raw) for entry in entries]


@asynccontextmanager
async def responses_world(
    upstream: ScriptedUpstream,
    *others: ScriptedUpstream,
    provider_options: Mapping[str, Any] = NO_OPTIONS,
    **options: Any,
) -> AsyncIterator[ResponsesWorld]:
    """A gateway over a store in memory. A `ResponsesUpstream` is a provider of the Responses API, any other one of Chat
    Completions; their names are `upstream`, `second`, `third`."""
    store = MemoryStore(clock=lambda: datetime.now(UTC))
    surroundings = dataclasses.replace(TEST_DEPENDENCIES, create_store=lambda *_, **__: store)
    async with AsyncExitStack() as stack:
        providers: dict[str, dict[str, Any]] = {}
        for name, served in zip(("upstream", "second", "third"), (upstream, *others), strict=False):
            address = await stack.enter_async_context(serving(served, lifespan="off"))
            protocol = "responses" if isinstance(served, ResponsesUpstream) else "openai"
            providers[name] = {"base_url": f"{address}/v1", "api_key": f"sk-{name}", "protocol": protocol}
            providers[name] |= provider_options
        base_url = await stack.enter_async_context(
            gateway(address, dependencies=surroundings, providers=providers, **options)
        )
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        yield ResponsesWorld(base_url, upstream, store, client)


def sent_items(upstream: ScriptedUpstream, number: int = -1) -> list[dict[str, Any]]:
    """The items of `input` in a request that came to a Responses provider."""
    items: list[dict[str, Any]] = upstream.requests[number]["input"]
    return items


def stored_texts(raws: Sequence[bytes]) -> list[str | None]:
    return [decode_item(raw).text for raw in raws]


def message(text: str, role: str = "user", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text, **fields}


def call_output(call_id: str, text: str = "42") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}
