"""Tombstones: when words of a conversation were erased, so that older capsules of it give no content."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_12_01_tombstones"
down_revision = "2026_11_30_requests"
branch_labels = None
depends_on = None

TIME_TYPE = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "tombstones",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("family_id", sa.Text, nullable=False),
        sa.Column("erased_at", TIME_TYPE, nullable=False),
        sa.PrimaryKeyConstraint("root", "family_id", name="tombstones_pkey"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("tombstones")
