"""`concertina export`: stored conversations as chat messages, read batch by batch; only whole ones are named."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from app.commands import CommandFailed
from app.commands.open_store import all_conversations, opened_store
from app.commands.progress import Telling, counted, tell_interrupted
from app.conversation.messages import Conversation
from app.conversations.transfer.export import Exporting, described
from app.settings import Settings, load
from app.store.contract import Store

STANDARD_OUTPUT: Final = "-"


@dataclass(slots=True)
class _Written:
    """What has been given out so far."""

    conversations: int = 0
    file_bytes: int = 0

    def __str__(self) -> str:
        return f"{counted(self.conversations, 'conversation')}, {self.file_bytes / 1_000_000:,.1f} MB"


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    is_shown = arguments.out == STANDARD_OUTPUT and sys.stdout.isatty()
    written = _Written()
    try:
        with Telling("exporting", "messages", quiet=arguments.quiet or is_shown) as telling:
            asyncio.run(_run(settings, arguments, telling, written))
    except BrokenPipeError as error:
        raise CommandFailed("whoever read the output went away before its end.") from error
    except KeyboardInterrupt:
        tell_interrupted(_left(arguments.out, written))
        raise
    where = "" if arguments.out == STANDARD_OUTPUT else f" to {arguments.out}"
    telling.say(f"{written} exported{where} in {telling.took()}.")
    return 0


async def _run(settings: Settings, arguments: argparse.Namespace, telling: Telling, written: _Written) -> None:
    async with opened_store(settings) as store:
        if not telling.quiet:
            telling.expect(sum([one.head_seq + 1 async for one in _chosen(store, arguments)]))
        await _export(store, arguments, telling, written)


async def _export(store: Store, arguments: argparse.Namespace, telling: Telling, written: _Written) -> None:
    exporting = Exporting(store, on_read=telling.advance)
    async for conversation in _chosen(store, arguments):
        if arguments.out == STANDARD_OUTPUT:
            fields = described(conversation)
            if arguments.tenant is None:
                fields["tenant"] = conversation.tenant
            pieces = exporting.whole(conversation, with_hidden=arguments.include_deleted, fields=fields)
            await _write(pieces, sys.stdout.buffer, telling, written)
        else:
            pieces = exporting.lines(conversation, with_hidden=arguments.include_deleted)
            with _opened(Path(arguments.out) / f"{conversation.id}.jsonl") as file:
                await _write(pieces, file, telling, written)
        written.conversations += 1
        telling.note(str(written))


async def _write(pieces: AsyncIterator[bytes], file: BinaryIO, telling: Telling, written: _Written) -> None:
    async for piece in pieces:
        file.write(piece)
        written.file_bytes += len(piece)
        telling.note(str(written))
    file.flush()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name once it is whole."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("wb") as file:
                yield file
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}.") from error


async def _chosen(store: Store, arguments: argparse.Namespace) -> AsyncIterator[Conversation]:
    """The conversations to export: those that are named, else all, oldest first."""
    tenant = arguments.tenant
    for name in arguments.conversations:
        found = await store.look_up(name) if tenant is None else await store.get(tenant=tenant, conversation_id=name)
        if found is None:
            whose = "" if tenant is None else f" of tenant {tenant!r}"
            raise CommandFailed(f"there is no conversation {name!r}{whose}.")
        yield found
    if not arguments.conversations:
        async for conversation in all_conversations(store, tenant):
            yield conversation


def _left(out: str, written: _Written) -> str:
    if out == STANDARD_OUTPUT:
        return f"{written} were written; the last line may be cut off. Run the command again for all of it."
    return f"{written} are in {out}, each whole. Run the command again: it writes every file anew."
