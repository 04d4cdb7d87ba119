"""The settings and their defaults, section by section; `providers` and `policies` hold theirs. Shapes only: where they
come from is `load`, what contradicts what is `checks`. Nothing is required here, so that one missing value never hides
the faults beside it.

The docstring of a field is its row in `docs/configuration.md`, which `tools/configuration_reference.py` writes.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from app.settings.policies import POLICY_KINDS, SAME_MODEL, Policy, Stage, build_default_policies
from app.settings.providers import EVERY_MODEL, Deployment, Encoding, Model, Price, Provider, Quirks, Retries
from app.settings.value_types import (
    HeaderName,
    HeaderValue,
    HostName,
    Name,
    Seconds,
    Section,
    Tokens,
    strip_credentials,
)

KEY_BYTES = 32


def _parse_encryption_key(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value().strip()
    try:
        key = (
            bytes.fromhex(text)
            if re.fullmatch(r"[0-9A-Fa-f]{64}", text)
            else b64decode(_normalize_base64(text), validate=True)
        )
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"expected a key of {KEY_BYTES} bytes in base64 or hex; make one with `openssl rand -base64 {KEY_BYTES}`"
        )
    return SecretStr(key.hex())


def _normalize_base64(text: str) -> str:
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    return bare + "=" * (-len(bare) % 4)


EncryptionKey = Annotated[SecretStr, AfterValidator(_parse_encryption_key)]
"""In hex, however it was written."""


NonNegativeInt = Annotated[int, Field(ge=0)]


class Limits(Section):
    """What one process takes on at once and what it takes in; several workers have each their own."""

    max_concurrent_requests: NonNegativeInt = 2000
    """How many requests that ask a model run at once: chat completions until their answer's end, compactions on
    request, summaries written anew, and what is passed through. `0`: as many as come."""
    max_concurrent_per_tenant: NonNegativeInt = 1000
    """How many of them one tenant may have running: half of all by default, so that one tenant's requests never take
    every place. `0`: as many as there is room for; when there is none left, tenants take turns all the same."""
    max_waiting: NonNegativeInt = 1000
    """How many requests wait for a place, all tenants together. Where that many wait, the newest of whoever has most
    of them makes room for a tenant that has fewer. `0`: nobody waits, and what finds no place is refused at once."""
    max_wait_seconds: Seconds = 20.0
    """How long a request waits for a place before it is refused."""
    max_connections: NonNegativeInt = 10_000
    """Connections beyond that are answered with 503 and closed. `0`: as many as come."""
    max_head_bytes: Annotated[int, Field(ge=4096)] = 65_536
    """The address and all headers of a request. Larger ones are answered with 431."""
    slow_client_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """How long a request's head may take, its body may rest, and a client may leave unread what is sent to it. Then
    the connection is cut; an answer that has begun is finished and stored all the same. `0`: for ever."""
    min_bytes_per_second: NonNegativeInt = 500
    """A client that sends or reads more slowly than this, once `limits.slow_client_seconds` have passed, counts as
    one that rests."""
    max_messages: Annotated[int, Field(gt=0)] = 20_000
    """Messages in a chat completion. More are answered with 400. A history that is new costs processor time for each
    of them: 20,000 take about ten seconds where a small window has to summarize them."""
    max_tools: Annotated[int, Field(gt=0)] = 1000
    """Tools in a chat completion. More are answered with 400."""


__all__ = [
    "EVERY_MODEL",
    "POLICY_KINDS",
    "SAME_MODEL",
    "Auth",
    "Database",
    "Deployment",
    "Encoding",
    "Encryption",
    "Limits",
    "Model",
    "Policy",
    "Price",
    "Provider",
    "Quirks",
    "Retries",
    "Settings",
    "Stage",
    "Telemetry",
    "Traces",
]


class Server(Section):
    host: str = "127.0.0.1"
    """Address to listen on. `0.0.0.0` for every interface: then keep strangers off the port."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """Port to listen on. `0` picks a free one; the start line names it."""
    body_limit_bytes: Annotated[int, Field(gt=0)] = 67_108_864
    """Larger requests are answered with 413."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Processes. More than one needs a database that they share; use PostgreSQL."""
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """After SIGTERM, how long running answers may go on. Let whatever stops the process wait a little longer."""
    leave_seconds: Annotated[float, Field(ge=0, le=600)] = 0.0
    """After SIGTERM and before that drain, how long everything is still answered while `/readyz` says 503: as long as
    load balancers need to notice. `0` where they need not, or are told otherwise."""
    console: bool = True
    """Whether the console is served at `/console`."""
    preload: bool = False
    """Whether all that is needed sooner or later is loaded before the start line: a later start, 80 MB more at rest,
    and no request that ever waits for it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug`, `info`, `warning` or `error`. No level logs message content or keys."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`json`, `text`, or `auto`: text on a terminal, JSON elsewhere."""


