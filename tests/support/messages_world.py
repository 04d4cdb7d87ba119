"""A provider that speaks the Messages API as strictly as Anthropic does, with scripted answers, and a gateway in front
of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import httpx

from app.assembly.dependencies import Dependencies
from app.dialects.item_decoding import decode_item
from app.errors import InvalidRequest
from tests.live import TEST_DEPENDENCIES, Reply, ScriptedUpstream, gateway, serving
from tests.support.gateway import World
from tests.support.memory_store import MemoryStore
from tests.support.messages_checks import check_messages_request, sign_thinking
from tests.support.messages_encoding import encode_message_events
from tests.support.responses_upstream import ResponsesUpstream

Block = dict[str, Any]
SAID: Final[Block] = {"type": "text", "text": "Fine."}
USER: Final = {"role": "user", "content": "Hi"}


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def tool_use(call_id: str = "toolu_1", name: str = "look", **given: Any) -> Block:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def tool_result(content: str = "42", call_id: str = "toolu_1") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": content}]}


def thinking(words: str = "Hm.") -> Block:
    """A block that the upstream signs."""
    return {"type": "thinking", "thinking": words, "signature": ""}


class MessagesUpstream(ScriptedUpstream):
    """Answers each valid request with the next scripted blocks, or with what `default` makes of it. A scripted `Reply`
    is sent as it is. Invalid requests get Anthropic's errors and use no scripted answer.

    Args:
        window: the most tokens that a prompt may have, four characters each; None: no limit.
        refuses_in_stream: a streamed request is refused by the first event of the stream, not by the status.

    Attributes:
        refusals: the messages of the errors.
        signatures: those of all thinking that it was asked to sign, in order.
    """

    def __init__(
        self,
        *answers: Sequence[Block] | Reply,
        default: Callable[[dict[str, Any]], Sequence[Block]] | None = None,
        window: int | None = None,
        refuses_in_stream: bool = False,
    ) -> None:
        super().__init__(default=self._reply)
        self.answers = list(answers)
        self.default_answer = default or (lambda body: [SAID])
        self.window = window
        self.refuses_in_stream = refuses_in_stream
        self.refusals: list[str] = []
        self.signatures: list[str] = []

    def _reply(self, body: dict[str, Any]) -> Reply:
        tokens = sum(len(json.dumps(body.get(name))) for name in ("system", "messages", "tools")) // 4
        try:
            if not self.paths[-1].endswith("/messages"):
                raise InvalidRequest(f"unknown path {self.paths[-1]}")
            assert self.headers[-1]["anthropic-version"]
            check_messages_request(body)
            if self.window is not None and tokens > self.window:
                raise InvalidRequest(f"prompt is too long: {tokens} tokens > {self.window} maximum")
        except InvalidRequest as refused:
            self.refusals.append(refused.message)
            error = {"type": "invalid_request_error", "message": refused.message}
            refusal = {"type": "error", "error": error, "request_id": "req_up"}
            if self.refuses_in_stream and body.get("stream"):
                return Reply(pieces=[b"event: error\ndata: " + json.dumps(refusal).encode() + b"\n\n"])
            return Reply(refusal, status=400)
        answer = self.answers.pop(0) if self.answers else self.default_answer(body)
        if isinstance(answer, Reply):
            return answer
        blocks = [self._sign(block, body) for block in answer]
        has_calls = any(block["type"] == "tool_use" for block in blocks)
        message = {
            "id": f"msg_up{len(self.bodies)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks,
            "stop_reason": "tool_use" if has_calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": tokens, "cache_read_input_tokens": 3, "output_tokens": 5},
            "x_vendor": {"kept": True},
        }
        return Reply(pieces=list(encode_message_events(message))) if body.get("stream") else Reply(message)

    def _sign(self, block: Block, body: dict[str, Any]) -> Block:
        if block["type"] != "thinking" or block["signature"]:
            return dict(block)
        messages = [one for one in body["messages"] if one["role"] != "system"]
        self.signatures.append(sign_thinking(messages, block))
        return {**block, "signature": self.signatures[-1]}


class MessagesWorld(World):
    """One gateway with its scripted upstreams, asked by the Messages API."""

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], *, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        body = {"model": "m", "max_tokens": 1000, "messages": [*messages], **fields}
        return await self.client.post(
            f"{self.base_url}/messages",
            json={name: value for name, value in body.items() if value is not None},
            headers={"x-api-key": "sk-one", "anthropic-version": "2023-06-01", **(headers or {})},
        )

    async def create(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
        """The message of a request that must succeed."""
        answer = await self.ask(messages, **fields)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def stream_events(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> list[dict[str, Any]]:
        """The data of the events of a streamed answer."""
        answer = await self.ask(messages, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        return read_events(answer.content)

    async def raw_log(self) -> list[bytes]:
        """The stored bytes of each message of the only conversation."""
        (conversation,) = self.conversations()
        entries = await self.store.read_log(conversation, 0, conversation.head_seq + 1)
        return [bytes(entry.message.raw) for entry in entries]

    async def log_roles(self) -> list[str]:
        return [decode_item(raw).role for raw in await self.raw_log()]


def read_events(content: bytes) -> list[dict[str, Any]]:
    """The data of a stream's events. The name of each is its type."""
    events = []
    for frame in content.decode().removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        events.append(body)
    return events


