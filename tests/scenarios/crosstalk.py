"""Many tenants at once who say the same things under the same names, each with a word of its own in them: whoever is
shown a word of somebody else's has met them.

Everything runs in one process: clients, the gateway, and a model that answers with the words it was shown.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from tests.live import Reply, ScriptedUpstream, completion, gateway, serving, stream
from tests.support.gateway import is_summary

Body = dict[str, Any]
WORD: Final = re.compile(r"zyx\d\dqk")
FILLER: Final = "The same is said by everybody, at some length, so that histories grow out of the window. " * 16
WINDOW: Final = 2048
CONNECTIONS: Final = 100
CALL_ID: Final = "call_1"


def words(text: str) -> set[str]:
    return set(WORD.findall(text))


@dataclass(frozen=True)
class Kind:
    """How a client speaks, and what it begins with: the same for every tenant."""

    greeting: str
    appends: bool = False
    conversation: str | None = None
    """The name it gives its conversation: the same for every tenant."""
    calls: bool = False
    """It uses a tool in every other turn; the call has the same id for every tenant."""
    streams: bool = False
    is_twin: bool = False
    """Nothing that is said differs from what every other tenant's says, answers included."""


KINDS: Final = (
    Kind("Twins.", is_twin=True),
    Kind("Hi", calls=True),
    Kind("Hello", conversation="chat-1", streams=True),
    Kind("Good day", conversation="chat-2", appends=True, calls=True),
    Kind("Hey", conversation="chat-3", appends=True, streams=True),
)


@dataclass
class Talk:
    """One conversation of one tenant, turn after turn."""

    tenant: int
    kind: Kind
    messages: list[Body] = field(default_factory=list)
    sent: int = 0
    ids: set[str] = field(default_factory=set)

    @property
    def word(self) -> str:
        return f"zyx{self.tenant:02d}qk"

    @property
    def headers(self) -> dict[str, str]:
        named = {"x-conversation-id": self.kind.conversation} if self.kind.conversation else {}
        mode = {"x-context-mode": "append"} if self.kind.appends else {}
        return {"authorization": f"Bearer sk-{self.tenant}", **named, **mode}

    def next(self) -> Body:
        """The next request's body."""
        new = self._new()
        self.messages.append(new)
        system = {"role": "system", "content": f"You serve {self.word}."}
        shown = ([] if self.sent else [system]) + [new] if self.kind.appends else [system, *self.messages]
        self.sent += 1
        return {"model": "m", "messages": shown, "stream": self.kind.streams}

    def _new(self) -> Body:
        last = self.messages[-1] if self.messages else {}
        if last.get("tool_calls"):
            return {"role": "tool", "tool_call_id": CALL_ID, "content": f"Found {self.word}."}
        turn = sum(message["role"] == "user" for message in self.messages)
        said = f"Part {turn}. {FILLER}" if turn else self.kind.greeting
        if self.kind.is_twin:
            said = f"Twins. {said}"
        elif turn % 3 == 2:
            said += self.word
        return {"role": "user", "content": said + (" Use the tool." if self.kind.calls and turn % 2 else "")}

    def take(self, answer: Body) -> None:
        """Put the answer into the history."""
        self.messages.append(answer)


class Model:
    """Answers with the words that it was shown, and notes whenever those are more than one tenant's."""

    def __init__(self) -> None:
        self.mixed: list[set[str]] = []
        self.summaries = 0
        self.upstream = ScriptedUpstream(default=self)

    def __call__(self, body: Body) -> Reply:
        self.upstream.bodies.clear()
        self.upstream.headers.clear()
        seen = words(json.dumps(body))
        if len(seen) != 1:
            self.mixed.append(seen)
        told = " ".join(sorted(seen))
        if is_summary(body):
            self.summaries += 1
            return completion(f"They spoke at length, of {told}.")
        last = body["messages"][-1]
        text = str(last["content"])
        if text.startswith("Twins."):
            return completion("Fine.")
        if text.endswith("Use the tool."):
            call = {"name": "look_up", "arguments": json.dumps({"word": told})}
            return completion(None, tool_calls=[{"id": CALL_ID, "type": "function", "function": call}])
        return stream("I ", "saw ", told, ".") if body.get("stream") else completion(f"I saw {told}.")


@dataclass
class Outcome:
    """What came of it."""

    requests: int = 0
    faults: list[str] = field(default_factory=list)
    """Each a sentence: somebody saw what was not theirs, or was not answered."""
    summaries: int = 0
    conversations: dict[int, set[str]] = field(default_factory=dict)


