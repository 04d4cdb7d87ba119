"""An overview as lines of text that fit a terminal: what matters most first, tables cut to the rows that are left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderResult
from rich.text import Text

from app.commands.top_screen.number_format import (
    BLOCKS,
    PLAIN,
    count,
    dollars,
    latency,
    rate,
    share,
    shown,
    spark,
    uptime,
)
from app.commands.top_screen.rates import HOUR_SECONDS, Pace, growth, in_columns

LEAST_WIDTH, MOST_WIDTH = 40, 160
TALL: Final = 32
"""From so many rows on, errors get a row each."""
ERROR_ROWS: Final = 6
LATENCIES: Final = ("first_byte_seconds", "request_seconds", "upstream_seconds", "store_seconds")
QUANTILES: Final = ("p50", "p95", "p99")
LABEL: Final = 12
"""Columns of the names at the left."""
FIGURE: Final = 7
MODEL_COLUMNS: Final = (("requests", 9), ("errors", 8), ("prompt", 9), ("completion", 11), ("cached", 8), ("cost", 10))
GOOD, BAD, NAME, HEAD = "green", "bold red", "dim", "bold cyan"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen at one look."""

    overview: Mapping[str, Any]
    address: str
    trouble: str | None = None
    """Why the gateway is not ready, or is not reached any more."""


