"""Draws an overview as lines of text that fit a terminal. The most important lines come first; the table of models is
cut to the rows that are left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderResult
from rich.text import Text

from app.commands.top_screen.number_format import (
    ASCII_REPLACEMENTS,
    SPARKLINE_BLOCKS,
    draw_sparkline,
    format_count,
    format_dollars,
    format_latency,
    format_percent,
    format_rate,
    format_uptime,
    make_printable,
)
from app.commands.top_screen.rates import HOUR_SECONDS, TotalRates, compute_increments, downsample_last_hour

MIN_WIDTH, MAX_WIDTH = 40, 160
TALL_SCREEN_ROWS: Final = 32
"""On a terminal with at least this many rows, each error gets a row."""
MAX_ERROR_ROWS: Final = 6
LATENCY_NAMES: Final = ("first_byte_seconds", "request_seconds", "upstream_seconds", "store_seconds")
QUANTILES: Final = ("p50", "p95", "p99")
LABEL_WIDTH: Final = 12
"""The width of the labels at the left, in columns of the terminal."""
FIGURE_WIDTH: Final = 7
MODEL_COLUMNS: Final = (("requests", 9), ("errors", 8), ("prompt", 9), ("completion", 11), ("cached", 8), ("cost", 10))
GOOD_STYLE, BAD_STYLE, LABEL_STYLE, HEADING_STYLE = "green", "bold red", "dim", "bold cyan"


@dataclass(frozen=True, slots=True)
class OverviewSnapshot:
    """The answers of a gateway at one moment."""

    overview: Mapping[str, Any]
    address: str
    unreadiness_reason: str | None = None
    """Why the gateway is not ready, or that it is no longer reached; None: it is ready."""


class OverviewScreen:
    """Draws the latest snapshot.

    Args:
        footer: the last line of a live screen, which is cut to the terminal's height. Without a footer, all lines are
            drawn.
    """

    def __init__(self, snapshot: OverviewSnapshot, rates: TotalRates, footer: str = "") -> None:
        self.snapshot = snapshot
        self._rates = rates
        self._footer = footer
        self.drawn_size: ConsoleDimensions | None = None
        """The size of the terminal when the screen was last drawn."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.drawn_size = options.size
        width = min(options.max_width, MAX_WIDTH)
        for line in self.render_lines(width, options.size.height if self._footer else None):
            if options.ascii_only:
                line.plain = line.plain.translate(ASCII_REPLACEMENTS)
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis" if not options.ascii_only else "crop")
            yield line

    def render_lines(self, width: int, height: int | None) -> list[Text]:
        """Returns the screen in at most `height` lines (None: in as many as it takes)."""
        width = max(width, MIN_WIDTH)
        overview = self.snapshot.overview
        top = [
            self._render_head(),
            *self._render_current_figures(width),
            Text(),
            *self._render_totals(),
            *self._render_last_hour(width),
        ]
        end = list(self._render_errors(width, height))
        if self._footer:
            end.append(Text(self._footer, LABEL_STYLE))
        # Only the table of models may have any number of rows: it gets those that the other parts leave.
        model_rows = None if height is None else height - len(top) - len(end)
        middle = list(_render_model_table(overview.get("models") or [], width, model_rows))
        lines = [*top, *middle, *end]
        return lines if height is None else lines[:height]

    def _render_head(self) -> Text:
        overview = self.snapshot.overview
        line = Text.assemble(
            ("Concertina ", "bold"),
            make_printable(overview.get("version", "?")),
            f" · {make_printable(self.snapshot.address)} · ",
        )
        if self.snapshot.unreadiness_reason is None:
            line.append("ready", GOOD_STYLE)
        else:
            line.append(make_printable(self.snapshot.unreadiness_reason), BAD_STYLE)
        if overview.get("simulated"):
            line.append(" · SIMULATED MODEL", "yellow")
        workers = int(overview.get("workers") or 1)
        line.append(f" · up {format_uptime(overview.get('uptime_seconds') or 0)}")
        line.append(
            f" · {workers} worker{'' if workers == 1 else 's'} · {make_printable(overview.get('database', '?'))}"
        )
        return line

    def _render_current_figures(self, width: int) -> Iterator[Text]:
        """Yields load, traffic and latencies, side by side if the width allows it."""
        load, traffic, latencies = self._render_load(), self._render_traffic(), self._render_latencies()
        # A label with one, two or three figures; a space between two blocks. Together 80 columns.
        columns = (20, 27, 33)
        if width < sum(columns[:2]):
            yield from (*load, *traffic, *latencies)
            return
        if width < sum(columns):
            yield from _join_text_columns([load, traffic], columns)
            yield from latencies
            return
        # A wide terminal moves the blocks apart, but not so far that they no longer look like one table.
        spare = min(width - sum(columns), 24) // 2
        yield from _join_text_columns([load, traffic, latencies], [columns[0] + spare, columns[1] + spare, columns[2]])

    def _render_load(self) -> list[Text]:
        now = self.snapshot.overview.get("now") or {}
        names = {
            "in flight": "requests_in_flight",
            "streams": "streams_open",
            "compacting": "compactions_running",
            "background": "background_tasks",
            "store queue": "store_queue_depth",
        }
        return [_render_figure_row(label, format_count(now.get(name))) for label, name in names.items()]

    def _render_traffic(self) -> list[Text]:
        totals, rates = self.snapshot.overview["totals"], self._rates
        requests, errors = totals.get("requests") or 0, totals.get("errors") or 0
        return [
            _render_figure_row("requests", format_rate(rates.compute_rate("requests")), format_count(requests)),
            _render_figure_row(
                "failures",
                format_count(errors),
                format_percent(errors, requests),
                style=BAD_STYLE if errors else "bold",
            ),
            _render_figure_row("refusals", format_count(totals.get("refusals"))),
            _render_figure_row("tokens in", format_rate(rates.compute_rate("prompt_tokens"))),
            _render_figure_row("tokens out", format_rate(rates.compute_rate("completion_tokens"))),
        ]

    def _render_latencies(self) -> list[Text]:
        latencies = self.snapshot.overview.get("latency") or {}
        heading = Text(
            "latency".ljust(LABEL_WIDTH) + "".join(name.rjust(FIGURE_WIDTH) for name in QUANTILES), HEADING_STYLE
        )
        rows = [heading]
        for name in LATENCY_NAMES:
            values = latencies.get(name) or {}
            label = name.removesuffix("_seconds").replace("_", " ")
            rows.append(_render_figure_row(label, *(format_latency(values.get(quantile)) for quantile in QUANTILES)))
        return rows

    def _render_totals(self) -> Iterator[Text]:
        totals = self.snapshot.overview["totals"]
        sent = f"{format_count(totals.get('prompt_tokens'))} sent"
        saved_percent = format_percent(totals.get("saved_tokens"), totals.get("log_tokens"))
        saved = f"{format_count(totals.get('saved_tokens'))} saved ({saved_percent})"
        cached = f"{format_percent(totals.get('cached_tokens'), totals.get('reported_prompt_tokens'))} cached"
        answered = f"{format_count(totals.get('completion_tokens'))} answered"
        yield _render_labelled_text("tokens", f"{sent} · {saved} · {cached} · {answered}")
        cost, saved_usd = totals.get("cost_usd"), totals.get("saved_usd")
        cost_text = (
            "no prices are known"
            if cost is None
            else f"{format_dollars(cost)} so far · {format_dollars(saved_usd)} saved"
        )
        spent = (totals.get("summary_prompt_tokens") or 0) + (totals.get("summary_completion_tokens") or 0)
        yield _render_labelled_text("cost", f"{cost_text} · {format_count(spent)} tokens for summaries")
        yield _render_labelled_text("compactions", _format_nonzero_counts(totals.get("compactions") or {}))
        yield _render_labelled_text("answers saw", _format_nonzero_counts(totals.get("statuses") or {}))

    def _render_last_hour(self, width: int) -> Iterator[Text]:
        series = self.snapshot.overview.get("series") or {}
        samples, interval = series.get("samples") or [], float(series.get("interval_seconds") or 10)
        latencies: list[float | None] = [sample.get("first_byte_p95_seconds") for sample in samples]
        yield Text(f"{'─' * 3} last hour ".ljust(width, "─"), HEADING_STYLE)
        for label, name in (("requests", "requests"), ("tokens in", "prompt_tokens"), ("failures", "errors")):
            values = [increment / interval for increment in compute_increments(samples, name)]
            yield _render_sparkline(
                label,
                values,
                format_rate(max(values, default=None)),
                width,
                interval,
                BAD_STYLE if label == "failures" else GOOD_STYLE,
            )
        max_latency = format_latency(max((wait for wait in latencies if wait is not None), default=None))
        yield _render_sparkline("first byte", latencies, max_latency, width, interval, "yellow")

    def _render_errors(self, width: int, height: int | None) -> Iterator[Text]:
        errors = self.snapshot.overview.get("errors") or []
        if not errors:
            return
        texts = [
            f"{make_printable(error.get('code'))} ({error.get('status')}) ×{format_count(error.get('count'))}"
            for error in errors
        ]
        if height is not None and height < TALL_SCREEN_ROWS:
            yield _render_labelled_text("errors", " · ".join(texts))
            return
        yield Text(f"{'─' * 3} errors ".ljust(width, "─"), HEADING_STYLE)
        yield from (Text(f"  {text}") for text in (texts if height is None else texts[:MAX_ERROR_ROWS]))


