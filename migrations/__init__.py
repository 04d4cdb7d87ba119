"""Schema migrations, by Alembic. `run` is the way in; nothing else imports Alembic unless there is work to do."""
