"""Whether an answer is a summary, and the summary completed with what it leaves out. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.compaction.acceptance.value_mentions import ValueMention
from app.compaction.acceptance.values_appendix import compute_share_without, find_missing_values, render_appendix
from app.compaction.summarizer.summary_request import NoUsableSummary, SummaryRequest
from app.compaction.summarizer.transcript import CountTokens, strip_reasoning
from app.context.view.view_messages import ViewTokenCounter
from app.conversation.messages import extract_text
from app.errors import UpstreamUnavailable

POOR_WORTH_SHARE = 0.25
"""Of the worth of important values: a summary that keeps less tells nothing that anybody could go on with."""
APPENDIX_SHARE, POOR_APPENDIX_SHARE = 0.4, 0.75
"""Of a summary's limit, the most that an appendix takes, if that much is free; of a poor summary the more."""
MAX_APPENDIX_TOKENS, APPENDIX_DIVISOR = 192, 6
"""An appendix takes no more than this many tokens, or this fraction of a summary's limit: every prompt from now on
carries it, and what else was said can be searched."""
MIN_OVERSHOOT_TOKENS = 96
OVERSHOOT_SHARE = 0.15
"""Of the limit, what a good summary that has used all of it may be lengthened by."""
MIN_IMPROVED_LIMIT_TOKENS = 1024
"""A smaller summary has no words to spare for values."""
MIN_LACKING_VALUES = 8
"""Important values that an appendix has no room for, from which on a summary is asked for again."""
MAX_NAMED_VALUES = 60
"""Values that the second request names."""

_SENTENCE_ENDS = (". ", "! ", "? ", "。", "\n")


def accept_summary(answer: Mapping[str, Any], request: SummaryRequest, counter: ViewTokenCounter) -> str:
    """The text of a usable summary.

    Raises:
        SummaryRefused: it is blank, calls a tool, was filtered, does not end, or gains too little.
    """
    text = read_answer_text(answer)
    if counter.count(text) > request.allowed_tokens:
        raise NoUsableSummary("the summary is hardly shorter than what it replaces")
    return text


def read_answer_text(answer: Mapping[str, Any]) -> str:
    """What an answer says.

    Raises:
        SummaryRefused: nothing, or something else.
    """
    reason = read_finish_reason(answer)
    if not reason:
        raise NoUsableSummary("the answer has no finish reason")
    if reason == "content_filter":
        raise NoUsableSummary("the answer was filtered")
    if _read_message(answer).get("tool_calls") or _read_message(answer).get("function_call"):
        raise NoUsableSummary("the answer calls a tool")
    text = clean_answer_text(answer)
    if not text:
        raise NoUsableSummary("the answer is blank")
    return text


def append_missing_values(
    text: str, values: Sequence[ValueMention], *, limit_tokens: int, allowed_tokens: int, count_tokens: CountTokens
) -> str:
    """A summary with the values that it leaves out, as many as there is room for.

    A good one stays as it is. A poor one is cut where it takes the room that the values need.

    Args:
        limit_tokens: how long a summary may be.
        allowed_tokens: how long it may be to gain anything.
    """
    missing_values = find_missing_values(values, text)
    size = count_tokens(text)
    is_poor = compute_share_without(values, missing_values) < POOR_WORTH_SHARE
    room_tokens = _compute_appendix_room(size, limit_tokens, is_poor=is_poor)
    lines = render_appendix(
        missing_values, min(room_tokens, allowed_tokens - (0 if is_poor else size) - 2), count_tokens
    )
    if not lines:
        return text
    remaining_tokens = min(limit_tokens, allowed_tokens) - count_tokens(lines) - 2
    return "\n".join(filter(None, (_cut_at_sentence(text, remaining_tokens, count_tokens) if is_poor else text, lines)))


def find_lacking_values(
    text: str, values: Sequence[ValueMention], limit_tokens: int, count_tokens: CountTokens
) -> list[str]:
    """Important values that neither a summary nor its appendix would hold; none where a second call would not pay.

    A poor summary is not asked for again: who kept next to nothing the first time does no better the second.
    """
    if limit_tokens < MIN_IMPROVED_LIMIT_TOKENS:
        return []
    important = [value for value in values if value.is_important]
    missing_values = find_missing_values(important, text)
    if compute_share_without(important, missing_values) < POOR_WORTH_SHARE:
        return []
    lines = render_appendix(
        missing_values, _compute_appendix_room(count_tokens(text), limit_tokens, is_poor=False), count_tokens
    )
    lacking = [value.text for value in find_missing_values(missing_values, lines)]
    return lacking[:MAX_NAMED_VALUES] if len(lacking) >= MIN_LACKING_VALUES else []


def decode_answer(raw: bytes) -> dict[str, Any]:
    """An answer's body.

    Raises:
        UpstreamUnavailable: it is not a JSON object.
    """
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise UpstreamUnavailable("The summarizer's answer is not valid JSON.") from error
    if not isinstance(answer, dict):
        raise UpstreamUnavailable("The summarizer's answer is not a JSON object.")
    return answer


def read_finish_reason(answer: Mapping[str, Any]) -> str:
    return str(_read_first_choice(answer).get("finish_reason") or "")


