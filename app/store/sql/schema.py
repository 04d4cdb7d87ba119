"""Which schema a database must have. `tables` says what that is; only migrations and tools need to know, so that
serving does without SQLAlchemy."""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = "2026_11_24_client_versions"
"""Revision of the newest migration."""
