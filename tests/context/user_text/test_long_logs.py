"""User text of a log that is read in several turns."""

from __future__ import annotations

from app.context.plan.outline import Boundary, LastView, Plan, make_last_view
from app.context.user_text.user_text import NO_USER_TEXT, UserText, find_user_text

PLAN = Plan(status="full", summaries=(), boundary=Boundary(to_seq=40_000), prompt_tokens=0, fits=True)


def test_the_next_turn_reads_on_where_this_one_stopped() -> None:
    read = (NO_USER_TEXT, UserText(before_seq=12_000), UserText(before_seq=36_000))
    kept = make_last_view(PLAN, LastView(), user_texts=read).user_text
    assert kept.before_seq == 36_000
    assert find_user_text((kept,), 40_000) is NO_USER_TEXT  # not shown before all is read


def test_what_reaches_the_boundary_first_is_kept() -> None:
    read = (UserText(before_seq=40_000), UserText(before_seq=48_000))
    assert make_last_view(PLAN, LastView(), user_texts=read).user_text.before_seq == 40_000
