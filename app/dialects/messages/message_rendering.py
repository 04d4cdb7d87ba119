"""Renders the messages of a view, of any protocol, for a provider that speaks the Messages API. Pure.

Blocks of the Messages API keep their bytes. What it cannot express is left out and named in a warning. The result keeps
the rules of the API: user and assistant alternate and the user begins, results come first in their message, no message
and no text is empty, and the last message does not end in white space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import msgspec
import orjson

from app.conversation.item import INSTRUCTION_ROLES, Item, ToolCall
from app.conversation.json_text import decode_json_or, list_objects
from app.dialects.body.message import decode_body
from app.dialects.body.message_fields import REASONING_FIELDS, is_reasoning_part
from app.dialects.cache_marks import NO_CACHE_MARKS, CacheMark, CacheMarks
from app.dialects.item_decoding import decode_item
from app.dialects.items.item_kinds import read_type
from app.dialects.items.left_out_kinds import LeftOutKinds
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import ChatRenderer
from app.dialects.messages.cache_marks import mark_last_block
from app.dialects.messages.foreign_parts import express_part
from app.dialects.messages.message import MessagesMessage, render_native_message
from app.dialects.messages.message_body import THINKING_TYPES, Block, decode_input, list_seals
from app.errors import InvalidRequest

MAX_CACHE_MARKS: Final = 4
"""How many blocks of a request may have `cache_control`."""
CACHE_MARK: Final = b'"cache_control"'
BEGIN_TEXT: Final = "[The conversation goes on here.]"
"""What the user says if a view would begin with the assistant."""
EXPRESSED_FIELDS: Final = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "tool_call_id", *REASONING_FIELDS}
)
"""Fields of a chat message that blocks express, or that have a warning of their own."""
_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]+")
_OTHER_ID_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]")


class RenderedView(msgspec.Struct, frozen=True):
    """The messages of a view as fields of a Messages request."""

    system: bytes | None
    """The JSON text of the system prompt; None if there is none."""
    raw_messages: list[bytes]
    warnings: list[str]
    has_loop_thinking: bool
    """Whether thinking of the open tool loop is among them."""
    lacks_loop_thinking: bool
    """Whether the last answer of the open tool loop does not begin with thinking, as models that think demand."""


class _OutgoingMessage(msgspec.Struct, eq=False):
    """A message of the API that grows while units are added."""

    role: str
    blocks: list[bytes]
    native: bytes | None = None
    """The message's own bytes, as long as they say the same as the blocks."""


def render_messages_for_anthropic(
    raws: Sequence[bytes],
    *,
    own_seals: Set[str] | None = None,
    keeps_thinking: bool = True,
    cache_marks: int = MAX_CACHE_MARKS,
    own_marks: CacheMarks = NO_CACHE_MARKS,
) -> RenderedView:
    """Returns the messages of a view as those of the Messages API.

    Args:
        own_seals: the signatures and encrypted texts of thinking that go to the provider, because they come from there;
            None: all.
        keeps_thinking: whether the messages before each thinking are those that stood before it when the model wrote
            it. If not, only thinking of the open tool loop is sent: the provider needs it there, and refuses other
            thinking.
        cache_marks: how many cache marks system prompt and messages may have. The last ones of the messages stay.
        own_marks: where the gateway sets cache marks.

    Raises:
        InvalidRequest: a message is not valid JSON.
    """
    renderer = _Renderer()
    for at, raw in enumerate(raws):
        renderer.add_message(decode_item(bytes(raw)))
        if at in own_marks:
            renderer.mark_last_message(own_marks[at])
    messages = _merge_neighbours(renderer.messages)
    loop_start = _find_loop_start(messages)
    for index, message in enumerate(messages):
        if message.role == "assistant":
            _remove_foreign_thinking(message, own_seals, keeps_all=keeps_thinking or index >= loop_start)
    messages = _merge_neighbours(messages)
    if messages and messages[0].role == "assistant":
        messages.insert(0, _OutgoingMessage("user", [_encode_block({"type": "text", "text": BEGIN_TEXT})]))
    if messages and messages[-1].role == "assistant":
        _strip_last_text(messages[-1])
    system = renderer.render_system()
    _limit_cache_marks(messages, max(0, cache_marks - count_cache_marks(system or b"")))
    loop_answers = [one for one in messages[_find_loop_start(messages) :] if one.role == "assistant"]
    thoughts = [any(map(_is_thinking, one.blocks)) for one in loop_answers]
    last_blocks = loop_answers[-1].blocks if loop_answers and messages[-1].role == "user" else []
    return RenderedView(
        system=system,
        raw_messages=[_render_message(message) for message in messages],
        warnings=renderer.left_out.render_warnings(),
        has_loop_thinking=any(thoughts),
        lacks_loop_thinking=bool(last_blocks) and not _is_thinking(last_blocks[0]),
    )


