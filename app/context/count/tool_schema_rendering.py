"""Renders tool schemas as OpenAI shows them to its models: a TypeScript namespace with one type per function.

The form is published in OpenAI's "harmony response format", function calling: descriptions are comments above what they
describe, `?` marks optional properties, enumerations are alternatives, an empty line follows each function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from app.conversation.json_text import encode_compact_json

MAX_SCHEMA_DEPTH: Final = 24
"""Schemas nested deeper are rendered as JSON: this limits the recursion."""

INDENT: Final = "  "

_TYPESCRIPT_TYPES: Final = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
}


def render_functions_as_typescript(functions: Sequence[Any]) -> str:
    """Returns the namespace for functions given as `{name, description, parameters}`. Values of unexpected types are
    rendered as JSON.
    """
    lines = ["namespace functions {", ""]
    for function in functions:
        lines += [*_render_function_as_typescript(function), ""]
    lines.append("} // namespace functions")
    return "\n".join(lines)


def render_custom_tool(custom: Any) -> str:
    """Renders a tool that takes free text: name, description, and its grammar if it has one."""
    if not isinstance(custom, dict):
        return encode_compact_json(custom)
    lines = [
        *_render_typescript_comment(custom.get("description")),
        f"type {_render_tool_name(custom)} = (_: string) => any;",
    ]
    match custom.get("format"):
        case {"grammar": {"definition": str(definition)}}:
            lines.append(definition)
    return "\n".join(lines)


def render_response_format(schema: dict[str, Any]) -> str:
    """Renders a `json_schema` in the form of the same publication: heading, name, description, JSON."""
    lines = [
        "# Response Formats",
        "",
        f"## {_render_tool_name(schema)}",
        "",
        *_render_typescript_comment(schema.get("description")),
    ]
    return "\n".join([*lines, encode_compact_json(schema.get("schema"))])


def _render_function_as_typescript(function: Any) -> list[str]:
    if not isinstance(function, dict):
        return [encode_compact_json(function)]
    lines = _render_typescript_comment(function.get("description"))
    parameters = function.get("parameters")
    if not isinstance(parameters, dict) or not parameters.get("properties"):
        return [*lines, f"type {_render_tool_name(function)} = () => any;"]
    lines += [
        f"type {_render_tool_name(function)} = (_: {{",
        *_render_typescript_properties(parameters, 0),
        "}) => any;",
    ]
    for definitions in (parameters.get("$defs"), parameters.get("definitions")):
        if isinstance(definitions, dict):
            lines += [f"type {name} = {_render_typescript_type(schema, 0)}" for name, schema in definitions.items()]
    return lines


def _render_typescript_properties(schema: dict[str, Any], depth: int) -> list[str]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return [encode_compact_json(properties)] if properties else []
    needed = required if isinstance(required, list) else []
    lines: list[str] = []
    for name, value in properties.items():
        described = value if isinstance(value, dict) else {}
        default = (
            f" // default: {encode_compact_json(described['default'])}" if described.get("default") is not None else ""
        )
        mark = "" if name in needed else "?"
        lines += [
            *_render_typescript_comment(described.get("description")),
            f"{name}{mark}: {_render_typescript_type(value, depth)},{default}",
        ]
    return [INDENT * depth + line for line in lines]


def _render_typescript_type(schema: Any, depth: int) -> str:
    if not isinstance(schema, dict) or depth >= MAX_SCHEMA_DEPTH:
        return encode_compact_json(schema)
    for alternatives in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(alternatives, list) and alternatives:
            return " | ".join(_render_typescript_type(item, depth + 1) for item in alternatives)
    match schema:
        case {"$ref": str(reference)}:
            return reference.rsplit("/", 1)[-1]
        case {"enum": [*values]}:
            return " | ".join(encode_compact_json(value) for value in values)
        case {"const": value}:
            return encode_compact_json(value)
        case {"type": [*types]}:
            names = dict.fromkeys(name for name in types if isinstance(name, str))
            return " | ".join(_render_typescript_type({**schema, "type": name}, depth + 1) for name in names)
        case {"type": "array"}:
            return f"{_render_typescript_type(schema['items'], depth + 1)}[]" if schema.get("items") else "any[]"
        case {"type": str(name)} if name != "object":
            return _TYPESCRIPT_TYPES.get(name, name)
        case {"type": "object"} | {"properties": _}:
            return (
                "\n".join(["{", *_render_typescript_properties(schema, depth + 1), "}"])
                if schema.get("properties")
                else "object"
            )
    return "any"


def _render_tool_name(named: dict[str, Any]) -> str:
    """Returns the name of a tool. A name that is not a text is rendered as JSON."""
    name = named.get("name")
    return name if isinstance(name, str) else encode_compact_json(name)


def _render_typescript_comment(description: object) -> list[str]:
    return [f"// {description}"] if isinstance(description, str) and description else []
