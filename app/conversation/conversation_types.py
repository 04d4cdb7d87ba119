"""The values that all rooms share: log messages, summaries, conversations. They are pure and immutable.

Sequence numbers (`seq`) count log messages from 0; ranges are half-open, `[from_seq, to_seq)`. Token numbers are raw
counts (not calibrated) in the conversation's encoding. Links have 16 bytes (`conversation.identity`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from app.conversation.item import Item

HistoryMode = Literal["unknown", "append", "resend"]
SummaryKind = Literal["model", "mechanical", "edited", "part"]
"""`part`: a part summary. The checkpoints of a long log read it in the place of its messages; no view shows it."""


COUNTER_NAME_SEPARATOR: Final = "+"
"""Stands in the name of a token counter between its encoding and the rule for its images."""
SHARED_THROUGH: Final = "shared_through"
"""A key of `Conversation.marks`: see `Conversation.shared_through`."""
REWRITE_MARK: Final = "rewritten"
"""A key of `Conversation.state`: one more than the seq from which the client's last change holds. The key is missing if
the client has never shown a message in other words than the log has."""
NAMED: Final = "named"
"""A key of `Conversation.state`: set when a request has named the conversation."""
MAX_SEQ: Final = 2**31 - 1
RESPONSE_ID_PREFIX: Final = "resp_"
"""How the ids of stored responses begin."""
INSTRUCTIONS_MARK: Final = "+instructions"
"""Ends the prompt version of a summary that a client's instructions steered."""
IMAGE_RULE_STATE_KEY: Final = "image_rule"
"""A key of `Conversation.state`: the rule by which images are counted, if it is not the default."""


def select_relatives(lineage: tuple[tuple[str, int], ...], shared_through: int) -> tuple[tuple[str, int], ...]:
    """Returns the ancestors of a lineage without those that merely share rows (`Conversation.shared_through`)."""
    return tuple(one for one in lineage if one[1] > shared_through)


class LogMessage(msgspec.Struct, frozen=True):
    """A message in a conversation's log."""

    seq: int
    message: Item
    link: bytes
    skeleton: bytes
    """The skeleton's link after this message."""
    in_skeleton: bool
    """Whether this message is part of the skeleton (a user's text or an assistant's final text)."""
    tokens: int
    tokens_total: int
    """Tokens of the log through this message."""
    answered: bool
    """Whether a history that reaches this message is recognised by it: this message or an earlier one is an answer that
    this gateway gave, or an assistant message so late in the log that it is no greeting (docs/decisions/0006)."""
    incomplete: bool = False
    """Whether the answer broke off because the client or the upstream closed the connection."""
    created_at: datetime | None = None
    meta: Mapping[str, Any] | None = None
    """Facts about an answer of ours: completion id, model, finish reason, usage, and the view that the model saw."""


class ClientVersion(msgspec.Struct, frozen=True):
    """The messages that a client shows in the place of a log message, beginning with one of its turns. The log keeps
    the original."""

    seq: int
    """The first log message that is replaced."""
    since_seq: int
    """The first new message of the turn that brought this version."""
    to_seq: int
    """The version replaces the log messages `[seq, to_seq)`: one message, or the range that the client's own summary
    covers."""
    bodies: tuple[bytes, ...] | None
    """The JSON texts that the client shows there: empty if the client left the message out, several if it put messages
    before it, None if it shows the original again."""
    tokens_delta: int
    """Tokens of `bodies` minus the tokens of the original message `seq`."""


class AnswerAnchor(msgspec.Struct, frozen=True):
    """A digest by which a conversation is found whose client rewrites its history
    (`identity.compute_anchor_digest`)."""

    digest: bytes
    root: str
    conversation_id: str
    seq: int
    """The message that the anchor names; -1 if it names the whole conversation."""


class IssuedAnswer(msgspec.Struct, frozen=True):
    """An answer that this gateway gave, by the fingerprints that may later prove its conversation
    (`conversation.fingerprints`)."""

    fingerprints: tuple[bytes, ...]
    """Digests of 16 bytes each."""
    root: str
    conversation_id: str | None
    """The conversation that holds the answer. None: the answer is not kept, so it proves nothing and only spends its
    fingerprints."""
    seq: int
    """The answer's place in the log."""
    owner_lineage: tuple[tuple[str, int], ...] = ()
    """Places whose answers have the same owner as this one: (conversation id, first seq that has not). A fingerprint
    that was issued there, or in `conversation_id`, keeps its owner and its first place. Any other fingerprint that was
    issued before is spent."""


class AnswerProof(msgspec.Struct, frozen=True):
    """A fingerprint that was issued."""

    fingerprint: bytes
    conversation: Conversation | None
    """The only conversation in which it was issued. None: it is spent, or the conversation is gone or another
    tenant's."""
    seq: int
    """The place of the answer; -1 without a conversation."""


