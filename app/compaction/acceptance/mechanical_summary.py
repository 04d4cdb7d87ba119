"""Makes a summary without a model: one line for each text and each tool call, thinned to a limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.compaction.acceptance.values_appendix import (
    GAP_LINE,
    collect_values,
    find_missing_values,
    render_appendix,
    strip_appendix,
)
from app.compaction.summarizer.transcript import CountTokens
from app.context.stages.tool_round_text import (
    MAX_LINE_TEXT_CHARS,
    render_result_excerpt,
    render_text_line,
    render_tool_call_lines,
    truncate_to_one_line,
)
from app.context.view.view_rendering import ViewTokenCounter, count_summary_section_tokens
from app.conversation.conversation_types import LogMessage, Summary
from app.conversation.item import TOOL_RESULT_ROLES, Item

MECHANICAL_VERSION = "mechanical-2"

MAX_GAP_DIGITS = 9
"""A gap line with a longer number was not written by us."""
HEAD_SHARE = 0.25
"""The share of the room for lines that goes to the first lines, because the task is usually set there."""

APPENDIX_SHARE = 0.4
"""The share of a summary's limit that is reserved for values that its lines leave out."""


def build_mechanical_summary(
    messages: Sequence[LogMessage],
    earlier_summaries: Sequence[Summary],
    limit_tokens: int,
    count_tokens: CountTokens,
    parameter_names: Iterable[str] = (),
) -> str:
    """Returns lines of earlier summaries and of messages, then the values that these lines leave out.

    Args:
        messages: the log messages of the range.
        earlier_summaries: summaries that the new one replaces, besides the messages.
        limit_tokens: the most tokens of the whole text.
        count_tokens: counts the tokens of a text.
        parameter_names: what the conversation's tools take; see `collect_values`.
    """
    lines_limit = int(limit_tokens * (1 - APPENDIX_SHARE))
    lines = [
        *_split_summary_lines(earlier_summaries),
        *render_message_lines([log_message.message for log_message in messages]),
    ]
    lines, left_out = _drop_repeated_lines(lines)
    text = thin_lines(lines, lines_limit, count_tokens, left_out)
    # After the thinning: a value is appended only if no remaining line contains it.
    missing_values = find_missing_values(collect_values(messages, earlier_summaries, parameter_names), text)
    appendix_lines = render_appendix(missing_values, limit_tokens - count_tokens(text) - 2, count_tokens)
    if not appendix_lines:
        # The share that was reserved for the appendix is free for more lines.
        return thin_lines(lines, limit_tokens, count_tokens, left_out)
    return f"{text}\n{appendix_lines}"


def _drop_repeated_lines(lines: Sequence[str]) -> tuple[list[str], int]:
    """Drops lines that say nothing new: those that equal an earlier one, and gap lines of earlier summaries.

    Returns:
        The other lines, and how many lines were left out, counting those that the gap lines stand for.
    """
    gaps = [int(match.group(1)[:MAX_GAP_DIGITS]) for line in lines if (match := GAP_LINE.fullmatch(line))]
    kept = list(dict.fromkeys(line for line in lines if not GAP_LINE.fullmatch(line)))
    return kept, sum(gaps) + len(lines) - len(gaps) - len(kept)


def thin_lines(lines: Sequence[str], limit_tokens: int, count_tokens: CountTokens, left_out: int = 0) -> str:
    """Returns the first and the newest lines that fit into `limit_tokens`, and between them a line with the number of
    lines that were left out, `left_out` included."""
    sizes = [count_tokens(line) + 1 for line in lines]  # one token for the line break
    if sum(sizes) <= limit_tokens:
        return "\n".join(lines)
    # The gap line is counted with the largest number that it can show.
    room_tokens = limit_tokens - count_tokens(_render_gap_line(len(lines) + left_out)) - 1
    head_lines = _count_fitting(sizes, int(room_tokens * HEAD_SHARE))
    tail_start = len(lines) - _count_fitting(sizes[head_lines:][::-1], room_tokens - sum(sizes[:head_lines]))
    gap_line = _render_gap_line(tail_start - head_lines + left_out)
    return "\n".join([*lines[:head_lines], gap_line, *lines[tail_start:]])


def _split_summary_lines(summaries: Sequence[Summary]) -> Iterator[str]:
    # Without their appendices: `collect_values` reads the values of these apart, and they are appended again.
    for summary in summaries:
        yield from (line for line in strip_appendix(summary.text).splitlines() if line.strip())


def _render_gap_line(count: int) -> str:
    return f"[{count} lines left out]"


def _count_fitting(sizes: Sequence[int], room_tokens: int) -> int:
    """Counts the sizes, from the first on, that fit into `room_tokens` together."""
    fitting = 0
    for size in sizes:
        room_tokens -= size
        if room_tokens < 0:
            break
        fitting += 1
    return fitting


def render_message_lines(messages: Sequence[Item]) -> Iterator[str]:
    """Yields the lines of consecutive messages: `user: …`, `assistant: …`, and one line for each tool call with its
    result."""
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        # A result whose call is not among the messages. Results of calls are read with their call below.
        if message.role in TOOL_RESULT_ROLES:
            text = truncate_to_one_line(message.transcript_text, MAX_LINE_TEXT_CHARS)
            yield f"tool: {render_result_excerpt(text)}"
            continue
        if (line := render_text_line(message)) is not None:
            yield line
        results = []
        while message.calls_tools and index < len(messages) and messages[index].role in TOOL_RESULT_ROLES:
            results.append(messages[index])
            index += 1
        yield from render_tool_call_lines(message, results)


MIN_REPLACEMENT_TOKENS: Final = 128
"""A mechanical replacement may have this many tokens even if the summary was shorter: lines take more room than
prose."""


def build_mechanical_replacement(
    summary: Summary, messages: Sequence[LogMessage], *, new_id: str, created_at: datetime, counter: ViewTokenCounter
) -> Summary | None:
    """Builds a mechanical summary of the same range and about the same length as `summary`, which was deleted.

    Precompaction replaces it later by a model's summary.

    Args:
        summary: the deleted summary.
        messages: the messages of its range, as the log has them now.
        new_id: the id of the new summary.
        created_at: the time of the new summary.
        counter: counts in the encoding of the conversation.

    Returns:
        The new summary; None if the messages give no lines.
    """
    limit_tokens = max(MIN_REPLACEMENT_TOKENS, counter.count(summary.text))
    text = build_mechanical_summary(messages, (), limit_tokens, counter.count)
    if not text:
        return None
    return replace(
        summary,
        id=new_id,
        text=text,
        tokens=count_summary_section_tokens(text, through_turn=summary.through_turn, counter=counter),
        tokens_total=messages[-1].tokens_total,  # from the log: a redaction has changed the sizes
        kind="mechanical",
        model="",
        prompt_version=MECHANICAL_VERSION,
        created_at=created_at,
        folds=(),
        duration_ms=0,
        usage=None,
        revision=1,
    )
