from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.log_rounds import (
    MIN_STRETCH_SHARE,
    LogTail,
    Round,
    group_rounds_into_stretches,
    split_into_rounds,
)
from tests.context.planned_conversation import Body, assistant, calls, chunk_of, log_of, result, user

SYSTEM: Body = {"role": "system", "content": "By the way"}


@pytest.mark.parametrize(
    ("bodies", "spans"),
    [
        ([], []),
        ([user("a"), assistant("b")], [(0, 1), (1, 2)]),
        ([user("a"), calls("f"), result("r"), assistant("b")], [(0, 1), (1, 3), (3, 4)]),
        ([calls("f", "g"), result("r"), result("s", "call_1")], [(0, 3)]),
        ([calls("f"), result("r"), calls("f"), result("r")], [(0, 2), (2, 4)]),
        ([calls("f"), result("r", "another id")], [(0, 2)]),
        ([assistant(None, function_call={"name": "f"}), {"role": "function", "content": "r"}], [(0, 2)]),
        ([calls("f", "g"), result("only one came"), user("a")], [(0, 2), (2, 3)]),
        ([user("a"), SYSTEM, user("b")], [(0, 1), (1, 2), (2, 3)]),
        ([result("lost"), user("a")], [(0, 1), (1, 2)]),
    ],
)
def test_a_round_is_a_message_or_a_call_with_the_results_right_after_it(
    bodies: list[Body], spans: list[tuple[int, int]]
) -> None:
    log = log_of(bodies)
    rounds = split_into_rounds(log)
    assert [(entry.from_seq, entry.to_seq) for entry in rounds] == spans
    assert [entry.tokens for entry in rounds] == [
        sum(message.tokens for message in log[entry.from_seq : entry.to_seq]) for entry in rounds
    ]


def test_turns_begin_at_user_messages_and_at_the_start_of_the_log() -> None:
    rounds = split_into_rounds(log_of([assistant("Welcome"), user("a"), assistant("b"), user("c")]))
    assert [entry.opens_turn for entry in rounds] == [True, True, False, True]


def test_a_boundary_inside_a_turn_remembers_the_user_message_of_that_turn() -> None:
    log = log_of([user("a"), assistant("b"), user("c"), calls("f"), result("r"), calls("g"), result("s")])
    tail = LogTail(log, after=None)
    inside = tail.build_boundary(5)
    assert (inside.anchor_seq, inside.anchor_tokens, inside.through_turn) == (2, log[2].tokens, 2)
    assert inside.tokens_total == log[4].tokens_total
    between = tail.build_boundary(2)
    assert (between.anchor_seq, between.anchor_tokens, between.through_turn) == (None, 0, 1)


def test_a_tail_that_begins_inside_a_turn_hands_its_anchor_on() -> None:
    log = log_of([user("a"), *[body for _ in range(3) for body in (calls("f"), result("r"))], user("b")])
    before = chunk_of(3, tokens_total=log[2].tokens_total, anchor_seq=0, anchor_tokens=log[0].tokens, through_turn=1)
    tail = LogTail(log[3:], after=before)
    assert tail.build_boundary(5).anchor_seq == 0
    assert tail.build_boundary(5).through_turn == 1
    assert tail.build_boundary(7).anchor_seq is None
    assert tail.count_tokens_from(5) == sum(message.tokens for message in log[5:])


def test_the_end_of_an_answered_log_is_the_end_of_a_turn() -> None:
    answered = LogTail(log_of([user("a"), assistant("b")]), after=None)
    waiting = LogTail(log_of([user("a"), calls("f"), result("r")]), after=None)
    assert answered.build_boundary(2).anchor_seq is None
    assert waiting.build_boundary(3).anchor_seq == 0


def rounds_from(sizes: list[tuple[int, bool]]) -> list[Round]:
    return [Round(seq, seq + 1, tokens, opens) for seq, (tokens, opens) in enumerate(sizes)]


@given(sizes=st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=60), limit=st.integers(0, 1_000))
def test_a_split_is_complete_in_order_and_within_the_limit(sizes: list[tuple[int, bool]], limit: int) -> None:
    rounds = rounds_from(sizes)
    stretches = group_rounds_into_stretches(rounds, limit)
    scraps = 2 * MIN_STRETCH_SHARE * max(1, limit)
    assert [entry for stretch in stretches for entry in stretch] == rounds
    for stretch in stretches:
        assert stretch
        largest = max(entry.tokens for entry in stretch)
        assert sum(entry.tokens for entry in stretch) <= max(limit, largest) + scraps


def test_what_is_too_small_for_a_summary_joins_the_stretch_beside_it() -> None:
    before = rounds_from([(40, True), (5_000, False), (500, True)])
    after = rounds_from([(5_000, True), (40, False)])
    assert [len(stretch) for stretch in group_rounds_into_stretches(before, 1_000)] == [2, 1]
    assert [len(stretch) for stretch in group_rounds_into_stretches(after, 1_000)] == [2]


def test_a_split_prefers_the_beginning_of_a_turn_and_equal_parts() -> None:
    rounds = rounds_from([(100, seq % 3 == 0) for seq in range(12)])
    stretches = group_rounds_into_stretches(rounds, 800)
    assert [len(stretch) for stretch in stretches] == [6, 6]
    assert stretches[1][0].opens_turn


def test_a_round_above_the_limit_is_a_stretch_of_its_own() -> None:
    rounds = rounds_from([(100, True), (5_000, False), (100, True)])
    assert [len(stretch) for stretch in group_rounds_into_stretches(rounds, 1_000)] == [1, 1, 1]
