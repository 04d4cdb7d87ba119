"""The settings and their defaults, section by section. Shapes only: where values come from is `load`, what contradicts
what is `checks`. Nothing is required here, so that one missing value never hides the faults beside it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StringConstraints

from app.settings.secret_key import EncryptionKey

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Share = Annotated[float, Field(gt=0, lt=1)]
"""A share of the context window."""
Tokens = Annotated[int, Field(gt=0)]
Dollars = Annotated[float, Field(ge=0)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Encoding = Literal["o200k_base", "cl100k_base"]


def _on_one_line(secret: SecretStr) -> SecretStr:
    """Without the line end that a secret's file ends with; one inside could not be sent in a header."""
    text = secret.get_secret_value().strip()
    if any(character < " " or character == "\x7f" for character in text):
        raise ValueError("expected a value on one line, without control characters")
    return SecretStr(text)


HeaderValue = Annotated[SecretStr, AfterValidator(_on_one_line)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]

EVERY_MODEL = "*"
"""The entry of `models` that stands for every name without an entry of its own."""
SAME_MODEL = "same"
"""`summarizer.model`: the request's own model."""


Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Chars = Annotated[int, Field(gt=0)]
Band = tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]]
"""Pressure from which on, and the share of a result's cap that is left then."""
PolicyKind = Literal["additive", "checkpoint", "fade", "prune", "window"]
POLICY_KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
"""Each is built in, as a policy of its own name."""
Stage = Literal[
    "mask_results",
    "cap_messages",
    "fade_results",
    "prune_by_position",
    "truncate_results",
    "tell_old_rounds",
    "drop_results",
    "clear_tool_results",
    "clear_reasoning",
    "keep_last",
    "drop_oldest",
    "share_evenly",
]


