"""`concertina reencrypt`: encrypts all stored texts with the active key, or stores them as plain text if there is no
active key."""

from __future__ import annotations

import argparse
import asyncio
import uuid
from typing import Final

from app.commands import CommandError
from app.commands.configured_store import open_configured_store, stream_conversations
from app.commands.progress import CommandProgress, print_interruption
from app.settings import Settings, load_settings
from app.store.encryption.encrypted_store import EncryptedStore
from app.store.encryption.reencryption import Reencryption, ReencryptionProgress
from app.store.leases import LeaseKeeper

MAX_LISTED_IDS: Final = 10
"""How many ids are listed of the conversations that could not be rewritten."""


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    # Also to go back to plain text: the old keys are needed to read what is stored.
    if not settings.encryption.keys:
        raise CommandError("no keys are configured; name in `encryption.keys` the keys with which texts are stored.")
    try:
        with CommandProgress("reencrypting", "conversations", quiet=arguments.quiet) as progress:
            rewritten_counts = asyncio.run(_reencrypt_store(settings, progress))
    except KeyboardInterrupt:
        print_interruption("What was written stays; run the command again for the rest, and keep all keys until then.")
        raise
    if not arguments.quiet:
        _print_reencryption_counts(rewritten_counts, settings.encryption.active)
    if not (rewritten_counts.busy_conversations or rewritten_counts.unreadable_ids):
        return 0
    _print_remaining_ids("in use; run the command again for", rewritten_counts.busy_conversations)
    _print_remaining_ids("not readable with the configured keys:", rewritten_counts.unreadable_ids)
    # An error, so that a script does not remove the old keys.
    raise CommandError("some stored data could not be rewritten; keep all keys.")


async def _reencrypt_store(settings: Settings, progress: CommandProgress) -> ReencryptionProgress:
    async with open_configured_store(settings) as store:
        assert isinstance(store, EncryptedStore)
        # The inner store lists conversations without decrypting them: one that is not readable must not end the count.
        if not progress.is_quiet:
            progress.set_total(len([None async for _ in stream_conversations(store.inner)]))
        leases = LeaseKeeper(store, holder=uuid.uuid4().hex)
        leases.start()
        try:
            return await Reencryption(store, leases, on_progress=_ProgressReport(progress)).run()
        finally:
            await leases.aclose()


class _ProgressReport:
    """Passes the totals of a reencryption on to the progress, which takes differences."""

    def __init__(self, progress: CommandProgress) -> None:
        self._progress = progress
        self._conversations = 0

    def __call__(self, counts: ReencryptionProgress) -> None:
        self._progress.advance(counts.conversations - self._conversations)
        self._conversations = counts.conversations
        self._progress.set_note(f"{counts.messages:,} messages, {counts.summaries:,} summaries written")


def _print_reencryption_counts(counts: ReencryptionProgress, active: str | None) -> None:
    print(f"{_format_reencryption_counts(counts)} {f'under the key {active!r}' if active else 'as plain text'}.")
    if not (counts.busy_conversations or counts.unreadable_ids):
        print(
            "Everything else had this form before. No other key is needed any more." if active else "No key is needed."
        )


def _format_reencryption_counts(counts: ReencryptionProgress) -> str:
    return (
        f"{counts.conversations} conversations: {counts.messages} messages, {counts.summaries} summaries, "
        f"{counts.states} states and {counts.completions} stored completions written"
    )


def _print_remaining_ids(reason: str, ids: list[str]) -> None:
    if ids:
        more = f" and {len(ids) - MAX_LISTED_IDS} more" if len(ids) > MAX_LISTED_IDS else ""
        print(f"{len(ids)} {reason} {', '.join(ids[:MAX_LISTED_IDS])}{more}")
