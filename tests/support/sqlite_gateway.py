"""A gateway in this process over an SQLite file that the test can look into."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.live import ScriptedUpstream, gateway, serving
from tests.support.gateway import World


@asynccontextmanager
async def at_rest(folder: Path, upstream: ScriptedUpstream, **sections: Any) -> AsyncIterator[World]:
    """A world whose store is `folder`'s file; it may be left and entered again."""
    async with (
        serving(upstream, lifespan="off") as address,
        gateway(address, database=url_in(folder), **sections) as base_url,
        httpx.AsyncClient(timeout=30) as client,
    ):
        yield World(base_url, upstream, None, client)


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder}/kept.db"


def file_bytes(folder: Path) -> bytes:
    """The database with its write-ahead log."""
    return b"".join(file.read_bytes() for file in sorted(folder.glob("kept.db*")))


def words_in(folder: Path, words: list[str]) -> list[str]:
    """Which words stand in the database."""
    kept = file_bytes(folder)
    return [word for word in words if word.encode() in kept]


def config_in(folder: Path, **sections: Any) -> str:
    """A configuration file for commands."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"database": {"url": url_in(folder)}, **sections}))
    return str(file)
