"""CPU time of one plan, for each policy: over a log of 10,000 messages when nothing is to be done, at first contact
with a window that it does not fit, and on the turn after that; and over long tool results, whose time must grow no
faster than their text. Tokens are counted by a stand-in that takes each text apart with a regular expression."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from app.assembly.providers_and_routes import build_policy
from app.context.plan.policy import ContextPolicy
from app.settings import load_settings
from tests.benchmarks.quality.texts import Prose
from tests.context.planned_conversation import Body, World, assistant, calls, result, user

MESSAGES: Final = 10_000
TEXT_CHARS: Final = 400
RESULTS: Final = 60
RESULT_CHARS: Final = 10_000
TIMES: Final = (1, 2, 4)
KINDS: Final = ("additive", "checkpoint", "fade", "prune", "window")
RUNS: Final = 5
WINDOW_DIVISOR: Final = 20
"""The narrow window is this small a part of the log."""
MOST_MS, MOST_IDLE_MS = 20.0, 2.0


def measure(policy: ContextPolicy, *, messages: int = MESSAGES) -> dict[str, float]:
    """Milliseconds of CPU time, the best of several plans each."""
    bodies = talk(messages)
    wide, narrow = World(policy=policy, bodies=bodies), World(policy=policy, bodies=bodies)
    total = wide.log[-1].tokens_total
    wide.window, narrow.window = 2 * total, total // WINDOW_DIVISOR
    found = {
        "everything fits": best_ms(lambda: wide.plan(loaded=False)),
        "first contact": best_ms(narrow.plan),
    }
    narrow.settle(most_replans=messages)
    narrow.say(user("And what comes next?"))
    return {**found, "the turn after": best_ms(lambda: _planned(narrow))}


def growth(policy: ContextPolicy, *, results: int = RESULTS, times: Sequence[int] = TIMES) -> list[float]:
    """Milliseconds of CPU time to shorten the same tool results, so many times as long each."""
    found = []
    for factor in times:
        world = World(policy=policy, bodies=work(results, RESULT_CHARS * factor))
        world.window = world.log[-1].tokens_total // 4
        found.append(best_ms(partial(world.plan, "never")))
    return found


def talk(messages: int) -> list[Body]:
    """A plain conversation that ends with a question."""
    prose = Prose(1)
    texts = [prose.of(TEXT_CHARS) for _ in range(50)]
    return [user(f"{at} {texts[at % 50]}") if at % 2 == 0 else assistant(texts[at % 50]) for at in range(messages | 1)]


def work(results: int, result_chars: int) -> list[Body]:
    """An agent's turns, each with one tool result."""
    prose = Prose(2)
    bodies: list[Body] = []
    for at in range(results):
        bodies += (user(f"Step {at}"), calls("read_file"), result(prose.of(result_chars)), assistant("Read."))
    return [*bodies, user("What did you find?")]


def best_ms(call: Callable[[], object]) -> float:
    """Milliseconds of CPU time of a call: the least of several."""
    taken = []
    for _ in range(RUNS):
        begun = time.process_time()
        call()
        taken.append((time.process_time() - begun) * 1000)
    return min(taken)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=MESSAGES)


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    settings = load_settings(environ={})
    results: dict[str, Any] = {}
    first_times = (f"everything fits (≤ {MOST_IDLE_MS:g})", f"first contact (≤ {MOST_MS:g})")
    table = Table("ms of CPU", *first_times, f"the turn after (≤ {MOST_IDLE_MS:g})", "results ×1, ×2, ×4")
    for kind in KINDS:
        if kind not in settings.policies:
            console.print(f"{kind} is not there")
            continue
        policy = build_policy(settings, kind)
        found, longer = measure(policy, messages=options.messages), growth(policy)
        results[kind] = {**found, "growth": longer}
        table.add_row(kind, *(f"{value:.2f}" for value in found.values()), ", ".join(f"{one:.1f}" for one in longer))
    console.print(table)
    return results


def _planned(world: World) -> object:
    """A plan as a request makes it: the log is read only if the plan asks for it."""
    decided = world.plan(loaded=False)
    return world.plan() if decided.needs_tail else decided
