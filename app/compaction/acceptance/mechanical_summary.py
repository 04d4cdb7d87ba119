"""A summary without a model: a line for each text and each tool call, thinned to a limit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.compaction.acceptance.values_appendix import (
    collect_values,
    find_missing_values,
    render_appendix,
    strip_appendix,
)
from app.compaction.summarizer.transcript import CountTokens, render_message_text
from app.context.stages.tool_round_text import (
    TOOL_RESULT_ROLES,
    render_call_lines,
    render_result_excerpt,
    truncate_to_one_line,
)
from app.context.view.view_messages import ViewTokenCounter, count_section_tokens
from app.conversation.messages import LogMessage, Message, Summary

MECHANICAL_VERSION = "mechanical-2"

MAX_TEXT_CHARS = 200
HEAD_SHARE = 0.25
"""Of the lines that are kept, those from the beginning, where the task was set."""

APPENDIX_SHARE = 0.4
"""Of a summary's limit, what is kept for values that its lines leave out."""


def build_mechanical_summary(
    messages: Sequence[LogMessage], earlier_summaries: Sequence[Summary], limit_tokens: int, count_tokens: CountTokens
) -> str:
    """Lines of earlier summaries and of messages, then the values that they leave out, all within a limit.

    Args:
        earlier_summaries: summaries that this one stands for besides the messages.
    """
    lines_limit = int(limit_tokens * (1 - APPENDIX_SHARE))
    lines = [*_split_summary_lines(earlier_summaries), *render_lines([log_message.message for log_message in messages])]
    text = thin_lines(lines, lines_limit, count_tokens)
    missing_values = find_missing_values(collect_values(messages, earlier_summaries), text)
    appendix_lines = render_appendix(missing_values, limit_tokens - count_tokens(text) - 2, count_tokens)
    if not appendix_lines:
        return thin_lines(lines, limit_tokens, count_tokens)
    return f"{text}\n{appendix_lines}"


def thin_lines(lines: Sequence[str], limit_tokens: int, count_tokens: CountTokens) -> str:
    """Lines within `limit_tokens`: the first and the newest stay, a line says how many between them were left out."""
    sizes = [count_tokens(line) + 1 for line in lines]
    if sum(sizes) <= limit_tokens:
        return "\n".join(lines)
    room_tokens = limit_tokens - count_tokens(_render_gap_line(len(lines))) - 1
    head_lines = _count_fitting(sizes, int(room_tokens * HEAD_SHARE))
    tail_start = len(lines) - _count_fitting(sizes[head_lines:][::-1], room_tokens - sum(sizes[:head_lines]))
    return "\n".join([*lines[:head_lines], _render_gap_line(tail_start - head_lines), *lines[tail_start:]])


def _split_summary_lines(summaries: Sequence[Summary]) -> Iterator[str]:
    for summary in summaries:
        yield from (line for line in strip_appendix(summary.text).splitlines() if line.strip())


def _render_gap_line(count: int) -> str:
    return f"[{count} lines left out]"


def _count_fitting(sizes: Sequence[int], room_tokens: int) -> int:
    """How many sizes from the first on fit into `room_tokens`."""
    fitting = 0
    for size in sizes:
        room_tokens -= size
        if room_tokens < 0:
            break
        fitting += 1
    return fitting


def render_lines(messages: Sequence[Message]) -> Iterator[str]:
    """A stretch of the log in lines: `user: …`, `assistant: …`, and one for each call with its result."""
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        text = truncate_to_one_line(render_message_text(message), MAX_TEXT_CHARS)
        if message.role in TOOL_RESULT_ROLES:
            yield f"tool: {render_result_excerpt(text)}"
            continue
        if text:
            yield f"{message.role or 'user'}: {text}"
        results = []
        while message.tool_calls and index < len(messages) and messages[index].role in TOOL_RESULT_ROLES:
            results.append(messages[index])
            index += 1
        yield from render_call_lines(message, results)


MIN_LIMIT_TOKENS: Final = 128
"""Some summaries are shorter than what can be told of their range line by line."""


def build_mechanical_replacement(
    summary: Summary, messages: Sequence[LogMessage], *, new_id: str, created_at: datetime, counter: ViewTokenCounter
) -> Summary | None:
    """A mechanical summary over the range of `summary`, about as long; a model is asked for a better one later.

    Args:
        messages: the range as the log has it now.

    Returns:
        The summary under an id of its own; None where nothing can be told.
    """
    limit_tokens = max(MIN_LIMIT_TOKENS, counter.count(summary.text))
    text = build_mechanical_summary(messages, (), limit_tokens, counter.count)
    if not text:
        return None
    return replace(
        summary,
        id=new_id,
        text=text,
        tokens=count_section_tokens(text, through_turn=summary.through_turn, counter=counter),
        tokens_total=messages[-1].tokens_total,
        kind="mechanical",
        model="",
        prompt_version=MECHANICAL_VERSION,
        created_at=created_at,
        folds=(),
        duration_ms=0,
        usage=None,
        revision=1,
    )
