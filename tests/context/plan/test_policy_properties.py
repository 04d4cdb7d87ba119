"""What holds under every policy, whatever the conversation, the window, the pins and the view before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.outline import LastView, Outline, Plan, SummarizeMode
from tests.context.conversation_strategies import POLICIES, SHORTENING, SUMMARIZING, WINDOWS, conversations, spread
from tests.context.plan_checks import check_nothing_is_orphaned, check_plan, check_ranges
from tests.context.planned_conversation import Body, World, assistant, result, user, words

NAMES = st.sampled_from(sorted(POLICIES))
MODES: Sequence[SummarizeMode] = ("auto", "never", "now", "ahead")
SMALL_WINDOWS = st.sampled_from([1_024, 2_000, 4_096, 8_192, 32_000])
MOST_PINNED_SHARE = 0.3
CUTTING = tuple(name for name in SHORTENING if POLICIES[name].kind != "additive")
"""Policies whose view begins where the last one was cut; the others look at all that no summary stands for."""


def pinned(world: World, number: int) -> World:
    """The same world with a few rounds pinned, of those that take little."""
    world.pin(*spread(number, len(world.log)))
    room = world.budget.compute_raw_tokens(int(world.window * MOST_PINNED_SHARE / max(1, number)))
    world.pins = tuple(pin for pin in world.pins if pin.tokens <= room)
    return world


@given(
    bodies=conversations(),
    name=NAMES,
    window=WINDOWS,
    ratio=st.sampled_from([0.5, 1.0, 1.0, 1.37, 5.0]),
    output=st.sampled_from([0, 500, 4_096]),
    summarize=st.sampled_from(MODES),
    pins=st.sampled_from([0, 0, 1, 3]),
    kept_messages=st.sampled_from([0, 2, 40]),
)
def test_any_conversation_makes_a_sound_view(
    bodies: list[Body],
    name: str,
    window: int,
    ratio: float,
    output: int,
    summarize: SummarizeMode,
    pins: int,
    kept_messages: int,
) -> None:
    world = World(window=window, ratio=ratio, output=output, policy=POLICIES[name], bodies=bodies)
    world.keep_user_text(*spread(kept_messages, len(world.log)))
    decided = pinned(world, pins).plan(summarize)
    check_ranges(world, decided)
    check_plan(world, decided)
    check_nothing_is_orphaned(world, decided)
    again = world.plan(summarize)
    assert (again, world.render(again)) == (decided, world.render(decided)), "same input, same bytes"
    at_once = world.plan_of(world.outline(), summarize)
    assert at_once == decided, "whether the log is loaded beforehand or asked for makes no difference"


@given(
    bodies=conversations(),
    names=st.lists(NAMES, min_size=1, max_size=3),
    windows=st.lists(SMALL_WINDOWS, min_size=1, max_size=2),
    modes=st.sampled_from([("auto",), ("never",), ("now", "auto", "auto"), ("ahead", "auto"), ("auto", "never")]),
    ratio=st.sampled_from([0.5, 1.0, 1.37]),
    pins=st.sampled_from([0, 0, 2]),
    stride=st.sampled_from([1, 1, 4, 15]),
    kept_messages=st.sampled_from([1, 3, 1_000]),
)
def test_a_growing_conversation_keeps_each_of_its_views_sound_and_stable(
    bodies: list[Body],
    names: list[str],
    windows: list[int],
    modes: Sequence[SummarizeMode],
    ratio: float,
    pins: int,
    stride: int,
    kept_messages: int,
) -> None:
    """Policies, windows and modes are switched from turn to turn. Each pair of policy and window has its own view."""
    world = World(ratio=ratio)
    kept: dict[tuple[str, int], LastView] = {}
    sent: dict[tuple[str, int], tuple[Plan, list[bytes]]] = {}
    said = 0
    turns = zip(request_ends(bodies)[::stride], cycle(names), cycle(windows), cycle(modes), strict=False)
    for step, (end, name, window, summarize) in enumerate(turns):
        world.say(*bodies[said:end])
        said = end
        world.policy, world.window, world.last = POLICIES[name], window, kept.get((name, window), LastView())
        if step == pins:
            pinned(world, pins)
        world.keep_user_text(*range(0, end, kept_messages))
        decided = prepared_and_settled(world) if summarize == "ahead" else world.settle(summarize)
        check_plan(world, decided)
        check_nothing_is_orphaned(world, decided)
        rendered = world.render(decided)
        before = sent.get((name, window))
        if before is not None and shape_of(before[0]) == shape_of(decided):
            assert rendered[: len(before[1])] == before[1]
        if summarize == "never" and not (decided.edits and decided.dropped_message_count):
            assert world.plan("never").boundary_seq <= decided.boundary_seq, "a view that was sent is not cut again"
        kept[name, window], sent[name, window] = world.last, (decided, rendered)


def request_ends(bodies: list[Body]) -> list[int]:
    """Where the assistant is to speak: after what, of a conversation, requests end."""
    following = [*bodies[1:], assistant("")]
    return [
        end
        for end, (last, answer) in enumerate(zip(bodies, following, strict=True), start=1)
        if answer["role"] == "assistant" and last["role"] != "assistant"
    ]


def prepared_and_settled(world: World) -> Plan:
    """A view whose next summary was made beforehand, in the background."""
    ahead = world.plan("ahead")
    check_ranges(world, ahead)
    world.compact(ahead)
    return world.settle("auto")


def shape_of(decided: Plan) -> tuple[object, ...]:
    """All that makes the beginning of a view change. A view that would not fit otherwise has no user text; with
    the same boundary a view has the same ones, or none."""
    edits, has_user_text = tuple(decided.edits.values()), bool(decided.user_text)
    before_boundary = (decided.summaries, decided.boundary, decided.dropped_message_count, has_user_text)
    return *before_boundary, edits, decided.pins, decided.quotations


@given(bodies=conversations(6, 8), name=st.sampled_from(CUTTING), window=SMALL_WINDOWS, pins=st.sampled_from([0, 2]))
def test_what_lies_before_the_boundary_is_not_looked_at(bodies: list[Body], name: str, window: int, pins: int) -> None:
    world = pinned(World(window=window, policy=POLICIES[name], bodies=bodies), pins)
    decided = world.settle()
    world.say(assistant("So."), user("And now?"))
    expected = world.plan()
    start = decided.boundary_seq
    world.log[:start] = World(bodies=[user("?")] * start).log
    assert world.plan() == expected


@given(bodies=conversations(6, 12), name=st.sampled_from(SUMMARIZING), window=SMALL_WINDOWS)
def test_compaction_comes_to_an_end_and_each_summary_that_is_asked_for_gains(
    bodies: list[Body], name: str, window: int
) -> None:
    world = World(window=window, policy=POLICIES[name], bodies=bodies, new_from_seq=0)
    asked: list[object] = []
    decided = world.plan()
    while decided.to_summarize:
        assert len(asked) <= 8 + world.log[-1].tokens_total // window
        assert decided.to_summarize not in asked, "never again for the same content"
        asked.append(decided.to_summarize)
        needed = [note.facts for note in decided.notes if note.code == "compaction_needed"]
        for facts in needed:
            before = int(facts.get("tokens", decided.prompt_tokens))
            gain = world.policy.compaction.min_gain_ratio
            assert world.policy.kind != "checkpoint" or int(facts["expected_tokens"]) <= (1 - gain) * before
        world.compact(decided)
        decided = world.plan()
    check_plan(world, decided)
    assert decided.fits or any(note.code == "does_not_fit" for note in decided.notes)


@given(bodies=conversations(6, 12), name=NAMES, windows=st.tuples(SMALL_WINDOWS, WINDOWS))
def test_a_larger_window_shows_at_least_as_much(bodies: list[Body], name: str, windows: tuple[int, int]) -> None:
    smaller, larger = sorted(windows)
    world = World(window=smaller, policy=POLICIES[name], bodies=[*bodies, user("And now?")])
    boundary_seq = world.settle(most_replans=len(world.log)).boundary_seq
    world.window, world.last = larger, LastView()
    regrown = world.plan("never")
    check_plan(world, regrown)
    if not {"keep_last", "fade_results"} & {*world.policy.stage_names}:
        assert regrown.boundary_seq <= boundary_seq
    if world.policy == POLICIES["checkpoint"] and larger >= 2 * world.log[-1].tokens_total:
        assert regrown.status == "full"


@pytest.mark.parametrize(("unit_tokens", "most_breaks"), [(150, 10), (300, 22), (600, 44)])
@pytest.mark.parametrize("name", ["additive", "additive, few turns"])
def test_a_smaller_window_beside_it_does_not_move_the_boundary_of_a_larger_one_in_tiny_steps(
    name: str, unit_tokens: int, most_breaks: int
) -> None:
    world = World(policy=POLICIES[name])
    kept: dict[int, LastView] = {}
    before: list[bytes] = []
    breaks = 0
    for turn, window in zip(range(240), cycle((4_096, 32_000))):
        world.say(user(words(unit_tokens, f"q{turn}")))
        world.window, world.last = window, kept.get(window, LastView())
        rendered = world.render(world.settle())
        kept[window] = world.last
        if window == 32_000:
            breaks += rendered[: len(before)] != before
            before = rendered
        world.say(assistant(words(unit_tokens, f"a{turn}")))
    assert 0 < breaks <= most_breaks


@pytest.mark.parametrize("name", SHORTENING)
def test_switching_between_windows_leaves_each_its_own_stable_view(name: str) -> None:
    world = World(policy=POLICIES[name])
    kept: dict[int, LastView] = {}
    breaks = {4_096: 0, 32_000: 0}
    before: dict[int, list[bytes]] = {}
    for turn, window in zip(range(120), cycle(breaks)):
        world.say(user(words(150, f"q{turn}")), *look(turn), assistant(words(150, f"a{turn}")), user("?"))
        world.window, world.last = window, kept.get(window, LastView())
        rendered = world.render(world.settle())
        breaks[window] += rendered[: len(before.get(window, []))] != before.get(window, [])
        kept[window], before[window] = world.last, rendered
        world.say(assistant("Yes."))
    if "keep_last" not in world.policy.stage_names:
        assert breaks[32_000] <= 12
    assert breaks[4_096] <= 60


def look(turn: int) -> list[Body]:
    call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [assistant(None, tool_calls=[call]), result(words(100, f"r{turn}"))]


@pytest.mark.parametrize("name", ["recursive", "recursive, clearing"])
def test_a_rolling_summary_is_one_chunk_that_names_the_one_before(name: str) -> None:
    world = World(policy=POLICIES[name])
    shown: list[tuple[str, ...]] = []
    for turn in range(120):
        world.say(user(words(150, f"q{turn}")))
        asked = world.plan()
        if asked.to_summarize:
            [part] = asked.to_summarize
            assert (part.from_seq, part.style) == (0, "recursive")
            assert part.base == (shown[-1][0] if shown and shown[-1] else "")
        shown.append(tuple(chunk.id for chunk in world.settle().summaries))
        world.say(assistant(words(150, f"a{turn}")))
    assert {len(ids) for ids in shown} == {0, 1}
    assert len(set(shown)) >= 4


def test_nothing_of_an_outline_is_changed_by_planning() -> None:
    world = World(window=2_000, policy=POLICIES["every stage"], bodies=[user("q"), *look(1), assistant("a")] * 50)
    outline = world.outline()
    copy = Outline(**{name: getattr(outline, name) for name in outline.__struct_fields__})
    world.plan_of(outline, "auto")
    assert outline == copy
