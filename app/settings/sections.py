"""The sections of the settings, with types and defaults. `providers` and `policies` have modules of their own; `load`
reads the values, `checks` finds contradictions between them.

No field is required: a missing value would stop the validation and hide all other faults. `checks` reports what is
missing. The docstring of each field is its row in `docs/configuration.md`, which `tools/configuration_reference.py`
writes.
"""

from __future__ import annotations

import re
import shlex
from base64 import b64decode
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, Field, PrivateAttr, SecretStr, StringConstraints

from app.settings.policies import Policy, build_default_policies
from app.settings.providers_and_models import EVERY_MODEL, Model, Provider, Retries
from app.settings.value_types import (
    HeaderName,
    HeaderValue,
    HostName,
    Name,
    Seconds,
    Section,
    SettingOrigin,
    Tokens,
    strip_credentials,
)

NO_OPERATOR_TOKEN = "none"  # noqa: S105 - the name of no secret
"""The value of `auth.operator_token` that says that there is no token."""
KEY_BYTES = 32
"""The length of an encryption key: AES-256."""


def _parse_encryption_key(secret: SecretStr) -> SecretStr:
    """Returns a key as hex text.

    Raises:
        ValueError: the text is not a key of `KEY_BYTES` bytes in hex or base64.
    """
    text = secret.get_secret_value().strip()
    try:
        # 64 hex digits are valid base64, too (for 48 bytes), so hex is recognised first, by its form.
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
    """Returns URL-safe or unpadded base64 in the standard alphabet with padding."""
    unpadded = text.rstrip("=").replace("-", "+").replace("_", "/")
    return unpadded + "=" * (-len(unpadded) % 4)


EncryptionKey = Annotated[SecretStr, AfterValidator(_parse_encryption_key)]
"""A key in hex, whether it was written in hex or base64."""


NonNegativeInt = Annotated[int, Field(ge=0)]


class Rate(Section):
    """How much of something is allowed in a minute. 0: no limit."""

    key: NonNegativeInt = 0
    """The most in any 60 seconds for each key without a limit of its own. `0`: no limit."""
    tenant: NonNegativeInt = 0
    """The same for each tenant, its end users together."""
    all: NonNegativeInt = 0
    """The same for all callers together."""


class Limits(Section):
    """Limits of one process. With several workers, each process has these limits for itself, except the rates
    (`…_per_minute`), which all processes on one database count together."""

    max_concurrent_requests: NonNegativeInt = 2000
    """How many requests that call a model may run at once. `0`: no limit."""
    max_concurrent_per_tenant: NonNegativeInt = 1000
    """How many of these requests one tenant may have running. `0`: no limit; tenants still take turns."""
    max_waiting: NonNegativeInt = 1000
    """How many requests may wait for a slot. `0`: without a free slot a request is refused at once."""
    max_wait_seconds: Seconds = 20.0
    """How long a request waits for a slot before it is refused."""
    max_concurrent_body_bytes: NonNegativeInt = 268_435_456
    """The most bytes that the bodies of all requests in flight may have together (one tenant's: half), else 503. `0`:
    no limit."""
    max_connections: NonNegativeInt = 10_000
    """How many connections may be open. Further ones get 503. `0`: no limit."""
    slow_client_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """How long a client may take to send a request's head, pause within the body, or leave an answer unread, before its
    connection is closed. `0`: no limit."""
    min_bytes_per_second: NonNegativeInt = 500
    """A client that sends or reads fewer bytes per second counts as paused."""
    max_messages: Annotated[int, Field(gt=0)] = 20_000
    """The most messages of a request, else 400. Summarizing 20,000 new ones for a small window takes about ten seconds
    of processor time."""
    max_tools: Annotated[int, Field(gt=0)] = 1000
    """The most tools of a request, else 400."""
    requests_per_minute: Rate = Rate()
    tokens_per_minute: Rate = Rate()
    assumed_answer_tokens: Tokens = 4096
    """For budgets and rates: the answer's tokens if a request sets no limit. A longer answer is not cut off."""


