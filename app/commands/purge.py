"""`concertina purge`: erases old conversations now, by the configured rules or by age."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import difflib
import uuid
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from app.assembly.gateway import build_retention_sweeper
from app.commands import CommandError, parse_duration
from app.commands.configured_store import open_configured_store
from app.commands.progress import CommandProgress, pluralize
from app.conversation.api_keys import belongs_to_tenant
from app.conversations.erase.retention_sweeper import RetentionRule
from app.settings import Settings, load_settings
from app.store.contract.conversations import ConversationQuery, ConversationStore
from app.store.contract.keys import KeyStore
from app.store.contract.requests import RequestQuery, RequestStore
from app.store.contract.usage import UsageQuery, UsageStore
from app.store.leases import LeaseKeeper


@dataclass(slots=True)
class _PurgeCounts:
    """What has been done so far."""

    erased: int = 0
    """Conversations that are erased, or would be without `--dry-run`."""
    in_use: int = 0
    """Conversations that are old enough, but in use; they are left."""

    def __str__(self) -> str:
        return f"{pluralize(self.erased, 'conversation')} erased, {self.in_use:,} in use and left"


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    counts = _PurgeCounts()
    progress = CommandProgress(
        "counting" if arguments.dry_run else "erasing",
        "conversations",
        quiet=arguments.quiet,
        describe_interruption=lambda: f"{counts}; the others are unchanged. Run the command again for the rest.",
    )
    with progress:
        asyncio.run(_purge_conversations(settings, arguments, progress, counts))
    if arguments.dry_run:
        print(f"{pluralize(counts.erased, 'conversation')} would be erased.")
    elif not arguments.quiet:
        print(f"{counts}.")
    return 0


async def _purge_conversations(
    settings: Settings, arguments: argparse.Namespace, progress: CommandProgress, counts: _PurgeCounts
) -> None:
    # An age on the command line replaces the configured rules, also for tenants whose keys have a retention.
    before = None
    if arguments.older_than is not None:
        before = datetime.now(UTC) - parse_duration("--older-than", arguments.older_than)
    async with (
        open_configured_store(settings) as store,
        aclosing(LeaseKeeper(store, holder=uuid.uuid4().hex)) as leases,
    ):
        retention_sweeper = build_retention_sweeper(settings, store, leases)
        leases.start()
        tenant = arguments.tenant
        if tenant is not None:
            await _require_tenant(tenant, store, store, store, store)
        rules = (
            [RetentionRule(before, tenant)]
            if before is not None
            else _select_retention_rules(await retention_sweeper.read_retention_rules(), tenant)
        )
        if arguments.dry_run or not progress.is_quiet:
            # A set: two rules may select a conversation that is kept for continuing only.
            expired = {
                (one.tenant, one.id)
                for rule in rules
                async for one in retention_sweeper.stream_expired_conversations(rule)
            }
            progress.set_total(len(expired))
        if arguments.dry_run:
            counts.erased = len(expired)
            return
        for rule in rules:
            async for conversation in retention_sweeper.stream_expired_conversations(rule):
                if before is not None:  # somebody wants these words gone, and not only the rules of retention
                    await store.add_tombstone(root=conversation.root, family_id=conversation.family_id)
                if await retention_sweeper.erase_unless_in_use(conversation, rule.untouched_since):
                    counts.erased += 1
                else:
                    counts.in_use += 1
                progress.advance()
        progress.set_note("freeing the space")
        await store.purge_idempotency_keys()
        if before is not None and tenant is not None:
            # Of the last day, too: there are no sums of hours.
            before_day = (before + timedelta(days=1)).date().isoformat()
            await store.purge_usage(before_day=before_day, tenant=tenant)
            await store.purge_requests(before=before.timestamp(), tenant=tenant)
        await retention_sweeper.purge_requests()
        await retention_sweeper.purge_stray_summaries()
        # Last: it rewrites SQLite's file without the rows that were deleted before.
        await store.scrub_deleted_data()


async def _require_tenant(
    tenant: str, conversations: ConversationStore, keys: KeyStore, usage: UsageStore, requests: RequestStore
) -> None:
    """Refuses a tenant of which the store has nothing: its name is misspelt, or it is erased already.

    Raises:
        CommandError: no conversation, no request, no key and no sum of costs is of the tenant.
    """
    query = ConversationQuery(limit=1, with_derived_tenants=True)
    if await conversations.list_conversations(tenant=tenant, query=query):
        return
    if await requests.list_requests(RequestQuery(limit=1, tenant=tenant)):
        return
    names = {key.tenant for key in await keys.list_api_keys()}
    names |= {total.tenant for total in await usage.sum_usage(UsageQuery("", "tenant"))}
    if not any(belongs_to_tenant(name, tenant) for name in names):
        similar = ", ".join(map(repr, difflib.get_close_matches(tenant, sorted(names))))
        raise CommandError(
            f"nothing is stored of a tenant {tenant!r}, so nothing was erased."
            + (f" Did you mean {similar}?" if similar else "")
        )


def _select_retention_rules(rules: list[RetentionRule], tenant: str | None) -> list[RetentionRule]:
    """Returns the rules that apply to a tenant (None: all rules), limited to that tenant.

    Raises:
        CommandError: no rule applies.
    """
    if tenant is not None:
        rules = [
            # A rule for a part of the tenant, such as one end user, stays as it is.
            rule if belongs_to_tenant(rule.tenant or "", tenant) else dataclasses.replace(rule, tenant=tenant)
            for rule in rules
            if belongs_to_tenant(rule.tenant or "", tenant)
            or ((rule.tenant is None or belongs_to_tenant(tenant, rule.tenant)) and not rule.excludes(tenant))
        ]
    if all(rule.is_context_only for rule in rules):
        raise CommandError("no retention time is configured; set `retention.days`, or give --older-than.")
    return rules
