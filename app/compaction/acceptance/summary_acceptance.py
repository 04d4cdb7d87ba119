"""Reads the summary of a summarizer's answer, refuses unusable answers, and appends values that it leaves out. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import orjson

from app.compaction.acceptance.value_finding import ValueMention
from app.compaction.acceptance.values_appendix import (
    compute_remaining_worth_share,
    find_missing_values,
    render_appendix,
)
from app.compaction.summarizer.summary_request import NoUsableSummary, SummaryRequest
from app.compaction.summarizer.transcript import CountTokens
from app.context.view.view_rendering import ViewTokenCounter
from app.dialects.body.message import strip_reasoning
from app.dialects.first_choice import FirstChoice

POOR_WORTH_SHARE = 0.25
"""A summary that keeps less than this share of the important values' worth is *poor* (decision 9)."""
APPENDIX_SHARE, POOR_APPENDIX_SHARE = 0.4, 0.75
"""The most that the appendix of a good summary, and of a poor one, takes: shares of the summary's limit."""
MAX_APPENDIX_TOKENS, APPENDIX_DIVISOR = 192, 6
"""An appendix takes at most a sixth of its summary's limit, or 192 tokens if that is more: every later prompt carries
it, and a value that it lacks can still be found by a search (decision 17)."""
MIN_OVERSHOOT_TOKENS = 96
OVERSHOOT_SHARE = 0.15
"""How far a good summary may exceed its limit by its appendix: this share of the limit, or `MIN_OVERSHOOT_TOKENS` if
that is more."""
MIN_IMPROVED_LIMIT_TOKENS = 1024
"""A summary with a smaller limit is not asked for again: it has no room for more values."""
MIN_LACKING_VALUES = 8
"""A summary is asked for again if it lacks at least this many important values that its appendix has no room for."""
MAX_NAMED_VALUES = 60
"""The most values that the second request names."""

_SENTENCE_ENDS = (". ", "! ", "? ", "。", "\n")


def accept_summary(answer: FirstChoice, request: SummaryRequest, counter: ViewTokenCounter) -> str:
    """Returns the text of a usable summary.

    Raises:
        NoUsableSummary: the answer is blank, calls a tool, was filtered, has no finish reason, or saves too few tokens.
    """
    text = read_answer_text(answer)
    # `allowed_tokens`, not `limit_tokens`: a summary that is longer than asked for is paid for and still saves tokens.
    if counter.count(text) > request.max_tokens_with_gain:
        raise NoUsableSummary("the summary is hardly shorter than the messages that it replaces")
    return text


def read_answer_text(answer: FirstChoice) -> str:
    """Returns the text of an answer, without reasoning and protocol.

    Raises:
        NoUsableSummary: the answer is blank, calls a tool, was filtered, or has no finish reason.
    """
    # Without a finish reason the answer may have broken off anywhere. An answer that was cut off at its limit is
    # accepted: the summary ends too early, but what it says is usable.
    if not answer.finish:
        raise NoUsableSummary("the answer has no finish reason")
    if answer.is_filtered:
        raise NoUsableSummary("the answer was filtered")
    # Refused even if there is text beside the call: the text may only announce the call.
    if answer.has_calls:
        raise NoUsableSummary("the answer calls a tool")
    text = strip_to_summary(answer.text)
    if not text:
        raise NoUsableSummary("the answer is blank")
    return text


def append_missing_values(
    text: str, values: Sequence[ValueMention], *, limit_tokens: int, allowed_tokens: int, count_tokens: CountTokens
) -> str:
    """Appends the values that a summary leaves out, as many as there is room for.

    The text of a good summary stays as it is. A poor one is cut if the values need its room.

    Args:
        text: the summary.
        values: the values of its range, in descending order of worth.
        limit_tokens: the most tokens that the summary may have.
        allowed_tokens: the most tokens with which the summary still saves enough.
        count_tokens: counts the tokens of a text.
    """
    missing_values = find_missing_values(values, text)
    size = count_tokens(text)
    is_poor = compute_remaining_worth_share(values, missing_values) < POOR_WORTH_SHARE
    room_tokens = _compute_appendix_room(size, limit_tokens, is_poor=is_poor)
    # A poor summary takes no room from its appendix, because its text can be cut. Two tokens are for the line break
    # between text and appendix.
    lines = render_appendix(
        missing_values, min(room_tokens, allowed_tokens - (0 if is_poor else size) - 2), count_tokens
    )
    if not lines:
        return text
    remaining_tokens = min(limit_tokens, allowed_tokens) - count_tokens(lines) - 2
    return "\n".join(filter(None, (_cut_at_sentence(text, remaining_tokens, count_tokens) if is_poor else text, lines)))