def join_message(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that a stream's events build, as the official clients do. Checks their order."""
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    message: dict[str, Any] = {}
    open_index = -1
    inputs: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = dict(event["message"])
                message["content"] = []
            case "content_block_start":
                assert open_index == -1
                assert event["index"] == len(message["content"])
                open_index = event["index"]
                message["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                assert event["index"] == open_index
                block = message["content"][-1]
                for name, value in event["delta"].items():
                    if name == "partial_json":
                        inputs[open_index] = inputs.get(open_index, "") + value
                    elif name == "citation":
                        block["citations"] = [*(block.get("citations") or []), value]
                    elif name == "type":
                        continue
                    elif event["delta"]["type"] == "compaction_delta":
                        block[name] = value
                    else:
                        block[name] = block.get(name, "") + value
            case "content_block_stop":
                assert event["index"] == open_index
                if open_index in inputs:
                    message["content"][-1]["input"] = json.loads(inputs[open_index])
                open_index = -1
            case "message_delta":
                message |= event["delta"]
                message["usage"] = {**message["usage"], **event["usage"]}
                message |= {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
    return message


@asynccontextmanager
async def messages_world(
    upstream: ScriptedUpstream,
    *others: ScriptedUpstream,
    dependencies: Dependencies = TEST_DEPENDENCIES,
    protocol: str = "openai",
    **options: Any,
) -> AsyncIterator[MessagesWorld]:
    """A gateway over a store in memory. The class of each upstream tells the protocol of its provider; their names are
    `upstream`, `second`, `third`.

    Args:
        protocol: that of upstreams whose class tells none.
    """
    store = MemoryStore(clock=lambda: datetime.now(UTC))
    surroundings = dataclasses.replace(dependencies, create_store=lambda *_, **__: store)
    async with AsyncExitStack() as stack:
        providers: dict[str, dict[str, Any]] = {}
        for name, served in zip(("upstream", "second", "third"), (upstream, *others), strict=False):
            address = await stack.enter_async_context(serving(served, lifespan="off"))
            spoken = {MessagesUpstream: "anthropic", ResponsesUpstream: "responses"}.get(type(served), protocol)
            providers[name] = {"base_url": f"{address}/v1", "api_key": f"sk-{name}", "protocol": spoken}
        base_url = await stack.enter_async_context(
            gateway(address, dependencies=surroundings, providers=providers, **options)
        )
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        yield MessagesWorld(base_url, upstream, store, client)
