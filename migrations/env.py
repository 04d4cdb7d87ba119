"""Alembic's environment: runs on the connection that `migrations.upgrading` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from app.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=False,  # the transaction is ours: it holds the lock
)
context.run_migrations()
