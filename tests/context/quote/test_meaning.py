"""Vectors are stored so that hardly a rank is lost, and rankings are joined by rank."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.quote.meaning import (
    MAX_PASSAGES,
    PassagePlace,
    encode_vectors,
    fuse_ranks,
    list_passage_texts,
    rank_by_meaning,
)
from app.context.quote.passages import Passage
from tests.store.example_logs import log_of

Vector = Sequence[float]
vectors = st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4).filter(lambda one: math.hypot(*one) > 0.1)


def cosine(one: Vector, other: Vector) -> float:
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / (math.hypot(*one) * math.hypot(*other))


@given(st.lists(st.lists(vectors, max_size=3), max_size=6), vectors)
def test_the_nearest_come_first_but_for_what_a_byte_cannot_tell(messages: list[list[Vector]], question: Vector) -> None:
    stored = [(seq, encode_vectors(passages)) for seq, passages in enumerate(messages)]
    found = rank_by_meaning(question, stored, limit=99)
    places = [PassagePlace(seq, at) for seq, passages in enumerate(messages) for at in range(len(passages))]
    assert sorted(found) == places
    cosines = [cosine(messages[place.seq][place.passage], question) for place in found]
    assert all(earlier > later - 0.02 for earlier, later in itertools.pairwise(cosines))
    assert rank_by_meaning(question, stored, limit=2) == found[:2]


def test_vectors_of_another_model_are_left_out() -> None:
    stored = [(3, encode_vectors([[1.0, 0.0]])), (4, encode_vectors([[1.0, 0.0, 0.0]])), (5, b"")]
    assert rank_by_meaning([1.0, 0.0], stored, limit=9) == [PassagePlace(3, 0)]
    assert rank_by_meaning([1.0, 0.0], [], limit=9) == []


def test_a_vector_without_direction_is_no_fault() -> None:
    assert rank_by_meaning([1.0, 0.0], [(0, encode_vectors([[0.0, 0.0]]))], limit=9) == [PassagePlace(0, 0)]


def passages(*seqs: int) -> list[Passage]:
    return [Passage(seq, 0, 9, {}, 2) for seq in seqs]


@pytest.mark.parametrize(
    ("rankings", "fused"),
    [
        (([1, 2, 3], []), [1, 2, 3]),
        (([1, 2, 3], [4, 3]), [3, 1, 4, 2]),
        (([], [5, 6]), [5, 6]),
        (([1, 2], [2, 1]), [1, 2]),
    ],
)
def test_what_both_rankings_have_comes_before_what_one_has(rankings: tuple[list[int], ...], fused: list[int]) -> None:
    assert [one.seq for one in fuse_ranks(*(passages(*seqs) for seqs in rankings))] == fused


def test_a_long_message_has_vectors_of_its_beginning_only() -> None:
    (entry,) = log_of("tenant", [f"user {'This is one of the many sentences that stand in a message here. ' * 99}"])
    assert len(list_passage_texts(entry)) == MAX_PASSAGES
    (short,) = log_of("tenant", ["user hello"])
    assert list_passage_texts(short) == ["hello"]
