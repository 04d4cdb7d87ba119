"""PostgreSQL crashes, hangs, is cut off, has no connection left, fails over; disks are full: nothing told is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import resource
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from tests.chaos.sampling import tasks_of
from tests.faults.checking import Checking, Verdict
from tests.faults.journal import Journal
from tests.faults.load import Load, Manners
from tests.faults.proxy import NONE, Fault
from tests.faults.scene import LEASE_SECONDS, Scene, scene
from tests.faults.servers import Database, open_files
from tests.postgres import dsn

pytestmark = pytest.mark.timeout(180)

MANNERS = Manners(
    talks=8, turns=(3, 12), words=(10, 60), pause_seconds=0.05, hangs_up=0.02, tries=24, longest_pause_seconds=1.0
)
BETWEEN_SECONDS = 1.0
POOL = 4
END_SECONDS = 8.0
"""A request key whose process was cut off is free after half a minute: nobody waits for that here."""


class Trial:
    """Load on a scene, during which a test breaks things."""

    def __init__(self, stage: Scene, load: Load, journal: Journal) -> None:
        self.stage, self.load, self.journal = stage, load, journal
        self.verdict = Verdict()

    async def broken(self, breaks: Callable[[], Awaitable[None]]) -> None:
        """Break something, then see that turns are answered again."""
        self.stage.database_disturbances += 1
        self.stage.database_is_disturbed = True
        await breaks()
        await asyncio.sleep(0.5)
        self.stage.database_is_disturbed = False
        self.stage.database_disturbances += 1
        await self.goes_on()

    async def goes_on(self) -> None:
        before = self.load.figures.acknowledged
        async with asyncio.timeout(30):
            while self.load.figures.acknowledged < before + 5:  # noqa: ASYNC110 - it is counted elsewhere
                await asyncio.sleep(0.05)


@asynccontextmanager
async def trial(stage: Scene, *, seed: int = 1) -> AsyncIterator[Trial]:
    """Load while the block lasts; then everything is checked, and nothing may be left open."""
    journal = Journal(stage.folder / "journal.jsonl")
    load = Load(stage.base_url, journal, seed=seed, manners=MANNERS, stores=stage.stores)
    made = Trial(stage, load, journal)
    try:
        async with _checked(made):
            yield made
    finally:
        journal.close()


@asynccontextmanager
async def _checked(made: Trial) -> AsyncIterator[None]:
    stage, load, journal = made.stage, made.load, made.journal
    async with asyncio.TaskGroup() as group:
        running = group.create_task(load.run())
        await made.goes_on()
        yield
        await load.end(running, within_seconds=END_SECONDS)
    await asyncio.sleep(LEASE_SECONDS)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        checking = Checking(stage.base_url, session)
        made.verdict = await checking.all(journal.talks)
        await checking.settle(journal.talks[-MANNERS.talks :], seconds=10)
        assert checking.verdict.is_clean, checking.verdict
        async with asyncio.timeout(10):
            while any([await tasks_of(session, one) for one in stage.gateways]):  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.1)
    verified = await stage.verify()
    assert verified.faults == []


async def connections(database: Database) -> int:
    sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    return int((await database.rows(sql))[0][0])


async def test_nothing_acknowledged_is_lost_while_postgresql_breaks_in_every_way(tmp_path: Path) -> None:
    async with scene(
        tmp_path, backend="postgres", count=2, settings={"max_connections": "20"}, database={"pool_size": POOL}
    ) as stage:
        database, line = stage.database, stage.to_database
        assert database is not None
        assert line is not None

        async def crashes() -> None:
            await asyncio.to_thread(database.crash)
            await asyncio.sleep(BETWEEN_SECONDS)
            await asyncio.to_thread(database.restart)

        async def stands_still() -> None:
            database.pause()
            await asyncio.sleep(LEASE_SECONDS + 1)
            database.resume()

        async def is_cut_off() -> None:
            for fault in (Fault(reset_after=100), Fault(stall_after=100), Fault(refuses=True)):
                line.fail(fault)
                await asyncio.sleep(BETWEEN_SECONDS / 2)
                line.cut()
            line.fail(NONE)

        async def has_no_connection_left() -> None:
            taken: list[asyncpg.Connection[Any]] = []
            line.cut()
            with contextlib.suppress(asyncpg.TooManyConnectionsError):
                while True:
                    taken.append(await asyncpg.connect(dsn(database.url("postgres"))))
                    line.cut()
            await asyncio.sleep(BETWEEN_SECONDS)
            for one in taken:
                await one.close()

        async with trial(stage) as made:
            files = [open_files(one.pid) for one in stage.gateways]
            for breaks in (crashes, stands_still, is_cut_off, has_no_connection_left):
                await made.broken(breaks)
        assert await connections(database) <= POOL * len(stage.gateways)
        assert all(open_files(one.pid) <= before + 20 for one, before in zip(stage.gateways, files, strict=True))


async def test_nothing_acknowledged_is_lost_when_a_standby_takes_over(tmp_path: Path) -> None:
    async with scene(tmp_path, backend="postgres", count=2, database={"pool_size": POOL}) as stage:
        primary, line = stage.database, stage.to_database
        assert primary is not None
        assert line is not None
        standby = await asyncio.to_thread(primary.standby)
        try:
            await primary.rows("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await primary.rows("SELECT pg_reload_conf()")

            async def fails_over() -> None:
                await asyncio.to_thread(primary.crash)
                await standby.rows("SELECT pg_promote()")
                line.targets[:] = [standby.socket_path]

            async with trial(stage) as made:
                await made.broken(fails_over)
                stage.database_url = stage.database_url.replace(primary.folder, standby.folder)
        finally:
            await asyncio.to_thread(standby.remove)


@contextmanager
def small_disk(database: Database) -> Iterator[Path]:
    """A file system of 24 MB that PostgreSQL may write to."""
    disk = Path(database.folder) / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=777", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root, where it may mount at all")
    try:
        user = pwd.getpwnam("nobody")
        os.chown(disk, user.pw_uid, user.pw_gid)
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


async def test_nothing_acknowledged_is_lost_when_the_disk_of_postgresql_is_full(tmp_path: Path) -> None:
    async with scene(tmp_path, backend="postgres", count=1, database={"pool_size": POOL}) as stage:
        database = stage.database
        assert database is not None
        with small_disk(database) as disk:
            await database.rows(f"CREATE TABLESPACE small LOCATION '{disk}'")
            for table in ("messages", "conversations", "chunks"):
                await database.rows(f"ALTER TABLE {table} SET TABLESPACE small")
            filler = disk / "filler"

            async def is_full() -> None:
                with contextlib.suppress(OSError):
                    filler.write_bytes(bytes(64 * 1024 * 1024))
                await asyncio.sleep(3 * BETWEEN_SECONDS)
                filler.unlink()

            async with trial(stage) as made:
                await made.broken(is_full)
                assert any("store_unavailable" in outcome for outcome in made.journal.outcomes), made.journal.outcomes


async def test_nothing_acknowledged_is_lost_when_the_file_of_sqlite_cannot_grow(tmp_path: Path) -> None:
    async with scene(tmp_path, backend="sqlite", count=1) as stage:
        (gateway,) = stage.gateways

        async def cannot_grow() -> None:
            _, hard = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (4096, hard))
            await asyncio.sleep(2 * BETWEEN_SECONDS)
            resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (hard, hard))

        async with trial(stage) as made:
            await made.broken(cannot_grow)
            assert any("store_unavailable" in outcome for outcome in made.journal.outcomes), made.journal.outcomes
