"""A model's answer without what is not the summary: reasoning, protocol markers, a preface. Pure.

Only what is written in a known notation goes; a summary may speak of thinking, tools and tags.
"""

from __future__ import annotations

import re

import orjson

from app.compaction.summarizer.transcript import without_thoughts

_THOUGHTS = (
    re.compile(r"\[THINK\].*?(?:\[/THINK\]|\Z)", re.DOTALL),
    re.compile(
        r"<\|(?:channel\|>|start\|>assistant<\|channel\|>)(?:analysis|commentary)\b.*?(?:<\|(?:end|call)\|>|\Z)",
        re.DOTALL,
    ),
    re.compile(r"<analysis>.*?(?:</analysis>|\Z)", re.DOTALL | re.IGNORECASE),
    re.compile(r"<\|begin_of_thought\|>.*?(?:<\|end_of_thought\|>|\Z)", re.DOTALL),
)
"""Mistral's, OpenAI's harmony channels, and what templates of other models use; `<think>` is everybody's."""
_CALLS = (
    re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL),
    re.compile(r"<function(?:=[^>\n]{1,80}|_calls?)>.*?(?:</function(?:_calls?)?>|\Z)", re.DOTALL),
    re.compile(r"<\|python_tag\|>.*", re.DOTALL),
    re.compile(r"\[TOOL_CALLS\].*", re.DOTALL),
)
"""Hermes and Qwen; Llama; Mistral: calls that a server did not parse."""
_ANSWER = re.compile(r"<\|channel\|>final<\|message\|>")
_MARKER = re.compile(r"<\|[a-z_]{2,32}\|>")
_WHOLE = re.compile(r"\A<(summary|checkpoint)>\s*(.*?)\s*</\1>\Z", re.DOTALL | re.IGNORECASE)
_FENCE_LINE = re.compile(r"^(?:</?transcript [0-9a-f]{8}>|--- [0-9a-f]{8} \[\d+\] .*)\n?", re.MULTILINE)
_CODE_BLOCK = re.compile(r"\A```(?:json|tool_code|tool_call)?\s*\n(.*)\n```\Z", re.DOTALL)
_PREFACE = re.compile(
    r"\A(?:(?:sure|certainly|of course|okay|ok|absolutely)\b[^\n:]{0,20})?here(?:'s|’s| is| are)\b[^\n:]{0,100}:\s*\n+"
    r"|\A(?:sure|certainly|of course|okay|ok|absolutely)[!,.]?[^\n:]{0,20}\n+",
    re.IGNORECASE,
)
_CALL_FIELDS = ({"name", "arguments"}, {"name", "parameters"}, {"tool", "arguments"}, {"function", "arguments"})


def cleaned(answer: str) -> str:
    """The summary in an answer; blank where there is none."""
    text = without_thoughts(_ANSWER.split(answer)[-1])
    if "<think>" not in answer:
        text = text.rpartition("</think>")[2]
    for pattern in (*_THOUGHTS, *_CALLS):
        text = pattern.sub("", text)
    text = _FENCE_LINE.sub("", _MARKER.sub("", text)).strip()
    whole = _WHOLE.match(text)
    text = whole.group(2) if whole else text
    if is_a_tool_call(text):
        return ""
    return (_PREFACE.sub("", text, count=1).strip()) or text


def is_a_tool_call(text: str) -> bool:
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
