"""`concertina purge`: erase old conversations now, by the configured rules or by age."""

from __future__ import annotations

import argparse
import asyncio
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

from app.archive.retention import Rule
from app.assembly.engine import retention_of
from app.commands import CommandFailed
from app.commands.opened import opened_store
from app.settings import Settings, load
from app.store.leases import LeaseKeeper

UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    age = None if arguments.older_than is None else _age(arguments.older_than)
    found, in_use = asyncio.run(_purge(settings, age, arguments.tenant, is_dry=arguments.dry_run))
    if arguments.dry_run:
        print(f"{found} conversations would be erased.")
    else:
        print(f"{found} conversations erased, {in_use} in use and left.")
    return 0


async def _purge(settings: Settings, age: timedelta | None, tenant: str | None, *, is_dry: bool) -> tuple[int, int]:
    """How many were erased, or would be, and how many were in use."""
    async with opened_store(settings) as store:
        leases = LeaseKeeper(store, holder=uuid.uuid4().hex)
        retention = retention_of(settings, store, leases)
        leases.start()
        try:
            rules = [Rule(_now() - age, tenant)] if age is not None else _of_tenant(await retention.rules(), tenant)
            erased = in_use = 0
            for rule in rules:
                async for conversation in retention.old(rule):
                    if is_dry or await retention.erase(conversation, rule.before):
                        erased += 1
                    else:
                        in_use += 1
            if not is_dry:
                await store.purge_requests()
                await store.scrub()
            return erased, in_use
        finally:
            await leases.aclose()


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
