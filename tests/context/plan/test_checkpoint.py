"""Policy `checkpoint`: when a summary of everything is written, over what, and what the view is then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.context.plan.budget import SUMMARY_INSTRUCTION_TOKENS, compute_summary_token_limit
from app.context.plan.outline import make_last_view
from app.context.plan.policy import CheckpointTrigger, ContextPolicy, SummarizerPolicy, VerbatimPolicy, make_policy
from tests.context.plan_checks import check_plan
from tests.context.planned_conversation import World, assistant, calls, result, user, words

CHECKPOINT = make_policy(name="checkpoint", kind="checkpoint")


def talk(turns: int, policy: ContextPolicy = CHECKPOINT, tokens: int = 400) -> World:
    """Turns of about so many tokens, and a question; eighteen of them fill the window."""
    half = tokens // 2 - 4
    bodies = [body for turn in range(turns) for body in (user(words(half, f"q{turn}")), assistant(words(half, "a")))]
    return World(window=8_192, policy=policy, bodies=[*bodies, user("And now?")])


def test_nothing_is_asked_for_while_everything_fits() -> None:
    decided = talk(15).plan(loaded=False)
    assert (decided.status, decided.to_summarize, decided.needs_tail) == ("full", (), None)


@pytest.mark.parametrize(("keep_turns", "kept"), [(None, 2), (0, 0), (1, 1), (3, 3)])
def test_a_checkpoint_covers_the_whole_log_up_to_the_turns_that_stay(keep_turns: int | None, kept: int) -> None:
    world = talk(30, replace(CHECKPOINT, verbatim=VerbatimPolicy(keep_turns=keep_turns)))
    [part] = world.plan().to_summarize
    assert (part.from_seq, part.to_seq, part.style) == (0, 60 - 2 * kept, "checkpoint")
    decided = world.settle()
    check_plan(world, decided)
    assert [(chunk.from_seq, chunk.to_seq) for chunk in decided.summaries] == [(0, part.to_seq)]
    assert world.replans == 1, "never again for the same content"


def test_a_second_checkpoint_reads_the_whole_log_again_and_stands_alone() -> None:
    world = talk(30)
    [first] = world.settle().summaries
    world.say(*talk(25).bodies)
    [part] = world.plan().to_summarize
    assert (part.from_seq, part.base) == (0, first.id)
    decided = world.settle()
    check_plan(world, decided)
    assert [chunk.from_seq for chunk in decided.summaries] == [0]


def test_the_first_checkpoint_of_a_log_that_was_sent_ends_where_its_call_can_go_on_from_the_last_prompt() -> None:
    """Otherwise the call would not fit behind that prompt, and transcripts would be read, which no cache holds."""
    world = talk(100, tokens=80)
    world.new_from_seq = 0
    [part] = world.plan().to_summarize
    assert len(world.log) - 1 - part.to_seq == 4, "a log that comes all at once is in no cache: two turns stay"
    world.new_from_seq = len(world.log) - 1
    [part] = world.plan().to_summarize
    room = world.window - compute_summary_token_limit(CHECKPOINT, world.window) - SUMMARY_INSTRUCTION_TOKENS
    read = world.instructions_tokens + world.log[part.to_seq - 1].tokens_total
    assert room - 100 < read <= room
    assert world.log[part.to_seq].message.role == "user"
    none_kept = replace(CHECKPOINT, verbatim=VerbatimPolicy(keep_turns=0))
    for policy in (none_kept, replace(CHECKPOINT, summarizer=SummarizerPolicy(model="other"))):
        world.policy = policy
        [part] = world.plan().to_summarize
        assert len(world.log) - 1 - part.to_seq == 2 * policy.checkpoint_keep_turns


@pytest.mark.parametrize(
    ("trigger", "turns", "asks"),
    [
        (CheckpointTrigger(), 18, False),
        (CheckpointTrigger(), 21, True),
        (CheckpointTrigger("token_ratio", 0.5), 9, False),
        (CheckpointTrigger("token_ratio", 0.5), 12, True),
        (CheckpointTrigger("remaining_tokens", 4_000), 9, False),
        (CheckpointTrigger("remaining_tokens", 4_000), 12, True),
        (CheckpointTrigger("messages_to_refine", 10), 21, False),
        (CheckpointTrigger("messages_to_refine", 10), 26, True),
    ],
)
def test_a_trigger_says_when(trigger: CheckpointTrigger, turns: int, asks: bool) -> None:
    decided = talk(turns, replace(CHECKPOINT, trigger=trigger)).plan()
    assert bool(decided.to_summarize) == asks


@pytest.mark.parametrize(
    "trigger", [CheckpointTrigger(), CheckpointTrigger("token_ratio", 0.5), CheckpointTrigger("messages_to_refine", 1)]
)
def test_the_same_content_is_never_asked_for_twice(trigger: CheckpointTrigger) -> None:
    world = World(window=8_192, policy=replace(CHECKPOINT, trigger=trigger))
    asked: list[int] = []
    for turn in range(80):
        world.say(user(words(150, f"q{turn}")))
        asked += [part.to_seq for part in world.plan().to_summarize]
        world.settle()
        world.say(assistant(words(150, f"a{turn}")))
    assert asked == sorted(set(asked))
    assert len(asked) >= 3


def test_masking_that_makes_room_enough_comes_before_a_checkpoint() -> None:
    turns = [body for _ in range(10) for body in (user("q"), calls("read"), result("x" * 4_500), assistant("Read."))]
    decided = World(window=8_192, policy=CHECKPOINT, bodies=[*turns, user("And now?")]).plan()
    assert decided.to_summarize == ()
    assert {edit.kind for edit in decided.edits.values()} == {"masked"}


@pytest.mark.parametrize("summarize", ["never", "auto"])
def test_without_a_checkpoint_the_view_is_trimmed_and_fits(summarize: str) -> None:
    world = talk(60)
    decided = world.plan("never" if summarize == "never" else "auto")
    check_plan(world, decided)
    assert (decided.status, decided.fits) == ("trimmed", True)


def test_on_demand_a_checkpoint_is_written_once() -> None:
    world = talk(6)
    decided = world.settle("now")
    assert world.replans == 1
    assert decided.status == "summarized"
    world.last = make_last_view(decided, world.last, was_requested=True)
    world.say(assistant("So."), user("More"))
    assert world.plan(loaded=False).summaries == decided.summaries, "and stays, though everything would fit"


def test_a_conversation_may_change_between_all_kinds_of_summaries_and_none() -> None:
    policies = (
        ContextPolicy(),
        CHECKPOINT,
        make_policy(name="prune", kind="prune"),
        make_policy(name="rolling", strategy="recursive"),
    )
    world = World(window=8_192)
    for turn in range(80):
        world.policy = policies[turn // 5 % 4]
        world.say(user(words(150, f"q{turn}")), calls("read"), result(words(200)), assistant("Read."), user("And?"))
        check_plan(world, world.settle())
        world.say(assistant(words(100)))
