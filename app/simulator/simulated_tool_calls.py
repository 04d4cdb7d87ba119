"""Chooses which tools the simulated model calls and with what arguments. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from app.errors import InvalidRequest
from app.simulator.question_answering import find_word_stems, is_question

MAX_SCHEMA_DEPTH = 12
MAX_VALUES = 1_000
"""The most values in the arguments of a call: a schema of a few bytes may ask for billions."""
MAX_STRING_CHARS = 200
SEARCH_TOOL_NAME = "recall_conversation"
"""The tool that is called if the context holds no answer."""

_QUOTED_TEXT = re.compile(r"(?<!\w)([\"'`])([^\n]+?)\1(?!\w)|“([^”\n]+)”")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,15}(?:\.\d+)?(?![\w])")
_NAME = re.compile(r"(?<=[a-z,:] )[A-Z][\w-]*(?: [A-Z][\w-]*)*")


def choose_functions(
    functions: Sequence[Mapping[str, Any]], choice: Any, user_text: str, *, may_choose: bool
) -> Sequence[Mapping[str, Any]]:
    """Returns the functions to call; empty if the model answers in words.

    Args:
        functions: the `function` of each tool that the request declares.
        choice: its `tool_choice`.
        user_text: text of the newest user message.
        may_choose: whether the model may decide to call now, that is, the newest message is the user's.
    """
    if isinstance(choice, Mapping):
        return [function for function in functions if choice.get("function") == {"name": function["name"]}][:1]
    if choice == "required":
        return _find_requested_functions(functions, user_text) or functions[:1]
    return _find_requested_functions(functions, user_text) if may_choose and choice != "none" else []


def make_tool_call(name: str, arguments: Any, id_seed: str) -> dict[str, Any]:
    """Returns a call as an answer holds it. `id_seed` makes the ids differ from turn to turn; the same request gets the
    same ids.
    """
    body = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    digest = hashlib.sha256(orjson.dumps([id_seed, body])).hexdigest()
    return {"id": f"call_{digest[:24]}", "type": "function", "function": body}


def build_arguments(schema: Any, text: str) -> Any:
    """Returns a small value that a JSON schema allows, filled with quotes, numbers and names from `text`. Each is used
    once as long as there are others. Limits of sizes in the schema are not read.

    Raises:
        InvalidRequest: the schema is invalid, or asks for more than `MAX_VALUES`.
    """
    plain = _QUOTED_TEXT.sub(" ", text)
    quotes = [match[2] or match[3] for match in _QUOTED_TEXT.finditer(text)]
    strings = _repeat_last(quotes or _NAME.findall(plain) or [" ".join(text.split())[:MAX_STRING_CHARS]])
    numbers = _repeat_last([float(number) for number in _NUMBER.findall(plain)] or [1.0])
    budget = iter(range(MAX_VALUES))

    def build(node: Any, depth: int) -> Any:
        if next(budget, None) is None:
            raise ValueError(f"it asks for more than {MAX_VALUES} values")
        if "$ref" in node:
            return build(_resolve_reference(schema, node["$ref"]), depth + 1) if depth < MAX_SCHEMA_DEPTH else None
        if "anyOf" in node:
            return build(node["anyOf"][0], depth + 1)
        if "enum" in node:
            return next((one for one in node["enum"] if str(one).lower() in text.lower()), node["enum"][0])
        properties, kind = node.get("properties", {}), node.get("type", "")
        if kind == "object" or properties:
            return {key: build(properties.get(key, {}), depth + 1) for key in node.get("required", properties)}
        if kind == "array":
            return [build(node.get("items", {}), depth + 1)]
        if kind in {"integer", "number"}:
            return int(next(numbers)) if kind == "integer" else next(numbers)
        return {"boolean": True, "null": None}[kind] if kind in {"boolean", "null"} else next(strings)

    try:
        return build(schema, 0)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidRequest(f"Invalid JSON schema: {error}.", param="tools") from error


def _resolve_reference(root: Any, reference: str) -> Any:
    node = root
    for step in filter(None, reference.lstrip("#/").split("/")):
        node = node[step]
    return node


def _find_requested_functions(functions: Sequence[Mapping[str, Any]], user_text: str) -> list[Mapping[str, Any]]:
    """Returns the functions that a text names, in its order; else those whose names have only words of its question, as
    `get_weather` in "How is the weather in Oslo?".
    """
    found = []
    for function in functions:
        # Underscores may be written as spaces.
        name_pattern = r"[_\s-]".join(map(re.escape, re.split(r"[_-]", function["name"])))
        match = re.search(rf"(?<![\w-]){name_pattern}(?![\w-])", user_text, re.IGNORECASE)
        if match:
            found.append((match.start(), function))
    if found or not is_question(user_text):
        return [function for _, function in sorted(found, key=lambda pair: pair[0])]
    text_stems = find_word_stems(user_text)
    others = (function for function in functions if function["name"] != SEARCH_TOOL_NAME)
    named = ((find_word_stems(function["name"].replace("_", " ")), function) for function in others)
    return [function for stems, function in named if stems and stems <= text_stems][:1]


def _repeat_last(values: Sequence[Any]) -> Iterator[Any]:
    yield from values
    while True:
        yield values[-1]
