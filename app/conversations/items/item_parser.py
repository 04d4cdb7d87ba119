"""Parses a client's items into chat messages: all items or none. Pure.

Consecutive reasoning, text and calls of a model become one chat message. Fields that a chat message does not have
(`phase`, annotations, ids of another system) are kept beside it, and `conversations.items.item_building` adds them to
the item
again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from app.conversation.item import Item
from app.conversation.json_depth import TOO_DEEP_MESSAGE, is_too_deep
from app.dialects.body.message import ChatMessage
from app.dialects.items.chat_form import build_chat_form
from app.errors import InvalidRequest

MAX_ITEMS: Final = 20
"""OpenAI's limit for one request."""
_VALIDATION_ERROR: Final = re.compile(r"^(?P<said>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)


class ParsedMessage(msgspec.Struct, frozen=True):
    """A chat message made from items, and the items' other fields (`LogMessage.meta["item"]`)."""

    body: dict[str, Any]
    item_fields: dict[str, Any]

    @property
    def message(self) -> Item:
        return ChatMessage.from_body(self.body)


def parse_items(items: Sequence[object], *, open_calls: Collection[str] | None) -> list[ParsedMessage]:
    """Parses items into chat messages.

    Args:
        open_calls: ids of the tool calls at the end of the log, whose results may come first; None: any result may.

    Raises:
        InvalidRequest: a chat message cannot hold an item; `param` names it, such as `items[3].type`.
    """
    if len(items) > MAX_ITEMS:
        raise InvalidRequest(
            f"At most {MAX_ITEMS} items may be added at a time, not {len(items)}.",
            code="array_above_max_length",
            param="items",
        )
    parser = _ItemParser(open_calls)
    for index, item in enumerate(items):
        if is_too_deep(item):
            raise InvalidRequest(f"items[{index}] {TOO_DEEP_MESSAGE}", code="invalid_value", param=f"items[{index}]")
        parser.add_item(_parse_item_shape(item, index), index)
    parser.finish_answer()
    return parser.parsed_messages


class _AnswerBuilder:
    """Collects the items of one assistant message."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.reasoning: list[Reasoning] = []
        self.message_item: MessageItem | None = None
        self.calls: list[Call | CustomCall] = []

    @property
    def has_only_reasoning(self) -> bool:
        return self.message_item is None and not self.calls

    def build_parsed_message(self) -> ParsedMessage:
        item_fields: dict[str, Any] = {}
        items: list[ItemShape] = [*self.reasoning]
        if self.message_item is not None:
            items.append(self.message_item)
            item_fields["message"] = _extract_extra_message_fields(self.message_item)
        if self.reasoning:
            item_fields["reasoning"] = _extract_extra_reasoning_fields(self.reasoning)
        if self.calls:
            item_fields["calls"] = [
                _extract_named_item_fields(call, "status", "namespace", "caller") for call in self.calls
            ]
        body = _build_body([*items, *self.calls])
        return ParsedMessage(body, {name: beside for name, beside in item_fields.items() if any(beside)})


class _ItemParser:
    """Collects chat messages from items, and the assistant message to which the next items may belong."""

    def __init__(self, open_calls: Collection[str] | None) -> None:
        self.parsed_messages: list[ParsedMessage] = []
        self._open_calls = open_calls
        self._answer_builder: _AnswerBuilder | None = None

    def add_item(self, item: ItemShape, index: int) -> None:
        match item:
            case Reasoning():
                self._open_answer_for_reasoning(index).reasoning.append(item)
            case MessageItem(role="assistant"):
                self._open_answer_for_message(index).message_item = item
            case Call() | CustomCall():
                self._ensure_answer_builder(index).calls.append(item)
            case MessageItem():
                self.finish_answer()
                self._open_calls = ()
                self._add_parsed_message(_build_body([item]), {"message": _extract_extra_message_fields(item)})
            case Result():
                self.finish_answer()
                self._check_call_exists(item, index)
                item_fields = _extract_named_item_fields(item, "status", "name", "namespace", "caller")
                self._add_parsed_message(_build_body([item]), {"output": item_fields})

    def finish_answer(self) -> None:
        """Completes the current assistant message, if there is one."""
        answer, self._answer_builder = self._answer_builder, None
        if answer is None:
            return
        if answer.has_only_reasoning:
            raise InvalidRequest(
                f"items[{answer.index}] is reasoning without an answer: the model's message or call must follow it "
                "in the same request.",
                code="invalid_value",
                param=f"items[{answer.index}]",
            )
        self._open_calls = [call.call_id for call in answer.calls]
        self.parsed_messages.append(answer.build_parsed_message())

    def _add_parsed_message(self, body: dict[str, Any], item_fields: dict[str, Any]) -> None:
        self.parsed_messages.append(
            ParsedMessage(body, {name: beside for name, beside in item_fields.items() if beside})
        )

    def _ensure_answer_builder(self, index: int) -> _AnswerBuilder:
        self._answer_builder = self._answer_builder or _AnswerBuilder(index)
        return self._answer_builder

    def _open_answer_for_reasoning(self, index: int) -> _AnswerBuilder:
        if self._answer_builder is not None and not self._answer_builder.has_only_reasoning:
            self.finish_answer()
        return self._ensure_answer_builder(index)

    def _open_answer_for_message(self, index: int) -> _AnswerBuilder:
        if self._answer_builder is not None and self._answer_builder.message_item is not None:
            self.finish_answer()
        return self._ensure_answer_builder(index)

    def _check_call_exists(self, result: Result, index: int) -> None:
        if self._open_calls is not None and result.call_id not in self._open_calls:
            raise InvalidRequest(
                f"items[{index}]: there is no tool call with call_id {result.call_id!r} right before this output.",
                code="invalid_value",
                param=f"items[{index}].call_id",
            )


def _parse_item_shape(item: object, index: int) -> ItemShape:
    """Converts an item to the struct of its type.

    Raises:
        InvalidRequest: the type is unknown, or a field is invalid.
    """
    location = f"items[{index}]"
    if not isinstance(item, Mapping):
        raise InvalidRequest(f"{location} must be an object.", code="invalid_type", param=location)
    kind = item.get("type", "message")
    shape = ITEM_SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        raise InvalidRequest(_unsupported_item_message(kind, location), code="invalid_value", param=f"{location}.type")
    try:
        return msgspec.convert(item, shape)
    except msgspec.ValidationError as error:
        match = _VALIDATION_ERROR.match(str(error))
        param_path = location + ((match and match["path"]) or "")
        raise InvalidRequest(
            f"{param_path}: {match['said'] if match else error}.", code="invalid_value", param=param_path
        ) from error


def _unsupported_item_message(kind: object, location: str) -> str:
    known = ", ".join(ITEM_SHAPES)
    if kind == "compaction":
        return f"{location}: items of type 'compaction' are made by the gateway itself; these can be added: {known}."
    return f"{location}: items of type {kind!r} cannot be stored in a log of chat messages; these can be: {known}."


def _build_body(items: Sequence[ItemShape]) -> dict[str, Any]:
    """Returns the chat message that says what the items say. A namespace is one of the fields beside it."""
    return build_chat_form([{**msgspec.to_builtins(item), "namespace": None} for item in items])


def _extract_extra_message_fields(item: MessageItem) -> dict[str, Any]:
    item_fields = _extract_named_item_fields(item, "status", "phase")
    if isinstance(item.content, str):
        return item_fields
    usual_text_type = "output_text" if item.role == "assistant" else "input_text"
    parts = [_extract_extra_part_fields(part, usual_text_type) for part in item.content]
    return {**item_fields, "content": parts} if any(parts) else item_fields


def _extract_extra_part_fields(part: Part, usual_text_type: str) -> dict[str, Any]:
    """Returns the fields of a part that a chat message's part does not have: a type of text other than
    `usual_text_type`,
    citations, log probabilities, an image's or a file's detail."""
    part_fields: dict[str, Any] = {}
    kind = part.__struct_config__.tag
    if isinstance(part, TextShape) and kind != usual_text_type:
        part_fields["type"] = kind
    if isinstance(part, OutputText):
        part_fields |= {"annotations": part.annotations} if part.annotations else {}
        part_fields |= {"logprobs": part.logprobs} if part.logprobs else {}
    if isinstance(part, InputImage | InputFile) and part.detail in ("original", "low", "high", "auto"):
        part_fields |= {"detail": part.detail} if isinstance(part, InputFile) or part.detail == "original" else {}
    return part_fields


def _extract_named_item_fields(item: ItemShape, *names: str) -> dict[str, Any]:
    """Returns the named fields of an item that are set. The client's `id` becomes `client_id`, because the gateway
    gives the item an id of its own."""
    named_values: Iterator[tuple[str, Any]] = ((name, getattr(item, name, None)) for name in names)
    item_fields = {name: value for name, value in named_values if value is not None}
    return item_fields if item.id is None else {**item_fields, "client_id": item.id}


def _extract_extra_reasoning_fields(items: Sequence[Reasoning]) -> dict[str, Any]:
    item_fields: dict[str, Any] = {"summary": [msgspec.to_builtins(one) for item in items for one in item.summary]}
    item_fields["content"] = [msgspec.to_builtins(one) for item in items for one in item.content or ()]
    for item in items:
        item_fields |= _extract_named_item_fields(item, "status", "encrypted_content")
    return item_fields


Status = Literal["in_progress", "completed", "incomplete"]
Detail = Literal["low", "high", "auto", "original"]
CallId = Annotated[str, msgspec.Meta(min_length=1)]


class PartShape(msgspec.Struct, frozen=True, tag_field="type", kw_only=True, omit_defaults=True):
    """A part of an item's content."""

    prompt_cache_breakpoint: dict[str, Any] | None = None


class TextShape(PartShape, frozen=True, kw_only=True):
    """Text of some kind."""

    text: str


class InputText(TextShape, frozen=True, tag="input_text"):
    """Text of a user or a program."""


class OutputText(TextShape, frozen=True, tag="output_text", kw_only=True):
    """Text of a model."""

    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] | None = None


