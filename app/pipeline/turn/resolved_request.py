"""The result of the resolver: a request's conversation, and what the request adds to its log. Also the keys of a
conversation's state and marks, and how a branch inherits both."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.compaction.capsule import Capsule
from app.context.plan.outline import LastView, limit_last_view_to_log
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.conversation.conversation_types import (
    NAMED,
    SHARED_THROUGH,
    ClientVersion,
    Conversation,
    LogMessage,
)
from app.conversation.fingerprints import FingerprintScope
from app.conversation.identity import LinkPosition, extract_family_root
from app.conversation.item import TOOL_RESULT_ROLES, Item
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.last_view_and_calibration import LAST_VIEWS
from app.store.contract.conversations import LogAppend
from app.store.contract.leases import Lease

UNANSWERED_MESSAGES, OPEN_TOOL_CALLS = "pending", "calls_open"
"""`Conversation.state`: how many of the last messages have no answer yet; whether the next message may be a tool
result."""
BROKEN_OFF = "broken_off"
"""`Conversation.state`: set if the last message is an answer that broke off."""
PINS, REDACTED = "pins", "redacted"
"""`Conversation.marks`: the pinned rounds; the seqs of messages that were deleted or erased."""
DROPPED_USER_TEXT = "standing_removed"
"""`Conversation.marks`: `[seq, 0]` of each message that is not shown as user text. Older versions of the gateway wrote
`[seq, start]` of a sentence."""
END_USER = "end_user"
"""`Conversation.state`: a digest of the end user's name, as the conversation's first request gave it."""
TOOL_TRAFFIC = "tools"
"""`Conversation.state`: set if the log has tool calls or results."""
INSTRUCTIONS_PLACE = "instructions_at"
"""`Conversation.state` and an answer's `meta`: a digest of the instructions of the last answer, or of this one, and the
seq of the answer that they are stored with."""
STORED_INSTRUCTIONS = "instructions"
"""`Conversation.state`: the leading system messages that an appending client sent once."""

OPAQUE_ORIGINS = "opaque_origins"
"""`Conversation.state`: the deployments whose answers in the log have encrypted parts (`provider/model`)."""
REQUEST_DIGEST = "request"
"""Facts of an answer: the digest of the request that it answers."""
OPAQUE_ORIGIN = "opaque_origin"
"""Facts of an answer with encrypted parts: the deployment that it comes from."""


NO_CONVERSATION_HINTS: Final[Mapping[str, str]] = MappingProxyType({})


class ShownLog(msgspec.Struct, frozen=True):
    """What a client history shows of its log."""

    log_seqs: tuple[int, ...] | None = None
    """For each message of the client history, the seq of its log message, or -1 if it has none. None if message i of
    the client history is message i of the log."""
    client_versions: ClientVersions = NO_VERSIONS
    """The texts that the client shows in the place of log messages, this request's included."""
    new_versions: tuple[ClientVersion, ...] = ()
    """Those of `client_versions` that come with this request."""
    rewritten_seq: int | None = None
    """The first log message that `new_versions` had, set once they are stored."""
    changed_messages: tuple[LogMessage, ...] = ()
    """The log messages of `client_versions` that have been read."""
    moved_seqs: frozenset[int] = frozenset()
    """Log messages that the client shows in another place than the log, so that it carries them although
    `client_versions` leaves them out in theirs."""


class TurnStorage(msgspec.Struct, frozen=True):
    """How a turn is stored, and what is stored beside its messages."""

    is_stored: bool = True
    is_degraded: bool = False
    """Whether the turn is not stored because the store is unavailable."""
    needs_store: bool = False
    """Whether the request is refused if the store is unavailable: an append, or every request if the settings say so.
    """
    lease: Lease | None = None
    external_id: str | None = None
    """The client's own id."""
    assigns_external_id: bool = False
    """Whether the client's own id must point to this conversation once the turn is stored."""
    conversation_hints: Mapping[str, str] = NO_CONVERSATION_HINTS
    """Ids that the client sends for its own purposes, such as a session id."""
    fingerprint_scopes: Sequence[FingerprintScope] = ()
    """In which the answer is counted."""
    request_digest: str | None = None
    """The digest of the request, which is stored with the answer so that a retry is recognised."""
    keeps_instructions: bool = False
    """Whether the instructions are kept although the request is no append: later requests may bring new messages only.
    """