def _recall_word(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return {False: "off", True: "quote"}[value] if isinstance(value, bool) else value


Recall = Annotated[Literal["off", "quote", "tool"], BeforeValidator(_recall_word)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)


class Server(Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """0: any free port; the start line names it."""
    body_limit_bytes: Annotated[int, Field(gt=0)] = 67_108_864
    workers: Annotated[int, Field(ge=1)] = 1
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    console: bool = True
    """Whether `/console` is served."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "text"] = "auto"
    """`auto`: text on a terminal, JSON elsewhere."""


class Database(Section):
    url: SecretStr = SecretStr("sqlite+aiosqlite:///data/concertina.db")
    """Secret because it may carry a password; `location` is what may be shown."""
    synchronous: Literal["normal", "full"] = "normal"
    timeout_seconds: Seconds = 5.0
    auto_migrate: bool = True
    pool_size: Annotated[int, Field(ge=1)] = 10
    statement_cache_size: Annotated[int, Field(ge=0)] = 256

    @property
    def location(self) -> str:
        """The URL without user, password and query, for logs. Greedy up to the last `@`: an unescaped `/` or `?` in a
        password must not show the rest of it."""
        return re.sub(r"://.*@", "://", self.url.get_secret_value()).partition("?")[0]


class Auth(Section):
    mode: Literal["open", "keys"] = "open"
    pepper: SecretStr | None = None
    """Goes into the digests by which tenants are told apart. None or empty: one that is made and kept in the store."""
    cache_seconds: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """How long a key is trusted before it is looked up again."""
    end_users: bool = False
    """Whether the end users of one application are tenants of their own."""
    end_user_header: HeaderName = "X-End-User-Id"


class Encryption(Section):
    keys: dict[Name, EncryptionKey] = {}
    """All that something may still be stored under."""
    active: Name | None = None
    """The one to write with; None: plain text is written."""

    @property
    def key_bytes(self) -> dict[str, bytes]:
        return {name: bytes.fromhex(key.get_secret_value()) for name, key in self.keys.items()}


class Retention(Section):
    days: Annotated[int, Field(gt=0)] | None = None
    """How long a conversation may rest before it is erased; None: for ever."""
    sweep_seconds: Seconds = 3600.0


class Traces(Section):
    """Where OpenTelemetry traces go, and how many of them."""

    endpoint: str | None = None
    """Address of an OTLP/HTTP collector, `/v1/traces` aside; None or empty: nothing is traced."""
    headers: dict[HeaderName, HeaderValue] = {}
    """Sent with each export; secret because they carry the collector's key."""
    service_name: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = "concertina"
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of the requests whose client has not decided: the share that is traced."""
    drain_seconds: Seconds = 5.0
    """How long the end of the process waits for what is still to be exported."""


class Telemetry(Section):
    """What the gateway tells of itself."""

    metrics: bool = True
    """Whether it counts, and answers `/metrics`."""
    metrics_token: HeaderValue | None = None
    """None or empty: `/metrics` is for everyone who reaches the port."""
    overview: bool = True
    """Whether `/v1/admin/overview` answers."""
    request_log: bool = True
    """Whether each request is told of in a log line when it is over."""
    traces: Traces = Traces()


class Timeouts(Section):
    connect_seconds: Seconds = 5.0
    first_byte_seconds: Seconds = 600.0
    between_bytes_seconds: Seconds = 300.0
    total_seconds: Seconds = 3600.0


class Quirks(Section):
    """What a provider or model cannot take. A model's quirks win over its provider's, field by field."""

    merge_same_role: bool = False
    developer_to_system: bool = False
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    strip_fields: tuple[str, ...] = ()
    stream_usage: bool = True
    system_messages: Literal["keep", "first", "into_user"] = "keep"
    alternate_roles: bool = False
    reasoning: Literal["keep", "drop", "tool_loop", "tool_turns"] = "keep"
    tool_call_ids: Literal["keep", "unique", "alnum9"] = "keep"
    tool_result_names: bool = False
    split_calls: bool = False
    empty_content: Literal["keep", "text", "none"] = "keep"
    flatten_text: bool = False
    message_fields: tuple[str, ...] | None = None
    strip_message_fields: tuple[str, ...] = ()
    drop_nulls: bool = False
    restore_fields: tuple[str, ...] = ()
    restore_scope: Literal["tool_loop", "tool_turns"] = "tool_loop"

    def over(self, base: Quirks) -> Quirks:
        """`base`, with what was set here in its place."""
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class Provider(Section):
    protocol: Literal["openai"] = "openai"
    base_url: str = ""
    api_key: HeaderValue | None = None
    """None or empty: the client's own key is passed on."""
    auth_header: HeaderName = "authorization"
    """`authorization` carries `Bearer <key>`, any other header the key alone."""
    headers: dict[HeaderName, HeaderValue] = {}
    proxy: SecretStr | None = None
    """Address of an HTTP proxy; secret because it may carry a password."""
    timeouts: Timeouts = Timeouts()
    quirks: Quirks = Quirks()


class Price(Section):
    """US dollars for a million tokens; None: what the list of well-known models says, if anything."""

    input: Dollars | None = None
    cached_input: Dollars | None = None
    output: Dollars | None = None


class Deployment(Section):
    provider: str = ""
    model: str | None = None
    """The provider's name for it; None: the name that was asked for."""
    context_window: Tokens | None = None
    max_output_tokens: Tokens | None = None
    encoding: Encoding | None = None
    price: Price = Price()
    quirks: Quirks = Quirks()


class Model(Deployment):
    """A name that clients may ask for: one deployment written flat, or several under `deployments`, for which the
    fields written flat are the defaults."""

    policy: str | None = None
    """The policy of requests for it that name none; None: the general one."""
    fallbacks: tuple[str, ...] = ()
    deployments: tuple[Deployment, ...] = ()

    def expanded(self) -> tuple[Deployment, ...]:
        """The deployments in order, each with the entry's own fields where it leaves them out."""
        own = Deployment(**{name: getattr(self, name) for name in Deployment.model_fields})
        return tuple(_over(deployment, own) for deployment in self.deployments) or (own,)


def _over(deployment: Deployment, own: Deployment) -> Deployment:
    written = {name: getattr(deployment, name) for name in deployment.model_fields_set}
    return own.model_copy(update=written | {"quirks": deployment.quirks.over(own.quirks)})


class Retries(Section):
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Tries of one deployment, the first included."""
    base_seconds: Seconds = 0.5
    max_seconds: Seconds = 8.0
    retry_after_max_seconds: Seconds = 20.0
    total_wait_seconds: Seconds = 60.0
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    breaker_seconds: Seconds = 30.0
    breaker_max_seconds: Seconds = 600.0


class Summarizer(Section):
    enabled: bool = True
    """`false`: views are shortened without a model."""
    model: str = SAME_MODEL
    fallbacks: tuple[str, ...] = ()
    max_summary_tokens: Tokens = 2048
    prompt: Instruction | None = None
    update_prompt: Instruction | None = None
    form: Literal["auto", "conversation", "transcript"] = "auto"
    parameters: dict[str, Any] = {}
    timeout_seconds: Seconds = 120.0


class Trigger(Section):
    """When policy `checkpoint` writes one."""

    type: Literal["token_ratio", "remaining_tokens", "messages_to_refine"] | None = None
    value: Annotated[float, Field(gt=0)] | None = None


class ClearToolResults(Section):
    trigger_tokens: Tokens | None = None
    keep: Annotated[int, Field(ge=0)] = 3
    clear_at_least_tokens: Annotated[int, Field(ge=0)] = 0
    exclude_tools: tuple[str, ...] = ()
    inputs: bool = False


class ClearReasoning(Section):
    keep_turns: Annotated[int, Field(ge=0)] | None = None


class Policy(Section):
    """One policy; ratios are of the context window unless said otherwise. What each means: `context.policy.Policy`."""

    kind: PolicyKind = "additive"
    stages: tuple[Stage, ...] | None = None
    reserve_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.05
    regrow_ratio: Share = 0.5
    target_ratio: Share = 0.75
    step_ratio: Share = 0.25
    recall: Recall | None = None
    recall_ratio: Share = 0.15
    pin_ratio: Share = 0.5

    threshold_ratio: Share = 0.7
    token_floor: Annotated[int, Field(ge=0)] = 4096
    buffer_turns: Annotated[int, Field(ge=0)] = 4
    buffer_max_ratio: Share = 0.3
    fold_ratio: Share = 0.3
    prepare_ratio: Annotated[float, Field(gt=0, le=1)] = 0.6
    min_gain_ratio: Share = 0.1
    strategy: Literal["additive", "recursive"] = "additive"

    keep_turns: Annotated[int, Field(ge=0)] | None = None
    keep_tokens: Tokens | None = None
    trigger: Trigger = Trigger()

    mask_pressure: Share = 0.8
    mask_chars: Chars = 300
    result_ratio: Share = 0.3
    result_max_chars: Chars = 400_000
    arguments_ratio: Share = 0.15
    arguments_max_chars: Chars = 200_000
    oldest_share: Annotated[float, Field(gt=0, le=1)] = 0.2
    fade_bands: tuple[Band, ...] = ((0.99, 0.05), (0.9, 0.2), (0.85, 0.5), (0.8, 1.0))
    position_pruning: bool = False
    keep_last_assistants: Annotated[int, Field(ge=0)] = 3
    soft_trim_ratio: Share = 0.3
    hard_clear_ratio: Share = 0.5
    soft_trim_chars: Chars = 1_500
    min_prunable_tool_chars: Chars = 50_000
    emergency_chars: Chars = 200
    max_tool_result_tokens: Tokens = 2_000
    summarize_after_turns: Annotated[int, Field(ge=0)] = 4
    told_result_chars: Chars = 200
    clear_tool_results: ClearToolResults = ClearToolResults()
    clear_reasoning: ClearReasoning = ClearReasoning()
    summarizer: Summarizer = Summarizer()


class Compaction(Section):
    lease_seconds: Seconds = 30.0
    wait_seconds: Seconds = 300.0


class Settings(Section):
    """Everything that can be set. Names and secrets are the operator's; no client value ever comes here."""

    server: Server = Server()
    database: Database = Database()
    auth: Auth = Auth()
    encryption: Encryption = Encryption()
    retention: Retention = Retention()
    telemetry: Telemetry = Telemetry()
    providers: dict[Name, Provider] = {}
    models: dict[str, Model] = {}
    retries: Retries = Retries()
    policy: str = "additive"
    policies: dict[Name, Policy] = {kind: Policy(kind=kind) for kind in POLICY_KINDS}
    compaction: Compaction = Compaction()
    degraded_mode: Literal["serve", "refuse"] = "serve"
    window_default: Tokens = 8192

    @property
    def uses_simulated_model(self) -> bool:
        """Whether the built-in stand-in answers, because no provider is configured."""
        return not self.providers

    @property
    def policy_of_every_model(self) -> str:
        """The policy where neither a request nor its model's own entry names one."""
        every = self.models.get(EVERY_MODEL)
        return every.policy if every is not None and every.policy else self.policy

    @property
    def served_models(self) -> dict[str, Model]:
        """`models`; while there are none and just one provider, that provider has every model."""
        if self.models or len(self.providers) != 1:
            return self.models
        return {EVERY_MODEL: Model(provider=next(iter(self.providers)))}
