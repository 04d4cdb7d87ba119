"""No value of any field stops or hangs the simulated model: each gets an answer, or an error that names the field."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import orjson
import pytest

from app.simulator.options_and_faults import SimulatorOptions
from app.simulator.request_checks import check_tool_pairing
from app.simulator.simulator import Simulator
from tests.simulator.counting import RoughCounter
from tests.support.cpu_time import grows_linearly

QUESTION = [{"role": "user", "content": "What is it?"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
FIELDS = (
    *("n", "stream", "stream_options", "max_tokens", "max_completion_tokens", "stop", "tools", "tool_choice"),
    *("parallel_tool_calls", "response_format", "functions", "function_call", "temperature", "top_p", "logit_bias"),
    *("logprobs", "top_logprobs", "user", "seed", "metadata", "store", "modalities", "audio", "prediction", "messages"),
    "model",
)
VALUES = (
    *(b"-1", b"0", b"2147483648", b"9223372036854775807", b"18446744073709551616", b"1.5", b"1e308", b"1e400", b"NaN"),
    *(b"true", b"null", b'""', b'"x"', b"[]", b"[1]", b"[null]", b"[{}]", b"{}", b'{"type":1}', b'{"type":"x","x":1}'),
    *(b"[[[]]]", b'[{"role":"assistant","tool_calls":-1}]', b'[{"role":"assistant","tool_calls":[{"function":1}]}]'),
    *(b'[{"role":"tool","tool_call_id":[]}]', b'{"type":"allowed_tools","allowed_tools":-1}', b"[" * 900 + b"]" * 900),
)
REFUSED_SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {name: {"$ref": "#"} for name in "abcdefghij"}},
    {"type": {}, "format": []},
    {"enum": 5},
    {"enum": []},
    {"anyOf": {"a": 1}},
    {"$ref": "#/nowhere"},
    {"$ref": 5},
    {"properties": 7, "required": [[]]},
    -1,
)
BIG_SCHEMAS: tuple[Any, ...] = (
    {"type": "array", "minItems": 10**9},
    {"type": "array", "minItems": 99_999, "items": {"type": "string"}},
    {"type": "string", "minLength": 10**9},
    {"type": "integer", "minimum": 1e308},
)


async def ask(body: bytes) -> tuple[int, bytes]:
    ids = count()
    simulator = Simulator(
        SimulatorOptions(), lambda model: RoughCounter(), clock=lambda: 0.0, new_id=lambda: str(next(ids))
    )
    async with asyncio.timeout(10):
        answered = await simulator.handle("POST", "/chat/completions", {}, body)
        return answered.status, b"".join([piece async for piece in answered.pieces])


def with_field(name: str, value: bytes, **others: object) -> bytes:
    fields = {"model": "sim-8k", "messages": QUESTION, "tools": [TOOL], **others}
    fields.pop(name, None)
    return orjson.dumps(fields)[:-1] + b',"%b":%b}' % (name.encode(), value)


@pytest.mark.parametrize("name", FIELDS)
async def test_no_value_of_a_field_is_a_failure_of_the_server(name: str) -> None:
    for value in VALUES:
        for stream in (False, True):
            status, body = await ask(with_field(name, value, stream=stream))
            assert status in {200, 400}, (name, value)
            assert len(body) < 1_000_000, (name, value)


@pytest.mark.parametrize(("name", "value"), [("tools", b"-1"), ("stream_options", b"7")])
async def test_the_error_names_the_field(name: str, value: bytes) -> None:
    status, body = await ask(with_field(name, value))
    assert status == 400
    assert orjson.loads(body)["error"]["param"] == name


@pytest.mark.parametrize("schema", [*REFUSED_SCHEMAS, *BIG_SCHEMAS], ids=str)
async def test_no_schema_makes_an_answer_long(schema: Any) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"a": schema}}}}
    fields = {"model": "sim-8k", "messages": QUESTION, "tools": [tool], "tool_choice": "required"}
    status, body = await ask(orjson.dumps(fields))
    assert status == (200 if schema in BIG_SCHEMAS else 400)
    assert len(body) < 10_000


async def test_numbers_of_the_question_beyond_json_are_not_used() -> None:
    asked = [{"role": "user", "content": f"Call look with {'9' * 400} and {'8' * 30}."}]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    status, _ = await ask(orjson.dumps({"model": "sim", "messages": asked, "tools": [tool], "tool_choice": "required"}))
    assert status == 200


@pytest.mark.parametrize("told", ["status=99999", "status=-1", "retry_after=nan", "retry_after=1e400", "first=-1"])
async def test_a_fault_out_of_bounds_is_refused(told: str) -> None:
    status, _ = await ask(orjson.dumps({"model": f"sim!{told}", "messages": QUESTION}))
    assert status == 400


async def test_a_model_name_of_thousands_of_digits_has_the_default_window() -> None:
    assert (await ask(orjson.dumps({"model": "sim-" + "9" * 5000, "messages": QUESTION})))[0] == 200


def test_thousands_of_results_in_reverse_order_are_paired_in_linear_time() -> None:
    def pairing(size: int) -> Callable[[], object]:
        ids = [f"call_{'0' * 30}{number}" for number in range(size)]
        calls: list[Any] = [{"role": "assistant", "tool_calls": [{"id": one} for one in ids]}]
        messages = [*calls, *({"role": "tool", "tool_call_id": one} for one in reversed(ids))]
        return lambda: check_tool_pairing(messages)

    assert grows_linearly(pairing, 20_000)
