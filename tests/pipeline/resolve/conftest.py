"""Turns of the Responses API on a store of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.store.contract.store import Store
from app.store.store_factory import create_store
from migrations.run import prepare_database
from tests.store.example_logs import fresh_tenant
from tests.support.responses_turns import ResponsesTurns


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    if request.param == "memory":
        return "memory://"
    url = f"sqlite:///{tmp_path}/store.db"
    prepare_database(url, auto_migrate=True)
    return url


@pytest.fixture
async def turns(url: str) -> AsyncIterator[ResponsesTurns]:
    store: Store = create_store(url)
    await store.open()
    yield ResponsesTurns(store, tenant=fresh_tenant())
    await store.close()
