"""A compaction that is asked for may say where it ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.log_rounds import split_into_rounds
from app.context.plan.outline import Plan
from app.context.plan.planner import plan_view
from app.context.plan.policy import make_policy
from tests.context.planned_conversation import COUNT, World, assistant, calls, result, user, words

Body = dict[str, object]


def planned_through(world: World, through_seq: int) -> Plan:
    return plan_view(
        world.outline(),
        world.budget,
        world.policy,
        counter=COUNT,
        summarizer_input_tokens=int(world.window * world.summarizer_share),
        summarize="now",
        through_seq=through_seq,
    )


@st.composite
def talks(draw: st.DrawFn) -> list[Body]:
    """Turns, some with tool rounds, all of them answered."""
    bodies: list[Body] = []
    for turn in range(draw(st.integers(3, 14))):
        bodies.append(user(words(draw(st.integers(20, 400)), f"q{turn}")))
        for number in range(draw(st.integers(0, 2))):
            bodies += [calls("look_up"), result(words(draw(st.integers(5, 300)), f"r{turn}n{number}"))]
        bodies.append(assistant(words(draw(st.integers(20, 400)), f"a{turn}")))
    return bodies


@given(bodies=talks(), data=st.data(), covered=st.booleans())
def test_what_is_summarized_ends_where_it_was_asked_to(bodies: list[Body], data: st.DataObject, covered: bool) -> None:
    world = World(bodies=bodies, window=8_192)
    world.new_from_seq = len(bodies)
    if covered:
        world.settle("now")
    start = world.stored[-1].to_seq if world.stored else 0
    ends = [one.to_seq for one in split_into_rounds(world.log)]
    through_seq = data.draw(st.sampled_from(ends))
    decided = planned_through(world, through_seq)
    ranges = [one for one in decided.to_summarize if not one.folds]
    if through_seq <= start:
        assert ranges == []
        return
    assert (ranges[0].from_seq, ranges[-1].to_seq) == (start, through_seq)
    assert all(left.to_seq == right.from_seq for left, right in pairwise(ranges))
    world.compact(decided)
    assert planned_through(world, through_seq).to_summarize == ()


@pytest.mark.parametrize("settings", [{"kind": "checkpoint"}, {"strategy": "recursive"}])
def test_summaries_that_replace_each_other_end_there_too(settings: dict[str, str]) -> None:
    bodies = [body for n in range(12) for body in (user(words(600, f"q{n}")), assistant(words(600, f"a{n}")))]
    world = World(bodies=bodies, window=32_000, policy=make_policy(**settings))
    world.new_from_seq = len(bodies)
    for through_seq in (8, 20):
        (wanted,) = planned_through(world, through_seq).to_summarize
        assert (wanted.from_seq, wanted.to_seq) == (0, through_seq)
        world.compact(planned_through(world, through_seq))
    assert planned_through(world, 8).to_summarize == ()
