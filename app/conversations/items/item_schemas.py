"""The items that a client may add, as OpenAI writes them: their fields and types. Unknown fields are passed over."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

Status = Literal["in_progress", "completed", "incomplete"]
Detail = Literal["low", "high", "auto", "original"]
CallId = Annotated[str, msgspec.Meta(min_length=1)]


class PartShape(msgspec.Struct, frozen=True, tag_field="type", kw_only=True, omit_defaults=True):
    """A part of content."""

    prompt_cache_breakpoint: dict[str, Any] | None = None


class TextShape(PartShape, frozen=True, kw_only=True):
    """Text of some kind."""

    text: str


class InputText(TextShape, frozen=True, tag="input_text"):
    """What a person or a program says."""


class OutputText(TextShape, frozen=True, tag="output_text", kw_only=True):
    """What a model says."""

    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] | None = None


class PlainText(TextShape, frozen=True, tag="text"):
    """Text of anybody's."""


class SummaryText(TextShape, frozen=True, tag="summary_text"):
    """A summary of what a model thought."""


class ReasoningText(TextShape, frozen=True, tag="reasoning_text"):
    """What a model thought."""


class Refusal(PartShape, frozen=True, tag="refusal", kw_only=True):
    """A model's no."""

    refusal: str


class InputImage(PartShape, frozen=True, tag="input_image", kw_only=True):
    """An image by its address or in a data URL; chat messages cannot refer to one by the id of a file."""

    image_url: str
    detail: Detail | None = None


class InputFile(PartShape, frozen=True, tag="input_file", kw_only=True):
    """A file in a data URL, or by its id at the provider; chat messages cannot refer to one by its address."""

    file_data: str | None = None
    file_url: None = None
    file_id: str | None = None
    filename: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class AudioData(msgspec.Struct, frozen=True):
    """Sound in base64."""

    data: str
    format: Literal["mp3", "wav"]


class InputAudio(PartShape, frozen=True, tag="input_audio", kw_only=True):
    """Something said aloud."""

    input_audio: AudioData


Part = InputText | OutputText | PlainText | SummaryText | ReasoningText | Refusal | InputImage | InputFile | InputAudio
ResultPart = InputText | InputImage | InputFile


class ItemBase(msgspec.Struct, frozen=True, kw_only=True):
    """What all items have."""

    id: str | None = None
    status: Status | None = None


class MessageItem(ItemBase, frozen=True, kw_only=True):
    """A message; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    phase: Literal["commentary", "final_answer"] | None = None


class Call(ItemBase, frozen=True, kw_only=True):
    """A model's call of a function."""

    type: Literal["function_call"]
    call_id: CallId
    name: str
    arguments: str
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class CustomCall(ItemBase, frozen=True, kw_only=True):
    """A model's call of a custom tool."""

    type: Literal["custom_tool_call"]
    call_id: CallId
    name: str
    input: str
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class Result(ItemBase, frozen=True, kw_only=True):
    """What a tool gave back."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: CallId
    output: str | list[ResultPart]
    name: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class Reasoning(ItemBase, frozen=True, kw_only=True):
    """What a model thought before it spoke or called."""

    type: Literal["reasoning"]
    summary: list[SummaryText]
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


ItemShape = MessageItem | Call | CustomCall | Result | Reasoning
SHAPES: Final[dict[str, type[ItemShape]]] = {
    "message": MessageItem,
    "function_call": Call,
    "function_call_output": Result,
    "custom_tool_call": CustomCall,
    "custom_tool_call_output": Result,
    "reasoning": Reasoning,
}
"""By `type`."""
