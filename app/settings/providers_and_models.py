"""The settings of providers, models and retries. The docstring of each field is its row in `docs/configuration.md`."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, SecretStr

from app.settings.value_types import Dollars, HeaderName, HeaderValue, KeyValue, Seconds, Section, Tokens

EVERY_MODEL = "*"
"""The key in `models` whose entry serves every model name without an entry of its own."""
Encoding = Literal["o200k_base", "cl100k_base"]
CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key")
"""Headers in which providers take a key: OpenAI, Azure, Anthropic, Gemini."""
OPENAI_HOST = "api.openai.com"
"""Also the end of the names of its regions, such as `eu.api.openai.com`."""
PRIVATE_ENDINGS = (".internal", ".local", ".localhost", ".test", ".home.arpa", ".lan", ".svc")
"""Endings of host names that nobody can register in public DNS. `.svc` names services in a Kubernetes cluster."""


class Timeouts(Section):
    connect_seconds: Seconds = 5.0
    """The longest time to open a connection."""
    first_byte_seconds: Seconds = 600.0
    """The longest time to the first byte of the answer's body; without streaming, for the whole answer."""
    between_bytes_seconds: Seconds = 300.0
    """The longest time between two pieces of an answer."""
    total_seconds: Seconds = 3600.0
    """The longest time for the whole call."""


