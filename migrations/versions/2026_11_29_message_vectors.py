"""Vectors of messages, for quotations by meaning."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_29_message_vectors"
down_revision = "2026_11_28_limits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "message_vectors",
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("link", sa.LargeBinary(16), nullable=False),
        sa.Column("vectors", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("root", "conversation_id", "model", "seq", name="message_vectors_pkey"),
    )


def downgrade() -> None:
    op.drop_table("message_vectors")
