"""The models behind us: what a provider is asked and what it gives back. OpenAI's wire form on both sides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import msgspec

from app.errors import UpstreamUnavailable


class AnswerTimedOut(UpstreamUnavailable):
    """The call was sent, but no answer began in time: asking the same place again would double the wait."""


class ConnectionDropped(UpstreamUnavailable):
    """The connection was closed before any byte of an answer, as happens to an idle one: worth an instant retry."""


class CallTimes:
    """When a call went how far, in monotonic seconds. A provider notes the last two as far as it can tell."""

    __slots__ = ("ended_at", "first_byte_at", "started_at")

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.first_byte_at: float | None = None
        self.ended_at: float | None = None


class UpstreamRequest(msgspec.Struct, frozen=True):
    """One HTTP call to a provider: `path` below its base URL, such as ``/chat/completions``."""

    path: str
    body: bytes = b""
    method: str = "POST"
    authorization: str | None = None
    """The client's own `Authorization` value, where this provider may see it (`ClientKey.show_to`)."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Further headers to send, lower-case names."""
    query: str = ""
    times: CallTimes | None = None


ClientKeyRule = Literal["never", "if_meant", "always"]
"""Whether a provider is shown clients' keys: `never` (it has a credential of its own), `if_meant` for it, or `always`
(`pass_client_key`)."""


class ClientKey(msgspec.Struct, frozen=True):
    """A client's own credential and the one provider that it is meant for. Calls take the credential from here alone,
    so no other provider can receive it by mistake."""

    authorization: str
    """As a value of `Authorization`."""
    intended_provider: str | None
    """The provider's name."""

    def show_to(self, provider: UpstreamProvider) -> str | None:
        """The credential, if this provider may see it."""
        rule = provider.client_key_rule
        may_see = rule == "always" or (rule == "if_meant" and provider.name == self.intended_provider)
        return self.authorization if may_see else None

    def is_withheld_from(self, provider: UpstreamProvider) -> bool:
        """Whether a provider that needs a client's key does not get this one."""
        return provider.client_key_rule == "if_meant" and provider.name != self.intended_provider


def bind_client_key(authorization: str | None, intended_provider: UpstreamProvider | None) -> ClientKey | None:
    """A client's credential, bound to a provider; None where the client showed none."""
    return (
        None
        if authorization is None
        else ClientKey(authorization, intended_provider.name if intended_provider else None)
    )


def find_only_keyless_provider(providers: Iterable[UpstreamProvider]) -> UpstreamProvider | None:
    """The provider that is meant by a key that comes without a model: the only one without a credential of its own."""
    keyless = [provider for provider in providers if provider.client_key_rule != "never"]
    return keyless[0] if len(keyless) == 1 else None


class UpstreamReply(Protocol):
    """An upstream's answer whose status and headers have arrived. Must be closed, once read or not."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names."""

    async def read(self) -> bytes:
        """The whole body, decoded from any content encoding.

        Raises:
            UpstreamUnavailable: it broke off or took too long.
        """

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """The body in pieces as they arrive.

        Raises:
            UpstreamUnavailable: while iterating, when it breaks off or stays silent too long.
        """

    async def aclose(self) -> None:
        """Let go of the connection; cuts a stream that has not ended."""


