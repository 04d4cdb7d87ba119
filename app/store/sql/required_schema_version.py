"""The schema version that a database must have. It is apart from `tables`, so that a server need not import
SQLAlchemy.
"""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = "2026_12_01_tombstones"
"""Revision of the newest migration."""
