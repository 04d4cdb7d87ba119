"""Which summaries an answer tells the cost of: each once, in the conversation for which it was written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace

from app.context.plan.outline import Outline
from app.conversation.conversation_types import Conversation, Summary
from app.pipeline.turn.last_view_and_calibration import BILLED_UNTIL, build_billed_state, list_unbilled_summaries
from tests.context.planned_conversation import chunk_of

CONVERSATION: Final = Conversation("conv", "conv", "tenant", -1, b"", b"", 0, answered=False, encoding="o200k_base")


def build_summary(second: int, **fields: Any) -> Summary:
    created_at = datetime(2026, 1, 1, second=second, tzinfo=UTC)
    return chunk_of(second + 1, from_seq=second, id=f"sum_{second}", created_at=created_at, **fields)


def build_outline(*summaries: Summary, folds: tuple[Summary, ...] = ()) -> Outline:
    return Outline(instructions_tokens=0, log_tokens=0, next_seq=0, summaries=summaries, folds=folds)


def list_ids(conversation: Conversation, outline: Outline) -> list[str]:
    return [one.id for one in list_unbilled_summaries(conversation, outline)]


def test_each_summary_and_fold_is_told_once() -> None:
    first, second, fold = build_summary(1), build_summary(2), build_summary(3, folds=("sum_1", "sum_2"))
    assert list_ids(CONVERSATION, build_outline(first)) == ["sum_1"]
    told = replace(CONVERSATION, state=build_billed_state(build_outline(first)), chunk_count=1)
    assert list_ids(told, build_outline(first)) == []
    both = build_outline(first, second, folds=(fold,))
    assert list_ids(told, both) == ["sum_2", "sum_3"]
    assert build_billed_state(both) == {BILLED_UNTIL: fold.created_at.timestamp()}


def test_a_summary_of_another_conversation_is_not_told() -> None:
    assert list_ids(CONVERSATION, build_outline(build_summary(1, conversation_id="conv_x"))) == []


def test_a_conversation_of_an_earlier_version_does_not_tell_its_summaries_again() -> None:
    assert list_ids(replace(CONVERSATION, chunk_count=1), build_outline(build_summary(1))) == []
