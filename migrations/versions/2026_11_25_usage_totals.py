"""Sums of tokens and costs by day, tenant, key and model, and budgets of keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_25_usage_totals"
down_revision = "2026_11_24_client_versions"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage_totals",
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("day", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("key_id", "day", "tenant", "model", name="usage_totals_pkey"),
        sqlite_with_rowid=False,
    )
    op.add_column("api_keys", sa.Column("budget_usd", sa.Double))


def downgrade() -> None:
    op.drop_column("api_keys", "budget_usd")
    op.drop_table("usage_totals")
