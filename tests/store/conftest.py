"""One store of each kind, migrated and open."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.store.contract.store import Store
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import encrypt_store
from app.store.postgres.backend import PostgresStore
from app.store.store_factory import create_store
from migrations.run import prepare_database
from tests.store.example_logs import Clock

ENCRYPTED = "encrypted "
"""Begins the name of a store that is wrapped in encryption."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def migrated_sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("migrated") / "store.db"
    prepare_database(f"sqlite:///{file}", auto_migrate=True)
    return file


@pytest.fixture
def sqlite_url(migrated_sqlite_file: Path, tmp_path: Path) -> str:
    shutil.copyfile(migrated_sqlite_file, tmp_path / "store.db")
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def sqlite_file(sqlite_url: str) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


@pytest.fixture(params=["sqlite", "postgresql", "encrypted sqlite"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url" if request.param == "postgresql" else "sqlite_url"))


@pytest.fixture
async def store(request: pytest.FixtureRequest, url: str, clock: Clock) -> AsyncIterator[Store]:
    opened = create_store(url, clock=clock)
    if ENCRYPTED in request.node.name:
        opened = encrypt_store(opened, Cipher({"k1": bytes(range(32))}, "k1"))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def postgres(postgres_url: str, clock: Clock) -> AsyncIterator[PostgresStore]:
    opened = create_store(postgres_url, clock=clock, timeout_seconds=2)
    assert isinstance(opened, PostgresStore)
    await opened.open()
    yield opened
    await opened.close()
