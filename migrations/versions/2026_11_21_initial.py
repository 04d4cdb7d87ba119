"""Conversations, their messages, chunks and leases; clients' own ids; what is learned of models."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

revision = "2026_11_21_initial"
down_revision = None
branch_labels = None
depends_on = None

MOMENT: TypeEngine[Any] = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("head_seq", sa.Integer, nullable=False),
        sa.Column("head_link", sa.LargeBinary(16), nullable=False),
        sa.Column("head_skeleton", sa.LargeBinary(16), nullable=False),
        sa.Column("head_tokens_total", sa.BigInteger, nullable=False),
        sa.Column("answered", sa.Boolean, nullable=False),
        sa.Column("encoding", sa.Text, nullable=False),
        sa.Column("lineage", sa.Text, nullable=False),
        sa.Column("external_id", sa.Text),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("chunk_count", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("root", "id", name="conversations_pkey"),
    )
    op.create_table(
        "external_ids",
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("external_id", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "external_id", name="external_ids_pkey"),
    )
    op.create_index("external_ids_conversation", "external_ids", ["root", "conversation_id"])
    op.create_table(
        "messages",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("link", sa.LargeBinary(16), nullable=False),
        sa.Column("skeleton", sa.LargeBinary(16), nullable=False),
        sa.Column("in_skeleton", sa.Boolean, nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.Column("tokens_total", sa.BigInteger, nullable=False),
        sa.Column("answered", sa.Boolean, nullable=False),
        sa.Column("incomplete", sa.Boolean, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("meta", sa.Text),
        sa.PrimaryKeyConstraint("root", "conversation_id", "seq", name="messages_pkey"),
    )
    op.create_index("messages_link", "messages", ["root", "link", "answered", "conversation_id"])
    op.create_index(
        "messages_skeleton",
        "messages",
        ["root", "skeleton", "answered", "conversation_id"],
        sqlite_where=sa.text("in_skeleton = 1"),
        postgresql_where=sa.text("in_skeleton"),
    )
    op.create_table(
        "chunks",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("from_seq", sa.Integer, nullable=False),
        sa.Column("to_seq", sa.Integer, nullable=False),
        sa.Column("from_link", sa.LargeBinary(16), nullable=False),
        sa.Column("to_link", sa.LargeBinary(16), nullable=False),
        sa.Column("to_skeleton", sa.LargeBinary(16)),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.Column("tokens_total", sa.BigInteger, nullable=False),
        sa.Column("anchor_seq", sa.Integer),
        sa.Column("anchor_tokens", sa.Integer, nullable=False),
        sa.Column("through_turn", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("prompt_version", sa.Text, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("folds", sa.Text, nullable=False),
        sa.Column("is_fold", sa.Boolean, nullable=False),
        sa.Column("duration_ms", sa.Integer, nullable=False),
        sa.Column("usage", sa.Text),
        sa.PrimaryKeyConstraint("root", "id", name="chunks_pkey"),
    )
    op.create_index("chunks_range", "chunks", ["root", "from_link", "to_link", "is_fold"], unique=True)
    op.create_index("chunks_end", "chunks", ["root", "to_link"])
    op.create_table(
        "leases",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("root", "key", name="leases_pkey"),
    )
    op.create_table(
        "model_facts",
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("facts", sa.Text, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("model", name="model_facts_pkey"),
    )


def downgrade() -> None:
    for table in ("model_facts", "leases", "chunks", "messages", "external_ids", "conversations"):
        op.drop_table(table)
