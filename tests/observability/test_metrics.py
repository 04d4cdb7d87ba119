"""What is counted can be read back: by this process, and by those beside it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import values as prometheus_values

from app.api.edge.connections import ClientConnections, ConnectionLimits
from app.observability import metric_families as f
from app.observability.metric_families import OTHER_LABEL
from app.observability.metric_readings import estimate_quantile
from app.observability.metrics import MAX_MODEL_LABELS, NO_METRICS, Metrics, TurnFacts
from app.observability.worker_metric_files import FOLDER_VARIABLE, RESERVED_BYTES, drop_gauges_of_dead_workers

TURN = TurnFacts("p", "m", "additive", "full", prompt_tokens=60, log_tokens=100, pressure=0.5)
TOTALS = {
    "turns": f.TURNS,
    "errors": f.ERRORS,
    "cut": f.CLOSED_CONNECTIONS,
    "workers": f.WORKERS,
    "in_flight": f.REQUESTS_IN_FLIGHT,
    "started_at": f.START_TIME,
}

_metrics_of_worker: list[Metrics] = []


class Worker:
    """A process that counts in a folder beside others."""

    def __init__(self, folder: Path, started_at: float) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, spawn, _begin_worker, (folder, started_at))
        self.do(_count_nothing)

    def do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._process.submit(work, *arguments).result()

    def read(self, *names: str) -> tuple[float, ...]:
        totals: dict[str, float] = self.do(_read_totals)
        return tuple(totals[name] for name in names)

    def end(self) -> None:
        self._process.shutdown()


def _begin_worker(folder: Path, started_at: float) -> None:
    os.environ[FOLDER_VARIABLE] = str(folder)
    _metrics_of_worker.append(Metrics(folder, unix_seconds=lambda: started_at))


def _count_nothing() -> None:
    """Returns when the worker has begun."""


def _count_turn() -> None:
    _metrics_of_worker[0].count_turn(TURN)


def _count_error() -> None:
    _metrics_of_worker[0].count_error("x", 500)


def _begin_requests() -> None:
    _metrics_of_worker[0].in_flight.inc(3)


def _cut_connection() -> None:
    connections = ClientConnections(ConnectionLimits())
    connections.register_metrics(_metrics_of_worker[0])
    connections.count_cut("idle")


def _read_totals() -> dict[str, float]:
    numbers = _metrics_of_worker[0].read_snapshot()
    return {name: numbers.sum_series(family) for name, family in TOTALS.items()}


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that count in one folder."""
    with ExitStack() as stack:

        def started(started_at: float = 10.0) -> Worker:
            worker = Worker(tmp_path, started_at)
            stack.callback(worker.end)
            return worker

        yield started


@pytest.fixture
def counting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot share numbers changes the library's choice, which is global."""
    monkeypatch.setattr(prometheus_values, "ValueClass", prometheus_values.ValueClass)


def test_counters_add_up() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.count_turn(TURN)
    numbers = metrics.read_snapshot()
    assert numbers.sum_series(f.TURNS, status="full") == 3
    assert numbers.sum_by_label(f.PROMPT_TOKENS, "kind")["saved"] == 120


def test_a_series_is_told_from_its_first_time_on() -> None:
    metrics = Metrics()
    assert list(metrics.read_snapshot().iter_series(f.ERRORS)) == []
    metrics.count_error("model_not_found", 404)
    assert [labels for labels, _ in metrics.read_snapshot().iter_series(f.ERRORS)] == [
        {"code": "model_not_found", "status": "404"}
    ]


def test_a_watched_gauge_is_looked_up_when_it_is_read() -> None:
    metrics, running = Metrics(), [1.0]
    metrics.watch_gauge(f.BACKGROUND_TASKS, lambda: running[0])
    running[0] = 5.0
    assert metrics.read_snapshot().sum_series(f.BACKGROUND_TASKS) == 5


def test_more_models_than_anybody_has_are_one() -> None:
    metrics = Metrics(models=("configured",), is_known_model=lambda name: True)
    names = [metrics.model_label(f"m{number}") for number in range(MAX_MODEL_LABELS + 5)]
    assert names[-1] == OTHER_LABEL
    assert len(set(names)) == MAX_MODEL_LABELS
    assert metrics.model_label("configured") == "configured"


