"""Two versions side by side: steps add before they take away, and what runs goes on over a newer schema."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from pathlib import Path

import aiohttp
import asyncpg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from app.store.database_url import parse_database_url
from migrations import upgrading
from migrations.on_postgresql import TABLES
from tests.faults.checking import Checking
from tests.faults.journal import Journal
from tests.faults.load import Load, Manners
from tests.migrations.test_migrations import with_connection
from tests.replicas.fleet import Fleet, fleet

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
STEPS = [
    script.revision for script in reversed(list(ScriptDirectory.from_config(upgrading._config()).walk_revisions()))
]
NEXT = "2999_01_01_of_the_next_version"
MANNERS = Manners(talks=4, turns=(12, 20), words=(40, 60), pause_seconds=0.05, hangs_up=0.0, reads_slowly=0.0)
ATTEMPTS = 9


def expansion() -> str:
    """What the next version's migration may do to every table while this one runs: columns that need not be named, an
    index, a table."""
    changes = [
        f"ALTER TABLE {name} ADD COLUMN new_optional text; "
        f"ALTER TABLE {name} ADD COLUMN new_counted integer NOT NULL DEFAULT 0; "
        f"CREATE INDEX {name}_new ON {name} (new_counted)"
        for name in re.findall(r"CREATE TABLE (\w+)", TABLES.read_text())
        if name != "alembic_version"
    ]
    version = f"UPDATE alembic_version SET version_num = '{NEXT}'"
    return "; ".join([*changes, "CREATE TABLE of_the_next_version (id text PRIMARY KEY)", version])


async def test_what_runs_goes_on_over_a_schema_that_was_added_to_and_what_starts_refuses_it(tmp_path: Path) -> None:
    async with fleet(tmp_path, count=2) as replicas, asyncio.TaskGroup() as group:
        journal = Journal(tmp_path / "journal.jsonl")
        load = Load(replicas.stage.base_url, journal, seed=1, manners=MANNERS)
        running = group.create_task(load.run())
        await acknowledged(load, 20)
        await expand(replicas)
        await acknowledged(load, 40)
        load.stop()
        await running
        journal.close()
        # Whoever meets the locks of a step waits, or is told to come again.
        assert journal.outcomes.keys() <= {"acknowledged", "503 store_unavailable"}, journal.outcomes
        async with aiohttp.ClientSession() as session:
            verdict = await Checking(replicas.stage.base_url, session).all(journal.talks)
        assert verdict.is_clean, verdict
        assert replicas.model.summaries
        await is_ready(replicas)
        restarted = replicas.stage.gateways[0]
        await restarted.stop()
        with pytest.raises(RuntimeError, match=f"{NEXT}.*does not know"):
            await restarted.start()
        await is_ready(replicas, 1)


async def expand(replicas: Fleet) -> None:
    """All of it at once, as migrations do; again where it met a turn that waited for it."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            await replicas.rows(f"DO $$ BEGIN {expansion()}; END $$")
            return
    raise AssertionError("the step found no moment")


async def acknowledged(load: Load, more: int) -> None:
    """Wait until so many more turns are."""
    before = load.figures.acknowledged
    async with asyncio.timeout(60):
        while load.figures.acknowledged < before + more:  # noqa: ASYNC110 - it is counted elsewhere
            await asyncio.sleep(0.05)


async def is_ready(replicas: Fleet, first: int = 0) -> None:
    for gateway in replicas.stage.gateways[first:]:
        assert (await replicas.client.get(f"{gateway.address}/readyz")).status_code == 200


Snapshot = dict[str, tuple[dict[str, tuple[str, bool, bool]], set[tuple[str, ...]]]]
"""Of each table: type of each column, whether it may be null, whether it has a default; what is unique."""


def snapshot(connection: Connection) -> Snapshot:
    looked = inspect(connection)
    found: Snapshot = {}
    for table in looked.get_table_names():
        columns = {
            one["name"]: (str(one["type"]), bool(one["nullable"]), one["default"] is not None)
            for one in looked.get_columns(table)
        }
        unique = {tuple(map(str, one["column_names"])) for one in looked.get_indexes(table) if one["unique"]}
        unique |= {tuple(one["column_names"]) for one in looked.get_unique_constraints(table)}
        unique.add(tuple(looked.get_pk_constraint(table)["constrained_columns"]))
        found[table] = columns, unique
    return found


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_each_step_leaves_everything_that_the_version_before_reads_and_writes(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/steps.db" if backend == "sqlite" else request.getfixturevalue("empty_postgres_url")
    snapshots = []
    for step in STEPS:
        upgrading.upgrade_schema(parse_database_url(url), step)
        snapshots.append(with_connection(url, snapshot))
    for (before, after), step in zip(itertools.pairwise(snapshots), STEPS[1:], strict=True):
        assert narrowings(before, after) == [], step


def narrowings(before: Snapshot, after: Snapshot) -> list[str]:
    """What the version before could not live with."""
    found = [f"{table} is gone" for table in before.keys() - after.keys()]
    for table in before.keys() & after.keys():
        (old, old_unique), (new, new_unique) = before[table], after[table]
        found += [f"{table}.{name} is gone" for name in old.keys() - new.keys()]
        found += [f"{table}.{name} must be given" for name in new.keys() - old.keys() if not any(new[name][1:])]
        for name in old.keys() & new.keys():
            if old[name][0] != new[name][0] or (old[name][1] and not new[name][1]):
                found.append(f"{table}.{name} is another: {old[name]}, {new[name]}")
        found += [f"{table} {columns} must be unique" for columns in new_unique - old_unique]
        found += [f"{table} {columns} is no conflict any more" for columns in old_unique - new_unique]
    return found


def test_narrowings_are_seen() -> None:
    column = ("TEXT", True, False)
    before: Snapshot = {"kept": ({"a": column, "b": column}, {("a",)}), "gone": ({"a": column}, set())}
    after: Snapshot = {"kept": ({"a": ("TEXT", False, True), "new": ("TEXT", False, False)}, {("a", "new")})}
    assert len(narrowings(before, after)) == 6
    assert narrowings(before, before) == []


def test_a_step_that_changes_rows_tells_what_the_version_before_misses() -> None:
    told = (ROOT / "docs" / "operations.md").read_text()
    for script in ScriptDirectory.from_config(upgrading._config()).walk_revisions():
        assert script.path is not None
        if ".execute(" in Path(script.path).read_text():
            assert f"`{script.revision}`" in told
