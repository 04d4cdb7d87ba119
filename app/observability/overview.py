"""The gateway's numbers at a glance: what the console's first page and `concertina top` show.

Sampled in the background and kept for an hour. Totals are of all processes that serve together; the samples are what
this one has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.observability import metric_families as f
from app.observability.metric_families import Family, is_application_endpoint
from app.observability.metric_readings import Numbers, quantile
from app.observability.metrics import Metrics

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 10
KEPT_SAMPLES: Final = 360
RECENT_SAMPLES: Final = 30
"""Latencies are those of so many samples, as long as there were any."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LATENCIES: Final[Mapping[str, tuple[Family, Mapping[str, str]]]] = {
    "first_byte_seconds": (f.FIRST_BYTE_SECONDS, {}),
    "request_seconds": (f.REQUEST_SECONDS, {"endpoint": "/v1/chat/completions"}),
    "upstream_seconds": (f.UPSTREAM_SECONDS, {"purpose": "answer"}),
    "store_seconds": (f.STORE_SECONDS, {}),
}
FIRST_FAILURE: Final = 500
CLIENT_CLOSED_REQUEST: Final = 499
CUMULATIVE: Final = (
    *("requests", "errors", "refusals"),
    *("prompt_tokens", "saved_tokens", "cached_tokens", "cost_usd"),
)
"""Of the totals, those that a sample has."""


@dataclass(frozen=True, slots=True)
class Nature:
    """What does not change while a process runs."""

    version: str
    database: str
    simulated: bool


@dataclass(frozen=True, slots=True)
class _Sample:
    told: dict[str, Any]
    histograms: dict[str, list[float]]


