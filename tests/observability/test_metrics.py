"""What is counted can be read back: by this process, and by those beside it."""

from __future__ import annotations

import errno
import io
import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from app.api.edge.connections import ClientConnections, ConnectionLimits
from app.observability import metric_families as f
from app.observability.metric_families import OTHER_LABEL
from app.observability.metric_readings import estimate_quantile
from app.observability.metrics import MAX_MODEL_LABELS, NO_METRICS, Metrics, TurnFacts
from app.observability.shared_metric_cells import CELL_BYTES, CELL_COUNT, CounterCells

TURN = TurnFacts("p", "m", "additive", "full", prompt_tokens=60, log_tokens=100, pressure=0.5)


Start = Callable[..., Metrics]


class FullDisk(io.BytesIO):
    """A journal that cannot always be written to."""

    is_full = False

    def write(self, line: Any) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(line)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that count in one folder."""
    with ExitStack() as stack:

        def started(**options: Any) -> Metrics:
            metrics = Metrics(tmp_path, **options)
            stack.callback(metrics.close)
            return metrics

        yield started


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
    one.count_turn(TURN)
    assert other.read_snapshot().sum_series(f.TURNS) == 1
    other.count_turn(TURN)
    other.count_error("x", 500)
    assert one.read_snapshot().sum_series(f.TURNS) == 2
    assert one.read_snapshot().sum_series(f.ERRORS, code="x") == 1
    assert one.read_snapshot().sum_series(f.WORKERS) == 2


def test_counters_of_a_process_that_ended_stay_and_its_gauges_go(start: Start) -> None:
    one, other = start(), start()
    other.count_turn(TURN)
    other.in_flight.add(3)
    other.close()
    numbers = one.read_snapshot()
    assert (numbers.sum_series(f.TURNS), numbers.sum_series(f.WORKERS), numbers.sum_series(f.REQUESTS_IN_FLIGHT)) == (
        1,
        1,
        0,
    )


def test_the_next_process_goes_on_where_one_has_ended(start: Start, tmp_path: Path) -> None:
    one, other = start(unix_seconds=lambda: 10.0), start(unix_seconds=lambda: 11.0)
    other.count_turn(TURN)
    other.in_flight.add(3)
    other.close()
    heir = start(unix_seconds=lambda: 99.0)
    heir.count_turn(TURN)
    numbers = one.read_snapshot()
    assert (numbers.sum_series(f.TURNS), numbers.sum_series(f.WORKERS), numbers.sum_series(f.REQUESTS_IN_FLIGHT)) == (
        2,
        2,
        0,
    )
    assert numbers.sum_series(f.START_TIME) == 10
    assert len(list(tmp_path.glob("*.cells"))) == 2


def test_a_journal_that_broke_off_in_a_line_is_gone_on_from_there(start: Start, tmp_path: Path) -> None:
    one = start()
    one.count_turn(TURN)
    one.close()
    with (tmp_path / "0.names").open("ab") as journal:
        journal.write(b'["errors_tot')
    heir = start()
    heir.count_error("x", 500)
    assert heir.read_snapshot().sum_series(f.ERRORS, code="x") == 1
    assert heir.read_snapshot().sum_series(f.TURNS) == 1


def test_a_folder_that_cannot_be_used_leaves_a_process_to_count_alone(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "0.names").mkdir()
    alone = start()
    alone.count_turn(TURN)
    assert alone.read_snapshot().sum_series(f.TURNS) == 1
    assert "cannot share metrics" in caplog.text


def test_a_disk_that_is_full_costs_new_series_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    journal = FullDisk()
    cells = CounterCells(mmap.mmap(-1, CELL_COUNT * CELL_BYTES), journal)
    before = cells.find_or_allocate_cell(f.ERRORS, ("x", "500"))
    journal.is_full = True
    assert [cells.find_or_allocate_cell(f.ERRORS, (code, "500")) for code in "yzx"] == [0, 0, before]
    assert caplog.text.count("No space left") == 1
    journal.is_full = False
    assert cells.find_or_allocate_cell(f.ERRORS, ("y", "500")) == 0
    cells.close()


def test_a_process_without_room_for_its_numbers_is_left_out_by_others(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = start()
    (tmp_path / "1.cells").symlink_to("/dev/full")
    start().count_turn(TURN)
    assert "cannot share metrics" in caplog.text
    one.count_turn(TURN)
    assert one.read_snapshot().sum_series(f.TURNS) == 1


def test_no_place_is_left_to_be_found_on_the_disk_later(start: Start, tmp_path: Path) -> None:
    start()
    kept = (tmp_path / "0.cells").stat()
    assert kept.st_blocks * 512 >= kept.st_size == CELL_COUNT * CELL_BYTES


def test_a_restarted_worker_goes_on_counting_the_connections_that_it_cuts(start: Start) -> None:
    for _ in range(2):
        metrics = start()
        connections = ClientConnections(ConnectionLimits())
        connections.register_metrics(metrics)
        connections.count_cut("idle")
        metrics.refresh_gauges()
        metrics.close()
    assert start().read_snapshot().sum_series(f.CLOSED_CONNECTIONS, reason="idle") == 2


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
    hits = metrics.read_snapshot().sum_histogram(f.REQUEST_SECONDS)[1:]
    assert hits.index(1) == 2
