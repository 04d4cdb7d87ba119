"""Where a request belongs: the conversation it means, and what it adds to its log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.context.plan.outline import LastView, limit_view_to_log
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.conversation.alignment import AlignmentElement
from app.conversation.identity import LinkPosition
from app.conversation.messages import ClientVersion, Conversation, LogMessage, Message
from app.pipeline.chat_request import ChatRequest
from app.pipeline.view.view_state import LAST_VIEWS
from app.store.contract import Lease, LogAppend

UNANSWERED_MESSAGES, OPEN_TOOL_CALLS = "pending", "calls_open"
"""`Conversation.state`: how many of the last messages have no answer yet; whether a tool result may come next."""
PINS, REDACTED = "pins", "redacted"
"""`Conversation.marks`: pinned rounds; the seqs of messages that were deleted or erased."""
REWRITE_MARK = "rewritten"
"""`Conversation.state`: whether the client has ever shown a message otherwise than it was said."""
END_USER = "end_user"
"""`Conversation.state`: a digest of the application's name for the end user that the first request named."""
FIRST_REQUEST_MESSAGES = "brought"
"""`Conversation.state`: how many messages the first request brought. Nobody was answered here before them."""
STORED_INSTRUCTIONS = "instructions"
"""`Conversation.state`: leading system messages that an appending client sent once."""


NO_CONVERSATION_HINTS: Final[Mapping[str, str]] = MappingProxyType({})


class ResolvedRequest(msgspec.Struct, frozen=True):
    """A request in its place: the conversation as it stands, and what the request adds to it."""

    conversation: Conversation
    """As stored; the one to be created where `creates`. Its log ends where this request's new messages begin."""
    creates_conversation: bool
    new_messages: tuple[LogMessage, ...]
    instructions: tuple[Message, ...]
    instructions_tokens: int
    client_messages: Sequence[bytes] | None
    """The client history, instructions aside; None where it is not to be sent: the client sent only what is new, or
    the log has messages that were erased."""
    has_missing_results: bool = False
    """Whether tool calls in `client_log` have no result."""
    log_seqs: tuple[int, ...] | None = None
    """For each message of `client_log` its log message, -1 where it has none; None where they are the same."""
    client_versions: ClientVersions = NO_VERSIONS
    """What the client shows in the place of log messages."""
    new_versions: tuple[ClientVersion, ...] = ()
    """Those of them that this request brings."""
    is_stored: bool = True
    """Whether this turn is stored."""
    is_degraded: bool = False
    needs_store: bool = False
    """Without the store the request is refused: an append, or any request where that is configured."""
    is_append: bool = False
    lease: Lease | None = None
    assigns_external_id: bool = False
    """The client's own id is to mean this conversation once it is stored."""
    external_id: str | None = None
    """The client's own id."""
    is_first_request: bool = False
    """The conversation began with this request."""
    stored_answer: LogMessage | None = None
    """The stored answer, where the client's own retry asks again what was answered meanwhile."""
    new_messages_tokens: int = 0
    """Of the new messages, once they are stored."""
    last_new_message: Message | None = None
    """The last of the new messages, once they are stored: an assistant's is a prefill, the beginning of the answer."""
    changed_pins: Sequence[Mapping[str, Any]] | None = None
    """The conversation's pinned rounds, where this request changes them."""
    conversation_hints: Mapping[str, str] = NO_CONVERSATION_HINTS
    """The client's own ids for what the request belongs to."""
    request_digest: str | None = None
    """Stored with the answer, for retries."""
    history_digest: bytes | None = None
    """Digest under which the whole client log is remembered for the fast path."""
    pending_write: PendingWrite | None = None
    """Its question, where that is not stored yet and the answer's write takes it along."""

    @property
    def is_aligned(self) -> bool:
        """Whether message i of the client history is message i of the log."""
        return self.client_messages is not None and self.log_seqs is None

    @property
    def next_seq(self) -> int:
        return self.conversation.head_seq + 1 + len(self.new_messages)

    @property
    def log_tokens(self) -> int:
        """Tokens of the log as the client shows it."""
        total = self.new_messages[-1].tokens_total if self.new_messages else self.conversation.head_tokens_total
        return total + self.client_versions.tokens_delta

    @property
    def is_log_empty(self) -> bool:
        """Nothing of its log is stored yet."""
        return self.conversation.head_seq < 0


