"""Database URLs: what is accepted, what it means, what is said of others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.store.database_url import DatabaseLocation, parse_database_url
from app.store.postgres.backend import PostgresStore
from app.store.sqlite.backend import SqliteStore
from app.store.sqlite.memory_store import SqliteMemoryStore
from app.store.store_factory import create_store

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("memory://", DatabaseLocation("memory")),
        ("sqlite+aiosqlite:///data/c.db", DatabaseLocation("sqlite", path=Path("data/c.db"))),
        ("sqlite:////var/lib/c.db", DatabaseLocation("sqlite", path=Path("/var/lib/c.db"))),
        ("sqlite:///with%20space.db?mode=rw", DatabaseLocation("sqlite", path=Path("with space.db"))),
        ("postgresql+asyncpg://u:p@h:5/n", DatabaseLocation("postgresql", dsn="postgresql://u:p@h:5/n")),
        ("postgresql://u@/n?host=/run/pg", DatabaseLocation("postgresql", dsn="postgresql://u@/n?host=/run/pg")),
        ("postgres://h/n", DatabaseLocation("postgresql", dsn="postgresql://h/n")),
    ],
)
def test_a_url_names_a_place(url: str, expected: DatabaseLocation) -> None:
    assert parse_database_url(url) == expected


@pytest.mark.parametrize(
    "url", ["", "data/c.db", "mysql://u:secret@h/n", "sqlite://c.db", "sqlite:///", "sqlite:///:memory:", "sqlite://"]
)
def test_another_url_is_refused_with_what_is_accepted(url: str) -> None:
    with pytest.raises(ValueError, match=r"postgresql\+asyncpg://.*memory://") as refused:
        parse_database_url(url)
    assert "secret" not in str(refused.value)


def test_the_directory_of_a_file_is_made(tmp_path: Path) -> None:
    assert isinstance(create_store(f"sqlite:///{tmp_path}/a/b/c.db"), SqliteStore)
    assert (tmp_path / "a" / "b").is_dir()


def test_each_url_opens_its_store() -> None:
    assert isinstance(create_store("memory://"), SqliteMemoryStore)
    assert isinstance(create_store("postgresql+asyncpg://u@h/n"), PostgresStore)


def test_a_store_brings_no_driver_but_its_own(tmp_path: Path) -> None:
    program = (
        "import sys; from app.store.store_factory import create_store; import app.main; create_store(sys.argv[1]); "
        "print(*sorted({'sqlalchemy', 'alembic', 'asyncpg', 'app.store.sqlite.backend'} & sys.modules.keys()))"
    )

    def imported(url: str) -> str:
        command = [sys.executable, "-c", program, url]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)}
        ).stdout.strip()

    assert imported(f"sqlite:///{tmp_path}/x.db") == "app.store.sqlite.backend"
    assert imported("postgresql://u@h/n") == "asyncpg"
    assert imported("memory://") == "app.store.sqlite.backend"