def clean_answer_text(answer: Mapping[str, Any]) -> str:
    """The text of an answer without reasoning and protocol."""
    return strip_to_summary(extract_text(_read_message(answer).get("content")))


def _compute_appendix_room(size: int, limit_tokens: int, *, is_poor: bool) -> int:
    """How many tokens an appendix to a summary of `size` may have."""
    free = max(0, limit_tokens - size)
    most = max(MAX_APPENDIX_TOKENS, limit_tokens // APPENDIX_DIVISOR)
    if is_poor:
        return min(most, max(free, int(limit_tokens * POOR_APPENDIX_SHARE)))
    overshoot = max(MIN_OVERSHOOT_TOKENS, int(limit_tokens * OVERSHOOT_SHARE))
    return min(most, max(free, overshoot), int(limit_tokens * APPENDIX_SHARE))


def _cut_at_sentence(text: str, limit_tokens: int, count_tokens: CountTokens) -> str:
    """The beginning of a text within a limit, up to the end of a sentence where there is one."""
    size = count_tokens(text)
    while text and size > limit_tokens:
        text = text[: min(len(text) - 1, int(len(text) * max(0, limit_tokens) / size))]
        end = max(text.rfind(mark) for mark in _SENTENCE_ENDS) + 1
        text = text[:end].rstrip() if end > len(text) // 2 else text
        size = count_tokens(text)
    return text


def _read_first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _read_message(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    message = _read_first_choice(answer).get("message")
    return message if isinstance(message, dict) else {}


_REASONING_PATTERNS = (
    re.compile(r"\[THINK\].*?(?:\[/THINK\]|\Z)", re.DOTALL),
    re.compile(
        r"<\|(?:channel\|>|start\|>assistant<\|channel\|>)(?:analysis|commentary)\b.*?(?:<\|(?:end|call)\|>|\Z)",
        re.DOTALL,
    ),
    re.compile(r"<analysis>.*?(?:</analysis>|\Z)", re.DOTALL | re.IGNORECASE),
    re.compile(r"<\|begin_of_thought\|>.*?(?:<\|end_of_thought\|>|\Z)", re.DOTALL),
)
"""Mistral's, OpenAI's harmony channels, and what templates of other models use; `<think>` is everybody's."""
_TOOL_CALL_PATTERNS = (
    re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL),
    re.compile(r"<function(?:=[^>\n]{1,80}|_calls?)>.*?(?:</function(?:_calls?)?>|\Z)", re.DOTALL),
    re.compile(r"<\|python_tag\|>.*", re.DOTALL),
    re.compile(r"\[TOOL_CALLS\].*", re.DOTALL),
)
"""Hermes and Qwen; Llama; Mistral: calls that a server did not parse."""
_FINAL_CHANNEL = re.compile(r"<\|channel\|>final<\|message\|>")
_SPECIAL_TOKEN = re.compile(r"<\|[a-z_]{2,32}\|>")
_SUMMARY_TAGS = re.compile(r"\A<(summary|checkpoint)>\s*(.*?)\s*</\1>\Z", re.DOTALL | re.IGNORECASE)
_FENCE_LINE = re.compile(r"^(?:</?transcript [0-9a-f]{8}>|--- [0-9a-f]{8} \[\d+\] .*)\n?", re.MULTILINE)
_CODE_BLOCK = re.compile(r"\A```(?:json|tool_code|tool_call)?\s*\n(.*)\n```\Z", re.DOTALL)
_PREFACE = re.compile(
    r"\A(?:(?:sure|certainly|of course|okay|ok|absolutely)\b[^\n:]{0,20})?here(?:'s|’s| is| are)\b[^\n:]{0,100}:\s*\n+"
    r"|\A(?:sure|certainly|of course|okay|ok|absolutely)[!,.]?[^\n:]{0,20}\n+",
    re.IGNORECASE,
)
_CALL_FIELDS = ({"name", "arguments"}, {"name", "parameters"}, {"tool", "arguments"}, {"function", "arguments"})


def strip_to_summary(answer: str) -> str:
    """The summary in an answer; blank where there is none."""
    text = strip_reasoning(_FINAL_CHANNEL.split(answer)[-1])
    if "<think>" not in answer:
        text = text.rpartition("</think>")[2]
    for pattern in (*_REASONING_PATTERNS, *_TOOL_CALL_PATTERNS):
        text = pattern.sub("", text)
    text = _FENCE_LINE.sub("", _SPECIAL_TOKEN.sub("", text)).strip()
    tagged = _SUMMARY_TAGS.match(text)
    text = tagged.group(2) if tagged else text
    if is_tool_call(text):
        return ""
    return (_PREFACE.sub("", text, count=1).strip()) or text


def is_tool_call(text: str) -> bool:
    """Whether a whole answer is a call written as JSON, in a code block or by itself."""
    block = _CODE_BLOCK.match(text)
    bare = (block.group(1) if block else text).strip()
    if bare[:1] not in {"{", "["}:
        return False
    try:
        decoded = orjson.loads(bare)
    except orjson.JSONDecodeError:
        return False
    first = decoded[0] if isinstance(decoded, list) and decoded else decoded
    return isinstance(first, dict) and any(fields <= first.keys() for fields in _CALL_FIELDS)
