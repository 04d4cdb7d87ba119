"""What clients show in the place of log messages, and names by which their conversations are found."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeEngine

revision = "2026_11_24_client_versions"
down_revision = "2026_11_23_conversation_records"
branch_labels = None
depends_on = None

MOMENT: TypeEngine[Any] = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "client_versions",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("since_seq", sa.Integer, nullable=False),
        sa.Column("to_seq", sa.Integer, nullable=False),
        sa.Column("bodies", sa.Text),
        sa.Column("tokens_delta", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("root", "conversation_id", "since_seq", "seq", name="client_versions_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "anchors",
        sa.Column("digest", sa.LargeBinary(16), nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("kept_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("digest", "root", "conversation_id", "seq", name="anchors_pkey"),
        sqlite_with_rowid=False,
    )
    op.create_index("anchors_conversation", "anchors", ["root", "conversation_id"])


def downgrade() -> None:
    op.drop_table("anchors")
    op.drop_table("client_versions")
