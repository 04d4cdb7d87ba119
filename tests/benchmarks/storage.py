"""Conversations whose stored bytes are counted: one client over one gateway on SQLite, and a model that answers the
same words to the same body."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import threading
import urllib.request
from contextlib import closing
from typing import Final

import orjson

from tests.benchmarks.messages import words
from tests.benchmarks.targets import Running, free_port
from tests.benchmarks.upstream import Counters, ScriptedModel
from tests.scenarios.rewriting import SYSTEM, Body, Tell

ANSWER_CHARS: Final = 400
KEY: Final = "sk-storage"


class RepeatingModel(ScriptedModel):
    """Answers as a model does at temperature 0: what it says depends on the body alone."""

    def _answer(self, body: bytes) -> None:
        self._counters.requests += 1
        seed = int.from_bytes(hashlib.sha256(orjson.dumps(orjson.loads(body)["messages"])).digest()[:6], "big")
        message = {"role": "assistant", "content": words(ANSWER_CHARS, seed=seed)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self._whole(orjson.dumps({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice]}))


class Talker:
    """A client that keeps its conversation and tells it in its own way. It sends no id."""

    def __init__(self, gateway: Running, tell: Tell = list) -> None:
        self._url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
        self._tell = tell
        self.messages: list[Body] = []
        self.ids: set[str] = set()

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        request = urllib.request.Request(
            self._url,
            data=orjson.dumps({"model": "m", "messages": [SYSTEM, *self._tell(self.messages)]}),
            headers={"content-type": "application/json", "authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = orjson.loads(answer.read())
        self.ids.add(told["conversation_id"])
        self.messages.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})


def start_model() -> int:
    """Starts the model in a thread; returns its port."""
    port = free_port()
    threading.Thread(target=asyncio.run, args=(_serve(port),), daemon=True).start()
    return port


async def _serve(port: int) -> None:
    counters = Counters()
    server = await asyncio.get_running_loop().create_server(lambda: RepeatingModel(counters), "127.0.0.1", port)
    await server.serve_forever()


def count_stored_bytes(gateway: Running) -> int:
    """Bytes of the pages of the database that hold something."""
    pages = "SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count"
    return _query(gateway, pages) * _query(gateway, "PRAGMA page_size")


def count_conversations(gateway: Running) -> int:
    """Conversations with an answer, but for the one that the start of the gateway has begun."""
    return _query(gateway, "SELECT count(*) FROM conversations WHERE head_seq > 0") - 1


def count_messages(gateway: Running) -> int:
    return _query(gateway, "SELECT count(*) FROM messages")


def _query(gateway: Running, statement: str) -> int:
    path = gateway.database_url.removeprefix("sqlite+aiosqlite:///")
    with closing(sqlite3.connect(path, timeout=10)) as connection:
        return int(connection.execute(statement).fetchone()[0])
