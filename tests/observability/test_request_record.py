"""What is recorded of a request, while it runs and after it has ended."""

from __future__ import annotations

from app.observability.metrics import TurnFacts
from app.observability.request_record import (
    MAX_STEPS,
    EndedRequest,
    ErrorFacts,
    RequestFacts,
    RequestRecord,
    RequestStep,
    decode_requests,
    encode_request,
)


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


def test_a_request_is_read_as_it_was_written() -> None:
    assert decode_requests([encode_request(request(1)).decode()]) == [request(1)]


def test_records_that_cannot_be_read_are_left_out() -> None:
    records = [encode_request(request(1)).decode(), '["req_99","/v1', "", encode_request(request(2)).decode()]
    assert decode_requests(records) == [request(1), request(2)]


def test_the_steps_of_a_request_are_bounded() -> None:
    record = RequestRecord(lambda: 1.0, 0.0, 0.0)
    for _ in range(2 * MAX_STEPS):
        record.end_step(record.begin_step("attempt"))
        record.add_step("read", 0.0)
    assert len(record.steps) == MAX_STEPS
