"""The contract of providers: what they are asked and what they answer. Both are in the form of the provider's
protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import msgspec

from app.errors import UpstreamUnavailable


class AnswerTimedOut(UpstreamUnavailable):
    """The call was sent, but no answer began in time. It is not retried at the same deployment: that would double the
    wait.
    """


class ConnectionDropped(UpstreamUnavailable):
    """The connection was closed before any byte of an answer, as servers do with idle ones. It is worth an immediate
    retry.
    """


ProviderProtocol = Literal["openai", "responses", "anthropic"]
"""The protocol of a provider's answers to a model call: Chat Completions, the Responses API, or the Messages API."""
CALL_PATHS: Final[dict[str, str]] = {
    "openai": "/chat/completions",
    "responses": "/responses",
    "anthropic": "/messages",
}
"""The path of a model call, below the provider's base URL."""
COUNT_PATHS: Final[dict[str, str]] = {"anthropic": "/messages/count_tokens"}
"""The path of a call that only counts a request's tokens, for protocols that have one."""


ANSWER_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""The longest answer of a model, whole or streamed: it is held in memory until it is stored. A token takes some 300
bytes of a stream, so this is room for 200,000."""
PASSTHROUGH_LIMIT_BYTES: Final = 256 * 1024 * 1024
"""The longest answer that is passed through, piece by piece."""


class CallTimes(msgspec.Struct):
    """The times of a call, in monotonic seconds. A provider sets the last two as far as it can tell."""

    started_at: float
    first_byte_at: float | None = None
    ended_at: float | None = None


class UpstreamRequest(msgspec.Struct, frozen=True):
    """One HTTP call to a provider: `path` below its base URL, such as ``/chat/completions``."""

    path: str
    body: bytes = b""
    method: str = "POST"
    authorization: str | None = None
    """The client's own `Authorization` value, if this provider may see it (`ClientKey.disclose_to_provider`)."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Further headers to send, lower-case names."""
    query: str = ""
    times: CallTimes | None = None
    answer_limit_bytes: int = ANSWER_LIMIT_BYTES
    """A longer answer is cut off, and its call fails."""


ClientKeyRule = Literal["never", "if_meant", "always"]
"""When a provider is shown clients' keys: `never` (it has a credential of its own), `if_meant` for it, or `always`
(`pass_client_key`). See decision 31."""


class ClientKey(msgspec.Struct, frozen=True):
    """A client's own credential and the one provider that it is meant for. Calls take the credential only from here, so
    no other provider can receive it by mistake.
    """

    authorization: str
    """A value of the `Authorization` header."""
    intended_provider: str | None
    """The provider's name."""

    def disclose_to_provider(self, provider: UpstreamProvider) -> str | None:
        """Returns the credential if this provider may see it."""
        rule = provider.client_key_rule
        may_see = rule == "always" or (rule == "if_meant" and provider.name == self.intended_provider)
        return self.authorization if may_see else None

    def is_withheld_from(self, provider: UpstreamProvider) -> bool:
        """Says whether a provider that needs a client's key does not get this one."""
        return provider.client_key_rule == "if_meant" and provider.name != self.intended_provider


def bind_client_key(authorization: str | None, intended_provider: UpstreamProvider | None) -> ClientKey | None:
    """Returns a client's credential, bound to a provider; None if the client sent none."""
    if authorization is None:
        return None
    return ClientKey(authorization, intended_provider.name if intended_provider else None)


def find_only_keyless_provider(providers: Iterable[UpstreamProvider]) -> UpstreamProvider | None:
    """Returns the provider that a client's key is meant for if the request names no model: the only one without a
    credential of its own. None if there are several: a key is never guessed to be for one of them.
    """
    keyless = [provider for provider in providers if provider.client_key_rule != "never"]
    return keyless[0] if len(keyless) == 1 else None


