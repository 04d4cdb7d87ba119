"""Summaries of what a client shows in the place of log messages, beside those of the originals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2026_11_27_summaries_of_versions"
down_revision = "2026_11_26_fingerprints"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "chunks", sa.Column("versions_digest", sa.LargeBinary(16), nullable=False, server_default=sa.text("''"))
    )


def downgrade() -> None:
    op.execute("DELETE FROM chunks WHERE length(versions_digest) > 0")
    op.drop_column("chunks", "versions_digest")
