"""Samples are what changed, latencies those of the last minutes."""

from __future__ import annotations

import asyncio

import pytest

from app.observability import metric_families as f
from app.observability import overview as overview_module
from app.observability.metrics import Metrics, TurnFacts
from app.observability.overview import INTERVAL_SECONDS, RANGES, RECENT_SAMPLES, MetricsOverview, ProcessInfo, RangeName

NATURE = ProcessInfo(version="1", database="memory", simulated=True)
TURN = TurnFacts("p", "m", "additive", "full", prompt_tokens=60, log_tokens=100, pressure=0.5, saved_usd=0.5)


def overview_of(metrics: Metrics) -> MetricsOverview:
    return MetricsOverview(metrics, NATURE, unix_seconds=lambda: 0.0)


@pytest.mark.parametrize(("name", "seconds"), [("hour", 3600), ("day", 86_400), ("week", 7 * 86_400)])
def test_an_hour_a_day_and_a_week_are_kept(name: RangeName, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step, count = RANGES[name]
    times = iter(range(0, 10_000_000, INTERVAL_SECONDS * step))
    overview = MetricsOverview(Metrics(), NATURE, unix_seconds=lambda: next(times))
    monkeypatch.setattr(overview_module, "RANGES", {name: (1, count)})
    for _ in range(count + 5):
        overview.take_sample()
    monkeypatch.undo()
    series = overview.build_overview(name)["series"]
    assert series["interval_seconds"] == INTERVAL_SECONDS * step
    assert len(series["samples"]) * series["interval_seconds"] == seconds
    assert series["samples"][0]["at"] == 5 * INTERVAL_SECONDS * step


def test_a_longer_range_has_fewer_samples() -> None:
    overview = overview_of(Metrics())
    for _ in range(61):
        overview.take_sample()
    assert [len(overview.build_overview(name)["series"]["samples"]) for name in RANGES] == [61, 3, 1]


def test_a_model_s_failures_and_its_open_breaker_are_told() -> None:
    metrics = Metrics()
    for outcome in ("ok", "timeout", "timeout", "rate_limited"):
        metrics.counter_series(f.UPSTREAM_REQUESTS, "p", "m", "answer", outcome).inc()
    for model, purpose, is_open in (("m", "answer", 1), ("n", "answer", 0), ("n", "summary", 1)):
        metrics.gauge_series(f.BREAKER_OPEN, "p", model, purpose).set(is_open)
    (row,) = overview_of(metrics).build_overview()["models"]
    assert (row["model"], row["errors"], row["breaker_open"]) == ("m", 3, True)
    assert row["failures"] == {"timeout": 2, "rate_limited": 1}


def test_a_sample_s_latency_is_that_of_its_interval() -> None:
    metrics = Metrics()
    overview, first_byte = overview_of(metrics), metrics.histogram_series(f.FIRST_BYTE_SECONDS, "true")
    first_byte.observe(50.0)
    overview.take_sample()
    first_byte.observe(0.004)
    overview.take_sample()
    overview.take_sample()
    told = [sample["first_byte_p95_seconds"] for sample in overview.build_overview()["series"]["samples"]]
    assert told[0] > 30
    assert told[1] <= 0.005
    assert told[2] is None


def test_latencies_forget_what_was_long_ago() -> None:
    metrics = Metrics()
    overview, seconds = overview_of(metrics), metrics.histogram_series(f.STORE_SECONDS, "append")
    seconds.observe(4.0)
    for _ in range(RECENT_SAMPLES + 1):
        overview.take_sample()
    assert overview.build_overview()["latency"]["store_seconds"]["p50"] > 1
    seconds.observe(0.00005)
    assert overview.build_overview()["latency"]["store_seconds"]["p99"] <= 0.0001


def test_probes_and_lookers_on_are_no_requests() -> None:
    metrics = Metrics()
    for endpoint in ("/healthz", "/metrics", "/v1/admin/overview", "other", "/v1/models", "/v1/chat/completions"):
        metrics.counter_series(f.REQUESTS, endpoint, "503").inc()
    assert overview_of(metrics).build_overview()["totals"]["requests"] == 2


def test_errors_that_no_application_was_told_are_none() -> None:
    metrics = Metrics()
    for status in (404, 499, 503):
        metrics.count_error("x", status)
    for _ in range(3):
        metrics.count_error("x", 404, is_of_application=False)
    told = overview_of(metrics).build_overview()
    assert told["errors"] == [{"code": "x", "status": 404, "count": 1}, {"code": "x", "status": 503, "count": 1}]
    assert (told["totals"]["refusals"], told["totals"]["errors"]) == (1, 1)


def test_answers_of_another_deployment_than_the_first_are_counted() -> None:
    metrics = Metrics()
    for provider in ("first", "second"):
        metrics.counter_series(f.UPSTREAM_FALLBACKS, provider, "m").inc()
    assert overview_of(metrics).build_overview()["totals"]["fallbacks"] == 2


def test_what_is_saved_is_less_what_summaries_cost() -> None:
    metrics = Metrics()
    metrics.count_turn(TURN)
    metrics.counter_series(f.COST, "summary", "p", "m").inc(0.2)
    totals = overview_of(metrics).build_overview()["totals"]
    assert (totals["saved_usd"], totals["cost_usd"]) == (0.3, 0.2)


async def test_the_first_sample_is_taken_at_once_and_the_last_before_the_end() -> None:
    overview = MetricsOverview(Metrics(), NATURE, unix_seconds=lambda: 0.0)
    overview.start()
    while not overview.build_overview()["series"]["samples"]:  # noqa: ASYNC110 - it is taken in a thread
        await asyncio.sleep(0)
    await overview.aclose()
    assert len(overview.build_overview()["series"]["samples"]) == 1


async def test_sampling_goes_on_where_numbers_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    again = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            monkeypatch.undo()
        else:
            again.set()
        await asyncio.sleep(0)

    def unreadable() -> None:
        raise OSError("Too many open files")

    metrics = Metrics()
    overview = MetricsOverview(metrics, NATURE, unix_seconds=lambda: 0.0, sleep=sleep)
    monkeypatch.setattr(metrics, "read_snapshot", unreadable)
    overview.start()
    await again.wait()
    await overview.aclose()
    assert overview.build_overview()["series"]["samples"]
