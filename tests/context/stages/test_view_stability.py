"""Views change in steps: what was cut stays cut, and no line that is passed breaks a prompt cache for nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from app.context.plan.outline import Plan, SummarizeMode
from app.context.plan.policy import make_policy
from app.conversation.context_edits import ToolResultClearing
from app.dialects.body.message import decode_body
from app.dialects.body.message_edits import OPERATIONS, apply_operations
from tests.context.conversation_strategies import POLICIES, tool_call
from tests.context.plan_checks import check_plan
from tests.context.planned_conversation import COUNT, World, assistant, calls, result, user, words

WINDOW = 8_192
UNIT_TOKENS = 160


@dataclass
class Sent:
    """Every view of a conversation that was sent."""

    plans: list[Plan] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    """Which of them did not begin with the bytes of the one before."""
    freed_tokens: list[int] = field(default_factory=list)
    """How much shorter each of those is than the one before it and what was said since."""
    forced: list[bool] = field(default_factory=list)
    """Whether each of those would not have fit, and shows nothing that could be masked further."""


def talk(policy: str, turns: int, *, rounds: int, summarize: SummarizeMode = "auto") -> tuple[World, Sent]:
    """A conversation whose turns have so many tool rounds each, every request of it planned and sent."""
    world, sent = World(window=WINDOW, policy=POLICIES[policy]), Sent()
    before: list[bytes] = []
    for turn in range(turns):
        answer = [assistant(words(UNIT_TOKENS, f"a{turn}"))] if turn else []
        look = assistant(None, tool_calls=[tool_call(0, '{"q": 1}')])
        loops = [[look, result(words(2 * UNIT_TOKENS, f"r{turn}"))] for _ in range(rounds)]
        for said in ([*answer, user(words(UNIT_TOKENS, f"q{turn}"))], *loops):
            log_tokens = world.log[-1].tokens_total if world.log else 0
            world.say(*said)
            decided = world.settle(summarize)
            rendered = world.render(decided)
            if rendered[: len(before)] != before:
                grown = world.log[-1].tokens_total - log_tokens
                sent.breaks.append(len(sent.plans))
                due_tokens = sent.plans[-1].prompt_tokens + grown
                sent.freed_tokens.append(due_tokens - decided.prompt_tokens)
                sent.forced.append(due_tokens > world.budget.limit and is_masked_as_far_as_can_be(world, decided))
            sent.plans.append(decided)
            before = rendered
    return world, sent


def is_masked_as_far_as_can_be(world: World, decided: Plan) -> bool:
    """Whether no message was left out, and each result that was read keeps 300 characters at most."""
    for entry in world.log[:-2]:
        shown_tokens = decided.edits[entry.seq].tokens if entry.seq in decided.edits else entry.tokens
        masked_tokens = COUNT.count_message(
            apply_operations(OPERATIONS, decode_body(entry.message), [("contents", 300)])
        )
        if decided.boundary_seq or (entry.message.role == "tool" and shown_tokens > masked_tokens):
            return False
    return True


@pytest.mark.parametrize(
    "policy",
    ["additive", "additive, trimming only", "recursive", "checkpoint", "fade", "prune", "window", "no stage"],
)
@pytest.mark.parametrize("summarize", ["auto", "never"])
def test_over_two_hundred_turns_each_change_frees_a_fifth_of_the_window(policy: str, summarize: SummarizeMode) -> None:
    world, sent = talk(policy, 200, rounds=0, summarize=summarize)
    log_tokens = world.log[-1].tokens_total
    assert log_tokens > 7 * WINDOW
    assert 0 < len(sent.breaks) <= log_tokens / (0.2 * WINDOW)
    assert min(sent.freed_tokens) >= 0.18 * WINDOW


@pytest.mark.parametrize("policy", ["checkpoint", "fade", "fade, by position", "prune", "prune, early", "window"])
@pytest.mark.parametrize("summarize", ["auto", "never"])
def test_tool_results_are_shortened_only_where_that_frees_a_tenth_of_the_view(
    policy: str, summarize: SummarizeMode
) -> None:
    """Less is enough only where there is no more, and the first task would be dropped otherwise."""
    world, sent = talk(policy, 100, rounds=2, summarize=summarize)
    small = [at for at, freed in enumerate(sent.freed_tokens) if freed < 0.05 * WINDOW]
    assert all(sent.forced[at] for at in small)
    assert len(small) <= 3
    assert sum(sent.freed_tokens) >= 0.1 * WINDOW * len(sent.breaks)
    assert len(sent.breaks) <= world.log[-1].tokens_total / (0.1 * WINDOW)


@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune", "window"])
def test_what_a_cut_left_out_stays_out(policy: str) -> None:
    _, sent = talk(policy, 60, rounds=1, summarize="never")
    boundaries = [decided.boundary_seq for decided in sent.plans]
    assert boundaries[-1] > 0
    assert boundaries == sorted(boundaries)


def test_a_line_at_which_there_is_nothing_to_shorten_is_passed_once() -> None:
    world = World(window=2_000, policy=POLICIES["fade"], bodies=[user(words(1_640))])
    passed = world.settle()
    assert [note.code for note in passed.notes] == ["left_as_it_was"]
    assert (passed.level, passed.shows_log_unchanged) == (0.85, True)
    world.say(assistant("So."), user("And?"))
    assert world.plan(loaded=False).needs_tail is None, "the log is not read again for the same line"


def test_three_turns_of_a_sliding_window_do_not_move_with_each_turn() -> None:
    _, sent = talk("window of turns", 40, rounds=0)
    assert len(sent.breaks) == 19


@pytest.mark.parametrize("pinned_tokens", [200, 400, 500])
def test_a_window_of_tokens_moves_in_steps_beside_a_pin(pinned_tokens: int) -> None:
    world = World(window=WINDOW, policy=POLICIES["window of tokens"], bodies=[user(words(pinned_tokens))])
    world.pin(0)
    breaks, before = 0, list[bytes]()
    for turn in range(60):
        world.say(assistant(words(40, f"a{turn}")), user(words(40, f"q{turn}")))
        decided = world.settle()
        check_plan(world, decided)
        assert world.plan().boundary_seq == decided.boundary_seq, "a view that was sent is not cut again"
        assert decided.prompt_tokens - world.instructions_tokens <= 700
        rendered = world.render(decided)
        breaks += rendered[: len(before)] != before
        before = rendered
    assert 0 < breaks <= 30


def test_a_checkpoint_that_cannot_be_written_leaves_the_cuts_where_they_are() -> None:
    world = World(window=WINDOW, policy=POLICIES["checkpoint"])
    for turn in range(40):
        world.say(user(words(UNIT_TOKENS, f"q{turn}")), assistant(words(UNIT_TOKENS, f"a{turn}")))
    world.say(user("And?"))
    trimmed = world.plan()
    assert trimmed.to_summarize, "asked for"
    world.remember(trimmed)
    world.say(assistant("So."), user("And now?"))
    later = world.plan()
    check_plan(world, later)
    assert later.boundary_seq == trimmed.boundary_seq > 0
    assert later.to_summarize, "asked for again"


@pytest.mark.parametrize(("kept", "cleared"), [(3, 5), (6, 0)])
def test_results_are_cleared_only_where_that_frees_half_of_what_must_be_sent_anew(kept: int, cleared: int) -> None:
    """Behind the first cleared result the provider's cache ends."""
    rule = ToolResultClearing(trigger_tokens=3_000, keep=kept)
    world = World(window=8_192, policy=make_policy(clear_tool_results=rule))
    for _ in range(8):
        world.say(user("Look."), calls("look"), result(words(400)), assistant("I see."))
    world.say(user("And now?"))
    decided = world.settle()
    assert len(decided.edits) == cleared
    codes = {note.code for note in decided.notes}
    assert ("left_as_it_was" in codes) == (not cleared)