class UpstreamReply(Protocol):
    """A provider's answer whose status and headers have come. It must be closed, whether it was read or not."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names."""

    async def read(self) -> bytes:
        """Returns the whole body, decoded from any content encoding.

        Raises:
            UpstreamUnavailable: the body broke off or took too long.
        """

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yields the body in pieces as they arrive.

        Raises:
            UpstreamUnavailable: while iterating, if the body breaks off or stays silent too long.
        """

    async def aclose(self) -> None:
        """Releases the connection; cuts a stream that has not ended."""


class UpstreamProvider(Protocol):
    """A model server whose answers have the form of Chat Completions, or are translated into it."""

    name: str
    protocol: ProviderProtocol
    client_key_rule: ClientKeyRule

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        """Sends a call and returns when status and headers have come, whatever the status is.

        Raises:
            UpstreamUnavailable: no connection, or no answer in time.
        """

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        """Returns its model list (OpenAI's `data` array), for the merged list and for context windows.

        Raises:
            UpstreamUnavailable: the list could not be fetched.
        """

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ProviderQuirks:
    """What a provider cannot take. Quirks are applied to the request after the view is planned."""

    merge_same_role: bool = False
    """Neighbouring messages of one role are merged; part of `alternate_roles`."""
    developer_to_system: bool = False
    max_tokens_field: str | None = None
    """`max_tokens` or `max_completion_tokens`: the name that the provider understands."""
    strip_fields: tuple[str, ...] = ()
    """Top-level request fields that the provider refuses."""
    stream_usage: bool = True
    """Whether `stream_options.include_usage` may be asked for."""
    system_messages: Literal["keep", "first", "into_user"] = "keep"
    """`first`: all of them become one leading message (Qwen's template); `into_user`: they are put at the head of
    the first user message (Gemma 2 has no system role)."""
    alternate_roles: bool = False
    """User and assistant alternate, tool calls aside, and a user begins (Mistral's and Gemma's templates)."""
    reasoning: Literal["keep", "drop", "tool_loop", "tool_turns"] = "keep"
    """Which reasoning is sent back: all (`keep`), none (`drop`), that since the newest user message (`tool_loop`),
    or also that of every turn that called a tool (`tool_turns`)."""
    tool_call_ids: Literal["keep", "unique", "alnum9"] = "keep"
    """`unique`: empty ids are filled in and none is used twice; `alnum9`: also, each has nine letters or digits
    (Mistral)."""
    tool_result_names: bool = False
    """Results carry the name of the tool."""
    split_calls: bool = False
    """Each call is a message of its own, followed by its result, and separate from the text (Llama 3.1's template)."""
    empty_content: Literal["keep", "text", "none"] = "keep"
    """How an assistant's missing content is written: ``""`` (`text`) or ``null`` (`none`)."""
    flatten_text: bool = False
    """A list of text parts becomes one string."""
    message_fields: tuple[str, ...] | None = None
    """The only properties of messages that the provider knows besides those of their role; `tool_calls.x` is a
    property of each call."""
    strip_message_fields: tuple[str, ...] = ()
    """Properties of messages that the provider refuses."""
    drop_nulls: bool = False
    """Empty properties of messages are left out, also ``tool_calls: []``."""
    restore_fields: tuple[str, ...] = ()
    """Properties of answers that the provider wants back. If a client left them out, they are taken from the store."""
    restore_scope: Literal["tool_loop", "tool_turns"] = "tool_loop"


NO_QUIRKS: Final = ProviderQuirks()
"""For providers that take everything."""


class ContextWindow(msgspec.Struct, frozen=True):
    """A context window and the source it is known from: `config`, `upstream`, `learned`, `registry` or `default`."""

    tokens: int
    """Prompt and answer together."""
    source: str
    max_output_tokens: int | None = None
    """The longest answer."""
    max_input_tokens: int | None = None
    """The longest prompt, if that is less than the window."""
    without_limit: ContextWindow | None = None
    """The window as it is known without a learned limit; None if no learned limit lowers it."""

    def apply_limit(self, tokens: int) -> ContextWindow:
        """Returns the window with a learned limit; the same window if the limit is not smaller."""
        if tokens >= self.tokens:
            return self
        unlimited = self.without_limit or self
        return ContextWindow(tokens, "learned", self.max_output_tokens, self.max_input_tokens, unlimited)


class TokenPrice(msgspec.Struct, frozen=True):
    """US dollars for a million tokens; None if unknown."""

    input: float | None = None
    cached_input: float | None = None
    """None: cached tokens cost the same as others."""
    output: float | None = None
    cache_write: float | None = None
    """Of tokens that are written to the provider's cache; None: the same as others."""
    long_cache_write: float | None = None
    """Likewise, where the cache keeps them for the longer of two lifetimes; None: as `cache_write`."""
    long_prompts: LongPromptPrice | None = None
    """What a call costs whose prompt is longer than a limit; None: the same."""


class LongPromptPrice(msgspec.Struct, frozen=True):
    """The price of all tokens of a call whose prompt has more than `above_tokens` tokens."""

    above_tokens: int
    price: TokenPrice


UNKNOWN_PRICE: Final = TokenPrice()
CacheRule = Literal["anthropic", "breakpoints", "prefix", "none"]
"""What a provider's prompt cache can find: what ends at `cache_control` (`anthropic`) or at `prompt_cache_breakpoint`
(`breakpoints`), any beginning of a prompt (`prefix`), or nothing that a request may say anything about (`none`)."""


@dataclass(frozen=True, slots=True)
class ModelDeployment:
    """One model at one provider."""

    provider: UpstreamProvider
    upstream_model: str
    """The provider's name for the model."""
    context_window: int | None = None
    """From configuration."""
    max_output_tokens: int | None = None
    encoding: str | None = None
    """Tokenizer encoding from configuration; None: by model name."""
    quirks: ProviderQuirks = NO_QUIRKS
    price: TokenPrice = UNKNOWN_PRICE
    """From configuration; without one, the list price (`upstream.routing.prices`)."""
    cache: CacheRule = "none"
    key: str = field(init=False, repr=False, compare=False)
    """`provider/model`: the key under which facts about it are stored."""
    takes_cache_key: bool = field(init=False, repr=False, compare=False)
    """Whether requests may have `prompt_cache_key`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.provider.name}/{self.upstream_model}")
        takes_key = self.cache in ("breakpoints", "prefix") and self.provider.protocol != "anthropic"
        object.__setattr__(self, "takes_cache_key", takes_key)


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """The deployments for a requested model name, in the order in which they are tried."""

    model: str
    deployments: tuple[ModelDeployment, ...]


class RoutedReply(msgspec.Struct, frozen=True):
    """The answer to a routed call, whose head has come."""

    reply: UpstreamReply
    deployment: ModelDeployment
    attempt_count: int
