"""Tables, statements and transactions that SQLite and PostgreSQL share."""