class Server(Section):
    host: str = "127.0.0.1"
    """The address to listen on; `0.0.0.0`: every interface. Protect the port against strangers then."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """The port to listen on. `0`: a free port, which the start line names."""
    body_limit_bytes: Annotated[int, Field(gt=0)] = 67_108_864
    """The most bytes of a request's body, else 413."""
    workers: Annotated[int, Field(ge=1)] = 1
    """How many processes serve requests. Several need a database that they share: PostgreSQL."""
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """How long running answers may go on after SIGTERM."""
    leave_seconds: Annotated[float, Field(ge=0, le=600)] = 0.0
    """How long requests are still answered after SIGTERM, before the drain, while `/readyz` answers 503
    ([stopping](operations.md#stopping))."""
    context_detail: Literal["brief", "full"] = "full"
    """How much of [`context`](wire-contract.md#answer) an answer has, unless the request says `X-Context-Detail`."""
    console: bool = True
    """`true`: the console is served at `/console`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged. No level logs message content or keys."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """The form of log lines. `auto`: text on a terminal, JSON elsewhere."""


class Database(Section):
    url: SecretStr = SecretStr("sqlite+aiosqlite:///data/concertina.db")  # may carry a password: show `location`
    """An SQLite file (three slashes: relative to the working directory, four: absolute),
    `postgresql+asyncpg://user:password@host:5432/name`, or `memory://`, which loses everything when the process
    ends."""
    synchronous: Literal["normal", "full"] = "normal"
    """SQLite: committed turns survive a crash of the process (`normal`), or a power cut, too (`full`)."""
    timeout_seconds: Seconds = 5.0
    """How long a statement or a connection may take before the store counts as unavailable."""
    auto_migrate: bool = True
    """`true`: an older schema is migrated at start. `false`: the start is refused until `concertina migrate` has
    run."""
    pool_size: Annotated[int, Field(ge=1)] = 10
    """How many connections each process opens to PostgreSQL."""
    statement_cache_size: Annotated[int, Field(ge=0)] = 256
    """How many prepared statements each connection to PostgreSQL keeps. `0` behind a transaction pooler such as
    PgBouncer."""

    @property
    def url_without_credentials(self) -> str:
        """Returns the URL without user, password and query, for logs."""
        return strip_credentials(self.url.get_secret_value())

    @property
    def location(self) -> str:
        """Returns where the database is, for output: the absolute path of a SQLite file, which depends on the working
        directory, else the URL without credentials.
        """
        sqlite = re.match(r"sqlite(?:\+aiosqlite)?:///([^?]+)", self.url.get_secret_value())
        return str(Path(unquote(sqlite[1])).absolute()) if sqlite else self.url_without_credentials


class Auth(Section):
    mode: Literal["open", "keys"] = "open"
    """`open`: everyone who reaches the port is served. `keys`: only clients with a key of the gateway
    ([keys](keys.md))."""
    pepper: SecretStr | None = None
    """A secret of at least 16 characters in the digests that identify tenants. Left out: one is made at the first start
    and stored in the database. Do not change it ([why](keys.md#the-pepper))."""
    allowed_hosts: tuple[HostName, ...] = ()
    """The host names of the gateway, without ports; other names in `Host` get 403. Left out: mode `open` serves only
    addresses and names that nobody can register ([rules](threat-model.md#a-browser-on-the-same-machine)), mode `keys`
    every name. `["*"]`: every name."""
    operator_token: SecretStr | None = None
    """A secret of at least 32 characters that gives every right for every tenant, in both modes; `none`: there is none.
    Left out: on a loopback address each start makes one ([operators](keys.md#operators))."""
    cache_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """How long a process trusts a key before it reads it from the database again."""
    end_users: bool = False
    """`true`: each [end user](keys.md#end-users-of-one-application) of an application is a tenant."""
    end_user_header: HeaderName = "X-End-User-Id"
    """The header that names the end user."""


class Encryption(Section):
    keys: dict[Name, EncryptionKey] = Field(default_factory=dict)
    """Keys by name, each with 32 bytes in base64 or hex: `{k2026: "${CONCERTINA_KEY_2026}"}`. All are used to
    decrypt."""
    active: Name | None = None
    """The name of the key that encrypts new data. `null`: none is encrypted."""

    @property
    def key_bytes(self) -> dict[str, bytes]:
        """Returns the keys by name, 32 bytes each."""
        return {name: bytes.fromhex(key.get_secret_value()) for name, key in self.keys.items()}


class Retention(Section):
    days: Annotated[int, Field(gt=0)] | None = None
    """Conversations that rest for more days are erased ([retention](privacy.md#retention)). `null`: never."""
    context_hours: Annotated[int, Field(gt=0, le=8_760)] = 24
    """Conversations of responses with `store: false`, which are kept for continuing only, are erased after so many
    hours of rest."""
    request_hours: Annotated[int, Field(ge=0, le=8_760)] = 168
    """So many hours of requests to a model are kept in the database for
    [`GET /v1/admin/requests`](telemetry.md#recent-requests), without content. `0`: none."""
    sweep_seconds: Seconds = 3600.0
    """The time between two searches for old conversations."""


class Privacy(Section):
    store_false: Literal["context", "nothing"] = "context"
    """What is kept of a response with `store: false`: its turn, for continuing the conversation only (`context`), or
    `nothing`."""


class Traces(Section):
    """Where OpenTelemetry traces go, and how many of them."""

    endpoint: str | None = None
    """The address of a collector that takes OTLP over HTTP. `null` or empty: no traces. Needs the extra `otel`."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Headers of each export, such as the collector's key."""
    service_name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = "concertina"
    """The service name of the spans (`service.name`)."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of requests that are traced; with a `traceparent`, the client's decision counts."""


class Telemetry(Section):
    """Metrics, the console's overview, log lines and traces."""

    metrics: bool = True
    """`false`: nothing is counted, and there is no `/metrics` and no overview."""
    metrics_token: HeaderValue | None = None
    """A secret that a request for `/metrics` must send as `Authorization: Bearer`. Left out: everyone can read the
    metrics."""
    recent_requests: Annotated[int, Field(ge=0, le=100_000)] = 1000
    """How many requests to a model each gateway keeps in memory, without content. `0`: none, and none in the
    database."""
    request_log: bool = True
    """Each request writes one log line at its end; those for `/healthz`, `/readyz`, `/metrics` and the
    files of the console only if they fail."""
    traces: Traces = Traces()


class Compaction(Section):
    capsule_key: tuple[EncryptionKey, ...] = ()
    """Keys of 32 bytes in base64 or hex for [capsules](responses.md#capsules): `["${CAPSULE_KEY}"]`. The first seals,
    all open. None: one is made at the first start and stored in the database."""
    lease_seconds: Seconds = 30.0
    """How long a process holds the lease of a conversation without renewing it. If the process dies, others wait at
    most this long."""
    wait_seconds: Seconds = 300.0
    """How long a request waits for another request of the same conversation before it gets 409."""

    @property
    def capsule_key_bytes(self) -> list[bytes]:
        """Returns the keys of capsules, 32 bytes each."""
        return [bytes.fromhex(key.get_secret_value()) for key in self.capsule_key]


class Settings(Section):
    """All settings. Every name and secret in them is the operator's; no value of a client ever gets into them."""

    server: Server = Server()
    database: Database = Database()
    auth: Auth = Auth()
    encryption: Encryption = Encryption()
    retention: Retention = Retention()
    privacy: Privacy = Privacy()
    telemetry: Telemetry = Telemetry()
    limits: Limits = Limits()
    providers: dict[Name, Provider] = Field(default_factory=dict)
    models: dict[str, Model] = Field(default_factory=dict)
    retries: Retries = Retries()
    policy: str = "additive"
    """The policy of requests if nothing else [names one](policies.md)."""
    policies: dict[Name, Policy] = Field(default_factory=build_default_policies)
    compaction: Compaction = Compaction()
    degraded_mode: Literal["serve", "refuse"] = "serve"
    """While the database is unavailable, a request that carries its whole history is answered without it (`serve`), or
    gets 503 (`refuse`)."""
    window_default: Tokens = 8192
    """The context window of a model whose window is not known."""

    _origins: dict[tuple[str | int, ...], SettingOrigin] = PrivateAttr(default_factory=dict)
    _named_file: str | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        """Compares the values only, and not where they came from."""
        return isinstance(other, Settings) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # maps have none

    @property
    def origins(self) -> dict[tuple[str | int, ...], SettingOrigin]:
        """Returns where each value came from that some source set."""
        return self._origins

    @property
    def config_option(self) -> str:
        """Returns ` --config FILE` for hints that name a command; empty if the command line named no file."""
        return "" if self._named_file is None else f" --config {shlex.quote(self._named_file)}"

    def attach_origins(
        self, origins: dict[tuple[str | int, ...], SettingOrigin], named_file: str | None = None
    ) -> None:
        """Adds where the values came from. Only `load` calls it, once.

        Args:
            named_file: the settings file that the command line names.
        """
        self._origins, self._named_file = origins, named_file

    @property
    def uses_simulated_model(self) -> bool:
        """Says whether the built-in simulated model answers, because no provider is configured."""
        return not self.providers

    @property
    def operator_token(self) -> str | None:
        """Returns the operator's token; None if there is none."""
        token = self.auth.operator_token.get_secret_value() if self.auth.operator_token else ""
        return None if token in ("", NO_OPERATOR_TOKEN) else token

    def with_operator_token(self, token: str) -> Settings:
        """Returns these settings with an operator's token."""
        auth = self.auth.model_copy(update={"operator_token": SecretStr(token)})
        return self.model_copy(update={"auth": auth})

    @property
    def default_policy(self) -> str:
        """Returns the policy for requests that name none and whose model has no entry with a policy: the policy of the
        entry `"*"`, else `policy`.
        """
        every_model = self.models.get(EVERY_MODEL)
        return every_model.policy if every_model is not None and every_model.policy else self.policy

    @property
    def served_models(self) -> dict[str, Model]:
        """Returns `models`. If there are none and there is exactly one provider, that provider serves every model."""
        if self.models or len(self.providers) != 1:
            return self.models
        return {EVERY_MODEL: Model(provider=next(iter(self.providers)))}
