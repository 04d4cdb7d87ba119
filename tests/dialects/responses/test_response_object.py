"""The response object repeats the request, with OpenAI's values for what the request leaves out."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.dialects.responses.response_object import ResponseObject, build_response_error, build_response_usage
from app.errors import (
    ContextLengthExceeded,
    GatewayError,
    InternalError,
    InvalidRequest,
    RateLimitExceeded,
    StoreUnavailable,
    UpstreamRefused,
    UpstreamUnavailable,
)
from tests.dialects.responses.streams import ALL_FIELDS, CREATED_AT, RESPONSE_ID
from tests.support.response_types import validate_response


def render(fields: dict[str, bytes], **more: Any) -> dict[str, Any]:
    response = ResponseObject(RESPONSE_ID, CREATED_AT, fields).render(ALL_FIELDS, **({"status": "completed"} | more))
    body: dict[str, Any] = orjson.loads(response)
    validate_response(body)
    return body


def test_a_request_of_nothing_gets_openais_defaults() -> None:
    body = render({"model": b'"m"'})
    assert (body["store"], body["background"], body["parallel_tool_calls"]) == (True, False, True)
    assert (body["tool_choice"], body["tools"], body["metadata"]) == ("auto", [], {})
    assert (body["temperature"], body["top_p"], body["truncation"]) == (1.0, 1.0, "disabled")
    assert body["text"] == {"format": {"type": "text"}}
    assert body["reasoning"] == {"effort": None, "summary": None}
    assert (body["instructions"], body["conversation"], body["previous_response_id"]) == (None, None, None)
    assert "prompt" not in body


def test_the_requests_fields_are_repeated_with_their_bytes() -> None:
    tools = b'[{"type":"function","name":"f","parameters":{"x":1.50},"strict":false}]'
    fields = {"model": b'"m"', "tools": tools, "temperature": b"0.20", "instructions": b'"Be k\\u0069nd."'}
    raw = ResponseObject(RESPONSE_ID, CREATED_AT, fields).render(b'"a":1', status="in_progress")
    for value in (tools, b'"temperature":0.20', b'"Be k\\u0069nd."'):
        assert value in raw
    assert raw.endswith(b',"a":1}')
    assert render(fields)["instructions"] == "Be kind."


def test_members_that_the_request_leaves_out_have_openais_values() -> None:
    body = render({"model": b'"m"', "text": b'{"verbosity": "low"}', "reasoning": b'{"effort":"high"}'})
    assert body["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert body["reasoning"] == {"effort": "high", "summary": None}


@pytest.mark.parametrize("value", [b'"conv_1"', b'{"id":"conv_1"}'])
def test_a_conversation_is_an_object_however_the_request_names_it(value: bytes) -> None:
    assert render({"model": b'"m"', "conversation": value})["conversation"] == {"id": "conv_1"}


def test_null_is_the_default_and_line_breaks_are_spaces() -> None:
    body = render({"model": b'"m"', "temperature": b"null", "metadata": b'{\r\n  "a": "b\\n"\r\n}'})
    assert body["temperature"] == 1.0
    assert body["metadata"] == {"a": "b\n"}
    fields = {"model": b'"m"', "metadata": b'{\r\n  "a": "b"\r\n}'}
    raw = ResponseObject(RESPONSE_ID, CREATED_AT, fields).render(b"", status="completed")
    assert b"\n" not in raw
    assert b"\r" not in raw
    orjson.loads(raw)


def test_the_model_is_the_providers_or_else_the_requests() -> None:
    assert render({"model": b'"asked"'})["model"] == "asked"
    assert render({"model": b'"asked"'}, model="provided")["model"] == "provided"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 2}, (7, 0, 0, 2, 0, 9)),
        (
            {
                "prompt_tokens": 7,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            (7, 3, 1, 2, 1, 9),
        ),
        ({"prompt_tokens": 7, "prompt_tokens_details": None, "completion_tokens_details": None}, (7, 0, 0, 0, 0, 7)),
        ({"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 1}, (9, 4, 0, 1, 0, 10)),
        ({}, None),
        ({"total_tokens": 4}, None),
    ],
)
def test_usage_has_all_its_details(usage: dict[str, Any], expected: tuple[int, ...] | None) -> None:
    built = build_response_usage(usage)
    if expected is None:
        assert built is None
        return
    assert built is not None
    found = (
        *(built["input_tokens"], *built["input_tokens_details"].values()),
        *(built["output_tokens"], *built["output_tokens_details"].values(), built["total_tokens"]),
    )
    assert found == expected


def refused(body: object, status: int = 502) -> UpstreamRefused:
    return UpstreamRefused(status, orjson.dumps(body), {})


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InvalidRequest("Bad."), "invalid_prompt", "Bad."),
        (ContextLengthExceeded("Long."), "context_length_exceeded", "Long."),
        (RateLimitExceeded("Slow."), "rate_limit_exceeded", "Slow."),
        (UpstreamUnavailable("Gone."), "server_error", "Gone."),
        (StoreUnavailable("Gone."), "server_error", "Gone."),
        (InternalError("Oh."), "server_error", "Oh."),
        (refused({"error": {"message": "m", "code": "context_length_exceeded"}}), "context_length_exceeded", "m"),
        (refused({"error": {"message": "m", "code": "image_too_large"}}, 400), "image_too_large", "m"),
        (refused({"error": {"message": "m", "code": 400}}), "invalid_prompt", "m"),
        (refused({"error": {"message": "m", "code": 429}}), "rate_limit_exceeded", "m"),
        (refused({"error": {"message": "m", "code": None}}, 429), "rate_limit_exceeded", "m"),
        (refused([{"error": "m"}], 400), "invalid_prompt", "m"),
        (refused("no object"), "server_error", "The upstream answered with status 502."),
        (UpstreamRefused(503, b"<html>", {}), "server_error", "The upstream answered with status 503."),
    ],
)
def test_an_error_has_openais_code_or_the_upstreams_own(error: GatewayError, code: str, message: str) -> None:
    assert build_response_error(error) == {"code": code, "message": message}
    body = render({"model": b'"m"'}, status="failed", error={"code": "server_error", "message": message})
    assert body["error"]["message"] == message
