"""`concertina export`: stored conversations as chat messages, read batch by batch, with what is done told on stderr."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from app.archive.exporting import Exporting, described
from app.commands import CommandFailed
from app.commands.opened import opened_store
from app.conversation.messages import Conversation
from app.settings import load
from app.store.base import ListQuery, Store

STANDARD_OUTPUT: Final = "-"
PAGE: Final = 100


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            told = _Told(progress)

            async def work() -> None:
                async with opened_store(settings) as store:
                    await _export(store, arguments, told)

            asyncio.run(work())
    except BrokenPipeError as error:
        raise CommandFailed("whoever read the output went away before its end.") from error
    return 0


async def _export(store: Store, arguments: argparse.Namespace, told: _Told) -> None:
    exporting = Exporting(store)
    async for conversation in _chosen(store, arguments.conversations, arguments.tenant):
        if arguments.out == STANDARD_OUTPUT:
            fields = described(conversation)
            if arguments.tenant is None:
                fields["tenant"] = conversation.tenant
            pieces = exporting.whole(conversation, with_hidden=arguments.include_deleted, fields=fields)
            await _write(pieces, sys.stdout.buffer, told)
        else:
            pieces = exporting.lines(conversation, with_hidden=arguments.include_deleted)
            with _opened(Path(arguments.out) / f"{conversation.id}.jsonl") as file:
                await _write(pieces, file, told)
        told.conversation()


async def _write(pieces: AsyncIterator[bytes], file: BinaryIO, told: _Told) -> None:
    async for piece in pieces:
        file.write(piece)
        told.written(len(piece))
    file.flush()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            yield file
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}.") from error


async def _chosen(store: Store, named: list[str], tenant: str | None) -> AsyncIterator[Conversation]:
    """The conversations to export: those that are named, else all, oldest first."""
    for name in named:
        found = await store.look_up(name) if tenant is None else await store.get(tenant=tenant, conversation_id=name)
        if found is None:
            whose = "" if tenant is None else f" of tenant {tenant!r}"
            raise CommandFailed(f"there is no conversation {name!r}{whose}.")
        yield found
    after = None
    while not named:
        query = ListQuery(limit=PAGE, descending=False, after=after)
        page = await store.conversations(tenant=tenant, query=query)
        for conversation in page:
            yield conversation
        if len(page) < PAGE:
            return
        last = page[-1]
        assert last.created_at is not None
        after = (last.created_at, last.id)


class _Told:
    """How far it has come."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)
        self._conversations, self._bytes = 0, 0
        self._tell()

    def conversation(self) -> None:
        self._conversations += 1
        self._tell()

    def written(self, count: int) -> None:
        self._bytes += count
        self._tell()

    def _tell(self) -> None:
        said = f"{self._conversations:,} conversations, {self._bytes / 1_000_000:,.1f} MB"
        self._progress.update(self._task, description=said)
