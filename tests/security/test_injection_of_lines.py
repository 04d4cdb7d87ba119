"""What clients say never begins a line of the log, steers the terminal that shows it, or reads like another field."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.observability import log as logs
from app.observability.request_record import begin_request_record, log_request, record_parsed_request
from tests.live import ScriptedUpstream
from tests.support.gateway import user, world
from tests.support.log_lines import read_log

FORGED = (
    'x\r\n{"level":"info","message":"forged"}\n12:00:00 info forged'
    "\x1b[2J\x1b]0;title\x07\x9b31m\u2028\u202e\x7f\x85\x00  status=200"
)
FORMATS: tuple[Literal["json", "text"], ...] = ("json", "text")
UNSEEN = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u2028", "\u2029", "\u202e", "\u2066"]


@pytest.fixture
def restored() -> Iterator[None]:
    """What other tests log through."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def written(text: str, log_format: Literal["json", "text"]) -> list[str]:
    """The lines of a log in which this text is in every place that a client's words may come to."""
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.configure_logging("info", log_format, stream)
        logging.getLogger("app.api").warning("about %s", text, extra={"model_name": text})
        begin_request_record(time.monotonic, 0.0)
        record_parsed_request(text, stream=False)
        log_request(begin_request_record(time.monotonic, 0.0).facts, logging.INFO, {"route": None, "trace": 1})
        record = begin_request_record(time.monotonic, 0.0)
        record_parsed_request(text, stream=False)
        log_request(record.facts, logging.WARNING, {"route": None})
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    return read_log(stream).removesuffix("\n").split("\n")


@given(st.text(max_size=40) | st.just(FORGED) | st.lists(st.sampled_from([*UNSEEN, "a", '"'])).map("".join))
def test_whatever_is_logged_stays_on_its_line(text: str) -> None:
    for log_format in FORMATS:
        lines = written(text, log_format)
        assert len(lines) == 3
        assert not any(character in line for character in UNSEEN for line in lines)
    assert json.loads(written(text, "json")[0])["message"] == f"about {logs._redact_secrets(text)}"


def test_a_field_cannot_be_forged_in_another() -> None:
    assert 'model_name="a  status=200"' in written("a  status=200", "text")[0]


def test_an_error_that_quotes_a_client_begins_no_line_of_its_own() -> None:
    record = logging.LogRecord("app", logging.ERROR, "", 0, "failed", None, None)
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    told = logs.TextFormatter().format(record).split("\n")
    assert [line for line in told[1:] if not line.startswith("  ")] == []
    assert not any(character in line for character in UNSEEN for line in told)
    assert "\n" not in logs.JsonFormatter().format(record)


@pytest.mark.parametrize("log_format", ["json", "text"])
async def test_requests_of_any_form_are_a_line_each(
    log_format: Any,
    restored: None,
) -> None:
    stream = io.StringIO()
    logs.configure_logging("info", log_format, stream)
    async with world(ScriptedUpstream()) as w:
        agent: Any = {"user-agent": b"x\x9b2J", "x-stainless-lang": b"\x9b31m"}
        await w.client.post(
            f"{w.base_url}/chat/completions", json={"model": FORGED, "messages": [user("x")]}, headers=agent
        )
        await w.client.get(f"{w.base_url}/conversations/%0A%0dforged%1b%5b2J", headers=agent)
        await w.client.get(f"{w.base_url.removesuffix('/v1')}/%0aforged%E2%80%A8", headers=agent)
        await w.client.request("PURGE", f"{w.base_url}/x", headers=agent)
    lines = read_log(stream).splitlines()
    assert len([line for line in lines if "duration_ms" in line]) == 4
    assert not any(character in line for character in UNSEEN for line in lines)
    assert all(line.startswith("{") if log_format == "json" else line[2] == ":" for line in lines)
