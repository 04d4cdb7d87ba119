"""Where a request belongs: the conversation it means, and what it adds to its log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from app.context.outline import LastView, view_through
from app.conversation.messages import Conversation, LogMessage, Message
from app.exchange.viewed import VIEWS
from app.store.base import Append, Lease

PENDING, CALLS_OPEN = "pending", "calls_open"
"""`Conversation.state`: how many of the last messages have no answer yet; whether a tool result may come next."""
PINS, REDACTED = "pins", "redacted"
"""`Conversation.marks`: pinned rounds; the seqs of messages that were deleted or erased."""
INSTRUCTIONS = "instructions"
"""`Conversation.state`: leading system messages that an appending client sent once."""


class Recollection(msgspec.Struct, frozen=True):
    """A request in its place: the conversation as it stands, and what the request adds to it."""

    conversation: Conversation
    """As stored; the one to be created where `creates`. Its log ends where this request's new messages begin."""
    creates: bool
    new: tuple[LogMessage, ...]
    instructions: tuple[Message, ...]
    instructions_tokens: int
    client_log: Sequence[bytes] | None
    """The log as the client sent it, instructions aside; None where it sent only what is new."""
    client_tokens: int | None
    """Tokens of `client_log`, where it is not the stored log message for message."""
    keeps: bool = True
    """Whether this turn is stored."""
    degraded: bool = False
    needs_store: bool = False
    """Without the store the request is refused: an append, or any request where that is configured."""
    appends: bool = False
    lease: Lease | None = None
    points: bool = False
    """The client's own id is to mean this conversation once it is stored."""
    external_id: str | None = None
    """The client's own id."""
    is_first_attempt: bool = False
    """The conversation began with this request."""
    replays: LogMessage | None = None
    """The stored answer, where the client's own retry asks again what was answered meanwhile."""
    asked_tokens: int = 0
    """Of the new messages, once they are stored."""
    pins: Sequence[Mapping[str, Any]] | None = None
    """The conversation's pinned rounds, where this request changes them."""
    request_digest: str | None = None
    """Stored with the answer, for retries."""
    remembers: bytes | None = None
    """Digest under which the whole client log is remembered for the fast path."""
    unwritten: Writing | None = None
    """Its question, where that is not stored yet and the answer's write takes it along."""

    @property
    def aligned(self) -> bool:
        """Whether message i of the client's log is message i of ours."""
        return self.client_log is not None and self.client_tokens is None

    @property
    def next_seq(self) -> int:
        return self.conversation.head_seq + 1 + len(self.new)

    @property
    def log_tokens(self) -> int:
        return self.new[-1].tokens_total if self.new else self.conversation.head_tokens_total

    @property
    def is_fresh(self) -> bool:
        """Nothing of its log is stored yet."""
        return self.conversation.head_seq < 0


class Writing(msgspec.Struct):
    """Messages on their way into the store.

    Attributes:
        turn: the place of whose request they are.
        step: what the write is called in traces.
        write: None where there are none to store.
        work: ends by itself, whoever waits for it; None where there is nothing to store, or it has not begun.
        is_kept_back: it begins when somebody asks for it or its time is up, unless another write takes it along.
        is_elsewhere: they became a branch, because somebody else was first where they were to go.
    """

    turn: Recollection
    step: str
    write: Append | None = None
    work: asyncio.Future[None] | None = None
    is_kept_back: bool = False
    is_elsewhere: bool = False


def unkept(turn: Recollection) -> Recollection:
    """A turn that is answered without being stored, since the store is away."""
    return replace(turn, keeps=False, degraded=True, unwritten=None)


def state_through(state: Mapping[str, Any], last_seq: int) -> dict[str, Any]:
    """What of a conversation's state holds for a branch that shares its log through `last_seq`."""
    shared = {name: value for name, value in state.items() if name not in (PENDING, CALLS_OPEN)}
    if VIEWS in shared:
        views = {key: msgspec.convert(stored, LastView) for key, stored in shared[VIEWS].items()}
        shared[VIEWS] = {
            key: msgspec.to_builtins(view_through(view, last_seq))
            for key, view in views.items()
            if view.boundary.to_seq <= last_seq + 1
        }
    return shared


def marks_through(marks: Mapping[str, Any], last_seq: int) -> dict[str, Any]:
    """What of a conversation's marks holds for a branch that shares its log through `last_seq`."""
    shared = dict(marks)
    if PINS in shared:
        shared[PINS] = [pin for pin in shared[PINS] if pin["to_seq"] <= last_seq + 1]
    if REDACTED in shared:
        shared[REDACTED] = [seq for seq in shared[REDACTED] if seq <= last_seq]
    return shared


def lineage_through(parent: Conversation, last_seq: int) -> tuple[tuple[str, int], ...]:
    """The lineage of a branch that shares its parent's log through `last_seq`."""
    shared = []
    for conversation_id, upto_seq in parent.path:
        shared.append((conversation_id, min(upto_seq, last_seq)))
        if upto_seq >= last_seq:
            break
    return tuple(shared)
