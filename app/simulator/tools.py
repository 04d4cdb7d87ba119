"""Which tools the simulated model calls and with what arguments; instances of a JSON schema. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from app.errors import InvalidRequest
from app.simulator.request_schemas import LARGEST_NUMBER, check_schema
from app.simulator.text import stems

DEEPEST_SCHEMA = 12
MOST_CHARS = 100_000
"""Of the JSON of one instance: a schema of a few bytes may ask for billions."""
SEARCH = "recall_conversation"
"""The tool that is called where the context holds no answer."""

_QUOTED = re.compile(r"\"([^\"\n]+)\"|'([^'\n]{2,})'|`([^`\n]+)`|“([^”\n]+)”")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_NAME = re.compile(r"(?<=[a-z,:] )[A-Z][\w-]*(?: [A-Z][\w-]*)*")
_EXAMPLES = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


@dataclass(frozen=True, slots=True)
class _Tool:
    kind: str
    name: str
    schema: Mapping[str, Any]


def tool_calls(request: Mapping[str, Any], asked: str, *, may_choose: bool) -> list[dict[str, Any]]:
    """The calls that an answer consists of; empty when the model answers in words.

    Args:
        request: the chat completion request.
        asked: text of the newest user message.
        may_choose: whether a free model (`tool_choice: auto`) may call now, that is, has no results to speak of yet.
    """
    chosen = _chosen(request, asked, may_choose=may_choose)
    if request.get("parallel_tool_calls") is False:
        chosen = chosen[:1]
    depth = len(request.get("messages") or ())
    return [_call(tool, asked, f"{depth}.{index}") for index, tool in enumerate(chosen)]


def search_call(request: Mapping[str, Any], asked: str) -> dict[str, Any] | None:
    """A call of the tool that searches what is not shown, where a free model is offered it."""
    offered = any(tool is not None and tool.name == SEARCH for tool in map(_tool, request.get("tools") or ()))
    if not offered or (request.get("tool_choice") or "auto") != "auto":
        return None
    arguments = orjson.dumps({"query": asked}).decode()
    seed = orjson.dumps([len(request.get("messages") or ()), arguments])
    call_id = f"call_{hashlib.sha256(seed).hexdigest()[:24]}"
    return {"id": call_id, "type": "function", "function": {"name": SEARCH, "arguments": arguments}}


def has_searched(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the results at the end are those of a search."""
    calls = next((message.get("tool_calls") for message in reversed(messages) if message.get("role") != "tool"), None)
    return any((call.get("function") or {}).get("name") == SEARCH for call in calls or ())


def instance(schema: Mapping[str, Any], text: str = "") -> Any:
    """The smallest value that a JSON schema allows, filled with what `text` quotes, counts and names.

    Raises:
        InvalidRequest: the schema is none, or asks for more than `MOST_CHARS`.
    """
    return _Builder(schema, _Material.of(text)).build(schema, "")


def _chosen(request: Mapping[str, Any], asked: str, *, may_choose: bool) -> list[_Tool]:
    tools = [tool for tool in map(_tool, request.get("tools") or ()) if tool is not None]
    choice = request.get("tool_choice") or "auto"
    if not tools or choice == "none":
        return []
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools") or {}
        names = {tool.name for tool in map(_tool, allowed.get("tools") or ()) if tool is not None}
        tools = [tool for tool in tools if tool.name in names]
        choice = allowed.get("mode", "auto")
    elif isinstance(choice, dict):
        wanted = _tool(choice)
        return [tool for tool in tools if wanted is not None and tool.name == wanted.name][:1]
    named = _named(tools, asked)
    if choice == "required":
        return named or sorted(tools, key=lambda tool: -len(_words(tool) & stems(asked)))[:1]
    return named if may_choose else []


def _tool(entry: Any) -> _Tool | None:
    """A tool as a request declares it, or names it: both forms nest the facts under their kind, some clients do not."""
    if not isinstance(entry, dict):
        return None
    kind = entry.get("type", "function")
    nested = entry.get(kind)
    facts: dict[str, Any] = nested if isinstance(nested, dict) else entry
    name = facts.get("name")
    return _Tool(kind, name, facts.get("parameters") or {}) if isinstance(name, str) else None


def _named(tools: Sequence[_Tool], asked: str) -> list[_Tool]:
    """The tools that a text names, in its order; underscores may be written as spaces."""
    found = []
    for tool in tools:
        spoken = re.escape(tool.name).replace("_", r"[_\s-]").replace(r"\-", r"[_\s-]")
        match = re.search(rf"(?<![\w-]){spoken}(?![\w-])", asked, re.IGNORECASE)
        if match:
            found.append((match.start(), tool))
    return [tool for _, tool in sorted(found, key=lambda pair: pair[0])]


