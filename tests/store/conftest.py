"""One store of each kind, migrated and open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.store.base import Store
from app.store.connect import open_store
from migrations.run import prepare
from tests.store.logs import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    prepare(url, auto_migrate=True)
    return url


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "memory":
        return "memory://"
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
async def store(url: str, clock: Clock) -> AsyncIterator[Store]:
    opened = open_store(url, clock=clock)
    await opened.open()
    yield opened
    await opened.close()
