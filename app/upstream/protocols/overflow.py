"""Recognise the answers by which providers say that a prompt is too long, and read the limit out of them. Pure.

There is no common code: the table below holds what each server is known to say. Rate limits, quotas and limits on
single fields use much the same words and are ruled out first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

_LOOKED_AT_BYTES = 32_768
_DEPTH = 6

_STATUSES = frozenset({200, 400, 413, 422, 500, 502, 503})
"""200: inside a stream, and older llama.cpp. 5xx: gateways that wrap the error, and template failures."""

_CODES = frozenset(
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

_SOMETHING_ELSE = re.compile(
    r"rate.?limit|too many requests|tokens per (?:min|hour|day)|per.minute|\btp[md]\b|throttl|quota|billing|credit"
    r"|please wait|string.?above.?max|string too long|array too long|array_above_max",
)

_N = r"(?:~|about |over |around |approximately )?(?P<{}>\d[\d,_]*)"
_LIMIT, _PROMPT, _LEAST = _N.format("limit"), _N.format("prompt"), _N.format("least")
_ANY_NUMBER = r"\d[\d,_]*"

_SAYINGS = tuple(
    re.compile(saying, re.DOTALL)
    for saying in (
        # OpenAI, Azure, DeepSeek, older vLLM, text-generation-webui
        rf"maximum context length is {_LIMIT} tokens.{{0,40}}?messages resulted in {_PROMPT}",
        (
            rf"maximum context length is {_LIMIT} tokens.{{0,40}}?requested {_ANY_NUMBER} tokens"
            rf" \({_PROMPT} (?:in the messages|in your prompt|of text input)"
        ),
        rf"input tokens exceed the configured limit of {_LIMIT}.{{0,60}}?resulted in {_PROMPT}",
        # vLLM: before 0.16, some of 0.20 (which stops to count where the prompt is too long), from 0.16
        rf"maximum context length is {_LIMIT} tokens and your request has {_PROMPT} input tokens",
        (
            rf"maximum context length is {_LIMIT} tokens.{{0,40}}?requested {_ANY_NUMBER} output tokens and your prompt"
            rf" contains (?:at least {_LEAST}|{_PROMPT}) input tokens"
        ),
        rf"passed {_PROMPT} input tokens and requested {_ANY_NUMBER} output.{{0,80}}?context length is only {_LIMIT}",
        rf"prompt \(length {_PROMPT}\) is longer than the maximum model length of {_LIMIT}",
        r"max_(?:completion_)?tokens must be at least 1, got -\d+",
        # llama.cpp and its Python binding
        rf"request \({_PROMPT} tokens\) exceeds the available context size \({_LIMIT} tokens\)",
        r"exceeds the available context size",
        rf"requested tokens \({_ANY_NUMBER}\) exceed context window of {_LIMIT}",
        # Gemini, Vertex
        rf"input token count \(?{_PROMPT}\)? exceeds the maximum number of tokens allowed \(?{_LIMIT}",
        rf"input token count is {_PROMPT} but (?:the )?model only supports up to {_LIMIT}",
        r"input token count.{0,40}?exceeds the maximum",
        # Anthropic, Bedrock
        rf"prompt is too long:? {_PROMPT} tokens > {_LIMIT}",
        rf"prompt is too long:? {_PROMPT}, model maximum context length:? {_LIMIT}",
        rf"exceed context limit:? {_PROMPT} \+ {_ANY_NUMBER} > {_LIMIT}",
        r"prompt is too long|input is too long for requested model|input tokens exceeded",
        # Mistral, xAI, GitHub Copilot
        rf"prompt contains {_PROMPT} tokens.{{0,60}}?too large for model with {_LIMIT}",
        rf"maximum prompt length is {_LIMIT} but the request contains {_PROMPT}",
        rf"prompt token count of {_PROMPT} exceeds the limit of {_LIMIT}",
        # SGLang, Together, SiliconFlow, TensorRT-LLM
        rf"input \({_PROMPT} tokens\) is longer than the model'?s context length \({_LIMIT}",
        rf"maximum context length of {_LIMIT} tokens.{{0,60}}?total of {_ANY_NUMBER} tokens: {_PROMPT} tokens from the",
        rf"(?:input|prompt) length \({_PROMPT}(?: tokens)?\) exceeds.{{0,40}}?(?:length|limit) \({_LIMIT}",
        rf"prompt_tokens \({_PROMPT}\) must be less than max_seq_len \({_LIMIT}",
        # text-generation-inference
        rf"`?inputs`? tokens \+ `?max_new_tokens`? must be <= {_LIMIT}(?:.{{0,20}}?given: {_PROMPT} )?",
        rf"`?inputs`? must have less than {_LIMIT} tokens(?:.{{0,20}}?given: {_PROMPT})?",
        # Kimi, Cerebras, DashScope, Cohere, watsonx, Cloudflare, Volcengine
        rf"exceeded model token limit:? {_LIMIT}",
        rf"current length is {_PROMPT} while limit is {_LIMIT}",
        rf"range of input length should be \[\d+, ?{_LIMIT}\]",
        rf"tokens in the prompt cannot exceed {_LIMIT}.{{0,20}}?received {_PROMPT}",
        rf"number of input tokens {_PROMPT} cannot exceed the total tokens limit {_LIMIT}",
        rf"output tokens \({_ANY_NUMBER}\) exceeded this model context window limit \({_LIMIT}",
        rf"input length {_PROMPT} exceeds the maximum length {_LIMIT}",
        # Ollama, LM Studio
        r"exceeded max context length by \d+",
        rf"loaded with (?:a )?context length of only {_LIMIT}",
        r"greater than the context length",
        # with a limit, and no more
        (
            rf"(?:maximum|max) (?:model |prompt |input )?(?:context )?(?:length|window|size) (?:is|of) {_LIMIT}"
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

_ECHOES = frozenset({"input", "messages", "body", "request"})
"""Where validation errors quote the request: a user's words about context windows are none of the server's."""

_TOO_MANY_BYTES = re.compile(r"^\W*$|entity too large|payload too large|content too large", re.IGNORECASE)

_LIMIT_FIELDS = ("n_ctx", "max_context_length", "context_length", "max_model_len")
_PROMPT_FIELDS = ("n_prompt_tokens", "prompt_tokens", "input_tokens")


@dataclass(frozen=True, slots=True)
class Overflow:
    """A prompt was refused as too long.

    `limit_tokens` and `prompt_tokens` are the provider's own numbers where it states them. `only_output`: the prompt
    alone fits, so a smaller `max_tokens` mends it. `at_least`: the prompt may be longer than `prompt_tokens` says.
    `certain` is False for answers that say nothing (an empty 400 or 413), which mean this only if the prompt was large.
    """

    limit_tokens: int | None = None
    prompt_tokens: int | None = None
    only_output: bool = False
    certain: bool = True
    at_least: bool = False


def recognise(status: int, body: bytes) -> Overflow | None:
    """Whether an upstream's answer (or the data of an event in its stream) says that the prompt is too long."""
    if status not in _STATUSES:
        return None
    text = body[:_LOOKED_AT_BYTES].decode("utf-8", "replace").strip()
    if status in (400, 413) and (not text or (status == 413 and _TOO_MANY_BYTES.search(text))):
        return Overflow(certain=False)
    decoded = _decoded(text)
    if status == 200 and isinstance(decoded, dict) and not decoded.get("error") and decoded.get("object") != "error":
        return None
    fields = list(_fields(decoded))
    named = any(key in _CODE_FIELDS and isinstance(value, str) and value.lower() in _CODES for key, value in fields)
    said = "\n".join(value for _, value in fields if isinstance(value, str)).lower()
    if not named and _SOMETHING_ELSE.search(said):
        return None
    found = next((match for saying in _SAYINGS if (match := saying.search(said))), None)
    if found is None and not named:
        return None
    limit = _stated(found, "limit") or _number(fields, _LIMIT_FIELDS)
    least = _stated(found, "least")
    prompt = least or _stated(found, "prompt") or _number(fields, _PROMPT_FIELDS)
    only_output = limit is not None and prompt is not None and prompt < limit
    return Overflow(limit, prompt, only_output=only_output, at_least=least is not None)


def _decoded(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _fields(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every text and number in an error body with its key; texts that are JSON themselves are opened (a gateway's
    copy of the error of the server behind it)."""
    if depth > _DEPTH:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in _ECHOES:
                yield from _fields(inner, name, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _fields(inner, key, depth + 1)
    elif isinstance(value, str):
        yield key, value
        if value[:1] in ("{", "["):
            inner = _decoded(value)
            if not isinstance(inner, str):
                yield from _fields(inner, key, depth + 1)
    elif isinstance(value, int):
        yield key, value


def _stated(found: re.Match[str] | None, name: str) -> int | None:
    value = found.groupdict().get(name) if found else None
    return int(re.sub(r"\D", "", value)) if value else None


def _number(fields: list[tuple[str, Any]], names: tuple[str, ...]) -> int | None:
    return next((value for key, value in fields if key in names and isinstance(value, int) and value > 0), None)
