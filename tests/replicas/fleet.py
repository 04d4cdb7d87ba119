"""Three gateway processes on one PostgreSQL behind a balancer that knows nothing of conversations."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.faults.scene import Scene, scene
from tests.live import DONE, Reply, ScriptedUpstream, chunk, completion, serving, usage_chunk
from tests.support.gateway import Messages, is_summary, material, pick_word, until, user

REPLICAS: Final = 3
TENANT: Final = "sk-replicas"
_numbers = itertools.count()


@dataclass
class Model:
    """Answers with the beginning of the question; may be told to let answers or summaries wait, or to take its time."""

    turns: list[dict[str, Any]] = field(default_factory=list)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    answer_gate: asyncio.Event | None = None
    """No answer begins while it is closed."""
    summary_gate: asyncio.Event | None = None
    word_seconds: float = 0.0
    """Pause before each word of a stream."""

    def __call__(self, body: dict[str, Any]) -> Reply:
        tokens = len(str(body["messages"])) // 4
        if is_summary(body):
            self.summaries.append(body)
            told = f"Summary {len(self.summaries)}: they spoke of many things, such as {pick_word(body)}."
            reply = completion(told, prompt_tokens=tokens)
            reply.gate = self.summary_gate
            return reply
        self.turns.append(body)
        text = answer_to(str(body["messages"][-1]["content"]))
        if not body.get("stream"):
            reply = completion(text, prompt_tokens=tokens)
            reply.gate = self.answer_gate
            return reply
        words = [(self.word_seconds, chunk({"content": f"{word} "})) for word in text.split()]
        begin, end = chunk({"role": "assistant", "content": ""}), (chunk({}, "stop"), usage_chunk(tokens), DONE)
        return Reply(pieces=[begin, *itertools.chain(*words), *end], gate=self.answer_gate)

    def ranges(self) -> Counter[str]:
        """How often each range was summarized, named by what is summarized."""
        return Counter(material(body) for body in self.summaries)

    def asked(self, text: str) -> list[dict[str, Any]]:
        """The requests whose newest message begins like this."""
        return [body for body in self.turns if str(body["messages"][-1]["content"]).startswith(text)]

    def forget(self) -> None:
        self.turns.clear()
        self.summaries.clear()
        self.answer_gate = self.summary_gate = None
        self.word_seconds = 0.0


@dataclass
class Fleet:
    """The gateways, what they ask, and a client."""

    stage: Scene
    model: Model
    client: httpx.AsyncClient

    async def post(
        self,
        replica: int | None,
        messages: Messages,
        *,
        key: str = TENANT,
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> httpx.Response:
        """Ask one of the replicas; None: whichever the balancer takes."""
        return await self.client.post(
            f"{self.url(replica)}/chat/completions",
            json={"model": "m", "messages": list(messages), **fields},
            headers={"authorization": f"Bearer {key}", **(headers or {})},
        )

    async def say(self, replica: int | None, messages: Messages, **options: Any) -> dict[str, Any]:
        """The body of an answer that must succeed."""
        answer = await self.post(replica, messages, **options)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    async def call(self, replica: int | None, method: str, path: str, *, key: str = TENANT, **options: Any) -> Any:
        """What an endpoint that must succeed says."""
        headers = {"authorization": f"Bearer {key}"}
        answer = await self.client.request(method, f"{self.url(replica)}{path}", headers=headers, **options)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def log(self, replica: int | None, conversation: str, *, key: str = TENANT) -> list[tuple[str, str]]:
        """Role and text of each message."""
        page = await self.call(replica, "GET", f"/conversations/{conversation}/items?order=asc&limit=100", key=key)
        assert not page["has_more"]
        messages = [item for item in page["data"] if item["type"] == "message"]
        return [(item["role"], "".join(part.get("text") or "" for part in item["content"])) for item in messages]

    async def rows(self, sql: str) -> list[Any]:
        assert self.stage.database is not None
        return await self.stage.database.rows(sql)

    def url(self, replica: int | None) -> str:
        return self.stage.base_url if replica is None else f"{self.stage.gateways[replica].address}/v1"


def answer_to(question: str) -> str:
    return f"You said: {question[:30]}"


def fresh_name() -> str:
    """An id of a conversation that nobody has used."""
    return f"talk-{next(_numbers)}"


def question(number: int, words: int = 60) -> dict[str, Any]:
    """One whose words stand in no other."""
    return user(f"Question {number}: " + " ".join(f"note{number}x{word}" for word in range(words)))


def history_of(count: int, *, first: int = 0, words: int = 60) -> list[dict[str, Any]]:
    """Turns as the model answers them."""
    turns: list[dict[str, Any]] = []
    for number in range(first, first + count):
        asked = question(number, words)
        turns += [asked, {"role": "assistant", "content": answer_to(asked["content"])}]
    return turns


async def reached(found: Sequence[Any], count: int) -> None:
    """Wait until there are so many."""
    await until(lambda: len(found) >= count)


@asynccontextmanager
async def fleet(folder: Path, *, count: int = REPLICAS, **sections: Any) -> AsyncIterator[Fleet]:
    """
    Args:
        sections: of the gateways' configuration, beside those of `tests.faults.scene`.
    """
    model = Model()
    async with (
        serving(ScriptedUpstream(default=model), lifespan="off") as address,
        scene(folder, backend="postgres", count=count, upstream=f"{address}/v1", **sections) as stage,
        httpx.AsyncClient(timeout=30) as client,
    ):
        yield Fleet(stage, model, client)
