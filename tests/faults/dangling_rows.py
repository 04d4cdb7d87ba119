"""Builds queries for rows that refer to a missing row. Each query returns two columns: the place, and a detail for the
description.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from app.store.sql.dialects import SQLITE, SqlDialect, Statement

LEASE_GRACE_SECONDS: Final = 300
"""The holder of a lease that ended longer ago than this has stopped without releasing it."""

COUNT_STATEMENTS: Final = {
    name: f"SELECT count(*) FROM {name}"
    for name in ("conversations", "messages", "client_versions", "chunks", "completions", "leases")
}

_NO_CONVERSATION: Final = """
    NOT EXISTS (SELECT 1 FROM conversations c WHERE c.root = {0}.root AND c.id = {0}.conversation_id)"""
_NO_MESSAGE: Final = """
    NOT EXISTS (SELECT 1 FROM messages m
                WHERE m.root = {0}.root AND m.conversation_id = {0}.conversation_id AND m.seq = {1}.seq)"""


@dataclass(frozen=True, slots=True)
class DanglingRow:
    """A row that refers to a missing row."""

    kind: str
    where: str
    description: str
    is_fault: bool = True
    """False: the row does no harm."""


@dataclass(frozen=True, slots=True)
class DanglingQuery:
    """Finds one kind of dangling rows. `description_template` has a place for the second column."""

    kind: str
    description_template: str
    sql: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_fault: bool = True

    def build_statement(self, dialect: SqlDialect) -> Statement:
        return dialect.build_statement(self.sql, **self.values)


def build_dangling_queries(dialect: SqlDialect, now: datetime) -> list[DanglingQuery]:
    """Builds all queries for one database.

    Args:
        now: finds leases that ended more than `LEASE_GRACE_SECONDS` before.
    """
    ended = dialect.encode_time(now - timedelta(seconds=LEASE_GRACE_SECONDS))
    return [
        *_SHARED_QUERIES,
        DanglingQuery(
            "lease",
            "a lease ended {} and was not given back: its holder is gone",
            "SELECT key, expires_at FROM leases WHERE expires_at < :ended ORDER BY root, key",
            {"ended": ended},
            is_fault=False,
        ),
        *(_SQLITE_QUERIES if dialect is SQLITE else _POSTGRES_QUERIES),
    ]


_SHARED_QUERIES: Final = (
    DanglingQuery(
        "messages",
        "messages of a conversation that is not there, from seq {} on",
        f"""
        SELECT m.conversation_id, min(m.seq) FROM messages m
        WHERE {_NO_CONVERSATION.format("m")} GROUP BY m.root, m.conversation_id""",
    ),
    DanglingQuery(
        "version",
        "what a client shows in place of message {} of a conversation that is not there",
        f"""
        SELECT v.conversation_id, min(v.seq) FROM client_versions v
        WHERE {_NO_CONVERSATION.format("v")} GROUP BY v.root, v.conversation_id""",
    ),
    DanglingQuery(
        "anchor",
        "{} names lead to a conversation that is not there",
        f"""
        SELECT a.conversation_id, count(*) FROM anchors a
        WHERE {_NO_CONVERSATION.format("a")} GROUP BY a.root, a.conversation_id""",
        is_fault=False,
    ),
    DanglingQuery(
        "fingerprint",
        "an answer was issued as its message {}, which is not there",
        f"""
        SELECT f.conversation_id, f.seq FROM fingerprints f
        WHERE f.conversation_id IS NOT NULL AND {_NO_MESSAGE.format("f", "f")}""",
        is_fault=False,
    ),
    DanglingQuery(
        "external id",
        "a client's id points at {}, which is not there or another tenant's",
        """
        SELECT e.external_id, e.conversation_id FROM external_ids e
        WHERE NOT EXISTS (SELECT 1 FROM conversations c
                          WHERE c.root = e.root AND c.id = e.conversation_id AND c.tenant = e.tenant)""",
    ),
    DanglingQuery(
        "external id",
        "it is called {!r} by its client, but that id points elsewhere",
        """
        SELECT c.id, c.external_id FROM conversations c
        WHERE c.external_id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM external_ids e
            WHERE e.tenant = c.tenant AND e.external_id = c.external_id AND e.conversation_id = c.id)""",
    ),
    DanglingQuery(
        "completion",
        "a stored completion stands in {}, which is not there or ends before it",
        """
        SELECT k.id, k.conversation_id FROM completions k
        WHERE NOT EXISTS (SELECT 1 FROM conversations c
                          WHERE c.root = k.root AND c.id = k.conversation_id AND c.head_seq >= k.seq)""",
    ),
    DanglingQuery(
        "revision",
        "revision {} is of a summary that is not there, or not older than it",
        """
        SELECT r.chunk_id, r.revision FROM chunk_revisions r
        WHERE NOT EXISTS (SELECT 1 FROM chunks k
                          WHERE k.root = r.root AND k.id = r.chunk_id AND k.tenant = r.tenant
                            AND k.revision > r.revision)""",
    ),
    DanglingQuery(
        "request key",
        "an idempotency key was answered in {}, which is not there or ends before it: a repetition is answered anew",
        """
        SELECT k.key, k.conversation_id FROM request_keys k
        WHERE k.state = 'done' AND NOT EXISTS (
            SELECT 1 FROM conversations c WHERE c.id = k.conversation_id AND c.root = substr(k.conversation_id, 6, 16)
               AND c.tenant = k.tenant AND c.head_seq >= k.seq)""",
        is_fault=False,
    ),
    DanglingQuery(
        "index",
        "words of {} are indexed, which is not there",
        f"SELECT t.scope, t.conversation_id FROM tenant_scopes t WHERE {_NO_CONVERSATION.format('t')}",
    ),
    DanglingQuery(
        "index",
        "a word of a conversation is indexed that its tenant has not: {}",
        """
        SELECT DISTINCT p.scope, p.scope FROM tenant_postings p
        WHERE NOT EXISTS (SELECT 1 FROM tenant_scopes t
                          WHERE t.tenant_scope = p.tenant_scope AND t.scope = p.scope)""",
    ),
)
_SQLITE_QUERIES: Final = (
    DanglingQuery(
        "index",
        "words of its message {} are indexed, which is not there",
        f"""
        SELECT DISTINCT t.conversation_id, p.seq FROM tenant_scopes t CROSS JOIN postings p ON p.scope = t.scope
        WHERE {_NO_MESSAGE.format("t", "p")}""",
    ),
    DanglingQuery(
        "index",
        "words of an unknown conversation are indexed: {}",
        """
        SELECT DISTINCT p.scope, p.scope FROM postings p
        WHERE NOT EXISTS (SELECT 1 FROM tenant_scopes t WHERE t.scope = p.scope)""",
    ),
)
_POSTGRES_QUERIES: Final = (
    DanglingQuery(
        "index",
        "words of its message {} are indexed, which is not there",
        f"SELECT w.conversation_id, w.seq FROM message_terms w WHERE {_NO_MESSAGE.format('w', 'w')}",
    ),
)
