"""Builds the overview of the gateway's metrics for the console's first page.

Totals are read from all workers when the overview is requested. Samples are taken in the background by each worker and
kept in its memory: all of an hour, and a part of those of a day and of a week.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from app.observability import metric_families as f
from app.observability.background_loops import BackgroundLoop
from app.observability.metric_families import MetricFamily, is_application_endpoint
from app.observability.metric_readings import MetricsSnapshot, estimate_quantile
from app.observability.metrics import Metrics

INTERVAL_SECONDS: Final = 10
RangeName = Literal["hour", "day", "week"]
RANGES: Final[Mapping[RangeName, tuple[int, int]]] = {"hour": (1, 360), "day": (30, 288), "week": (180, 336)}
"""What is kept for each range: every how-manieth sample, and how many. A day has one for each five minutes, a week one
for each half hour."""
RECENT_SAMPLES: Final = 30
"""Latencies are those of the last 30 samples, five minutes; if nothing was measured in them, those since the start."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LATENCIES: Final[Mapping[str, tuple[MetricFamily, Sequence[Mapping[str, str]]]]] = {
    "first_byte_seconds": (f.FIRST_BYTE_SECONDS, [{}]),
    "request_seconds": (f.REQUEST_SECONDS, [{"endpoint": endpoint} for endpoint in f.MODEL_CALL_ENDPOINTS]),
    "upstream_seconds": (f.UPSTREAM_SECONDS, [{"purpose": "answer"}]),
    "store_seconds": (f.STORE_SECONDS, [{}]),
}
"""Each latency: its histogram, and the labels of the series that it sums."""
FIRST_SERVER_ERROR_STATUS: Final = 500
CLIENT_CLOSED_REQUEST: Final = 499
SAMPLED_TOTALS: Final = (
    *("requests", "errors", "refusals"),
    *("prompt_tokens", "saved_tokens", "cached_tokens", "cost_usd"),
)
"""The fields of `totals` that each sample has, too."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """Facts that do not change while a process runs."""

    version: str
    database: str
    simulated: bool


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample: its fields in the overview, and the histograms of `LATENCIES` for the difference to later ones."""

    fields: dict[str, Any]
    histograms: dict[str, list[float]]


