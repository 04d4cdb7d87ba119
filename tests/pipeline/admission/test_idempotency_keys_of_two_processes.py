"""Two gateway processes on one database and one `Idempotency-Key`: one call of the model, whichever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from migrations.run import prepare_database
from tests.harness import Gateway, Simulated, gateway_config
from tests.support.gateway import until, user

AUTHORIZATION = {"authorization": "Bearer sk-replicas"}


@pytest.fixture(scope="module")
def model() -> Iterator[Simulated]:
    with Simulated("--first-token-seconds", "0.5") as simulated:
        yield simulated


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    url = f"sqlite+aiosqlite:///{tmp_path}/shared.db"
    prepare_database(url, auto_migrate=True)
    return url


@pytest.fixture
def replicas(model: Simulated, database: str, tmp_path: Path) -> Iterator[list[Gateway]]:
    model.forget()
    config = gateway_config(model.base_url, database)
    with Gateway(tmp_path / "one", config) as one, Gateway(tmp_path / "two", config) as two:
        yield [one, two]


async def say(
    client: httpx.AsyncClient, gateway: Gateway, text: str, key: str, *, again: bool = False, **fields: Any
) -> httpx.Response:
    headers = {**AUTHORIZATION, "idempotency-key": key}
    body = {"model": "sim", "messages": [user(text)], **fields}
    answer = await client.post(f"{gateway.base_url}/chat/completions", json=body, headers=headers)
    assert not again or answer.headers["idempotent-replayed"] == "true"
    return answer


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_key_at_both_at_once_and_later_is_answered_once(
    streamed: bool, replicas: list[Gateway], model: Simulated
) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        key = f"streamed-{streamed}"
        asked = [say(client, replicas[number % 2], "Hi", key, stream=streamed) for number in range(4)]
        answers = await asyncio.gather(*asked)
        later = [await say(client, replica, "Hi", key, again=True, stream=streamed) for replica in replicas]
        assert {answer.status_code for answer in [*answers, *later]} == {200}
        assert len({answer.headers["x-conversation-id"] for answer in [*answers, *later]}) == 1
        fresh = [answer for answer in answers if "idempotent-replayed" not in answer.headers]
        assert len(fresh) == 1
        refused = await say(client, replicas[1], "Something else", key)
        assert refused.status_code == 422
    assert len(model.requests()) == 1


async def test_what_a_replica_leaves_unanswered_another_may_answer(replicas: list[Gateway], model: Simulated) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        asking = asyncio.ensure_future(say(client, replicas[0], "Hi", "left", stream=True))
        await until(lambda: bool(model.requests()))
        waiting = asyncio.ensure_future(say(client, replicas[1], "Hi", "left", stream=True))
        await asyncio.sleep(0.1)
        asking.cancel()
        answer = await waiting
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
    assert len(model.requests()) == 2
