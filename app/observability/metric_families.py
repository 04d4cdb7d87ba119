"""Declares every metric family with its labels and its meaning. Pure.

Labels are the gateway's own names, statuses, and names of providers and models, which `Metrics.model_label` bounds. A
label is never a tenant, a conversation, a key or content: the number of series would grow without bound, and
`/metrics` is rarely protected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "concertina_"
MetricKind = Literal["counter", "gauge", "histogram"]
GaugeMerge = Literal["livesum", "livemax", "min"]

# Upper ends of histogram buckets. Requests and model calls take from milliseconds to minutes.
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
# An operation of the store takes from a tenth of a millisecond to its timeout of a few seconds.
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

CONSOLE_LABEL: Final = "console"
"""The label `endpoint` of reads by the console's pages."""
OTHER_LABEL: Final = "other"
"""The label of unknown paths, and of models beyond `MAX_MODEL_LABELS`."""
MODEL_CALL_ENDPOINTS: Final = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
"""The paths of requests that a model answers."""
_OPERATOR_ENDPOINTS: Final = (
    *("/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", "/console", "/v1/admin/"),
    *(CONSOLE_LABEL, OTHER_LABEL),
)
"""Prefixes of the endpoints that operators and their tools request."""


def is_application_endpoint(endpoint: str) -> bool:
    """Whether applications request this endpoint. The overview counts only their requests."""
    return endpoint != "/" and not endpoint.startswith(_OPERATOR_ENDPOINTS)


