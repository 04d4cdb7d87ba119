"""Ranks passages of old messages by what they mean: by the cosine of their vectors and the question's. Pure.

An embedding model turns a text into a vector; texts that mean the same have vectors of nearly the same direction. The
vectors of a message are kept beside it: one for each of its passages, a signed byte for each component. A component has
lost at most 0.4 % of the largest one then, which moves hardly a rank.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from app.context.quote.passages import Passage, split_into_passages
from app.conversation.conversation_types import LogMessage

MAX_PASSAGES: Final = 32
"""The most passages of a message that have vectors: its first ones, some 5,000 characters."""
LARGEST_COMPONENT: Final = 127
RANK_OFFSET: Final = 60
"""Of reciprocal rank fusion, as its authors chose it (Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion outperforms
Condorcet and individual Rank Learning Methods", 2009)."""
_HEADER: Final = struct.Struct("<H")
"""The number of components of each vector."""


class PassagePlace(NamedTuple):
    """A passage by its message and its place among the passages of `split_into_passages`."""

    seq: int
    passage: int


def list_passage_texts(entry: LogMessage) -> list[str]:
    """Returns the passages of a message that get vectors."""
    split = split_into_passages(entry, frozenset())
    if not split.text.strip():
        return []
    return [split.text[passage.start : passage.end] for passage in split.passages[:MAX_PASSAGES]]


def encode_vectors(vectors: Sequence[Sequence[float]]) -> bytes:
    """Returns the vectors of a message's passages as they are stored; none: no bytes."""
    if not vectors:
        return b""
    numpy = load_numpy()
    matrix = numpy.asarray(vectors, dtype=numpy.float32)
    largest = numpy.maximum(numpy.abs(matrix).max(axis=1, keepdims=True), numpy.finfo(numpy.float32).tiny)
    encoded = numpy.rint(matrix / largest * LARGEST_COMPONENT).astype(numpy.int8)
    return _HEADER.pack(matrix.shape[1]) + bytes(encoded.tobytes())


def rank_by_meaning(
    question: Sequence[float], stored: Iterable[tuple[int, bytes]], *, limit: int
) -> list[PassagePlace]:
    """Returns the passages whose vectors are nearest to the question's, nearest first.

    Args:
        stored: seqs of messages, each with its encoded vectors. Those of another number of components are left out:
            the model has changed under its name.
    """
    numpy = load_numpy()
    asked = numpy.asarray(question, dtype=numpy.float32)
    header = _HEADER.pack(len(question))
    places: list[PassagePlace] = []
    parts: list[bytes] = []
    for seq, encoded in stored:
        if encoded.startswith(header):
            parts.append(encoded[_HEADER.size :])
            places += (PassagePlace(seq, index) for index in range(len(parts[-1]) // len(question)))
    if not places:
        return []
    matrix = numpy.frombuffer(b"".join(parts), dtype=numpy.int8).reshape(-1, len(question)).astype(numpy.float32)
    lengths = numpy.maximum(numpy.linalg.norm(matrix, axis=1), numpy.finfo(numpy.float32).tiny)
    cosines = (matrix @ asked) / lengths
    return [places[at] for at in numpy.argsort(-cosines, kind="stable")[:limit].tolist()]


def fuse_ranks(*rankings: Sequence[Passage]) -> list[Passage]:
    """Returns the passages of several rankings in one: each counts the sum of the reciprocals of its ranks."""
    worth: dict[tuple[int, int], float] = defaultdict(float)
    by_place: dict[tuple[int, int], Passage] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking):
            place = passage.seq, passage.start
            worth[place] += 1 / (RANK_OFFSET + rank)
            by_place.setdefault(place, passage)
    return sorted(by_place.values(), key=lambda one: -worth[one.seq, one.start])


def load_numpy() -> Any:
    """Returns numpy, which only the extra `semantic` installs.

    Raises:
        ImportError: it is not installed.
    """
    return import_module("numpy")
