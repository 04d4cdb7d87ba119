"""What `concertina top` draws: lines that fit, rates that are right, nothing that steers a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.commands.top_screen.number_format import (
    draw_sparkline,
    format_count,
    format_dollars,
    format_latency,
    format_percent,
    format_rate,
    format_uptime,
    make_printable,
)
from app.commands.top_screen.overview_screen import OverviewScreen, OverviewSnapshot
from app.commands.top_screen.rates import RATE_WINDOW_SECONDS, TotalRates, compute_increments, downsample_last_hour
from tests.commands.overviews import fresh_overview, overview

ADDRESS = "http://127.0.0.1:8000"
SIZES = [(80, 24), (120, 40), (50, 24), (40, 12), (200, 60)]


def drawn(told: dict[str, Any], *, width: int, height: int, footer: str = "q quits", trouble: str | None = None) -> str:
    """A page as a terminal of that size shows it."""
    pace = TotalRates()
    pace.add_overview(told, 0.0)
    console = Console(width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False)
    rendered = console.render(OverviewScreen(OverviewSnapshot(told, ADDRESS, trouble), pace, footer))
    return "".join(segment.text for segment in rendered)


@pytest.mark.parametrize("told", [overview(), fresh_overview()], ids=["busy", "fresh"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_page_fits_its_terminal(told: dict[str, Any], width: int, height: int) -> None:
    pace = TotalRates()
    pace.add_overview(told, 0.0)
    lines = OverviewScreen(OverviewSnapshot(told, ADDRESS), pace, "q quits").render_lines(width, height)
    assert len(lines) <= height
    page = drawn(told, width=width, height=height).splitlines()
    assert len(page) == len(lines)
    assert max(len(line) for line in page) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_usual_sizes_show_everything_that_matters(width: int, height: int) -> None:
    page = drawn(overview(), width=width, height=height)
    for wanted in (
        *("Concertina 0.1.0", ADDRESS, "ready", "2 workers"),
        *("in flight         7", "requests      4.1/s", "14,390", "failures          3  0.0 %", "refusals          7"),
        *("first byte    12 ms 345 ms 1.23 s", "10.8M saved (25.0 %)", "56.1 % cached", "$3.59 so far"),
        *("completed 88 · mechanical 1", "full 14,000 · summarized 380", "last hour", "max 500 ms"),
        *("openai/model-0", "upstream_timeout (504) ×2", "q quits"),
    ):
        assert wanted in page
    assert ("openai/model-11" in page) is (height == 40)
    assert ("… and 8 more" in page) is (height == 24)


@pytest.mark.parametrize("width", range(80, 170, 3))
def test_no_figure_is_cut_off_at_any_usual_width(width: int) -> None:
    rows = drawn(overview(), width=width, height=40).splitlines()[1:6]
    assert [row.rstrip().endswith(("p99", "1.23 s")) for row in rows] == [True] * 5


def test_what_is_not_known_is_not_zero() -> None:
    page = drawn(fresh_overview(), width=80, height=24)
    for wanted in (
        "SIMULATED MODEL",
        "requests          –",
        "no prices are known",
        "none has been asked yet",
        "none yet",
    ):
        assert wanted in page


def test_trouble_stands_in_the_first_line() -> None:
    page = drawn(overview(), width=120, height=24, trouble="Every upstream has failed repeatedly.")
    assert "Every upstream has failed repeatedly." in page.splitlines()[0]
    assert "ready" not in page.splitlines()[0]


def test_a_terminal_without_unicode_gets_ascii() -> None:
    pace, out = TotalRates(), io.BytesIO()
    pace.add_overview(overview(), 0.0)
    file = io.TextIOWrapper(out, encoding="ascii")
    Console(file=file, width=80, force_terminal=True, color_system=None).print(
        OverviewScreen(OverviewSnapshot(overview(), ADDRESS), pace)
    )
    file.flush()
    assert b"openai/model-0" in out.getvalue()


def test_names_that_others_gave_cannot_steer_the_terminal() -> None:
    model = {**overview()["models"][0], "model": "evil\x1b[2J\nname"}
    page = drawn(overview(models=[model]), width=80, height=24)
    assert "evil?[2J?name" in page
    assert "\x1b[2J" not in page


def totals(**changed: int) -> dict[str, Any]:
    return overview(totals={"requests": 0, "errors": 0, "prompt_tokens": 0, "completion_tokens": 0, **changed})


def test_the_first_look_takes_rates_from_the_gateways_samples() -> None:
    pace = TotalRates()
    pace.add_overview(overview(), 0.0)
    assert pace.compute_rate("prompt_tokens") == 9_000
    assert pace.compute_rate("completion_tokens") is None


def test_rates_are_differences_over_the_last_seconds() -> None:
    pace = TotalRates()
    for second in range(0, 61, 2):
        pace.add_overview(totals(requests=second * (1 if second <= 30 else 3)), float(second))
    assert pace.compute_rate("requests") == pytest.approx(3.0)
    assert len(pace._samples) <= RATE_WINDOW_SECONDS / 2 + 2


def test_a_restart_is_no_negative_rate() -> None:
    pace = TotalRates()
    pace.add_overview(totals(requests=1_000), 0.0)
    pace.add_overview(totals(requests=4), 2.0)
    pace.add_overview(totals(requests=10), 4.0)
    assert pace.compute_rate("requests") == 3.0


def test_growth_begins_anew_after_a_restart() -> None:
    assert compute_increments([{"n": 1}, {"n": 5}, {"n": 2}, {"n": 2}], "n") == [4, 2, 0]
    assert compute_increments([{"n": 1}, {}], "n") == []
    assert compute_increments([], "n") == []


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=400), st.integers(1, 200))
def test_every_column_of_the_hour_has_the_largest_of_its_values(values: list[float | None], columns: int) -> None:
    shown_values = downsample_last_hour(values, columns, 360)
    assert len(shown_values) == columns == len(draw_sparkline(shown_values))
    recent = [value for value in values[-360:] if value is not None]
    assert {value for value in shown_values if value is not None} <= set(recent)
    assert max(recent, default=None) == max((value for value in shown_values if value is not None), default=None)


def test_the_newest_is_at_the_right() -> None:
    assert downsample_last_hour([1.0, 2.0], 4, 4) == [None, None, 1.0, 2.0]
    assert draw_sparkline([None, 0.0, 4.0, 8.0]) == " ▁▅█"


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (format_count(None), "–"),
        (format_count(99_999), "99,999"),
        (format_count(100_000), "100k"),
        (format_count(999_900), "1M"),
        (format_count(12_345_678), "12.3M"),
        (format_rate(0), "0/s"),
        (format_rate(0.42), "0.42/s"),
        (format_rate(42), "42/s"),
        (format_rate(1_234), "1.23k/s"),
        (format_rate(123_456), "123k/s"),
        (format_percent(1, 0), "–"),
        (format_percent(1, 8), "12.5 %"),
        (format_dollars(0), "$0.00"),
        (format_dollars(0.0042), "$0.0042"),
        (format_dollars(1234.5), "$1,234.50"),
        (format_latency(0.0004), "0.4 ms"),
        (format_latency(0.12), "120 ms"),
        (format_latency(1.2345), "1.23 s"),
        (format_latency(300), "300 s"),
        (format_uptime(42), "42s"),
        (format_uptime(185), "3m 05s"),
        (format_uptime(11_100), "3h 05m"),
        (format_uptime(1_051_200), "12d 4h"),
        (make_printable("a\x07b"), "a?b"),
    ],
)
def test_figures_are_short(made: str, wanted: str) -> None:
    assert made == wanted
