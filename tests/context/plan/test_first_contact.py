"""A history far above the window, at first contact or after a switch to a smaller window: what stays verbatim."""

from __future__ import annotations

import pytest

from app.context.plan.outline import LastView, Plan
from tests.context.plan_checks import check_plan
from tests.context.planned_conversation import Body, World, assistant, user, words

SHARES = (0.2, 0.5, 1.0)
"""How long summaries are, as a share of what they may be."""


class ShortSummaries(World):
    """Its summarizer uses a share of what it may."""

    share = 1.0

    def compact(self, decided: Plan) -> None:
        policy = self.policy
        limit = max(16, int(self.share * min(4_096, max(256, self.window // 16))))
        self.policy = type(policy)(summarizer=type(policy.summarizer)(max_summary_tokens=limit))
        super().compact(decided)
        self.policy = policy


def history(tokens: int, turn_tokens: int) -> list[Body]:
    count = max(1, tokens // turn_tokens)
    return [body for _ in range(count) for body in (user(words(turn_tokens // 2)), assistant(words(turn_tokens // 2)))]


def send(world: World) -> Plan:
    """One turn: at most one round of summaries before it is sent, the rest in the background."""
    decided = world.plan()
    if decided.is_cut_to_fit and any(not one.folds for one in decided.to_summarize):
        world.compact(decided)
        decided = world.plan()
        assert not decided.is_cut_to_fit or all(one.folds for one in decided.to_summarize), "one round is enough"
    check_plan(world, decided)
    assert decided.fits
    world.remember(decided)
    return decided


def answer(world: World, tokens: int) -> None:
    """The answer is stored, summaries are made behind it, and the next question comes."""
    world.say(assistant(words(tokens)))
    for _ in range(8):
        ahead = world.plan("ahead")
        if not ahead.to_summarize:
            break
        world.compact(ahead)
    world.say(user(words(tokens)))


def check_tail(world: World, decided: Plan) -> None:
    """At least four messages, or a fifth of the window, are verbatim before the question."""
    tail = world.log[decided.boundary_seq : -1]
    assert len(tail) >= 4 or sum(entry.tokens for entry in tail) >= 0.2 * world.window, decided.notes


@pytest.mark.parametrize("window", [3_000, 8_192, 32_000, 128_000])
@pytest.mark.parametrize("times", [2, 8, 12, 40])
@pytest.mark.parametrize("share", SHARES)
def test_a_long_history_keeps_a_verbatim_tail_and_uses_the_window(window: int, times: int, share: float) -> None:
    turn_tokens = max(100, window // 40)
    world = ShortSummaries(window, bodies=[*history(window * times, turn_tokens), user("And now?")], new_from_seq=0)
    world.share, world.summarizer_share = share, 0.85
    check_tail(world, send(world))
    for turn in range(4):
        answer(world, turn_tokens // 2)
        decided = send(world)
        check_tail(world, decided)
        # Later an ordinary compaction makes room.
        assert turn or decided.prompt_tokens >= 0.45 * window, decided.notes


@pytest.mark.parametrize("share", SHARES)
def test_a_conversation_that_switches_between_windows_keeps_a_tail_in_each(share: float) -> None:
    world = ShortSummaries(128_000, bodies=[*history(70_000, 300), user("And now?")], new_from_seq=0)
    world.share, world.summarizer_share = share, 0.85
    last_views: dict[int, LastView] = {}
    for window in (128_000, 8_192, 32_000, 4_096, 128_000, 4_096, 8_192, 32_000):
        world.window, world.last = window, last_views.get(window, LastView())
        decided = send(world)
        check_tail(world, decided)
        is_first = window not in last_views
        answer(world, 150)
        last_views[window] = world.last
        assert not is_first or decided.prompt_tokens >= 0.45 * min(window, 70_000), (window, decided.notes)
