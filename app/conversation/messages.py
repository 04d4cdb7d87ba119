"""The nouns: a message as its client wrote it, its place in the log, a chunk, a conversation. Pure and immutable.

Sequence numbers count log messages from 0; ranges are half-open, `[from_seq, to_seq)`. Token numbers are raw counts
(uncalibrated) in the conversation's encoding. Links are 16 bytes (`conversation.identity`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
import orjson

from app.conversation.json_depth import TOO_DEEP_MESSAGE, is_too_deep
from app.errors import InvalidRequest

HistoryMode = Literal["unknown", "append", "resend"]
SummaryKind = Literal["model", "mechanical", "edited", "part"]
"""`part`: read by the checkpoints of a long log in place of its messages, shown in no view."""


COUNTER_NAME_SEPARATOR: Final = "+"
"""In the name of a token counter, between its encoding and the rule for its images."""
IMAGE_RULE_STATE_KEY: Final = "image_rule"
"""`Conversation.state`: the rule by which images are counted, where that is not the default."""


class Message:
    """A chat message: the JSON text exactly as it came (`raw`), decoded when somebody first looks inside.

    A long resent history holds thousands of messages of which only the newest are ever read, so decoding is lazy.
    """

    __slots__ = ("_body", "raw")

    def __init__(self, raw: bytes, body: dict[str, Any] | None = None) -> None:
        self.raw = raw
        self._body = body

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> Message:
        """A message of our own making.

        Raises:
            InvalidRequest: it was made of something that is nested too deeply to be written as JSON.
        """
        try:
            return cls(orjson.dumps(body), body)
        except TypeError as error:
            if not is_too_deep(body):
                raise
            raise InvalidRequest(f"A message {TOO_DEEP_MESSAGE}", code="invalid_value", param="messages") from error

    @property
    def body(self) -> dict[str, Any]:
        """The decoded message.

        Raises:
            InvalidRequest: it is not a JSON object.
        """
        if self._body is None:
            try:
                decoded = orjson.loads(self.raw)
            except orjson.JSONDecodeError as error:
                raise InvalidRequest(f"A message is not valid JSON: {error}.", param="messages") from error
            if not isinstance(decoded, dict):
                raise InvalidRequest("A message must be a JSON object.", code="invalid_type", param="messages")
            self._body = decoded
        return self._body

    @property
    def role(self) -> str:
        return str(self.body.get("role", ""))

    @property
    def text(self) -> str:
        """All text of the message: a string content, or its text and refusal parts joined."""
        return extract_text(self.body.get("content"))

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Tool calls in order; a deprecated `function_call` counts as one call."""
        body = self.body
        if "tool_calls" not in body and "function_call" not in body:
            return []
        calls = body.get("tool_calls")
        if isinstance(calls, list) and calls:
            return calls
        legacy = body.get("function_call")
        return [{"type": "function", "function": legacy}] if isinstance(legacy, dict) else []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"Message({len(self.raw)} bytes)"


def count_message_bytes(messages: Sequence[Message]) -> int:
    """Bytes of the JSON text of messages."""
    if len(messages) == 1:
        return len(messages[0].raw)
    return sum([len(message.raw) for message in messages])


def extract_text(content: object) -> str:
    """The text of a message content: the string itself, or its text and refusal parts joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, dict):
            text = part.get("text") or part.get("refusal")
            if isinstance(text, str):
                parts.append(text)
    return "".join(parts)


class LogMessage(msgspec.Struct, frozen=True):
    """A message in its place in a conversation's log."""

    seq: int
    message: Message
    link: bytes
    skeleton: bytes
    """The running skeleton link after this message."""
    in_skeleton: bool
    """Whether this message advanced the skeleton (a user text or a final assistant text)."""
    tokens: int
    tokens_total: int
    """Tokens of the log through this message."""
    answered: bool
    """Whether a history that reaches this message is recognised by it: this message or one before it is an answer that
    this gateway gave, or an assistant's message deep enough in the log not to be a greeting."""
    incomplete: bool = False
    """The answer broke off: the client or the upstream hung up."""
    created_at: datetime | None = None
    meta: Mapping[str, Any] | None = None
    """Facts about an answer of ours: completion id, model, finish reason, usage, and what the model saw."""


