from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.outline import LastView, Plan, SummarizeMode
from tests.context.plan_checks import check_nothing_is_orphaned, check_plan
from tests.context.planned_conversation import Body, World, assistant, calls, result, user, words

WORDS = st.sampled_from(
    ["word", "слово", "単語", "कखग", "🙂", '{"a": 1}', "line\n", "<|endoftext|>", "</earlier_conversation>"]
)
SIZES = st.sampled_from([1, 2, 5, 20, 60, 150, 400])
WINDOWS = st.sampled_from([1_024, 2_000, 4_096, 8_192, 32_000, 128_000, 1_000_000])
MODES: tuple[SummarizeMode, ...] = ("never", "auto")
ROOMY_WINDOWS = WINDOWS.filter(lambda window: window > 1_024)


@st.composite
def texts(draw: st.DrawFn, sizes: st.SearchStrategy[int] = SIZES) -> str:
    return words(draw(sizes), draw(WORDS))


@st.composite
def tool_rounds(draw: st.DrawFn) -> list[Body]:
    """A call message with one to three calls, ids reused all over, and its results."""
    number = draw(st.integers(1, 3))
    arguments = draw(st.sampled_from(["{}", '{"q": "' + "x" * 400 + '"}', '{"rows": [' + "1, " * 100 + "1]}"]))
    content = draw(st.sampled_from([None, "", "Let me look."]))
    results = [result(draw(st.one_of(texts(), st.just(""))), f"call_{place}") for place in range(number)]
    return [calls(*["tool"] * number, arguments=arguments, content=content), *results]


@st.composite
def turns(draw: st.DrawFn) -> list[Body]:
    question = user(draw(st.one_of(texts(), texts().map(lambda text: [{"type": "text", "text": text}]))))
    loops = draw(st.lists(tool_rounds(), max_size=4))
    answer = assistant(draw(st.one_of(texts(), st.none())))
    return [question, *(body for loop in loops for body in loop), answer]


def conversations(max_turns: int = 12) -> st.SearchStrategy[list[list[Body]]]:
    return st.lists(turns(), min_size=1, max_size=max_turns)


def flat(conversation: list[list[Body]]) -> list[Body]:
    return [body for turn in conversation for body in turn]


@given(
    conversation=conversations(),
    repeated=st.integers(1, 6),
    window=WINDOWS,
    ratio=st.sampled_from([0.5, 1.0, 1.37, 5.0]),
    output=st.sampled_from([0, 500, 4_096]),
    summarize=st.sampled_from(["auto", "never", "now"]),
    stop=st.integers(0, 200),
)
def test_every_view_fits_and_accounts_for_every_message(
    conversation: list[list[Body]],
    repeated: int,
    window: int,
    ratio: float,
    output: int,
    summarize: SummarizeMode,
    stop: int,
) -> None:
    bodies = flat(conversation * repeated)
    bodies = bodies[: max(1, len(bodies) - stop)]
    world = World(window=window, ratio=ratio, output=output, bodies=bodies)
    decided = world.plan(summarize)
    check_plan(world, decided)
    if world.log[-1].message.role != "tool" or stop == 0:
        check_nothing_is_orphaned(world, decided)
    assert decided == world.plan(summarize), "same input, same plan"
    assert world.render(decided) == world.render(world.plan(summarize))


@given(
    before=conversations(6),
    role=st.sampled_from(["user", "assistant", "tool"]),
    share=st.sampled_from([0.3, 0.8, 1.2, 4.0]),
    after=conversations(3),
    window=st.sampled_from([1_024, 8_192, 32_000]),
)
def test_one_giant_message_is_no_dead_end(
    before: list[list[Body]], role: str, share: float, after: list[list[Body]], window: int
) -> None:
    text = words(int(window * share))
    giant = {
        "user": [user(text), assistant("Read.")],
        "assistant": [user("Tell me"), assistant(text)],
        "tool": [user("Look"), calls("read"), result(text), assistant("Seen.")],
    }[role]
    world = World(window=window, bodies=[*flat(before), *giant, *flat(after)[:-1]])
    decisions: list[Callable[[SummarizeMode], Plan]] = [world.plan, world.settle]
    for decide, summarize in product(decisions, MODES):
        decided = decide(summarize)
        check_plan(world, decided)
        check_nothing_is_orphaned(world, decided)