class PlainText(TextShape, frozen=True, tag="text"):
    """Text without a known author."""


class SummaryText(TextShape, frozen=True, tag="summary_text"):
    """A summary of a model's reasoning."""


class ReasoningText(TextShape, frozen=True, tag="reasoning_text"):
    """A model's reasoning."""


class Refusal(PartShape, frozen=True, tag="refusal", kw_only=True):
    """A model's refusal to answer."""

    refusal: str


class InputImage(PartShape, frozen=True, tag="input_image", kw_only=True):
    """An image, by URL or data URL. An image by file id is not accepted, because chat messages have no such form."""

    image_url: str
    detail: Detail | None = None


class InputFile(PartShape, frozen=True, tag="input_file", kw_only=True):
    """A file, as a data URL or by its id at the provider. A file by URL is not accepted, because chat messages have no
    such form."""

    file_data: str | None = None
    file_url: None = None
    file_id: str | None = None
    filename: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class AudioData(msgspec.Struct, frozen=True):
    """Audio data in base64."""

    data: str
    format: Literal["mp3", "wav"]


class InputAudio(PartShape, frozen=True, tag="input_audio", kw_only=True):
    """Spoken input."""

    input_audio: AudioData


Part = InputText | OutputText | PlainText | SummaryText | ReasoningText | Refusal | InputImage | InputFile | InputAudio
ResultPart = InputText | InputImage | InputFile


