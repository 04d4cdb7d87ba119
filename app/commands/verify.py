"""`concertina verify`: checks whether the rows of a database agree with each other. It only reads, and may run beside
gateways."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import Any

from app.commands import CommandError
from app.commands.configured_store import require_database
from app.commands.progress import CommandProgress, pluralize, print_interruption
from app.context.count.token_counter import load_token_counter
from app.conversations.verification import DatabaseVerifier, VerificationFinding, VerificationReport
from app.errors import GatewayError
from app.settings import Settings, load_settings
from app.store.database_snapshot import open_database_snapshot
from app.store.encryption.cipher import Cipher
from app.store.encryption.sealed_fields import FieldSealer

EXIT_CLEAN, EXIT_FAULTS_FOUND, EXIT_COULD_NOT_VERIFY = 0, 1, 2


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    try:
        with CommandProgress("verifying", "messages", quiet=arguments.quiet) as progress:
            report = asyncio.run(_verify_database(settings, progress))
    except KeyboardInterrupt:
        print_interruption("Nothing was written; run the command again.")
        raise
    except (CommandError, GatewayError, ValueError) as error:
        # Handled here and not in `app.__main__`, whose exit status 1 would mean that faults were found.
        print(f"concertina: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_VERIFY
    if arguments.json:
        print(json.dumps(_report_to_json(report)))
    else:
        _print_findings(report)
        progress.print_line(f"{_format_verified_totals(report)} verified in {progress.format_elapsed()}.")
    return EXIT_FAULTS_FOUND if report.faults else EXIT_CLEAN


async def _verify_database(settings: Settings, progress: CommandProgress) -> VerificationReport:
    require_database(settings)
    cipher = Cipher(settings.encryption.key_bytes, settings.encryption.active)
    async with open_database_snapshot(settings.database.url.get_secret_value()) as snapshot:
        if not progress.is_quiet:
            counts = await snapshot.count_rows()
            progress.set_total(counts["messages"] + counts["chunks"])
        verifier = DatabaseVerifier(
            snapshot,
            FieldSealer(cipher),
            counter_for=load_token_counter,
            now=datetime.now(UTC),
            on_progress=progress.advance,
        )
        return await verifier.run()


def _report_to_json(report: VerificationReport) -> dict[str, Any]:
    """Builds the output of `--json`. Its names do not follow the report's: scripts read them."""
    return {
        "conversations": report.conversations,
        "messages": report.messages,
        "chunks": report.chunks,
        "unreadable": report.unreadable_messages,
        "redacted": report.redacted_messages,
        "recounted_tokens": report.recounted_tokens,
        "miscounted": report.miscounted_messages,
        "reports": report.usage_reports,
        "reported_tokens": report.reported_tokens,
        "drift_tokens": report.drift_tokens,
        "findings": [_finding_to_json(finding) for finding in report.faults],
        "notices": [_finding_to_json(finding) for finding in report.notices],
        "kinds": report.counts_by_kind,
        "drift": round(report.drift_share, 6),
        "is_clean": not report.faults,
    }


def _finding_to_json(finding: VerificationFinding) -> dict[str, str]:
    return {"kind": finding.kind, "where": finding.subject_id, "told": finding.description}


def _print_findings(report: VerificationReport) -> None:
    for finding in report.faults:
        print(f"FAULT   {_format_finding(finding)}")
    for finding in report.notices:
        print(f"notice  {_format_finding(finding)}")
    listed_count = len(report.faults) + len(report.notices)
    unlisted_count = sum(report.counts_by_kind.values()) - listed_count
    if unlisted_count:
        print(f"… and {unlisted_count:,} more of these kinds")
    if not report.faults:
        print("No faults.")


def _format_finding(finding: VerificationFinding) -> str:
    return f"{finding.kind}: {finding.subject_id}: {finding.description}"


def _format_verified_totals(report: VerificationReport) -> str:
    parts = [
        pluralize(report.conversations, "conversation"),
        pluralize(report.messages, "message"),
        pluralize(report.chunks, "summary", "summaries"),
    ]
    return ", ".join(parts)
