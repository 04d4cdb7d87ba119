"""Alembic's environment: runs on the connection that `migrations.upgrading` hands over, inside its transaction."""

from __future__ import annotations

from typing import Any

from alembic import context

from app.store.sql.tables import metadata

connection = context.config.attributes["connection"]
on_step = context.config.attributes["on_step"]


def report_step(ctx: Any, step: Any, heads: Any, run_args: Any) -> None:
    """Pass on the version that a step has led to."""
    if on_step is not None:
        on_step(step.up_revision_id)


context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=False,  # the transaction is ours: it holds the lock
    on_version_apply=report_step,
)
context.run_migrations()
