"""Chooses which tools the simulated model calls and with what arguments; builds instances of JSON schemas. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from app.errors import InvalidRequest
from app.simulator.request_schemas import MAX_SCHEMA_NUMBER, check_json_schema
from app.simulator.sentence_splitting import find_word_stems

MAX_SCHEMA_DEPTH = 12
MAX_INSTANCE_CHARS = 100_000
"""The longest JSON of one instance: a schema of a few bytes may ask for billions of characters."""
SEARCH_TOOL_NAME = "recall_conversation"
"""The tool that is called if the context holds no answer."""

_QUOTED_TEXT = re.compile(r"\"([^\"\n]+)\"|'([^'\n]{2,})'|`([^`\n]+)`|“([^”\n]+)”")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_NAME = re.compile(r"(?<=[a-z,:] )[A-Z][\w-]*(?: [A-Z][\w-]*)*")
_FORMAT_EXAMPLES = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


@dataclass(frozen=True, slots=True)
class _OfferedTool:
    kind: str
    name: str
    schema: Mapping[str, Any]


def make_tool_calls(request: Mapping[str, Any], user_text: str, *, may_choose: bool) -> list[dict[str, Any]]:
    """Returns the calls of an answer; empty if the model answers in words.

    Args:
        request: the chat completion request.
        user_text: text of the newest user message.
        may_choose: whether the model may decide to call now (`tool_choice: auto`), that is, the newest message is the
            user's.
    """
    selected_tools = _choose_tools(request, user_text, may_choose=may_choose)
    if request.get("parallel_tool_calls") is False:
        selected_tools = selected_tools[:1]
    # Ids differ from turn to turn, but the same request gets the same ids.
    depth = len(request.get("messages") or ())
    return [_build_tool_call(tool, user_text, f"{depth}.{index}") for index, tool in enumerate(selected_tools)]


def make_search_call(request: Mapping[str, Any], user_text: str) -> dict[str, Any] | None:
    """Returns a call of the search tool, if the request offers it and leaves the choice to the model; else None."""
    offered = any(
        tool is not None and tool.name == SEARCH_TOOL_NAME for tool in map(_parse_tool, request.get("tools") or ())
    )
    if not offered or (request.get("tool_choice") or "auto") != "auto":
        return None
    arguments = orjson.dumps({"query": user_text}).decode()
    seed = orjson.dumps([len(request.get("messages") or ()), arguments])
    call_id = f"call_{hashlib.sha256(seed).hexdigest()[:24]}"
    return {"id": call_id, "type": "function", "function": {"name": SEARCH_TOOL_NAME, "arguments": arguments}}


def ends_with_search_results(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Says whether the results at the end are those of the search tool."""
    calls = next((message.get("tool_calls") for message in reversed(messages) if message.get("role") != "tool"), None)
    return any((call.get("function") or {}).get("name") == SEARCH_TOOL_NAME for call in calls or ())


def build_schema_instance(schema: Mapping[str, Any], text: str = "") -> Any:
    """Returns the smallest value that a JSON schema allows, filled with quotes, numbers and names from `text`.

    Raises:
        InvalidRequest: the schema is invalid, or asks for more than `MAX_INSTANCE_CHARS`.
    """
    return _SchemaInstanceBuilder(schema, _TextValues.from_text(text)).build(schema, "")


def _choose_tools(request: Mapping[str, Any], user_text: str, *, may_choose: bool) -> list[_OfferedTool]:
    tools = [tool for tool in map(_parse_tool, request.get("tools") or ()) if tool is not None]
    choice = request.get("tool_choice") or "auto"
    if not tools or choice == "none":
        return []
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools") or {}
        names = {tool.name for tool in map(_parse_tool, allowed.get("tools") or ()) if tool is not None}
        tools = [tool for tool in tools if tool.name in names]
        choice = allowed.get("mode", "auto")
    elif isinstance(choice, dict):
        forced_tool = _parse_tool(choice)
        return [tool for tool in tools if forced_tool is not None and tool.name == forced_tool.name][:1]
    named_tools = _find_named_tools(tools, user_text)
    if choice == "required":
        return named_tools or sorted(tools, key=lambda tool: -len(_name_stems(tool) & find_word_stems(user_text)))[:1]
    return named_tools if may_choose else []


def _parse_tool(entry: Any) -> _OfferedTool | None:
    """Parses a tool that a request declares or names. Both forms nest the fields under the tool's type; some clients do
    not.
    """
    if not isinstance(entry, dict):
        return None
    kind = entry.get("type", "function")
    nested = entry.get(kind)
    facts: dict[str, Any] = nested if isinstance(nested, dict) else entry
    name = facts.get("name")
    return _OfferedTool(kind, name, facts.get("parameters") or {}) if isinstance(name, str) else None


def _find_named_tools(tools: Sequence[_OfferedTool], user_text: str) -> list[_OfferedTool]:
    """Returns the tools that a text names, in its order. Underscores may be written as spaces."""
    found = []
    for tool in tools:
        name_pattern = re.escape(tool.name).replace("_", r"[_\s-]").replace(r"\-", r"[_\s-]")
        match = re.search(rf"(?<![\w-]){name_pattern}(?![\w-])", user_text, re.IGNORECASE)
        if match:
            found.append((match.start(), tool))
    return [tool for _, tool in sorted(found, key=lambda pair: pair[0])]