class ResolvedRequest(msgspec.Struct, frozen=True, dict=True):
    """A request with its conversation, and what the request adds to the conversation's log."""

    conversation: Conversation
    """The stored conversation, or the one to create if `creates_conversation`. Its log ends where the request's new
    messages begin."""
    creates_conversation: bool
    new_messages: tuple[LogMessage, ...]
    instructions: tuple[Item, ...]
    instructions_tokens: int
    client_messages: Sequence[bytes] | None
    """The client history without instructions. None if the client history is not to be sent upstream: the client sent
    new messages only, or messages of the log were erased."""
    expanded_messages: Sequence[bytes] | None = None
    """The messages of the request with the items in the places of references to them; None if it has no references."""
    has_missing_results: bool = False
    """Whether tool calls in the client history have no result."""
    shown: ShownLog = ShownLog()
    """What the client history shows of the log."""
    shared_answer: LogMessage | None = None
    """The answer that a conversation which says the same got to exactly these messages, if this one shares them all."""
    is_named: bool = False
    """Whether the request names its conversation: by an id, a capsule or `previous_response_id`. A request that does
    not is shown nothing that it does not carry (`context.view.client_words`)."""
    storage: TurnStorage = TurnStorage()
    """How the turn is stored."""
    is_append: bool = False
    is_first_request: bool = False
    """Whether the conversation begins with this request."""
    stored_answer: LogMessage | None = None
    """The answer from the log, if this request is a retry that was answered meanwhile."""
    new_messages_tokens: int = 0
    """Tokens of the new messages, set once they are stored."""
    prefill: tuple[LinkPosition, Item] | None = None
    """The beginning of the answer, if the request ends with an assistant message, and the position of the chains before
    it; set once it is stored."""
    changed_pins: Sequence[Mapping[str, Any]] | None = None
    """The conversation's pinned rounds, if this request changes them."""
    history_digest: bytes | None = None
    """The digest under which the prefix cache remembers the whole client history."""
    capsule: Capsule | None = None
    """The newest capsule of the request."""
    users_before_capsule: tuple[bytes, ...] = ()
    """The user messages of its range that the request has before it."""
    warnings: tuple[str, ...] = ()
    """What the client must know of how the turn is kept."""

    @property
    def is_aligned_by_index(self) -> bool:
        """Whether message i of the client history is message i of the log."""
        return self.client_messages is not None and self.shown.log_seqs is None

    @property
    def has_tool_traffic(self) -> bool:
        """Whether the log has tool calls or results."""
        return bool(self.conversation.state.get(TOOL_TRAFFIC)) or has_tool_messages(self.new_messages)

    @property
    def next_seq(self) -> int:
        return self.conversation.head_seq + 1 + len(self.new_messages)

    @cached_property
    def log_tokens(self) -> int:
        """Tokens of the log, with the client's versions in the place of the messages."""
        total = self.new_messages[-1].tokens_total if self.new_messages else self.conversation.head_tokens_total
        return total if self.shown.client_versions is NO_VERSIONS else total + self.shown.client_versions.tokens_delta

    @property
    def is_log_unstored(self) -> bool:
        """Whether nothing of the log is stored yet."""
        return self.conversation.head_seq < 0


class PendingWrite(msgspec.Struct):
    """Messages whose write has begun.

    Attributes:
        resolved_request: the request that the messages belong to.
        span_name: the name of the write in traces.
        append: what to store; None if there is nothing to store.
        write_future: ends when the write has ended, even if nobody waits. None if there is nothing to store.
        is_on_branch: the messages went to a new branch, because another request wrote to the conversation first.
    """

    resolved_request: ResolvedRequest
    span_name: str
    append: LogAppend | None = None
    write_future: asyncio.Future[None] | None = None
    is_on_branch: bool = False


def has_tool_messages(entries: Sequence[LogMessage]) -> bool:
    """Returns whether there are tool calls or results among log messages."""
    return any(entry.message.role in TOOL_RESULT_ROLES or entry.message.calls_tools for entry in entries)


