"""Budgets and rates hold exactly over several gateways on one database.

`CONCERTINA_LIMIT_SEEDS=20 CONCERTINA_LIMIT_REQUESTS=200` runs the large version.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.conversations.api_keys import ApiKeys, NewApiKey
from app.store.contract.store import Store
from app.store.store_factory import create_store
from tests.live import Reply, ScriptedUpstream, completion, gateway, serving

SEEDS: Final = range(int(os.environ.get("CONCERTINA_LIMIT_SEEDS", "2")))
REQUESTS: Final = int(os.environ.get("CONCERTINA_LIMIT_REQUESTS", "60"))
PRICES: Final = {"*": {"provider": "upstream", "context_window": 8192, "price": {"input": 1000, "output": 10_000}}}
MAX_ANSWER_TOKENS: Final = 8
MOST_USD: Final = 0.02 + MAX_ANSWER_TOKENS * 0.01
"""More than one request may cost."""


@dataclass
class Replicas:
    """Gateways on one database, and the database itself."""

    urls: list[str]
    store: Store

    async def make_key(self, **fields: Any) -> tuple[str, str]:
        keys = ApiKeys(
            self.store,
            usage=self.store,
            policies=[],
            now=lambda: datetime.now(UTC),
            random_bytes=secrets.token_bytes,
        )
        secret, key = await keys.create_key(NewApiKey(name="test", **fields))
        return secret, key.id

    async def post(self, client: httpx.AsyncClient, secret: str, chance: random.Random, number: int) -> httpx.Response:
        await asyncio.sleep(chance.random() * 0.2)
        return await client.post(
            f"{chance.choice(self.urls)}/chat/completions",
            json={
                "model": "m",
                "messages": [{"role": "user", "content": f"{number}"}],
                "max_tokens": chance.randint(1, MAX_ANSWER_TOKENS),
                "stream": False,
            },
            headers={"authorization": f"Bearer {secret}"},
        )

    async def post_in_parallel(self, secret: str, chance: random.Random) -> Counter[int]:
        async with connect() as client:
            posts = (self.post(client, secret, chance, number) for number in range(REQUESTS))
            answers = await asyncio.gather(*posts)
        return Counter(answer.status_code for answer in answers)

    async def wait_for_spending(self, key_id: str) -> float:
        """What a key has spent, as soon as nothing is reserved any more."""
        async with asyncio.timeout(30):
            while True:
                use = await self.store.read_budget_use(key_id=key_id, since_day="2000-01-01")
                if not use.reserved_usd:
                    return use.spent_usd
                await asyncio.sleep(0.05)


def connect() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))


def answer(body: dict[str, Any]) -> Reply:
    """An answer of the length that was asked for at most."""
    reply = completion("Fine.", prompt_tokens=5)
    reply.body["usage"]["completion_tokens"] = random.randint(1, body["max_tokens"])
    return reply


@asynccontextmanager
async def replicas(url: str, count: int, **limits: Any) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(serving(ScriptedUpstream(default=answer), lifespan="off"))
        urls = [
            await stack.enter_async_context(
                gateway(upstream, database=url, auth={"mode": "keys"}, models=PRICES, limits=limits)
            )
            for _ in range(count)
        ]
        store = create_store(url)
        await store.open()
        stack.push_async_callback(store.close)
        yield Replicas(urls, store)


@pytest.fixture(params=["three on PostgreSQL", "one on SQLite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int]:
    if request.param == "one on SQLite":
        return f"sqlite+aiosqlite:///{tmp_path}/limits.db", 1
    return str(request.getfixturevalue("postgres_url")), 3


@pytest.mark.timeout(1200)
async def test_parallel_requests_spend_no_more_than_the_budget_and_use_it_up(database: tuple[str, int]) -> None:
    url, count = database
    async with replicas(url, count) as fleet:
        for seed in SEEDS:
            chance = random.Random(seed)
            budget_usd = round(chance.uniform(0.2, 2.0), 2)
            secret, key_id = await fleet.make_key(budget_usd=budget_usd)
            statuses = await fleet.post_in_parallel(secret, chance)
            assert statuses.keys() <= {200, 429}, statuses
            spent = await fleet.wait_for_spending(key_id)
            assert 0 < spent <= budget_usd, (seed, statuses)
            async with connect() as client:
                while (await fleet.post(client, secret, chance, secrets.randbits(60))).status_code == 200:
                    spent = await fleet.wait_for_spending(key_id)
                    assert spent <= budget_usd, seed
            assert spent > budget_usd - MOST_USD, (seed, statuses)


@pytest.mark.timeout(1200)
async def test_parallel_requests_are_as_many_as_the_rates_allow(database: tuple[str, int]) -> None:
    url, count = database
    limit = REQUESTS * 2 // 3
    async with replicas(url, count, requests_per_minute={"key": limit}) as fleet:
        for seed in SEEDS:
            secret, _ = await fleet.make_key()
            statuses = await fleet.post_in_parallel(secret, random.Random(seed))
            assert statuses == {200: limit, 429: REQUESTS - limit}, seed
