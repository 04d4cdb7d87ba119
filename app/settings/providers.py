"""The settings of providers, of models, and of trying again. Each docstring of a field is its row in
`docs/configuration.md`."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, SecretStr

from app.settings.value_types import Dollars, HeaderName, HeaderValue, Seconds, Section, Tokens

EVERY_MODEL = "*"
"""The entry of `models` that stands for every name without an entry of its own."""
Encoding = Literal["o200k_base", "cl100k_base"]
CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key")
PRIVATE_ENDINGS = (".internal", ".local", ".localhost", ".test", ".home.arpa", ".lan", ".svc")
"""How names end that no stranger can register; `.svc` are those of a Kubernetes cluster."""


class Timeouts(Section):
    connect_seconds: Seconds = 5.0
    """Until the connection stands."""
    first_byte_seconds: Seconds = 600.0
    """From the request to the answer's first byte. An answer that is not streamed arrives whole, so this bounds how
    long it may be thought about."""
    between_bytes_seconds: Seconds = 300.0
    """Silence in the middle of an answer."""
    total_seconds: Seconds = 3600.0
    """The whole call."""


class Quirks(Section):
    """What a provider or model cannot take. A model's quirks win over its provider's, field by field."""

    merge_same_role: bool = False
    """Merge neighbouring messages of one role, for servers that demand that roles alternate."""
    developer_to_system: bool = False
    """Send `developer` messages as `system`."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """`max_tokens` or `max_completion_tokens`: the one that is understood. Empty: as the client wrote it."""
    strip_fields: tuple[str, ...] = ()
    """Top-level request fields to leave out."""
    stream_usage: bool = True
    """Ask streams for their usage. `false` for servers that refuse `stream_options`."""
    system_messages: Literal["keep", "first", "into_user"] = "keep"
    """`first`: join all system and developer messages into one at the beginning (Qwen refuses them elsewhere).
    `into_user`: put them at the head of the first user message, for models without a system role (Gemma 2)."""
    alternate_roles: bool = False
    """Let user and assistant take turns, tool calls aside, beginning with a user, as the templates of Mistral and
    Gemma demand: neighbours of one role are merged, assistant messages without content left out, and a word is put
    in where a turn is missing (`Noted.` between a tool's result and a user who did not wait for the answer,
    `Begin.` before an assistant that speaks first)."""
    reasoning: Literal["keep", "drop", "tool_loop", "tool_turns"] = "keep"
    """Which reasoning goes back (`reasoning_content`, `reasoning`, `reasoning_details`, thinking parts): `keep` all
    that the client sends, `drop` it, only what came since the newest user message (`tool_loop`), or that and
    whatever belongs to turns that called tools (`tool_turns`). Left out or sent as it is, never changed."""
    tool_call_ids: Literal["keep", "unique", "alnum9"] = "keep"
    """`unique`: fill in empty ids of tool calls and rename those used before, in calls and results alike. `alnum9`:
    that, as nine letters and digits, which Mistral demands."""
    tool_result_names: bool = False
    """Give each tool result the `name` of its tool."""
    split_calls: bool = False
    """Tell tool calls one after the other, each with its result, and apart from what is said beside them, for
    templates that take one call a message and nothing else (Llama 3.1)."""
    empty_content: Literal["keep", "text", "none"] = "keep"
    """Write an assistant's missing content as an empty string (`text`) or as null (`none`)."""
    flatten_text: bool = False
    """Send content that is a list of texts as one string."""
    message_fields: tuple[str, ...] | None = None
    """The only properties that messages may have besides `role`, `content`, and those of calls and results;
    `tool_calls.x` allows property `x` of each call. Empty: any. A refusal that is not allowed is sent as
    content."""
    strip_message_fields: tuple[str, ...] = ()
    """Properties of messages to leave out, written in the same way."""
    drop_nulls: bool = False
    """Leave out properties of messages that are `null` or empty, content aside."""
    restore_fields: tuple[str, ...] = ()
    """Properties that clients drop from our answers and the provider wants back, such as `reasoning_content`
    (DeepSeek) or `tool_calls.extra_content` (Gemini's thought signatures): taken from the stored answers, byte for
    byte. Without any, nothing is read from the store for it."""
    restore_scope: Literal["tool_loop", "tool_turns"] = "tool_loop"
    """Where they are restored: since the newest user message (`tool_loop`), or also in every earlier turn that
    called a tool (`tool_turns`)."""

    def merge_over(self, base: Quirks) -> Quirks:
        """`base`, with what was set here in its place."""
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class Provider(Section):
    protocol: Literal["openai"] = "openai"
    """The protocol it speaks."""
    base_url: str = ""
    """Its address up to, and without, `/chat/completions`. A query (`?api-version=…`) goes with each call.
    Required."""
    api_key: HeaderValue | None = None
    """The key to call it with. Empty: in mode `open` the client's own key is passed on, if it is meant for this
    provider ([which that is](keys.md#whose-key-a-provider-gets)); in mode `keys` the provider is called without one,
    so only a provider on this machine or in a private network may go without."""
    pass_client_key: bool = False
    """In mode `open`, for a provider without a key of its own: pass every client's key on to it, also when it is only
    a fallback, writes a summary or lists its models. `false`: only where it is the first provider of the model that
    the client asked for."""
    auth_header: HeaderName = "authorization"
    """The header that carries the key: `authorization` as `Bearer <key>`, any other the key alone (`api-key` for
    Azure)."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Further headers to send with each request."""
    proxy: SecretStr | None = None  # secret because it may carry a password
    """Address of an HTTP proxy to reach it through, such as `http://proxy.internal:3128`. `HTTPS_PROXY` is not read;
    `"${HTTPS_PROXY:-}"` here is the address that it holds, if it holds one."""
    ca_file: str | None = None
    """A file of certificates in PEM form that are trusted in place of the system's roots: of an authority of your own,
    or of a server that signs its certificate itself. For a proxy that is reached over TLS, too."""
    timeouts: Timeouts = Timeouts()
    quirks: Quirks = Quirks()

    @property
    def has_own_key(self) -> bool:
        """Whether it is called with a credential of the operator's, wherever that stands in its settings."""
        if self.api_key:
            return True
        url = urlsplit(self.base_url)
        in_query = any(name.lower().endswith(("key", "token")) for name, _ in parse_qsl(url.query))
        sent = {name.lower() for name, value in self.headers.items() if value.get_secret_value()}
        return bool(url.username or in_query or sent & {self.auth_header.lower(), *CREDENTIAL_HEADERS})

    @property
    def client_key_rule(self) -> Literal["never", "if_meant", "always"]:
        """Which clients' keys it is shown in mode `open`. A key in `api_key` wins over all of them."""
        if self.pass_client_key and not self.api_key:
            return "always"
        return "never" if self.has_own_key else "if_meant"

    @property
    def has_private_address(self) -> bool:
        """Whether its address is this machine's or in a private network, by what the address itself says: names are
        not looked up."""
        host = (urlsplit(self.base_url).hostname or "").rstrip(".")
        try:
            return not ipaddress.ip_address(host).is_global
        except ValueError:
            return "." not in host or host.endswith(PRIVATE_ENDINGS)


