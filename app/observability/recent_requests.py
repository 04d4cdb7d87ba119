"""A model call that has ended, as the operator's list shows it and the database keeps it. Nothing of it is content."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from app.observability.metrics import TurnFacts
from app.observability.request_facts import RequestFacts
from app.observability.request_record import RequestStep

Record = TypeVar("Record", bytes, str)


class EndedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A model call that has ended.

    Attributes:
        endpoint: the path of the request.
        status: the answer's status; 499 if none was sent.
        is_complete: whether the whole answer was handed to the server.
        started_unix: when it began, in Unix seconds.
        started_at: the same, in the monotonic seconds of its steps.
        duration: seconds from the start to the end.
        first_byte_seconds: seconds from the start to the first byte of the answer's body; None if nothing was sent.
        answer: the place of the stored answer in its conversation: seq, and link as hex digits.
        answer_id: the id that the client got with it.
    """

    id: str | None
    endpoint: str
    status: int
    is_complete: bool
    started_unix: float
    started_at: float
    duration: float
    first_byte_seconds: float | None
    tenant: str | None
    key_id: str | None
    facts: RequestFacts
    turn: TurnFacts | None
    steps: list[RequestStep]
    answer: tuple[int, str] | None = None
    answer_id: str | None = None


encode_request: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(EndedRequest).decode
"""Decodes the record of a request. The database keeps records for days: new fields of these structs come last, with a
default, so that records of other versions can be read."""


def decode_requests(records: Iterable[Record]) -> Iterator[tuple[EndedRequest, Record]]:
    """Yields each request with its record, without those that cannot be read: a newer version may know other steps."""
    for record in records:
        with contextlib.suppress(msgspec.DecodeError):
            yield _decode(record), record
