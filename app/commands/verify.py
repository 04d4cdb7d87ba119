"""`concertina verify`: check a database against itself, beside running gateways, changing nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from app.commands.progress import Telling, counted, tell_interrupted
from app.context.count.token_counter import counter_for
from app.conversations.verification import Finding, Found, Verifying
from app.errors import GatewayError
from app.settings import Settings, load
from app.store.audit import opened_audit
from app.store.encryption.cipher import Cipher
from app.store.encryption.sealed_fields import Sealing

CLEAN, FOUND, COULD_NOT = 0, 1, 2


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    try:
        with Telling("verifying", "messages", quiet=arguments.quiet) as telling:
            found = asyncio.run(_verify(settings, telling))
    except KeyboardInterrupt:
        tell_interrupted("Nothing was written; run the command again.")
        raise
    except (GatewayError, ValueError) as error:
        print(f"concertina: {error}", file=sys.stderr)
        return COULD_NOT
    if arguments.json:
        print(json.dumps(_told(found)))
    else:
        _tell(found)
        telling.say(f"{_summed_up(found)} verified in {telling.took()}.")
    return FOUND if found.findings else CLEAN


async def _verify(settings: Settings, telling: Telling) -> Found:
    cipher = Cipher(settings.encryption.key_bytes, settings.encryption.active)
    async with opened_audit(settings.database.url.get_secret_value()) as audit:
        if not telling.quiet:
            counts = await audit.counts()
            telling.expect(counts["messages"] + counts["chunks"])
        verifying = Verifying(
            audit, Sealing(cipher), counter_for=counter_for, now=datetime.now(UTC), tell=telling.advance
        )
        return await verifying.run()


def _told(found: Found) -> dict[str, Any]:
    return {**asdict(found), "drift": round(found.drift, 6), "is_clean": not found.findings}


def _tell(found: Found) -> None:
    for one in found.findings:
        print(f"FAULT   {_line(one)}")
    for one in found.notices:
        print(f"notice  {_line(one)}")
    listed = len(found.findings) + len(found.notices)
    more = sum(found.kinds.values()) - listed
    if more:
        print(f"… and {more:,} more of these kinds")
    if not found.findings:
        print("No faults.")


def _line(one: Finding) -> str:
    return f"{one.kind}: {one.where}: {one.told}"


def _summed_up(found: Found) -> str:
    parts = [
        counted(found.conversations, "conversation"),
        counted(found.messages, "message"),
        counted(found.chunks, "summary", "summaries"),
    ]
    return ", ".join(parts)
