"""Draws how the bills of one conversation grow, by the rule of the provider's prompt cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 300, 220, 44, 44, 54, 26
POINTS: Final = 150
COLORS: Final[Mapping[str, str]] = {
    "marks": "#2563eb",
    "no marks": "#dc2626",
    "end only": "#d97706",
    "no gateway": "#6b7280",
    "no gateway, end marked": "#a3a3a3",
}
MOST_SHOWN: Final = 3.0
"""A dearer bill leaves the picture at this many times the dearest bill with marks."""


def draw_bills(bills: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Returns an SVG picture with one panel for each rule.

    Args:
        bills: US dollars after each call, by rule and by who sets marks.
    """
    highest = MOST_SHOWN * max(rows["marks"][-1] for rows in bills.values())
    width = LEFT + (WIDTH + GAP + LEFT) * len(bills)
    panels = [_draw_panel(LEFT + (WIDTH + GAP + LEFT) * at, *one, highest) for at, one in enumerate(bills.items())]
    legend = [
        f'<rect x="{LEFT + 190 * at}" y="{TOP + HEIGHT + 30}" width="14" height="4" fill="{color}"/>'
        f'<text x="{LEFT + 190 * at + 20}" y="{TOP + HEIGHT + 36}">{name}</text>'
        for at, (name, color) in enumerate(COLORS.items())
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + BOTTOM}">',
            '<g font-family="sans-serif" font-size="12" fill="#6b7280">',
            "<title>The bill of one conversation as it grows, by the rule of the provider's prompt cache</title>",
            *panels,
            *legend,
            "</g></svg>\n",
        ]
    )


def _draw_panel(left: int, rule: str, rows: Mapping[str, Sequence[float]], highest: float) -> str:
    base = TOP + HEIGHT
    parts = [f'<text x="{left}" y="{TOP - 16}" font-size="14" font-weight="bold">{rule}</text>']
    for share in (0, 0.5, 1):
        y = base - HEIGHT * share
        parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y}" y2="{y}" stroke="#d1d5db"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">${highest * share:.2f}</text>')
    for name, bill in rows.items():
        every = max(1, len(bill) // POINTS)
        shown = [(at / len(bill), dollars) for at, dollars in enumerate(bill) if at % every == 0 and dollars <= highest]
        line = " ".join(f"{left + WIDTH * at:.1f},{base - HEIGHT * dollars / highest:.1f}" for at, dollars in shown)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLORS[name]}" stroke-width="2"/>')
    return "\n".join(parts)
