"""The requests that ended last, in one process and in several that share a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.observability.metrics import TurnFacts
from app.observability.recent_requests import LINE_BYTES, EndedRequest, RecentRequests
from app.observability.request_facts import ErrorFacts, RequestFacts
from app.observability.request_record import MAX_STEPS, RequestRecord, RequestStep


def request(number: int) -> EndedRequest:
    return EndedRequest(
        id=f"req_{number}",
        endpoint="/v1/chat/completions",
        status=502,
        is_complete=True,
        started_unix=1_700_000_000.25 + number,
        started_at=10.5,
        duration=0.25,
        first_byte_seconds=None,
        tenant="shop",
        key_id=None,
        facts=RequestFacts(error=ErrorFacts("upstream_unavailable", "upstream_unavailable", 502), model="m"),
        turn=TurnFacts("p", "m", "additive", "full", 12, 12, 0.1, cost_usd=0.5),
        steps=[RequestStep("attempt", 10.6, 10.7, {"provider": "p", "status": None})],
    )


@pytest.fixture
def work(tmp_path: Path) -> Callable[[int], RecentRequests]:
    """Makes workers that share a folder, each with how many requests it keeps."""
    return lambda max_count: RecentRequests(max_count, tmp_path)


def numbers(recent: RecentRequests) -> list[int]:
    return [int((one.id or "").removeprefix("req_")) for one, _ in recent.read_requests()]


def test_a_request_is_read_as_it_was_added() -> None:
    recent = RecentRequests(3)
    line = recent.add(request(1))
    assert recent.read_requests() == [(request(1), line)]


def test_the_oldest_requests_are_forgotten() -> None:
    recent = RecentRequests(3)
    for number in range(5):
        recent.add(request(number))
    assert numbers(recent) == [4, 3, 2]


def test_requests_are_in_the_order_of_their_starts() -> None:
    recent = RecentRequests(3)
    for number in (2, 1, 3):
        recent.add(request(number))
    assert numbers(recent) == [3, 2, 1]


def test_each_worker_shows_the_requests_of_all(work: Callable[[int], RecentRequests]) -> None:
    workers = [work(10) for _ in range(3)]
    for number in range(9):
        workers[number % 3].add(request(number))
    assert [numbers(worker) for worker in workers] == [list(range(8, -1, -1))] * 3


def test_a_worker_keeps_its_newest_requests_for_the_others(
    work: Callable[[int], RecentRequests], tmp_path: Path
) -> None:
    busy, other = work(4), work(4)
    for number in range(150):
        busy.add(request(number))
        assert numbers(other) == list(range(number, max(-1, number - 4), -1))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * (4 * LINE_BYTES + 1000)


def test_workers_that_append_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    workers = [RecentRequests(10_000, tmp_path) for _ in range(4)]

    def add(worker: int) -> None:
        for number in range(worker, 400, 4):
            workers[worker].add(request(number))

    with ThreadPoolExecutor() as pool:
        list(pool.map(add, range(4)))
    assert numbers(workers[0]) == list(range(399, -1, -1))


def test_a_full_file_is_replaced_by_one_worker_only(tmp_path: Path) -> None:
    workers = [RecentRequests(8, tmp_path) for _ in range(4)]

    def add(worker: int) -> None:
        for number in range(worker, 2_000, 4):
            workers[worker].add(request(number))

    with ThreadPoolExecutor() as pool:
        list(pool.map(add, range(4)))
    # Half a file at least is behind the newest lines, whoever replaced it.
    assert len(numbers(workers[0])) == 8


def test_a_successor_shows_the_requests_of_a_killed_worker(
    work: Callable[[int], RecentRequests], tmp_path: Path
) -> None:
    killed, other = work(4), work(4)
    for number in range(6):
        killed.add(request(number))
    with (tmp_path / "requests").open("ab") as file:
        file.write(b'["req_99","/v1\n')  # killed while it wrote
    assert numbers(other) == [5, 4, 3, 2]
    successor = work(4)
    successor.add(request(6))
    assert numbers(successor) == numbers(other) == [6, 5, 4, 3]


def test_a_request_that_is_found_in_two_files_is_listed_once(
    work: Callable[[int], RecentRequests], tmp_path: Path
) -> None:
    rotated, other = work(4), work(4)
    rotated.add(request(1))
    # As a reader finds them that has read the first file before it was replaced, and the second one after it.
    shutil.copy(tmp_path / "requests", tmp_path / "requests.previous")
    assert numbers(other) == [1]


def test_a_folder_that_cannot_be_used_leaves_a_worker_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recent = RecentRequests(3, tmp_path / "none")
    recent.add(request(1))
    recent.add(request(2))
    assert numbers(recent) == [2, 1]
    assert caplog.text.count("shows only its own") == 1


def test_the_steps_of_a_request_are_bounded() -> None:
    record = RequestRecord(lambda: 1.0, 0.0, 0.0)
    for _ in range(2 * MAX_STEPS):
        record.end_step(record.begin_step("attempt"))
        record.add_step("read", 0.0)
    assert len(record.steps) == MAX_STEPS
    record.forget()
    assert record.steps == []