async def run(database: str, *, tenants: int, requests: int) -> Outcome:
    """Let everybody speak at once, then look at all that is kept.

    Args:
        database: URL of an empty one.
        requests: how many chat completions, over all tenants.
    """
    outcome, model = Outcome(), Model()
    talks = [Talk(tenant, kind) for tenant in range(tenants) for kind in KINDS]
    async with _world(model, database) as client:
        await asyncio.gather(*(_speak(client, talk, requests // len(talks), outcome) for talk in talks))
        for talk in talks:
            outcome.conversations.setdefault(talk.tenant, set()).update(talk.ids)
        await asyncio.gather(*(_look_around(client, tenant, outcome) for tenant in range(tenants)))
    outcome.faults += [f"the model was shown {sorted(seen)} in one request" for seen in model.mixed]
    outcome.faults += list(_shared(outcome.conversations))
    outcome.summaries = model.summaries
    return outcome


@asynccontextmanager
async def _world(model: Model, database: str) -> AsyncIterator[aiohttp.ClientSession]:
    policies = {"additive": {"token_floor": 0}}
    async with (
        serving(model.upstream, lifespan="off") as address,
        gateway(address, database=database, window=WINDOW, policies=policies) as base_url,
        aiohttp.ClientSession(f"{base_url}/", connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as client,
    ):
        yield client


async def _speak(client: aiohttp.ClientSession, talk: Talk, requests: int, outcome: Outcome) -> None:
    for _ in range(requests):
        async with client.post("chat/completions", json=talk.next(), headers=talk.headers) as answer:
            text = await answer.text()
        outcome.requests += 1
        if answer.status != 200 or text.startswith('data: {"error"') or '\ndata: {"error"' in text:
            outcome.faults.append(f"tenant {talk.tenant} got {answer.status}: {text[-300:]}")
            return
        message, conversation_id = _read(text, streamed=talk.kind.streams)
        foreign = words(text + str(answer.headers)) - {talk.word}
        if foreign or not (talk.kind.is_twin or talk.word in str(message)):
            outcome.faults.append(f"tenant {talk.tenant} was answered {message}, with {sorted(foreign)}")
        talk.ids.add(conversation_id)
        talk.take(message)
    if len(talk.ids) > 1:
        outcome.faults.append(f"tenant {talk.tenant} lost its conversation: {sorted(talk.ids)}")


def _read(text: str, *, streamed: bool) -> tuple[Body, str]:
    """The assistant's message and the conversation that it belongs to."""
    if not streamed:
        body = json.loads(text)
        found = {name: value for name, value in body["choices"][0]["message"].items() if value is not None}
        return {"content": None, **found}, body["conversation_id"]
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n") if line.startswith("data: {")]
    said = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    return {"role": "assistant", "content": "".join(said)}, events[-1]["conversation_id"]


async def _look_around(client: aiohttp.ClientSession, tenant: int, outcome: Outcome) -> None:
    """What a tenant is shown of all that is kept: its own conversations, whole, and no others."""
    own = f"zyx{tenant:02d}qk"
    headers = {"authorization": f"Bearer sk-{tenant}"}

    neighbour = (tenant + 1) % len(outcome.conversations)

    async def get(path: str, **query: str) -> list[Body]:
        async with client.get(path, params=query, headers=headers) as answer:
            text = await answer.text()
        data: list[Body] = json.loads(text).get("data", [])
        foreign = words(json.dumps(data)) - {own}
        if answer.status != 200 or foreign:
            outcome.faults.append(
                f"tenant {tenant} got {answer.status} for {path}, with {sorted(foreign)}: {text[:200]}"
            )
        return data

    listed = {entry["id"] for entry in await get("conversations", limit="100")}
    if listed != outcome.conversations[tenant]:
        outcome.faults.append(f"tenant {tenant} sees {sorted(listed)} of {sorted(outcome.conversations[tenant])}")
    for conversation_id in listed:
        if not await get(f"conversations/{conversation_id}/items", limit="100"):
            outcome.faults.append(f"tenant {tenant} sees nothing in {conversation_id}")
    await get("search", q=f"zyx{neighbour:02d}qk everybody", limit="100")
    for conversation_id in outcome.conversations[neighbour]:
        async with client.get(f"conversations/{conversation_id}", headers=headers) as refused:
            if refused.status != 404:
                outcome.faults.append(f"tenant {tenant} reached {conversation_id}, which is another's")


def _shared(conversations: dict[int, set[str]]) -> Iterator[str]:
    owner: dict[str, int] = {}
    for tenant, ids in conversations.items():
        for conversation_id in ids:
            if owner.setdefault(conversation_id, tenant) != tenant:
                yield f"tenants {owner[conversation_id]} and {tenant} share {conversation_id}"