class Quirks(Section):
    """Changes for a provider or model that does not take every request of OpenAI's protocol. A quirk that is set for a
    model wins over the same quirk of its provider.
    """

    merge_same_role: bool = False
    """Merges neighbouring messages of one role."""
    developer_to_system: bool = False
    """Sends `developer` messages as `system` messages."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """The field that the provider understands. Empty: as the client wrote it."""
    strip_fields: tuple[str, ...] = ()
    """Fields of the request that are not sent."""
    stream_usage: bool = True
    """Asks for the usage at the end of a stream. `false` for servers that refuse `stream_options`."""
    system_messages: Literal["keep", "first", "into_user"] = "keep"
    """`first`: merges all system and developer messages into one at the beginning (Qwen refuses them elsewhere).
    `into_user`: puts them at the beginning of the first user message, for models without a system role (Gemma 2)."""
    alternate_roles: bool = False
    """Makes user and assistant messages alternate, a user message first, as the templates of Mistral and Gemma demand:
    neighbours of one role are merged, assistant messages without content left out, and missing messages inserted
    (`Noted.` after a tool's result, `Begin.` at the beginning)."""
    reasoning: Literal["keep", "drop", "tool_loop", "tool_turns"] = "keep"
    """Which reasoning of the client history is sent: all (`keep`), none (`drop`), that since the newest user message
    (`tool_loop`), or also that of every turn that called a tool (`tool_turns`)."""
    tool_call_ids: Literal["keep", "unique", "alnum9"] = "keep"
    """`unique`: gives a new id to each tool call, and its result, whose id is empty or was used before. `alnum9`: the
    same, with nine letters and digits, as Mistral demands."""
    tool_result_names: bool = False
    """Adds the tool's `name` to each tool result."""
    split_calls: bool = False
    """Sends each tool call in a message of its own, followed by its result (Llama 3.1)."""
    empty_content: Literal["keep", "text", "none"] = "keep"
    """How the missing content of an assistant message is sent: as an empty string (`text`), as null (`none`), or as it
    came (`keep`)."""
    flatten_text: bool = False
    """Sends content that is a list of text parts as one string."""
    message_fields: tuple[str, ...] | None = None
    """The only properties of messages that are sent, besides `role`, `content` and those of calls and results.
    `tool_calls.x` allows property `x` of each call. `null`: all."""
    strip_message_fields: tuple[str, ...] = ()
    """Properties of messages that are not sent, written as in `message_fields`."""
    drop_nulls: bool = False
    """Leaves out properties of messages that are `null` or empty, except the content."""
    restore_fields: tuple[str, ...] = ()
    """Properties that clients drop although the provider needs them back, such as `reasoning_content` (DeepSeek) or
    `tool_calls.extra_content` (Gemini): restored from the stored answers, byte for byte."""
    restore_scope: Literal["tool_loop", "tool_turns"] = "tool_loop"
    """Where `restore_fields` are restored: since the newest user message, or also in every earlier turn that called a
    tool (`tool_turns`)."""

    def merge_over(self, base: Quirks) -> Quirks:
        """Returns `base` with each quirk replaced that is set here. A quirk counts as set if the configuration names
        it, even with its default value.
        """
        return base.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class Provider(Section):
    protocol: Literal["openai", "responses", "anthropic"] = "openai"
    """The protocol of the provider's models: Chat Completions (`openai`), the Responses API, or Anthropic's Messages
    API."""
    base_url: str = ""
    """The provider's address, without `/chat/completions`, `/responses` or `/messages`. A query (`?api-version=…`) is
    sent with each call. Required."""
    api_key: KeyValue | None = None
    """The key for calls to this provider. Empty: [whose key it gets](keys.md#whose-key-a-provider-gets)."""
    pass_client_key: bool = False
    """In mode `open`, for a provider without a key: `true` passes every client's key on, also for fallbacks, summaries
    and model lists."""
    auth_header: HeaderName = "authorization"
    """The header that carries the key: `authorization` as `Bearer <key>`, any other the key alone (`api-key` for
    Azure). With protocol `anthropic`, `authorization` stands for `x-api-key`."""
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    """Further headers of each call."""
    proxy: SecretStr | None = None  # secret because it may carry a password
    """An HTTP proxy for calls to this provider (`HTTPS_PROXY` is not read), such as `http://proxy.internal:3128`
    ([proxies](operations.md#proxies-and-certificates))."""
    ca_file: str | None = None
    """A PEM file of certificates that are trusted instead of the system's roots."""
    pass_through: tuple[str, ...] = ("embeddings", "moderations", "audio", "images")
    """In mode `keys`: the paths below `/v1` that are [passed through](keys.md#passing-through), with everything below
    them. `["*"]`: every path."""
    timeouts: Timeouts = Timeouts()
    quirks: Quirks = Quirks()

    @property
    def has_own_key(self) -> bool:
        """Says whether calls carry a credential of the operator: as `api_key`, in the address, or in a header."""
        if self.api_key:
            return True
        url = urlsplit(self.base_url)
        # A name that only looks like a credential's counts, too: a client's key is then not passed on, which is the
        # safe mistake.
        in_query = any(name.lower().endswith(("key", "token")) for name, _ in parse_qsl(url.query))
        sent_headers = {name.lower() for name, value in self.headers.items() if value.get_secret_value()}
        return bool(url.username or in_query or sent_headers & {self.auth_header.lower(), *CREDENTIAL_HEADERS})

    @property
    def client_key_rule(self) -> Literal["never", "if_meant", "always"]:
        """Which clients' keys the provider gets in mode `open`. A key in `api_key` wins over all of them."""
        # Headers of the operator do not overrule `pass_client_key`: they may be needed beside the client's key.
        if self.pass_client_key and not self.api_key:
            return "always"
        return "never" if self.has_own_key else "if_meant"

    @property
    def is_openai(self) -> bool:
        """Says whether the address is OpenAI's own."""
        return (urlsplit(self.base_url).hostname or "").endswith(OPENAI_HOST)

    @property
    def has_private_address(self) -> bool:
        """Says whether the address is on this machine or in a private network. Names are not looked up in DNS."""
        host = (urlsplit(self.base_url).hostname or "").rstrip(".")
        try:
            # Not `is_private`: shared addresses (100.64.0.0/10) are neither private nor global, and the internet does
            # not route them.
            return not ipaddress.ip_address(host).is_global
        except ValueError:
            # A name without a dot is resolved by the local network or a container's own DNS only.
            return "." not in host or host.endswith(PRIVATE_ENDINGS)


class Price(Section):
    """US dollars for a million tokens. None: the list price of a well-known model, if there is one."""

    input: Dollars | None = None
    """US dollars for a million prompt tokens. Empty: the list price of a well-known model."""
    cached_input: Dollars | None = None
    """US dollars for a million prompt tokens from the provider's cache. Empty: as `price.input`, or the list price."""
    cache_write: Dollars | None = None
    """US dollars for a million prompt tokens that go to the provider's cache. Empty: as `price.input`, or the list
    price."""
    output: Dollars | None = None
    """US dollars for a million tokens of answers."""


class Deployment(Section):
    provider: str = ""
    """The provider that serves the model. Required, unless each of `deployments` names one."""
    model: str | None = None
    """The provider's name for the model, if it is another one."""
    context_window: Tokens | None = None
    """Tokens of prompt and answer together; may be smaller than the model's own. Empty: the first known of the
    provider's model list, the limit in its overflow errors, a registry of known models, and `window_default`."""
    max_output_tokens: Tokens | None = None
    """The longest answer that the model gives."""
    encoding: Encoding | None = None
    """The tokenizer that counts the model's tokens. Empty: chosen by the model's name."""
    price: Price = Price()
    cache: Literal["anthropic", "breakpoints", "prefix", "none"] | None = None
    """What the provider's prompt cache reads: what ends at `cache_control` (`anthropic`) or at
    `prompt_cache_breakpoint` (`breakpoints`, gpt-5.6 and later), or any beginning (`prefix`). The gateway sets these
    marks, and `prompt_cache_key` for the last two. `none`: it sets nothing. Empty: known models of Anthropic, and of
    OpenAI at its own address ([marks](conversation-costs.md#marks-for-the-providers-cache))."""
    quirks: Quirks = Quirks()
    """As `providers.<name>.quirks`. They win over the provider's; a deployment's win over both."""


class Model(Deployment):
    """A model name that clients may request. The fields of the entry describe its only deployment, or, if there are
    `deployments`, the defaults for these.
    """

    policy: str | None = None
    """The policy of requests for this model. Empty: that of the entry `"*"`, else `policy`."""
    fallbacks: tuple[str, ...] = ()
    """Models that are called, in this order, if no deployment can answer."""
    deployments: tuple[Deployment, ...] = ()
    """Several deployments of the model, tried in order. Fields that one leaves out are the entry's (`price` as a
    whole)."""

    def expand_deployments(self) -> tuple[Deployment, ...]:
        """Returns the deployments in order. A field that a deployment leaves out is taken from the entry."""
        defaults = Deployment(**{name: getattr(self, name) for name in Deployment.model_fields})
        return tuple(_apply_deployment_defaults(deployment, defaults) for deployment in self.deployments) or (defaults,)


def _apply_deployment_defaults(deployment: Deployment, defaults: Deployment) -> Deployment:
    written = {name: getattr(deployment, name) for name in deployment.model_fields_set}
    return defaults.model_copy(update=written | {"quirks": deployment.quirks.merge_over(defaults.quirks)})


class Retries(Section):
    attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """How often one deployment is called in all, before the next deployment or fallback."""
    base_seconds: Seconds = 0.5
    """The pause before the second call. It doubles before each further call, with jitter."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """How many failures in a row open the circuit breaker of a deployment, which is then not called. Failures of one
    prompt alone never open it; those of one tenant pause only that tenant's calls."""
    breaker_seconds: Seconds = 30.0
    """The first pause of a circuit breaker. Each further failure doubles it."""
    breaker_max_seconds: Seconds = 600.0
    """The longest pause of a circuit breaker."""