class PendingWrite(msgspec.Struct):
    """Messages on their way into the store.

    Attributes:
        resolved_request: the place of whose request they are.
        span_name: what the write is called in traces.
        append: None where there are none to store.
        write_future: ends by itself, whoever waits for it; None where there is nothing to store, or it has not begun.
        is_delayed: it begins when somebody asks for it or its time is up, unless another write takes it along.
        answer_forms: of the answer, where it is one, in each form in which it may come back.
        choice_positions: where the chain would stand after each choice but the first.
        question: the message that the answer answers.
        is_on_branch: they became a branch, because somebody else was first where they were to go.
    """

    resolved_request: ResolvedRequest
    span_name: str
    append: LogAppend | None = None
    write_future: asyncio.Future[None] | None = None
    is_delayed: bool = False
    is_on_branch: bool = False
    answer_forms: tuple[AlignmentElement, ...] = ()
    choice_positions: tuple[LinkPosition, ...] = ()
    question: AlignmentElement | None = None


def has_client_versions(conversation: Conversation) -> bool:
    """Whether a client shows messages of a conversation otherwise than they were said."""
    return bool(conversation.state.get(REWRITE_MARK))


def build_end_user_state(request: ChatRequest) -> Mapping[str, Any]:
    """What a new conversation keeps of the end user that its first request names: a digest, which tells nobody."""
    end_user = request.end_user
    return {END_USER: end_user} if end_user is not None else {}


def has_other_end_user(request: ChatRequest, conversation: Conversation) -> bool:
    """Whether request and conversation both name an end user, and not the same."""
    stored_end_user = conversation.state.get(END_USER)
    return stored_end_user is not None and request.end_user is not None and request.end_user != stored_end_user


def mark_unstored(resolved_request: ResolvedRequest) -> ResolvedRequest:
    """A turn that is answered without being stored, since the store is away."""
    return replace(resolved_request, is_stored=False, is_degraded=True, pending_write=None)


def build_branch_state(state: Mapping[str, Any], last_seq: int) -> dict[str, Any]:
    """What of a conversation's state holds for a branch that shares its log through `last_seq`."""
    shared = {name: value for name, value in state.items() if name not in (UNANSWERED_MESSAGES, OPEN_TOOL_CALLS)}
    if LAST_VIEWS in shared:
        views = {key: msgspec.convert(stored, LastView) for key, stored in shared[LAST_VIEWS].items()}
        shared[LAST_VIEWS] = {
            key: msgspec.to_builtins(limit_view_to_log(view, last_seq))
            for key, view in views.items()
            if view.boundary.to_seq <= last_seq + 1
        }
    return shared


def build_branch_marks(marks: Mapping[str, Any], last_seq: int) -> dict[str, Any]:
    """What of a conversation's marks holds for a branch that shares its log through `last_seq`."""
    shared = dict(marks)
    if PINS in shared:
        shared[PINS] = [pin for pin in shared[PINS] if pin["to_seq"] <= last_seq + 1]
    if REDACTED in shared:
        shared[REDACTED] = [seq for seq in shared[REDACTED] if seq <= last_seq]
    return shared


def build_branch_lineage(parent: Conversation, last_seq: int) -> tuple[tuple[str, int], ...]:
    """The lineage of a branch that shares its parent's log through `last_seq`."""
    shared = []
    for conversation_id, upto_seq in parent.lineage_with_self:
        shared.append((conversation_id, min(upto_seq, last_seq)))
        if upto_seq >= last_seq:
            break
    return tuple(shared)