class Database(Section):
    url: SecretStr = SecretStr("sqlite+aiosqlite:///data/concertina.db")  # may carry a password: show `location`
    """A file (three slashes: relative to the working directory, four: absolute),
    `postgresql+asyncpg://user:password@host:5432/name`, or `memory://`, which forgets everything at the end."""
    synchronous: Literal["normal", "full"] = "normal"
    """SQLite only. `full` waits for the disk at each commit and so also survives a power cut; `normal` survives a
    crash of the process."""
    timeout_seconds: Seconds = 5.0
    """How long a statement or a connection may take before the store counts as unavailable."""
    auto_migrate: bool = True
    """Bring an older schema up to date at start, one process at a time. `false`: refuse to start, and leave it to
    `concertina migrate`. A newer schema is always refused."""
    pool_size: Annotated[int, Field(ge=1)] = 10
    """Connections of each process to PostgreSQL."""
    statement_cache_size: Annotated[int, Field(ge=0)] = 256
    """Prepared statements kept by each connection to PostgreSQL. `0` behind a transaction pooler such as
    PgBouncer."""

    @property
    def location(self) -> str:
        """The URL without user, password and query, for logs."""
        return strip_credentials(self.url.get_secret_value())


class Auth(Section):
    mode: Literal["open", "keys"] = "open"
    """`open`: anybody who reaches the port is served; each value of the `Authorization` header is a tenant of its
    own and sees only its own conversations. `keys`: only keys of the gateway's own are let in ([keys](keys.md))."""
    pepper: SecretStr | None = None
    """A secret of at least 16 characters that goes into the digests by which tenants are told apart. Left out, one
    is made at the first start and kept in the database, for all processes on it. With another one nobody finds
    their conversations again: do not change it."""
    allowed_hosts: tuple[HostName, ...] = ()
    """The names, without ports, by which the gateway is reached; in mode `open` their web pages may use it. A request
    with another name in `Host` is answered with 403; addresses and `localhost` are always served, and so are probes.
    Left out, mode `open` also serves names that no stranger can register: those without a dot, and those that end in
    `.local`, `.internal`, `.svc`, `.test` or `.home.arpa`; mode `keys` serves any name. `["*"]`: any name is served
    ([why](threat-model.md#a-browser-on-the-same-machine))."""
    cache_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """How long a key is trusted before the database is asked again. Revoking a key takes that long to reach every
    process."""
    end_users: bool = False
    """`true`: the end users of an application never see each other's conversations, though they share its
    credential."""
    end_user_header: HeaderName = "X-End-User-Id"
    """The header that names the end user, where `auth.end_users` is on. Without it a chat completion's
    `safety_identifier` counts, then its `user`."""


class Encryption(Section):
    keys: dict[Name, EncryptionKey] = Field(default_factory=dict)
    """Keys by names of yours (letters, digits, `.`, `_` and `-`), each 32 bytes as base64 or hex. Take them from
    the environment: `{k2026: "${CONCERTINA_KEY_2026}"}`. All of them are read with."""
    active: Name | None = None
    """The name of the key that is written with. `null`: plain text is written."""

    @property
    def key_bytes(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(key.get_secret_value()) for name, key in self.keys.items()}


