"""How far a long command has come, told on stderr: a bar on a terminal, elsewhere a plain line every now and then.

Standard output is left to what the command gives out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

LINE_SECONDS: Final = 10.0
"""Between two plain lines."""
BAR_COLUMNS: Final = 12


class Telling:
    """Counts what a command has done, and says so while it runs.

    Args:
        doing: what the command does, such as "exporting".
        unit: what is counted, in the plural.
        quiet: say nothing at all.
        console: where to; without it stderr.
        clock: seconds, only going forward.
    """

    def __init__(
        self,
        doing: str,
        unit: str,
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing, self._unit, self._quiet = doing, unit, quiet
        self._console = console or Console(stderr=True, highlight=False)
        self._clock = clock
        self._total: int | None = None
        self._done = 0
        self._note = ""
        self._began = self._told = clock()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    @property
    def quiet(self) -> bool:
        return self._quiet

    def __enter__(self) -> Self:
        self._began = self._told = self._clock()
        if not self._quiet and self._console.is_terminal and not self._console.is_dumb_terminal:
            columns = (
                TextColumn("{task.description}", table_column=Column(min_width=len(self._doing))),
                BarColumn(BAR_COLUMNS, table_column=Column(min_width=BAR_COLUMNS)),
                _Figures(self._unit),
            )
            self._bar = Progress(*columns, console=self._console, transient=True, redirect_stdout=False)
            self._task = self._bar.add_task(self._doing, total=None, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def expect(self, total: int) -> None:
        """Of how many it is going to be."""
        self._total = total
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._task, count)
        self._tell_now_and_then()

    def note(self, text: str) -> None:
        """What else there is to say, until the next note."""
        self._note = text
        if self._bar is not None:
            self._bar.update(self._task, note=text)
        self._tell_now_and_then()

    def say(self, line: str) -> None:
        """A line that stays: a step that was taken, or what has been done at the end."""
        if not self._quiet:
            self._console.print(Text(line), soft_wrap=True)

    def took(self) -> str:
        """How long it took, for people."""
        return duration(self._clock() - self._began)

    def _tell_now_and_then(self) -> None:
        now = self._clock()
        if self._bar is None and now - self._told >= LINE_SECONDS:
            self._told = now
            self.say(self._line(now))

    def _line(self, now: float) -> str:
        pace = self._done / (now - self._began)
        parts = [f"{self._doing}: {_counts(self._done, self._total, self._unit)}", f"{pace:,.0f}/s"]
        if self._total and pace:
            parts.append(_left((self._total - self._done) / pace))
        return ", ".join(parts) + (f"; {self._note}" if self._note else "")


class _Figures(ProgressColumn):
    """`1,234 of 5,678 messages, 412/s, 12 s left; 3 conversations`, in one line whatever the width."""

    def __init__(self, unit: str) -> None:
        super().__init__(table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._unit = unit

    def render(self, task: Task) -> Text:
        told = _counts(int(task.completed), None if task.total is None else int(task.total), self._unit)
        if task.speed:
            told += f", {task.speed:,.0f}/s"
            told += f", {_left(task.time_remaining)}" if task.time_remaining else ""
        note = task.fields["note"]
        return Text(f"{told}; {note}" if note else told)


def tell_interrupted(line: str) -> None:
    """What Ctrl-C leaves, and how to go on. Said even where nothing else is."""
    print(f"concertina: interrupted. {line}", file=sys.stderr)


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 conversation`, `1,234 conversations`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3:05 min`, `1:02:05 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    hours, rest = divmod(int(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02} h" if hours else f"{minutes}:{left:02} min"


def _left(seconds: float) -> str:
    return f"{duration(seconds) if seconds >= 60 else f'{seconds:.0f} s'} left"


def _counts(done: int, total: int | None, unit: str) -> str:
    return f"{done:,} {unit}" if total is None else f"{done:,} of {max(done, total):,} {unit}"
