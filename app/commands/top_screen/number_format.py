"""Numbers as people read them in little room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

UNKNOWN: Final = "–"
BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS: Final = "_.-:=+*#"
PLAIN: Final = str.maketrans(
    {"·": "|", "–": "-", "…": "~", "×": "x", "─": "-", **dict(zip(BLOCKS, PLAIN_BLOCKS, strict=True))}
)
"""For terminals that show nothing but ASCII."""
_STEPS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(number: float | None) -> str:
    """`12,345`, `1.23M`."""
    if number is None:
        return UNKNOWN
    if number < 100_000:
        return f"{number:,.0f}"
    size, letter = next((size, letter) for size, letter in _STEPS if number >= size * 0.9995)
    return f"{number / size:.3g}{letter}"


def rate(number: float | None) -> str:
    """`0.42/s`, `1.2k/s`."""
    if number is None:
        return UNKNOWN
    if number < 10:
        return f"{number:.2g}/s" if number >= 0.01 else "0/s"
    return f"{count(number) if number < 1_000 or number >= 100_000 else f'{number / 1_000:.3g}k'}/s"


def share(part: float | None, whole: float | None) -> str:
    """`12.3 %`; unknown of nothing."""
    return UNKNOWN if not whole or part is None else f"{100 * part / whole:.1f} %"


def dollars(amount: float | None) -> str:
    """`$1.23`, `$0.0042`; unknown where no price is."""
    if amount is None:
        return UNKNOWN
    return f"${amount:,.2f}" if abs(amount) >= 1 or amount == 0 else f"${amount:.4f}"


def latency(seconds: float | None) -> str:
    """`0.4 ms`, `120 ms`, `1.24 s`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.01 else f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.0f} s"


def uptime(seconds: float) -> str:
    """`42s`, `3h 05m`, `12d 4h`."""
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes:02}m" if hours else f"{minutes}m {left:02}s" if minutes else f"{left}s"


def spark(values: Sequence[float | None]) -> str:
    """A column for each value, blank where there is none; the largest fills its column."""
    most = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else BLOCKS[_level(value, most)] for value in values)


def shown(text: Any) -> str:
    """What others have named, without anything that could steer a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def _level(value: float, most: float) -> int:
    return 0 if most <= 0 or value <= 0 else max(1, round(value / most * (len(BLOCKS) - 1)))
