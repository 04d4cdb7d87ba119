"""Finds where the prompts of a conversation stay equal: there its provider's cache is told to keep them. Pure.

Without marks at these places, providers that read their cache only at marks read nothing. A mark in a wrong place costs
what is written to the cache and never read again, a quarter of its price.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from app.context.view.view_rendering import SUMMARY_FENCE, SUMMARY_PREAMBLE
from app.conversation.item import INSTRUCTION_ROLES
from app.dialects.cache_marks import NO_CACHE_MARKS, TOOLS_INDEX, CacheMark, CacheMarks
from app.dialects.item_decoding import decode_item

_SECTION_END: Final = re.compile(rf"</{SUMMARY_FENCE}>\n\n")
MARKED_SECTIONS: Final = {"anthropic": 1, "breakpoints": 2}
"""How many summaries have a mark at their end, by the rule of a cache with marks. After a compaction, the end of the
summaries before it must be found: Anthropic looks for it before the mark, OpenAI only at breakpoints of the request."""


def find_cache_marks(messages: Sequence[bytes], rule: str, *, is_summary_call: bool = False) -> CacheMarks:
    """Returns the places of a prompt's marks, at most four.

    They are the end of tools and instructions, of the summaries, of the last prompt (what follows it is the newest
    answer and what came since), and of this prompt. A conversation that has no answer yet may never go on: its messages
    get no marks.

    Args:
        messages: the JSON text of each message of the view.
        rule: what the provider's cache can find; without a rule for marks, there are none.
        is_summary_call: the prompt ends with an instruction that no later one repeats.
    """
    if rule not in MARKED_SECTIONS:
        return NO_CACHE_MARKS
    size = len(messages)
    start = next((at for at in range(size) if decode_item(messages[at]).role not in INSTRUCTION_ROLES), size)
    marks = {start - 1 if start else TOOLS_INDEX: CacheMark()}
    if start < size and (ends := _find_section_ends(messages[start])):
        marks[start] = CacheMark(ends, MARKED_SECTIONS[rule])
    # An answer at the end of a prompt is the beginning of the next one.
    answers = (at for at in range(size - 2, start, -1) if decode_item(messages[at]).role == "assistant")
    answer = next(answers, None)
    if answer is not None:
        marks.setdefault(answer - 1, CacheMark())
        # OpenAI sets a breakpoint of its own at the end.
        if rule == "anthropic" and not is_summary_call:
            marks.setdefault(size - 1, CacheMark())
    return marks


def _find_section_ends(raw: bytes) -> tuple[int, ...]:
    """Returns where the summaries end in the text of a view's first message, with the end of the text; nothing if the
    message has no summaries."""
    # Most first messages are no summaries: the bytes tell that.
    if SUMMARY_FENCE.encode() not in raw or not (text := decode_item(raw).text).startswith(SUMMARY_PREAMBLE):
        return ()
    ends = [match.end() for match in _SECTION_END.finditer(text)]
    return tuple(ends if ends and ends[-1] == len(text) else [*ends, len(text)])
