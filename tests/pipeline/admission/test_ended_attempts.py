"""The memory of how attempts have ended is bounded in time, in number and in bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.pipeline.admission.shared_attempts import MAX_ENDED_ATTEMPTS, EndedAttempt, EndedAttempts
from app.pipeline.resolve.answer_replay import TAIL_BYTES
from app.pipeline.turn.chat_request import RETRY_MAX_AGE_SECONDS

NOW = datetime(2026, 1, 1, tzinfo=UTC)

MOST_BYTES = 100 * TAIL_BYTES


def outcomes(now: list[float] | None = None, most_bytes: int = 10_000 * TAIL_BYTES) -> EndedAttempts:
    clock = now or [0.0]
    return EndedAttempts(lambda: clock[0], max_bytes=most_bytes)


def kept_attempt(size_bytes: int) -> EndedAttempt:
    attempt: Any = SimpleNamespace(size_bytes=size_bytes)
    return EndedAttempt(NOW, attempt=attempt)


def test_an_outcome_is_there_until_its_time_is_over() -> None:
    now = [0.0]
    kept, outcome = outcomes(now), EndedAttempt(NOW, "conv_1")
    kept.put("a", outcome)
    now[0] = RETRY_MAX_AGE_SECONDS - 1
    assert kept.get("a") == outcome
    assert kept.get("b") is None
    now[0] = RETRY_MAX_AGE_SECONDS
    assert kept.get("a") is None
    assert len(kept) == 0


def test_what_has_expired_goes_with_the_next_look_at_anything() -> None:
    now = [0.0]
    kept = outcomes(now)
    kept.put("a", kept_attempt(1))
    now[0] = RETRY_MAX_AGE_SECONDS
    assert kept.get("b") is None
    assert (len(kept), kept._size_bytes) == (0, 0)


def test_an_outcome_that_is_dropped_is_gone() -> None:
    kept = outcomes()
    kept.put("a", EndedAttempt(NOW, "conv_1"))
    kept.forget("a")
    kept.forget("a")
    assert kept.get("a") is None


def test_the_newest_of_one_name_counts() -> None:
    kept = outcomes()
    for number in range(3):
        kept.put("a", EndedAttempt(NOW, f"conv_{number}"))
    assert (kept.get("a"), len(kept)) == (EndedAttempt(NOW, "conv_2"), 1)


def test_the_oldest_make_room() -> None:
    kept = outcomes()
    for number in range(MAX_ENDED_ATTEMPTS + 3):
        kept.put(number, EndedAttempt(NOW, f"conv_{number}"))
    assert len(kept) == MAX_ENDED_ATTEMPTS
    assert kept.get(2) is None
    assert kept.get(3) == EndedAttempt(NOW, "conv_3")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, MOST_BYTES + 1)), max_size=20))
def test_it_never_holds_more_bytes_than_it_may(sizes: list[tuple[int, int]]) -> None:
    kept = outcomes(most_bytes=MOST_BYTES)
    for name, size_bytes in sizes:
        outcome = kept_attempt(size_bytes)
        kept.put(name, outcome)
        attempts = [found.attempt for one in range(6) if (found := kept.get(one)) is not None]
        assert sum(one.size_bytes + TAIL_BYTES for one in attempts if one is not None) <= MOST_BYTES
        assert (kept.get(name) is outcome) == (size_bytes + TAIL_BYTES <= MOST_BYTES)
