"""A summary without a model: a line for each text and each tool call, thinned to a limit. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.compaction.acceptance.kept_facts import appendix, missing, values_of, without_appendix
from app.compaction.summarizer.transcript import Count, spoken
from app.context.stages.round_lines import RESULT_ROLES, call_lines, outcome, short
from app.context.view.view_messages import Counter, section_tokens
from app.conversation.messages import Chunk, LogMessage, Message

MECHANICAL_VERSION = "mechanical-2"

TEXT_CHARS = 200
HEAD_SHARE = 0.25
"""Of the lines that are kept, those from the beginning, where the task was set."""

APPENDIX_SHARE = 0.4
"""Of a summary's limit, what is kept for values that its lines leave out."""


def mechanical_summary(
    messages: Sequence[LogMessage], earlier: Sequence[Chunk], limit_tokens: int, count: Count
) -> str:
    """Lines of earlier summaries and of messages, then the values that they leave out, all within a limit.

    Args:
        earlier: summaries that this one stands for besides the messages.
    """
    lines_limit = int(limit_tokens * (1 - APPENDIX_SHARE))
    lines = [*_lines_of_summaries(earlier), *lines_of([logged.message for logged in messages])]
    text = thinned(lines, lines_limit, count)
    lost = missing(values_of(messages, earlier), text)
    values = appendix(lost, limit_tokens - count(text) - 2, count)
    if not values:
        return thinned(lines, limit_tokens, count)
    return f"{text}\n{values}"


def thinned(lines: Sequence[str], limit_tokens: int, count: Count) -> str:
    """Lines within `limit_tokens`: the first and the newest stay, a line says how many between them were left out."""
    sizes = [count(line) + 1 for line in lines]
    if sum(sizes) <= limit_tokens:
        return "\n".join(lines)
    room = limit_tokens - count(_left_out(len(lines))) - 1
    head = _taken(sizes, int(room * HEAD_SHARE))
    tail = len(lines) - _taken(sizes[head:][::-1], room - sum(sizes[:head]))
    return "\n".join([*lines[:head], _left_out(tail - head), *lines[tail:]])


def _lines_of_summaries(chunks: Sequence[Chunk]) -> Iterator[str]:
    for chunk in chunks:
        yield from (line for line in without_appendix(chunk.text).splitlines() if line.strip())


def _left_out(lines: int) -> str:
    return f"[{lines} lines left out]"


def _taken(sizes: Sequence[int], room: int) -> int:
    """How many sizes from the first on fit into `room`."""
    taken = 0
    for size in sizes:
        room -= size
        if room < 0:
            break
        taken += 1
    return taken


def lines_of(messages: Sequence[Message]) -> Iterator[str]:
    """A stretch of the log in lines: `user: …`, `assistant: …`, and one for each call with its result."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        text = short(spoken(message), TEXT_CHARS)
        if message.role in RESULT_ROLES:
            yield f"tool: {outcome(text)}"
            continue
        if text:
            yield f"{message.role or 'user'}: {text}"
        results = []
        while message.tool_calls and at < len(messages) and messages[at].role in RESULT_ROLES:
            results.append(messages[at])
            at += 1
        yield from call_lines(message, results)


LEAST_TOKENS: Final = 128
"""Some summaries are shorter than what can be told of their range line by line."""


def stand_in(
    chunk: Chunk, messages: Sequence[LogMessage], *, new_id: str, created_at: datetime, count: Counter
) -> Chunk | None:
    """A mechanical summary over the range of `chunk`, about as long; a model is asked for a better one later.

    Args:
        messages: the range as the log has it now.

    Returns:
        The summary under an id of its own; None where nothing can be told.
    """
    limit_tokens = max(LEAST_TOKENS, count.count(chunk.text))
    text = mechanical_summary(messages, (), limit_tokens, count.count)
    if not text:
        return None
    return replace(
        chunk,
        id=new_id,
        text=text,
        tokens=section_tokens(text, through_turn=chunk.through_turn, count=count),
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
