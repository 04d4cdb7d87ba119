"""Chooses which tools the simulated model calls and with what arguments; builds instances of JSON schemas. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import orjson

from app.errors import InvalidRequest
from app.simulator.question_answering import find_word_stems, is_question

MAX_SCHEMA_DEPTH = 12
MAX_INSTANCE_CHARS = 100_000
"""The longest JSON of one instance: a schema of a few bytes may ask for billions of characters."""
MAX_SCHEMA_NUMBER = 2**53
"""The largest number in a JSON schema: whole numbers up to this are exact in a float."""
MAX_STRING_CHARS = 200
SEARCH_TOOL_NAME = "recall_conversation"
"""The tool that is called if the context holds no answer."""

_QUOTED_TEXT = re.compile(r"\"([^\"\n]+)\"|'([^'\n]{2,})'|`([^`\n]+)`|“([^”\n]+)”")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d+)?(?![\w])")
_NAME = re.compile(r"(?<=[a-z,:] )[A-Z][\w-]*(?: [A-Z][\w-]*)*")
_FORMAT_EXAMPLES = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_Number = Annotated[float, msgspec.Meta(ge=-MAX_SCHEMA_NUMBER, le=MAX_SCHEMA_NUMBER)]


class _JsonSchema(msgspec.Struct, rename="camel"):
    """The JSON schema keywords that are read."""

    type: str | list[str] = ""
    properties: dict[str, Any] = {}
    required: list[str] = []
    items: Any = {}
    enum: list[Any] = []
    const: Any = msgspec.UNSET
    any_of: list[Any] = []
    one_of: list[Any] = []
    all_of: list[Any] = []
    minimum: _Number = -MAX_SCHEMA_NUMBER
    maximum: _Number = MAX_SCHEMA_NUMBER
    min_items: Annotated[int, msgspec.Meta(ge=0)] = 1
    min_length: Annotated[int, msgspec.Meta(ge=0)] = 0
    max_length: Annotated[int, msgspec.Meta(ge=0)] = MAX_INSTANCE_CHARS
    format: str = ""
    ref: str = msgspec.field(name="$ref", default="")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a request declares, or names in `tool_choice`."""

    kind: str
    name: str
    schema: Any


def make_tool_calls(
    tools: Sequence[Any], choice: Any, user_text: str, *, may_choose: bool, id_seed: str
) -> list[dict[str, Any]]:
    """Returns the calls of an answer; empty if the model answers in words.

    Args:
        tools: the request's `tools`.
        choice: its `tool_choice`.
        user_text: text of the newest user message.
        may_choose: whether the model may decide to call now, that is, the newest message is the user's.
        id_seed: makes the calls' ids differ from turn to turn; the same request gets the same ids.
    """
    selected_tools = _choose_tools(parse_tools(tools), choice, user_text, may_choose=may_choose)
    return [_build_tool_call(tool, user_text, f"{id_seed}.{index}") for index, tool in enumerate(selected_tools)]


def make_search_call(user_text: str, id_seed: str) -> dict[str, Any]:
    """Returns a call of the search tool."""
    body = {"name": SEARCH_TOOL_NAME, "arguments": orjson.dumps({"query": user_text}).decode()}
    return {"id": _make_call_id(id_seed, body), "type": "function", "function": body}


def parse_tools(entries: Sequence[Any] | None) -> list[OfferedTool]:
    """Parses the tools that a request declares or names, without those that have no name. Both protocols' forms nest
    the fields under the tool's type; some clients do not.
    """
    tools = []
    for entry in entries or ():
        kind = entry.get("type", "function") if isinstance(entry, Mapping) else ""
        nested = entry.get(kind, entry) if isinstance(kind, str) and isinstance(entry, Mapping) else None
        if isinstance(nested, Mapping) and isinstance(nested.get("name"), str):
            tools.append(OfferedTool(kind, nested["name"], nested.get("parameters") or {"type": "object"}))
    return tools


def build_schema_instance(schema: Any, text: str = "") -> Any:
    """Returns a small value that a JSON schema allows, filled with quotes, numbers and names from `text`.

    Raises:
        InvalidRequest: the schema is invalid, or asks for more than `MAX_INSTANCE_CHARS`.
    """
    return _SchemaInstanceBuilder(schema, text).build(schema)


def _choose_tools(tools: list[OfferedTool], choice: Any, user_text: str, *, may_choose: bool) -> list[OfferedTool]:
    if isinstance(choice, Mapping):
        names = {tool.name for tool in parse_tools([choice])}
        return [tool for tool in tools if tool.name in names][:1]
    if choice == "required":
        return _find_requested_tools(tools, user_text) or tools[:1]
    return _find_requested_tools(tools, user_text) if may_choose and choice != "none" else []


