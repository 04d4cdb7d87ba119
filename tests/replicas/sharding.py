"""A distributed PostgreSQL as far as one can be had without Citus: databases of which each has the tables of one group
only, and a router that sends every statement to the one place that its root (or its tenant) names.

What Citus would have to run in several places fails here: it names no root, several, or tables of two groups.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

DISTRIBUTE: Final = Path(__file__).parents[2] / "config" / "citus" / "distribute.sql"
_DISTRIBUTED: Final = re.compile(r"create_distributed_table\('(\w+)', '(\w+)', colocate_with => '(\w+)'\)")
_REFERENCE: Final = re.compile(r"create_reference_table\('(\w+)'\)")
_MENTIONS: Final = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|TRUNCATE)\s+([a-z_]+(?:,\s[a-z_]+)*)")
_ROOT: Final = re.compile(r"[0-9a-f]{16}")


class Wide(Exception):
    """A statement that no single place can run."""


class Plan:
    """Of `config/citus/distribute.sql`.

    Attributes:
        columns: of each distributed table, the column by which it is.
        groups: of each distributed table, the first of those with which it is co-located.
        references: tables of which each node has a copy.
    """

    def __init__(self) -> None:
        text = DISTRIBUTE.read_text()
        self.columns: dict[str, str] = {}
        self.groups: dict[str, str] = {}
        for table, column, beside in _DISTRIBUTED.findall(text):
            self.columns[table] = column
            self.groups[table] = table if beside == "none" else self.groups[beside]
        self.references = set(_REFERENCE.findall(text))

    def mentions(self, sql: str) -> list[str]:
        """The distributed tables that a statement names, as often as it does."""
        named = [name for found in _MENTIONS.findall(sql) for name in found.split(", ")]
        return [name for name in named if name in self.columns]

    def column_of(self, sql: str) -> str | None:
        """By which column a statement is held to one place; None where any node will do.

        Raises:
            Wide: its tables are not co-located, or one of them is not held to a value.
        """
        tables = self.mentions(sql)
        if not tables:
            return None
        if len({self.groups[table] for table in tables}) > 1:
            raise Wide(f"{sorted(set(tables))} are not co-located: {sql}")
        column = self.columns[tables[0]]
        held = len(re.findall(rf"\b{column} = (?:\$\d|\w+\.{column}\b)", sql))
        inserted = len(re.findall(rf"INSERT INTO \w+ \((?:\w+, )?{column}\b", sql))
        if held + inserted < len(tables):
            raise Wide(f"{len(tables)} tables, {held} of them read by {column}, {inserted} written: {sql}")
        return column


class Router:
    """Stands in for a store's connections.

    Args:
        shards: addresses of databases of which each has the tables that are distributed by root.
        others: address of a database that has all the other tables.

    Attributes:
        statements: what was run, with the number of the shard; None: it was no shard's.
    """

    def __init__(self, shards: Sequence[str], others: str) -> None:
        self.plan = Plan()
        self.statements: list[tuple[str, int | None]] = []
        self._dsns = [*shards, others]
        self._connections: list[Any] = []

    async def open(self) -> None:
        self._connections = [await asyncpg.connect(dsn) for dsn in self._dsns]

    async def close(self) -> None:
        for one in self._connections:
            await one.close()

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        rows: list[Any] = await self._place(sql, arguments).fetch(sql, *arguments)
        return rows

    async def execute(self, sql: str, *arguments: Any) -> None:
        await self._place(sql, arguments).execute(sql, *arguments)

    async def execute_all(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        async with self.transaction():
            for row in rows:
                await self.fetch(sql, *row)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Router]:
        """One that spans all places, each of whose statements goes to one."""
        async with AsyncExitStack() as stack:
            for one in self._connections:
                await stack.enter_async_context(one.transaction())
            yield self

    def _place(self, sql: str, arguments: Sequence[Any]) -> Any:
        if self.plan.column_of(sql) != "root":
            self.statements.append((sql, None))
            return self._connections[-1]
        roots = {one for argument in arguments for one in _strings_of(argument) if _ROOT.fullmatch(one)}
        if len(roots) != 1:
            raise Wide(f"{len(roots)} roots: {sql}")
        shard = zlib.crc32(roots.pop().encode()) % (len(self._connections) - 1)
        self.statements.append((sql, shard))
        return self._connections[shard]


def _strings_of(argument: Any) -> list[str]:
    if isinstance(argument, list | tuple):
        return [one for one in argument if isinstance(one, str)]
    return [argument] if isinstance(argument, str) else []
