"""`concertina check-config`: whether a configuration can be used, and what it amounts to."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from app.commands.progress import counted
from app.settings import Settings, load
from app.settings.values import place_of


def run(arguments: argparse.Namespace) -> int:
    overrides: list[str] = []
    settings = load(arguments.file, on_override=overrides.append)
    print(f"{arguments.file}: ok")
    for line in (*summary(settings), *overrides):
        print(f"  {line}")
    print(f"Serve with it: concertina serve --config {shlex.quote(arguments.file)}")
    return 0


def summary(settings: Settings) -> Iterator[str]:
    """What a configuration amounts to, in lines; never a key."""
    yield f"listens on {settings.server.host}:{settings.server.port}, {counted(settings.server.workers, 'worker')}"
    yield f"keeps conversations in {settings.database.location}"
    who = "holders of its own keys" if settings.auth.mode == "keys" else "anybody, each credential a tenant of its own"
    yield f"lets in {who}" + (", end users apart" if settings.auth.end_users else "")
    if settings.encryption.active is not None:
        yield f"encrypts what it keeps with the key {settings.encryption.active!r}"
    if settings.retention.days is not None:
        yield f"erases conversations that rest for {settings.retention.days} days"
    for name, provider in settings.providers.items():
        own_key = provider.api_key is not None and provider.api_key.get_secret_value() != ""
        whose = "its own" if own_key else "the client’s"
        yield f"provider {name}: {place_of(provider.base_url)}, called with {whose} key"
    for name, model in settings.served_models.items():
        places = ", ".join(f"{at.provider}/{at.model or ('…' if name == '*' else name)}" for at in model.expanded())
        after = f", then {', '.join(model.fallbacks)}" if model.fallbacks else ""
        yield f"model {name}: {places}{after}"
    if settings.uses_simulated_model:
        yield "no provider: the built-in simulated model answers"
    yield f"policy {settings.policy} of {', '.join(settings.policies)}"
