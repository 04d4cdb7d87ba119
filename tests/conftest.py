"""What all rooms' tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.postgres import databases, empty_postgres_url, migrated_template, postgres_url

__all__ = ["databases", "empty_postgres_url", "migrated_template", "postgres_url"]

# A busy machine draws slowly; that is no fault of the code under test.
settings.register_profile("concertina", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("concertina")
