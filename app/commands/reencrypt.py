"""`concertina reencrypt`: write what is stored under the active key, or as plain text while there is none."""

from __future__ import annotations

import argparse
import asyncio
import uuid
from typing import Final

from app.commands import CommandFailed
from app.commands.open_store import all_conversations, opened_store
from app.commands.progress import Telling, tell_interrupted
from app.settings import Settings, load
from app.store.encryption.encrypted_store import EncryptedStore
from app.store.encryption.reencryption import Reencryption, Rewritten
from app.store.leases import LeaseKeeper

NAMED: Final = 10
"""Of what is left, so many are named."""


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    if not settings.encryption.keys:
        raise CommandFailed("no keys are configured; name those that something is stored under in `encryption.keys`.")
    try:
        with Telling("reencrypting", "conversations", quiet=arguments.quiet) as telling:
            done = asyncio.run(_reencrypt(settings, telling))
    except KeyboardInterrupt:
        tell_interrupted("What was written stays; run the command again for the rest, and keep all keys until then.")
        raise
    if not arguments.quiet:
        _tell_done(done, settings.encryption.active)
    if not (done.in_use or done.unreadable):
        return 0
    _tell_rest("in use; run the command again for", done.in_use)
    _tell_rest("not readable with the configured keys:", done.unreadable)
    raise CommandFailed("not everything could be written; keep all keys.")


async def _reencrypt(settings: Settings, telling: Telling) -> Rewritten:
    async with opened_store(settings) as store:
        assert isinstance(store, EncryptedStore)
        if not telling.quiet:
            telling.expect(len([None async for _ in all_conversations(store.inner)]))
        leases = LeaseKeeper(store, holder=uuid.uuid4().hex)
        leases.start()
        try:
            return await Reencryption(store, leases, tell=_Told(telling)).run()
        finally:
            await leases.aclose()


class _Told:
    """Passes on what has been done since it was last told."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._conversations = 0

    def __call__(self, done: Rewritten) -> None:
        self._telling.advance(done.conversations - self._conversations)
        self._conversations = done.conversations
        self._telling.note(f"{done.messages:,} messages, {done.summaries:,} summaries written")


def _tell_done(done: Rewritten, active: str | None) -> None:
    print(f"{_counts(done)} {f'under the key {active!r}' if active else 'as plain text'}.")
    if not (done.in_use or done.unreadable):
        print(
            "All else was so already. Keys other than that are not needed any more." if active else "No key is needed."
        )


def _counts(done: Rewritten) -> str:
    return (
        f"{done.conversations} conversations: {done.messages} messages, {done.summaries} summaries, "
        f"{done.states} states and {done.completions} stored completions written"
    )


def _tell_rest(what: str, ids: list[str]) -> None:
    if ids:
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        print(f"{len(ids)} {what} {', '.join(ids[:NAMED])}{more}")
