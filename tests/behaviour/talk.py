"""A client in front of a gateway, whose store it can look into, in front of a model: all in one process, over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from app.api.edge.auth import build_open_caller
from app.assembly.dependencies import Dependencies
from app.context.count.token_counter import TokenCounter
from app.conversation.conversation_types import Conversation, Summary
from app.conversation.item import Item
from app.dialects.body.message import decode_body
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.store import Store
from app.store.store_factory import create_store, read_utc_now
from tests.behaviour.model import Body, Call, Model
from tests.behaviour.texts import COUNTER, message, weight
from tests.live import TEST_DEPENDENCIES, ScriptedUpstream, gateway, serving
from tests.support.memory_store import MemoryStore

T = TypeVar("T")
MODEL: Final = "the-model"
LEAST_USER_TOKENS: Final = 24
MOST_TURNS: Final = 400


@dataclass(frozen=True)
class Answer:
    """What came back for one request."""

    status: int
    headers: httpx.Headers
    body: Body
    events: list[Body]
    """Of a stream: its chunks in order."""
    asked: list[Call]
    """Calls for an answer that reached the model meanwhile …"""
    summaries_asked: list[Call]
    """… and calls for a summary."""
    messages: list[Body]
    """The conversation as the client had it when it asked, instructions aside."""

    @property
    def context(self) -> Body:
        found: Body = self.body["context"]
        return found

    @property
    def said(self) -> str:
        """The one word for what the model saw."""
        return str(self.body["context_status"])

    @property
    def view(self) -> list[Body]:
        """What the model was shown for it."""
        return self.asked[-1].messages


@dataclass
class Talk:
    """One client's conversation. The gateway starts with the first request, when all is said about it."""

    runner: asyncio.Runner
    folder: Path
    model: Model = field(default_factory=Model)
    settings: Body = field(default_factory=dict)
    window: int = 8192
    database: str = "memory://"
    instructions: list[Body] = field(default_factory=list)
    tools: list[Body] = field(default_factory=list)
    messages: list[Body] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    asks_for: str = MODEL
    fields: Body = field(default_factory=dict)
    """Further fields of each request."""
    headers: dict[str, str] = field(default_factory=lambda: {"authorization": "Bearer sk-one"})
    appends: bool = False
    """The client names its conversation and sends new messages only."""
    secrets: dict[str, str] = field(default_factory=dict)
    """Keys of the gateway's own, by their names."""
    counted: list[str] = field(default_factory=list)
    """The texts that the gateway has counted, in order."""
    file: bytes = b""
    """What is to be imported …"""
    begun: list[str] = field(default_factory=list)
    """Conversations that were begun by hand."""
    received: httpx.Response | None = None
    """… and what was said to it."""
    store: Store | None = None
    clock: Callable[[], datetime] = read_utc_now
    """The store's, from its next start."""
    dependencies: Dependencies = TEST_DEPENDENCIES
    gateways: int = 1
    """How many share the store; requests go to them in turn."""
    _base_urls: list[str] = field(default_factory=list)
    _asked: int = 0
    _upstream: ScriptedUpstream | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _client: httpx.AsyncClient | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def configure(self, section: str, values: Body) -> None:
        """Add to a section of the configuration."""
        self.must_not_have_begun()
        self.settings[section] = {**self.settings.get(section, {}), **values}

    def must_not_have_begun(self) -> None:
        assert not self._base_urls, "the gateway runs already: it is configured before anything is said"

    # what was said

    @property
    def answer(self) -> Answer:
        return self.answers[-1]

    @property
    def turns(self) -> list[list[Body]]:
        """The conversation by turns, each beginning with a user's message."""
        return turns_of(self.messages)

    @property
    def tokens(self) -> int:
        """What the conversation weighs as a prompt, everything word for word."""
        return weight([*self.instructions, *self.messages], self.tools)

    # saying

    def say(self, said: Body | list[Body], **fields: Any) -> Answer:
        """One request with these new messages; an answer with success joins the conversation."""
        new = said if isinstance(said, list) else [said]
        self.messages += new
        answer = self.run(self.ask(new, **fields))
        self.answers.append(answer)
        if answer.status == 200:
            self.messages.append(reply_of(answer))
        return answer

    def user(self, tokens: int) -> Body:
        """The next message of the user's, of a given weight."""
        return message("user", tokens, f"Turn {len(self.turns) + 1}:")

    def grow_to(self, tokens: int) -> Answer:
        """Turns of about a twentieth, the last such that the whole conversation weighs `tokens` when it is asked."""
        assert self.tokens < tokens, f"the conversation weighs {self.tokens} tokens already"
        step = max(LEAST_USER_TOKENS, tokens // 20)
        reply = COUNTER.count_message({"role": "assistant", "content": self.model.answers})
        while (missing := tokens - self.tokens) > 2 * (step + reply):
            self.say(self.user(step))
        if missing > step + reply + LEAST_USER_TOKENS and missing > 2 * LEAST_USER_TOKENS + reply:
            self.say(self.user((missing - reply) // 2))
        return self.say(self.user(tokens - self.tokens))

    async def ask(self, new: list[Body], **fields: Any) -> Answer:
        """The answer to the conversation as it stands, `new` being its last messages."""
        await self.start()
        assert self._client is not None
        before = len(self.model.calls)
        sent = new if self.appends else [*self.instructions, *self.messages]
        headers = {**self.headers, **fields.pop("headers", {})}
        body = {"model": self.asks_for, "messages": sent, **self.fields, **fields}
        if self.tools:
            body["tools"] = self.tools
        self._asked += 1
        address = self._base_urls[self._asked % self.gateways]
        answered = await self._client.post(f"{address}/chat/completions", json=body, headers=headers)
        calls = self.model.calls[before:]
        assert self.model.complaints == []
        events = events_of(answered) if body.get("stream") and answered.status_code == 200 else []
        return Answer(
            status=answered.status_code,
            headers=answered.headers,
            body=events[-1] if events else answered.json(),
            events=events,
            asked=[call for call in calls if not call.is_summary],
            summaries_asked=[call for call in calls if call.is_summary],
            messages=list(self.messages),
        )

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Any other request of the same client; `path` is below `/v1`."""

        async def sent() -> httpx.Response:
            await self.start()
            assert self._client is not None
            return await self._client.request(method, f"{self._base_urls[0]}{path}", headers=self.headers, **options)

        return self.run(sent())

    # the gateway

    async def start(self) -> None:
        if self._base_urls:
            return
        if self._upstream is None:
            self._upstream = ScriptedUpstream(default=self.model)
        dependencies = dataclasses.replace(
            self.dependencies, create_store=self._open_store, create_message_counter=self._create_message_counter
        )
        values = {"models": {"*": {"provider": "upstream", "context_window": self.window}}, **self.settings}
        address = await self._stack.enter_async_context(serving(self._upstream, lifespan="off"))
        for _ in range(self.gateways):
            running = gateway(address, database=self.database, dependencies=dependencies, **values)
            self._base_urls.append(await self._stack.enter_async_context(running))
        self._client = await self._stack.enter_async_context(httpx.AsyncClient(timeout=60, verify=False))

    def _open_store(self, url: str, **options: Any) -> Store:
        if not url.startswith("memory"):
            self.store = create_store(url, clock=self.clock, **options)
        elif self.store is None:
            self.store = MemoryStore(clock=self.clock)
        return self.store

    def _create_message_counter(self, counter_for: Callable[[str], TokenCounter]) -> MessageCounter:
        return MessageCounter(lambda encoding: _NotingCounter(counter_for(encoding), self.counted))

    def stop(self) -> None:
        """The gateway ends; the next request starts another over the same store."""
        self.run(self._stack.aclose())
        self._base_urls.clear()

    # the store

    def conversation(self) -> Conversation:
        """The stored conversation of the last answer."""
        found = self.run(
            self._kept().find_conversation(tenant=self._tenant(), conversation_id=self.answer.body["conversation_id"])
        )
        assert found is not None
        return found

    def log(self) -> list[Body]:
        conversation = self.conversation()
        entries = self.run(self._kept().read_log(conversation, 0, conversation.head_seq + 1))
        assert [entry.seq for entry in entries] == list(range(conversation.head_seq + 1))
        return [decode_body(entry.message) for entry in entries]

    def chunks(self) -> list[Summary]:
        """The stored summaries of the conversation."""
        conversation = self.conversation()
        return self.run(
            self._kept().find_summaries(
                tenant=conversation.tenant, root=conversation.root, path=conversation.lineage_with_self
            )
        )

    def _kept(self) -> Store:
        assert self.store is not None
        return self.store

    def _tenant(self) -> str:
        pepper = self.run(self._kept().ensure_server_secret("pepper", proposed=""))
        return build_open_caller(self.headers.get("authorization"), None, pepper).tenant


class _NotingCounter(TokenCounter):
    """Notes what is counted."""

    def __init__(self, counter: TokenCounter, counted: list[str]) -> None:
        vars(self).update(vars(counter))
        self._counted = counted

    def count_message(self, message: Item) -> int:
        self._counted.append(message.text)
        return super().count_message(message)


def turns_of(messages: list[Body]) -> list[list[Body]]:
    turns: list[list[Body]] = []
    for entry in messages:
        if entry["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(entry)
    return turns


def reply_of(answer: Answer) -> Body:
    """The assistant message as a client puts it into its history."""
    if not answer.events:
        found = dict(answer.body["choices"][0]["message"])
        return {name: value for name, value in found.items() if value is not None or name == "content"}
    deltas = [choice["delta"] for event in answer.events for choice in event.get("choices", ())]
    return {"role": "assistant", "content": "".join(delta.get("content") or "" for delta in deltas)}


def events_of(answered: httpx.Response) -> list[Body]:
    """The chunks of a stream that ended properly."""
    frames = answered.text.removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]
