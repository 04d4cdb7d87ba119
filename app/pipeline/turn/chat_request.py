"""A chat request, parsed as far as the gateway needs it. The rest of the body stays bytes, so that it reaches the
provider unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from app.context.plan.outline import SummarizeMode
from app.context.plan.policy import RecallMode
from app.conversation.api_keys import SCOPES, KeyBudget, Scope, derive_context_tenant
from app.conversation.conversation_types import Conversation
from app.dialects.answer_format import AnswerFormat, CapsuleFormat, EventStyle
from app.dialects.client_dialects import CLIENT_DIALECTS, make_default_answer_format
from app.dialects.request_body import END_USER_FIELDS, decode_field
from app.store.call_allowance import CallAllowance

ContextMode = Literal["auto", "append", "resend", "stateless"]
ContextDetail = Literal["brief", "full"]
RETRY_MAX_AGE_SECONDS: Final = 600.0
"""How long after an attempt its retry may come. SDKs time out after ten minutes, so the next attempt begins by then."""
BRIEF_FIELDS: Final = (
    *("window", "prompt_tokens", "limit", "summaries", "verbatim_messages", "trimmed_messages", "dropped_messages"),
    *("cost", "warnings"),
)
"""The members of `context` that a client gets if it does not ask for all."""


class Caller(msgspec.Struct, frozen=True):
    """Who sent a request, and with which rights. No data of one tenant is shown to another."""

    tenant: str
    authorization: str | None = None
    """The client's own credential in mode `open`. It is sent upstream as a `ClientKey`, bound to one provider."""
    scopes: tuple[Scope, ...] = SCOPES
    default_policy: str | None = None
    """The context policy of requests that name none."""
    allowed_models: tuple[str, ...] = ()
    """The names of models that the caller may ask for, with wildcards. Empty: all models."""
    api_key_id: str | None = None
    """The id of the API key that authenticated the request."""
    api_key_name: str | None = None
    """What people call the API key."""
    budget_usd: float | None = None
    """What the API key may spend in a calendar month, in US dollars."""
    requests_per_minute: int | None = None
    """The API key's own limit; None: that of the settings."""
    tokens_per_minute: int | None = None
    """The API key's own limit; None: that of the settings."""
    pass_through: tuple[str, ...] | None = None
    """The paths below `/v1` that are passed through for the API key; None: those that its provider allows."""
    sees_all_tenants: bool = False
    """Whether lists are over all tenants, and conversations are found in whichever tenant has them: an operator."""
    may_see_all_tenants: bool = False
    """Whether the caller is an operator who looks in one tenant, and could look in all."""

    @property
    def budget(self) -> KeyBudget | None:
        """The budget of the caller's key."""
        if self.budget_usd is None or self.api_key_id is None:
            return None
        return KeyBudget(self.api_key_id, self.budget_usd)


class CompactionOptions(msgspec.Struct, frozen=True):
    """What a request asks of its compaction."""

    summarize: SummarizeMode = "auto"
    through_seq: int | None = None
    """If `summarize` is ``now``: only the messages before this seq are summarized."""
    instructions: str | None = None
    """What a summary should pay attention to."""
    threshold_tokens: int | None = None
    """The prompt size above which the request is compacted; None for the policy's."""
    capsule_format: CapsuleFormat | None = None
    """Writes a compaction that the request brings about as a part of its answer. None: its client keeps none."""
    is_alone: bool = False
    """Whether the client asks for a compaction, and for no answer. `capsule_format` is set."""
    pauses: bool = False
    """Whether a request that brings about a compaction gets no answer."""


class StoringOptions(msgspec.Struct, frozen=True):
    """What of a turn may be stored, as its client and `privacy.store_false` say."""

    store: bool = True
    keeps_context_only: bool = False
    """Whether a turn with `store: false` is kept for continuing its conversation, and for nothing else. Only the
    Responses API has this (docs/decisions/0044)."""
    stores_completion: bool = False
    """Whether the answer can be found by its id: a chat completion with `store: true`, or a response without
    `store: false`."""
    may_keep_context: bool = False
    """Whether turns with `store: false` are kept for continuing (`privacy.store_false`)."""
    finds_either_tenant: bool = False
    """Whether a request that continues nothing that is stored is kept for continuing only, or not at all: its client
    has not said that it may be stored."""

    @property
    def is_kept(self) -> bool:
        """Whether the turn is written to a log."""
        return self.store or self.keeps_context_only


