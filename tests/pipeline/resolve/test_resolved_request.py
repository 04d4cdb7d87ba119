"""What of a conversation's state and marks goes along into a branch: nothing that was said or made behind its place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.context.plan.outline import Boundary, LastView, Quotation
from app.context.view.message_edits import Edit
from app.conversation.conversation_types import SHARED_THROUGH
from app.pipeline.turn.last_view_and_calibration import CALIBRATIONS, LAST_VIEWS
from app.pipeline.turn.resolved_request import (
    OPEN_TOOL_CALLS,
    PINS,
    REDACTED,
    UNANSWERED_MESSAGES,
    select_marks_for_branch,
    select_state_for_branch,
)

LAST_SEQ = 5
"""Of the log that the branch shares."""


def boundary(to_seq: int) -> Boundary:
    return msgspec.structs.replace(LastView().boundary, to_seq=to_seq)


def shared(**views: LastView) -> dict[str, Any]:
    kept: dict[str, Any] = select_state_for_branch({LAST_VIEWS: msgspec.to_builtins(views)}, LAST_SEQ)[LAST_VIEWS]
    return {name: msgspec.convert(view, LastView) for name, view in kept.items()}


def test_a_view_that_began_behind_a_branch_is_not_its() -> None:
    views = {f"v{to_seq}": LastView(boundary=boundary(to_seq), level=0.5, tokens=9) for to_seq in (0, 5, 6, 7, 20)}
    assert list(shared(**views)) == ["v0", "v5", "v6"]
    assert shared(**views) == {name: views[name] for name in ("v0", "v5", "v6")}


def test_edits_and_quotations_of_messages_behind_a_branch_are_not_its() -> None:
    edits = tuple(Edit(seq, "truncated", (("contents", 300),), 100, 200) for seq in (4, 5, 6, 9))
    quotations = tuple(Quotation(seq, (), 3) for seq in (4, 5, 6, 9))
    (view,) = shared(v=LastView(boundary=boundary(2), edits=edits, quotations=quotations)).values()
    assert [edit.seq for edit in view.edits] == [4, 5]
    assert [quotation.before_seq for quotation in view.quotations] == [4, 5]


def test_what_waits_for_an_answer_behind_a_branch_is_not_its() -> None:
    kept = {CALIBRATIONS: {"m": [1.5, 2]}}
    assert select_state_for_branch({**kept, UNANSWERED_MESSAGES: 3, OPEN_TOOL_CALLS: True}, LAST_SEQ) == kept


def test_pins_and_erasures_behind_a_branch_are_not_its() -> None:
    pins = [{"from_seq": start, "to_seq": start + 2, "tokens": 5} for start in (0, 4, 5, 8)]
    marks = select_marks_for_branch({PINS: pins, REDACTED: [0, 5, 6, 9], "other": 1}, LAST_SEQ)
    assert marks == {PINS: pins[:2], REDACTED: [0, 5], "other": 1}


@pytest.mark.parametrize(("shared_through", "kept"), [(3, 3), (9, LAST_SEQ)])
def test_a_branch_merely_shares_what_its_parent_merely_shares(shared_through: int, kept: int) -> None:
    assert select_marks_for_branch({SHARED_THROUGH: shared_through}, LAST_SEQ) == {SHARED_THROUGH: kept}
