"""Collects the deltas of one choice into its assistant message. Pure."""

from __future__ import annotations

import itertools
from typing import Any

from app.conversation.json_text import list_objects
from app.dialects.chat.tool_call_collector import ToolCallCollector, merge_json


class ChoiceCollector:
    """Collects one choice, delta by delta."""

    def __init__(self) -> None:
        self.role: str | None = None
        self.text_pieces: list[str] = []
        self.text_fields: dict[str, list[str]] = {}
        """Other fields that come as pieces of text, known and unknown ones."""
        self.content_parts: list[Any] = []
        """Content that came as a list of parts; once there is one, text is added as a part, too."""
        self.tool_calls: ToolCallCollector | None = None
        """None until a fragment of a call has come."""
        self.function_call: dict[str, str] | None = None
        self.audio_id: str | None = None
        self.list_fields: dict[str, list[Any]] = {}
        self.other_fields: dict[str, Any] = {}
        self.finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        has_text = any(self.text_pieces) or any(self.text_fields.get("refusal", ()))
        return bool(has_text or self.content_parts or self.tool_calls or self.function_call or self.audio_id)

    def add_delta(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if value is None:
                continue
            if key == "content":
                self._add_content(value)
            elif key == "role":
                self.role = self.role or str(value)
            elif key == "tool_calls" and isinstance(value, list):
                for fragment in list_objects(value):
                    self.tool_calls = self.tool_calls or ToolCallCollector()
                    self.tool_calls.add_fragment(fragment)
            elif key == "function_call" and isinstance(value, dict):
                self._add_function_call(value)
            elif key == "audio" and isinstance(value, dict):
                self.audio_id = value.get("id") or self.audio_id
            elif isinstance(value, str):
                self.text_fields.setdefault(key, []).append(value)
            elif isinstance(value, list):
                self.list_fields.setdefault(key, []).extend(value)
            else:
                self.other_fields[key] = merge_json(self.other_fields.get(key), value)

    def build_message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": self.role or "assistant", "content": self._build_content()}
        for key, pieces in self.text_fields.items():
            text = "".join(pieces)
            if text:
                message[key] = text
        for key, items in self.list_fields.items():
            message[key] = _join_fragments(items)
        message.update(self.other_fields)
        if self.tool_calls is not None:
            message["tool_calls"] = self.tool_calls.build_calls()
        if self.function_call is not None:
            message["function_call"] = self.function_call
        if self.audio_id is not None:
            message["audio"] = {"id": self.audio_id}
        return message

    def _build_content(self) -> str | list[Any] | None:
        if self.content_parts:
            if all(isinstance(part, dict) and part.get("type") == "text" for part in self.content_parts):
                return "".join(str(part.get("text", "")) for part in self.content_parts)
            return _join_fragments(self.content_parts)
        text = "".join(self.text_pieces)
        # An empty answer is "" as it came; beside calls, OpenAI writes null.
        stands_alone = not (
            self.tool_calls or self.function_call or self.audio_id or any(self.text_fields.get("refusal", ()))
        )
        return text if text or (stands_alone and self.text_pieces) else None

    def _add_content(self, value: Any) -> None:
        if isinstance(value, str):
            if self.content_parts:
                self.content_parts.append({"type": "text", "text": value})
            else:
                self.text_pieces.append(value)
            return
        if self.text_pieces and not self.content_parts:
            text = "".join(self.text_pieces)
            self.text_pieces.clear()
            if text:
                self.content_parts.append({"type": "text", "text": text})
        self.content_parts.extend(value if isinstance(value, list) else [value])

    def _add_function_call(self, fragment: dict[str, Any]) -> None:
        call = self.function_call or {"name": "", "arguments": ""}
        self.function_call = {
            "name": call["name"] or str(fragment.get("name") or ""),
            "arguments": call["arguments"] + str(fragment.get("arguments") or ""),
        }


def _join_fragments(items: list[Any]) -> list[Any]:
    """Returns a list in which neighbours of one type and index are merged: fragments of a text that came in pieces
    (OpenRouter's `reasoning_details`, Mistral's `thinking` parts).
    """
    joined: list[Any] = []
    for key, group in itertools.groupby(items, _fragment_key):
        fragments = list(group)
        joined.extend(fragments if key is None or len(fragments) == 1 else [_merge_fragments(key[0], fragments)])
    return joined


def _fragment_key(item: Any) -> tuple[str, Any, Any, type] | None:
    """Returns which fragments an item belongs to: the field that grows, its type and index; None for an item that is no
    fragment.
    """
    if isinstance(item, dict) and "type" in item:
        for field in ("text", "summary", "thinking"):
            if isinstance(item.get(field), str | list):
                return field, item["type"], item.get("index"), type(item[field])
    return None


def _merge_fragments(field: str, fragments: list[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for fragment in fragments:
        # A later null (a signature that comes only once) must not replace an earlier value.
        whole.update((key, value) for key, value in fragment.items() if value is not None or key not in whole)
    if isinstance(whole[field], str):
        whole[field] = "".join(fragment[field] for fragment in fragments)
    else:
        whole[field] = _join_fragments([item for fragment in fragments for item in fragment[field]])
    return whole
