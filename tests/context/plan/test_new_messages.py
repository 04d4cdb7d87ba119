"""What is new is shown whole while it fits beside the shortest form of the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.outline import Plan
from app.context.plan.policy import ContextPolicy
from tests.context.conversation_strategies import POLICIES
from tests.context.plan_checks import NOTICE_TOKENS, check_plan
from tests.context.planned_conversation import Body, World, assistant, calls, result, user, words
from tests.selection import IS_FULL_RUN

KINDS = ("additive", "recursive", "checkpoint", "fade", "prune", "window", "window of turns", "additive, trimming only")
QUESTION = user("What does it say?")
NOTE = {"role": "system", "content": "The user opened a file."}
Sizes = Sequence[int]
Shape = Callable[[Sizes], list[Body]]


def document(tokens: int, name: str = "doc") -> Body:
    return user(words(tokens, name))


def results(sizes: Sizes) -> list[Body]:
    return [result(words(size, f"r{place}"), f"call_{place}") for place, size in enumerate(sizes)]


KNOWN_SHAPES: dict[str, Shape] = {
    "a document before the question": lambda sizes: [document(sum(sizes)), QUESTION],
    "a document after the question": lambda sizes: [QUESTION, document(sum(sizes))],
    "a document in the question": lambda sizes: [user("What does it say?\n" + words(sum(sizes)))],
    "files before the question": lambda sizes: [*map(document, sizes), QUESTION],
    "files around the question": lambda sizes: [document(sizes[0]), QUESTION, *map(document, sizes[1:])],
    "a note between document and question": lambda sizes: [document(sum(sizes)), NOTE, QUESTION],
    "a note before the document": lambda sizes: [NOTE, document(sum(sizes)), QUESTION],
    "a long note": lambda sizes: [{"role": "system", "content": words(sum(sizes))}, QUESTION],
    "messages of a group": lambda sizes: [
        user(f"Ann {at}: {words(size // 4)}") for at, size in enumerate([*sizes] * 4)
    ],
    "a group with another assistant": lambda sizes: [
        document(sizes[0]),
        assistant(words(sizes[1], "bot")),
        document(sizes[2]),
        QUESTION,
    ],
}
"""What follows a stored answer."""
AGENT_SHAPES: dict[str, Shape] = {
    "one result": lambda sizes: [result(words(sum(sizes)))],
    "results of one round": results,
    "a result and a word of the user's": lambda sizes: [*results(sizes), user("Go on.")],
    "a result and a document": lambda sizes: [*results(sizes[:1]), *map(document, sizes[1:])],
    "two rounds at once": lambda sizes: [*results(sizes[:1]), calls("read"), *results(sizes[1:2])],
    "three rounds at once": lambda sizes: [
        *results(sizes[:1]),
        calls("read"),
        *results(sizes[1:2]),
        calls("read"),
        *results(sizes[2:3]),
    ],
    "two rounds and a question": lambda sizes: [*results(sizes[:1]), calls("read"), *results(sizes[1:2]), QUESTION],
    "a round with long arguments": lambda sizes: [
        *results(sizes[:1]),
        calls("write", arguments='{"text": "' + words(sizes[1]) + '"}'),
        *results(sizes[2:3]),
    ],
    "a note after the result": lambda sizes: [*results(sizes), NOTE],
    "many small results": lambda sizes: results([max(8, size // 8) for size in [*sizes] * 8]),
}
"""What follows stored calls."""


def turns(number: int, tokens: int) -> list[Body]:
    return [body for _ in range(number) for body in (user(words(tokens)), assistant(words(tokens, "said")))]


def check_new_is_whole(world: World, first_new_seq: int, decided: Plan) -> None:
    """Every new message is shown as it is, if all of them fit beside the instructions and a notice."""
    check_plan(world, decided)
    assert decided.fits
    rendered = world.render(decided)
    assert all(entry.message.raw in rendered for entry in world.log[first_new_seq:]), (world.policy.name, decided.notes)


SHAPES = {
    **{name: ([], shape) for name, shape in KNOWN_SHAPES.items()},
    **{name: ([user("Find it."), calls("read", "read", "read")], shape) for name, shape in AGENT_SHAPES.items()},
}
CASES = [(kind, window) for kind in KINDS for window in ((4_096, 8_192, 32_768) if IS_FULL_RUN else (4_096,))]
LARGE_CASES = [("additive", 128_000), ("checkpoint", 1_000_000)] if IS_FULL_RUN else [("additive", 128_000)]
HISTORIES = [(4, 0.3), (0, 0.85), (9, 0.85), *([(9, 0.3), (4, 0.85)] if IS_FULL_RUN else [])]
"""How many turns stand before, and how much of the window the new messages take."""


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "first contact"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("cases", [CASES, LARGE_CASES], ids=["small", "large"])
def test_every_new_message_is_whole_where_all_that_is_new_fits(
    name: str, stored: bool, cases: Sequence[tuple[str, int]]
) -> None:
    """After a short and a long history, at a third of the window and at most of it."""
    opened, shape = SHAPES[name]
    for kind, window in cases:
        for history_turns, share in HISTORIES:
            if not stored and "another assistant" in name:
                continue
            history, new = turns(history_turns, window // 14), shape([round(window * share / 3)] * 3)
            bodies = [*history, *opened]
            world = World(window, POLICIES.get(kind, ContextPolicy()), [*bodies, *new])
            world.new_from_seq = len(bodies) if stored else 0
            # Where nothing is known, the whole turn is new.
            check_new_is_whole(world, len(bodies) if stored else len(history), world.settle())


@given(
    kind=st.sampled_from(KINDS),
    window=st.sampled_from([2_048, 4_096, 8_192, 32_768]),
    history=st.lists(st.tuples(st.sampled_from([10, 200, 900, 4_000]), st.integers(0, 2)), max_size=10),
    new=st.lists(
        st.tuples(st.sampled_from(["user", "system", "round"]), st.integers(4, 5_000)), min_size=1, max_size=6
    ),
    called=st.booleans(),
)
def test_of_generated_requests_every_new_message_is_whole_where_all_that_is_new_fits(
    kind: str, window: int, history: list[tuple[int, int]], new: list[tuple[str, int]], called: bool
) -> None:
    bodies: list[Body] = []
    for tokens, rounds in history:
        bodies.append(user(words(tokens)))
        for _ in range(rounds):
            bodies += [calls("read"), result(words(tokens, "found"))]
        bodies.append(assistant(words(tokens, "said")))
    said: list[Body] = [result(words(50))] if called else []
    bodies += [user("Find it."), calls("read")] if called else []
    for role, tokens in new:
        said += (
            [calls("read"), result(words(tokens))] if role == "round" else [{"role": role, "content": words(tokens)}]
        )
    world = World(window, POLICIES.get(kind, ContextPolicy()), [*bodies, *said], new_from_seq=len(bodies))
    decided = world.settle()
    check_plan(world, decided)
    first = len(bodies)
    new_tokens = sum(entry.tokens for entry in world.log[first:])
    # The calls that new results answer are shown with them, and so is the question that they belong to.
    beside = sum(entry.tokens for entry in world.log[first - 2 : first]) if called else 0
    if world.instructions_tokens + new_tokens + beside + 2 * NOTICE_TOKENS <= world.budget.limit:
        check_new_is_whole(world, first, decided)


@pytest.mark.parametrize("kind", KINDS)
def test_of_new_messages_that_do_not_fit_the_oldest_is_cut_with_a_mark(kind: str) -> None:
    bodies = [document(3_000, "first"), document(3_000, "second"), document(3_000, "third"), QUESTION]
    world = World(8_192, POLICIES.get(kind, ContextPolicy()), [*turns(3, 300), *bodies], new_from_seq=6)
    decided = world.settle()
    check_plan(world, decided)
    rendered = world.render(decided)
    whole = [entry.message.raw in rendered for entry in world.log[-4:]]
    assert whole == [False, True, True, True]
    assert "[…" in str(world.shown(decided, len(world.log) - 4)["content"])
    assert decided.prompt_tokens >= 0.9 * world.budget.limit
