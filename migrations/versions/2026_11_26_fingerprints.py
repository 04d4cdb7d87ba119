"""Fingerprints of answers, by which a request without an id is assigned to its conversation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_26_fingerprints"
down_revision = "2026_11_25_usage_totals"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fingerprints",
        sa.Column("digest", sa.LargeBinary(16), nullable=False),
        sa.Column("root", sa.Text),
        sa.Column("conversation_id", sa.Text),
        sa.Column("seq", sa.Integer),
        sa.PrimaryKeyConstraint("digest", name="fingerprints_pkey"),
        sqlite_with_rowid=False,
    )
    has_place = sa.text("conversation_id IS NOT NULL")
    op.create_index(
        "fingerprints_place",
        "fingerprints",
        ["root", "conversation_id"],
        sqlite_where=has_place,
        postgresql_where=has_place,
    )


def downgrade() -> None:
    op.drop_table("fingerprints")
