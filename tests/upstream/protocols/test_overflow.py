"""Which answers mean that the prompt is too long, and what can be read from them."""

# ruff: noqa: E501 (sentences of providers are quoted on one line, so that they can be searched for)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.upstream.protocols.overflow_detection import ContextOverflow, detect_overflow

SAMPLES = Path(__file__).parents[4] / "shared" / "eval" / "overflow_errors.json"


def error(message: str, **more: Any) -> str:
    return json.dumps({"error": {"message": message, **more}})


@pytest.mark.parametrize(
    ("status", "body", "limit", "prompt", "only_output"),
    [
        (400, error("This model's maximum context length is 8192 tokens. However, your messages resulted in 9,001 tokens."), 8192, 9001, False),
        (400, error("This model's maximum context length is 4097 tokens, however you requested 5360 tokens (1360 in your prompt; 4000 for the completion)."), 4097, 1360, True),
        (400, error("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300123 tokens."), 272000, 300123, False),
        (400, error("no words known to us", code="context_length_exceeded"), None, None, False),
        (400, error("You passed 900 input tokens and requested 400 output tokens. However, the model's context length is only 1024 tokens"), 1024, 900, True),
        (400, error("'max_tokens' or 'max_completion_tokens' is too large: 64000. This model's maximum context length is 32768 tokens and your request has 20000 input tokens (64000 > 32768 - 20000)."), 32768, 20000, True),
        (400, error("This model's maximum context length is 128000 tokens. However, you requested 65535 output tokens and your prompt contains 62470 input tokens, for a total of 128005 tokens."), 128000, 62470, True),
        (400, error("max_tokens must be at least 1, got -186."), None, None, False),
        (400, error("The decoder prompt (length 5000) is longer than the maximum model length of 4096."), 4096, 5000, False),
        (200, error("request exceeds the available context size. try increasing it", type="exceed_context_size_error", n_ctx=4096, n_prompt_tokens=5000), 4096, 5000, False),
        (400, error("Requested tokens (2300) exceed context window of 2048"), 2048, None, False),
        (400, json.dumps([{"error": {"code": 400, "message": "The input token count (70000) exceeds the maximum number of tokens allowed (65536).", "status": "INVALID_ARGUMENT"}}]), 65536, 70000, False),
        (400, error("Unable to submit request because the input token count is 1200000 but model only supports up to 1048576."), 1048576, 1200000, False),
        (400, json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"}}), 200000, 190000, True),
        (413, json.dumps({"type": "error", "error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}), None, None, False),
        (400, error("Input is too long for requested model."), None, None, False),
        (400, error("prompt token count of 150000 exceeds the limit of 128000", code="model_max_prompt_tokens_exceeded"), 128000, 150000, False),
        (400, error("Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total of 40000 tokens: 30000 tokens from the input messages and 10000 tokens for the completion."), 32768, 30000, True),
        (400, error("length of prompt_tokens (40000) must be less than max_seq_len (32768)."), 32768, 40000, False),
        (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 200 `max_new_tokens`", 4096, 4000, True),
        (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000", 1024, 2000, False),
        (400, error("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192"), 8192, 9000, False),
        (400, error("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]"), 98304, None, False),
        (400, error("invalid params, context window exceeds limit (2013)"), None, None, False),
        (400, error("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000."), 4081, 5000, False),
        (400, error("This model is loaded with context length of only 4096 tokens, which is not enough"), 4096, None, False),
        (400, error("the prompt is greater than the context length"), None, None, False),
        (500, error("exceeded the maximum context length"), None, None, False),
        (400, error("Provider returned error", metadata={"raw": error("prompt is too long: 213462 tokens > 200000 maximum")}), 200000, 213462, False),
        (400, error("输入内容过长"), None, None, False),
    ],
)  # fmt: skip
def test_an_overflow_is_recognised_with_its_numbers(
    status: int, body: str, limit: int | None, prompt: int | None, only_output: bool
) -> None:
    assert detect_overflow(status, body.encode()) == ContextOverflow(limit, prompt, only_output)


def test_a_prompt_that_was_not_counted_to_its_end_is_told_apart() -> None:
    said = (
        "This model's maximum context length is 128000 tokens. However, you requested 65535 output tokens and your "
        "prompt contains at least 62466 input tokens, for a total of at least 128001 tokens."
    )
    assert detect_overflow(400, error(said).encode()) == ContextOverflow(
        128000, 62466, is_output_too_long=True, is_lower_bound=True
    )


@pytest.mark.parametrize(
    ("status", "body"),
    [(400, ""), (413, ""), (400, " \n"), (413, "<html><h1>413 Request Entity Too Large</h1></html>")],
)
def test_an_answer_that_says_nothing_is_only_possibly_an_overflow(status: int, body: str) -> None:
    found = detect_overflow(status, body.encode())

    assert found is not None
    assert not found.is_certain


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, error("Please reduce the length of the messages.", code="rate_limit_exceeded")),
        (413, error("Request too large on tokens per minute (TPM): Limit 6000, Requested 9000. Please reduce your message size.")),
        (400, error("Too many tokens, please wait before trying again.")),
        (400, error("Invalid 'messages[0].content': string too long. Expected maximum length 1048576", code="string_above_max_length")),
        (400, error("Invalid 'tools': array too long. Expected an array with maximum length 128")),
        (400, error("max_tokens is too large: 100000. This model supports at most 16384 completion tokens")),
        (400, error("Unknown parameter: 'context_length'", code="unknown_parameter")),
        (400, error("messages with role 'tool' must be a response to a preceding message with 'tool_calls'.")),
        (400, error("image exceeds 5 MB maximum")),
        (401, error("prompt is too long", code="invalid_api_key")),
        (404, ""),
        (500, ""),
        (502, "<html>Bad Gateway</html>"),
        (400, "{" * 5000),
        (422, json.dumps({"detail": [{"msg": "bad role", "input": "they said: prompt is too long: 2 tokens > 1"}]})),
        (200, json.dumps({"choices": [{"message": {"content": "Your input exceeds the context window of this model."}}]})),
        (400, error("You exceeded your current quota, please check your plan and billing details.")),
    ],
)  # fmt: skip
def test_other_refusals_are_not_taken_for_an_overflow(status: int, body: str) -> None:
    assert detect_overflow(status, body.encode()) is None


@pytest.mark.skipif(not SAMPLES.exists(), reason="the shared samples are not here")
def test_the_shared_samples_are_told_apart() -> None:
    samples = json.loads(SAMPLES.read_text())

    assert [s for s in samples["too_long"] if detect_overflow(s["status"], s["body"].encode()) is None] == []
    assert [s for s in samples["not_too_long"] if detect_overflow(s["status"], s["body"].encode()) is not None] == []
