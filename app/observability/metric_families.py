"""What is counted: every family of numbers with its labels and what it means. Pure.

Labels are names of our own, statuses, and names of models and providers, which are bounded (`names`); never a tenant, a
conversation, a key or anything that was said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "concertina_"
Kind = Literal["counter", "gauge", "histogram"]
GaugeMerge = Literal["sum", "max", "min"]

SECONDS_BOUNDS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
SHORT_SECONDS_BOUNDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
)
LONG_WAIT_BOUNDS: Final = (*SHORT_SECONDS_BOUNDS, 30.0, 300.0)
SHARE_BOUNDS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
MODEL_LABELS: Final = ("provider", "model")

CONSOLE: Final = "console"
"""The `endpoint` of what the console's pages read."""
OTHER: Final = "other"
"""Stands for what has no name of its own: unknown paths, models beyond the bound."""
_OPERATOR_ENDPOINTS: Final = (
    *("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/console", "/v1/admin/"),
    *(CONSOLE, OTHER),
)
"""How endpoints begin that operators and their tools ask."""


def is_application_endpoint(endpoint: str) -> bool:
    """Whether applications ask this endpoint: requests for it are the gateway's traffic."""
    return not endpoint.startswith(_OPERATOR_ENDPOINTS)


@dataclass(frozen=True, eq=False, slots=True)
class MetricFamily:
    """A metric. `bounds` are the upper ends of a histogram's buckets, without infinity."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    merging: GaugeMerge = "sum"
    """What a gauge's values of several processes come to."""

    @property
    def full_name(self) -> str:
        """As Prometheus knows it."""
        return PREFIX + self.name

    @property
    def width(self) -> int:
        """How many numbers one series has: a histogram's sum, then how often each bucket was hit."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


def _counter(name: str, told: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, "counter", told, labels)


def _gauge(name: str, told: str, *labels: str, merging: GaugeMerge = "sum") -> MetricFamily:
    return MetricFamily(name, "gauge", told, labels, merging=merging)


def _histogram(name: str, told: str, *labels: str, bounds: tuple[float, ...] = SECONDS_BOUNDS) -> MetricFamily:
    return MetricFamily(name, "histogram", told, labels, bounds)


REQUESTS: Final = _counter("requests_total", "Requests, by path and status of the answer.", "endpoint", "code")
REQUEST_SECONDS: Final = _histogram("request_seconds", "From a request to its answer's end.", "endpoint", "stream")
FIRST_BYTE_SECONDS: Final = _histogram(
    "first_byte_seconds", "From a chat completion's request to the first byte of its answer's body.", "stream"
)
ERRORS: Final = _counter("errors_total", "Errors that clients were told, those inside streams too.", "code", "status")
OPERATOR_ERRORS: Final = _counter(
    "operator_errors_total",
    "Those of them that no application was told: answers to probes, scrapers, the console, `/v1/admin` and unknown"
    " paths.",
    "code",
    "status",
)
DISCONNECTS: Final = _counter("client_disconnects_total", "Clients that hung up before their answer's end.")
IN_FLIGHT: Final = _gauge("requests_in_flight", "Chat completions that are being answered.")
STREAMS: Final = _gauge("streams_open", "Streams that have begun and not ended.")
ADMITTED: Final = _gauge("requests_admitted", "Requests that ask a model and have a place among those that may.")
WAITING: Final = _gauge("requests_waiting", "Requests that wait for such a place.")
ADMISSION_WAIT_SECONDS: Final = _histogram(
    "admission_wait_seconds", "How long requests that had to wait for a place, and got one, waited."
)
REFUSALS: Final = _counter("refusals_total", "Requests that got no place.", "reason")
CONNECTIONS: Final = _gauge("connections_open", "Connections of clients.")
CUTS: Final = _counter("connections_cut_total", "Connections that were refused, or ended before their time.", "reason")

TURNS: Final = _counter("turns_total", "Answers of models, by what their prompts were.", "status", "policy")
INTERRUPTED: Final = _counter("interrupted_turns_total", "Those of them that broke off, or whose client hung up.")
REPLAYS: Final = _counter(
    "replays_total", "Answers that were given again, or to several attempts at once; no model was asked for them."
)
RECOVERIES: Final = _counter("overflow_recoveries_total", "Answers that came after a prompt was refused as too long.")
PROMPT_TOKENS: Final = _counter(
    "prompt_tokens_total",
    "Tokens of prompts: `estimated` is our count of what was sent, `reported` the provider's, `cached` what of that it"
    " read from its cache, `log` the whole histories, `saved` what of them was not sent.",
    "kind",
    *MODEL_LABELS,
)
COMPLETION_TOKENS: Final = _counter("completion_tokens_total", "Tokens of answers, as reported.", *MODEL_LABELS)
PRESSURE: Final = _histogram("context_pressure", "Prompt as a share of its limit.", bounds=SHARE_BOUNDS)
COST: Final = _counter(
    "cost_usd_total", "What answers and summaries cost by list price, as far as that is known.", "kind", *MODEL_LABELS
)
SAVED_COST: Final = _counter("saved_usd_total", "What unsent tokens would have cost, by list price.", *MODEL_LABELS)
UNPRICED: Final = _counter(
    "unpriced_calls_total", "Calls whose cost is not known: no `price` of the model, or no `usage` reported.", "reason"
)

COMPACTIONS: Final = _counter("compactions_total", "Ranges that were to be summarized.", "outcome", "trigger")
COMPACTION_SECONDS: Final = _histogram("compaction_seconds", "How long a range took.", "outcome")
COMPACTING: Final = _gauge("compactions_running", "Ranges that are being summarized.")
SUMMARY_TOKENS: Final = _counter("summary_tokens_total", "Tokens of summary calls, as reported.", "kind", *MODEL_LABELS)

LEASE_WAIT_SECONDS: Final = _histogram(
    "lease_wait_seconds",
    "How long a conversation or a range was waited for.",
    "of",
    "outcome",
    bounds=LONG_WAIT_BOUNDS,
)
STORE_SECONDS: Final = _histogram("store_seconds", "What the store took.", "operation", bounds=SHORT_SECONDS_BOUNDS)
STORE_ERRORS: Final = _counter("store_errors_total", "Operations that found the store away.", "operation")
STORE_QUEUE: Final = _gauge("store_queue_depth", "Operations of the store that wait or run.")

UPSTREAM_REQUESTS: Final = _counter(
    "upstream_requests_total", "Calls of providers, tries that failed included.", *MODEL_LABELS, "purpose", "outcome"
)
UPSTREAM_SECONDS: Final = _histogram("upstream_seconds", "From a call to its answer's end.", *MODEL_LABELS, "purpose")
UPSTREAM_FIRST_BYTE_SECONDS: Final = _histogram(
    "upstream_first_byte_seconds", "From a call to the first byte of its answer's body.", *MODEL_LABELS, "purpose"
)
UPSTREAM_RETRIES: Final = _counter(
    "upstream_retries_total", "Calls of a deployment that had just failed.", *MODEL_LABELS
)
UPSTREAM_FALLBACKS: Final = _counter(
    "upstream_fallbacks_total", "Answers of a deployment that is not the first for its model.", *MODEL_LABELS
)
BREAKER_OPEN: Final = _gauge(
    "upstream_breaker_open", "1 while a deployment is left alone, or on trial.", *MODEL_LABELS, "purpose", merging="max"
)

TASKS: Final = _gauge("background_tasks", "Work that goes on behind requests.")
WORKERS: Final = _gauge("workers", "Processes that serve.")
STARTED: Final = _gauge("start_time_seconds", "When the first of them started, Unix time.", merging="min")
BUILD: Final = _gauge("build_info", "1, with what is running.", "version", "database", merging="max")

FAMILIES: Final[tuple[MetricFamily, ...]] = tuple(
    one for one in list(globals().values()) if isinstance(one, MetricFamily)
)
"""All of them, in the order in which they are told."""
