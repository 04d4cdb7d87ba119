"""The memory of answers for whoever asks again is bounded in time, in number and in bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.exchange.kept_answers import MOST_ENTRIES, KeptAnswers

KEPT_SECONDS = 600.0
MOST_BYTES = 1_000_000


def test_what_is_kept_is_there_until_its_time_is_over() -> None:
    now = [0.0]
    kept: KeptAnswers[str] = KeptAnswers(lambda: now[0], seconds=KEPT_SECONDS, most_bytes=MOST_BYTES)
    kept.keep("a", "the answer", 10)
    now[0] = KEPT_SECONDS - 1
    assert kept.get("a") == "the answer"
    assert kept.get("b") is None
    now[0] = KEPT_SECONDS
    assert kept.get("a") is None
    assert len(kept) == 0


def test_what_is_dropped_is_gone() -> None:
    kept: KeptAnswers[str] = KeptAnswers(lambda: 0.0, seconds=KEPT_SECONDS, most_bytes=MOST_BYTES)
    kept.keep("a", "the answer", 10)
    kept.drop("a")
    kept.drop("a")
    assert kept.get("a") is None


def test_the_newest_of_one_name_counts() -> None:
    kept: KeptAnswers[int] = KeptAnswers(lambda: 0.0, seconds=KEPT_SECONDS, most_bytes=MOST_BYTES)
    for number in range(3):
        kept.keep("a", number, 1)
    assert (kept.get("a"), len(kept)) == (2, 1)


def test_the_oldest_make_room() -> None:
    kept: KeptAnswers[int] = KeptAnswers(lambda: 0.0, seconds=KEPT_SECONDS, most_bytes=MOST_BYTES)
    for number in range(MOST_ENTRIES + 3):
        kept.keep(number, number, 1)
    assert len(kept) == MOST_ENTRIES
    assert kept.get(2) is None
    assert kept.get(3) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, MOST_BYTES + 1)), max_size=20))
def test_it_never_holds_more_bytes_than_it_may(sizes: list[tuple[int, int]]) -> None:
    kept: KeptAnswers[int] = KeptAnswers(lambda: 0.0, seconds=KEPT_SECONDS, most_bytes=MOST_BYTES)
    for name, size in sizes:
        kept.keep(name, size, size)
        assert sum(found for one in range(6) if (found := kept.get(one)) is not None) <= MOST_BYTES
        assert (kept.get(name) == size) == (size <= MOST_BYTES)