class ItemBase(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all items have."""

    id: str | None = None
    status: Status | None = None


class MessageItem(ItemBase, frozen=True, kw_only=True):
    """A message; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    phase: Literal["commentary", "final_answer"] | None = None


class ToolItem(ItemBase, frozen=True, kw_only=True):
    """The fields that calls and results have."""

    call_id: CallId
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class Call(ToolItem, frozen=True, kw_only=True):
    """A model's call of a function."""

    type: Literal["function_call"]
    name: str
    arguments: str


class CustomCall(ToolItem, frozen=True, kw_only=True):
    """A model's call of a custom tool."""

    type: Literal["custom_tool_call"]
    name: str
    input: str


class Result(ToolItem, frozen=True, kw_only=True):
    """The result of a tool call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: str | list[ResultPart]
    name: str | None = None


class Reasoning(ItemBase, frozen=True, kw_only=True):
    """A model's reasoning before its text or its calls."""

    type: Literal["reasoning"]
    summary: list[SummaryText]
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


ItemShape = MessageItem | Call | CustomCall | Result | Reasoning
ITEM_SHAPES: Final[dict[str, type[ItemShape]]] = {
    "message": MessageItem,
    "function_call": Call,
    "function_call_output": Result,
    "custom_tool_call": CustomCall,
    "custom_tool_call_output": Result,
    "reasoning": Reasoning,
}
"""The struct of each item `type`."""
