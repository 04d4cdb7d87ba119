"""Clients that change what they resend, a provider that refuses calls without results, and a gateway between them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from app.context.count.tokenizers import load_tokenizer
from tests.live import Reply, ScriptedUpstream, completion, gateway, serving
from tests.support.chat_counter import ChatCounter
from tests.support.gateway import World, call, is_summary, pick_word, system, user

WINDOW = 8192
KEY = "sk-one"
COUNTER = ChatCounter(load_tokenizer("o200k_base"))
SYSTEM = system("You help with gardens.")
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

Body = dict[str, Any]
Tell = Callable[[Sequence[Body]], list[Body]]
"""What a client makes of the whole conversation for its next request."""


def words(name: object, count: int) -> str:
    """Text of `count` words that no other name gets."""
    return " ".join(hashlib.sha256(f"{name} {number}".encode()).hexdigest()[:5] for number in range(count))


class StrictModel(ScriptedUpstream):
    """Refuses a result without its call and a call without its results; counts what it is sent.

    A user message or a result with the word `TOOL` is answered with a call whose id no other call has.

    Args:
        answer_words: how long an answer is.
    """

    def __init__(self, answer_words: int = 40) -> None:
        super().__init__(default=self._reply)
        self.answer_words = answer_words
        self.refused: list[str] = []

    @property
    def asked(self) -> list[Body]:
        """Requests for answers, those for summaries left out."""
        return [body for body in self.requests if not is_summary(body)]

    @property
    def summaries(self) -> int:
        return sum(is_summary(body) for body in self.requests)

    def _reply(self, body: Body) -> Reply:
        messages = body["messages"]
        if (why := find_orphan(messages)) is not None:
            self.refused.append(why)
            return Reply({"error": {"message": why, "type": "invalid_request_error", "param": "messages"}}, status=400)
        tokens = COUNTER.count_request(messages, tools=body.get("tools"))
        if tokens > WINDOW:
            self.refused.append(f"{tokens} tokens")
        if is_summary(body):
            return completion(f"They spoke about {pick_word(body)}.", prompt_tokens=tokens)
        said = json.dumps(messages)
        last = messages[-1]
        if body.get("tools") and "TOOL" in str(last["content"]):
            call_id = "call_" + hashlib.sha256(said.encode()).hexdigest()[:24]
            return completion(None, prompt_tokens=tokens, tool_calls=[call("look", '{"at": "it"}', call_id)])
        return completion("Answer: " + words(said, self.answer_words), prompt_tokens=tokens)


def find_orphan(messages: Sequence[Body]) -> str | None:
    """What a strict provider says of results without calls, and of calls without results."""
    open_ids: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_ids:
                return "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            open_ids.discard(message["tool_call_id"])
        elif open_ids:
            return "An assistant message with 'tool_calls' must be followed by tool messages."
        else:
            open_ids = {one["id"] for one in message.get("tool_calls") or ()}
    return None


class Kept(World):
    """A gateway over a SQLite file."""

    def __init__(self, base_url: str, upstream: ScriptedUpstream, path: Path, client: httpx.AsyncClient) -> None:
        super().__init__(base_url, upstream, None, client)
        self.path = path

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def ids(self) -> list[str]:
        """Of all stored conversations."""
        return [row[0] for row in self.query("SELECT id FROM conversations")]

    def contents(self, conversation_id: str | None = None) -> list[Any]:
        """The stored content of each message, in order: of one conversation, or of all."""
        where = "" if conversation_id is None else " WHERE conversation_id = ?"
        values = () if conversation_id is None else (conversation_id,)
        rows = self.query(f"SELECT body FROM messages{where} ORDER BY conversation_id, seq", *values)
        return [json.loads(row[0]).get("content") for row in rows]

    def stored_bytes(self) -> bytes:
        return b"".join(file.read_bytes() for file in sorted(self.path.parent.glob(f"{self.path.name}*")))

    def used_bytes(self) -> int:
        """Of the database's pages that hold something."""
        ((pages,),) = self.query("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count")
        ((size,),) = self.query("PRAGMA page_size")
        return int(pages) * int(size)

    async def call(self, method: str, path: str, **query: Any) -> Body:
        """A request below `/conversations` that must succeed."""
        answer = await self.client.request(
            method,
            f"{self.base_url}/conversations/{path}",
            params=query or None,
            headers={"authorization": f"Bearer {KEY}"},
        )
        assert answer.status_code == 200, answer.text
        body: Body = answer.json()
        return body

    async def items(self, conversation_id: str) -> list[Body]:
        """The items of a conversation, oldest first."""
        found: list[Body] = []
        after: dict[str, Any] = {}
        while True:
            page = await self.call("GET", f"{conversation_id}/items", order="asc", limit=100, **after)
            found += page["data"]
            if not page["has_more"]:
                return found
            after = {"after": page["last_id"]}

    async def settle(self) -> None:
        """Wait until what is written after answers is written."""
        await asyncio.sleep(0.5)


