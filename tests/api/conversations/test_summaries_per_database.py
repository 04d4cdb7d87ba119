"""A summary's life on each database: made on request, corrected, shown, rolled back, deleted; what was seen is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.live import ScriptedUpstream, gateway, serving
from tests.support.conversations_client import done, every_message, refused, talk
from tests.support.gateway import World, answering, shown

EDITED = "They spoke of ships."


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/kept.db"


@pytest.fixture
async def held(database: str) -> AsyncIterator[World]:
    upstream = ScriptedUpstream(default=answering)
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(address, database=database, window=32_000) as base_url,
        httpx.AsyncClient(timeout=30) as client,
    ):
        yield World(base_url, upstream, None, client)


async def test_a_summary_lives_on_every_database(held: World) -> None:
    await talk(held, 12)
    (summary,) = (await done(held, "POST", "c/compact"))["summaries"]
    path = f"c/summaries/{summary['id']}"
    await done(held, "PATCH", path, json={"text": EDITED, "revision": 1})
    await done(held, "POST", f"{path}/regenerate")
    back = await done(held, "POST", f"{path}/rollback", json={"revision": 2})
    assert [(one["revision"], one["kind"]) for one in back["revisions"]] == [
        (1, "model"),
        (2, "edited"),
        (3, "model"),
        (4, "edited"),
    ]
    await refused(held, 409, "PATCH", path, json={"text": EDITED, "revision": 1})
    await talk(held, 1, first=12)
    assert EDITED in str(shown(held.upstream)[-1][0]["content"])
    answer = (await every_message(held, "c/context"))[0]["id"]
    await done(held, "PATCH", path, json={"text": "They spoke of boats."})
    seen = await done(held, "GET", f"c/items/{answer}/context", **{"include[]": "sent"})
    assert (seen["exact"], seen["sent"]) == (True, shown(held.upstream)[-1])
    await done(held, "DELETE", path)
    assert (await done(held, "GET", "c/context"))["status"] == "full"


async def test_pins_are_kept_on_every_database(held: World) -> None:
    await talk(held, 12)
    item = (await every_message(held, "c/context", order="asc"))[2]["id"]
    await done(held, "POST", f"c/items/{item}/pin")
    await done(held, "POST", "c/compact")
    rows = await every_message(held, "c/context", order="asc", limit=7)
    assert [row["seq"] for row in rows if row["pinned"]] == [2]
    assert rows[2]["disposition"] == "pinned"
    await done(held, "DELETE", f"c/items/{item}/pin")
    assert not any(row["pinned"] for row in await every_message(held, "c/context"))
