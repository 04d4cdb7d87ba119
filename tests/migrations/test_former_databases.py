"""Databases that former code has filled: they migrate, and the conversations in them are recognised.

`former/` was written by `fill_former.py` with the code before the migration `2026_11_24_client_versions`. What stands
there has no anchors, no versions of clients, and no count of the messages that a first request brought.
"""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.conversation.fingerprints import FingerprintScope
from app.conversations.answer_fingerprints import is_count_complete
from app.store.database_url import parse_database_url
from app.store.store_factory import create_store
from migrations import run, upgrading
from tests.faults.verification import verify_database
from tests.live import ScriptedUpstream, gateway, serving
from tests.migrations.fill_former import EXAMPLES, KEY, LOOK, POLICIES, SYSTEM, WINDOW, Body, answer, user, words
from tests.postgres import Databases

FORMER = Path(__file__).with_name("former")
REVISION = "2026_11_23_conversation_records"
TOLD: dict[str, Any] = json.loads((FORMER / "histories.json").read_text())


@pytest.fixture(scope="module")
def former_template(databases: Databases) -> Iterator[str]:
    """A PostgreSQL database as the former code left it, to copy others from."""
    name = databases.create()
    location = parse_database_url(databases.url(name))
    upgrading.upgrade_schema(location, REVISION)
    with zipfile.ZipFile(FORMER / "postgresql.zip") as archive:
        asyncio.run(copy_rows(location.dsn, {table: archive.read(table) for table in archive.namelist()}))
    yield name
    databases.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database as the former code left it."""
    if request.param == "sqlite":
        with zipfile.ZipFile(FORMER / "sqlite.zip") as archive:
            archive.extractall(tmp_path)
        yield f"sqlite:///{tmp_path}/former.db"
        return
    databases: Databases = request.getfixturevalue("databases")
    name = databases.create(template=request.getfixturevalue("former_template"))
    yield databases.url(name)
    databases.drop(name)


async def copy_rows(dsn: str, rows: dict[str, bytes]) -> None:
    connection = await asyncpg.connect(dsn)
    for table, lines in rows.items():
        await connection.copy_to_table(table, source=io.BytesIO(lines))
    await connection.close()


class Client:
    """One that tells histories; the model behind the gateway answers as it did then."""

    def __init__(self, client: httpx.AsyncClient, upstream: ScriptedUpstream, backend: str) -> None:
        self._client = client
        self.upstream = upstream
        self.ids: dict[str, str] = TOLD["ids"][backend]

    async def request(self, method: str, path: str, **options: Any) -> Body:
        answered = await self._client.request(method, path, headers={"authorization": f"Bearer {KEY}"}, **options)
        assert answered.status_code == 200, answered.text
        body: Body = answered.json()
        return body

    async def say(self, messages: Sequence[Body], **fields: Any) -> str:
        """The id of the conversation that was answered in."""
        body = {"model": "m", "messages": [SYSTEM, *messages], **fields}
        return str((await self.request("POST", "chat/completions", json=body))["conversation_id"])

    async def read_log(self, conversation_id: str) -> list[str]:
        """The texts of a conversation's messages."""
        query = {"order": "asc", "limit": 100}
        items = (await self.request("GET", f"conversations/{conversation_id}/items", params=query))["data"]
        return [item["content"][0]["text"] for item in items if item["type"] == "message" and item["role"] != "system"]

    async def list_ids(self) -> set[str]:
        return {item["id"] for item in (await self.request("GET", "conversations", params={"limit": 100}))["data"]}


@asynccontextmanager
async def migrated(url: str) -> AsyncIterator[Client]:
    """A gateway of today over a former database, which it migrates."""
    upstream = ScriptedUpstream(default=answer)
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(address, database=url, window=WINDOW, policies=POLICIES) as base_url,
        httpx.AsyncClient(base_url=base_url, timeout=60) as http,
    ):
        yield Client(http, upstream, parse_database_url(url).backend)


def history(name: str) -> list[Body]:
    found: list[Body] = TOLD["histories"][name]
    return list(found)


def contents(messages: Sequence[Body]) -> list[str]:
    return [message["content"] for message in messages if message["role"] != "tool" and message["content"]]


def slide(name: str, count: int) -> list[Body]:
    return history(name)[-count:]


