"""Each stage by itself, at the edges of its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import orjson
import pytest

from app.context.plan.budget import Budget
from app.context.plan.log_rounds import LogTail
from app.context.plan.outline import Outline, Pin
from app.context.plan.policy import TRIMMING_LIMITS, TrimmingLimits, make_policy
from app.context.stages.draft import Draft, DraftContext
from app.context.stages.stage_registry import STAGES
from app.context.stages.truncation_caps import compute_age_weights
from app.context.view.message_edits import render_edited_message
from app.conversation.context_edits import ReasoningClearing, ToolResultClearing
from app.dialects.body.message import decode_body
from app.dialects.body.message_edits import OPERATIONS, apply_operations
from tests.context.planned_conversation import COUNT, Body, assistant, calls, log_of, result, user, words

WINDOW = 10_000


def draft_of(
    bodies: Sequence[Body], *, instructions: int = 0, pinned: Sequence[int] = (), over: bool = False, **settings: Any
) -> Draft:
    """A view over a whole log, in a window of 10,000 tokens of which nothing is reserved.

    Args:
        over: whether the limit was passed, so that stages that stop at the goal work towards 75 % of it.
    """
    limits = {field.name: settings.pop(field.name) for field in fields(TrimmingLimits) if field.name in settings}
    policy = make_policy(reserve_ratio=0.0, trimming=TrimmingLimits(**limits), **settings)
    log = log_of(bodies)
    budget = Budget(window=WINDOW, reserve_tokens=0, output=0, limit=WINDOW, compaction_threshold=WINDOW)
    pins = tuple(Pin(seq, seq + 1, log[seq].tokens) for seq in pinned)
    goal = policy.cut.target_ratio if over else 1.0
    outline = Outline(instructions, log_tokens=0, next_seq=len(log), pins=pins)
    return Draft(DraftContext(outline, LogTail(log, after=None), budget, policy, COUNT, goal), (), START)


START = LogTail((), after=None).build_boundary(0)


def applied(stage: str, draft: Draft) -> Draft:
    return STAGES[stage](draft)


def shown(draft: Draft, seq: int) -> Body:
    edit = draft.edits[seq]
    message = render_edited_message(edit, lambda at: draft.context.tail.find_message(at).message)
    assert message is not None
    return decode_body(message)


def filled_to(tokens: int, bodies: list[Body]) -> list[Body]:
    """The same messages after a question that makes the view take exactly so many tokens."""
    missing = tokens - sum(COUNT.count_message(body) for body in bodies) - COUNT.count_message(user(""))
    return [user("?" * missing), *bodies]


def kept_chars(content: str) -> int:
    """How much of a text is left beside the line that says what is not."""
    return len(content) - sum(len(line) + 2 for line in content.split("\n") if "characters left out" in line)


def read(chars: int, *, answer: object = "I have read it.", name: str = "read") -> list[Body]:
    return [calls(name), result("x" * chars), *([] if answer is None else [assistant(answer)])]


# One giant word is one piece per five characters to the counter of these tests.


@pytest.mark.parametrize(("tokens", "masks"), [(7_999, False), (8_000, True)])
def test_results_are_masked_from_a_pressure_of_80_percent_on(tokens: int, masks: bool) -> None:
    draft = applied("mask_results", draft_of(filled_to(tokens, read(20_000))))
    assert (2 in draft.edits) == masks


def test_a_masked_result_keeps_about_300_characters_head_and_tail() -> None:
    text = "\n".join(f"line {number}" for number in range(2_000))
    bodies = [calls("read"), result(text), assistant("Read.")]
    draft = applied("mask_results", draft_of(filled_to(9_500, bodies), mask_pressure=0.5))
    content = shown(draft, 2)["content"]
    assert draft.edits[2].kind == "masked"
    assert content.startswith("line 0\n")
    assert content.endswith("line 1999")
    assert 200 <= kept_chars(content) <= 300


@pytest.mark.parametrize(
    ("after", "consumed"),
    [
        ([assistant("Aha.")], True),
        ([assistant("Let me see more.", tool_calls=calls("read")["tool_calls"]), result("y")], True),
        ([calls("read"), result("y")], False),
        ([assistant(" \n")], False),
        ([user("Well?")], False),
        ([], False),
    ],
)
def test_only_what_a_later_text_has_made_use_of_is_masked(after: list[Body], consumed: bool) -> None:
    draft = applied("mask_results", draft_of(filled_to(9_000, [*read(20_000, answer=None), *after])))
    assert (2 in draft.edits) == consumed


def test_an_assistant_message_is_never_masked_however_long() -> None:
    said = "y" * 10_000
    asked = assistant(said, tool_calls=calls("read", arguments='{"a": "' + "z" * 900 + '"}')["tool_calls"])
    draft = applied("mask_results", draft_of(filled_to(9_000, [asked, result("x" * 9_000), assistant(said)])))
    assert set(draft.edits) == {2}


def test_newer_results_keep_more_where_there_is_room() -> None:
    bodies = [body for _ in range(5) for body in read(6_000)]
    draft = applied("mask_results", draft_of(filled_to(8_200, bodies), mask_pressure=0.8))
    lengths = [kept_chars(shown(draft, seq)["content"]) for seq in sorted(draft.edits)]
    assert lengths == sorted(lengths)
    assert lengths[0] >= 300
    assert lengths[-1] - 300 > 4 * (lengths[0] - 300)
    assert draft.tokens <= 0.8 * WINDOW


@pytest.mark.parametrize(("count", "expected"), [(1, [1.0]), (2, [0.2, 1.0]), (5, [0.2, 0.4, 0.6, 0.8, 1.0])])
def test_recency_weights_run_from_a_fifth_to_one(count: int, expected: list[float]) -> None:
    assert compute_age_weights(count, 0.2) == pytest.approx(expected)


@pytest.mark.parametrize(("instructions", "chars"), [(0, 12_000), (5_000, 6_000)])
def test_one_result_may_take_30_percent_of_what_instructions_leave(instructions: int, chars: int) -> None:
    bodies = filled_to(9_900 - instructions, read(14_000))
    draft = applied("cap_messages", draft_of(bodies, instructions=instructions, mask_pressure=0.1))
    assert kept_chars(shown(draft, 2)["content"]) == chars


def test_a_result_exactly_as_long_as_it_may_be_is_left_alone() -> None:
    assert not applied("cap_messages", draft_of(filled_to(9_000, read(12_000)))).edits
    assert applied("cap_messages", draft_of(filled_to(9_000, read(13_000)))).edits


def test_the_oldest_results_may_take_a_fifth_of_what_the_newest_may() -> None:
    bodies = [*read(13_000), *read(13_000), *read(13_000)]
    draft = applied("cap_messages", draft_of(bodies, mask_pressure=0.1))
    assert [kept_chars(shown(draft, seq)["content"]) for seq in (1, 4, 7)] == [2_400, 7_200, 12_000]


def test_no_result_is_longer_than_400_000_characters_in_the_largest_window() -> None:
    draft = applied("cap_messages", draft_of(read(9_000), mask_pressure=0.1, result_max_chars=8_000))
    assert kept_chars(shown(draft, 1)["content"]) == 8_000
    assert (TRIMMING_LIMITS.result_max_chars, TRIMMING_LIMITS.arguments_max_chars) == (400_000, 200_000)


@pytest.mark.parametrize(
    "arguments",
    [
        orjson.dumps({"path": "/srv/app.py", "body": "x" * 20_000}).decode(),
        orjson.dumps({"rows": list(range(5_000))}).decode(),
        "[" + "1, " * 7_000 + "1]",
        "not json " * 2_000,
    ],
)
def test_arguments_are_capped_at_15_percent_and_stay_a_json_object(arguments: str) -> None:
    bodies = [user("Write it"), calls("write", arguments=arguments), result("ok"), assistant("Done.")]
    draft = applied("cap_messages", draft_of(bodies, mask_pressure=0.1))
    given = shown(draft, 1)["tool_calls"][0]["function"]["arguments"]
    assert isinstance(orjson.loads(given), dict)
    assert len(given) <= 6_000
    assert shown(draft, 1)["tool_calls"][0]["id"] == "call_0"


def test_arguments_of_just_15_percent_are_left_alone() -> None:
    arguments = orjson.dumps({"b": "x" * 5_500}).decode()
    bodies = filled_to(9_900, [calls("write", arguments=arguments), result("ok")])
    assert not applied("cap_messages", draft_of(bodies)).edits


@pytest.mark.parametrize(
    ("tokens", "chars"),
    [(7_900, 14_000), (8_000, 12_000), (8_499, 12_000), (8_500, 6_000), (9_000, 2_400), (9_899, 2_400), (9_900, 600)],
)
def test_results_fade_in_bands_of_pressure(tokens: int, chars: int) -> None:
    draft = applied("fade_results", draft_of(filled_to(tokens, read(14_000))))
    content = shown(draft, 2)["content"] if draft.edits else "x" * 14_000
    assert kept_chars(content) == chars


def aged(ages: Sequence[float], chars: int = 60_000) -> list[Body]:
    """A hundred messages with results so old, as shares of the log, and twenty turns."""
    bodies: list[Body] = [user("q") if at % 5 == 4 else assistant("a") for at in range(100)]
    for age in ages:
        at = round(100 * (1 - age))
        bodies[at - 1 : at + 1] = [calls("read"), result("x" * chars)]
    return bodies


@pytest.mark.parametrize(
    ("age", "kind"), [(0.9, "cleared"), (0.5, "cleared"), (0.49, "truncated"), (0.3, "truncated"), (0.29, None)]
)
def test_large_results_are_pruned_by_their_relative_age(age: float, kind: str | None) -> None:
    draft = applied("prune_by_position", draft_of(aged([age]), position_pruning=True))
    assert [edit.kind for edit in draft.edits.values()] == ([kind] if kind else [])
    if kind == "truncated":
        [edit] = draft.edits.values()
        assert kept_chars(shown(draft, edit.seq)["content"]) == 3_000


def test_head_and_tail_of_a_pruned_result_are_1500_characters_each() -> None:
    bodies = aged([0.4])
    bodies[60]["content"] = "a" * 30_000 + "b" * 30_000
    draft = applied("prune_by_position", draft_of(bodies, position_pruning=True))
    content = shown(draft, 60)["content"]
    assert (content.count("a") - 5, content.count("b")) == pytest.approx((1_500, 1_500), abs=12)


@pytest.mark.parametrize(("chars", "pruned"), [(49_999, False), (50_000, True)])
def test_only_results_of_50_000_characters_are_pruned_by_position(chars: int, pruned: bool) -> None:
    draft = applied("prune_by_position", draft_of(aged([0.8], chars), position_pruning=True, mask_pressure=0.5))
    assert bool(draft.edits) == pruned


def test_pruning_by_position_is_off_by_default_and_spares_the_last_three_turns() -> None:
    assert not applied("prune_by_position", draft_of(aged([0.8]))).edits
    bodies = [body for _ in range(5) for body in (user("q"), *read(60_000), *read(60_000))]
    draft = applied("prune_by_position", draft_of(bodies, position_pruning=True, soft_trim_ratio=0.0))
    assert set(draft.edits) == {2, 5, 9, 12}
    unsafe = applied("prune_by_position", draft_of(bodies, position_pruning=True, keep_last_assistants=0))
    assert max(unsafe.edits) > 21
    few = applied("prune_by_position", draft_of(bodies, position_pruning=True, keep_last_assistants=6))
    assert not few.edits


@pytest.mark.parametrize(("chars", "truncated"), [(9_900, False), (10_100, True)])
def test_results_above_2_000_tokens_are_truncated(chars: int, truncated: bool) -> None:
    draft = applied("truncate_results", draft_of(filled_to(10_001, read(chars)), over=True))
    assert bool(draft.edits) == truncated
    assert all(edit.tokens <= 2_000 for edit in draft.edits.values())


def test_truncation_stops_as_soon_as_three_quarters_of_the_limit_are_reached() -> None:
    bodies = [body for _ in range(8) for body in read(7_000)]
    draft = applied("truncate_results", draft_of(bodies, over=True, max_tool_result_tokens=700))
    assert [*draft.edits] == [1, 4, 7, 10, 13, 16]
    assert 0.75 * WINDOW - 800 <= draft.tokens <= 0.75 * WINDOW


def test_rounds_older_than_four_turns_are_told_in_a_line_per_call() -> None:
    talk = [
        body for _ in range(6) for body in (user("q"), calls("search", "fetch"), *[result("Found: " + "x" * 9_000)] * 2)
    ]
    draft = applied("tell_old_rounds", draft_of(talk, over=True, told_result_chars=200))
    told = [seq for seq, edit in draft.edits.items() if edit.ops[0][0] == "tell"]
    assert told == [1, 5], "the rounds of the first two of six turns: over four turns old"
    lines = shown(draft, 1)["content"].split("\n")
    assert [line.split("(")[0] for line in lines] == ["search", "fetch"]
    assert all(line.startswith(("search({}): Found: xxx", "fetch({}): Found: xxx")) for line in lines)
    assert all(len(line.split(": ", 1)[1]) <= 200 for line in lines)
    assert "tool_calls" not in shown(draft, 1)
    assert all(draft.edits[seq].ops == (("gone",),) for seq in (2, 3, 6, 7)), "and no result is left without its call"


def test_a_result_that_failed_is_told_as_an_error() -> None:
    talk = [user("q"), calls("run"), result("Traceback (most recent call last): " + "x" * 60_000), *[user("q")] * 5]
    draft = applied("tell_old_rounds", draft_of(talk, over=True))
    assert shown(draft, 1)["content"].startswith("run({}): ERROR: Traceback")


def test_dropped_results_leave_a_stub_so_that_no_call_is_without_one() -> None:
    bodies = [body for _ in range(6) for body in (user("q"), *read(10_000))]
    draft = applied("drop_results", draft_of(bodies, over=True))
    assert draft.tokens <= 0.75 * WINDOW
    assert list(draft.edits) == [2, 6, 10], "the oldest, until the goal is reached"
    body = shown(draft, 2)
    assert (body["role"], body["tool_call_id"]) == ("tool", "call_0")
    assert body["content"] == "[tool result of 10,000 characters left out]"


def test_new_results_are_not_dropped() -> None:
    draft = draft_of([user("q"), *read(60_000, answer=None)], over=True)
    assert applied("drop_results", draft).edits
    assert not applied("drop_results", replace(draft, context=replace(draft.context, first_new_seq=2))).edits


CLEAR = ToolResultClearing(trigger_tokens=2_000)


def cleared(draft: Draft) -> list[int]:
    return [seq for seq, edit in draft.edits.items() if edit.kind == "cleared"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (ToolResultClearing(), []),
        (CLEAR, [2, 6]),
        (ToolResultClearing(trigger_tokens=9_000), []),
        (ToolResultClearing(trigger_tokens=2_000, keep=1), [2, 6, 10, 14]),
        (ToolResultClearing(trigger_tokens=2_000, keep=0), [2, 6, 10, 14, 18]),
        (ToolResultClearing(trigger_tokens=2_000, keep=9), []),
        (ToolResultClearing(trigger_tokens=2_000, keep=1, exclude_tools=("tool_1",)), [2, 10, 14]),
        (ToolResultClearing(trigger_tokens=2_000, clear_at_least_tokens=1_900), [2, 6]),
        (ToolResultClearing(trigger_tokens=2_000, clear_at_least_tokens=2_100), []),
    ],
)
def test_old_tool_results_are_cleared(rule: ToolResultClearing, expected: list[int]) -> None:
    talk = [body for at in range(5) for body in (user("q"), *read(5_000, name=f"tool_{at}"))]
    draft = applied("clear_tool_results", draft_of(talk, clear_tool_results=rule))
    assert cleared(draft) == expected
    if expected:
        assert shown(draft, 2)["content"] == "[old tool result cleared]"
        assert draft.context.tail.find_message(1).seq not in draft.edits


def test_results_are_not_cleared_at_the_trigger_but_above_it() -> None:
    talk = [body for _ in range(5) for body in (user("q"), *read(5_000))]
    tokens = draft_of(talk).tokens
    at = draft_of(talk, clear_tool_results=ToolResultClearing(trigger_tokens=tokens))
    above = draft_of(talk, clear_tool_results=ToolResultClearing(trigger_tokens=tokens - 1))
    assert (cleared(applied("clear_tool_results", at)), cleared(applied("clear_tool_results", above))) == ([], [2, 6])


def test_inputs_are_cleared_with_results_where_that_is_asked_for() -> None:
    asked = calls("write", arguments='{"body": "' + "x" * 3_000 + '"}')
    talk = [body for _ in range(5) for body in (user("q"), asked, result("x" * 5_000), assistant("ok"))]
    rule = ToolResultClearing(trigger_tokens=2_000, inputs=True)
    draft = applied("clear_tool_results", draft_of(talk, clear_tool_results=rule))
    assert cleared(draft) == [2, 6, 1, 5]
    [call] = shown(draft, 1)["tool_calls"]
    assert call == {**asked["tool_calls"][0], "function": {"name": "write", "arguments": "{}"}}


@pytest.mark.parametrize(("keep", "expected"), [(None, []), (0, [1, 4]), (1, [1, 4]), (2, [1]), (3, []), (9, [])])
def test_reasoning_of_old_turns_is_cleared(keep: int | None, expected: list[int]) -> None:
    thinking = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "So."}]
    talk = [
        user("q"),
        assistant("a", reasoning_content="Long thought."),
        assistant("b"),
        user("q"),
        assistant(thinking),
        user("q"),
        assistant(thinking, reasoning="Now."),
    ]
    draft = applied("clear_reasoning", draft_of(talk, clear_reasoning=ReasoningClearing(keep)))
    assert list(draft.edits) == expected
    if 1 in draft.edits:
        assert shown(draft, 1) == assistant("a")
    if 4 in draft.edits:
        assert shown(draft, 4) == assistant(thinking[1:])


@pytest.mark.parametrize(
    ("keep", "turns", "left"), [(4, 4, 4), (4, 5, 3), (10, 11, 8), (3, 4, 2), (2, 3, 2), (1, 2, 1), (None, 50, 50)]
)
def test_a_window_of_turns_moves_on_in_steps(keep: int | None, turns: int, left: int) -> None:
    talk = [body for turn in range(turns) for body in (user(f"q{turn}"), *read(20))]
    draft = applied("keep_last", draft_of(talk, keep_turns=keep))
    assert (len(talk) - draft.boundary_seq) // 4 == left
    assert draft.context.tail.find_message(draft.boundary_seq).message.role == "user"


@pytest.mark.parametrize(("tokens", "moves"), [(4_000, False), (4_001, True)])
def test_a_window_of_tokens_keeps_three_quarters_of_them(tokens: int, moves: bool) -> None:
    talk = filled_to(tokens, [user("q") if at % 2 else assistant(words(100)) for at in range(30)])
    draft = applied("keep_last", draft_of(talk, keep_tokens=4_000))
    assert (draft.boundary_seq > 0) == moves
    if moves:
        assert draft.tokens <= 0.75 * 4_000


def test_what_a_window_of_tokens_keeps_includes_pins_and_the_notice() -> None:
    talk = [user("q") if at % 2 == 0 else assistant(words(100)) for at in range(60)]
    draft = applied("keep_last", draft_of(talk, pinned=range(1, 20, 2), keep_tokens=2_000))
    assert sum(pin.tokens for pin in draft.pins) > 1_000
    assert 0.68 * 2_000 < draft.tokens <= 0.75 * 2_000
    assert applied("keep_last", draft) == draft


def test_the_newest_turn_stays_however_long_it_is() -> None:
    talk = [user("q"), assistant("a"), user(words(5_000))]
    draft = applied("keep_last", draft_of(talk, keep_tokens=1_000))
    assert draft.boundary_seq == 2


def rounds(number: int, tokens: int = 500) -> list[Body]:
    return [body for _ in range(number) for body in (user("?" * (tokens - 14)), assistant("ok ok ok"))]


def test_the_oldest_go_in_quarters_of_the_limit() -> None:
    draft = applied("drop_oldest", draft_of(rounds(21), over=True))
    dropped = draft.context.tail.count_tokens_before(draft.boundary_seq)
    assert 2_500 <= dropped < 3_100
    assert draft.context.tail.find_message(draft.boundary_seq).message.role == "user"
    assert draft.tokens <= 0.8 * WINDOW


def test_what_fits_is_not_dropped_when_nothing_was_passed() -> None:
    assert applied("drop_oldest", draft_of(rounds(19))).boundary_seq == 0


@pytest.mark.parametrize(("turns", "drops"), [(21, False), (22, True)])
def test_what_fits_is_dropped_only_half_a_step_above_the_goal_and_not_before_the_task_is_gone(
    turns: int, drops: bool
) -> None:
    """Results were shortened, and what is left would pass the limit again after a few turns."""
    talk = draft_of(rounds(turns), over=True)
    assert applied("drop_oldest", talk.cut_before(8)).boundary_seq == (20 if drops else 8)
    assert applied("drop_oldest", draft_of(rounds(19), over=True)).boundary_seq == 0


def test_calls_and_their_results_are_dropped_together() -> None:
    arguments = '{"a": "' + "z" * 4_000 + '"}'
    loop = [body for _ in range(12) for body in (calls("a", "b", arguments=arguments), result("x"), result("y"))]
    draft = applied("drop_oldest", draft_of([user("Find it"), *loop], over=True))
    assert draft.context.tail.find_message(draft.boundary_seq).message.calls_tools
    assert draft.boundary.anchor_seq == 0


def test_an_even_share_leaves_at_least_200_characters_and_the_request_whole() -> None:
    draft = applied("share_evenly", draft_of([*[assistant("y" * 2_000)] * 60, user("x" * 20_000)]))
    assert 60 not in draft.edits
    assert draft.fits_limit
    chars = {kept_chars(shown(draft, seq)["content"]) for seq in draft.edits}
    assert len(chars) == 1
    assert min(chars) >= 200


def test_where_even_200_characters_each_are_too_much_the_oldest_go() -> None:
    draft = applied("share_evenly", draft_of([*[assistant("y" * 500)] * 400, user("?")]))
    assert draft.fits_limit
    assert draft.boundary_seq > 0
    assert kept_chars(shown(draft, draft.boundary_seq)["content"]) == 200


def test_an_even_share_counts_what_earlier_stages_have_saved() -> None:
    masked = applied("mask_results", draft_of([*read(90_000), *[assistant("y" * 4_000)] * 14]))
    assert masked.edits
    shared = applied("share_evenly", masked)
    assert shared.fits_limit
    assert shared.boundary_seq == 0, "there is room for all of it, shared"
    [said] = {kept_chars(shown(shared, seq)["content"]) for seq in range(3, 17)}
    assert 2_000 < said < 4_000


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_what_is_pinned_is_never_shortened(stage: str) -> None:
    talk = [body for _ in range(8) for body in (user("q"), *read(60_000))]
    settings: dict[str, Any] = {
        "position_pruning": True,
        "clear_tool_results": ToolResultClearing(1, keep=0),
        "keep_turns": 2,
    }
    draft = applied(stage, draft_of(talk, pinned=[1, 2], over=True, **settings))
    assert not {1, 2} & set(draft.edits)
    assert draft.boundary_seq == 0 or [pin.from_seq for pin in draft.pins] == [1, 2]


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_the_log_itself_is_never_changed(stage: str) -> None:
    talk = [body for _ in range(8) for body in (user("q"), *read(60_000))]
    settings: dict[str, Any] = {
        "position_pruning": True,
        "clear_tool_results": ToolResultClearing(1, keep=0, inputs=True),
    }
    draft = draft_of(talk, over=True, **settings)
    before = [(entry.message.raw, orjson.dumps(decode_body(entry.message))) for entry in draft.context.tail.messages]
    applied(stage, draft)
    assert before == [
        (entry.message.raw, orjson.dumps(decode_body(entry.message))) for entry in draft.context.tail.messages
    ]


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking", "reasoning", "reasoning_text"])
def test_every_kind_of_reasoning_part_is_left_out(kind: str) -> None:
    body = {"role": "assistant", "content": [{"type": kind, "text": "Hm."}, {"type": "text", "text": "Yes."}]}
    assert apply_operations(OPERATIONS, body, [("thoughtless",)])["content"] == [{"type": "text", "text": "Yes."}]
