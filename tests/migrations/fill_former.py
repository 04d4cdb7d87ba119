"""Fill a database with the code of another commit, and keep it for the tests of migrations.

    PYTHONPATH=<checkout of that commit> python -P tests/migrations/fill_former.py <folder>

writes `sqlite.zip` (the file), `postgresql.zip` (each table as COPY writes it) and `histories.json` (what the clients
have said and been told, and the ids of their conversations in each database). It uses nothing but what that commit has.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import sqlite3
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from tests.live import Reply, ScriptedUpstream, completion, gateway, serving
from tests.postgres import Databases, Server, dsn

Body = dict[str, Any]
WINDOW = 2048
POLICIES = {"additive": {"token_floor": 0, "prepare_ratio": 1.0}}
KEY = "sk-one"
SYSTEM = {"role": "system", "content": "You help with gardens."}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
EXAMPLES = 5
"""So many, put before a conversation, made a family of all that begin with them."""
VOCABULARY = (
    "bean",
    "pea",
    "leek",
    "kale",
    "beet",
    "corn",
    "lime",
    "pear",
    "plum",
    "fig",
    "oat",
    "rye",
    "hop",
    "vine",
    "moss",
)
WRITTEN = (2026, 11, 23, 0, 0, 0)


def words(name: str, count: int) -> str:
    """Text of `count` words that no other name gets."""
    digests = (hashlib.sha256(f"{name} {number}".encode()).digest()[0] for number in range(count))
    return " ".join(VOCABULARY[digest % len(VOCABULARY)] for digest in digests)


def user(text: str) -> Body:
    return {"role": "user", "content": text}


def question(name: str, number: int, count: int = 25) -> Body:
    return user(f"{name} asks {number}: {words(f'{name}{number}', count)}?")


def answer(body: Body) -> Reply:
    """What the model says: the same to the same messages, in every database."""
    said = json.dumps(body["messages"])
    if "material to be summarized" in said:
        return completion("They spoke about gardens.")
    last = str(body["messages"][-1]["content"])
    if body.get("tools") and "TOOL" in last:
        call_id = "call_" + hashlib.sha256(said.encode()).hexdigest()[:24]
        calls = [{"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}]
        return completion(None, tool_calls=calls)
    return completion(f"Answer to {last[:24]}: {words(said, 40)}")


class Client:
    """One that notes what it has said and been told."""

    def __init__(self, client: httpx.AsyncClient, base_url: str) -> None:
        self._client = client
        self._base_url = base_url
        self.ids: dict[str, str] = {}
        self.histories: dict[str, list[Body]] = {}

    async def say(self, name: str, new: Body, *, resends: bool = True, **fields: Any) -> Body:
        """The answer to a new message, behind all others of this name or alone."""
        history = self.histories.setdefault(name, [])
        first = [] if history and not resends else [SYSTEM]
        history.append(new)
        headers = {"authorization": f"Bearer {KEY}", **({} if resends else {"x-context-mode": "append"})}
        body = {"model": "m", "messages": [*first, *(history if resends else [new])], **fields}
        answered = await self._client.post(f"{self._base_url}/chat/completions", json=body, headers=headers)
        assert answered.status_code == 200, answered.text
        told: Body = answered.json()
        found = told["choices"][0]["message"]
        kept = {field: found[field] for field in ("role", "content", "tool_calls") if found.get(field) is not None}
        history.append({"content": None, **kept})
        self.ids[name] = told["conversation_id"]
        return history[-1]


async def fill(url: str) -> Client:
    """Conversations of each kind."""
    async with (
        serving(ScriptedUpstream(default=answer), lifespan="off") as address,
        gateway(address, database=url, window=WINDOW, policies=POLICIES) as base_url,
        httpx.AsyncClient(timeout=60) as http,
    ):
        client = Client(http, base_url)
        for number in range(4):
            await client.say("resends", question("resends", number))
            await client.say("named", question("named", number), conversation="chat-7")
            await client.say("appends", question("appends", number), resends=False, conversation="log-7")
        for number in range(16):
            await client.say("long", question("long", number, 100))
        asked = await client.say("agent", user("TOOL: find out what grows where."), tools=[LOOK])
        for text in ("TOOL output 1", "TOOL output 2", "Output 3"):
            result = {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": text}
            asked = await client.say("agent", result, tools=[LOOK])
        client.histories["branch"] = client.histories["resends"][:4]
        await client.say("branch", question("branch", 0))
        for name in ("ann", "bob"):
            for number in range(EXAMPLES):
                example = [user(f"Example {number}"), {"role": "assistant", "content": words(f"example{number}", 40)}]
                client.histories.setdefault(name, []).extend(example)
            await client.say(name, question(name, 0))
        return client


async def copy_tables(url: str) -> dict[str, bytes]:
    """The rows of each PostgreSQL table as COPY writes them."""
    connection = await asyncpg.connect(dsn(url))
    found = {}
    for (table,) in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"):
        rows = io.BytesIO()
        await connection.copy_from_table(table, output=rows)
        found[str(table)] = rows.getvalue()
    await connection.close()
    return {table: rows for table, rows in found.items() if rows and table != "alembic_version"}


def write_zip(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, WRITTEN), content, zipfile.ZIP_DEFLATED, 9)


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "former.db"
        on_sqlite = asyncio.run(fill(f"sqlite:///{file}"))
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA journal_mode = delete")
        connection.execute("VACUUM")
        connection.close()
        write_zip(folder / "sqlite.zip", {"former.db": file.read_bytes()})
    server = Server()
    server.start()
    try:
        databases = Databases(server, None)
        url = databases.url(databases.create())
        on_postgresql = asyncio.run(fill(url))
        write_zip(folder / "postgresql.zip", asyncio.run(copy_tables(url)))
    finally:
        server.remove()
    assert on_sqlite.histories == on_postgresql.histories
    ids = {"sqlite": on_sqlite.ids, "postgresql": on_postgresql.ids}
    told = {"histories": on_sqlite.histories, "ids": ids}
    (folder / "histories.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
