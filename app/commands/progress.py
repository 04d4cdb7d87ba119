"""Shows the progress of a long command on standard error: a bar on a terminal, elsewhere a plain line every ten
seconds. Standard output is left to the command's results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

PLAIN_LINE_INTERVAL_SECONDS: Final = 10.0
"""The least time between two plain lines."""
BAR_WIDTH: Final = 12


class CommandProgress:
    """Counts what a command has done, and shows the count while the command runs.

    Args:
        activity: what the command does, such as "exporting".
        unit: what is counted, in the plural.
        quiet: show nothing at all.
        describe_interruption: returns what Ctrl-C leaves, and how to go on; it is printed also with `quiet`.
        console: where the progress is shown; None: standard error.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        activity: str,
        unit: str,
        *,
        quiet: bool = False,
        describe_interruption: Callable[[], str] | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit, self._quiet, self._clock = unit, quiet, clock
        self._describe_interruption = describe_interruption
        self._console = console or Console(stderr=True, highlight=False)
        self._shows_bar = not quiet and self._console.is_terminal and not self._console.is_dumb_terminal
        columns = (
            TextColumn("{task.description}", table_column=Column(min_width=len(activity))),
            BarColumn(BAR_WIDTH, table_column=Column(min_width=BAR_WIDTH)),
            _FiguresColumn(unit),
        )
        # Standard output is not redirected through the bar: it holds results, and often goes to a file or a pipe.
        self._bar = Progress(*columns, console=self._console, transient=True, redirect_stdout=False, get_time=clock)
        self._task_id = self._bar.add_task(activity, total=None, note="")
        self._task = self._bar.tasks[0]
        self._last_line_at = clock()

    @property
    def is_quiet(self) -> bool:
        return self._quiet

    def __enter__(self) -> Self:
        if self._shows_bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shows_bar:
            self._bar.stop()
        if isinstance(error, KeyboardInterrupt) and self._describe_interruption is not None:
            print(f"concertina: interrupted. {self._describe_interruption()}", file=sys.stderr)

    def set_total(self, total: int) -> None:
        """Sets the expected number of units. Without it, no remaining time is shown."""
        self._bar.update(self._task_id, total=total)

    def advance(self, count: int = 1) -> None:
        """Counts `count` more units as done."""
        self._bar.advance(self._task_id, count)
        self._print_line_if_due()

    def set_note(self, text: str) -> None:
        """Sets the text that is shown after the counts, until the next call."""
        self._bar.update(self._task_id, note=text)
        self._print_line_if_due()

    def print_line(self, line: str) -> None:
        """Prints a line that stays on the screen: a finished step, or the result at the end."""
        if not self._quiet:
            self._console.print(Text(line), soft_wrap=True)

    def format_elapsed(self) -> str:
        """Returns the time since the start, in the form of `format_duration`."""
        return format_duration(self._task.elapsed or 0)

    def _print_line_if_due(self) -> None:
        now = self._clock()
        if not self._shows_bar and now - self._last_line_at >= PLAIN_LINE_INTERVAL_SECONDS:
            self._last_line_at = now
            self.print_line(f"{self._task.description}: {_format_figures(self._task, self._unit)}")


class _FiguresColumn(ProgressColumn):
    """Shows `1,234 of 5,678 messages, 412/s, 12 s left; 3 conversations` in one line, cut off if the terminal is
    narrow."""

    def __init__(self, unit: str) -> None:
        super().__init__(table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._unit = unit

    def render(self, task: Task) -> Text:
        return Text(_format_figures(task, self._unit))


def pluralize(count: int, singular: str) -> str:
    """Returns a count with its noun: `1 conversation`, `1,234 conversations`."""
    return f"{count:,} {singular if count == 1 else singular + 's'}"


def format_duration(seconds: float) -> str:
    """Returns a duration as text: `0.4 s`, `12 s`, `3:05 min`, `1:02:05 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds_left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02} h" if hours else f"{minutes}:{seconds_left:02} min"


def _format_figures(task: Task, unit: str) -> str:
    done, elapsed = int(task.completed), task.elapsed
    # A running gateway stores more while the command runs, so more may be done than was counted at the start.
    parts = [f"{done:,} {unit}" if task.total is None else f"{done:,} of {max(done, int(task.total)):,} {unit}"]
    if elapsed:
        parts.append(f"{done / elapsed:,.0f}/s")
    # Without a total, or before the first unit is done, the remaining time cannot be estimated.
    if elapsed and task.total and done:
        seconds = max(0.0, task.total - done) * elapsed / done
        parts.append(f"{format_duration(seconds) if seconds >= 60 else f'{seconds:.0f} s'} left")
    note = task.fields["note"]
    return ", ".join(parts) + (f"; {note}" if note else "")
