"""Reservations of budgets, counts of rates, and limits of keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "2026_11_28_limits"
down_revision = "2026_11_27_summaries_of_versions"
branch_labels = None
depends_on = None

TIME_TYPE = sa.Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
KEY_COLUMNS = {"pass_through": sa.Text, "requests_per_minute": sa.Integer, "tokens_per_minute": sa.Integer}


def upgrade() -> None:
    op.create_table(
        "budget_reservations",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("usd", sa.Double, nullable=False),
        sa.Column("expires_at", TIME_TYPE, nullable=False),
        sa.PrimaryKeyConstraint("id", name="budget_reservations_pkey"),
    )
    op.create_index("budget_reservations_key", "budget_reservations", ["key_id"])
    op.create_table(
        "rate_counts",
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("second", sa.BigInteger, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("scope", "second", name="rate_counts_pkey"),
        sqlite_with_rowid=False,
    )
    for name, column_type in KEY_COLUMNS.items():
        op.add_column("api_keys", sa.Column(name, column_type))


def downgrade() -> None:
    for name in KEY_COLUMNS:
        op.drop_column("api_keys", name)
    op.drop_table("rate_counts")
    op.drop_table("budget_reservations")
