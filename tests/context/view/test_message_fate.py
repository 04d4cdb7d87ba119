"""What becomes of each message under a plan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.outline import Plan
from app.context.view.message_fate import SHOWN_KINDS, compute_message_fates
from tests.context.plan.test_view_properties import ROOMY_WINDOWS, WINDOWS, conversations, flat
from tests.context.planned_conversation import Body, World, assistant, calls, chunk_of, result, user, words


def test_a_short_log_is_shown_verbatim() -> None:
    world = World(bodies=[user("hi"), assistant("hello")])
    assert [row.kind for row in compute_message_fates(world.log, world.plan())] == ["verbatim", "verbatim"]


def test_what_a_summary_stands_for_names_the_summary() -> None:
    turns = [body for _ in range(30) for body in (user(words(200)), assistant(words(200)))]
    world = World(bodies=turns)
    decided = world.settle()
    rows = compute_message_fates(world.log, decided)
    summarized = [row for row in rows if row.kind == "summarized"]
    assert {row.summary_id for row in summarized} == {chunk.id for chunk in decided.summaries}
    assert [row.seq for row in rows if row.kind in SHOWN_KINDS] == list(range(decided.boundary_seq, len(world.log)))


def test_the_question_of_a_turn_that_is_cut_inside_is_an_anchor() -> None:
    loops = [body for _ in range(30) for body in (calls("read"), result(words(400)))]
    world = World(bodies=[user("Find the fault."), *loops])
    decided = world.settle()
    rows = compute_message_fates(world.log, decided)
    assert rows[0].kind == "anchor"
    assert rows[1].kind == "summarized"


def test_the_anchor_is_told_as_such_though_a_summary_covers_it() -> None:
    world = World(bodies=[user("q"), calls("read"), result("r")])
    world.stored.append(chunk_of(1, anchor_seq=0))
    assert [row.tokens for row in compute_message_fates(world.log, world.plan())] == [
        entry.tokens for entry in world.log
    ]


@given(conversation=conversations(), repeated=st.integers(1, 6), window=WINDOWS)
def test_the_rows_of_a_trimmed_view_add_up_to_its_plan(
    conversation: list[list[Body]], repeated: int, window: int
) -> None:
    world = World(window=window, bodies=flat(conversation) * repeated)
    check_rows(world, world.plan("never"))


@given(conversation=conversations(8), repeated=st.integers(1, 4), window=ROOMY_WINDOWS)
def test_the_rows_of_a_summarized_view_add_up_to_its_plan(
    conversation: list[list[Body]], repeated: int, window: int
) -> None:
    world = World(window=window, bodies=flat(conversation) * repeated)
    check_rows(world, world.settle())


def check_rows(world: World, decided: Plan) -> None:
    rows = compute_message_fates(world.log, decided)
    assert [row.seq for row in rows] == list(range(len(world.log)))
    assert sum(row.kind == "dropped" for row in rows) == decided.dropped_message_count
    assert {row.summary_id for row in rows} - {None} <= {chunk.id for chunk in decided.summaries}
