"""A message as the core reads it, whatever protocol it came in: its bytes, and what its dialect reads from them.

Each protocol has a subclass of `Item` in `app/dialects`. Nothing else knows the JSON of a message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Literal, Self

import msgspec

TOOL_RESULT_ROLES: Final = frozenset({"tool", "function"})
"""Roles of results of tool calls; `function` is the deprecated one."""
INSTRUCTION_ROLES: Final = ("system", "developer")
UNNAMED_TOOL: Final = "tool"
"""What texts say for a tool without a name."""

CallKind = Literal["function", "custom", "other"]
EditOperation = tuple[str | int | float, ...]
"""The name of an operation that shortens a message, then its arguments."""


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call of a message."""

    id: str | None
    name: str
    """Empty if the call has none. For kind `other`: the type of the call."""
    arguments: str
    """Usually JSON text. For kind `other`: the JSON text of the whole call."""
    kind: CallKind


class Image(msgspec.Struct, frozen=True):
    """An image of a message."""

    url: str
    detail: object = None
    """The resolution in which the model shall see it, as the client says."""


class Audio(msgspec.Struct, frozen=True):
    """Audio of a message."""

    data: str | None
    """Base64; None if the message does not hold it."""


class File(msgspec.Struct, frozen=True):
    """A file of a message."""

    data: str | None
    """A data URL or base64; None if the message only names the file."""


class OtherPart(msgspec.Struct, frozen=True):
    """A part of a kind that the dialect does not know."""

    value: object
    """Decoded JSON."""


ContentPart = str | Image | Audio | File | OtherPart
"""A text is a plain `str`."""


class CountedContent(msgspec.Struct, frozen=True):
    """Everything in a message that takes tokens of a prompt."""

    role: str
    parts: Sequence[ContentPart]
    name: str = ""
    """The name of the speaker."""
    calls: Sequence[tuple[str, str]] = ()
    """Name and arguments of each call."""
    has_spoken_answer: bool = False
    """Whether it stands for an earlier answer in audio."""


class CountedSchemas(msgspec.Struct, frozen=True):
    """The schemas of a request that take tokens of a prompt, as decoded JSON."""

    functions: Sequence[Any] = ()
    custom_tools: Sequence[Any] = ()
    other_tools: Sequence[Any] = ()
    answer_format: Any = None
    """The JSON schema that the answer must have, with its name; None if there is none."""


NO_SCHEMAS: Final = CountedSchemas()


class Item(ABC):
    """A message: its JSON text exactly as it came (`raw`), decoded when something of it is first read.

    A long resent history has thousands of messages, and only the newest are ever read. All properties but `raw` raise
    `InvalidRequest` if the text is not a JSON object.
    """

    __slots__ = ("raw",)
    raw: bytes

    @property
    @abstractmethod
    def role(self) -> str:
        """Who speaks: user, assistant, tool, and so on; empty if the message does not say."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The name of the speaker or the function; None if the message has none."""

    @property
    @abstractmethod
    def text(self) -> str:
        """All text of the message, joined."""

    @property
    @abstractmethod
    def refusal_text(self) -> str | None:
        """What a model wrote in place of an answer, beside the text; None if it wrote none."""

    @property
    @abstractmethod
    def transcript_text(self) -> str:
        """The text as people read it: without reasoning; other parts by their type, in brackets."""

    @property
    @abstractmethod
    def calls(self) -> list[ToolCall]:
        """The tool calls in order."""

    @property
    def hosted_calls(self) -> list[ToolCall]:
        """Calls that the provider carried out itself, and parts of an unknown type. No result belongs to them. The
        kind of each is `other`."""
        return []

    @property
    @abstractmethod
    def calls_tools(self) -> bool:
        """Whether the message calls a tool."""

    @property
    @abstractmethod
    def result_for(self) -> str | None:
        """The id of the call that this result answers; None if it names none."""

    @property
    @abstractmethod
    def has_reasoning(self) -> bool:
        """Whether the message has a model's reasoning."""

    @property
    @abstractmethod
    def counted_content(self) -> CountedContent:
        """What takes tokens of a prompt."""

    @property
    @abstractmethod
    def attachments(self) -> list[ContentPart]:
        """The parts that are images, audio or files."""

    @property
    @abstractmethod
    def canonical_form(self) -> bytes | None:
        """The bytes that stay the same when a client sends the message back in its own shape; None if the chain of
        links skips the message."""

    @property
    @abstractmethod
    def canonical_note(self) -> bytes:
        """The canonical form of the content alone, for messages that the chain skips."""

    @property
    @abstractmethod
    def is_in_skeleton(self) -> bool:
        """Whether a message that the chain does not skip is part of the skeleton: a user's text or a final answer."""

    @property
    @abstractmethod
    def canonical_answer(self) -> str:
        """The text of a final answer in canonical form; empty for an answer with tool calls."""

    @abstractmethod
    def edit(self, operations: Sequence[EditOperation]) -> Self:
        """Returns the message with operations applied. The same operations always give the same bytes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.raw)} bytes)"


def count_item_bytes(messages: Sequence[Item]) -> int:
    """Returns how many bytes the JSON texts of the messages have."""
    return sum([len(message.raw) for message in messages])


def may_precede_tool_result(message: Item) -> bool:
    """Returns whether a tool result may follow this message."""
    role = message.role
    return role in TOOL_RESULT_ROLES or (role == "assistant" and message.calls_tools)
