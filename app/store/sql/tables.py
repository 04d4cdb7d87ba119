"""The tables after the newest migration, for SQLite and PostgreSQL.

Keys of tables that belong to a family of branches begin with its `root`, so that a distributed PostgreSQL can keep a
family on one shard (`root` as the distribution column): no foreign keys across shards, no sequences. Tables that are
searched by tenant (`external_ids`, `completions`, `request_keys`, the tenant-wide search index) or by neither
(`anchors`, `fingerprints`, `api_keys`, `usage_totals`, `budget_reservations`, `rate_counts`,
`requests`, `server_secrets`, `model_facts`) are exceptions.

Message bodies and other JSON are TEXT; the database never re-encodes them. Times are UTC: timestamptz on PostgreSQL,
ISO-8601 text with microseconds on SQLite, where text order is time order.

After a change, run `python tools/write_schema.py`: it writes the DDL for empty databases.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

DIALECT_INFO_KEY: Final = "only_on"
"""`Table.info`: the one dialect that has the table. The search index differs between dialects
(`store.search.term_ranking`).
"""

metadata = MetaData()

TIME_TYPE: Final[TypeEngine[Any]] = Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")

conversations = Table(
    "conversations",
    metadata,
    Column("root", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("head_seq", Integer, nullable=False),
    Column("head_link", LargeBinary(16), nullable=False),
    Column("head_skeleton", LargeBinary(16), nullable=False),
    Column("head_tokens_total", BigInteger, nullable=False),
    Column("answered", Boolean, nullable=False),
    Column("encoding", Text, nullable=False),
    Column("lineage", Text, nullable=False),
    Column("external_id", Text),
    Column("mode", Text, nullable=False),
    Column("chunk_count", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", TIME_TYPE, nullable=False),
    Column("updated_at", TIME_TYPE, nullable=False),
    Column("marks", Text, nullable=False, server_default="{}"),
    Column("indexed_before", Integer, nullable=False, server_default="0"),
    PrimaryKeyConstraint("root", "id", name="conversations_pkey"),
    # No column that a turn changes may be in an index: PostgreSQL could then not update the row in place (HOT update).
    Index("conversations_listed", "tenant", "created_at", "id"),
)

external_ids = Table(
    "external_ids",
    metadata,
    Column("tenant", Text, nullable=False),
    Column("external_id", Text, nullable=False),
    Column("root", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    PrimaryKeyConstraint("tenant", "external_id", name="external_ids_pkey"),
    Index("external_ids_conversation", "root", "conversation_id"),
)

messages = Table(
    "messages",
    metadata,
    Column("root", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("body", Text, nullable=False),
    Column("link", LargeBinary(16), nullable=False),
    Column("skeleton", LargeBinary(16), nullable=False),
    Column("in_skeleton", Boolean, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("tokens_total", BigInteger, nullable=False),
    Column("answered", Boolean, nullable=False),
    Column("incomplete", Boolean, nullable=False),
    Column("created_at", TIME_TYPE, nullable=False),
    Column("meta", Text),
    PrimaryKeyConstraint("root", "conversation_id", "seq", name="messages_pkey"),
    # `answered` is part of the key: thousands of conversations may begin with the same greeting, and unanswered ones
    # are then skipped without reading their rows.
    Index("messages_link", "root", "link", "answered", "conversation_id"),
    Index(
        "messages_skeleton",
        "root",
        "skeleton",
        "answered",
        "conversation_id",
        sqlite_where=text("in_skeleton = 1"),
        postgresql_where=text("in_skeleton"),
    ),
)

client_versions = Table(
    "client_versions",
    metadata,
    Column("root", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("since_seq", Integer, nullable=False),
    Column("to_seq", Integer, nullable=False),
    Column("bodies", Text),
    Column("tokens_delta", Integer, nullable=False),
    PrimaryKeyConstraint("root", "conversation_id", "since_seq", "seq", name="client_versions_pkey"),
    sqlite_with_rowid=False,
)
"""What clients show in place of log messages. The log keeps the originals."""

anchors = Table(
    "anchors",
    metadata,
    Column("digest", LargeBinary(16), nullable=False),
    Column("root", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("kept_at", TIME_TYPE, nullable=False),
    PrimaryKeyConstraint("digest", "root", "conversation_id", "seq", name="anchors_pkey"),
    Index("anchors_conversation", "root", "conversation_id"),
    sqlite_with_rowid=False,
)
"""Digests by which conversations are found whose clients rewrite their histories."""

fingerprints = Table(
    "fingerprints",
    metadata,
    Column("digest", LargeBinary(16), nullable=False),
    Column("root", Text),
    Column("conversation_id", Text),
    Column("seq", Integer),
    PrimaryKeyConstraint("digest", name="fingerprints_pkey"),
    Index(
        "fingerprints_place",
        "root",
        "conversation_id",
        sqlite_where=text("conversation_id IS NOT NULL"),
        postgresql_where=text("conversation_id IS NOT NULL"),
    ),
    sqlite_with_rowid=False,
)
"""Fingerprints of all answers that the gateway gave, each with its only place. Without a place, it is spent."""

chunks = Table(
    "chunks",
    metadata,
    Column("root", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("from_seq", Integer, nullable=False),
    Column("to_seq", Integer, nullable=False),
    Column("from_link", LargeBinary(16), nullable=False),
    Column("to_link", LargeBinary(16), nullable=False),
    # Not written any more; rows of earlier versions have a link of the skeleton here.
    Column("to_skeleton", LargeBinary(16)),
    Column("text", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("tokens_total", BigInteger, nullable=False),
    Column("anchor_seq", Integer),
    Column("anchor_tokens", Integer, nullable=False),
    Column("through_turn", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("prompt_version", Text, nullable=False),
    Column("created_at", TIME_TYPE, nullable=False),
    Column("folds", Text, nullable=False),
    Column("is_fold", Boolean, nullable=False),
    Column("duration_ms", Integer, nullable=False),
    Column("usage", Text),
    Column("revision", Integer, nullable=False, server_default="1"),
    Column("versions_digest", LargeBinary(16), nullable=False, server_default=text("''")),
    PrimaryKeyConstraint("root", "id", name="chunks_pkey"),
    # One summary for each range, kind and state of the client's changes, which `from_link` names, too
    # (`rows.mask_from_link`): two processes that summarize the same range at once store one.
    Index("chunks_range", "root", "from_link", "to_link", "is_fold", unique=True),
    Index("chunks_end", "root", "to_link"),
)

chunk_revisions = Table(
    "chunk_revisions",
    metadata,
    Column("root", Text, nullable=False),
    Column("chunk_id", Text, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("prompt_version", Text, nullable=False),
    Column("created_at", TIME_TYPE, nullable=False),
    Column("duration_ms", Integer, nullable=False),
    Column("usage", Text),
    PrimaryKeyConstraint("root", "chunk_id", "revision", name="chunk_revisions_pkey"),
)
"""Earlier texts of summaries; the present text is in `chunks`."""

message_terms = Table(
    "message_terms",
    metadata,
    Column("root", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("terms", postgresql.ARRAY(BigInteger), nullable=False),
    PrimaryKeyConstraint("root", "conversation_id", "seq", name="message_terms_pkey"),
    # A short list of pending entries: each search goes through it, whoever wrote them; without one, writing takes
    # several times as long.
    Index(
        "message_terms_terms",
        "terms",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "on", "gin_pending_list_limit": 128},
    ),
    info={DIALECT_INFO_KEY: "postgresql"},
)

postings = Table(
    "postings",
    metadata,
    Column("scope", BigInteger, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("seq", Integer, nullable=False),
    PrimaryKeyConstraint("scope", "term", "seq", name="postings_pkey"),
    sqlite_with_rowid=False,
    info={DIALECT_INFO_KEY: "sqlite"},
)

tenant_postings = Table(
    "tenant_postings",
    metadata,
    Column("tenant_scope", BigInteger, nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("scope", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant_scope", "term", "scope", name="tenant_postings_pkey"),
    sqlite_with_rowid=False,
)
"""Which conversations have a term in any of their messages."""

tenant_scopes = Table(
    "tenant_scopes",
    metadata,
    Column("tenant_scope", BigInteger, nullable=False),
    Column("scope", BigInteger, nullable=False),
    Column("root", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    PrimaryKeyConstraint("tenant_scope", "scope", name="tenant_scopes_pkey"),
    sqlite_with_rowid=False,
)
"""The conversations that have any term in the search index."""

message_vectors = Table(
    "message_vectors",
    metadata,
    Column("root", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("link", LargeBinary(16), nullable=False),
    Column("vectors", LargeBinary, nullable=False),
    PrimaryKeyConstraint("root", "conversation_id", "model", "seq", name="message_vectors_pkey"),
)
"""What the passages of messages mean, as vectors of an embedding model (`context.quote.meaning`)."""

completions = Table(
    "completions",
    metadata,
    Column("tenant", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("root", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("model", Text, nullable=False),
    Column("created_at", TIME_TYPE, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("parameters", Text, nullable=False),
    Column("instructions", Text, nullable=False),
    PrimaryKeyConstraint("tenant", "id", name="completions_pkey"),
    Index("completions_listed", "tenant", "created_at", "id"),
    Index("completions_conversation", "root", "conversation_id"),
)

request_keys = Table(
    "request_keys",
    metadata,
    Column("tenant", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("holder", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("conversation_id", Text),
    Column("seq", Integer),
    Column("kept_seconds", Integer, nullable=False),
    Column("expires_at", TIME_TYPE, nullable=False),
    PrimaryKeyConstraint("tenant", "key", name="request_keys_pkey"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("hint", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", TIME_TYPE, nullable=False),
    Column("policy", Text),
    Column("models", Text, nullable=False),
    Column("retention_days", Integer),
    Column("expires_at", TIME_TYPE),
    Column("revoked_at", TIME_TYPE),
    Column("budget_usd", Double),
    Column("pass_through", Text),
    Column("requests_per_minute", Integer),
    Column("tokens_per_minute", Integer),
    PrimaryKeyConstraint("id", name="api_keys_pkey"),
    Index("api_keys_digest", "digest", unique=True),
)

usage_totals = Table(
    "usage_totals",
    metadata,
    Column("tenant", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("day", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("unpriced_calls", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cost_usd", Double, nullable=False),
    PrimaryKeyConstraint("key_id", "day", "tenant", "model", name="usage_totals_pkey"),
    sqlite_with_rowid=False,
)
"""Sums that every process adds to every few seconds (`store.usage_recorder`)."""

budget_reservations = Table(
    "budget_reservations",
    metadata,
    Column("id", Text, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("usd", Double, nullable=False),
    Column("expires_at", TIME_TYPE, nullable=False),
    PrimaryKeyConstraint("id", name="budget_reservations_pkey"),
    Index("budget_reservations_key", "key_id"),
)
"""What running calls of keys with a budget may cost."""

rate_counts = Table(
    "rate_counts",
    metadata,
    Column("scope", Text, nullable=False),
    Column("second", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    PrimaryKeyConstraint("scope", "second", name="rate_counts_pkey"),
    sqlite_with_rowid=False,
)
"""Calls of the last minute by the second in which they began, for rate limits."""

requests = Table(
    "requests",
    metadata,
    Column("id", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("duration_ms", Double, nullable=False),
    Column("status", Integer, nullable=False),
    Column("error", Text),
    Column("tenant", Text),
    Column("key_id", Text),
    Column("model", Text),
    Column("answered_by", Text),
    Column("provider", Text),
    Column("context_status", Text),
    Column("conversation_id", Text),
    Column("record", Text, nullable=False),
    PrimaryKeyConstraint("id", name="requests_pkey"),
    Index("requests_listed", "started_at", "id"),
    Index("requests_conversation", "conversation_id"),
)
"""Model calls that have ended, without content (`store.request_history`)."""

server_secrets = Table(
    "server_secrets",
    metadata,
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False),
    PrimaryKeyConstraint("name", name="server_secrets_pkey"),
)

tombstones = Table(
    "tombstones",
    metadata,
    Column("root", Text, nullable=False),
    Column("family_id", Text, nullable=False),
    Column("erased_at", TIME_TYPE, nullable=False),
    PrimaryKeyConstraint("root", "family_id", name="tombstones_pkey"),
    sqlite_with_rowid=False,
)
"""When words of a conversation or of its branches were erased last: older capsules of it give no content."""

leases = Table(
    "leases",
    metadata,
    Column("root", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", TIME_TYPE, nullable=False),
    PrimaryKeyConstraint("root", "key", name="leases_pkey"),
)

model_facts = Table(
    "model_facts",
    metadata,
    Column("model", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("updated_at", TIME_TYPE, nullable=False),
    PrimaryKeyConstraint("model", name="model_facts_pkey"),
)


def is_table_in_dialect(table: Table, dialect: str) -> bool:
    """Whether a dialect has the table."""
    return bool(table.info.get(DIALECT_INFO_KEY, dialect) == dialect)
