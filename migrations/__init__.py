"""Schema migrations with Alembic. `run` is the entry point; it imports Alembic only if there is something to
migrate.
"""
