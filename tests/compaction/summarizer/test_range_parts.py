from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.compaction.summarizer.range_parts import MAX_PARTS, compute_max_parts, compute_part_limit, split_into_parts
from app.compaction.summarizer.transcript import SPEAKER_LINE_TOKENS, TranscriptEntry
from tests.compaction.simulated_compaction import COUNT


def test_what_nearly_fits_is_one_part() -> None:
    entries = [TranscriptEntry(n, "user", "word " * 100) for n in range(8)]
    assert split_into_parts(entries, 1050, COUNT.count) == [entries]


def test_every_word_of_what_parts_can_hold_is_read_in_order() -> None:
    entries = [TranscriptEntry(n, "user", f"Statement {n} of mine. " * 30) for n in range(40)]
    parts = split_into_parts(entries, 2000, COUNT.count)
    assert 1 < len(parts) <= compute_max_parts(2000)
    assert "".join(entry.text for part in parts for entry in part) == "".join(entry.text for entry in entries)


def test_one_giant_result_is_sliced() -> None:
    giant = TranscriptEntry(1, "tool result of read", "".join(f"line {n}\n" for n in range(4000)))
    parts = split_into_parts([TranscriptEntry(0, "user", "Read it."), giant], 2000, COUNT.count)
    assert "".join(entry.text for part in parts for entry in part) == "Read it." + giant.text
    assert parts[-1][0].speaker == "tool result of read, continued"


def test_what_is_longer_than_all_parts_is_shortened_first() -> None:
    giant = TranscriptEntry(0, "tool result of read", "BEGIN " + "noise " * 400_000 + "END")
    parts = split_into_parts([giant], 2000, COUNT.count)
    assert len(parts) <= compute_max_parts(2000)
    assert parts[0][0].text.startswith("BEGIN")
    assert parts[-1][-1].text.endswith("END")


def test_the_summaries_of_all_parts_fit_into_the_call_that_merges_them() -> None:
    for room in (200, 500, 1000, 4000, 100_000):
        parts = compute_max_parts(room)
        assert 1 <= parts <= MAX_PARTS
        assert parts == 1 or parts * (compute_part_limit(parts, room, 512) + SPEAKER_LINE_TOKENS) <= room


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=30), st.integers(300, 3000))
def test_any_entries_come_in_a_bounded_number_of_parts_of_bounded_size(lengths: list[int], room: int) -> None:
    entries = [TranscriptEntry(n, "user", "word " * (length // 5)) for n, length in enumerate(lengths)]
    parts = split_into_parts(entries, room, COUNT.count)
    assert len(parts) <= MAX_PARTS
    if len(parts) > 1:
        sizes = [sum(COUNT.count(entry.text) + SPEAKER_LINE_TOKENS for entry in part) for part in parts]
        assert max(sizes) <= room