class Retention(Section):
    days: Annotated[int, Field(gt=0)] | None = None
    """Conversations in which nothing has happened for longer are erased. A tenant's keys may say otherwise for its
    own; the shortest counts. `null`: they are kept."""
    sweep_seconds: Seconds = 3600.0
    """How often old conversations are looked for. One process at a time does it."""


class Traces(Section):
    """Where OpenTelemetry traces go, and how many of them."""

    endpoint: str | None = None
    """The address of an OpenTelemetry collector that takes OTLP over HTTP, such as `http://localhost:4318`;
    `/v1/traces` is added unless it ends with it. `null` or empty: nothing is traced. Needs `pip install
    'concertina[otel]'`."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Headers to send with each export, such as the collector's key."""
    service_name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = "concertina"
    """The service that the spans are of."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of requests to trace, 0 to 1. A request that comes with a `traceparent` follows its client's
    decision."""
    drain_seconds: Seconds = 5.0
    """How long the end of the process waits for spans that are still to be exported."""


class Telemetry(Section):
    """What the gateway tells of itself."""

    metrics: bool = True
    """Count what happens, and answer `GET /metrics` for Prometheus. `false`: nothing is counted, and there is no
    overview."""
    metrics_token: HeaderValue | None = None
    """A secret that `/metrics` wants to see as `Authorization: Bearer`. Left out, everyone who reaches the port may
    read the numbers; there is no content among them."""
    overview: bool = True
    """Answer `GET /v1/admin/overview`, the numbers of the console's first page."""
    request_log: bool = True
    """Write one log line for each request when it is over: what was asked, how it ended, how long it took, what the
    context was. Requests for `/healthz`, `/readyz` and `/metrics` are told of only when they fail."""
    traces: Traces = Traces()


class Compaction(Section):
    lease_seconds: Seconds = 30.0
    """How long a conversation stays claimed by a process that died. Running ones renew their claim."""
    wait_seconds: Seconds = 300.0
    """How long a request waits for another one of the same conversation before it is answered with 409."""


class Settings(Section):
    """Everything that can be set. Names and secrets are the operator's; no client value ever comes here."""

    server: Server = Server()
    database: Database = Database()
    auth: Auth = Auth()
    encryption: Encryption = Encryption()
    retention: Retention = Retention()
    telemetry: Telemetry = Telemetry()
    limits: Limits = Limits()
    providers: dict[Name, Provider] = Field(default_factory=dict)
    models: dict[str, Model] = Field(default_factory=dict)
    retries: Retries = Retries()
    policy: str = "additive"
    """The policy of requests that name none (`X-Context-Policy`, `context.plan.policy`) for models that name none."""
    policies: dict[Name, Policy] = Field(default_factory=build_default_policies)
    compaction: Compaction = Compaction()
    degraded_mode: Literal["serve", "refuse"] = "serve"
    """While the database is away, requests that bring their whole history along are served without it
    (`context_status: degraded`). `refuse`: they too are answered with 503."""
    window_default: Tokens = 8192
    """The context window of a model of which nothing else is known. Small on purpose: too small costs an early
    summary, too large costs a refused request."""

    @property
    def uses_simulated_model(self) -> bool:
        """Whether the built-in stand-in answers, because no provider is configured."""
        return not self.providers

    @property
    def default_policy(self) -> str:
        """The policy where neither a request nor its model's own entry names one."""
        every = self.models.get(EVERY_MODEL)
        return every.policy if every is not None and every.policy else self.policy

    @property
    def served_models(self) -> dict[str, Model]:
        """`models`; while there are none and just one provider, that provider has every model."""
        if self.models or len(self.providers) != 1:
            return self.models
        return {EVERY_MODEL: Model(provider=next(iter(self.providers)))}
