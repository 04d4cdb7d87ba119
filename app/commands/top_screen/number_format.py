"""Formats numbers for people, in few characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

UNKNOWN_NUMBER: Final = "–"
SPARKLINE_BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS: Final = "_.-:=+*#"
ASCII_REPLACEMENTS: Final = str.maketrans(
    {"·": "|", "–": "-", "…": "~", "×": "x", "─": "-", **dict(zip(SPARKLINE_BLOCKS, ASCII_BLOCKS, strict=True))}
)
"""Replaces every character that the screen uses and that a terminal with ASCII only cannot show."""
_UNIT_STEPS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_count(number: float | None) -> str:
    """Returns a count as `12,345` or `1.23M`."""
    if number is None:
        return UNKNOWN_NUMBER
    if number < 100_000:
        return f"{number:,.0f}"
    # 0.9995: from there on, three digits would be rounded up to the next unit's 1.
    size, letter = next((size, letter) for size, letter in _UNIT_STEPS if number >= size * 0.9995)
    return f"{number / size:.3g}{letter}"


def format_rate(number: float | None) -> str:
    """Returns a rate as `0.42/s` or `1.2k/s`."""
    if number is None:
        return UNKNOWN_NUMBER
    if number < 10:
        return f"{number:.2g}/s" if number >= 0.01 else "0/s"
    return f"{format_count(number) if number < 1_000 or number >= 100_000 else f'{number / 1_000:.3g}k'}/s"


def format_percent(part: float | None, whole: float | None) -> str:
    """Returns a share as `12.3 %`; unknown if the whole is 0."""
    return UNKNOWN_NUMBER if not whole or part is None else f"{100 * part / whole:.1f} %"


def format_dollars(amount: float | None) -> str:
    """Returns US dollars as `$1.23` or `$0.0042`; None is unknown."""
    if amount is None:
        return UNKNOWN_NUMBER
    return f"${amount:,.2f}" if abs(amount) >= 1 or amount == 0 else f"${amount:.4f}"


def format_latency(seconds: float | None) -> str:
    """Returns a duration as `0.4 ms`, `120 ms` or `1.24 s`."""
    if seconds is None:
        return UNKNOWN_NUMBER
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.01 else f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.0f} s"


def format_uptime(seconds: float) -> str:
    """Returns a duration as `42s`, `3h 05m` or `12d 4h`."""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {seconds_left:02}s" if minutes else f"{seconds_left}s"


def draw_sparkline(values: Sequence[float | None]) -> str:
    """Returns a block character for each value, a space for None. The largest value gets the full block."""
    max_value = max((value for value in values if value is not None), default=0.0)
    return "".join(
        " " if value is None else SPARKLINE_BLOCKS[_choose_block_index(value, max_value)] for value in values
    )


def make_printable(text: Any) -> str:
    """Returns a text from outside with `?` for each character that could control the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def _choose_block_index(value: float, max_value: float) -> int:
    # The lowest block is for zero only: a small value must not look like nothing.
    return 0 if max_value <= 0 or value <= 0 else max(1, round(value / max_value * (len(SPARKLINE_BLOCKS) - 1)))