@given(conversation=conversations(10), repeated=st.integers(1, 4), window=st.sampled_from([1_024, 2_000, 8_192]))
def test_a_growing_view_begins_with_the_one_before_until_something_is_cut_or_compacted(
    conversation: list[list[Body]], repeated: int, window: int
) -> None:
    for summarize in MODES:
        check_growth(World(window=window), conversation * repeated, summarize)


def check_growth(world: World, conversation: list[list[Body]], summarize: SummarizeMode) -> None:
    last: tuple[Plan, list[bytes]] | None = None
    bodies = flat(conversation)
    for body, following in pairwise(bodies):
        world.say(body)
        if following["role"] != "assistant":
            continue
        decided = world.settle(summarize)
        rendered = world.render(decided)
        check_plan(world, decided)
        check_nothing_is_orphaned(world, decided)
        if last is not None and cut_of(last[0]) == cut_of(decided):
            assert rendered[: len(last[1])] == last[1]
        was_full = last is not None and last[0].prompt_tokens >= 0.4 * world.window
        if last is not None and summarize == "never" and was_full and not last[0].edits:
            assert decided.boundary_seq >= last[0].boundary_seq
        last = decided, rendered


def cut_of(decided: Plan) -> tuple[object, ...]:
    return decided.summaries, decided.boundary_seq, decided.dropped_message_count, tuple(decided.edits.items())


@given(conversation=conversations(10), repeated=st.integers(1, 8), window=st.sampled_from([2_000, 8_192, 32_000]))
def test_compaction_ends_and_leaves_the_view_under_the_line_or_nothing_to_gain(
    conversation: list[list[Body]], repeated: int, window: int
) -> None:
    world = World(window=window, bodies=[*flat(conversation * repeated), user("And now?")], new_from_seq=0)
    decided = world.settle()
    assert world.replans <= 4 + world.log[-1].tokens_total // window
    check_plan(world, decided)
    under = world.budget.calibrate_tokens(decided.prompt_tokens) <= world.budget.compaction_threshold
    assert under or (window < 8_192 and any(note.code == "nothing_to_gain" for note in decided.notes))


@given(conversation=conversations(10), repeated=st.integers(1, 5), windows=st.tuples(ROOMY_WINDOWS, ROOMY_WINDOWS))
def test_a_switch_to_a_larger_window_shows_at_least_as_much(
    conversation: list[list[Body]], repeated: int, windows: tuple[int, int]
) -> None:
    smaller, larger = sorted(windows)
    world = World(window=smaller, bodies=[*flat(conversation * repeated), user("And now?")])
    boundary_seq = world.settle().boundary_seq
    world.window, world.last = larger, LastView()
    regrown = world.plan("never")
    check_plan(world, regrown)
    assert regrown.boundary_seq <= boundary_seq
    if world.instructions_tokens + world.log[-1].tokens_total <= world.budget.compaction_threshold:
        assert regrown.status == "full"


@given(conversation=conversations(10), repeated=st.integers(1, 5))
def test_whether_the_tail_is_loaded_makes_no_difference_where_it_is_not_needed(
    conversation: list[list[Body]], repeated: int
) -> None:
    world = World(bodies=flat(conversation * repeated))
    for summarize in ("auto", "never", "now"):
        without = world.plan(summarize, loaded=False)
        assert without == world.plan_of(world.outline(), summarize) or without.needs_tail
        assert without.needs_tail is None or without.to_summarize == ()


def test_cuts_move_in_steps_not_with_each_turn() -> None:
    world = World(window=8_192)
    cuts = []
    for turn in range(120):
        world.say(user(words(100, f"q{turn}")))
        cuts.append(world.settle("never").boundary_seq)
        world.say(assistant(words(100, f"a{turn}")))
    moves = sum(earlier != later for earlier, later in pairwise(cuts))
    log_tokens = world.log[-1].tokens_total
    assert cuts == sorted(cuts)
    assert 0 < moves <= log_tokens / (world.budget.limit / 4) + 1