def choose_values_to_request(
    text: str, values: Sequence[ValueMention], limit_tokens: int, count_tokens: CountTokens
) -> list[str]:
    """Returns important values that neither the summary nor its appendix has room for.

    Returns none if a second call is not worth its price. A poor summary is not asked for again: a model that kept next
    to nothing the first time does no better the second time.
    """
    if limit_tokens < MIN_IMPROVED_LIMIT_TOKENS:
        return []
    important = [value for value in values if value.is_important]
    missing_values = find_missing_values(important, text)
    if compute_remaining_worth_share(important, missing_values) < POOR_WORTH_SHARE:
        return []
    lines = render_appendix(
        missing_values, _compute_appendix_room(count_tokens(text), limit_tokens, is_poor=False), count_tokens
    )
    lacking = [value.text for value in find_missing_values(missing_values, lines)]
    return lacking[:MAX_NAMED_VALUES] if len(lacking) >= MIN_LACKING_VALUES else []


def _compute_appendix_room(size: int, limit_tokens: int, *, is_poor: bool) -> int:
    """Computes the most tokens that the appendix to a summary of `size` tokens may have."""
    free_tokens = max(0, limit_tokens - size)
    max_tokens = max(MAX_APPENDIX_TOKENS, limit_tokens // APPENDIX_DIVISOR)
    if is_poor:
        # Values may also take the room of the text that is cut for them: no prompt becomes longer by that.
        return min(max(max_tokens, size), max(free_tokens, int(limit_tokens * POOR_APPENDIX_SHARE)))
    overshoot_tokens = max(MIN_OVERSHOOT_TOKENS, int(limit_tokens * OVERSHOOT_SHARE))
    return min(max_tokens, max(free_tokens, overshoot_tokens), int(limit_tokens * APPENDIX_SHARE))


def _cut_at_sentence(text: str, limit_tokens: int, count_tokens: CountTokens) -> str:
    """Returns the beginning of a text within a limit, cut at the end of a sentence if there is one."""
    size = count_tokens(text)
    while text and size > limit_tokens:
        # By the average characters per token; at least one character goes, so that the loop ends.
        text = text[: min(len(text) - 1, int(len(text) * max(0, limit_tokens) / size))]
        end = max(text.rfind(mark) for mark in _SENTENCE_ENDS) + 1
        # A sentence that ends in the first half would cost too much text: then the cut is inside a sentence.
        text = text[:end].rstrip() if end > len(text) // 2 else text
        size = count_tokens(text)
    return text


_REASONING_PATTERNS = (
    re.compile(r"\[THINK\].*?(?:\[/THINK\]|\Z)", re.DOTALL),
    re.compile(
        r"<\|(?:channel\|>|start\|>assistant<\|channel\|>)(?:analysis|commentary)\b.*?(?:<\|(?:end|call)\|>|\Z)",
        re.DOTALL,
    ),
    re.compile(r"<analysis>.*?(?:</analysis>|\Z)", re.DOTALL | re.IGNORECASE),
    re.compile(r"<\|begin_of_thought\|>.*?(?:<\|end_of_thought\|>|\Z)", re.DOTALL),
)
"""Reasoning in an answer's text: Mistral's, OpenAI's harmony channels, templates of other models. `strip_reasoning`
removes `<think>`, which many models write. A block that is not closed extends to the end."""
_TOOL_CALL_PATTERNS = (
    re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL),
    re.compile(r"<function(?:=[^>\n]{1,80}|_calls?)>.*?(?:</function(?:_calls?)?>|\Z)", re.DOTALL),
    re.compile(r"<\|python_tag\|>.*", re.DOTALL),
    re.compile(r"\[TOOL_CALLS\].*", re.DOTALL),
)
"""Tool calls that the provider's server left in the text: of Hermes and Qwen; of Llama; of Mistral."""
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
    """Returns the summary in an answer's text; blank if there is none.

    Removes reasoning, tool calls, special tokens, lines of the transcript's fence, tags and a preface ("Here is …").
    """
    text = strip_reasoning(_FINAL_CHANNEL.split(answer)[-1])
    # Some chat templates put `<think>` into the prompt, so that the answer has the closing tag only.
    if "<think>" not in answer:
        text = text.rpartition("</think>")[2]
    for pattern in (*_REASONING_PATTERNS, *_TOOL_CALL_PATTERNS):
        text = pattern.sub("", text)
    text = _FENCE_LINE.sub("", _SPECIAL_TOKEN.sub("", text)).strip()
    tagged = _SUMMARY_TAGS.match(text)
    text = tagged.group(2) if tagged else text
    if is_json_tool_call(text):
        return ""
    # A text that is a preface and nothing else may be the summary after all.
    return (_PREFACE.sub("", text, count=1).strip()) or text


def is_json_tool_call(text: str) -> bool:
    """Whether the whole text is a tool call that is written as JSON, in a code block or by itself."""
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