def list_answer_blocks(message: Item) -> list[Block]:
    """Returns the blocks of an answer of the log, whatever protocol it came in."""
    if isinstance(message, MessagesMessage):
        return message.blocks
    renderer = _Renderer()
    renderer.add_message(message)
    return [orjson.loads(block) for one in renderer.messages for block in one.blocks]


def count_cache_marks(raw: bytes) -> int:
    """Returns how many cache marks a JSON text has."""
    return raw.count(CACHE_MARK)


def build_sealed_text(block: Mapping[str, Any]) -> str:
    """Returns a block of thinking as a text that another protocol carries without reading it."""
    return orjson.dumps(block).decode()


def read_sealed_block(text: object) -> Block | None:
    """Returns the block of `build_sealed_text`; None for any other value."""
    if not isinstance(text, str) or not text.startswith('{"type":"'):
        return None
    block = decode_json_or(text, None)
    return block if isinstance(block, dict) and block.get("type") in THINKING_TYPES else None


def list_message_seals(message: Item) -> list[str]:
    """Returns the signatures and the encrypted texts of a message's thinking, whatever protocol it came in."""
    if isinstance(message, MessagesMessage):
        return list_seals(message.blocks)
    return list_seals(_list_foreign_thinking(message))


class _Renderer:
    """Collects system prompt and messages.

    Attributes:
        messages: in order, not merged yet.
        left_out: what the Messages API cannot express.
    """

    def __init__(self) -> None:
        self.messages: list[_OutgoingMessage] = []
        self.left_out = LeftOutKinds("the Messages API")
        self._chat_renderer = ChatRenderer(self.left_out)
        self._systems: list[bytes] = []
        """The JSON texts of the contents."""
        self._call_ids: dict[str, list[str]] = {}
        """The ids of the open calls of the newest answer as they are sent, by their own id, until the results come."""
        self._used_ids: set[str] = set()

    def add_message(self, message: Item) -> None:
        if message.role in INSTRUCTION_ROLES and not self.messages:
            self._add_system(message)
        elif isinstance(message, MessagesMessage):
            blocks, all_blocks = _drop_empty_texts(message), message.raw_blocks
            native = message.native if len(blocks) == len(all_blocks) else None
            self.messages.append(_OutgoingMessage(message.native_role, blocks, native))
        else:
            self._add_foreign_message(message)

    def mark_last_message(self, mark: CacheMark) -> None:
        """Sets a cache mark at the end of what was added last."""
        if self.messages:
            last = self.messages[-1]
            last.blocks, last.native = mark_last_block(last.blocks, mark), None
        elif (system := self.render_system()) is not None:
            blocks = MessagesMessage.from_native(render_native_message("system", system)).raw_blocks
            self._systems = [b"[" + b",".join(mark_last_block(blocks, mark)) + b"]"]

    def render_system(self) -> bytes | None:
        if len(self._systems) <= 1:
            return self._systems[0] if self._systems else None
        return b"[" + b",".join([one[1:-1] if one[:1] == b"[" else _wrap_text(one) for one in self._systems]) + b"]"

    def _add_system(self, message: Item) -> None:
        if isinstance(message, MessagesMessage):
            self._systems.append(message.raw_content)
        elif message.text.strip():
            self._systems.append(orjson.dumps(message.text))

    def _add_foreign_message(self, message: Item) -> None:
        body, role = decode_body(message), message.role
        self._note_fields(message, body)
        if role in INSTRUCTION_ROLES:
            self.left_out.add("the role of system messages after the first message, which are sent as the user's")
        if role in ("tool", "function"):
            content = [_encode_block(block) for block in self._express_content(body.get("content"))]
            sent_id = self._take_call_id(message.result_for or "")
            result = b'{"type":"tool_result","tool_use_id":%b,"content":[%b]}'
            self.messages.append(_OutgoingMessage("user", [result % (orjson.dumps(sent_id), b",".join(content))]))
            return
        blocks = self._express_content(body.get("content"))
        if isinstance(refusal := body.get("refusal"), str) and refusal.strip():
            blocks.append({"type": "text", "text": refusal})
        if role == "assistant":
            self._call_ids = {}
            blocks = [*self._express_thinking(message), *blocks, *map(self._express_call, message.calls)]
        sent_role = "assistant" if role == "assistant" else "user"
        self.messages.append(_OutgoingMessage(sent_role, [_encode_block(block) for block in blocks]))

    def _express_content(self, content: object) -> list[Block]:
        parts = content if isinstance(content, list) else [content] if content else []
        expressed = [express_part(part, self.left_out) for part in parts if not is_reasoning_part(part)]
        return [block for block in expressed if block is not None]

    def _express_thinking(self, message: Item) -> list[Block]:
        thinking = _list_foreign_thinking(message)
        if message.has_reasoning and not thinking:
            self.left_out.add("reasoning that has no signature of Anthropic's")
        return thinking

    def _express_call(self, call: ToolCall) -> Block:
        given, sent_id = call.id or "", self._choose_call_id(call.id or "")
        self._call_ids.setdefault(given, []).append(sent_id)
        arguments = {"input": call.arguments} if call.kind == "custom" else decode_input(call.arguments or "{}")
        return {"type": "tool_use", "id": sent_id, "name": call.name or "tool", "input": arguments}

    def _choose_call_id(self, call_id: str) -> str:
        """Returns an id that the API takes: of letters, digits, `_` and `-`, and not used before."""
        base = call_id if _ID_PATTERN.fullmatch(call_id) else _OTHER_ID_CHARS.sub("_", call_id) or "call"
        chosen, count = base, 1
        while chosen in self._used_ids:
            count += 1
            chosen = f"{base}_{count}"
        self._used_ids.add(chosen)
        return chosen

    def _take_call_id(self, call_id: str) -> str:
        """Returns the id under which the call of a result was sent. Results without a known id answer the calls in
        their order."""
        name = call_id if call_id in self._call_ids else next(iter(self._call_ids), call_id)
        sent_ids = self._call_ids.get(name)
        if sent_ids is None:
            return self._choose_call_id(call_id) if not _ID_PATTERN.fullmatch(call_id) else call_id
        sent_id = sent_ids.pop(0)
        if not sent_ids:
            del self._call_ids[name]
        return sent_id

    def _note_fields(self, message: Item, body: Mapping[str, Any]) -> None:
        if isinstance(message, ResponsesMessage):
            items = message.items
            self._chat_renderer.note_fields(
                [item for item in items if not (isinstance(item, dict) and read_type(item) == "reasoning")]
            )
            return
        expressed = EXPRESSED_FIELDS | {"name"} if message.role == "function" else EXPRESSED_FIELDS
        self.left_out.add_fields(body, expressed, "messages")