class Continuation(msgspec.Struct, frozen=True):
    """What a request names of the conversation that it continues."""

    conversation_id: str | None = None
    is_chat_ui: bool = False
    """Whether the conversation id is a chat UI's own. Chat UIs send unrelated calls (such as for a title) under the
    same id."""
    previous_response_id: str | None = None
    """The response after which this request continues: the end of a conversation, or a place in its log."""
    hints: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Ids that clients send for their own purposes (a session, a thread), by the name of the header or field."""


class ContextParameters(msgspec.Struct, frozen=True):
    """How the context of a request is made."""

    mode: ContextMode = "auto"
    policy: str | None = None
    pin_indexes: tuple[int, ...] = ()
    """Indexes of the messages to pin into `messages`, or of items into `input`."""
    recall: RecallMode | None = None
    """Overrides the policy's `recall` mode."""


class RetryOptions(msgspec.Struct, frozen=True):
    """What is known of a request's other attempts."""

    is_retry: bool = False
    """Whether the client's SDK says that this is not its first attempt."""
    first_attempt_at: datetime | None = None
    """When the first attempt at this request began, if this process knows it. An older answer in the log does not
    answer this request."""
    idempotency_key: str | None = None
    """The client's own name for this request and its retries."""


class DeliveryOptions(msgspec.Struct, frozen=True):
    """How the client gets its answer."""

    stream: bool = False
    wants_usage: bool = False
    """Whether a stream ends with a chunk of the usage."""
    event_style: EventStyle = "chunk"
    context_detail: ContextDetail = "full"
    """How much of the `context` object the answer has."""
    answer_format: AnswerFormat = msgspec.field(default_factory=make_default_answer_format)
    """Writes the answer in the client's protocol."""


class ForwardedParts(msgspec.Struct, frozen=True):
    """What reaches the provider beside the body."""

    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    query: str = ""
    """The query of the request's address, without the question mark."""


class ChatRequest(msgspec.Struct, frozen=True):
    """A parsed request of any protocol, with the headers that the gateway reads.

    `raw_fields` has the JSON text of each top-level field in the client's order; `raw_messages` has the JSON text of
    each message.
    """

    caller: Caller
    request_id: str
    body: bytes
    raw_fields: Mapping[str, bytes]
    raw_messages: Sequence[bytes]
    model: str
    item_groups: Sequence[Sequence[int]] | None = None
    """The indexes in `input` of the items of each message. None in Chat Completions."""
    protocol: str = "chat"
    """The protocol that the client speaks: a key of `CLIENT_DIALECTS`."""
    choice_count: int = 1
    max_output_tokens: int | None = None
    storing: StoringOptions = StoringOptions()
    continuation: Continuation = Continuation()
    context: ContextParameters = ContextParameters()
    compaction: CompactionOptions = CompactionOptions()
    retry: RetryOptions = RetryOptions()
    delivery: DeliveryOptions = msgspec.field(default_factory=DeliveryOptions)
    forwarded: ForwardedParts = ForwardedParts()
    allowance: CallAllowance | None = None
    """What the request may use of its caller's limits; None: nothing is limited."""
    on_answer: Callable[[Conversation | None], Awaitable[None]] | None = None
    """Called when the answer is complete, before its last byte is sent. The argument is the conversation that ends with
    the answer, or None if the answer is not stored."""

    @property
    def messages_field(self) -> str:
        """The field of the body that has the messages."""
        return CLIENT_DIALECTS[self.protocol].messages_field

    @property
    def log_tenant(self) -> str:
        """The tenant in which the conversation of this request is kept and found."""
        return derive_context_tenant(self.caller.tenant) if self.storing.keeps_context_only else self.caller.tenant

    @property
    def end_user_digest(self) -> str | None:
        """A digest of the application's name for its end user; None if the request names no end user."""
        for field in END_USER_FIELDS:
            if field in self.raw_fields and isinstance(name := self.decode_field(field), str) and name:
                return hashlib.sha256(f"{self.caller.tenant}\0{name}".encode()).hexdigest()[:32]
        return None

    def keep_less(self) -> ChatRequest:
        """Returns the request as one with `store: false`."""
        may_keep = self.storing.may_keep_context
        return replace(self, storing=StoringOptions(False, may_keep, may_keep_context=may_keep))

    def decode_field(self, name: str) -> Any:
        """Returns a decoded top-level field, or None if the request does not have it.

        Raises:
            InvalidRequest: as the function `decode_field`.
        """
        return decode_field(self.raw_fields, name)


def select_context_fields(context: Mapping[str, Any], detail: ContextDetail) -> Mapping[str, Any]:
    """Selects the members of a `context` object that a client gets."""
    return context if detail == "full" else {name: context[name] for name in BRIEF_FIELDS if name in context}
