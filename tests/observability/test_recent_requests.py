"""The requests that ended last, in one process and in several that share a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.observability.metrics import TurnFacts
from app.observability.recent_requests import EndedRequest, RecentRequests
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
def work(tmp_path: Path) -> Iterator[Callable[[int], RecentRequests]]:
    """Makes workers that share a folder, each with how many requests it keeps."""
    workers: list[RecentRequests] = []

    def make(max_count: int) -> RecentRequests:
        workers.append(RecentRequests(max_count, tmp_path))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def numbers(recent: RecentRequests) -> list[int]:
    return [int((one.id or "").removeprefix("req_")) for one in recent.read_requests()]


def test_a_request_is_read_as_it_was_added() -> None:
    recent = RecentRequests(3)
    recent.add(request(1))
    assert recent.read_requests() == [request(1)]


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
    for number in range(50):
        busy.add(request(number))
        assert numbers(other) == list(range(number, max(-1, number - 4), -1))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 10 * 1000


def test_a_successor_continues_the_file_of_a_killed_worker(
    work: Callable[[int], RecentRequests], tmp_path: Path
) -> None:
    killed, other = work(4), work(4)
    for number in range(6):
        killed.add(request(number))
    killed.close()
    with (tmp_path / "0.requests").open("ab") as file:
        file.write(b'["req_99","/v1')  # killed while it wrote
    assert numbers(other) == [5, 4, 3, 2]
    successor = work(4)
    assert numbers(successor) == [5, 4, 3, 2]
    successor.add(request(6))
    assert numbers(successor) == numbers(other) == [6, 5, 4, 3]
    assert len(list(tmp_path.glob("*.lock"))) == 2


def test_a_request_that_is_found_in_two_files_is_listed_once(
    work: Callable[[int], RecentRequests], tmp_path: Path
) -> None:
    rotated, other = work(4), work(4)
    rotated.add(request(1))
    # As a reader finds them that has read the first file before a rotation, and the second one after it.
    shutil.copy(tmp_path / "0.requests", tmp_path / "0.requests.previous")
    assert numbers(other) == [1]


def test_a_folder_that_cannot_be_used_leaves_a_worker_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recent = RecentRequests(3, tmp_path / "none")
    recent.add(request(1))
    assert numbers(recent) == [1]
    assert "only this process shows its own" in caplog.text


def test_a_file_that_cannot_be_written_fails_no_request(
    work: Callable[[int], RecentRequests], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recent, other = work(2), work(2)
    recent.add(request(1))
    other.add(request(0))
    shutil.rmtree(tmp_path)  # as a cleaner of old temporary files does
    for number in (2, 3, 4):
        recent.add(request(number))
    assert numbers(recent) == [4, 3]
    assert numbers(other) == [0]
    assert caplog.text.count("cannot share recent requests") == 1


def test_the_steps_of_a_request_are_bounded() -> None:
    record = RequestRecord(lambda: 1.0, 0.0, 0.0)
    for _ in range(2 * MAX_STEPS):
        record.end_step(record.begin_step("attempt"))
        record.add_step("read", 0.0)
    assert len(record.steps) == MAX_STEPS
    record.forget()
    assert record.steps == []