def _list_foreign_thinking(message: Item) -> list[Block]:
    """Returns the blocks of thinking that a message of another protocol carries."""
    if isinstance(message, ResponsesMessage):
        items = [item for item in message.items if isinstance(item, dict) and read_type(item) == "reasoning"]
        found = [read_sealed_block(item.get("encrypted_content")) for item in items]
        return [block for block in found if block is not None]
    blocks = decode_body(message).get("thinking_blocks") if message.role == "assistant" else None
    return [block for block in list_objects(blocks) if block.get("type") in THINKING_TYPES]


def _find_loop_start(messages: Sequence[_OutgoingMessage]) -> int:
    """Returns the index after the last message of the user that brings no result: the open tool loop begins there."""
    for index in reversed(range(len(messages))):
        if messages[index].role == "user" and not any(map(_is_result, messages[index].blocks)):
            return index + 1
    return 0


def _remove_foreign_thinking(message: _OutgoingMessage, own_seals: Set[str] | None, *, keeps_all: bool) -> None:
    """Removes thinking that the provider would refuse: of another model, without a seal, or behind other messages."""
    kept = [
        block
        for block in message.blocks
        if not _is_thinking(block) or (keeps_all and _is_own_thinking(block, own_seals))
    ]
    if len(kept) < len(message.blocks):
        message.blocks, message.native = kept, None


