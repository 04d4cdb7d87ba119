"""Model calls that have ended, without content."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_30_requests"
down_revision = "2026_11_29_message_vectors"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("duration_ms", sa.Double, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("key_id", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("answered_by", sa.Text),
        sa.Column("provider", sa.Text),
        sa.Column("context_status", sa.Text),
        sa.Column("conversation_id", sa.Text),
        sa.Column("record", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="requests_pkey"),
    )
    op.create_index("requests_listed", "requests", ["started_at", "id"])
    op.create_index("requests_conversation", "requests", ["conversation_id"])


def downgrade() -> None:
    op.drop_table("requests")
