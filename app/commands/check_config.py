"""`concertina check-config`: checks whether a configuration can be used, and describes what it means."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from app.commands.progress import pluralize
from app.settings import Settings, load_settings
from app.settings.checks import list_empty_key_warnings
from app.settings.providers_and_models import EVERY_MODEL, Price, Provider
from app.settings.value_types import strip_credentials
from app.upstream.provider_contract import UNKNOWN_PRICE
from app.upstream.routing.prices import find_list_price


def run(arguments: argparse.Namespace) -> int:
    overrides: list[str] = []
    settings = load_settings(arguments.file, on_override=overrides.append)
    print(f"{arguments.file}: ok")
    for line in (*describe_settings(settings), *overrides):
        print(f"  {line}")
    for line in list_warnings(settings):
        print(f"  warning: {line}")
    print(f"Serve with it: concertina serve --config {shlex.quote(arguments.file)}")
    return 0


def describe_settings(settings: Settings) -> Iterator[str]:
    """Yields lines that describe a configuration. No line contains a key."""
    yield f"listens on {settings.server.host}:{settings.server.port}, {pluralize(settings.server.workers, 'worker')}"
    yield f"keeps conversations in {settings.database.url_without_credentials}"
    allowed_callers = (
        "holders of its own keys" if settings.auth.mode == "keys" else "anybody, each credential a tenant of its own"
    )
    yield f"lets in {allowed_callers}" + (", end users apart" if settings.auth.end_users else "")
    if settings.encryption.active is not None:
        yield f"encrypts what it keeps with the key {settings.encryption.active!r}"
    if settings.retention.days is not None:
        yield f"erases conversations that rest for {settings.retention.days} days"
    for name, provider in settings.providers.items():
        key = _describe_provider_key(provider, settings.auth.mode)
        protocol = "" if provider.protocol == "openai" else f"protocol {provider.protocol}, "
        yield f"provider {name}: {strip_credentials(provider.base_url)}, {protocol}{key}"
    for name, model in settings.served_models.items():
        deployments = ", ".join(
            f"{deployment.provider}/{deployment.model or ('…' if name == '*' else name)}"
            for deployment in model.expand_deployments()
        )
        fallback_text = f", then {', '.join(model.fallbacks)}" if model.fallbacks else ""
        yield f"model {name}: {deployments}{fallback_text}"
    if settings.uses_simulated_model:
        yield "no provider: the built-in simulated model answers"
    yield f"policy {settings.policy} of {', '.join(settings.policies)}"


def list_warnings(settings: Settings) -> Iterator[str]:
    """Yields warnings about settings that are valid, but perhaps not what the operator meant."""
    yield from list_empty_key_warnings(settings)
    rules = {name: provider.client_key_rule for name, provider in settings.providers.items()}
    providers_without_key = [name for name, rule in rules.items() if rule != "never"]
    # In mode `keys`, a client's key is one of the gateway's own, and no provider gets it.
    if settings.auth.mode == "open" and len(providers_without_key) > 1:
        always = [name for name, rule in rules.items() if rule == "always"]
        yield (
            f"several providers could get a client’s key: {', '.join(providers_without_key)}. "
            "It goes to the first provider of the model that the client asked for"
            + (f", and to {', '.join(always)} always" if always else "")
            + ". Give the others providers.<name>.api_key, or set providers.<name>.pass_client_key: true where every "
            "client’s key may go."
        )
    if settings.auth.mode == "keys":
        yield from warn_of_unpriced_models(settings)


def warn_of_unpriced_models(settings: Settings) -> Iterator[str]:
    """Yields a warning if models are configured by name that have a deployment without a known price."""
    names = [
        name
        for name, model in settings.served_models.items()
        if name != EVERY_MODEL
        and any(
            deployment.price == Price() and find_list_price(deployment.model or name) == UNKNOWN_PRICE
            for deployment in model.expand_deployments()
        )
    ]
    if names:
        yield (
            f"No price is known of {', '.join(names)}: their calls do not count for the budgets of keys. "
            "Set models.<name>.price."
        )


def _describe_provider_key(provider: Provider, mode: str) -> str:
    if mode == "open" and provider.client_key_rule != "never":
        return f"called with {'every' if provider.client_key_rule == 'always' else 'the'} client’s key"
    return "called with its own key" if provider.has_own_key else "called without a key"