class UpstreamProvider(Protocol):
    """A model server that speaks OpenAI's protocol, or is made to look like one."""

    name: str
    client_key_rule: ClientKeyRule

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        """Send a call; returns when the status line and headers are there, whatever the status.

        Raises:
            UpstreamUnavailable: no connection, or no answer in time.
        """

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        """Its model list (OpenAI's `data` array), for the merged list and for context windows.

        Raises:
            UpstreamUnavailable: it could not be had.
        """

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ProviderQuirks:
    """What a provider cannot take; applied to the request after the view is planned."""

    merge_same_role: bool = False
    """Neighbouring messages of one role become one; part of `alternate_roles`."""
    developer_to_system: bool = False
    max_tokens_field: str | None = None
    """`max_tokens` or `max_completion_tokens`: the name the provider understands."""
    strip_fields: tuple[str, ...] = ()
    """Top-level request fields that it refuses."""
    stream_usage: bool = True
    """Whether `stream_options.include_usage` may be asked for."""
    system_messages: Literal["keep", "first", "into_user"] = "keep"
    """`first`: all of them as one leading message (Qwen's template); `into_user`: at the head of the first user message
    (Gemma 2 knows no system role)."""
    alternate_roles: bool = False
    """Users and assistants take turns, tool calls aside, and a user begins (Mistral's and Gemma's templates)."""
    reasoning: Literal["keep", "drop", "tool_loop", "tool_turns"] = "keep"
    """Whose reasoning goes back: everyone's, nobody's, that since the newest user message, or that and the one of every
    turn that called a tool."""
    tool_call_ids: Literal["keep", "unique", "alnum9"] = "keep"
    """`unique`: filled in where empty, and never used twice; `alnum9`: that, and nine letters or digits (Mistral)."""
    tool_result_names: bool = False
    """Results bear the name of the tool."""
    split_calls: bool = False
    """Calls are told one after the other, and apart from what is said beside them (Llama 3.1's template)."""
    empty_content: Literal["keep", "text", "none"] = "keep"
    """How an assistant's missing content is written: ``""`` or ``null``."""
    flatten_text: bool = False
    """A list of text parts becomes one string."""
    message_fields: tuple[str, ...] | None = None
    """The only properties of messages that it knows besides those of their role; `tool_calls.x` is one of each call."""
    strip_message_fields: tuple[str, ...] = ()
    """Properties of messages that it refuses."""
    drop_nulls: bool = False
    """Properties of messages that say nothing are left out, ``tool_calls: []`` too."""
    restore_fields: tuple[str, ...] = ()
    """Properties of our answers that it wants back; where a client left them out they are taken from the store."""
    restore_scope: Literal["tool_loop", "tool_turns"] = "tool_loop"


NO_QUIRKS: Final = ProviderQuirks()
"""Of providers that take everything."""


class ContextWindow(msgspec.Struct, frozen=True):
    """A context window and where it is known from: `config`, `upstream`, `learned`, `registry` or `default`."""

    tokens: int
    """Prompt and answer together."""
    source: str
    max_output_tokens: int | None = None
    """The longest answer."""
    max_input_tokens: int | None = None
    """The longest prompt, where that is less than the window."""


class TokenPrice(msgspec.Struct, frozen=True):
    """US dollars for a million tokens; None where it is not known."""

    input: float | None = None
    cached_input: float | None = None
    """None: cached tokens cost what others do."""
    output: float | None = None


UNKNOWN_PRICE: Final = TokenPrice()


@dataclass(frozen=True, slots=True)
class ModelDeployment:
    """One place where a model can be had."""

    provider: UpstreamProvider
    upstream_model: str
    """The name that the provider knows the model by."""
    context_window: int | None = None
    """From configuration."""
    max_output_tokens: int | None = None
    encoding: str | None = None
    """Tokenizer encoding from configuration; otherwise by model name."""
    quirks: ProviderQuirks = NO_QUIRKS
    price: TokenPrice = UNKNOWN_PRICE
    """From configuration; none of it: the list's (`upstream.routing.prices`)."""
    key: str = field(init=False, repr=False, compare=False)
    """`provider/model`: under which facts about it are learned."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", f"{self.provider.name}/{self.upstream_model}")


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """What a requested model name stands for: deployments in the order in which they are tried."""

    model: str
    deployments: tuple[ModelDeployment, ...]


class RoutedReply(msgspec.Struct, frozen=True):
    """An upstream call that has begun to answer."""

    reply: UpstreamReply
    deployment: ModelDeployment
    attempt_count: int
