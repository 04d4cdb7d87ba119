"""The measured part of `docs/comparison.md`: tables, charts, versions and commands, from one run's results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.compare.charts import Bar, write_chart
from tests.benchmarks.compare.conversations import CONCERTINA, FACTS_WINDOW, GROWTH_WINDOW, NO_GATEWAY
from tests.benchmarks.peers import PEERS
from tests.benchmarks.quality.spread import Spread

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
OVERHEAD_NAMES: Final = {"gateway sqlite": CONCERTINA, "pass": "bare Python proxy"}
"""What targets of `tests.benchmarks` are called on the page."""
MAX_DRAWN_SPREAD: Final = 0.5
"""Of the CPU time between rounds: above it a figure stands in the table only."""
NEWEST_ONLY: Final = "newest messages only"
Results = Mapping[str, Any]
Column = tuple[str, Callable[[Mapping[str, Any]], str]]


def update_page(page: Path, pictures: Path, results: Results) -> None:
    """Writes the charts, and replaces the text between the two marks of the page.

    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n{render_measured(results)}\n{END}{after}")
    _write_charts(pictures, results)


def render_measured(results: Results) -> str:
    """Returns the measured part as Markdown."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    where = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}"
    parts = [
        f"Measured on {machine['at'][:10]} on {where}: {versions}. `make compare` repeats all of it.",
        *([] if "overhead" not in results else [_render_overhead(results["overhead"])]),
        *([] if "growth" not in results else [_render_growth(results["growth"], results["turns"])]),
        *([] if "facts" not in results else [_render_facts(results["facts"])]),
    ]
    failures = [f"- {name}: {told}" for name, told in results["failures"].items()]
    return "\n\n".join([*parts, *(["Not measured:\n\n" + "\n".join(failures)] if failures else [])])


def _render_overhead(figures: Mapping[str, Mapping[str, float]]) -> str:
    def figure(key: str, form: str, factor: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: format(row[key] * factor, form) if key in row else "–"

    columns: Sequence[Column] = (
        ("CPU of a request, ms", figure("json_us", ".2f", 0.001)),
        ("± between rounds", figure("json_spread", ".0%")),
        ("× bare proxy", figure("json_us_ratio", ".1f")),
        ("p50 ms", figure("json_c1_p50_ms", ".1f")),
        ("p99 ms", figure("json_c1_p99_ms", ".1f")),
        ("first byte p50 ms", figure("first_byte_p50_ms", ".1f")),
        ("first byte p99 ms", figure("first_byte_p99_ms", ".1f")),
        ("CPU of a streamed chunk, µs", figure("paced_us", ".0f")),
        ("CPU of a later turn of 2 MB, ms", figure("history_2m_later_ms", ".0f")),
        ("memory idle, MB", figure("idle_mb", ".0f")),
        ("loaded, MB", figure("loaded_mb", ".0f")),
        ("start, s", figure("start_seconds", ".1f")),
    )
    rows = {_name_target(name): row for name, row in figures.items() if name != "direct"}
    return (
        "### What a request costs\n\n"
        "A question and an answer of 1 KB each, 32 connections for CPU, one connection for p50 and p99; streams of "
        "100 chunks, one every 5 ms, on eight connections; a history of 2 MB that is sent again. Nothing is compacted. "
        "Each gateway has one process on one core. Medians of the rounds; latencies are those of a shared machine.\n\n"
        f"{_render_charts('compare-cpu', 'CPU time of a request for each gateway')}\n\n"
        f"{_render_table(rows, columns)}"
    )


def _render_growth(figures: Mapping[str, Sequence[Mapping[str, Any]]], turns: int) -> str:
    columns: Sequence[Column] = (
        ("requests refused", lambda row: f"{row['failed_requests']:.0f} of {row['requests']:.0f}"),
        ("orphaned calls and results", lambda row: f"{row['orphans']:.0f}"),
        ("prompt tokens that were answered", lambda row: f"{row['prompt_tokens']:,.0f}"),
        ("of these not cached", lambda row: f"{row['uncached_tokens']:,.0f}"),
        ("of these paid for again", lambda row: f"{row['rebilled_tokens']:,.0f}"),
        ("summary calls", lambda row: f"{row['summary_calls']:.0f}"),
        ("turns that waited for one", lambda row: f"{row['stalled_turns']:.0f}"),
        ("prefix kept", lambda row: f"{row['stable_prefix']:.2f}"),
        ("largest prompt", lambda row: f"{row['largest_prompt']:,.0f}"),
    )
    rows = {name: _mean(seeds) for name, seeds in figures.items()}
    first = next(iter(rows.values()))
    return (
        f"### A conversation of {turns} turns at a window of {GROWTH_WINDOW:,}\n\n"
        f"The client re-sends its history: {first['client_tokens']:,.0f} tokens, {first['new_tokens']:,.0f} of them "
        "new. Every third turn calls a tool. Between two turns the client waits until no summary is being written. "
        "The provider refuses prompts over the window and orphaned tool calls as "
        "OpenAI does, and reports what its simulated prompt cache holds. *Paid for again*: tokens that were not "
        "cached, less those that were new. Gateways that only route send what they get, so their provider refuses "
        "once the window is full.\n\n"
        f"{_render_charts('compare-refused', 'Refused requests for each gateway')}\n\n"
        f"{_render_table(rows, columns)}"
    )


def _render_facts(figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    columns: Sequence[Column] = (
        ("facts within reach", lambda row: f"{row['share']:.0%}"),
        ("± between seeds", lambda row: f"{row['share_half_range']:.0%}"),
        ("tokens of the prompt", lambda row: f"{row['prompt_tokens']:,.0f}"),
        ("summary calls before the questions", lambda row: f"{row['summary_calls']:.0f}"),
        ("requests refused", lambda row: f"{row['failed_requests']:.0f} of {row['requests']:.0f}"),
    )
    rows = {name: _mean(seeds) for name, seeds in figures.items()}
    for name, seeds in figures.items():
        rows[name]["share_half_range"] = Spread([one["share"] for one in seeds]).half_range
    return (
        f"### Facts within reach at a window of {FACTS_WINDOW:,}\n\n"
        "A user tells fifty short facts in 11,000 tokens of talk, then asks for each. A fact is within reach if its "
        "answer is in the prompt that reaches the model. Summaries are the sentences with the most names and numbers, "
        "the same for all. What a model would look up with a search tool (ctxkeeper and Concertina have one) is not "
        "counted. The talk is generated by Concertina's own instrument, with seeds that it was not tuned on.\n\n"
        f"{_render_charts('compare-facts', 'Facts within reach for each gateway')}\n\n"
        f"{_render_table(rows, columns)}"
    )


def _write_charts(folder: Path, results: Results) -> None:
    def bars(values: Mapping[str, tuple[float, str]]) -> list[Bar]:
        return [Bar(name, value, label, name == CONCERTINA) for name, (value, label) in values.items()]

    if "overhead" in results:
        rows = {_name_target(name): row for name, row in results["overhead"].items() if "json_us" in row}
        unsteady = [name for name, row in rows.items() if row.get("json_spread", 0) > MAX_DRAWN_SPREAD]
        rows = {name: row for name, row in rows.items() if name not in unsteady}
        milliseconds = {name: (row["json_us"] / 1000, f"{row['json_us'] / 1000:.2f} ms") for name, row in rows.items()}
        left_out = f"; left out, since its rounds differ: {', '.join(unsteady)}" if unsteady else ""
        note = f"one process, 1 KB, 32 connections; less is better{left_out}"
        write_chart(folder, "compare-cpu", "CPU time of a request", note, bars(milliseconds))
    if "growth" in results:
        means = {name: _mean(seeds) for name, seeds in results["growth"].items()}
        refused = {
            name: (row["failed_requests"], f"{row['failed_requests']:.0f} of {row['requests']:.0f}")
            for name, row in means.items()
        }
        note = f"{results['turns']} turns, history sent again each time; less is better"
        title = f"Refused requests at a window of {GROWTH_WINDOW:,} tokens"
        write_chart(folder, "compare-refused", title, note, bars(refused))
    if "facts" in results:
        means = {name: _mean(seeds) for name, seeds in results["facts"].items()}
        shares = {name: (row["share"], f"{row['share']:.0%}") for name, row in means.items()}
        title = f"Facts within reach at a window of {FACTS_WINDOW:,} tokens"
        write_chart(folder, "compare-facts", title, "fifty facts in 11,000 tokens; more is better", bars(shares))


def _render_charts(name: str, alt: str) -> str:
    return (
        f'<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="pictures/{name}-dark.svg">\n'
        f'  <img alt="{alt}: the figures are in the table below." src="pictures/{name}-light.svg">\n</picture>'
    )


def _render_table(rows: Mapping[str, Mapping[str, Any]], columns: Sequence[Column]) -> str:
    lines = ["| | " + " | ".join(title for title, _ in columns) + " |", "| --- |" + " ---: |" * len(columns)]
    for name, row in rows.items():
        cells = " | ".join(render(row) for _, render in columns)
        lines.append(f"| {'**' + name + '**' if name == CONCERTINA else name} | {cells} |")
    return "\n".join(lines)


def _mean(seeds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the mean of each number over the seeds."""
    numbers = [key for key, value in seeds[0].items() if isinstance(value, int | float)]
    return {key: Spread([float(one[key]) for one in seeds]).mean for key in numbers}


def _name_target(name: str) -> str:
    return OVERHEAD_NAMES.get(name, name)


def list_versions(names: Sequence[str], own: str) -> dict[str, str]:
    """Returns the versions of the gateways that were measured, one for each package."""
    packages = {PEERS[name].installation or name: PEERS[name].version for name in names if name in PEERS}
    return {CONCERTINA: own, **packages}


def order_names(names: Sequence[str]) -> list[str]:
    """Returns names with Concertina first and the rows without a gateway last."""
    last = [name for name in names if name in (NO_GATEWAY, NEWEST_ONLY)]
    first = [name for name in names if name == CONCERTINA]
    return [*first, *(name for name in names if name not in (*first, *last)), *last]