def _render_model_table(models: Sequence[Mapping[str, Any]], width: int, max_rows: int | None) -> Iterator[Text]:
    """Yields a table of models in at most `max_rows` rows, heading included. Models that do not fit are counted in the
    last row."""
    columns: Sequence[tuple[str, int]] = MODEL_COLUMNS
    # On a narrow terminal the columns at the right are left out, so that the names of models stay readable.
    while len(columns) > 2 and width - sum(size for _, size in columns) < 2 * LABEL_WIDTH:
        columns = columns[:-1]
    name_width = width - sum(size for _, size in columns)
    heading = set_cell_size("─── models ", name_width) + "".join(name.rjust(size) for name, size in columns)
    if max_rows is not None and max_rows < 2:
        return
    yield Text(heading, HEADING_STYLE)
    if not models:
        yield Text("  none has been asked yet", LABEL_STYLE)
        return
    # If not all fit: one row less for the heading, one for the number of the others.
    shown_count = len(models) if max_rows is None or len(models) < max_rows else max_rows - 2
    for model in models[:shown_count]:
        yield _render_model_row(model, name_width, columns)
    if shown_count < len(models):
        yield Text(f"  … and {len(models) - shown_count} more", LABEL_STYLE)


def _render_model_row(model: Mapping[str, Any], name_width: int, columns: Sequence[tuple[str, int]]) -> Text:
    figures = {
        "requests": format_count(model.get("requests")),
        "errors": format_count(model.get("errors")),
        "prompt": format_count(model.get("prompt_tokens")),
        "completion": format_count(model.get("completion_tokens")),
        "cached": format_count(model.get("cached_tokens")),
        "cost": format_dollars(model.get("cost_usd")),
    }
    name = f"  {make_printable(model.get('provider'))}/{make_printable(model.get('model'))}"
    line = Text(
        set_cell_size(name if cell_len(name) <= name_width else set_cell_size(name, name_width - 1) + "…", name_width)
    )
    for column, size in columns:
        line.append(figures[column].rjust(size), BAD_STYLE if column == "errors" and model.get("errors") else "")
    return line