class Summary(msgspec.Struct, frozen=True):
    """A stored summary of the log range `[from_seq, to_seq)`, found by the links at both ends."""

    id: str
    conversation_id: str
    """The conversation in which the summary was made. Branches that share the range find the summary by its links."""
    from_seq: int
    to_seq: int
    from_link: bytes
    """The link of the message before `from_seq`; for 0, the tenant's first link."""
    to_link: bytes
    """The link of message `to_seq - 1`."""
    text: str
    tokens: int
    """Tokens of the summary's section in a view (`context.view.view_rendering`)."""
    tokens_total: int
    """Tokens of the log through the last message of the range."""
    anchor_seq: int | None
    """The user message of the turn in which the range ends; None if the range ends with a turn."""
    anchor_tokens: int
    through_turn: int
    """How many turns begin in the log before `to_seq`."""
    kind: SummaryKind
    model: str
    prompt_version: str
    created_at: datetime
    folds: tuple[str, ...] = ()
    """The ids of the summaries that this one was folded from."""
    duration_ms: int = 0
    usage: Mapping[str, Any] | None = None
    revision: int = 1
    """The number of this text, counted from 1. Each edit makes a new revision."""
    versions_digest: bytes = b""
    """Names what the client had changed in the range when the text was written (`context.view.client_words`), in 16
    bytes; empty if the text was written from the originals."""

    @property
    def is_personal(self) -> bool:
        """Whether the text may hold words of a person that are not in the log: somebody edited or steered it, or it
        folds others."""
        is_as_made = self.kind in {"model", "mechanical", "part"} and self.revision == 1
        return not is_as_made or bool(self.folds) or self.prompt_version.endswith(INSTRUCTIONS_MARK)


class Conversation(msgspec.Struct, frozen=True):
    """The facts of a conversation that are known without its log."""

    id: str
    root: str
    tenant: str
    head_seq: int
    """The seq of the last message; -1 if the log is empty."""
    head_link: bytes
    head_skeleton: bytes
    head_tokens_total: int
    answered: bool
    encoding: str
    """The name of the tokenizer by which its tokens are counted."""
    lineage: tuple[tuple[str, int], ...] = ()
    """The ancestors, oldest first: (conversation id, last shared seq). The conversation's own messages follow."""
    external_id: str | None = None
    """The id that the client gave the conversation, if it is not one of ours."""
    mode: HistoryMode = "unknown"
    chunk_count: int = 0
    """How many summaries the conversation is known to have. 0 saves a read."""
    state: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Small facts that each answer replaces: calibration for each model, last view for each policy and window."""
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    marks: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What holds of messages whatever is answered: which are pinned, deleted or erased, and which are merely shared.
    Unlike `state`, marks are not replaced by the answer of a turn that was under way, and no store encrypts them."""
    indexed_before: int = 0
    """Messages before this seq are in the search index."""

    @property
    def token_counter_name(self) -> str:
        """The name of the token counter (`context.count.token_counter.choose_token_counter_name`). The image rule is in
        `state`, so that a replica of an earlier release, which knows no image rules, can still read `encoding`."""
        rule = self.state.get(IMAGE_RULE_STATE_KEY)
        return f"{self.encoding}{COUNTER_NAME_SEPARATOR}{rule}" if rule else self.encoding

    @property
    def shared_through(self) -> int:
        """The last message that is merely shared with a conversation that says the same: the two have the rows in
        common and are no relatives. -1 if there is none."""
        return int(self.marks.get(SHARED_THROUGH, -1))

    @property
    def relatives(self) -> tuple[tuple[str, int], ...]:
        """The ancestors from which this conversation branches, without those that merely share rows."""
        return select_relatives(self.lineage, self.shared_through)

    @property
    def owner_lineage(self) -> tuple[tuple[str, int], ...]:
        """The conversations in which an answer has the same owner as in this one: (conversation id, first seq that has
        not). A branch begins with the answer that it replaces, so that answer counts."""
        if not self.lineage:
            return ((self.id, MAX_SEQ),)
        return (*((id_, upto_seq + 2) for id_, upto_seq in self.relatives), (self.id, MAX_SEQ))

    @property
    def family_id(self) -> str:
        """The id of the conversation from which this one and its relatives branch."""
        return self.owner_lineage[0][0]

    @property
    def has_client_versions(self) -> bool:
        """Whether its client shows messages in other words than the log has."""
        return bool(self.state.get(REWRITE_MARK))

    @property
    def is_named(self) -> bool:
        """Whether its caller names it by an id. Only that caller continues it."""
        return self.external_id is not None or bool(self.state.get(NAMED))

    @property
    def redacted_seqs(self) -> tuple[int, ...]:
        """The seqs of messages that were deleted or erased, ascending."""
        return tuple(self.marks.get("redacted", ()))

    @property
    def lineage_with_self(self) -> tuple[tuple[str, int], ...]:
        """The lineage with the conversation itself at the end: which conversation stores which part of the log."""
        return (*self.lineage, (self.id, self.head_seq))


class StoredCompletion(msgspec.Struct, frozen=True):
    """A completion that its client asked to store: the place of its answer, and what the log does not have."""

    id: str
    tenant: str
    root: str
    conversation_id: str
    seq: int
    """The answer's seq. The log before it is the question."""
    model: str
    created_at: datetime
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Fields of the request that OpenAI's completion object has, such as `temperature` and `tools`."""
    instructions: tuple[str, ...] = ()
    """The JSON text of the leading system messages."""