class ClientVersion(msgspec.Struct, frozen=True):
    """What a client shows in the place of a log message, from one of its turns on. The log keeps the original."""

    seq: int
    """The log message in whose place it stands."""
    since_seq: int
    """The first new message of the turn from which on the client shows it so."""
    to_seq: int
    """It stands for the log messages `[seq, to_seq)`: one, or the range that a summary of the client's own covers."""
    bodies: tuple[bytes, ...] | None
    """JSON text of each message that the client shows there: none where it left the message out, several where it put
    messages in front; None where it shows the original again."""
    tokens_delta: int
    """Tokens of `bodies` less those of the original message `seq`."""


class AnswerAnchor(msgspec.Struct, frozen=True):
    """A name by which a conversation is found whose client rewrites its history (`identity.compute_anchor_digest`)."""

    digest: bytes
    root: str
    conversation_id: str
    seq: int
    """The message that has the name; -1 where the whole conversation has it."""


class Summary(msgspec.Struct, frozen=True):
    """A stored summary of the log range `[from_seq, to_seq)`, found by the links at both ends."""

    id: str
    conversation_id: str
    """The conversation in which it was made; branches that share the range find it by its links."""
    from_seq: int
    to_seq: int
    from_link: bytes
    """Link of the message before `from_seq`; the tenant's seed for 0."""
    to_link: bytes
    """Link of message `to_seq - 1`."""
    to_skeleton: bytes | None
    """Running skeleton there, if that message is part of the skeleton."""
    text: str
    tokens: int
    """Tokens of the section it takes in a view (`context.view.view_messages.section`)."""
    tokens_total: int
    """Tokens of the log through the last covered message."""
    anchor_seq: int | None
    """The user message of the turn that the end falls into; None where the end is the end of a turn."""
    anchor_tokens: int
    through_turn: int
    """How many turns begin in the log before `to_seq`."""
    kind: SummaryKind
    model: str
    prompt_version: str
    created_at: datetime
    folds: tuple[str, ...] = ()
    """Ids of the chunks that this one stands for (a fold)."""
    duration_ms: int = 0
    usage: Mapping[str, Any] | None = None
    revision: int = 1
    """Counts the texts that this summary has had."""


class Conversation(msgspec.Struct, frozen=True):
    """What is known of a conversation without reading its log."""

    id: str
    root: str
    tenant: str
    head_seq: int
    """The last message's seq; -1 while the log is empty."""
    head_link: bytes
    head_skeleton: bytes
    head_tokens_total: int
    answered: bool
    encoding: str
    """Name of the tokenizer encoding of its token counts."""
    lineage: tuple[tuple[str, int], ...] = ()
    """Ancestors, oldest first: (conversation id, last shared seq). Its own messages follow."""
    external_id: str | None = None
    """The id the client gave it, if it is not one of ours."""
    mode: HistoryMode = "unknown"
    chunk_count: int = 0
    """How many chunks its view is known to have; 0 saves looking."""
    state: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Small facts that change with each answer: calibration sums per model, boundary of the last view per window."""
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    marks: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What people said of its messages: which are pinned, which were deleted or erased. Unlike `state` it is not
    replaced by an answer that was under way meanwhile."""
    indexed_before: int = 0
    """Messages before this seq are findable by their words."""

    @property
    def counter_name(self) -> str:
        """The name of its token counter (`context.count.token_counter.counter_name`). The image rule stands in `state`:
        a replica of a release that knows no image rules reads `encoding`."""
        rule = self.state.get(IMAGE_RULE_STATE_KEY)
        return f"{self.encoding}{COUNTER_NAME_SEPARATOR}{rule}" if rule else self.encoding

    @property
    def redacted_seqs(self) -> tuple[int, ...]:
        """Seqs of messages that were deleted or erased, ascending."""
        return tuple(self.marks.get("redacted", ()))

    @property
    def lineage_with_self(self) -> tuple[tuple[str, int], ...]:
        """The lineage with the conversation itself at the end: where each stretch of the log is kept."""
        return (*self.lineage, (self.id, self.head_seq))


class StoredCompletion(msgspec.Struct, frozen=True):
    """A completion that its client asked to store: where its answer stands, and what the log does not say."""

    id: str
    tenant: str
    root: str
    conversation_id: str
    seq: int
    """Of the answer; the log before it is what was asked."""
    model: str
    created_at: datetime
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Fields of the request that OpenAI's object repeats, such as `temperature` and `tools`."""
    instructions: tuple[str, ...] = ()
    """JSON text of the leading system messages."""
