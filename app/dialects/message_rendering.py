"""Renders the messages of a view, of any protocol, for a provider that speaks one of OpenAI's. Pure.

A message keeps its bytes if it is in the provider's protocol. What the other protocol cannot express is left out and
named in a warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import orjson

from app.conversation.item import Item
from app.conversation.json_text import TOO_DEEP_MESSAGE, is_too_deep, list_objects
from app.dialects.body.message import ChatMessage, decode_body
from app.dialects.cache_marks import NO_CACHE_MARKS, CacheMarks, add_breakpoints
from app.dialects.item_decoding import decode_item, express_as_known, is_messages_text
from app.dialects.items.chat_form import TEXT_PART_TYPES, read_reasoning_texts, simplify_content
from app.dialects.items.chat_message_items import ChatMessageItems, build_answer_items, name_items
from app.dialects.items.item_edits import strip_id
from app.dialects.items.item_ids import has_derived_form
from app.dialects.items.item_kinds import (
    CALL_OUTPUT_TYPES,
    CHANGING_FIELDS,
    OUTPUT_TYPES,
    is_client_call,
    read_call_id,
    read_type,
)
from app.dialects.items.item_parts import FILE_FIELDS
from app.dialects.items.left_out_kinds import LeftOutKinds
from app.dialects.items.message import ResponsesMessage
from app.dialects.messages.message import MessagesMessage
from app.dialects.messages.message_body import list_unexpressed_fields
from app.dialects.provider_dialect import RenderedMessages
from app.errors import InvalidRequest

MessageBody = dict[str, Any]

CHAT_PART_TYPES: Final = ("text", "refusal", "image_url", "input_audio", "file")
"""Types of content parts that Chat Completions has."""
TEXT_ONLY_ROLES: Final = ("tool", "assistant", "system", "developer")
"""Roles whose messages may hold no images, audio or files in Chat Completions."""
ATTACHMENT_NOTE: Final = "[Attached to the result of the call {}:]"
EXPRESSED_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "message": frozenset({"role", "content"}),
    "reasoning": frozenset({"summary", "content", "encrypted_content"}),
    "function_call": frozenset({"call_id", "name", "namespace", "arguments"}),
    "custom_tool_call": frozenset({"call_id", "name", "namespace", "input"}),
    **dict.fromkeys(OUTPUT_TYPES, frozenset({"call_id", "approval_request_id", "output"})),
}
"""Fields of items that a chat message expresses, or that have a warning of their own."""
EXPRESSED_PART_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(TEXT_PART_TYPES, frozenset({"text"})),
    "refusal": frozenset({"refusal"}),
    "input_image": frozenset({"image_url", "detail"}),
    "input_audio": frozenset({"input_audio"}),
    "input_file": frozenset(FILE_FIELDS),
    "computer_screenshot": frozenset({"image_url"}),
}
UNSENT_PART_FIELDS: Final = frozenset({"type", "prompt_cache_breakpoint", "logprobs"})
"""Fields of a part that say nothing to a model."""
REWRITTEN_MARKERS: Final = (b'"reasoning"', b'"compaction"', b'"item_reference"')
"""A run without these bytes is sent as it is."""


def render_messages_for_chat(
    raws: Sequence[bytes], cache_marks: CacheMarks = NO_CACHE_MARKS
) -> tuple[list[bytes], list[str]]:
    """Returns the messages of a view as chat messages, and a warning for each kind of thing that was left out.

    Args:
        cache_marks: where breakpoints are set.

    Raises:
        InvalidRequest: a message is not valid JSON.
    """
    raws = express_as_known(raws)
    if not any(raw[:1] == b"[" or is_messages_text(raw) for raw in raws):
        if not cache_marks:
            return raws, []
        return [add_breakpoints(raw, cache_marks[at]) if at in cache_marks else raw for at, raw in enumerate(raws)], []
    renderer = ChatRenderer()
    messages: list[bytes] = []
    for at, raw in enumerate(raws):
        renderer.add_message(raw)
        messages += renderer.take_messages()
        if at in cache_marks and messages:
            messages[-1] = add_breakpoints(messages[-1], cache_marks[at])
    renderer.flush_attachments()
    return messages + renderer.take_messages(), renderer.left_out.render_warnings()


def needs_rendering_for_responses(raw: bytes) -> bool:
    """Returns whether a JSON text of items may have some that are not sent as they are."""
    return any(marker in raw for marker in REWRITTEN_MARKERS)


def render_messages_for_responses(
    raws: Sequence[bytes], *, own_contents: Set[str] | None = None, cache_marks: CacheMarks = NO_CACHE_MARKS
) -> RenderedMessages:
    """Returns the messages of a view as items, and the field `instructions`.

    Items keep their bytes. Left out are reasoning items that only name what a provider may have stored, and references
    to stored items: the provider is asked to store nothing.

    Args:
        own_contents: the encrypted contents that go to the provider, because they come from there; None: all.
        cache_marks: where breakpoints are set. The field `instructions` can have none.

    Raises:
        InvalidRequest: a message is not valid JSON.
    """
    raws = express_as_known(raws)
    renderer = _ItemsRenderer(raws, own_contents=own_contents)
    items = renderer.raw_items
    for at, raw in enumerate(raws):
        renderer.add_message(raw)
        if at in cache_marks and items:
            items[-1] = add_breakpoints(items[-1], cache_marks[at], "input_text")
    instructions = {"instructions": renderer.instructions}
    return RenderedMessages(renderer.raw_items, instructions, renderer.left_out.render_warnings())


def build_output_items(message: Item, response_id: str, *, status: str = "completed") -> list[dict[str, Any]]:
    """Returns a stored answer as the output items of a response.

    Args:
        response_id: gives an id to the items that have none.
        status: the status of the items of a chat answer.
    """
    if isinstance(message, ResponsesMessage):
        return name_items([item for item in message.items if isinstance(item, dict)], response_id)
    return build_answer_items(message, response_id, status)


def build_message_object(raw: bytes) -> dict[str, Any]:
    """Builds a chat message. That of a Responses message has the items in `response_items`, and that of the Messages
    API has its message in `anthropic`, since a chat message cannot express all of them."""
    message = decode_item(raw)
    if isinstance(message, ChatMessage):
        return dict(orjson.loads(raw))
    rendered, _ = render_messages_for_chat([raw])
    chat = orjson.loads(rendered[0]) if rendered else {"role": message.role, "content": ""}
    if isinstance(message, ResponsesMessage):
        return {**chat, "response_items": message.items}
    return {**chat, **orjson.loads(raw)}


class ChatRenderer:
    """Renders messages as chat messages. Attachments of tool results wait until a user message may hold them.

    Attributes:
        left_out: what chat messages cannot express.
    """

    def __init__(self, left_out: LeftOutKinds | None = None) -> None:
        self._messages: list[bytes] = []
        self.left_out = left_out or LeftOutKinds("Chat Completions")
        self._attachments: list[dict[str, Any]] = []

    def add_message(self, raw: bytes) -> None:
        message = decode_item(raw)
        if self._attachments and message.role != "tool":
            self.flush_attachments()
        if isinstance(message, ChatMessage):
            self._messages.append(raw)
            return
        if isinstance(message, ResponsesMessage):
            self.note_fields(message.items)
        elif isinstance(message, MessagesMessage):
            self.left_out.add_all(list_unexpressed_fields(message.blocks))
        body = self._express_body({**decode_body(message)})
        if body is not None:
            self._messages.append(ChatMessage.from_body(body).raw)

    def take_messages(self) -> list[bytes]:
        """Returns the messages that were rendered since the last call."""
        messages, self._messages = self._messages, []
        return messages

    def flush_attachments(self) -> None:
        """Adds a user message with the images and files of the tool results before it. Chat Completions has none in a
        tool's result, and no message may stand between the results of one round."""
        if self._attachments:
            self._messages.append(ChatMessage.from_body({"role": "user", "content": self._attachments}).raw)
            self._attachments = []

    def _express_body(self, body: MessageBody) -> MessageBody | None:
        """Returns a message without what Chat Completions does not have; None if nothing is left of it."""
        content, role = body.get("content"), body["role"]
        if isinstance(content, list):
            parts = [part for part in map(self._express_part, content) if part is not None]
            if role in TEXT_ONLY_ROLES:
                parts = self._take_out_attachments(parts, body)
            if not parts and role != "tool" and "tool_calls" not in body:
                return None
            body = {**body, "content": simplify_content(parts)}
        if any(block.get("data") for block in body.pop("reasoning_details", ())):
            self.left_out.add("encrypted reasoning")
        if role == "assistant" and not body.get("content") and "tool_calls" not in body:
            if body.get("reasoning_content"):
                self.left_out.add("reasoning without an answer")
            return None
        return body

    def _express_part(self, part: dict[str, Any]) -> dict[str, Any] | None:
        if part["type"] in CHAT_PART_TYPES:
            return part
        if part["type"] == "compaction" and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        self.left_out.add_type(part["type"], "items and parts")
        return None

    def _take_out_attachments(self, parts: list[dict[str, Any]], body: MessageBody) -> list[dict[str, Any]]:
        """Returns the texts among the parts. Other parts of a tool's result are kept for a user message."""
        texts = [part for part in parts if part["type"] in ("text", "refusal")]
        attachments = [part for part in parts if part["type"] not in ("text", "refusal")]
        if body["role"] != "tool":
            for part in attachments:
                self.left_out.add(f"parts of type {part['type']!r} in messages of role {body['role']!r}")
        elif attachments:
            note = ATTACHMENT_NOTE.format(body["tool_call_id"])
            self._attachments += [{"type": "text", "text": note}, *attachments]
            texts = texts or [{"type": "text", "text": note}]
        return texts

    def note_fields(self, items: list[Any]) -> None:
        """Adds to `left_out` the fields of items and parts that the chat form does not express."""
        for item in list_objects(items):
            kind = read_type(item)
            if kind == "reasoning" and read_reasoning_texts(item):
                if item.get("encrypted_content"):
                    self.left_out.add("encrypted reasoning")
                if item.get("content") and item.get("summary"):
                    self.left_out.add("the summary of reasoning whose text is sent")
            elif kind == "image_generation_call":
                self.left_out.add_type(kind, "items and parts")
            elif is_client_call(item) and kind not in EXPRESSED_FIELDS:
                self.left_out.add(f"the type {kind!r} of calls, which are sent as calls of a function with that name")
                if item.get("caller"):
                    self.left_out.add(f"the field 'caller' of items of type {kind!r}")
            # Without an output, the other fields are sent as the result (`convert_output`).
            if kind in EXPRESSED_FIELDS and not (kind in OUTPUT_TYPES and item.get("output") is None):
                expressed = EXPRESSED_FIELDS[kind] | CHANGING_FIELDS | {"type"}
                self.left_out.add_fields(item, expressed, f"items of type {kind!r}")
                self._note_part_fields(item.get("content"))
                output = item.get("output")
                # A screenshot without an address is sent as its JSON text.
                has_address = isinstance(output, dict) and output.get("image_url")
                self._note_part_fields([output] if has_address else output)

    def _note_part_fields(self, parts: object) -> None:
        for part in list_objects(parts):
            kind = part.get("type")
            # Parts of other types are named by their type.
            if not isinstance(kind, str) or kind not in EXPRESSED_PART_FIELDS:
                continue
            self.left_out.add_fields(part, EXPRESSED_PART_FIELDS[kind] | UNSENT_PART_FIELDS, "content parts")
            if part.get("detail") == "original":
                self.left_out.add("the detail 'original' of images, which are sent with 'high'")


