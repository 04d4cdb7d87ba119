"""The first task stays in view while masking tool results is enough, and a result that is to be read gets the room."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.outline import Plan, SummarizeMode
from app.context.plan.policy import ContextPolicy, make_policy
from app.dialects.body.message import decode_body
from app.dialects.body.message_edits import OPERATIONS, apply_operations
from tests.context.plan_checks import NOTICE_TOKENS, check_nothing_is_orphaned, check_plan
from tests.context.planned_conversation import COUNT, Body, World, assistant, calls, result, user, words
from tests.shared_data import needs_recordings, recorded

KINDS = ("fade", "prune", "checkpoint", "window")
TASK = user("Find the cheapest flight, and do not book it before I say so. " + words(60, "rule"))


def policy_of(kind: str) -> ContextPolicy:
    return make_policy(name=kind, kind=kind)


def can_be_masked_to_fit(world: World) -> bool:
    """Whether everything fits when each tool result that was read keeps 300 characters, beside all that is new, or
    beside half of the limit if what is new does not fit."""
    masked = ("contents", 300)
    new_from_seq, limit = world.new_from_seq or 0, world.budget.limit
    read_tokens = sum(
        min(entry.tokens, COUNT.count_message(apply_operations(OPERATIONS, decode_body(entry.message), [masked])))
        if entry.message.role == "tool"
        else entry.tokens
        for entry in world.log[:new_from_seq]
    )
    new_tokens = sum(entry.tokens for entry in world.log[new_from_seq:])
    is_new_too_long = new_tokens > limit - world.instructions_tokens - NOTICE_TOKENS
    return world.instructions_tokens + read_tokens + (limit // 2 if is_new_too_long else new_tokens) <= limit


def shows_the_task(world: World, decided: Plan) -> bool:
    return world.log[0].message.raw in world.render(decided)


def run(world: World, said: Sequence[Sequence[Body]], *, prepared: bool) -> int:
    """Each request of an agent's run, planned and sent. In how many of them results had to be cut for the task.

    Once something new needs the task's room, the task stays out of later views.
    """
    tight, has_room = 0, True
    for bodies in said:
        world.say(*bodies)
        decided = world.settle()
        check_plan(world, decided)
        check_nothing_is_orphaned(world, decided)
        has_room = has_room and can_be_masked_to_fit(world)
        if has_room:
            tight += decided.prompt_tokens < world.instructions_tokens + world.log[-1].tokens_total
            assert shows_the_task(world, decided), decided.notes
        if prepared and world.policy.may_summarize:
            world.compact(world.plan("ahead"))
    return tight


def tool_rounds(sizes: Sequence[int], said: str | None = None) -> list[list[Body]]:
    """What comes back from one call after the other; the agent says a word in between, or nothing."""
    return [[calls("look_up", content=said), result(words(size))] for size in sizes]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("word", [None, "Let me see."])
@pytest.mark.parametrize("output", [0, 3_000])
def test_masking_every_result_comes_before_the_task_is_dropped(kind: str, word: str | None, output: int) -> None:
    world = World(window=8_192, policy=policy_of(kind), output=output)
    rounds = tool_rounds([120 + 400 * (at % 4) for at in range(24)], word)
    questions = [[user(words(40))] if at % 6 == 5 else [] for at in range(24)]
    said = [[TASK, *rounds[0]], *(a + b for a, b in zip(rounds[1:], questions, strict=False))]
    assert run(world, said, prepared=True) > 3


@given(
    sizes=st.lists(st.sampled_from([5, 40, 150, 400, 900, 2_500, 9_000]), min_size=3, max_size=25),
    kind=st.sampled_from(KINDS),
    window=st.sampled_from([2_000, 4_096, 8_192]),
    output=st.sampled_from([0, 0, 1_000]),
    speaks=st.sampled_from([1, 3, 100]),
    prepared=st.booleans(),
)
def test_the_task_is_in_every_view_in_which_everything_else_can_be_masked_to_fit(
    sizes: list[int], kind: str, window: int, output: int, speaks: int, prepared: bool
) -> None:
    world = World(window=window, policy=policy_of(kind), output=output)
    said: list[list[Body]] = [[TASK]]
    for at, one in enumerate(tool_rounds(sizes)):
        said.append(one if at % speaks else [*one, assistant("I have read it."), user("And now?")])
    run(world, said, prepared=prepared)


def test_a_checkpoint_that_was_made_ahead_waits_while_masking_a_read_result_is_enough() -> None:
    world = World(window=4_096, policy=policy_of("checkpoint"), bodies=[TASK])
    for number in range(16):
        world.say(assistant(words(100, f"a{number}")), user(words(100, f"q{number}")))
        world.settle()
    world.say(assistant("I see."))
    world.compact(world.plan("ahead"))
    assert world.stored, "a checkpoint was made ahead"
    assert run(world, [[user("Look it up")], *tool_rounds([430, 300])], prepared=True) > 0


def test_no_checkpoint_is_made_ahead_of_a_log_that_masking_makes_fit_and_its_plan_can_be_sent() -> None:
    read = [calls("look_up"), result(words(9_000)), assistant("I have read it.")]
    world = World(window=8_192, policy=policy_of("checkpoint"), bodies=[TASK, *read])
    decided = world.plan("ahead")
    check_plan(world, decided)
    assert (decided.to_summarize, decided.fits) == ((), True)


@pytest.mark.parametrize("kind", ["additive", *KINDS])
@pytest.mark.parametrize("tokens", [8_100, 12_000, 16_500, 40_000])
@pytest.mark.parametrize("summarize", ["auto", "never"])
def test_a_single_result_that_is_too_long_gets_what_there_is_room_for(
    kind: str, tokens: int, summarize: SummarizeMode
) -> None:
    text = "\n".join(f"line {number} says {'much ' * (number % 7)}" for number in range(tokens // 6))
    world = World(window=8_192, policy=policy_of(kind), bodies=[user("Read it"), calls("read"), result(text)])
    decided = world.plan(summarize)
    check_plan(world, decided)
    room = world.budget.limit - (decided.prompt_tokens - decided.edits[2].tokens)
    assert room > 7_000
    assert decided.edits[2].tokens >= 0.9 * room


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_results_that_are_too_long_the_shorter_stays_whole(kind: str) -> None:
    given_back = [result(words(2_000), "call_0"), result(words(30_000), "call_1")]
    world = World(window=8_192, policy=policy_of(kind), bodies=[user("Read"), calls("read", "read"), *given_back])
    decided = world.plan("never")
    assert [*decided.edits] == [3]
    assert decided.prompt_tokens >= 0.9 * world.budget.limit


@needs_recordings
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("room", [1_500, 4_000])
def test_the_task_of_recorded_runs_stays_while_everything_else_can_be_masked_to_fit(kind: str, room: int) -> None:
    tight = 0
    for line in recorded("agent_trajectories_dev.jsonl")[::3]:
        bodies = [body for body in line["messages"] if body["role"] != "system"]
        ends = [at for at, body in enumerate(bodies) if body["role"] == "assistant" and at]
        said = [bodies[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        tight += run(World(window=room, policy=policy_of(kind)), said, prepared=kind == "checkpoint")
    assert tight > 5
