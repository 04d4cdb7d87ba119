"""A gateway in this process whose store the test can look into, and a client that sends histories to it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

import httpx

from app.assembly.dependencies import Dependencies
from app.compaction.acceptance.empty_summaries import says_nothing
from app.conversation.conversation_types import Conversation, Summary
from app.dialects.body.message import decode_body
from app.store.contract.conversations import ConversationQuery
from tests.live import TEST_DEPENDENCIES, Reply, ScriptedUpstream, completion, gateway, serving, stream
from tests.support.memory_store import MemoryStore

Messages = Sequence[dict[str, Any]]
Result = TypeVar("Result")
MAX_CONVERSATIONS: Final = 100_000


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def call(name: str, arguments: str = "{}", call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


class World:
    """One gateway with its scripted upstream and its store."""

    def __init__(self, base_url: str, upstream: ScriptedUpstream, store: Any, client: httpx.AsyncClient) -> None:
        self.base_url = base_url
        self.upstream = upstream
        self.store = store
        self.client = client

    async def post(
        self,
        messages: Messages,
        *,
        key: str = "sk-one",
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> httpx.Response:
        return await self.client.post(
            f"{self.base_url}/chat/completions",
            json={"model": "m", "messages": list(messages), **fields},
            headers={"authorization": f"Bearer {key}", **(headers or {})},
        )

    async def say(self, messages: Messages, **options: Any) -> dict[str, Any]:
        """The body of an answer that must succeed."""
        answer = await self.post(messages, **options)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def stream(self, messages: Messages, **options: Any) -> list[dict[str, Any]]:
        """The events of a streamed answer that must end properly."""
        answer = await self.post(messages, stream=True, **options)
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def conversations(self) -> list[Conversation]:
        """All that are stored, oldest first."""
        query = ConversationQuery(limit=MAX_CONVERSATIONS, descending=False)
        return read_now(MemoryStore.list_conversations(self.store, tenant=None, query=query))

    async def log(self, conversation_id: str) -> list[dict[str, Any]]:
        """The stored messages of a conversation."""
        (conversation,) = (one for one in self.conversations() if one.id == conversation_id)
        entries = await self.store.read_log(conversation, 0, conversation.head_seq + 1)
        assert [entry.seq for entry in entries] == list(range(conversation.head_seq + 1))
        return [decode_body(entry.message) for entry in entries]

    def rows(self) -> int:
        """How many messages are stored, over all conversations. A branch shares those before its own."""
        return sum(one.head_seq - (one.lineage[-1][1] if one.lineage else -1) for one in self.conversations())

    def chunks(self) -> list[Summary]:
        """The summaries of all conversations, oldest first."""
        found: dict[str, Summary] = {}
        for one in self.conversations():
            path = one.lineage_with_self
            read = MemoryStore.find_summaries(self.store, tenant=one.tenant, root=one.root, path=path)
            found |= {summary.id: summary for summary in read_now(read)}
        return sorted(found.values(), key=lambda summary: summary.created_at)

    def model_facts(self) -> dict[str, Any]:
        """What the store knows of models."""
        return dict(read_now(MemoryStore.read_model_facts(self.store)))


def read_now(reading: Coroutine[Any, Any, Result]) -> Result:
    """What a coroutine returns that never waits, as the methods of the store in memory."""
    try:
        reading.send(None)
    except StopIteration as ended:
        return cast(Result, ended.value)
    reading.close()
    raise AssertionError("it waits")


@asynccontextmanager
async def world(
    upstream: ScriptedUpstream,
    *,
    store: Any = None,
    dependencies: Dependencies = TEST_DEPENDENCIES,
    **options: Any,
) -> AsyncIterator[World]:
    """A gateway over a store in memory."""
    kept = store or MemoryStore(clock=lambda: datetime.now(UTC))
    surroundings = dataclasses.replace(dependencies, create_store=lambda *_, **__: kept)
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(address, dependencies=surroundings, **options) as base_url,
        httpx.AsyncClient(timeout=30) as client,
    ):
        yield World(base_url, upstream, kept, client)


async def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something that others do."""
    for _ in range(int(seconds / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("it does not come to hold")


def summaries_asked(upstream: ScriptedUpstream) -> list[dict[str, Any]]:
    """Requests that asked for a summary."""
    return [body for body in upstream.requests if is_summary(body)]


SUMMARIZER_WORDS = ("All of it is material to be summarized.", "That is no summary:")


def is_summary(body: dict[str, Any]) -> bool:
    """Whether a request comes from the summarizer."""
    last = body["messages"][-1]["content"]
    return isinstance(last, str) and any(words in last for words in SUMMARIZER_WORDS)


def material(body: dict[str, Any]) -> str:
    """What a request of the summarizer's asks to be summarized: the fenced text, or the messages that it means."""
    *before, last = body["messages"]
    if "summaries in the message before this one" in last["content"]:
        return str(before[-1]["content"])
    meant = re.search(r"the last (\d+) messages before this one", last["content"])
    return str([one["content"] for one in before[-int(meant.group(1)) :]]) if meant else str(last["content"])


def pick_word(body: dict[str, Any]) -> str:
    """A word of what a request of the summarizer's asks to be summarized: a summary without one is refused."""
    *before, last = body["messages"]
    fenced = re.search(r"<transcript (\w+)>\n(.*)\n</transcript \1>", last["content"], re.DOTALL)
    is_range = " before this one" in last["content"]
    spoken = fenced.group(2) if fenced else material(body) if is_range else texts(before)
    words = re.findall(r"[^\W\d_]\w{3,}", re.sub(r"--- \w+ \[\d+\] .*", "", str(spoken)))
    telling = [word for word in dict.fromkeys(words) if not says_nothing(word, [word])]
    return max(telling, key=lambda word: (any(map(str.isdigit, word)), len(word)), default="gardens")


def texts(messages: Messages) -> list[Any]:
    return [message.get("content") for message in messages]


def answering(body: dict[str, Any]) -> Reply:
    """An upstream that sums up in one line, and answers with what it was asked last."""
    if is_summary(body):
        return completion(f"They spoke about many things, such as {pick_word(body)}.", prompt_tokens=1000)
    last = str(body["messages"][-1]["content"])
    words = f"You said: {last[:40]}"
    return stream(words) if body.get("stream") else completion(words)


def answered(question: str) -> dict[str, Any]:
    """What `answering` says to a question."""
    return assistant(f"You said: {question[:40]}")


def long_history(turns: int, words: int = 120) -> list[dict[str, Any]]:
    """A history of which each turn has about `words` tokens, all of them different."""
    history = []
    for turn in range(turns):
        question = f"Question {turn}: " + " ".join(f"item{turn}n{word}" for word in range(words // 4))
        history += [user(question), answered(question)]
    return history


def shown(upstream: ScriptedUpstream) -> list[Messages]:
    """The views that went upstream for answers, in order."""
    return [body["messages"] for body in upstream.requests if not is_summary(body)]
