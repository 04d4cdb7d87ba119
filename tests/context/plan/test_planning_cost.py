"""How much work a plan is: calls of the counter and characters that it is given, not time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from app.context.plan.outline import LOG_START
from app.context.plan.planner import plan_view
from app.conversation.conversation_types import LogMessage
from app.dialects.text_truncation import truncate_text
from tests.context.conversation_strategies import POLICIES
from tests.context.planned_conversation import Body, WordCounter, World, assistant, calls, result, user, words


class Meter(WordCounter):
    """Adds up the characters that it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.chars = 0

    def count(self, text: str) -> int:
        self.chars += len(text)
        return super().count(text)


def work_of(name: str, bodies: list[Body], *, window: int) -> Meter:
    world = World(window=window, policy=POLICIES[name], bodies=bodies)
    meter = Meter()
    plan_view(world.outline(), world.budget, world.policy, counter=meter, summarizer_input_tokens=window // 2)
    return meter


class Walked(list[LogMessage]):
    """Counts how often all of it is looked at, one after the other."""

    walks = 0

    def __iter__(self) -> Iterator[LogMessage]:
        self.walks += 1
        return super().__iter__()


def loops(turns: int, result_chars: int) -> list[Body]:
    text = "line of a file\n" * (result_chars // 15)
    turn = [user("q"), calls("read"), result(text), assistant("Read.")]
    return [*turn * turns, user("And?")]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_work_grows_no_faster_than_the_text_of_results(name: str) -> None:
    short, long = (work_of(name, loops(20, chars), window=chars) for chars in (4_000, 16_000))
    assert long.chars <= 8 * short.chars + 20_000


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_work_grows_no_faster_than_the_number_of_messages(name: str) -> None:
    few, many = (work_of(name, loops(turns, 600), window=turns * 100) for turns in (50, 400))
    assert many.calls <= 12 * few.calls + 100


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_view_that_fits_costs_a_few_counts_however_long_the_log(name: str) -> None:
    world = World(window=1_000_000, policy=POLICIES[name], bodies=[user("q"), assistant("a")] * 500)
    meter = Meter()
    decided = plan_view(
        world.outline(loaded=False), world.budget, world.policy, counter=meter, summarizer_input_tokens=500_000
    )
    assert meter.calls <= 8
    assert decided.needs_tail is None or {"keep_last", "clear_reasoning"} & {*world.policy.stage_names}


@pytest.mark.parametrize("name", ["additive", "recursive", "checkpoint", "fade", "prune", "window"])
def test_a_plan_walks_through_a_long_log_a_few_times_at_most(name: str) -> None:
    world = World(window=8_192, policy=POLICIES[name], bodies=loops(200, 600))
    log = Walked(world.log)
    outline = structs.replace(world.outline(start=LOG_START), tail=log)
    assert plan_view(outline, world.budget, world.policy, counter=Meter(), summarizer_input_tokens=4_096).boundary_seq
    assert log.walks <= 2


def test_a_text_without_any_newline_is_cut_by_place() -> None:
    text = words(200_000)
    assert len(truncate_text(text, 300)) <= 340
