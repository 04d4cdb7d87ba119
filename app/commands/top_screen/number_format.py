"""Numbers as people read them in little room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

UNKNOWN_NUMBER: Final = "–"
SPARKLINE_BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS: Final = "_.-:=+*#"
ASCII_REPLACEMENTS: Final = str.maketrans(
    {"·": "|", "–": "-", "…": "~", "×": "x", "─": "-", **dict(zip(SPARKLINE_BLOCKS, ASCII_BLOCKS, strict=True))}
)
"""For terminals that show nothing but ASCII."""
_UNIT_STEPS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_count(number: float | None) -> str:
    """`12,345`, `1.23M`."""
    if number is None:
        return UNKNOWN_NUMBER
    if number < 100_000:
        return f"{number:,.0f}"
    size, letter = next((size, letter) for size, letter in _UNIT_STEPS if number >= size * 0.9995)
    return f"{number / size:.3g}{letter}"


def format_rate(number: float | None) -> str:
    """`0.42/s`, `1.2k/s`."""
    if number is None:
        return UNKNOWN_NUMBER
    if number < 10:
        return f"{number:.2g}/s" if number >= 0.01 else "0/s"
    return f"{format_count(number) if number < 1_000 or number >= 100_000 else f'{number / 1_000:.3g}k'}/s"


def format_percent(part: float | None, whole: float | None) -> str:
    """`12.3 %`; unknown of nothing."""
    return UNKNOWN_NUMBER if not whole or part is None else f"{100 * part / whole:.1f} %"


def format_dollars(amount: float | None) -> str:
    """`$1.23`, `$0.0042`; unknown where no price is."""
    if amount is None:
        return UNKNOWN_NUMBER
    return f"${amount:,.2f}" if abs(amount) >= 1 or amount == 0 else f"${amount:.4f}"


def format_latency(seconds: float | None) -> str:
    """`0.4 ms`, `120 ms`, `1.24 s`."""
    if seconds is None:
        return UNKNOWN_NUMBER
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.01 else f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.0f} s"


def format_uptime(seconds: float) -> str:
    """`42s`, `3h 05m`, `12d 4h`."""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {seconds_left:02}s" if minutes else f"{seconds_left}s"


def draw_sparkline(values: Sequence[float | None]) -> str:
    """A column for each value, blank where there is none; the largest fills its column."""
    max_value = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else SPARKLINE_BLOCKS[_block_index(value, max_value)] for value in values)


def make_printable(text: Any) -> str:
    """What others have named, without anything that could steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def _block_index(value: float, max_value: float) -> int:
    return 0 if max_value <= 0 or value <= 0 else max(1, round(value / max_value * (len(SPARKLINE_BLOCKS) - 1)))