@dataclass(frozen=True, eq=False, slots=True)
class MetricFamily:
    """A metric family. Equal only to itself, so that a lookup by family costs little.

    Attributes:
        name: the name without `PREFIX`.
        kind: the type, as Prometheus has it.
        help: the description in `/metrics` and `docs/telemetry.md`.
        labels: the names of the labels.
        bounds: the upper ends of a histogram's buckets, without infinity.
        merging: how a gauge's values of several processes become one number. `live` leaves out those that have ended.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    merging: GaugeMerge = "livesum"

    @property
    def full_name(self) -> str:
        """The name in `/metrics`."""
        return PREFIX + self.name


def _define_counter(name: str, description: str, *labels: str) -> MetricFamily:
    return MetricFamily(name, "counter", description, labels)


def _define_gauge(name: str, description: str, *labels: str, merging: GaugeMerge = "livesum") -> MetricFamily:
    return MetricFamily(name, "gauge", description, labels, merging=merging)


def _define_histogram(
    name: str, description: str, *labels: str, bounds: tuple[float, ...] = SECONDS_BOUNDS
) -> MetricFamily:
    return MetricFamily(name, "histogram", description, labels, bounds)


REQUESTS: Final = _define_counter("requests_total", "Requests, by path and status of the answer.", "endpoint", "code")
REQUEST_SECONDS: Final = _define_histogram(
    "request_seconds", "From a request to the end of its answer.", "endpoint", "stream"
)
FIRST_BYTE_SECONDS: Final = _define_histogram(
    "first_byte_seconds", "From a request that a model answers to the first byte of the answer's body.", "stream"
)
ERRORS: Final = _define_counter(
    "errors_total", "Errors that were sent to clients, also inside streams.", "code", "status"
)
OPERATOR_ERRORS: Final = _define_counter(
    "operator_errors_total",
    "The part of `errors_total` that no application got: probes, metrics, the console, `/v1/admin` and unknown paths.",
    "code",
    "status",
)
DISCONNECTS: Final = _define_counter(
    "client_disconnects_total", "Clients that disconnected before the end of their answer."
)
REQUESTS_IN_FLIGHT: Final = _define_gauge("requests_in_flight", "Chat completions that are being answered.")
STREAMS_OPEN: Final = _define_gauge("streams_open", "Streams that have begun and not ended.")
REQUESTS_ADMITTED: Final = _define_gauge(
    "requests_admitted", "Requests that have an admission slot and may call a model."
)
REQUESTS_WAITING: Final = _define_gauge("requests_waiting", "Requests that wait for an admission slot.")
ADMISSION_WAIT_SECONDS: Final = _define_histogram(
    "admission_wait_seconds",
    "How long requests waited for a slot; those that found one free are not counted.",
)
REFUSALS: Final = _define_counter("refusals_total", "Requests that got no admission slot.", "reason")
CONNECTIONS: Final = _define_gauge("connections_open", "Open connections of clients.")
CLOSED_CONNECTIONS: Final = _define_counter(
    "connections_cut_total", "Connections of clients that the gateway refused or closed early.", "reason"
)

TURNS: Final = _define_counter(
    "turns_total", "Answers of models, by the context status of their prompts and the policy.", "status", "policy"
)
INTERRUPTED_TURNS: Final = _define_counter(
    "interrupted_turns_total", "The part of `turns_total` that broke off, or whose client disconnected."
)
REPLAYS: Final = _define_counter(
    "replays_total",
    "Answers that retries got without another call of a model: stored, or of a request that still ran.",
)
OVERFLOW_RECOVERIES: Final = _define_counter(
    "overflow_recoveries_total",
    "Answers to a smaller prompt, after the provider had refused the first one as too long.",
)
PROMPT_TOKENS: Final = _define_counter(
    "prompt_tokens_total",
    "Tokens of prompts: `estimated` is our count of what was sent, `reported` the provider's count, `cached` the part"
    " of it that the provider read from its cache, `log` the whole histories, `saved` the part of them that was not"
    " sent.",
    "kind",
    *MODEL_LABELS,
)
LOST_CACHE_TOKENS: Final = _define_counter(
    "lost_cache_tokens_total",
    "Tokens that a provider had in its cache and read anew, though the gateway changed nothing: `changed` is `model`, "
    "`tools`, `instructions`, `history`, `idle` or `unknown`.",
    "changed",
    *MODEL_LABELS,
)
COMPLETION_TOKENS: Final = _define_counter(
    "completion_tokens_total", "Tokens of answers, as providers report them.", *MODEL_LABELS
)
CONTEXT_PRESSURE: Final = _define_histogram(
    "context_pressure", "Tokens of a prompt as a share of its limit.", bounds=SHARE_BOUNDS
)
COST: Final = _define_counter(
    "cost_usd_total", "Cost of answers and summaries by list price, as far as it is known.", "kind", *MODEL_LABELS
)
SAVED_COST: Final = _define_counter(
    "saved_usd_total", "Cost that was saved by tokens that were not sent, by list price.", *MODEL_LABELS
)
UNPRICED_CALLS: Final = _define_counter(
    "unpriced_calls_total", "Calls whose cost is not known: no `price` of the model, or no `usage` reported.", "reason"
)

COMPACTIONS: Final = _define_counter(
    "compactions_total", "Compactions; each makes the summary of one range.", "outcome", "trigger"
)
COMPACTION_SECONDS: Final = _define_histogram(
    "compaction_seconds", "How long the compaction of a range took.", "outcome"
)
RUNNING_COMPACTIONS: Final = _define_gauge("compactions_running", "Ranges that are being summarized.")
SUMMARY_TOKENS: Final = _define_counter(
    "summary_tokens_total", "Tokens of summary calls, as providers report them.", "kind", *MODEL_LABELS
)

LEASE_WAIT_SECONDS: Final = _define_histogram(
    "lease_wait_seconds",
    "How long the lease of a conversation or a range was waited for.",
    "of",
    "outcome",
    bounds=LONG_WAIT_BOUNDS,
)
STORE_SECONDS: Final = _define_histogram(
    "store_seconds", "How long an operation of the store took.", "operation", bounds=SHORT_SECONDS_BOUNDS
)
STORE_ERRORS: Final = _define_counter(
    "store_errors_total", "Operations that failed because the store was unavailable.", "operation"
)
STORE_UNWRITABLE: Final = _define_gauge(
    "store_unwritable", "1 while writes to the database fail, as with a full disk.", merging="livemax"
)
STORE_QUEUE: Final = _define_gauge("store_queue_depth", "Operations of the store that wait or run.")

UPSTREAM_REQUESTS: Final = _define_counter(
    "upstream_requests_total", "Calls of providers, including failed ones.", *MODEL_LABELS, "purpose", "outcome"
)
UPSTREAM_SECONDS: Final = _define_histogram(
    "upstream_seconds", "From a call to the end of its answer.", *MODEL_LABELS, "purpose"
)
UPSTREAM_FIRST_BYTE_SECONDS: Final = _define_histogram(
    "upstream_first_byte_seconds", "From a call to the first byte of its answer's body.", *MODEL_LABELS, "purpose"
)
UPSTREAM_RETRIES: Final = _define_counter(
    "upstream_retries_total", "Calls that were repeated at a deployment that had just failed.", *MODEL_LABELS
)
UPSTREAM_FALLBACKS: Final = _define_counter(
    "upstream_fallbacks_total", "Answers of a deployment that is not the first for its model.", *MODEL_LABELS
)
BREAKER_OPEN: Final = _define_gauge(
    "upstream_breaker_open",
    "1 while the circuit breaker of a deployment is open, for one tenant or for all.",
    *MODEL_LABELS,
    "purpose",
    merging="livemax",
)

BACKGROUND_TASKS: Final = _define_gauge(
    "background_tasks", "Tasks that run in the background, and one for each request that is being answered."
)
LOOP_FAILURES: Final = _define_counter(
    "background_loop_failures_total", "Runs of a background loop that failed. The loop goes on.", "loop"
)
UNWRITTEN_USAGE: Final = _define_counter(
    "usage_sums_lost_total", "Sums of usage that the database refused, or that did not fit into memory."
)
UNWRITTEN_REQUESTS: Final = _define_counter(
    "requests_not_kept_total", "Requests that the database keeps no record of: it refused them, or the queue was full."
)
WORKERS: Final = _define_gauge("workers", "Worker processes.")
START_TIME: Final = _define_gauge(
    "start_time_seconds", "When the first worker process started, Unix time.", merging="min"
)
BUILD_INFO: Final = _define_gauge(
    "build_info", "1; the labels say what is running.", "version", "database", merging="livemax"
)

FAMILIES: Final[tuple[MetricFamily, ...]] = tuple(
    one for one in list(globals().values()) if isinstance(one, MetricFamily)
)
"""All families, in the order of their declaration, which is their order in `/metrics`."""
