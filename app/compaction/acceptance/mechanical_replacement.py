"""A summary without a model in the place of one that may not be shown any more. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from app.compaction.acceptance.mechanical_summary import MECHANICAL_VERSION, mechanical_summary
from app.context.view.view_messages import Counter, section_tokens
from app.conversation.messages import Chunk, LogMessage

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