def test_a_name_that_is_neither_configured_nor_known_is_no_label() -> None:
    metrics = Metrics(models=("configured",), is_known_model=lambda name: name == "known")
    assert [metrics.model_label(name) for name in ("configured", "known", "mine")] == ["configured", "known", "other"]


def test_a_model_that_nobody_has_answered_for_has_no_name() -> None:
    metrics = Metrics(is_known_model=lambda name: True)
    assert metrics.model_label("made-up", is_served=False) == OTHER_LABEL
    assert metrics.model_label("real") == metrics.model_label("real", is_served=False) == "real"


def test_what_is_switched_off_counts_nothing() -> None:
    NO_METRICS.count_turn(TURN)
    NO_METRICS.count_error("x", 500)
    assert NO_METRICS.read_snapshot().sum_series(f.TURNS) == 0
    assert NO_METRICS.read_snapshot().sum_series(f.ERRORS) == 0


def test_a_process_tells_for_those_beside_it(start: Start) -> None:
    one, other = start(), start()
    one.do(_count_turn)
    assert other.read("turns") == (1,)
    other.do(_count_turn)
    other.do(_count_error)
    assert one.read("turns", "errors", "workers") == (2, 1, 2)


def test_counters_of_a_process_that_ended_stay_and_its_gauges_go(start: Start, tmp_path: Path) -> None:
    one, other = start(), start()
    other.do(_count_turn)
    other.do(_begin_requests)
    one.do(_begin_requests)
    other.end()
    drop_gauges_of_dead_workers(tmp_path)
    assert one.read("turns", "workers", "in_flight") == (1, 1, 3)


def test_the_next_process_goes_on_where_one_has_ended(start: Start, tmp_path: Path) -> None:
    one = start(started_at=10.0)
    for turns in (1, 2):
        other = start(started_at=10.0 + turns)
        other.do(_count_turn)
        other.do(_begin_requests)
        other.do(_cut_connection)
        assert one.read("turns", "workers", "in_flight", "cut", "started_at") == (turns, 2, 3, turns, 10)
        other.end()
    one.end()
    heir = start(started_at=99.0)
    drop_gauges_of_dead_workers(tmp_path)
    assert heir.read("turns", "in_flight", "cut", "started_at") == (2, 0, 2, 10)
    assert len(list(tmp_path.glob("counter_*.db"))) == 2


@pytest.mark.usefixtures("counting_alone")
def test_a_folder_that_cannot_be_used_leaves_a_process_to_count_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "0.worker").mkdir()
    alone = Metrics(tmp_path)
    alone.count_turn(TURN)
    assert alone.read_snapshot().sum_series(f.TURNS) == 1
    assert "cannot share metrics" in caplog.text


@pytest.mark.usefixtures("counting_alone")
def test_a_process_without_room_for_its_numbers_is_left_out_by_others(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = start()
    (tmp_path / "counter_1.new").symlink_to("/dev/full")
    Metrics(tmp_path).count_turn(TURN)
    assert "No space left" in caplog.text
    one.do(_count_turn)
    assert one.read("turns") == (1,)


def test_no_place_is_left_to_be_found_on_the_disk_later(start: Start, tmp_path: Path) -> None:
    start()
    for kind, size in RESERVED_BYTES.items():
        kept = (tmp_path / f"{kind}_0.db").stat()
        assert kept.st_blocks * 512 >= kept.st_size == size


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([0.003] * 10, 0.5, 0.0025), ([0.007] * 4, 1.0, 0.01), ([10_000.0], 0.5, f.SECONDS_BOUNDS[-1])],
)
def test_quantiles_lie_within_their_bucket(values: list[float], share: float, expected: float | None) -> None:
    metrics = Metrics()
    for value in values:
        metrics.histogram_series(f.REQUEST_SECONDS, "x", "false").observe(value)
    assert (
        estimate_quantile(share, f.REQUEST_SECONDS, metrics.read_snapshot().sum_histogram(f.REQUEST_SECONDS))
        == expected
    )


def test_a_value_at_a_bucket_s_end_is_within_it() -> None:
    metrics = Metrics()
    metrics.histogram_series(f.REQUEST_SECONDS, "x", "false").observe(f.SECONDS_BOUNDS[2])
    hits = metrics.read_snapshot().sum_histogram(f.REQUEST_SECONDS)
    assert hits.index(1) == 2