def _find_requested_tools(tools: Sequence[OfferedTool], user_text: str) -> list[OfferedTool]:
    """Returns the tools that a text names, in its order; else those whose names have only words of its question, as
    `get_weather` in "How is the weather in Oslo?".
    """
    found = []
    for tool in tools:
        # Underscores may be written as spaces.
        name_pattern = r"[_\s-]".join(map(re.escape, re.split(r"[_-]", tool.name)))
        match = re.search(rf"(?<![\w-]){name_pattern}(?![\w-])", user_text, re.IGNORECASE)
        if match:
            found.append((match.start(), tool))
    if found or not is_question(user_text):
        return [tool for _, tool in sorted(found, key=lambda pair: pair[0])]
    text_stems = find_word_stems(user_text)
    asked = ((find_word_stems(tool.name.replace("_", " ")), tool) for tool in tools if tool.name != SEARCH_TOOL_NAME)
    return [tool for stems, tool in asked if stems and stems <= text_stems][:1]


def _build_tool_call(tool: OfferedTool, user_text: str, id_seed: str) -> dict[str, Any]:
    text = user_text.replace(tool.name, " ")
    if tool.kind == "custom":
        body: dict[str, Any] = {"name": tool.name, "input": str(build_schema_instance({"type": "string"}, text))}
    else:
        body = {"name": tool.name, "arguments": orjson.dumps(build_schema_instance(tool.schema, text)).decode()}
    return {"id": _make_call_id(id_seed, body), "type": tool.kind, tool.kind: body}


def _make_call_id(id_seed: str, body: Mapping[str, Any]) -> str:
    return f"call_{hashlib.sha256(orjson.dumps([id_seed, body])).hexdigest()[:24]}"


class _SchemaInstanceBuilder:
    """Builds one value. Each quote, name and number of the text is used once as long as there are others."""

    def __init__(self, root: Any, text: str) -> None:
        self._root = root
        self._text = text.lower()
        quotes = [next(filter(None, match.groups())) for match in _QUOTED_TEXT.finditer(text)]
        plain = _QUOTED_TEXT.sub(" ", text)
        strings = quotes or _NAME.findall(plain) or [" ".join(text.split())[:MAX_STRING_CHARS]]
        self._strings = _repeat_last(strings)
        self._numbers = _repeat_last([float(number) for number in _NUMBER.findall(plain)] or [1.0])
        self._remaining_chars = MAX_INSTANCE_CHARS

    def build(self, node: Any, depth: int = 0) -> Any:
        if not isinstance(node, Mapping) or depth > MAX_SCHEMA_DEPTH:
            return self._spend(None)
        try:
            schema = msgspec.convert(node, _JsonSchema)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"Invalid JSON schema: {error}.") from error
        if schema.ref:
            return self.build(self._resolve_reference(schema.ref), depth + 1)
        if schema.const is not msgspec.UNSET:
            return self._spend(schema.const)
        if schema.enum:
            return self._spend(next((one for one in schema.enum if str(one).lower() in self._text), schema.enum[0]))
        choices = schema.any_of or schema.one_of or schema.all_of
        return self.build(choices[0], depth + 1) if choices else self._build_by_type(schema, depth)

    def _build_by_type(self, schema: _JsonSchema, depth: int) -> Any:
        kinds = [schema.type] if isinstance(schema.type, str) else schema.type
        kind = next((one for one in kinds if one != "null"), "null")
        if kind == "object" or (not kind and schema.properties):
            keys = self._spend(schema.required or list(schema.properties))
            return {key: self.build(schema.properties.get(key) or {}, depth + 1) for key in keys}
        if kind == "array":
            return [self.build(schema.items or {}, depth + 1) for _ in range(max(1, schema.min_items))]
        if kind in {"integer", "number"}:
            number = min(max(next(self._numbers), schema.minimum), schema.maximum)
            return self._spend(int(number) if kind == "integer" else number)
        if kind in {"boolean", "null"}:
            return self._spend(True if kind == "boolean" else None)
        text = _FORMAT_EXAMPLES.get(schema.format) or next(self._strings)
        return self._spend(text.ljust(min(schema.min_length, MAX_INSTANCE_CHARS), "x")[: schema.max_length])

    def _spend(self, value: Any) -> Any:
        """Returns a value, and subtracts its size from the characters that are left.

        Raises:
            InvalidRequest: fewer characters are left.
        """
        self._remaining_chars -= len(orjson.dumps(value))
        if self._remaining_chars < 0:
            raise InvalidRequest(f"Invalid JSON schema: its value is longer than {MAX_INSTANCE_CHARS} characters.")
        return value

    def _resolve_reference(self, reference: str) -> Any:
        node: Any = self._root
        for step in filter(None, reference.lstrip("#/").split("/")):
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        return node


def _repeat_last(values: Sequence[Any]) -> Iterator[Any]:
    yield from values
    while True:
        yield values[-1]
