"""What is quoted stays with the view: its tokens are counted, and the next view begins with its bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.context.plan.outline import Plan, Quotation
from app.context.quote.question_terms import extract_question_terms
from app.context.quote.quote_selection import choose_quotation
from app.pipeline.turn import View
from app.pipeline.view.quotations import keep_last_quotations, search_unstored_messages
from tests.context.plan_checks import check_tokens_are_those_of_the_rendered_view
from tests.context.planned_conversation import COUNT, World, assistant, user, words

TOPICS = ("the launch code is Xylophone", "my espresso machine cost $900", "the harbour of Porto is deep")
QUESTIONS = ("What is the launch code?", "How much did my espresso machine cost?", "Which harbour is deep?")
TURNS = st.tuples(st.sampled_from([*TOPICS, *QUESTIONS, "Go on."]), st.integers(0, 250))
ROOM_SHARE = 0.15


def answered(world: World) -> Plan:
    """The plan for the newest question, compacted and with quotations, as it is remembered."""
    decided = world.plan()
    while decided.to_summarize:
        world.compact(decided)
        decided = world.plan()
    kept = keep_last_quotations(View(world.outline(), decided, world.budget, None))
    asked = world.log[-1]
    if decided.boundary_seq:
        room = (
            world.budget.compute_raw_tokens(world.budget.limit)
            - decided.prompt_tokens
            - sum(one.tokens for one in kept)
        )
        chosen = choose_quotation(
            asked.message.text,
            search_unstored_messages(
                world.log[: decided.boundary_seq], list(extract_question_terms(asked.message.text))
            ),
            before_seq=asked.seq,
            max_tokens=min(room, int(world.window * ROOM_SHARE)),
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