class _ItemsRenderer:
    """Collects items."""

    def __init__(self, raws: Sequence[bytes], *, own_contents: Set[str] | None) -> None:
        self.instructions: bytes | None = None
        self.raw_items: list[bytes] = []
        self.left_out = LeftOutKinds("the Responses API")
        self._own_contents = own_contents
        self._chat_items = ChatMessageItems(self.left_out)
        self._has_chat_messages = any(raw[:1] != b"[" for raw in raws)

    def add_message(self, raw: bytes) -> None:
        message = decode_item(raw)
        if not isinstance(message, ResponsesMessage):
            if isinstance(message, MessagesMessage):
                self.left_out.add_all(list_unexpressed_fields(message.blocks))
            self.raw_items += [_encode_item(item) for item in self._chat_items.build_items(message)]
            return
        if raw[1:].lstrip()[:1] == b'"':
            self._add_instructions(message)
            return
        # A result of the gateway's own, which is a chat message, answers a call by its type.
        if self._has_chat_messages and (b"_call" in raw or b"mcp_approval_request" in raw):
            self._read_calls(message.items)
        if needs_rendering_for_responses(raw):
            self._add_rewritten_items(message)
        else:
            self.raw_items += message.raw_items

    def _add_instructions(self, message: ResponsesMessage) -> None:
        for raw in message.raw_items:
            if self.instructions is None:
                self.instructions = raw
            else:
                self.raw_items.append(b'{"type":"message","role":"system","content":' + raw + b"}")

    def _read_calls(self, items: Sequence[Any]) -> None:
        for item in items:
            if isinstance(item, dict) and is_client_call(item) and (call_id := read_call_id(item)) is not None:
                self._chat_items.output_types[call_id] = CALL_OUTPUT_TYPES[read_type(item)]

    def _add_rewritten_items(self, message: ResponsesMessage) -> None:
        """Adds the items of a run without those that mean nothing to the provider. If reasoning is left out, the others
        lose their ids: a provider that knows the ids asks for the reasoning that belongs to them."""
        items = message.items
        rewritten = [self._rewrite_item(item) for item in items]
        loses_reasoning = any(
            new is None and isinstance(item, dict) and read_type(item) == "reasoning"
            for item, new in zip(items, rewritten, strict=True)
        )
        for raw, item, new in zip(message.raw_items, items, rewritten, strict=True):
            if new is None:
                continue
            new = strip_id(new) if loses_reasoning else new
            self.raw_items.append(raw if new == item else _encode_item(new))

    def _rewrite_item(self, item: Any) -> Any | None:
        """Returns an item as it is sent; None for an item that is not sent."""
        kind = read_type(item) if isinstance(item, dict) else ""
        if kind == "item_reference":
            self.left_out.add_type(kind, "items")
            return None
        if kind == "reasoning":
            return self._rewrite_reasoning(item)
        if kind != "compaction":
            return item
        return self._rewrite_compaction(item)

    def _rewrite_reasoning(self, item: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if item.get("encrypted_content"):
            if self._may_send_content(item["encrypted_content"]):
                return item
            self.left_out.add("encrypted reasoning of another provider")
            item = {name: value for name, value in item.items() if name not in ("encrypted_content", "id")}
        if item.get("content"):
            # OpenAI's models never show these texts, so an id of this form is the gateway's own, or another gateway's.
            return {name: item[name] for name in item if name != "id" or not has_derived_form(item["id"])}
        return item if item.get("summary") and "id" not in item else None

    def _may_send_content(self, content: object) -> bool:
        own = self._own_contents
        return own is None or (isinstance(content, str) and content in own)

    def _rewrite_compaction(self, item: Mapping[str, Any]) -> Mapping[str, Any] | None:
        text, sealed = item.get("text"), item.get("encrypted_content")
        # Our own compaction items hold the text of a summary, which no provider could decrypt.
        if self._may_send_content(sealed) and sealed != text:
            return item
        if isinstance(text, str):
            return {"type": "message", "role": "user", "content": text}
        self.left_out.add("encrypted compaction items of another provider")
        return None


def _encode_item(item: Mapping[str, Any]) -> bytes:
    """Returns the JSON text of an item.

    Raises:
        InvalidRequest: the item is nested too deeply to be written as JSON.
    """
    try:
        return orjson.dumps(item)
    except TypeError as error:
        if not is_too_deep(item):
            raise
        raise InvalidRequest(f"An item {TOO_DEEP_MESSAGE}", code="invalid_value", param="input") from error