class Screen:
    """Draws what was seen last.

    Args:
        footer: the last line of a view that goes on, which fits the terminal. Without it everything is told.
    """

    def __init__(self, seen: Seen, pace: Pace, footer: str = "") -> None:
        self.seen = seen
        self._pace = pace
        self._footer = footer
        self.drawn_for: ConsoleDimensions | None = None
        """The size of the terminal when it was last drawn."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.drawn_for = options.size
        width = min(options.max_width, MOST_WIDTH)
        for line in self.lines(width, options.size.height if self._footer else None):
            if options.ascii_only:
                line.plain = line.plain.translate(PLAIN)
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis" if not options.ascii_only else "crop")
            yield line

    def lines(self, width: int, height: int | None) -> list[Text]:
        """All of it, in at most `height` lines (None: in as many as it takes)."""
        width = max(width, LEAST_WIDTH)
        told = self.seen.overview
        top = [self._head(), *self._beside(width), Text(), *self._sums(), *self._hour(width)]
        end = list(self._errors(width, height))
        if self._footer:
            end.append(Text(self._footer, NAME))
        room = None if height is None else height - len(top) - len(end)
        middle = list(_models(told.get("models") or [], width, room))
        lines = [*top, *middle, *end]
        return lines if height is None else lines[:height]

    def _head(self) -> Text:
        told = self.seen.overview
        line = Text.assemble(
            ("Concertina ", "bold"), shown(told.get("version", "?")), f" · {shown(self.seen.address)} · "
        )
        if self.seen.trouble is None:
            line.append("ready", GOOD)
        else:
            line.append(shown(self.seen.trouble), BAD)
        if told.get("simulated"):
            line.append(" · SIMULATED MODEL", "yellow")
        workers = int(told.get("workers") or 1)
        line.append(f" · up {uptime(told.get('uptime_seconds') or 0)}")
        line.append(f" · {workers} worker{'' if workers == 1 else 's'} · {shown(told.get('database', '?'))}")
        return line

    def _beside(self, width: int) -> Iterator[Text]:
        """Load, traffic and latencies, side by side as far as there is room."""
        load, traffic, waits = self._load(), self._traffic(), self._latencies()
        columns = (20, 27, 33)
        if width < sum(columns[:2]):
            yield from (*load, *traffic, *waits)
            return
        if width < sum(columns):
            yield from _joined([load, traffic], columns)
            yield from waits
            return
        spare = min(width - sum(columns), 24) // 2
        yield from _joined([load, traffic, waits], [columns[0] + spare, columns[1] + spare, columns[2]])

    def _load(self) -> list[Text]:
        now = self.seen.overview.get("now") or {}
        names = {
            "in flight": "requests_in_flight",
            "streams": "streams_open",
            "compacting": "compactions_running",
            "background": "background_tasks",
            "store queue": "store_queue_depth",
        }
        return [_row(label, count(now.get(name))) for label, name in names.items()]

    def _traffic(self) -> list[Text]:
        totals, pace = self.seen.overview["totals"], self._pace
        requests, errors = totals.get("requests") or 0, totals.get("errors") or 0
        return [
            _row("requests", rate(pace.per_second("requests")), count(requests)),
            _row("failures", count(errors), share(errors, requests), style=BAD if errors else "bold"),
            _row("refusals", count(totals.get("refusals"))),
            _row("tokens in", rate(pace.per_second("prompt_tokens"))),
            _row("tokens out", rate(pace.per_second("completion_tokens"))),
        ]

    def _latencies(self) -> list[Text]:
        waits = self.seen.overview.get("latency") or {}
        head = Text("latency".ljust(LABEL) + "".join(name.rjust(FIGURE) for name in QUANTILES), HEAD)
        rows = [head]
        for name in LATENCIES:
            values = waits.get(name) or {}
            label = name.removesuffix("_seconds").replace("_", " ")
            rows.append(_row(label, *(latency(values.get(quantile)) for quantile in QUANTILES)))
        return rows

    def _sums(self) -> Iterator[Text]:
        totals = self.seen.overview["totals"]
        sent = f"{count(totals.get('prompt_tokens'))} sent"
        saved = (
            f"{count(totals.get('saved_tokens'))} saved ({share(totals.get('saved_tokens'), totals.get('log_tokens'))})"
        )
        cached = f"{share(totals.get('cached_tokens'), totals.get('reported_prompt_tokens'))} cached"
        answered = f"{count(totals.get('completion_tokens'))} answered"
        yield _line("tokens", f"{sent} · {saved} · {cached} · {answered}")
        cost, spared = totals.get("cost_usd"), totals.get("saved_usd")
        told = "no prices are known" if cost is None else f"{dollars(cost)} so far · {dollars(spared)} saved"
        spent = (totals.get("summary_prompt_tokens") or 0) + (totals.get("summary_completion_tokens") or 0)
        yield _line("cost", f"{told} · {count(spent)} tokens for summaries")
        yield _line("compactions", _counts(totals.get("compactions") or {}))
        yield _line("answers saw", _counts(totals.get("statuses") or {}))

    def _hour(self, width: int) -> Iterator[Text]:
        series = self.seen.overview.get("series") or {}
        samples, interval = series.get("samples") or [], float(series.get("interval_seconds") or 10)
        waits: list[float | None] = [sample.get("first_byte_p95_seconds") for sample in samples]
        yield Text(f"{'─' * 3} last hour ".ljust(width, "─"), HEAD)
        for label, name in (("requests", "requests"), ("tokens in", "prompt_tokens"), ("failures", "errors")):
            values = [grown / interval for grown in growth(samples, name)]
            yield _hourly(
                label, values, rate(max(values, default=None)), width, interval, BAD if label == "failures" else GOOD
            )
        most = latency(max((wait for wait in waits if wait is not None), default=None))
        yield _hourly("first byte", waits, most, width, interval, "yellow")

    def _errors(self, width: int, height: int | None) -> Iterator[Text]:
        errors = self.seen.overview.get("errors") or []
        if not errors:
            return
        texts = [f"{shown(error.get('code'))} ({error.get('status')}) ×{count(error.get('count'))}" for error in errors]
        if height is not None and height < TALL:
            yield _line("errors", " · ".join(texts))
            return
        yield Text(f"{'─' * 3} errors ".ljust(width, "─"), HEAD)
        yield from (Text(f"  {text}") for text in (texts if height is None else texts[:ERROR_ROWS]))


def _models(models: Sequence[Mapping[str, Any]], width: int, room: int | None) -> Iterator[Text]:
    """A table of models in at most `room` rows, its heading included; what does not fit is counted."""
    columns: Sequence[tuple[str, int]] = MODEL_COLUMNS
    while len(columns) > 2 and width - sum(size for _, size in columns) < 2 * LABEL:
        columns = columns[:-1]
    names = width - sum(size for _, size in columns)
    head = set_cell_size("─── models ", names) + "".join(name.rjust(size) for name, size in columns)
    if room is not None and room < 2:
        return
    yield Text(head, HEAD)
    if not models:
        yield Text("  none has been asked yet", NAME)
        return
    fitting = len(models) if room is None or len(models) < room else room - 2
    for model in models[:fitting]:
        yield _model(model, names, columns)
    if fitting < len(models):
        yield Text(f"  … and {len(models) - fitting} more", NAME)


def _model(model: Mapping[str, Any], names: int, columns: Sequence[tuple[str, int]]) -> Text:
    figures = {
        "requests": count(model.get("requests")),
        "errors": count(model.get("errors")),
        "prompt": count(model.get("prompt_tokens")),
        "completion": count(model.get("completion_tokens")),
        "cached": count(model.get("cached_tokens")),
        "cost": dollars(model.get("cost_usd")),
    }
    name = f"  {shown(model.get('provider'))}/{shown(model.get('model'))}"
    line = Text(set_cell_size(name if cell_len(name) <= names else set_cell_size(name, names - 1) + "…", names))
    for column, size in columns:
        line.append(figures[column].rjust(size), BAD if column == "errors" and model.get("errors") else "")
    return line


def _row(label: str, *figures: str, style: str = "bold") -> Text:
    line = Text(label.ljust(LABEL), NAME)
    for figure in figures:
        line.append(figure.rjust(FIGURE), style)
    return line


def _line(label: str, text: str) -> Text:
    return Text.assemble((label.ljust(LABEL), NAME), text)


def _hourly(label: str, values: Sequence[float | None], most: str, width: int, interval: float, style: str) -> Text:
    told = f" max {most}".ljust(12)
    columns = max(8, width - LABEL - len(told))
    drawn = spark(in_columns(values, columns, max(1, round(HOUR_SECONDS / interval))))
    line = Text.assemble((label.ljust(LABEL), NAME), (drawn, style), told)
    line.highlight_regex(f"{BLOCKS[0]}+", NAME)
    return line


def _joined(blocks: Sequence[Sequence[Text]], columns: Sequence[int]) -> Iterator[Text]:
    """Blocks of lines beside each other."""
    for index in range(max(map(len, blocks))):
        line = Text()
        for block, size in zip(blocks, columns, strict=False):
            part = block[index].copy() if index < len(block) else Text()
            part.truncate(size, pad=True)
            line.append_text(part)
        yield line


def _counts(counts: Mapping[str, Any]) -> str:
    parts = [f"{shown(name).replace('_', ' ')} {count(number)}" for name, number in counts.items() if number]
    return " · ".join(parts) or "none yet"