class Price(Section):
    """US dollars for a million tokens; None: what the list of well-known models says, if anything."""

    input: Dollars | None = None
    """US dollars for a million prompt tokens, for what is reported as cost. Empty: the list price of a well-known
    model; for another, the cost is not known. `0` for a model that costs nothing."""
    cached_input: Dollars | None = None
    """For a million prompt tokens that the provider read from its cache. Empty, where `price.input` is set: the
    same as that."""
    output: Dollars | None = None
    """For a million tokens of answers."""


class Deployment(Section):
    provider: str = ""
    """Which provider has it. Required, unless each of `deployments` says so."""
    model: str | None = None
    """The provider's name for it, where that is another: the entry is then an alias."""
    context_window: Tokens | None = None
    """Tokens, prompt and answer together. Where it is not set, the provider's model list, what its errors taught,
    and a registry of known models are asked in that order, then `window_default`. May be smaller than the model's
    own."""
    max_output_tokens: Tokens | None = None
    """The longest answer the model gives."""
    encoding: Encoding | None = None
    """Tokenizer to count with, `o200k_base` or `cl100k_base`. Empty: by the model's name."""
    price: Price = Price()
    quirks: Quirks = Quirks()
    """What this model cannot take. A model's quirks win over its provider's, a deployment's over both, each where it is
    set."""


class Model(Deployment):
    """A name that clients may ask for: one deployment written flat, or several under `deployments`, for which the
    fields written flat are the defaults."""

    policy: str | None = None
    """The policy of requests for this model that name none. Empty: that of the entry `"*"`, else `policy`."""
    fallbacks: tuple[str, ...] = ()
    """Models to ask, in this order, when no deployment of this one can answer."""
    deployments: tuple[Deployment, ...] = ()
    """Several places with the same model, tried in order. Where a deployment leaves a field out, the entry's own holds;
    one that sets any price sets all of them."""

    def expand_deployments(self) -> tuple[Deployment, ...]:
        """The deployments in order, each with the entry's own fields where it leaves them out."""
        defaults = Deployment(**{name: getattr(self, name) for name in Deployment.model_fields})
        return tuple(_apply_defaults(deployment, defaults) for deployment in self.deployments) or (defaults,)


def _apply_defaults(deployment: Deployment, defaults: Deployment) -> Deployment:
    written = {name: getattr(deployment, name) for name in deployment.model_fields_set}
    return defaults.model_copy(update=written | {"quirks": deployment.quirks.merge_over(defaults.quirks)})


class Retries(Section):
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Tries of one deployment, the first included, before the next deployment or fallback."""
    base_seconds: Seconds = 0.5
    """Pause before the second try; doubled for each further one, with jitter."""
    max_seconds: Seconds = 8.0
    """The longest such pause."""
    retry_after_max_seconds: Seconds = 20.0
    """A provider that asks for a longer pause than this is not waited for."""
    total_wait_seconds: Seconds = 60.0
    """The most that the pauses of one request may add up to."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """After so many failures in a row, a deployment is left alone …"""
    breaker_seconds: Seconds = 30.0
    """… for this long, then twice as long each further time …"""
    breaker_max_seconds: Seconds = 600.0
    """… up to this."""