def _render_figure_row(label: str, *figures: str, style: str = "bold") -> Text:
    line = Text(label.ljust(LABEL_WIDTH), LABEL_STYLE)
    for figure in figures:
        line.append(figure.rjust(FIGURE_WIDTH), style)
    return line


def _render_labelled_text(label: str, text: str) -> Text:
    return Text.assemble((label.ljust(LABEL_WIDTH), LABEL_STYLE), text)


def _render_sparkline(
    label: str, values: Sequence[float | None], max_text: str, width: int, interval: float, style: str
) -> Text:
    max_label = f" max {max_text}".ljust(12)
    columns = max(8, width - LABEL_WIDTH - len(max_label))
    sparkline = draw_sparkline(downsample_last_hour(values, columns, max(1, round(HOUR_SECONDS / interval))))
    line = Text.assemble((label.ljust(LABEL_WIDTH), LABEL_STYLE), (sparkline, style), max_label)
    line.highlight_regex(f"{SPARKLINE_BLOCKS[0]}+", LABEL_STYLE)
    return line


def _join_text_columns(blocks: Sequence[Sequence[Text]], columns: Sequence[int]) -> Iterator[Text]:
    """Yields the lines of several blocks side by side, each block padded or cut to its width in `columns`."""
    for index in range(max(map(len, blocks))):
        line = Text()
        for block, size in zip(blocks, columns, strict=False):
            part = block[index].copy() if index < len(block) else Text()
            part.truncate(size, pad=True)
            line.append_text(part)
        yield line


def _format_nonzero_counts(counts: Mapping[str, Any]) -> str:
    parts = [
        f"{make_printable(name).replace('_', ' ')} {format_count(number)}" for name, number in counts.items() if number
    ]
    return " · ".join(parts) or "none yet"
