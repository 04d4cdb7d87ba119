"""`concertina export`: writes stored conversations as chat messages, batch by batch. In a folder, a file gets its name
only when it is complete."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from app.commands import CommandError
from app.commands.configured_store import open_configured_store, stream_conversations
from app.commands.progress import CommandProgress, pluralize
from app.conversation.api_keys import is_context_tenant
from app.conversation.conversation_types import Conversation
from app.conversations.transfer.message_export import ConversationExporter, build_export_fields
from app.settings import Settings, load_settings
from app.store.contract.conversations import ConversationStore

STANDARD_OUTPUT: Final = "-"


@dataclass(slots=True)
class _ExportedSize:
    """What has been written so far."""

    conversations: int = 0
    file_bytes: int = 0

    def __str__(self) -> str:
        return f"{pluralize(self.conversations, 'conversation')}, {self.file_bytes / 1_000_000:,.1f} MB"


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    prints_to_terminal = arguments.out == STANDARD_OUTPUT and sys.stdout.isatty()
    exported_size = _ExportedSize()
    progress = CommandProgress(
        "exporting",
        "messages",
        # No progress if the conversations go to the same terminal: a bar would be drawn over their text.
        quiet=arguments.quiet or prints_to_terminal,
        describe_interruption=lambda: _describe_interruption(arguments.out, exported_size),
    )
    try:
        with progress:
            asyncio.run(_export_from_store(settings, arguments, progress, exported_size))
    except BrokenPipeError as error:
        raise CommandError("the program that reads the output stopped before the end.") from error
    where = "" if arguments.out == STANDARD_OUTPUT else f" to {arguments.out}"
    progress.print_line(f"{exported_size} exported{where} in {progress.format_elapsed()}.")
    return 0


async def _export_from_store(
    settings: Settings, arguments: argparse.Namespace, progress: CommandProgress, exported_size: _ExportedSize
) -> None:
    async with open_configured_store(settings) as store:
        # The conversations are listed once more for the total, which only a visible progress needs.
        if not progress.is_quiet:
            progress.set_total(
                sum([conversation.head_seq + 1 async for conversation in _select_conversations(store, arguments)])
            )
        await _export_conversations(store, arguments, progress, exported_size)


async def _export_conversations(
    store: ConversationStore, arguments: argparse.Namespace, progress: CommandProgress, exported_size: _ExportedSize
) -> None:
    exporter = ConversationExporter(store, on_read=progress.advance)
    async for conversation in _select_conversations(store, arguments):
        if arguments.out == STANDARD_OUTPUT:
            fields = build_export_fields(conversation)
            # Without --tenant, one output has conversations of several tenants.
            if arguments.tenant is None:
                fields["tenant"] = conversation.tenant
            pieces = exporter.stream_json_object(conversation, with_hidden=arguments.include_deleted, fields=fields)
            await _write_export_pieces(pieces, sys.stdout.buffer, progress, exported_size)
        else:
            pieces = exporter.stream_message_lines(conversation, with_hidden=arguments.include_deleted)
            with _open_atomic_file(Path(arguments.out) / f"{conversation.id}.jsonl") as file:
                await _write_export_pieces(pieces, file, progress, exported_size)
        exported_size.conversations += 1
        progress.set_note(str(exported_size))


async def _write_export_pieces(
    pieces: AsyncIterator[bytes], file: BinaryIO, progress: CommandProgress, exported_size: _ExportedSize
) -> None:
    async for piece in pieces:
        file.write(piece)
        exported_size.file_bytes += len(piece)
        progress.set_note(str(exported_size))
    file.flush()


@contextmanager
def _open_atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that gets its name at the end of the block. After an error or Ctrl-C nothing is left of it.

    Raises:
        CommandError: the file cannot be written.
    """
    partial_path = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial_path.open("wb") as file:
                yield file
            partial_path.replace(path)
        finally:
            # Missing if it was renamed, or never opened.
            partial_path.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}.") from error


async def _select_conversations(store: ConversationStore, arguments: argparse.Namespace) -> AsyncIterator[Conversation]:
    """Yields the conversations to export: those named on the command line, or else all, oldest first. Those that are
    kept for continuing only (`store: false`) are never exported.

    Raises:
        CommandError: a named conversation does not exist.
    """
    tenant = arguments.tenant
    for conversation_id in arguments.conversations:
        # An id that a client has chosen is unique within its tenant only, so it is found only with --tenant.
        named_conversation = (
            await store.find_conversation_of_any_tenant(conversation_id)
            if tenant is None
            else await store.find_conversation(tenant=tenant, conversation_id=conversation_id)
        )
        if named_conversation is None or is_context_tenant(named_conversation.tenant):
            tenant_text = "" if tenant is None else f" of tenant {tenant!r}"
            raise CommandError(f"there is no conversation {conversation_id!r}{tenant_text}.")
        yield named_conversation
    if not arguments.conversations:
        async for conversation in stream_conversations(store, tenant):
            if not is_context_tenant(conversation.tenant):
                yield conversation


def _describe_interruption(out: str, exported_size: _ExportedSize) -> str:
    if out == STANDARD_OUTPUT:
        return f"{exported_size} were written; the last line may be cut off. Run the command again for all of it."
    return f"{exported_size} are in {out}, each whole. Run the command again: it writes every file anew."
