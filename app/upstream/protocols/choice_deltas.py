"""Deltas → the assistant message of one choice. Pure."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from app.upstream.protocols.tool_call_deltas import ToolCalls, overlaid


class Delta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of a delta that a typed decoder reads; whatever has others is read in the general way."""

    content: str | None = None
    role: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: None = None
    audio: None = None


class ChoiceSoFar:
    """What a choice amounts to, gathered delta by delta."""

    __slots__ = (
        "audio_id",
        "calls",
        "content",
        "extra",
        "finish_reason",
        "function_call",
        "lists",
        "parts",
        "role",
        "texts",
    )

    def __init__(self) -> None:
        self.role: str | None = None
        self.content: list[str] = []
        self.texts: dict[str, list[str]] = {}
        """Other fields that come as pieces of text, known ones and unknown."""
        self.parts: list[Any] = []
        """Content that came as a list of parts, which ends `content` as plain text."""
        self.calls = ToolCalls()
        self.function_call: dict[str, str] | None = None
        self.audio_id: str | None = None
        self.lists: dict[str, list[Any]] = {}
        self.extra: dict[str, Any] = {}
        self.finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        spoken = any(self.content) or any(self.texts.get("refusal", ()))
        return bool(spoken or self.parts or self.calls or self.function_call or self.audio_id)

    def add_typed(self, delta: Delta) -> None:
        if delta.content is not None:
            if self.parts:
                self.add_content(delta.content)
            else:  # as nearly every chunk
                self.content.append(delta.content)
        if delta.role is not None:
            self.role = self.role or delta.role
        if delta.reasoning_content is not None:
            self.texts.setdefault("reasoning_content", []).append(delta.reasoning_content)
        if delta.reasoning is not None:
            self.texts.setdefault("reasoning", []).append(delta.reasoning)
        if delta.refusal is not None:
            self.texts.setdefault("refusal", []).append(delta.refusal)
        if delta.tool_calls is not None:
            for fragment in delta.tool_calls:
                self.calls.add(fragment)

    def add_content(self, text: str) -> None:
        if self.parts:
            self.parts.append({"type": "text", "text": text})
        else:
            self.content.append(text)

    def add(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if value is None:
                continue
            if key == "content":
                self._add_any_content(value)
            elif key == "role":
                self.role = self.role or str(value)
            elif key == "tool_calls" and isinstance(value, list):
                for fragment in value:
                    if isinstance(fragment, dict):
                        self.calls.add(fragment)
            elif key == "function_call" and isinstance(value, dict):
                self._add_function_call(value)
            elif key == "audio" and isinstance(value, dict):
                self.audio_id = value.get("id") or self.audio_id
            elif isinstance(value, str):
                self.texts.setdefault(key, []).append(value)
            elif isinstance(value, list):
                self.lists.setdefault(key, []).extend(value)
            else:
                self.extra[key] = overlaid(self.extra.get(key), value)

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role or "assistant", "content": self._whole_content()}
        for key, pieces in self.texts.items():
            text = "".join(pieces)
            if text:
                message[key] = text
        message.update((key, _joined(items)) for key, items in self.lists.items())
        message.update(self.extra)
        if self.calls:
            message["tool_calls"] = self.calls.as_list()
        if self.function_call is not None:
            message["function_call"] = self.function_call
        if self.audio_id is not None:
            message["audio"] = {"id": self.audio_id}
        return message

    def _whole_content(self) -> str | list[Any] | None:
        if self.parts:
            if all(isinstance(part, dict) and part.get("type") == "text" for part in self.parts):
                return "".join(str(part.get("text", "")) for part in self.parts)
            return _joined(self.parts)
        text = "".join(self.content)
        stands_alone = not (self.calls or self.function_call or self.audio_id or any(self.texts.get("refusal", ())))
        return text if text or (stands_alone and self.content) else None

    def _add_any_content(self, value: Any) -> None:
        if isinstance(value, str):
            self.add_content(value)
            return
        if self.content and not self.parts:
            text = "".join(self.content)
            self.content.clear()
            if text:
                self.parts.append({"type": "text", "text": text})
        self.parts.extend(value if isinstance(value, list) else [value])

    def _add_function_call(self, fragment: dict[str, Any]) -> None:
        call = self.function_call or {"name": "", "arguments": ""}
        self.function_call = {
            "name": call["name"] or str(fragment.get("name") or ""),
            "arguments": call["arguments"] + str(fragment.get("arguments") or ""),
        }


def _joined(items: list[Any]) -> list[Any]:
    """A list whose neighbours of one type and index are made one: fragments of a text that came in pieces
    (OpenRouter's `reasoning_details`, Mistral's `thinking` parts)."""
    joined: list[Any] = []
    for key, group in itertools.groupby(items, _fragment_of):
        fragments = list(group)
        joined.extend(fragments if key is None or len(fragments) == 1 else [_joined_fragments(key[0], fragments)])
    return joined


def _fragment_of(item: Any) -> tuple[str, Any, Any, type] | None:
    """What an item is a fragment of: the field that grows, its type and index; None for what stands alone."""
    if isinstance(item, dict) and "type" in item:
        for field in ("text", "summary", "thinking"):
            if isinstance(item.get(field), str | list):
                return field, item["type"], item.get("index"), type(item[field])
    return None


def _joined_fragments(field: str, fragments: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for fragment in fragments:
        whole.update((key, value) for key, value in fragment.items() if value is not None or key not in whole)
    if isinstance(whole[field], str):
        whole[field] = "".join(fragment[field] for fragment in fragments)
    else:
        whole[field] = _joined([item for fragment in fragments for item in fragment[field]])
    return whole
