"""`concertina purge`: erase old conversations now, by the configured rules or by age."""

from __future__ import annotations

import argparse
import asyncio
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from app.assembly.engine import retention_of
from app.commands import CommandFailed
from app.commands.open_store import opened_store
from app.commands.progress import Telling, counted, tell_interrupted
from app.conversations.erase.retention import Retention, Rule
from app.settings import Settings, load
from app.store.leases import LeaseKeeper

UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(slots=True)
class _Purged:
    """What has been done so far."""

    erased: int = 0
    """Or would be."""
    in_use: int = 0

    def __str__(self) -> str:
        return f"{counted(self.erased, 'conversation')} erased, {self.in_use:,} in use and left"


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    age = None if arguments.older_than is None else _age(arguments.older_than)
    done = _Purged()
    doing = "counting" if arguments.dry_run else "erasing"
    try:
        with Telling(doing, "conversations", quiet=arguments.quiet) as telling:
            asyncio.run(_purge(settings, age, arguments, telling, done))
    except KeyboardInterrupt:
        if not arguments.dry_run:
            tell_interrupted(f"{done}; the others are as they were. Run the command again for the rest.")
        raise
    if arguments.dry_run:
        print(f"{counted(done.erased, 'conversation')} would be erased.")
    elif not arguments.quiet:
        print(f"{done}.")
    return 0


async def _purge(
    settings: Settings, age: timedelta | None, arguments: argparse.Namespace, telling: Telling, done: _Purged
) -> None:
    async with opened_store(settings) as store:
        leases = LeaseKeeper(store, holder=uuid.uuid4().hex)
        retention = retention_of(settings, store, leases)
        leases.start()
        try:
            tenant = arguments.tenant
            rules = [Rule(_now() - age, tenant)] if age is not None else _of_tenant(await retention.rules(), tenant)
            if not (telling.quiet or arguments.dry_run):
                telling.expect(sum([await _count(retention, rule) for rule in rules]))
            for rule in rules:
                async for conversation in retention.old(rule):
                    if arguments.dry_run or await retention.erase(conversation, rule.before):
                        done.erased += 1
                    else:
                        done.in_use += 1
                    telling.advance()
            if not arguments.dry_run:
                telling.note("freeing the space")
                await store.purge_requests()
                await retention.purge_summaries()
                await store.scrub()
        finally:
            await leases.aclose()


async def _count(retention: Retention, rule: Rule) -> int:
    return len([None async for _ in retention.old(rule)])


def _of_tenant(rules: list[Rule], tenant: str | None) -> list[Rule]:
    """
    Raises:
        CommandFailed: no rule says how long anything is kept.
    """
    if tenant is not None:
        rules = [
            Rule(rule.before, tenant)
            for rule in rules
            if rule.tenant == tenant or (rule.tenant is None and tenant not in rule.others)
        ]
    if not rules:
        raise CommandFailed("nothing says how long conversations are kept; set `retention.days`, or give --older-than.")
    return rules


def _age(text: str) -> timedelta:
    """
    Raises:
        CommandFailed: it is no age such as `30d`.
    """
    parts = re.fullmatch(r"(\d{1,5})([mhdw])", text)
    if parts is None:
        raise CommandFailed(f"--older-than {text!r}: expected a number and one of m, h, d, w, such as 30d.")
    return timedelta(**{UNITS[parts.group(2)]: int(parts.group(1))})


def _now() -> datetime:
    return datetime.now(UTC)
