"""Bar charts as SVG files, one for light pages and one for dark ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

WIDTH: Final = 720
BAR_HEIGHT, ROW_HEIGHT, TOP, BOTTOM = 18, 28, 44, 30
NAME_WIDTH, VALUE_WIDTH = 170, 90
SCHEMES: Final = {
    "light": {"text": "#1f2328", "faint": "#59636e", "ours": "#0b6e4f", "other": "#8c959f"},
    "dark": {"text": "#e6edf3", "faint": "#9198a1", "ours": "#3fb68b", "other": "#656c76"},
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A gateway's value. `label` is what stands behind the bar."""

    name: str
    value: float
    label: str
    is_ours: bool = False


def write_chart(folder: Path, name: str, title: str, note: str, bars: Sequence[Bar]) -> None:
    """Writes `NAME-light.svg` and `NAME-dark.svg`. Bars begin at 0; the longest takes the width."""
    for scheme in SCHEMES:
        (folder / f"{name}-{scheme}.svg").write_text(render_chart(title, note, bars, scheme))


def render_chart(title: str, note: str, bars: Sequence[Bar], scheme: str) -> str:
    """Returns a chart in the colours of a scheme. It has no background of its own."""
    colours = SCHEMES[scheme]
    height = TOP + ROW_HEIGHT * len(bars) + BOTTOM
    highest = max((bar.value for bar in bars), default=0) or 1
    room = WIDTH - NAME_WIDTH - VALUE_WIDTH
    text, faint = f'fill="{colours["text"]}"', f'fill="{colours["faint"]}"'
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<text x="0" y="20" font-size="15" font-weight="600" {text}>{escape(title)}</text>',
    ]
    for row, bar in enumerate(bars):
        top = TOP + ROW_HEIGHT * row
        width = max(1.0, room * bar.value / highest)
        style = f'y="{top + BAR_HEIGHT - 5}" {text}' + (' font-weight="600"' if bar.is_ours else "")
        fill = f'fill="{colours["ours" if bar.is_ours else "other"]}"'
        parts += [
            f'<text x="{NAME_WIDTH - 10}" text-anchor="end" {style}>{escape(bar.name)}</text>',
            f'<rect x="{NAME_WIDTH}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2" {fill}/>',
            f'<text x="{NAME_WIDTH + width + 8:.1f}" {style}>{escape(bar.label)}</text>',
        ]
    parts += [f'<text x="0" y="{height - 8}" font-size="12" {faint}>{escape(note)}</text>', "</svg>"]
    return "\n".join(parts) + "\n"