def _name_stems(tool: _OfferedTool) -> frozenset[str]:
    return find_word_stems(tool.name.replace("_", " "))


def _build_tool_call(tool: _OfferedTool, user_text: str, id_seed: str) -> dict[str, Any]:
    if tool.kind == "custom":
        material = _TextValues.from_text(user_text)
        body: dict[str, Any] = {"name": tool.name, "input": material.next_string("input")}
    else:
        value = build_schema_instance(tool.schema or {"type": "object"}, user_text.replace(tool.name, " "))
        body = {"name": tool.name, "arguments": orjson.dumps(value).decode()}
    seed = orjson.dumps([id_seed, tool.kind, body, user_text])
    return {"id": f"call_{hashlib.sha256(seed).hexdigest()[:24]}", "type": tool.kind, tool.kind: body}


@dataclass(slots=True)
class _TextValues:
    """Quotes, names and numbers of a text. Each is used once as long as there are others."""

    strings: list[str]
    numbers: list[float]
    text: str
    used_counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_text(cls, text: str) -> _TextValues:
        quotes = [next(group for group in match.groups() if group) for match in _QUOTED_TEXT.finditer(text)]
        plain = _QUOTED_TEXT.sub(" ", text)
        found = [float(number) for number in _NUMBER.findall(plain)]
        numbers = [number for number in found if abs(number) <= MAX_SCHEMA_NUMBER]
        return cls(strings=quotes or _NAME.findall(plain), numbers=numbers, text=text.lower())

    def next_string(self, name: str) -> str:
        return str(self._next_value("string", self.strings, f"{name or 'value'} text"))

    def next_number(self) -> float:
        return float(self._next_value("number", self.numbers, 1.0))

    def _next_value(self, kind: str, values: Sequence[Any], default: Any) -> Any:
        at = self.used_counts.get(kind, 0)
        self.used_counts[kind] = at + 1
        return values[min(at, len(values) - 1)] if values else default


@dataclass(slots=True)
class _SchemaInstanceBuilder:
    root: Mapping[str, Any]
    text_values: _TextValues
    remaining_chars: int = MAX_INSTANCE_CHARS

    def build(self, schema: Any, name: str, depth: int = 0) -> Any:
        # Every value costs at least one character, so nested arrays of nothing come to an end, too.
        self._spend_chars(len(name) + 1)
        if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
            return None
        check_json_schema(schema)
        if "$ref" in schema:
            return self.build(self._resolve_reference(str(schema["$ref"])), name, depth + 1)
        if "const" in schema:
            return self._copy_schema_value(schema["const"])
        if schema.get("enum"):
            return self._copy_schema_value(self._choose_enum_value(schema["enum"]))
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                return self.build(schema[key][0], name, depth + 1)
        return self._build_by_type(schema, name, depth)

    def _copy_schema_value(self, value: Any) -> Any:
        """Returns a value that the schema itself contains."""
        self._spend_chars(len(orjson.dumps(value)))
        return value

    def _spend_chars(self, chars: int) -> None:
        """Subtracts from the characters that are left.

        Raises:
            InvalidRequest: fewer characters are left.
        """
        self.remaining_chars -= chars
        if self.remaining_chars < 0:
            raise InvalidRequest(
                f"Invalid JSON schema: its smallest value is longer than {MAX_INSTANCE_CHARS} characters."
            )

    def _build_by_type(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        if kind == "object":
            return self._build_object(schema, depth)
        if kind == "array":
            length = max(1, int(schema.get("minItems", 1))) if schema.get("maxItems", 1) else 0
            return [self.build(schema.get("items") or {}, name, depth + 1) for _ in range(length)]
        if kind in {"integer", "number"}:
            return self._build_number(schema, whole=kind == "integer")
        if kind == "boolean":
            return True
        return None if kind == "null" else self._build_string(schema, name)

    def _build_object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        keys = schema.get("required") or list(properties)
        return {key: self.build(properties.get(key) or {}, key, depth + 1) for key in keys}

    def _choose_enum_value(self, allowed: Sequence[Any]) -> Any:
        return next(
            (one for one in allowed if isinstance(one, str) and one.lower() in self.text_values.text), allowed[0]
        )

    def _build_number(self, schema: Mapping[str, Any], *, whole: bool) -> float | int:
        number = self.text_values.next_number()
        if "minimum" in schema:
            number = max(number, float(schema["minimum"]))
        if "maximum" in schema:
            number = min(number, float(schema["maximum"]))
        return int(number) if whole else number

    def _build_string(self, schema: Mapping[str, Any], name: str) -> str:
        if schema.get("format") in _FORMAT_EXAMPLES:
            return _FORMAT_EXAMPLES[schema["format"]]
        least_chars = schema.get("minLength", 0)
        self._spend_chars(least_chars)
        text = self.text_values.next_string(name).ljust(least_chars, "x")
        self._spend_chars(len(text))
        return text[: int(schema.get("maxLength", len(text)))]

    def _resolve_reference(self, reference: str) -> Mapping[str, Any]:
        node: Any = self.root
        for step in reference.lstrip("#/").split("/"):
            if step:
                node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, Mapping) else {}
        return node if isinstance(node, Mapping) else {}
