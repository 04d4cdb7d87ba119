"""Alembic's environment: runs on the connection that `migrations.upgrading` passes, inside its transaction."""

from __future__ import annotations

from typing import Any

from alembic import context

connection = context.config.attributes["connection"]
on_step = context.config.attributes["on_step"]


def report_step(ctx: Any, step: Any, heads: Any, run_args: Any) -> None:
    """Reports the version to which a step has led."""
    if on_step is not None:
        on_step(step.up_revision_id)


context.configure(
    connection=connection,
    # SQLite cannot alter most things about a column: Alembic then copies the table.
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=False,  # the transaction is ours: it holds the lock
    on_version_apply=report_step,
)
context.run_migrations()