def _words(tool: _Tool) -> frozenset[str]:
    return stems(tool.name.replace("_", " "))


def _call(tool: _Tool, asked: str, place: str) -> dict[str, Any]:
    if tool.kind == "custom":
        material = _Material.of(asked)
        body: dict[str, Any] = {"name": tool.name, "input": material.string("input")}
    else:
        value = instance(tool.schema or {"type": "object"}, asked.replace(tool.name, " "))
        body = {"name": tool.name, "arguments": orjson.dumps(value).decode()}
    seed = orjson.dumps([place, tool.kind, body, asked])
    return {"id": f"call_{hashlib.sha256(seed).hexdigest()[:24]}", "type": tool.kind, tool.kind: body}


@dataclass(slots=True)
class _Material:
    """Quotes, names and numbers of a text, each used once as long as there are others."""

    strings: list[str]
    numbers: list[float]
    text: str
    taken: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> _Material:
        quotes = [next(group for group in match.groups() if group) for match in _QUOTED.finditer(text)]
        plain = _QUOTED.sub(" ", text)
        found = [float(number) for number in _NUMBER.findall(plain)]
        numbers = [number for number in found if abs(number) <= LARGEST_NUMBER]
        return cls(strings=quotes or _NAME.findall(plain), numbers=numbers, text=text.lower())

    def string(self, name: str) -> str:
        return str(self._next("string", self.strings, f"{name or 'value'} text"))

    def number(self) -> float:
        return float(self._next("number", self.numbers, 1.0))

    def _next(self, kind: str, stock: Sequence[Any], default: Any) -> Any:
        at = self.taken.get(kind, 0)
        self.taken[kind] = at + 1
        return stock[min(at, len(stock) - 1)] if stock else default


@dataclass(slots=True)
class _Builder:
    root: Mapping[str, Any]
    material: _Material
    left_chars: int = MOST_CHARS

    def build(self, schema: Any, name: str, depth: int = 0) -> Any:
        self._take(len(name) + 1)
        if not isinstance(schema, Mapping) or depth > DEEPEST_SCHEMA:
            return None
        check_schema(schema)
        if "$ref" in schema:
            return self.build(self._resolve(str(schema["$ref"])), name, depth + 1)
        if "const" in schema:
            return self._given(schema["const"])
        if schema.get("enum"):
            return self._given(self._enum(schema["enum"]))
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                return self.build(schema[key][0], name, depth + 1)
        return self._typed(schema, name, depth)

    def _given(self, value: Any) -> Any:
        """A value that the schema itself brings along."""
        self._take(len(orjson.dumps(value)))
        return value

    def _take(self, chars: int) -> None:
        """
        Raises:
            InvalidRequest: there is no room for so much more.
        """
        self.left_chars -= chars
        if self.left_chars < 0:
            raise InvalidRequest(f"Invalid JSON schema: its smallest value is longer than {MOST_CHARS} characters.")

    def _typed(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            length = max(1, int(schema.get("minItems", 1))) if schema.get("maxItems", 1) else 0
            return [self.build(schema.get("items") or {}, name, depth + 1) for _ in range(length)]
        if kind in {"integer", "number"}:
            return self._number(schema, whole=kind == "integer")
        if kind == "boolean":
            return True
        return None if kind == "null" else self._string(schema, name)

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        wanted = schema.get("required") or list(properties)
        return {key: self.build(properties.get(key) or {}, key, depth + 1) for key in wanted}

    def _enum(self, allowed: Sequence[Any]) -> Any:
        return next((one for one in allowed if isinstance(one, str) and one.lower() in self.material.text), allowed[0])

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> float | int:
        number = self.material.number()
        if "minimum" in schema:
            number = max(number, float(schema["minimum"]))
        if "maximum" in schema:
            number = min(number, float(schema["maximum"]))
        return int(number) if whole else number

    def _string(self, schema: Mapping[str, Any], name: str) -> str:
        if schema.get("format") in _EXAMPLES:
            return _EXAMPLES[schema["format"]]
        least_chars = schema.get("minLength", 0)
        self._take(least_chars)
        text = self.material.string(name).ljust(least_chars, "x")
        self._take(len(text))
        return text[: int(schema.get("maxLength", len(text)))]

    def _resolve(self, reference: str) -> Mapping[str, Any]:
        node: Any = self.root
        for step in reference.lstrip("#/").split("/"):
            if step:
                node = node.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, Mapping) else {}
        return node if isinstance(node, Mapping) else {}
