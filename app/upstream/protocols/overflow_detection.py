"""Recognises answers by which providers say that a prompt is too long, and reads the limit from them. Pure.

There is no common error code: the table below has the known words of each server. Rate limits, quotas and limits of
single fields use similar words and are excluded first. One rate limit is an overflow: a single request that is larger
than the limit for a minute. No pause helps it, a shorter prompt does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.conversation.json_text import decode_json_or

_INSPECTED_BYTES = 32_768
_MAX_DEPTH = 6

_OVERFLOW_STATUSES = frozenset({200, 400, 413, 422, 500, 502, 503})
"""200: inside a stream, and older llama.cpp. 5xx: gateways that wrap the error, and failures of templates."""

_OVERFLOW_CODES = frozenset(
    {
        "context_length_exceeded",
        "exceed_context_size_error",
        "context_window_exceeded",
        "model_context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
        "max_context_length_exceeded",
        "request_too_large",
        "prompt_too_long",
        "input_too_long",
    }
)
_CODE_FIELDS = ("code", "type", "status", "reason")

_OTHER_LIMIT_PATTERN = re.compile(
    r"rate.?limit|too many requests|tokens per (?:min|hour|day)|per.minute|\btp[md]\b|throttl|quota|billing|credit"
    r"|please wait|string.?above.?max|string too long|array too long|array_above_max",
)

_OVERSIZED_REQUEST_STATUSES = frozenset({200, 429})
_OVERSIZED_REQUEST_PATTERN = re.compile(
    r"(?:request too large|tokens per).{0,160}?limit:? (\d[\d,]*),.{0,40}?requested:? (\d[\d,]*)", re.DOTALL
)
"""OpenAI: "Request too large … on tokens per min (TPM): Limit 30000, Requested 48002"."""

_NUMBER_PATTERN = r"(?:~|about |over |around |approximately )?(?P<{}>\d[\d,_]*)"
_LIMIT_PATTERN = _NUMBER_PATTERN.format("limit")
_PROMPT_PATTERN = _NUMBER_PATTERN.format("prompt")
_AT_LEAST_PATTERN = _NUMBER_PATTERN.format("least")
_ANY_NUMBER_PATTERN = r"\d[\d,_]*"

_OVERFLOW_PATTERNS = tuple(
    re.compile(saying, re.DOTALL)
    for saying in (
        # OpenAI, Azure, DeepSeek, older vLLM, text-generation-webui
        rf"maximum context length is {_LIMIT_PATTERN} tokens.{{0,40}}?messages resulted in {_PROMPT_PATTERN}",
        (
            rf"maximum context length is {_LIMIT_PATTERN} tokens.{{0,40}}?requested {_ANY_NUMBER_PATTERN} tokens"
            rf" \({_PROMPT_PATTERN} (?:in the messages|in your prompt|of text input)"
        ),
        rf"input tokens exceed the configured limit of {_LIMIT_PATTERN}.{{0,60}}?resulted in {_PROMPT_PATTERN}",
        # vLLM: before 0.16, some of 0.20 (which stops to count where the prompt is too long), from 0.16
        rf"maximum context length is {_LIMIT_PATTERN} tokens and your request has {_PROMPT_PATTERN} input tokens",
        (
            rf"maximum context length is {_LIMIT_PATTERN} tokens.{{0,40}}?requested "
            rf"{_ANY_NUMBER_PATTERN} output tokens and your prompt"
            rf" contains (?:at least {_AT_LEAST_PATTERN}|{_PROMPT_PATTERN}) input tokens"
        ),
        (
            rf"passed {_PROMPT_PATTERN} input tokens and requested {_ANY_NUMBER_PATTERN} "
            rf"output.{{0,80}}?context length is only {_LIMIT_PATTERN}"
        ),
        rf"prompt \(length {_PROMPT_PATTERN}\) is longer than the maximum model length of {_LIMIT_PATTERN}",
        r"max_(?:completion_)?tokens must be at least 1, got -\d+",
        # llama.cpp and its Python binding
        rf"request \({_PROMPT_PATTERN} tokens\) exceeds the available context size \({_LIMIT_PATTERN} tokens\)",
        r"exceeds the available context size",
        rf"requested tokens \({_ANY_NUMBER_PATTERN}\) exceed context window of {_LIMIT_PATTERN}",
        # Gemini, Vertex
        rf"input token count \(?{_PROMPT_PATTERN}\)? exceeds the maximum number of tokens allowed \(?{_LIMIT_PATTERN}",
        rf"input token count is {_PROMPT_PATTERN} but (?:the )?model only supports up to {_LIMIT_PATTERN}",
        r"input token count.{0,40}?exceeds the maximum",
        # Anthropic, Bedrock
        rf"prompt is too long:? {_PROMPT_PATTERN} tokens > {_LIMIT_PATTERN}",
        rf"prompt is too long:? {_PROMPT_PATTERN}, model maximum context length:? {_LIMIT_PATTERN}",
        rf"exceed context limit:? {_PROMPT_PATTERN} \+ {_ANY_NUMBER_PATTERN} > {_LIMIT_PATTERN}",
        r"prompt is too long|input is too long for requested model|input tokens exceeded",
        # Mistral, xAI, GitHub Copilot
        rf"prompt contains {_PROMPT_PATTERN} tokens.{{0,60}}?too large for model with {_LIMIT_PATTERN}",
        rf"maximum prompt length is {_LIMIT_PATTERN} but the request contains {_PROMPT_PATTERN}",
        rf"prompt token count of {_PROMPT_PATTERN} exceeds the limit of {_LIMIT_PATTERN}",
        # SGLang, Together, SiliconFlow, TensorRT-LLM
        rf"input \({_PROMPT_PATTERN} tokens\) is longer than the model'?s context length \({_LIMIT_PATTERN}",
        (
            rf"maximum context length of {_LIMIT_PATTERN} tokens.{{0,60}}?total of {_ANY_NUMBER_PATTERN} "
            rf"tokens: {_PROMPT_PATTERN} tokens from the"
        ),
        (
            rf"(?:input|prompt) length \({_PROMPT_PATTERN}(?: tokens)?\) exceeds.{{0,40}}?(?:length|limit) "
            rf"\({_LIMIT_PATTERN}"
        ),
        rf"prompt_tokens \({_PROMPT_PATTERN}\) must be less than max_seq_len \({_LIMIT_PATTERN}",
        # text-generation-inference
        rf"`?inputs`? tokens \+ `?max_new_tokens`? must be <= {_LIMIT_PATTERN}(?:.{{0,20}}?given: {_PROMPT_PATTERN} )?",
        rf"`?inputs`? must have less than {_LIMIT_PATTERN} tokens(?:.{{0,20}}?given: {_PROMPT_PATTERN})?",
        # Kimi, Cerebras, DashScope, Cohere, watsonx, Cloudflare, Volcengine
        rf"exceeded model token limit:? {_LIMIT_PATTERN}",
        rf"current length is {_PROMPT_PATTERN} while limit is {_LIMIT_PATTERN}",
        rf"range of input length should be \[\d+, ?{_LIMIT_PATTERN}\]",
        rf"tokens in the prompt cannot exceed {_LIMIT_PATTERN}.{{0,20}}?received {_PROMPT_PATTERN}",
        rf"number of input tokens {_PROMPT_PATTERN} cannot exceed the total tokens limit {_LIMIT_PATTERN}",
        rf"output tokens \({_ANY_NUMBER_PATTERN}\) exceeded this model context window limit \({_LIMIT_PATTERN}",
        rf"input length {_PROMPT_PATTERN} exceeds the maximum length {_LIMIT_PATTERN}",
        # Ollama, LM Studio
        r"exceeded max context length by (?P<excess>\d[\d,]*)",
        rf"loaded with (?:a )?context length of only {_LIMIT_PATTERN}",
        r"greater than the context length",
        # with a limit, and no more
        (
            rf"(?:maximum|max) (?:model |prompt |input )?(?:context )?(?:length|window|size) (?:is|of) {_LIMIT_PATTERN}"
            r"(?=.*(?:request|exceed|reduce|too|longer))"
        ),
        # Groq, OpenAI Responses, MiniMax, Zhipu and others, without numbers
        r"reduce the length of (?:the|your) (?:messages|prompt|input)",
        (
            r"exceed(?:s|ed|ing)? (?:the |this |your )?(?:model'?s? )?(?:maximum |max )?(?:allowed )?"
            r"(?:context|prompt|input)[ _](?:length|window|limit|size)"
        ),
        r"context[ _](?:length|window|size|limit)(?: is| was| has been)? (?:exceed|overflow|too)",
        r"(?:longer|larger|bigger) than the (?:model'?s? )?(?:maximum )?context (?:length|window|size)",
        r"prompt (?:exceeds|too long|is longer)|prompt length exceeds|input (?:is )?too long",
        r"too many (?:input |prompt )?tokens|exceed max message tokens|exceeds? the model'?s? (?:maximum )?token limit",
        r"(?:输入|上下文|prompt).{0,12}(?:过长|超长|超过|超出)",
    )
)

_ECHOED_REQUEST_FIELDS = frozenset({"input", "messages", "body", "request"})
"""Fields in which validation errors repeat the request: a user's words about context windows are not the server's."""

_BODY_TOO_LARGE_PATTERN = re.compile(r"^\W*$|entity too large|payload too large|content too large", re.IGNORECASE)

_LIMIT_FIELDS = ("n_ctx", "max_context_length", "context_length", "max_model_len")
_PROMPT_FIELDS = ("n_prompt_tokens", "prompt_tokens", "input_tokens")


@dataclass(frozen=True, slots=True)
class ContextOverflow:
    """A prompt was refused as too long.

    `limit_tokens` and `prompt_tokens` are the provider's own numbers, if it states them. `is_output_too_long`: the
    prompt alone fits, so a smaller `max_tokens` helps. `is_lower_bound`: the prompt may be longer than `prompt_tokens`.
    `is_certain` is False for answers without a reason (an empty 400 or 413), which mean an overflow only if the prompt
    was large. `excess_tokens`: by how much the prompt is too long. `is_rate_limit`: the limit is one of the caller's
    account, not the model's window.
    """

    limit_tokens: int | None = None
    prompt_tokens: int | None = None
    is_output_too_long: bool = False
    is_certain: bool = True
    is_lower_bound: bool = False
    excess_tokens: int | None = None
    is_rate_limit: bool = False


def detect_overflow(status: int, body: bytes) -> ContextOverflow | None:
    """Returns the overflow that a provider's answer (or the data of an event in its stream) reports; None if it reports
    none.
    """
    if status not in _OVERFLOW_STATUSES and status not in _OVERSIZED_REQUEST_STATUSES:
        return None
    text = body[:_INSPECTED_BYTES].decode("utf-8", "replace").strip()
    # Some proxies and servers refuse a long body without any words.
    if status in (400, 413) and (not text or (status == 413 and _BODY_TOO_LARGE_PATTERN.search(text))):
        return ContextOverflow(is_certain=False)
    decoded = decode_json_or(text, text)
    # An ordinary answer may well speak about context windows.
    if status == 200 and isinstance(decoded, dict) and not decoded.get("error") and decoded.get("object") != "error":
        return None
    fields = list(_iterate_error_fields(decoded))
    has_overflow_code = any(
        key in _CODE_FIELDS and isinstance(value, str) and value.lower() in _OVERFLOW_CODES for key, value in fields
    )
    error_text = "\n".join(value for _, value in fields if isinstance(value, str)).lower()
    if status in _OVERSIZED_REQUEST_STATUSES and (oversized := _read_oversized_request(error_text)) is not None:
        return oversized
    if status not in _OVERFLOW_STATUSES:
        return None
    # A code is certain; words such as "too many tokens" may also be a rate limit.
    if not has_overflow_code and _OTHER_LIMIT_PATTERN.search(error_text):
        return None
    pattern_match = next((match for saying in _OVERFLOW_PATTERNS if (match := saying.search(error_text))), None)
    if pattern_match is None and not has_overflow_code:
        return None
    limit = _read_stated_number(pattern_match, "limit") or _find_number_field(fields, _LIMIT_FIELDS)
    lower_bound = _read_stated_number(pattern_match, "least")
    prompt = lower_bound or _read_stated_number(pattern_match, "prompt") or _find_number_field(fields, _PROMPT_FIELDS)
    only_output = limit is not None and prompt is not None and prompt < limit
    return ContextOverflow(
        limit,
        prompt,
        is_output_too_long=only_output,
        is_lower_bound=lower_bound is not None,
        excess_tokens=_read_stated_number(pattern_match, "excess"),
    )


def _read_oversized_request(error_text: str) -> ContextOverflow | None:
    """Returns the overflow of a request that is larger than a rate limit; None for a limit that a pause helps.

    The requested tokens include the answer's limit, so they are not the prompt's tokens.
    """
    match = _OVERSIZED_REQUEST_PATTERN.search(error_text)
    limit, requested = (int(re.sub(r"\D", "", number)) for number in match.groups()) if match else (0, 0)
    return ContextOverflow(limit, is_rate_limit=True) if requested > limit else None


def _iterate_error_fields(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields every text and number in an error body with its key. A text that is JSON itself is decoded: gateways copy
    the error of the server behind them.
    """
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _ECHOED_REQUEST_FIELDS:
                yield from _iterate_error_fields(inner, name, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _iterate_error_fields(inner, key, depth + 1)
    elif isinstance(value, str):
        yield key, value
        if value[:1] in ("{", "["):
            inner = decode_json_or(value, value)
            if not isinstance(inner, str):
                yield from _iterate_error_fields(inner, key, depth + 1)
    elif isinstance(value, int):
        yield key, value


def _read_stated_number(match: re.Match[str] | None, name: str) -> int | None:
    value = match.groupdict().get(name) if match else None
    return int(re.sub(r"\D", "", value)) if value else None


def _find_number_field(fields: list[tuple[str, Any]], names: tuple[str, ...]) -> int | None:
    return next((value for key, value in fields if key in names and isinstance(value, int) and value > 0), None)
