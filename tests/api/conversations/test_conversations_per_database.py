"""A conversation's life on each database: begun, found, added to, branched, erased from, deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import ScriptedUpstream, gateway, serving
from tests.support.gateway import answered, answering, user


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/c.db"


async def test_a_conversation_lives_on_every_database(database: str) -> None:
    async with (
        serving(ScriptedUpstream(default=answering), lifespan="off") as upstream,
        gateway(upstream, database=database) as base_url,
        httpx.AsyncClient(base_url=base_url, headers={"authorization": "Bearer sk-one"}, timeout=30) as client,
    ):

        async def told(method: str, path: str, **options: Any) -> Any:
            answer = await client.request(method, path, **options)
            assert answer.status_code == 200, answer.text
            return answer.json()

        async def texts(conversation_id: str) -> list[str]:
            found = await told("GET", f"/conversations/{conversation_id}/items", params={"order": "asc"})
            return [item["content"][0]["text"] for item in found["data"]]

        async def ask(messages: list[Any], **fields: Any) -> str:
            body = {"model": "m", "messages": messages, **fields}
            return str((await told("POST", "/chat/completions", json=body))["conversation_id"])

        first = (await told("POST", "/conversations", json={"metadata": {"n": "1"}}))["id"]
        fields = {"metadata": {"n": "2"}, "items": [user("a"), answered("a"), user("b"), answered("b")]}
        second = (await told("POST", "/conversations", json=fields))["id"]
        assert [one["id"] for one in (await told("GET", "/conversations"))["data"]] == [second, first]
        page = await told("GET", "/conversations", params={"after": second, "limit": 1})
        assert ([one["id"] for one in page["data"]], page["has_more"]) == ([first], False)
        assert [one["id"] for one in (await told("GET", "/conversations?metadata[n]=1"))["data"]] == [first]
        assert (await told("POST", f"/conversations/{first}", json={"metadata": {"n": "3"}}))["metadata"] == {"n": "3"}
        assert [one["id"] for one in (await told("GET", "/conversations?metadata[n]=1"))["data"]] == []

        added = await told("POST", f"/conversations/{first}/items", json={"items": [user("x")]})
        assert (await told("GET", f"/conversations/{first}/items/{added['first_id']}")) == added["data"][0]
        assert await ask([user("y")], conversation=first) == first
        assert await texts(first) == ["x", "y", "You said: y"]

        branch = await ask([user("a"), answered("a"), user("c")], conversation=second)
        assert branch not in (first, second)
        shared = (await told("GET", f"/conversations/{second}/items?order=asc"))["data"][1]["id"]
        parent = (await told("GET", f"/conversations/{branch}"))["parent"]
        assert parent == {"conversation_id": second, "through_item": shared}
        await told("DELETE", f"/conversations/{second}/items/{shared}?erase=true")
        assert await texts(branch) == ["a", "c", "You said: c"]

        await told("DELETE", f"/conversations/{second}")
        assert await texts(branch) == ["a", "c", "You said: c"]
        further = await ask([user("a"), answered("a"), user("c"), answered("c"), user("d")], conversation=branch)
        assert further == branch
        other = await ask([user("a"), answered("a"), user("c"), answered("c"), user("e")], conversation=branch)
        assert other != branch
        await told("DELETE", f"/conversations/{branch}?branches=true")
        assert [one["id"] for one in (await told("GET", "/conversations"))["data"]] == [first]