LOGS_ONLY: Final[dict[str, Any]] = {"window": 1_000_000, "retention": {"request_hours": 0}}
"""For tests that measure what is stored of conversations: each request has a record besides, written when it ended."""


@asynccontextmanager
async def kept(path: Path, upstream: ScriptedUpstream, **options: Any) -> AsyncIterator[Kept]:
    """A gateway over a SQLite file: a second one on the same file is a replica, or the first after a restart."""
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(address, database=f"sqlite:///{path}", **{"window": WINDOW, **options}) as base_url,
        httpx.AsyncClient(timeout=60) as client,
    ):
        yield Kept(base_url, upstream, path, client)


class Client:
    """A client that keeps the whole conversation and tells it in its own way.

    Args:
        tell: what it sends of it.
        fields: options of each request.
    """

    def __init__(self, place: Kept, tell: Tell = list, **fields: Any) -> None:
        self.place = place
        self.tell = tell
        self.fields = fields
        self.messages: list[Body] = []
        self.bodies: list[Body] = []

    async def say(self, *messages: Body, **fields: Any) -> Body:
        """Send what is new behind what the client makes of the past; the answer belongs to the conversation."""
        self.messages += messages
        body = await self.place.say([SYSTEM, *self.tell(self.messages)], **{**self.fields, **fields})
        self.messages.append(message_in(body))
        self.bodies.append(body)
        return body

    @property
    def ids(self) -> set[str]:
        """The conversations that it was told."""
        return {body["conversation_id"] for body in self.bodies}

    @property
    def statuses(self) -> set[str]:
        return {body["context_status"] for body in self.bodies}

    @property
    def waits(self) -> int:
        """Turns that waited for a summary."""
        return sum(body["context"]["compaction"]["ran"] for body in self.bodies)


def message_in(body: Mapping[str, Any]) -> Body:
    """The assistant's message as a client keeps it."""
    found = body["choices"][0]["message"]
    kept_fields = {name: found[name] for name in ("role", "content", "tool_calls") if found.get(name) is not None}
    return {"content": None, **kept_fields}


def slide(count: int) -> Tell:
    """The last messages only."""
    return lambda messages: list(messages[-count:])


def mask(recent: int) -> Tell:
    """Results before the last few are masked."""

    def tell(messages: Sequence[Body]) -> list[Body]:
        results = [index for index, message in enumerate(messages) if message["role"] == "tool"]
        old = set(results[:-recent])
        masked = "[The output was left out.]"
        return [message | {"content": masked} if index in old else message for index, message in enumerate(messages)]

    return tell


def inject(note: Callable[[int], str]) -> Tell:
    """A note before the newest user message, gone when the user says more."""

    def tell(messages: Sequence[Body]) -> list[Body]:
        newest = max(index for index, message in enumerate(messages) if message["role"] == "user")
        return [*messages[:newest], system(note(newest)), *messages[newest:]]

    return tell


def summarize_users(count: int) -> Tell:
    """In the place of the first `count` messages the user's own and a summary, as Codex does it."""

    def tell(messages: Sequence[Body]) -> list[Body]:
        users = [message for message in messages[:count] if message["role"] == "user"]
        return [*users, user(f"Summary by the client: {words('summary', 30)}"), *messages[count:]]

    return tell


def hand_over(count: int) -> Tell:
    """In the place of the first `count` messages the user's own and the last of them, which is the model's summary. The
    request for the summary is left out."""

    def tell(messages: Sequence[Body]) -> list[Body]:
        users = [message for message in messages[: count - 2] if message["role"] == "user"]
        return [*users, user(f"Another model wrote this summary:\n{messages[count - 1]['content']}"), *messages[count:]]

    return tell


def summarize_and_keep(recent: int) -> Callable[[int], Tell]:
    """In the place of the first messages a summary, and the last few of them as they were."""

    def replace_first(count: int) -> Tell:
        summary = user(f"Summary by the client: {words('summary', 30)}")
        return lambda messages: [summary, *messages[count - recent :]]

    return replace_first


async def run_agent(client: Client, turns: int, result_words: int = 250) -> None:
    """A task, then a call of a tool with each answer."""
    client.fields["tools"] = [LOOK]
    body = await client.say(user("TOOL: find out what grows where."))
    for number in range(1, turns):
        (asked,) = body["choices"][0]["message"]["tool_calls"]
        output = f"TOOL output {number}: {words(number, result_words)}"
        body = await client.say({"role": "tool", "tool_call_id": asked["id"], "content": output})


def question(number: int, count: int = 30) -> Body:
    return user(f"Question {number}: {words(f'q{number}', count)}?")
