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
    # SQLite's default is an empty text, which does not equal empty bytes.
    if op.get_bind().dialect.name == "sqlite":
        op.execute("UPDATE chunks SET versions_digest = X''")
    op.drop_index("chunks_range", "chunks")
    op.create_index(
        "chunks_range", "chunks", ["root", "from_link", "to_link", "is_fold", "versions_digest"], unique=True
    )


def downgrade() -> None:
    op.drop_index("chunks_range", "chunks")
    op.execute("DELETE FROM chunks WHERE length(versions_digest) > 0")
    op.create_index("chunks_range", "chunks", ["root", "from_link", "to_link", "is_fold"], unique=True)
    op.drop_column("chunks", "versions_digest")
