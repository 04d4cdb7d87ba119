"""`concertina verify`: checks whether the rows of a database agree with each other. It only reads, and may run beside
gateways."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import Any

from app.commands.progress import CommandProgress, pluralize, print_interruption
from app.context.count.token_counter import load_counter
from app.conversations.verification import DatabaseVerifier, VerificationFinding, VerificationReport
from app.errors import GatewayError
from app.settings import Settings, load_settings
from app.store.database_scan import open_database_scan
from app.store.encryption.cipher import Cipher
from app.store.encryption.sealed_fields import FieldSealer

EXIT_CLEAN, EXIT_FAULTS_FOUND, EXIT_COULD_NOT_VERIFY = 0, 1, 2


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    try:
        with CommandProgress("verifying", "messages", quiet=arguments.quiet) as progress:
            result = asyncio.run(_verify_database(settings, progress))
    except KeyboardInterrupt:
        print_interruption("Nothing was written; run the command again.")
        raise
    except (GatewayError, ValueError) as error:
        # Handled here and not in `app.__main__`, whose exit status 1 would mean that faults were found.
        print(f"concertina: {error}", file=sys.stderr)
        return EXIT_COULD_NOT_VERIFY
    if arguments.json:
        print(json.dumps(_result_to_json(result)))
    else:
        _print_findings(result)
        progress.print_line(f"{_format_totals(result)} verified in {progress.format_elapsed()}.")
    return EXIT_FAULTS_FOUND if result.faults else EXIT_CLEAN


async def _verify_database(settings: Settings, progress: CommandProgress) -> VerificationReport:
    cipher = Cipher(settings.encryption.key_bytes, settings.encryption.active)
    async with open_database_scan(settings.database.url.get_secret_value()) as audit:
        if not progress.is_quiet:
            counts = await audit.count_rows()
            progress.set_total(counts["messages"] + counts["chunks"])
        verification = DatabaseVerifier(
            audit, FieldSealer(cipher), counter_for=load_counter, now=datetime.now(UTC), on_progress=progress.advance
        )
        return await verification.run()


def _result_to_json(result: VerificationReport) -> dict[str, Any]:
    """Builds the output of `--json`. Its names do not follow the report's: scripts read them."""
    return {
        "conversations": result.conversations,
        "messages": result.messages,
        "chunks": result.chunks,
        "unreadable": result.unreadable_messages,
        "redacted": result.redacted_messages,
        "recounted_tokens": result.recounted_tokens,
        "miscounted": result.miscounted_messages,
        "reports": result.usage_reports,
        "reported_tokens": result.reported_tokens,
        "drift_tokens": result.drift_tokens,
        "findings": [_finding_to_json(finding) for finding in result.faults],
        "notices": [_finding_to_json(finding) for finding in result.notices],
        "kinds": result.counts_by_kind,
        "drift": round(result.drift_share, 6),
        "is_clean": not result.faults,
    }


def _finding_to_json(finding: VerificationFinding) -> dict[str, str]:
    return {"kind": finding.kind, "where": finding.subject_id, "told": finding.description}


def _print_findings(result: VerificationReport) -> None:
    for finding in result.faults:
        print(f"FAULT   {_format_finding(finding)}")
    for finding in result.notices:
        print(f"notice  {_format_finding(finding)}")
    listed = len(result.faults) + len(result.notices)
    more = sum(result.counts_by_kind.values()) - listed
    if more:
        print(f"… and {more:,} more of these kinds")
    if not result.faults:
        print("No faults.")


def _format_finding(finding: VerificationFinding) -> str:
    return f"{finding.kind}: {finding.subject_id}: {finding.description}"


def _format_totals(result: VerificationReport) -> str:
    parts = [
        pluralize(result.conversations, "conversation"),
        pluralize(result.messages, "message"),
        pluralize(result.chunks, "summary", "summaries"),
    ]
    return ", ".join(parts)