class MetricsOverview:
    """Samples the metrics and builds the overview.

    Args:
        metrics: the metrics of this process.
        process_info: facts of this process.
        unix_seconds: returns the time as Unix seconds.
        sleep: waits between two samples, as `asyncio.sleep` does.
    """

    def __init__(
        self,
        metrics: Metrics,
        process_info: ProcessInfo,
        *,
        unix_seconds: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._metrics = metrics
        self._process_info = process_info
        self._unix_seconds = unix_seconds
        self._ranges: dict[RangeName, deque[_Sample]] = {
            name: deque(maxlen=max_samples) for name, (_, max_samples) in RANGES.items()
        }
        self._samples = self._ranges["hour"]
        self._sample_count = 0
        self.sampling = BackgroundLoop("overview", self._sample, lambda: INTERVAL_SECONDS, metrics=metrics, sleep=sleep)

    def start(self) -> None:
        """Starts to sample in the background. Takes the first sample at once."""
        self.sampling.start(0.0)

    async def aclose(self) -> None:
        await self.sampling.aclose()

    def take_sample(self) -> None:
        """Adds a sample of the current totals."""
        numbers = self._metrics.read_snapshot()
        totals, histograms = _build_totals(numbers), {name: _sum_latency(name, numbers) for name in LATENCIES}
        for name, (step, _) in RANGES.items():
            if self._sample_count % step == 0:
                samples = self._ranges[name]
                samples.append(self._build_sample(totals, histograms, samples[-1] if samples else None))
        self._sample_count += 1

    def _build_sample(
        self, totals: Mapping[str, Any], histograms: dict[str, list[float]], before: _Sample | None
    ) -> _Sample:
        name = "first_byte_seconds"
        # The samples of this field are not totals: each is about the time since the sample before.
        first_bytes = histograms[name]
        if before is not None:
            first_bytes = _subtract_series(first_bytes, before.histograms[name])
        fields = {
            "at": int(self._unix_seconds()),
            **{total_name: totals[total_name] for total_name in SAMPLED_TOTALS},
            "compactions": sum(totals["compactions"].values()),
            "first_byte_p95_seconds": _round_seconds(
                estimate_quantile(QUANTILES["p95"], LATENCIES[name][0], first_bytes)
            ),
        }
        return _Sample(fields, histograms)

    def build_overview(self, range_name: RangeName = "hour") -> dict[str, Any]:
        """Builds the response body of `GET /v1/admin/overview`.

        Args:
            range_name: the range of the samples.
        """
        numbers = self._metrics.read_snapshot()
        started_at = numbers.sum_series(f.START_TIME)
        return {
            "object": "overview",
            "version": self._process_info.version,
            "started_at": int(started_at),
            "uptime_seconds": max(0, int(self._unix_seconds() - started_at)),
            "workers": int(numbers.sum_series(f.WORKERS)),
            "simulated": self._process_info.simulated,
            "database": self._process_info.database,
            "now": _build_gauges(numbers),
            "totals": _build_totals(numbers),
            "latency": {name: self._build_latency(name, numbers) for name in LATENCIES},
            "models": _build_model_rows(numbers),
            "errors": _build_application_errors(numbers),
            "series": {
                "interval_seconds": INTERVAL_SECONDS * RANGES[range_name][0],
                "samples": [sample.fields for sample in list(self._ranges[range_name])],
            },
        }

    def _build_latency(self, name: str, numbers: MetricsSnapshot) -> dict[str, float | None]:
        """Returns the quantiles of a latency in the last minutes; if those are empty, since the start."""
        family, since_start = LATENCIES[name][0], _sum_latency(name, numbers)
        # Until there are enough samples, the last minutes are all the time since the start.
        recent = since_start
        if len(self._samples) > RECENT_SAMPLES:
            recent = _subtract_series(since_start, self._samples[-RECENT_SAMPLES - 1].histograms[name])
        series = recent if sum(recent) else since_start
        return {
            quantile: _round_seconds(estimate_quantile(share, family, series)) for quantile, share in QUANTILES.items()
        }

    async def _sample(self) -> None:
        # In a thread: with several workers, reading their files takes up to 50 ms.
        await asyncio.to_thread(self.take_sample)


def _build_gauges(numbers: MetricsSnapshot) -> dict[str, int]:
    gauges = {
        "requests_in_flight": f.REQUESTS_IN_FLIGHT,
        "streams_open": f.STREAMS_OPEN,
        "compactions_running": f.RUNNING_COMPACTIONS,
        "background_tasks": f.BACKGROUND_TASKS,
        "store_queue_depth": f.STORE_QUEUE,
    }
    return {name: int(numbers.sum_series(family)) for name, family in gauges.items()}


def _build_totals(numbers: MetricsSnapshot) -> dict[str, Any]:
    errors = _build_application_errors(numbers)
    tokens = numbers.sum_by_label(f.PROMPT_TOKENS, "kind")
    summaries = numbers.sum_by_label(f.SUMMARY_TOKENS, "kind")
    costs, saved = numbers.sum_by_label(f.COST, "kind"), [number for _, number in numbers.iter_series(f.SAVED_COST)]
    return {
        "requests": _count_application_requests(numbers),
        "errors": sum(error["count"] for error in errors if error["status"] >= FIRST_SERVER_ERROR_STATUS),
        "refusals": sum(error["count"] for error in errors if error["status"] < FIRST_SERVER_ERROR_STATUS),
        "fallbacks": int(numbers.sum_series(f.UPSTREAM_FALLBACKS)),
        "prompt_tokens": int(tokens.get("estimated", 0)),
        "log_tokens": int(tokens.get("log", 0)),
        "saved_tokens": int(tokens.get("saved", 0)),
        "reported_prompt_tokens": int(tokens.get("reported", 0)),
        "cached_tokens": int(tokens.get("cached", 0)),
        "completion_tokens": int(numbers.sum_series(f.COMPLETION_TOKENS)),
        "summary_prompt_tokens": int(summaries.get("prompt", 0)),
        "summary_completion_tokens": int(summaries.get("completion", 0)),
        "cost_usd": _round_dollars(sum(costs.values())) if costs else None,
        # The summaries are the price of the tokens that were not sent, so the overview shows the difference.
        "saved_usd": _round_dollars(sum(saved) - costs.get("summary", 0.0)) if saved else None,
        "compactions": _to_integers(numbers.sum_by_label(f.COMPACTIONS, "outcome")),
        "statuses": _to_integers(numbers.sum_by_label(f.TURNS, "status")),
    }


def _count_application_requests(numbers: MetricsSnapshot) -> int:
    """Counts the requests of applications, without those of probes, scrapers, the console and operators."""
    requests = numbers.iter_series(f.REQUESTS)
    return int(sum(count for labels, count in requests if is_application_endpoint(labels["endpoint"])))


def _build_model_rows(numbers: MetricsSnapshot) -> list[dict[str, Any]]:
    """Builds a row for each model: calls, errors by outcome, whether its circuit breaker is open, tokens and cost. The
    model with the most calls comes first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for labels, count in numbers.iter_series(f.UPSTREAM_REQUESTS):
        if labels["purpose"] == "answer":
            row = _find_model_row(rows, labels)
            row["requests"] += int(count)
            if labels["outcome"] != "ok":
                row["errors"] += int(count)
                row["failures"][labels["outcome"]] = row["failures"].get(labels["outcome"], 0) + int(count)
    for labels, count in numbers.iter_series(f.PROMPT_TOKENS):
        name = {"estimated": "prompt_tokens", "cached": "cached_tokens"}.get(labels["kind"])
        if name is not None:
            _find_model_row(rows, labels)[name] += int(count)
    for labels, count in numbers.iter_series(f.COMPLETION_TOKENS):
        _find_model_row(rows, labels)["completion_tokens"] += int(count)
    for labels, is_open in numbers.iter_series(f.BREAKER_OPEN):
        if is_open and labels["purpose"] == "answer":
            _find_model_row(rows, labels)["breaker_open"] = True
    # Both kinds of cost, of answers and of summaries, count for the model that was called.
    for labels, count in numbers.iter_series(f.COST):
        row = _find_model_row(rows, labels)
        row["cost_usd"] = _round_dollars((row["cost_usd"] or 0.0) + count)
    return sorted(rows.values(), key=lambda row: (-row["requests"], row["model"]))


def _find_model_row(rows: dict[tuple[str, str], dict[str, Any]], labels: Mapping[str, str]) -> dict[str, Any]:
    key = (labels["provider"], labels["model"])
    if key not in rows:
        counts = dict.fromkeys(("requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens"), 0)
        names = {"model": labels["model"], "provider": labels["provider"]}
        rows[key] = {**names, **counts, "failures": {}, "breaker_open": False, "cost_usd": None}
    return rows[key]


def _build_application_errors(numbers: MetricsSnapshot) -> list[dict[str, Any]]:
    """Builds a row for each code and status of errors that applications got, the most frequent first.

    A client that disconnected (499) got no error.
    """
    operator_counts = {
        (labels["code"], labels["status"]): count for labels, count in numbers.iter_series(f.OPERATOR_ERRORS)
    }
    errors = []
    for labels, count in numbers.iter_series(f.ERRORS):
        code, status = labels["code"], labels["status"]
        remaining = int(count - operator_counts.get((code, status), 0.0))
        if remaining > 0 and int(status) != CLIENT_CLOSED_REQUEST:
            errors.append({"code": code, "status": int(status), "count": remaining})
    return sorted(errors, key=lambda error: -int(error["count"]))


def _sum_latency(name: str, numbers: MetricsSnapshot) -> list[float]:
    family, selections = LATENCIES[name]
    totals = [numbers.sum_histogram(family, **labels) for labels in selections]
    return [sum(counts) for counts in zip(*totals, strict=True)]


def _subtract_series(series: list[float], before: list[float]) -> list[float]:
    return [current - earlier for current, earlier in zip(series, before, strict=True)]


def _to_integers(totals: Mapping[str, float]) -> dict[str, int]:
    return {name: int(count) for name, count in totals.items()}


def _round_dollars(amount: float) -> float:
    return round(amount, 6)


def _round_seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