def find_prefill(conversation: Conversation, entries: Sequence[LogMessage]) -> tuple[LinkPosition, Item] | None:
    """Returns `ResolvedRequest.prefill` of new messages after the head of a conversation."""
    if not entries or entries[-1].message.role != "assistant":
        return None
    if len(entries) == 1:
        return LinkPosition(conversation.head_link, conversation.head_skeleton, False), entries[-1].message
    return LinkPosition(entries[-2].link, entries[-2].skeleton, False), entries[-1].message


def build_end_user_state(request: ChatRequest) -> Mapping[str, Any]:
    """Returns the state of a new conversation for the end user of its first request: a digest, which does not reveal
    the name."""
    end_user = request.end_user_digest
    return {END_USER: end_user} if end_user is not None else {}


def has_other_end_user(request: ChatRequest, conversation: Conversation) -> bool:
    """Returns whether request and conversation name two different end users."""
    stored_end_user = conversation.state.get(END_USER)
    # A request or a conversation without an end user matches every end user: most clients never send one.
    return (
        stored_end_user is not None
        and request.end_user_digest is not None
        and request.end_user_digest != stored_end_user
    )


def has_gateway_id(request: ChatRequest) -> bool:
    """Returns whether the conversation id is one of ours. Chat UIs send only ids of their own with unrelated calls."""
    requested_id = request.continuation.conversation_id
    return requested_id is not None and extract_family_root(requested_id) is not None


def must_assign_external_id(request: ChatRequest, conversation: Conversation) -> bool:
    """Returns whether the client's own id must be pointed to this conversation."""
    requested_id = request.continuation.conversation_id
    return (
        requested_id is not None
        and extract_family_root(requested_id) is None
        and conversation.external_id != requested_id
    )


def mark_unstored(resolved_request: ResolvedRequest) -> ResolvedRequest:
    """Returns the request as one that is answered without being stored, because the store is unavailable."""
    return change_storage(resolved_request, is_stored=False, is_degraded=True)


def change_storage(resolved_request: ResolvedRequest, **changes: Any) -> ResolvedRequest:
    """Returns the request with other members of its `TurnStorage`."""
    return replace(resolved_request, storage=replace(resolved_request.storage, **changes))


def select_state_for_branch(state: Mapping[str, Any], last_seq: int) -> dict[str, Any]:
    """Returns the part of a conversation's state that is valid for a branch that shares its log through `last_seq`."""
    own = (UNANSWERED_MESSAGES, OPEN_TOOL_CALLS, BROKEN_OFF, NAMED)
    shared = {name: value for name, value in state.items() if name not in own}
    if LAST_VIEWS in shared:
        views = {key: msgspec.convert(stored, LastView) for key, stored in shared[LAST_VIEWS].items()}
        shared[LAST_VIEWS] = {
            key: msgspec.to_builtins(limit_last_view_to_log(view, last_seq))
            for key, view in views.items()
            if view.boundary.to_seq <= last_seq + 1
        }
    if INSTRUCTIONS_PLACE in shared and shared[INSTRUCTIONS_PLACE][1] > last_seq:
        del shared[INSTRUCTIONS_PLACE]
    return shared


def select_marks_for_branch(marks: Mapping[str, Any], last_seq: int) -> dict[str, Any]:
    """Returns the part of a conversation's marks that is valid for a branch that shares its log through `last_seq`."""
    shared = dict(marks)
    if SHARED_THROUGH in shared:
        shared[SHARED_THROUGH] = min(shared[SHARED_THROUGH], last_seq)
    if PINS in shared:
        shared[PINS] = [pin for pin in shared[PINS] if pin["to_seq"] <= last_seq + 1]
    if REDACTED in shared:
        shared[REDACTED] = [seq for seq in shared[REDACTED] if seq <= last_seq]
    if DROPPED_USER_TEXT in shared:
        shared[DROPPED_USER_TEXT] = [one for one in shared[DROPPED_USER_TEXT] if one[0] <= last_seq]
    return shared


def build_branch_lineage(parent: Conversation, last_seq: int) -> tuple[tuple[str, int], ...]:
    """Returns the lineage of a branch that shares its parent's log through `last_seq`."""
    shared = []
    for conversation_id, upto_seq in parent.lineage_with_self:
        shared.append((conversation_id, min(upto_seq, last_seq)))
        if upto_seq >= last_seq:
            break
    return tuple(shared)
