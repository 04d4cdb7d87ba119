"""The index by whose words old messages are found. It fills by itself, as conversations go on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_22_find_messages"
down_revision = "2026_11_21_initial"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.create_table(
            "postings",
            sa.Column("scope", sa.BigInteger, nullable=False),
            sa.Column("term", sa.BigInteger, nullable=False),
            sa.Column("seq", sa.Integer, nullable=False),
            sa.PrimaryKeyConstraint("scope", "term", "seq", name="postings_pkey"),
            sqlite_with_rowid=False,
        )
        return
    op.create_table(
        "message_terms",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("terms", postgresql.ARRAY(sa.BigInteger), nullable=False),
        sa.PrimaryKeyConstraint("root", "conversation_id", "seq", name="message_terms_pkey"),
    )
    op.create_index(
        "message_terms_terms",
        "message_terms",
        ["terms"],
        postgresql_using="gin",
        postgresql_with={"fastupdate": "on", "gin_pending_list_limit": 128},
    )


def downgrade() -> None:
    op.drop_table("postings" if op.get_bind().dialect.name == "sqlite" else "message_terms")
