"""`concertina reencrypt`: write what is stored under the active key, or as plain text while there is none."""

from __future__ import annotations

import argparse
import asyncio
import uuid
from typing import Final

from rich.console import Console
from rich.status import Status

from app.commands import CommandFailed
from app.commands.opened import opened_store
from app.settings import Settings, load
from app.store.encrypted import EncryptedStore
from app.store.leases import LeaseKeeper
from app.store.reencrypting import Reencryption, Rewritten

NAMED: Final = 10
"""Of what is left, so many are named."""


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    if not settings.encryption.keys:
        raise CommandFailed("no keys are configured; name those that something is stored under in `encryption.keys`.")
    done = asyncio.run(_reencrypt(settings))
    active = settings.encryption.active
    print(f"{_counts(done)} {f'under the key {active!r}' if active else 'as plain text'}.")
    if not (done.in_use or done.unreadable):
        print(
            "All else was so already. Keys other than that are not needed any more." if active else "No key is needed."
        )
        return 0
    _tell_rest("in use; run the command again for", done.in_use)
    _tell_rest("not readable with the configured keys:", done.unreadable)
    raise CommandFailed("not everything could be written; keep all keys.")


async def _reencrypt(settings: Settings) -> Rewritten:
    console = Console(stderr=True, highlight=False)
    async with opened_store(settings) as store:
        assert isinstance(store, EncryptedStore)
        leases = LeaseKeeper(store, holder=uuid.uuid4().hex)
        leases.start()
        try:
            with console.status("0 conversations") as status:
                return await Reencryption(store, leases, tell=lambda done: _show(status, done)).run()
        finally:
            await leases.aclose()


def _show(status: Status, done: Rewritten) -> None:
    status.update(f"{done.conversations} conversations, {done.messages} messages written")


def _counts(done: Rewritten) -> str:
    return (
        f"{done.conversations} conversations: {done.messages} messages, {done.summaries} summaries, "
        f"{done.states} states and {done.completions} stored completions written"
    )


def _tell_rest(what: str, ids: list[str]) -> None:
    if ids:
        more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        print(f"{len(ids)} {what} {', '.join(ids[:NAMED])}{more}")
