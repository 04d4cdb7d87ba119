"""What is quoted stays with the view: its tokens are counted, and the next view begins with its bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.context.plan.budget import compute_budget
from app.context.plan.outline import Boundary, Plan, Quotation
from app.context.plan.policy import ContextPolicy
from app.context.quote.question_terms import extract_question_terms
from app.context.quote.quote_selection import choose_quotation
from app.pipeline.turn.turn import View
from app.pipeline.view.quotations import (
    compute_room_tokens,
    keep_last_quotations,
    search_unstored_messages,
    share_room,
)
from tests.context.plan_checks import check_tokens_are_those_of_the_rendered_view
from tests.context.planned_conversation import COUNT, World, assistant, chunk_of, user, words

TOPICS = ("the launch code is Xylophone", "my espresso machine cost $900", "the harbour of Porto is deep")
QUESTIONS = ("What is the launch code?", "How much did my espresso machine cost?", "Which harbour is deep?")
TURNS = st.tuples(st.sampled_from([*TOPICS, *QUESTIONS, "Go on."]), st.integers(0, 250))


def answered(world: World) -> Plan:
    """The plan for the newest question, compacted and with quotations, as it is remembered."""
    decided = world.plan()
    while decided.to_summarize:
        world.compact(decided)
        decided = world.plan()
    view = View(world.outline(), decided, world.budget, None)
    kept = keep_last_quotations(view)
    asked = world.log[-1]
    if decided.boundary_seq:
        share, room = compute_room_tokens(ContextPolicy(), view)
        kept, may_fill_room = share_room(kept, room)
        chosen = choose_quotation(
            asked.message.text,
            search_unstored_messages(
                world.log[: decided.boundary_seq], list(extract_question_terms(asked.message.text))
            ),
            before_seq=asked.seq,
            max_tokens=min(room if may_fill_room else share, room - sum(one.tokens for one in kept)),
            max_filled_tokens=room if may_fill_room else 0,
            searched_message_count=decided.boundary_seq,
            visible_seqs=(),
            counter=COUNT,
        )
        kept = (*kept, chosen or Quotation(asked.seq, (), 0))
    tokens = decided.prompt_tokens + sum(one.tokens for one in kept)
    decided = replace(decided, quotations=kept, prompt_tokens=tokens)
    world.remember(decided)
    return decided


@given(said=st.lists(TURNS, min_size=4, max_size=25), window=st.sampled_from([1_500, 2_000, 4_096]))
def test_a_view_with_quotations_is_counted_and_begins_with_the_view_before(
    said: list[tuple[str, int]], window: int
) -> None:
    world = World(window=window)
    last: Plan | None = None
    rendered: list[bytes] = []
    for text, size in said:
        world.say(user(f"{text} {words(size)}".strip()))
        decided = answered(world)
        view = world.render(decided)
        check_tokens_are_those_of_the_rendered_view(world, decided)
        assert decided.prompt_tokens <= world.budget.compute_raw_tokens(world.budget.limit) or not decided.fits
        if last is not None and _begins_alike(last, decided):
            assert view[: len(rendered)] == rendered
        world.say(assistant("All right."))
        last, rendered = decided, view


def _begins_alike(before: Plan, after: Plan) -> bool:
    """Whether nothing but the end of the log has changed: no boundary moved, nothing edited, no quotation left out."""
    return (before.boundary, before.summaries, before.edits, before.dropped_message_count) == (
        after.boundary,
        after.summaries,
        after.edits,
        after.dropped_message_count,
    ) and after.quotations[: len(before.quotations)] == before.quotations


def quotation(tokens: int) -> Quotation:
    return Quotation(0, (), tokens)


def test_a_new_quotation_stands_beside_the_earlier_ones_or_replaces_what_leaves_no_room() -> None:
    assert share_room((), 1_200) == ((), False)
    sparse = (quotation(150), quotation(150))
    assert share_room(sparse, 1_200) == (sparse, False)
    filled = (quotation(800),)
    assert share_room(filled, 1_200) == (filled, True)
    assert share_room((*filled, *sparse), 1_200) == ((), False)


@given(st.integers(0, 4_000), st.booleans())
def test_the_room_is_what_a_growing_view_leaves_free(prompt_tokens: int, is_summarized: bool) -> None:
    budget = compute_budget(ContextPolicy(), window=4_000)
    world = World(window=4_000)
    world.say(user("Hello."))
    summaries = (chunk_of(2),) if is_summarized else ()
    plan = Plan("summarized", summaries, Boundary(2), prompt_tokens, prompt_tokens <= budget.limit)
    share, room = compute_room_tokens(ContextPolicy(), View(world.outline(), plan, budget, None))
    free = max(0, budget.limit - prompt_tokens)
    assert share == min(600, free)
    assert share <= room <= min(1_200, free)
    # The view can grow by half of what is free below its threshold before quotations have to go.
    threshold = budget.compute_threshold(has_summaries=is_summarized)
    if room > share and prompt_tokens <= threshold:
        assert (prompt_tokens + threshold) // 2 + room <= budget.limit