class Overview:
    """Samples numbers and tells them.

    Args:
        unix_seconds: the time of day.
        sleep: such as `asyncio.sleep`.
    """

    def __init__(
        self,
        metrics: Metrics,
        nature: Nature,
        *,
        unix_seconds: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._metrics = metrics
        self._nature = nature
        self._unix_seconds = unix_seconds
        self._sleep = sleep
        self._samples: deque[_Sample] = deque(maxlen=KEPT_SAMPLES)
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sample; a first time at once."""
        self._sampling = asyncio.create_task(self._sample_always())  # noqa: TID251 - ended by aclose

    async def aclose(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sampling

    def sample(self) -> None:
        """Take note of how things stand."""
        numbers = self._metrics.numbers()
        totals = _totals(numbers)
        histograms = {name: numbers.summed(family, **labels) for name, (family, labels) in LATENCIES.items()}
        before = self._samples[-1].histograms if self._samples else None
        name = "first_byte_seconds"
        first_bytes = histograms[name] if before is None else _since(histograms[name], before[name])
        told = {
            "at": int(self._unix_seconds()),
            **{one: totals[one] for one in CUMULATIVE},
            "compactions": sum(totals["compactions"].values()),
            "first_byte_p95_seconds": _rounded(quantile(QUANTILES["p95"], LATENCIES[name][0], first_bytes)),
        }
        self._samples.append(_Sample(told, histograms))

    def told(self) -> dict[str, Any]:
        """Everything, as it stands now."""
        numbers = self._metrics.numbers()
        started_at = numbers.total(f.STARTED)
        return {
            "object": "overview",
            "version": self._nature.version,
            "started_at": int(started_at),
            "uptime_seconds": max(0, int(self._unix_seconds() - started_at)),
            "workers": int(numbers.total(f.WORKERS)),
            "simulated": self._nature.simulated,
            "database": self._nature.database,
            "now": _now(numbers),
            "totals": _totals(numbers),
            "latency": {name: self._latency(name, numbers) for name in LATENCIES},
            "models": _models(numbers),
            "errors": _errors(numbers),
            "series": {"interval_seconds": INTERVAL_SECONDS, "samples": [sample.told for sample in self._samples]},
        }

    def _latency(self, name: str, numbers: Numbers) -> dict[str, float | None]:
        """Of the last minutes; if nothing was seen in them, since the start."""
        family, labels = LATENCIES[name]
        ever = numbers.summed(family, **labels)
        recent = ever
        if len(self._samples) > RECENT_SAMPLES:
            recent = _since(ever, self._samples[-RECENT_SAMPLES - 1].histograms[name])
        seen = recent if sum(recent[1:]) else ever
        return {one: _rounded(quantile(share, family, seen)) for one, share in QUANTILES.items()}

    async def _sample_always(self) -> None:
        while True:
            try:
                self.sample()
            except OSError as error:  # what others count cannot be looked at just now
                log.warning("the numbers of this moment could not be read: %s", error)
            await self._sleep(INTERVAL_SECONDS)


def _now(numbers: Numbers) -> dict[str, int]:
    gauges = {
        "requests_in_flight": f.IN_FLIGHT,
        "streams_open": f.STREAMS,
        "compactions_running": f.COMPACTING,
        "background_tasks": f.TASKS,
        "store_queue_depth": f.STORE_QUEUE,
    }
    return {name: int(numbers.total(family)) for name, family in gauges.items()}


def _totals(numbers: Numbers) -> dict[str, Any]:
    errors = _errors(numbers)
    tokens = numbers.by(f.PROMPT_TOKENS, "kind")
    summaries = numbers.by(f.SUMMARY_TOKENS, "kind")
    costs, saved = numbers.by(f.COST, "kind"), [series[0] for _, series in numbers.of(f.SAVED_COST)]
    return {
        "requests": _requests(numbers),
        "errors": sum(error["count"] for error in errors if error["status"] >= FIRST_FAILURE),
        "refusals": sum(error["count"] for error in errors if error["status"] < FIRST_FAILURE),
        "prompt_tokens": int(tokens.get("estimated", 0)),
        "log_tokens": int(tokens.get("log", 0)),
        "saved_tokens": int(tokens.get("saved", 0)),
        "reported_prompt_tokens": int(tokens.get("reported", 0)),
        "cached_tokens": int(tokens.get("cached", 0)),
        "completion_tokens": int(numbers.total(f.COMPLETION_TOKENS)),
        "summary_prompt_tokens": int(summaries.get("prompt", 0)),
        "summary_completion_tokens": int(summaries.get("completion", 0)),
        "cost_usd": _dollars(sum(costs.values())) if costs else None,
        "saved_usd": _dollars(sum(saved) - costs.get("summary", 0.0)) if saved else None,
        "compactions": _counts(numbers.by(f.COMPACTIONS, "outcome")),
        "statuses": _counts(numbers.by(f.TURNS, "status")),
    }


def _requests(numbers: Numbers) -> int:
    """Count the requests of applications, without those of probes, scrapers, the console and operators."""
    requests = numbers.of(f.REQUESTS)
    return int(sum(count for labels, (count,) in requests if is_application_endpoint(labels["endpoint"])))


def _models(numbers: Numbers) -> list[dict[str, Any]]:
    """Of each model what it was asked and what came of it, the most asked first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for labels, (count,) in numbers.of(f.UPSTREAM_REQUESTS):
        if labels["purpose"] == "answer":
            row = _row(rows, labels)
            row["requests"] += int(count)
            row["errors"] += 0 if labels["outcome"] == "ok" else int(count)
    for labels, (count,) in numbers.of(f.PROMPT_TOKENS):
        name = {"estimated": "prompt_tokens", "cached": "cached_tokens"}.get(labels["kind"])
        if name is not None:
            _row(rows, labels)[name] += int(count)
    for labels, (count,) in numbers.of(f.COMPLETION_TOKENS):
        _row(rows, labels)["completion_tokens"] += int(count)
    for labels, (count,) in numbers.of(f.COST):
        row = _row(rows, labels)
        row["cost_usd"] = _dollars((row["cost_usd"] or 0.0) + count)
    return sorted(rows.values(), key=lambda row: (-row["requests"], row["model"]))


def _row(rows: dict[tuple[str, str], dict[str, Any]], labels: Mapping[str, str]) -> dict[str, Any]:
    of = (labels["provider"], labels["model"])
    if of not in rows:
        counts = dict.fromkeys(("requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens"), 0)
        rows[of] = {"model": labels["model"], "provider": labels["provider"], **counts, "cost_usd": None}
    return rows[of]


def _errors(numbers: Numbers) -> list[dict[str, Any]]:
    """Errors that applications were told, the most frequent first; clients that left (499) were told none."""
    of_operators = {(labels["code"], labels["status"]): count for labels, (count,) in numbers.of(f.OPERATOR_ERRORS)}
    found = []
    for labels, (count,) in numbers.of(f.ERRORS):
        code, status = labels["code"], labels["status"]
        remaining = int(count - of_operators.get((code, status), 0.0))
        if remaining > 0 and int(status) != CLIENT_CLOSED_REQUEST:
            found.append({"code": code, "status": int(status), "count": remaining})
    return sorted(found, key=lambda error: -int(error["count"]))


def _since(series: list[float], before: list[float]) -> list[float]:
    return [now - then for now, then in zip(series, before, strict=True)]


def _counts(totals: Mapping[str, float]) -> dict[str, int]:
    return {name: int(count) for name, count in totals.items()}


def _dollars(amount: float) -> float:
    return round(amount, 6)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
