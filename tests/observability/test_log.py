import asyncio
import contextvars
import io
import json
import logging
from collections.abc import Iterator

import pytest

from app.observability.log import FLUSH_SECONDS, begin_log_scope, configure_logging, set_log_conversation

log = logging.getLogger("app.pipeline")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = before[0], before[1]


def last_line(stream: io.StringIO) -> dict[str, object]:
    line: dict[str, object] = json.loads(stream.getvalue().splitlines()[-1])
    return line


def test_a_line_is_one_json_object_with_its_fields(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    log.info("answered", extra={"prompt_tokens": 12, "model": "sim", "ok": True})
    line = last_line(stream)
    assert line.pop("time")
    assert line == {
        "level": "info",
        "logger": "app.pipeline",
        "message": "answered",
        "prompt_tokens": 12,
        "model": "sim",
        "ok": True,
    }


def test_lines_of_a_request_name_it_and_its_conversation(stream: io.StringIO) -> None:
    def answer_request() -> None:
        begin_log_scope("req_1")
        log.info("begun")
        assert last_line(stream)["request_id"] == "req_1"
        set_log_conversation("conv_1")
        log.info("known")
        assert last_line(stream)["conversation_id"] == "conv_1"

    configure_logging("info", "json", stream)
    # The server runs each request in a context of its own.
    contextvars.copy_context().run(answer_request)
    log.info("over")
    assert "request_id" not in last_line(stream)


def test_what_could_be_content_is_left_out(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    log.info("odd", extra={"body": {"messages": ["hello"]}, "text": "word " * 100, "raw": b"hello"})
    assert set(last_line(stream)) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize(
    ("told", "written"),
    [
        ("cannot reach postgresql://user:pa$$w0rd@host:5432/db", "cannot reach postgresql://***@host:5432/db"),
        ("refused sk-proj-abcdef0123456789 today", "refused sk-*** today"),
        ("header 'Authorization: Bearer abc.def'", "header 'Authorization: Bearer ***'"),
        ("header Basic dXNlcjpwYXNzd29yZA==", "header Basic ***"),
        ("basic settings of http://host/path", "basic settings of http://host/path"),
    ],
)
def test_keys_and_passwords_are_blotted_out(stream: io.StringIO, told: str, written: str) -> None:
    configure_logging("info", "json", stream)
    log.warning(told, extra={"detail": told})
    assert last_line(stream)["message"] == written
    assert last_line(stream)["detail"] == written


def test_an_exception_is_told_without_its_secrets(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    try:
        raise ValueError("Bearer abcdef is wrong")
    except ValueError:
        log.exception("failed")
    exception = str(last_line(stream)["exception"])
    assert "ValueError" in exception
    assert "Bearer *** is wrong" in exception


def test_text_is_for_eyes(stream: io.StringIO) -> None:
    configure_logging("warning", "text", stream)
    log.info("not told")
    log.warning("slow", extra={"seconds": 2})
    assert stream.getvalue().rstrip().endswith("warning slow  seconds=2")


def test_a_line_is_no_reason_to_fail(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    stream.close()
    log.warning("nobody takes this")


def test_characters_that_a_stream_cannot_take_are_spelt_out(stream: io.StringIO) -> None:
    written = io.BytesIO()
    configure_logging("info", "json", io.TextIOWrapper(written, "ascii"))
    log.warning("näh")
    assert b"n\\xe4h" in written.getvalue()


async def test_lines_of_an_event_loop_are_written_together_and_warnings_at_once(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    logging.getLogger("one").info("first")
    logging.getLogger("one").info("second")
    assert stream.getvalue() == ""
    await asyncio.sleep(FLUSH_SECONDS * 2)
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["first", "second"]
    logging.getLogger("one").info("third")
    logging.getLogger("one").warning("fourth")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()[2:]] == ["third", "fourth"]


async def test_a_line_of_another_thread_is_written_at_once_after_those_before_it(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    logging.getLogger("one").info("first")
    await asyncio.to_thread(logging.getLogger("one").info, "second")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["first", "second"]


def test_a_line_that_cannot_be_formatted_harms_nobody(stream: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json", stream)
    logging.getLogger("one").info("a number: %d", "none")
    logging.getLogger("one").info("next")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["next"]
    assert "real number is required" in capsys.readouterr().err
