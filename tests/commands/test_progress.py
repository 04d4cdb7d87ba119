"""How far a long command has come: a bar, plain lines, or nothing."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from app.commands.progress import PLAIN_LINE_INTERVAL_SECONDS, CommandProgress, format_duration, pluralize


def telling(
    *, quiet: bool = False, is_terminal: bool = False
) -> tuple[CommandProgress, io.StringIO, Callable[[float], None]]:
    """What tells, what it has told, and how time is moved."""
    out, moments = io.StringIO(), [0.0]
    console = Console(file=out, force_terminal=is_terminal, width=120, highlight=False, color_system=None)

    def move(seconds: float) -> None:
        moments[0] += seconds

    return CommandProgress("exporting", "messages", quiet=quiet, console=console, clock=lambda: moments[0]), out, move


def test_elsewhere_than_on_a_terminal_a_line_comes_every_ten_seconds() -> None:
    told, out, move = telling()
    with told:
        told.set_total(4_000)
        for _ in range(25):
            move(1)
            told.advance(100)
        told.set_note("3 conversations, 1.2 MB")
        move(PLAIN_LINE_INTERVAL_SECONDS)
        told.advance(100)
    assert out.getvalue().splitlines() == [
        "exporting: 1,000 of 4,000 messages, 100/s, 30 s left",
        "exporting: 2,000 of 4,000 messages, 100/s, 20 s left",
        "exporting: 2,600 of 4,000 messages, 74/s, 19 s left; 3 conversations, 1.2 MB",
    ]


def test_without_a_total_no_time_is_promised() -> None:
    told, out, move = telling()
    with told:
        move(PLAIN_LINE_INTERVAL_SECONDS)
        told.advance(5)
    assert out.getvalue() == "exporting: 5 messages, 0/s\n"


def test_a_terminal_shows_a_bar_with_counts_and_takes_it_away_again() -> None:
    told, out, _ = telling(is_terminal=True)
    with told:
        told.set_total(2_000)
        told.advance(1_234)
        told.set_note("12 conversations")
    shown = out.getvalue()
    assert "exporting" in shown
    assert "1,234 of 2,000 messages" in shown
    assert "12 conversations" in shown
    assert shown.endswith("\x1b[2K")


def test_a_bar_stays_in_its_line_on_a_narrow_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, highlight=False, color_system=None)
    with CommandProgress("exporting", "messages", console=console) as told:
        told.set_total(2_000_000)
        told.advance(1_234_567)
        told.set_note("12,345 conversations, 1,234.5 MB")
    assert out.getvalue().count("\n") == 1  # with which the bar ends
    assert "exporting" in out.getvalue()


def test_a_bar_is_not_followed_by_plain_lines() -> None:
    told, out, move = telling(is_terminal=True)
    with told:
        move(PLAIN_LINE_INTERVAL_SECONDS)
        told.advance(5)
    assert "exporting: " not in out.getvalue()


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    told, out, move = telling(is_terminal=True)
    with told:
        move(PLAIN_LINE_INTERVAL_SECONDS)
        told.advance(5)
    assert out.getvalue() == "exporting: 5 messages, 0/s\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_to_be_quiet_says_nothing(is_terminal: bool) -> None:
    told, out, move = telling(quiet=True, is_terminal=is_terminal)
    with told:
        told.set_total(10)
        move(100)
        told.advance(10)
        told.set_note("all")
        told.print_line("done.")
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.44, "0.4 s"), (12, "12 s"), (59.4, "59 s"), (185, "3:05 min"), (3725, "1:02:05 h")]
)
def test_times_are_told_as_people_say_them(seconds: float, told: str) -> None:
    assert format_duration(seconds) == told


def test_one_is_not_many() -> None:
    assert [pluralize(count, "worker") for count in (1, 2, 1_000)] == ["1 worker", "2 workers", "1,000 workers"]
