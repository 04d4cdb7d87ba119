from __future__ import annotations

import orjson

from app.dialects.summarizer_fields import read_parameter_names


def test_the_names_of_nested_parameters_are_read() -> None:
    line = {"type": "object", "properties": {"item_id": {"type": "string"}}}
    schema = {"type": "object", "properties": {"order_id": {"type": "string"}, "lines": {"items": line}}}
    tools = [{"type": "function", "function": {"name": "order", "parameters": schema}}]
    assert read_parameter_names({"tools": orjson.dumps(tools)}) == {"order_id", "lines", "item_id"}
    functions = [{"name": "order", "parameters": {"properties": {"zip": {}}}}]
    assert read_parameter_names({"functions": orjson.dumps(functions)}) == {"zip"}


def test_odd_or_missing_tools_have_no_parameters() -> None:
    assert read_parameter_names({}) == set()
    assert read_parameter_names({"tools": b'[{"properties": ["a"]}, null, 7]', "functions": b"null"}) == set()