def _is_own_thinking(raw: bytes, own_seals: Set[str] | None) -> bool:
    seals = list_seals([orjson.loads(raw)])
    return bool(seals) and (own_seals is None or seals[0] in own_seals)


def _merge_neighbours(messages: Sequence[_OutgoingMessage]) -> list[_OutgoingMessage]:
    """Joins neighbouring messages of one role, and leaves out empty ones. Results come first."""
    merged: list[_OutgoingMessage] = []
    for message in messages:
        if not message.blocks:
            continue
        if merged and merged[-1].role == message.role and message.role != "system":
            merged[-1] = _OutgoingMessage(message.role, [*merged[-1].blocks, *message.blocks])
        else:
            merged.append(message)
    for message in merged:
        results = [block for block in message.blocks if _is_result(block)]
        if results and message.blocks[: len(results)] != results:
            message.blocks = [*results, *(block for block in message.blocks if not _is_result(block))]
            message.native = None
    return merged


def _strip_last_text(message: _OutgoingMessage) -> None:
    """Removes the white space at the end of an answer that the model shall continue: the API refuses it."""
    block = orjson.loads(message.blocks[-1])
    if block.get("type") == "text" and block["text"] != block["text"].rstrip():
        message.blocks[-1], message.native = _encode_block({**block, "text": block["text"].rstrip()}), None


def _limit_cache_marks(messages: Sequence[_OutgoingMessage], limit: int) -> None:
    remaining = limit
    for message in reversed(messages):
        for place in reversed(range(len(message.blocks))):
            count = count_cache_marks(message.blocks[place])
            if count > remaining:
                message.blocks[place] = _encode_block(_strip_cache_marks(orjson.loads(message.blocks[place])))
                message.native = None
            else:
                remaining -= count


def _strip_cache_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _strip_cache_marks(inner) for name, inner in value.items() if name != "cache_control"}
    return [_strip_cache_marks(inner) for inner in value] if isinstance(value, list) else value


def _drop_empty_texts(message: MessagesMessage) -> list[bytes]:
    """Returns the blocks of a message without texts of white space only, which the API refuses."""
    return [
        raw
        for raw, block in zip(message.raw_blocks, message.blocks, strict=False)
        if block["type"] != "text" or not isinstance(block.get("text"), str) or block["text"].strip()
    ]


def _render_message(message: _OutgoingMessage) -> bytes:
    if message.native is not None:
        return message.native
    return render_native_message(message.role, b"[" + b",".join(message.blocks) + b"]")


def _read_kind(raw: bytes) -> object:
    return orjson.loads(raw).get("type") if raw[:1] == b"{" else None


def _is_thinking(raw: bytes) -> bool:
    return b"thinking" in raw and _read_kind(raw) in THINKING_TYPES


def _is_result(raw: bytes) -> bool:
    return b'"tool_result"' in raw and _read_kind(raw) == "tool_result"


def _wrap_text(raw_text: bytes) -> bytes:
    return b'{"type":"text","text":' + raw_text + b"}"


def _encode_block(block: Block) -> bytes:
    try:
        return orjson.dumps(block)
    except TypeError as error:
        raise InvalidRequest("A message is nested too deeply.", code="invalid_value", param="messages") from error
