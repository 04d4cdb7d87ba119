"""What conversations are as a resource: marks on them, revisions of their summaries, stored completions, keys.

Pins move out of `state`, where an answer that was under way could put back what was there before. All conversations
are indexed again when they are next searched, so that they are found among all of a tenant's too.
"""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

revision = "2026_11_23_conversation_records"
down_revision = "2026_11_22_find_messages"
branch_labels = None
depends_on = None

MOMENT: TypeEngine[Any] = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.add_column("conversations", sa.Column("marks", sa.Text, nullable=False, server_default="{}"))
    op.add_column("conversations", sa.Column("indexed_before", sa.Integer, nullable=False, server_default="0"))
    op.create_index("conversations_listed", "conversations", ["tenant", "created_at", "id"])
    op.add_column("chunks", sa.Column("revision", sa.Integer, nullable=False, server_default="1"))
    op.create_table(
        "chunk_revisions",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("chunk_id", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("tokens", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("prompt_version", sa.Text, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("duration_ms", sa.Integer, nullable=False),
        sa.Column("usage", sa.Text),
        sa.PrimaryKeyConstraint("root", "chunk_id", "revision", name="chunk_revisions_pkey"),
    )
    op.create_table(
        "tenant_postings",
        sa.Column("tenant_scope", sa.BigInteger, nullable=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("scope", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant_scope", "term", "scope", name="tenant_postings_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tenant_scopes",
        sa.Column("tenant_scope", sa.BigInteger, nullable=False),
        sa.Column("scope", sa.BigInteger, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant_scope", "scope", name="tenant_scopes_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "completions",
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("parameters", sa.Text, nullable=False),
        sa.Column("instructions", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="completions_pkey"),
    )
    op.create_index("completions_listed", "completions", ["tenant", "created_at", "id"])
    op.create_index("completions_conversation", "completions", ["root", "conversation_id"])
    op.create_table(
        "request_keys",
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text),
        sa.Column("seq", sa.Integer),
        sa.Column("kept_seconds", sa.Integer, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="request_keys_pkey"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("hint", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("scopes", sa.Text, nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("policy", sa.Text),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("retention_days", sa.Integer),
        sa.Column("expires_at", MOMENT),
        sa.Column("revoked_at", MOMENT),
        sa.PrimaryKeyConstraint("id", name="api_keys_pkey"),
    )
    op.create_index("api_keys_digest", "api_keys", ["digest"], unique=True)
    op.create_table(
        "server_secrets",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="server_secrets_pkey"),
    )
    _move_pins()


def _move_pins() -> None:
    database = op.get_bind()
    conversations = sa.table(
        "conversations", sa.column("root"), sa.column("id"), sa.column("state"), sa.column("marks")
    )
    held = sa.or_(conversations.c.state.like('%"pins"%'), conversations.c.state.like('%"indexed"%'))
    chosen = sa.select(conversations.c.root, conversations.c.id, conversations.c.state).where(held)
    change = (
        sa.update(conversations)
        .where(conversations.c.root == sa.bindparam("of_root"), conversations.c.id == sa.bindparam("of_id"))
        .values(state=sa.bindparam("new_state"), marks=sa.bindparam("new_marks"))
    )
    changes = []
    for root, conversation_id, text in database.execute(chosen).all():
        state = orjson.loads(text)
        state.pop("indexed", None)
        pins = state.pop("pins", None)
        changes.append(
            {
                "of_root": root,
                "of_id": conversation_id,
                "new_state": orjson.dumps(state).decode(),
                "new_marks": orjson.dumps({"pins": pins} if pins else {}).decode(),
            }
        )
    if changes:
        database.execute(change, changes)


def downgrade() -> None:
    for table in (
        "server_secrets",
        "api_keys",
        "request_keys",
        "completions",
        "tenant_scopes",
        "tenant_postings",
        "chunk_revisions",
    ):
        op.drop_table(table)
    op.drop_column("chunks", "revision")
    op.drop_index("conversations_listed", "conversations")
    op.drop_column("conversations", "indexed_before")
    op.drop_column("conversations", "marks")
