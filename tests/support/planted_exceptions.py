"""Exceptions that are raised at a chosen line of a function, once: what no test could make the line do by itself."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

HARMLESS = ("try:", "return True", "else:")
"""Lines at which nothing can fail. After `return True` the work is done, and nothing is left that could be lost."""


class PlantedError(Exception):
    """Was planted by a test."""


class Plant:
    """A planted exception: raised when its line is run for the first time after it was armed, in whatever thread."""

    def __init__(self, code: CodeType, line: int, error: Callable[[], BaseException]) -> None:
        self._code, self._line, self._error = code, line, error
        self.is_armed = self.was_reached = False

    def trace_call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._trace_line if frame.f_code is self._code and not self.was_reached else None

    def _trace_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and frame.f_lineno == self._line and self.is_armed and not self.was_reached:
            self.was_reached = True
            raise self._error()
        return self._trace_line


def list_lines(*functions: Any) -> list[tuple[CodeType, int]]:
    """Returns each line of the functions' bodies at which something can fail, with its code."""
    codes = [getattr(function, "__wrapped__", function).__code__ for function in functions]
    return [
        (code, line)
        for code in codes
        for line in sorted({line for _, _, line in code.co_lines() if line and line > code.co_firstlineno})
        if linecache.getline(code.co_filename, line).strip() not in HARMLESS
    ]


@contextmanager
def plant_exception(
    code: CodeType, line: int, error: Callable[[], BaseException] = PlantedError, *, is_armed: bool = True
) -> Iterator[Plant]:
    """Plants an exception at a line, also for threads that begin in the block."""
    plant, before = Plant(code, line, error), sys.gettrace()
    plant.is_armed = is_armed
    sys.settrace(plant.trace_call)
    threading.settrace(plant.trace_call)
    try:
        yield plant
    finally:
        plant.is_armed = False
        threading.settrace(before)  # type: ignore[arg-type, unused-ignore]  # None ends it
        sys.settrace(before)
