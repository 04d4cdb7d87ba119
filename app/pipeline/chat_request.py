"""What a client asked, as far as the gateway needs to know it. The rest of the body stays bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
import orjson

from app.context.plan.outline import SummarizeMode
from app.context.plan.policy import RecallMode
from app.conversation.api_keys import SCOPES, Scope
from app.conversation.json_depth import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.conversation.messages import Conversation
from app.errors import InvalidRequest

ContextMode = Literal["auto", "append", "resend", "stateless"]
EventStyle = Literal["chunk", "named", "comment", "off"]
RETRY_MAX_AGE_SECONDS: Final = 600.0
"""An SDK has given up by then: its next attempt begins some ten minutes after the last at the latest."""


class Caller(msgspec.Struct, frozen=True):
    """Who asks. Nothing of one tenant is ever seen by another."""

    tenant: str
    authorization: str | None = None
    """The client's own credential in mode `open`. It travels on as a `ClientKey`, bound to one provider."""
    scopes: tuple[Scope, ...] = SCOPES
    default_policy: str | None = None
    """The context policy of its requests that name none."""
    allowed_models: tuple[str, ...] = ()
    """Names that it may ask for, with wildcards; none: all."""
    api_key_id: str | None = None
    """The API key of ours that it showed."""


class ChatRequest(msgspec.Struct, frozen=True):
    """A parsed body of `POST /v1/chat/completions` together with the headers that concern us.

    `raw_fields` holds each top-level field's JSON text in the client's order; `raw_messages` the JSON text of each
    message.
    """

    caller: Caller
    request_id: str
    body: bytes
    raw_fields: Mapping[str, bytes]
    raw_messages: Sequence[bytes]
    model: str
    stream: bool = False
    include_usage: bool = False
    choice_count: int = 1
    max_output_tokens: int | None = None
    store: bool = True
    stores_completion: bool = False
    """It said `store: true`: its completion is to be found by its id."""
    conversation_id: str | None = None
    is_chat_ui: bool = False
    """The id came from a chat UI, which sends unrelated task calls under the same id."""
    is_retry: bool = False
    """The client's SDK says that this is not its first attempt."""
    first_attempt_at: datetime | None = None
    """When its first attempt began, if this process knows it: an older answer in the log is none to it."""
    context_mode: ContextMode = "auto"
    policy: str | None = None
    summarize: SummarizeMode = "auto"
    through_seq: int | None = None
    """With `summarize` = ``now``: the messages before this seq are what is summarized."""
    pin_indexes: tuple[int, ...] = ()
    """Indexes into `messages` of what is to be shown word for word from now on."""
    recall: RecallMode | None = None
    """Overrides the policy's."""
    summary_instructions: str | None = None
    """What a compaction should pay attention to."""
    event_style: EventStyle = "chunk"
    forwarded_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Request headers that travel on to the provider."""
    conversation_hints: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Ids that clients send for purposes of their own, by the name of the header or field: a session, a thread."""
    idempotency_key: str | None = None
    """The client's own name for this request and its repetitions."""
    on_answer: Callable[[Conversation | None], Awaitable[None]] | None = None
    """Told of an answer that is whole, before its last byte is sent: the conversation that ends with it, if it is
    stored."""

    @property
    def end_user(self) -> str | None:
        """A digest of the application's name for its end user, where the request has one."""
        if not any(field in self.raw_fields for field in END_USER_FIELDS):
            return None
        name = next(
            (found for field in END_USER_FIELDS if isinstance(found := self.decode_field(field), str) and found), None
        )
        return None if name is None else hashlib.sha256(f"{self.caller.tenant}\0{name}".encode()).hexdigest()[:32]

    def decode_field(self, name: str) -> Any:
        """The decoded top-level field, None if absent.

        Raises:
            InvalidRequest: as `decode_field`.
        """
        return decode_field(self.raw_fields, name)


END_USER_FIELDS: Final = ("safety_identifier", "user")
"""OpenAI's names for the end user of an application, the newer first."""


def decode_field(raw_fields: Mapping[str, bytes], name: str) -> Any:
    """A top-level field of a request, None if absent.

    Raises:
        InvalidRequest: a number in it is too large for a double, or it is nested too deeply to be written again.
    """
    raw = raw_fields.get(name)
    if raw is None:
        return None
    text = bytes(raw)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"`{name}` is not valid JSON: {error}.", code="invalid_value", param=name) from error
    if may_be_too_deep(text) and is_too_deep(value):
        raise InvalidRequest(f"`{name}` {TOO_DEEP_MESSAGE}", code="invalid_value", param=name)
    return value
