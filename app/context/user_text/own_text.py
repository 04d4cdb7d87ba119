"""Splits a user's message into what the user wrote and what came along with it. Pure.

Clients send much as text of the user that is not: results of tools, instructions from files, the state of an editor,
pasted text. If another's text is taken for the user's, it binds the model; if the user's is taken for another's, it
gives way sooner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

PartKind = Literal["own", "instructions", "pasted", "state"]

MAX_OWN_CHARS: Final = 80_000
"""Of a longer message the middle is taken for pasted text. This is about the largest room of user text."""
MAX_TAG_LINE_CHARS: Final = 200
"""A tagged part on one line up to this length belongs to the sentence around it."""
KEY_CHARS: Final = 60
INSTRUCTION_TAGS: Final = frozenset({"system-reminder", "instructions", "user_instructions", "environment_context"})
"""Tags in which Claude Code and Codex send instructions. A part that is sent again replaces the one before it."""
STATE_TAGS: Final = frozenset({"environment_details"})
"""The state of an editor, which Cline and Roo send with each message."""
OWN_TAGS: Final = frozenset({"task", "feedback", "user_message", "user_query", "answer"})
"""Tags in which clients send what the user wrote."""

_TEXTUAL_RESULT: Final = re.compile(
    r"\s*(?:\[[\w-]{1,40}(?: for [^\n]{0,400})?\] Result:|\**observation\**:|execution result of \[|"
    r"<(?:tool_response|tool_result|tool_output|function_results?)\b|tool (?:response|result|output)\s*:|"
    r"command \w+ returned\b|i ran this command:\s*\n|here are summaries of some files|here are some read only files|"
    r"i have \*added these files)",
    re.IGNORECASE,
)
"""How results of tools begin that clients send as text of the user: Cline and Roo, ReAct and SWE-agent, OpenHands,
Hermes, LangChain, AutoGPT, Aider."""
_INSTRUCTIONS_FILE: Final = re.compile(r"#\s+(?:AGENTS|CLAUDE)\.md\b[^\n]*", re.IGNORECASE)
_OPENING_TAG: Final = re.compile(r"<([A-Za-z][\w-]{0,40})(?:\s[^<>\n]{0,200})?>")
_PASTED: Final = re.compile(
    r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[^\n]*|\Z)|^[ \t]*>[^\n]*(?:\n[ \t]*>[^\n]*)*", re.DOTALL | re.MULTILINE
)
_SENTENCE_END: Final = re.compile(r"\n+|[.!?]+[\"'”’)»*_]*(?=\s)|[。！？]+[」』）]*")
_NO_SENTENCE_END: Final = re.compile(
    r"(?:^|[\s(])(?:[A-Z][a-z]{0,3}|[a-z]|etc|vs|bzw|approx|e\.g|i\.e|z\.\s?B|d\.\s?h)$|^\s*(?:\d{1,2}|[a-z])$",
    re.MULTILINE,
)
"""What stands before a full stop that does not end a sentence: a title, an initial, an abbreviation, the number of a
list item."""
_NO_SENTENCE_END_CHARS: Final = 8


class TextPart(NamedTuple):
    """The part `[start, end)` of a text."""

    start: int
    end: int
    kind: PartKind
    key: str = ""
    """Of instructions: what stays the same when they are sent again."""


def is_textual_result(text: str) -> bool:
    """Says whether a user message is the result of a tool in the form of text."""
    return _TEXTUAL_RESULT.match(text) is not None


def split_into_parts(text: str) -> list[TextPart]:
    """Returns the parts of a user's message, in order and without gaps."""
    if heading := _INSTRUCTIONS_FILE.match(text):
        return [TextPart(0, len(text), "instructions", heading.group()[:KEY_CHARS])]
    found = [*_find_tagged_parts(text)]
    if "```" in text or "~~~" in text or ">" in text:
        found += [TextPart(*match.span(), "pasted") for match in _PASTED.finditer(text)]
    if len(text) > MAX_OWN_CHARS:
        half = MAX_OWN_CHARS // 2
        found.append(TextPart(half, len(text) - half, "pasted"))
    parts: list[TextPart] = []
    end = 0
    for part in sorted(found):
        if part.start < end:
            continue
        if text[end : part.start].strip():
            parts.append(TextPart(end, part.start, "own"))
        parts.append(part)
        end = part.end
    return [*parts, TextPart(end, len(text), "own")] if text[end:].strip() else parts


def _find_tagged_parts(text: str) -> Iterator[TextPart]:
    """Yields the parts between an opening tag and its closing tag that the user did not write."""
    end, unclosed = 0, set[str]()
    for match in _OPENING_TAG.finditer(text):
        tag = match.group(1)
        if match.start() < end or tag in unclosed or tag.lower() in OWN_TAGS:
            continue
        closing = text.find(f"</{tag}>", match.end())
        if closing < 0:
            unclosed.add(tag)
            continue
        part_end = closing + len(tag) + 3
        if tag.lower() in INSTRUCTION_TAGS:
            first_line = text[match.end() : closing].strip().partition("\n")[0]
            yield TextPart(match.start(), part_end, "instructions", f"{tag}:{first_line}"[:KEY_CHARS])
        elif tag.lower() in STATE_TAGS:
            yield TextPart(match.start(), part_end, "state")
        elif part_end - match.start() > MAX_TAG_LINE_CHARS or "\n" in text[match.start() : part_end]:
            yield TextPart(match.start(), part_end, "pasted")
        else:
            continue
        end = part_end


def split_into_sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the sentences of `text[start:end]`, without the space around them. A sentence ends with its line."""
    begin = start
    for match in _SENTENCE_END.finditer(text, start, end):
        before = max(begin, match.start() - _NO_SENTENCE_END_CHARS)
        if match.group() == "." and _NO_SENTENCE_END.search(text, before, match.start()):
            continue
        yield from strip_span(text, begin, match.end())
        begin = match.end()
    yield from strip_span(text, begin, end)


def strip_span(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the span without the space at its ends, unless nothing is left."""
    piece = text[start:end]
    if stripped := piece.strip():
        begin = start + len(piece) - len(piece.lstrip())
        yield begin, begin + len(stripped)