def test_a_former_database_migrates_and_nothing_is_wrong_with_it(url: str) -> None:
    assert run.read_schema_version(url) == REVISION
    run.upgrade_database(url)
    assert run.read_schema_version(url) == run.required_schema_version()
    found = asyncio.run(verify_database(url))
    assert found.faults == []
    assert found.chunks > 0


async def test_former_answers_prove_their_conversations_by_their_links_once_a_gateway_has_started(url: str) -> None:
    async with migrated(url) as client:
        ids = client.ids
    store = create_store(url)
    await store.open()
    assert is_count_complete(await store.read_model_facts())
    conversation = await store.find_conversation_of_any_tenant(ids["resends"])
    assert conversation is not None
    scope = FingerprintScope(conversation.tenant, None)
    answers = [one for one in await store.read_log(conversation, 0, 999) if one.message.role == "assistant"]
    links = [scope.compute_fingerprint("link", one.link).digest for one in answers]
    found = await store.find_proofs(tenant=conversation.tenant, fingerprints=links)
    assert {(one.conversation and one.conversation.id, one.seq) for one in found} == {
        (conversation.id, one.seq) for one in answers
    }
    await store.close()


async def test_former_conversations_go_on_where_they_are_resent_or_named(url: str) -> None:
    async with migrated(url) as client:
        before = await client.list_ids()
        for name in ("resends", "long", "branch", "ann", "bob"):
            said = [*history(name), user(f"{name} goes on.")]
            assert await client.say(said) == client.ids[name], name
            assert (await client.read_log(client.ids[name]))[:-1] == contents(said), name
        said = [*history("agent"), user("The agent goes on.")]
        assert await client.say(said, tools=[LOOK]) == client.ids["agent"]
        said = [*history("named"), user("It goes on.")]
        assert await client.say(said, conversation="chat-7") == client.ids["named"]
        assert await client.say([user("It goes on.")], conversation="log-7") == client.ids["appends"]
        assert (await client.read_log(client.ids["appends"]))[:-1] == [*contents(history("appends")), "It goes on."]
        assert await client.list_ids() == before


async def test_former_conversations_go_on_where_their_client_rewrites_them(url: str) -> None:
    async with migrated(url) as client:
        before = await client.list_ids()
        named = {"conversation": "chat-7"}
        log = contents(history("named"))
        for said in (
            [user(f"Summary by the client: {words('summary', 20)}"), *slide("named", 2), user("One.")],
            [*slide("named", 3), user("One."), {"role": "assistant", "content": "Answer."}, user("Two.")],
        ):
            assert await client.say(said, **named) == client.ids["named"]
        assert (await client.read_log(client.ids["named"]))[: len(log)] == log
        notes = [*history("resends")[:-2], {"role": "system", "content": "It is noon."}, *slide("resends", 2)]
        assert await client.say([*notes, user("And now?")]) == client.ids["resends"]
        masked = [one | {"content": "[masked]"} if one["role"] == "tool" else one for one in history("agent")]
        assert await client.say([*masked, user("And now?")], tools=[LOOK]) in before
        assert await client.list_ids() == before


async def test_a_window_over_a_former_conversation_is_known_once_its_client_was_answered_again(url: str) -> None:
    """Answers of the former code have no names of their own: without an id, a window is found by none of them."""
    async with migrated(url) as client:
        begun = await client.say([*slide("long", 8), user("And now?")])
        assert begun not in client.ids.values()
        said = history("long")
        for number in range(2):
            said += [user(f"On {number}: {words(f'on{number}', 20)}")]
            assert await client.say(said) == client.ids["long"]
            said += [{"role": "assistant", "content": (await client.read_log(client.ids["long"]))[-1]}]
    async with migrated(url) as client:  # names are written behind the answer, at last when the gateway ends
        assert await client.say([*said[-8:], user("And then?")]) == client.ids["long"]


async def test_examples_that_a_former_family_shares_join_nobody_to_it(url: str) -> None:
    async with migrated(url) as client:
        examples = history("ann")[: 2 * EXAMPLES]
        first = await client.say([*examples, user("My secret is 7719.")])
        second = await client.say([*examples, user("I grow beans.")])
        assert len({first, second, *client.ids.values()}) == 2 + len(set(client.ids.values()))
        assert await client.request("DELETE", f"conversations/{client.ids['ann']}", params={"branches": "true"})
        assert {first, second} <= await client.list_ids()
