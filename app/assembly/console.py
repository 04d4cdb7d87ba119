"""The console, if it is wanted: its files, and what its pages must know of this gateway."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter

from app.api.console import console_files, console_routes
from app.assembly.engine import Engine
from app.settings import Settings
from app.store.location import location_of


def routes_of_console(engine: Engine, settings: Settings, *, version: str) -> Iterator[APIRouter]:
    """None while `server.console` is off: its paths are unknown then."""
    if not settings.server.console:
        return
    auth = settings.auth
    facts = {
        "version": version,
        "auth_mode": auth.mode,
        "end_users": auth.end_users,
        "end_user_header": auth.end_user_header if auth.end_users else None,
        "simulated": settings.uses_simulated_model,
        "policies": sorted(engine.turns.policies),
        "default_policy": settings.policy_of_every_model,
        "database": location_of(settings.database.url.get_secret_value()).backend,
        "encrypted": settings.encryption.active is not None,
    }
    yield console_routes(console_files(), facts, engine.auth)
