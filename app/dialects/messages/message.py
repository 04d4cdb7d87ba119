"""A message of Anthropic's Messages API as an `Item`.

The log's unit is the message: what a user says, the result of a call, or everything that a model says in one answer.
The Messages API puts the results of calls into the user's next message, so one message of the API may be several here,
the results first. The raw text is an object with one member, `anthropic`: the message of the API, or a message with
some of its blocks. The blocks keep their bytes. The name of the member tells such a text from that of a chat message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec
import orjson

from app.conversation.item import EditOperation, Item, ToolCall
from app.dialects.answer_decoding import Answer
from app.dialects.body.message import BodyMessage, build_hosted_call
from app.dialects.body.message_edits import apply_operations
from app.dialects.messages.block_edits import OPERATIONS
from app.dialects.messages.message_body import EXPRESSED_FIELDS, Block, build_body, list_blocks
from app.errors import InvalidRequest

RAW_BEGIN: Final = b'{"anthropic":'
"""How the raw text of each message begins."""
UNREADABLE_FIELDS: Final = frozenset({"id", "tool_use_id", "type", "encrypted_content", "cache_control"})
"""Fields of blocks that say nothing to people."""


class _Parts(msgspec.Struct):
    role: str
    content: msgspec.Raw = msgspec.Raw(b"[]")


_decode_parts: Final = msgspec.json.Decoder(_Parts).decode
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class MessagesMessage(BodyMessage):
    """Blocks that make up one message."""

    __slots__ = ()

    @classmethod
    def from_native(cls, raw_message: bytes) -> Self:
        """Returns the message of an API message, with its bytes."""
        return cls(RAW_BEGIN + raw_message + b"}")

    @classmethod
    def from_raw_blocks(cls, role: str, raw_blocks: Sequence[bytes]) -> Self:
        """Returns the message of blocks that belong together, each with its bytes."""
        return cls.from_native(render_native_message(role, b"[" + b",".join(raw_blocks) + b"]"))

    @property
    def native(self) -> bytes:
        """The JSON text of the message as the API has it."""
        return self.raw[len(RAW_BEGIN) : -1]

    @property
    def native_role(self) -> str:
        """The role that the API gives the message: results are the user's."""
        return self._decode().role

    @property
    def raw_content(self) -> bytes:
        """The JSON text of the content: a text, or blocks."""
        return bytes(self._decode().content)

    @property
    def raw_blocks(self) -> list[bytes]:
        """The JSON text of each block. A content that is a text is one block."""
        content = self.raw_content
        if content[:1] == b'"':
            return [b'{"type":"text","text":' + content + b"}"]
        try:
            return [bytes(raw) for raw in _decode_array(content)]
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"The content of a message is not valid: {error}.", param="messages") from error

    @property
    def blocks(self) -> list[Block]:
        """The decoded blocks."""
        try:
            return list_blocks(orjson.loads(self.raw_content))
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"The content of a message is not valid JSON: {error}.", param="messages") from error

    @property
    def body(self) -> dict[str, Any]:
        if self._body is None:
            self._body = build_body(self.native_role, self.blocks)
        return self._body

    @property
    def hosted_calls(self) -> list[ToolCall]:
        if self.native_role != "assistant":
            return []
        hosted = [block for block in self.blocks if block["type"] not in EXPRESSED_FIELDS]
        return [build_hosted_call(block, block["type"], UNREADABLE_FIELDS) for block in hosted]

    def edit(self, operations: Sequence[EditOperation]) -> Self:
        blocks = apply_operations(OPERATIONS, self.blocks, operations)
        return self.from_raw_blocks(self.native_role, [orjson.dumps(block) for block in blocks])

    def _decode(self) -> _Parts:
        try:
            return _decode_parts(self.native)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"A message is not valid: {error}.", param="messages") from error


def find_message_with_thinking(answer: Answer) -> Item | None:
    """Returns an answer with thinking as its provider said it: a client of another protocol cannot send the thinking
    back. None for any other answer."""
    message = answer.build_item()
    return message if isinstance(message, MessagesMessage) and message.has_reasoning else None


def render_native_message(role: str, raw_content: bytes) -> bytes:
    """Returns the JSON text of a message of the API."""
    return b'{"role":' + orjson.dumps(role) + b',"content":' + raw_content + b"}"
