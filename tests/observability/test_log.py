import asyncio
import contextvars
import io
import json
import logging
import threading
from collections.abc import Iterator

import pytest

from app.observability import log as lines
from app.observability.log import begin_log_scope, configure_logging, flush_log, set_log_conversation

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


def messages(stream: io.StringIO) -> list[object]:
    return [json.loads(line)["message"] for line in stream.getvalue().splitlines()]


async def test_ordinary_lines_of_an_event_loop_are_written_together_and_soon(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "FLUSH_SECONDS", 0.0)
    configure_logging("info", "json", stream)
    for turn in range(2):
        log.info("one of %d", turn)
        log.info("two of %d", turn)
        assert len(messages(stream)) == 2 * turn
        for _ in range(5):
            await asyncio.sleep(0)
    assert messages(stream) == ["one of 0", "two of 0", "one of 1", "two of 1"]


async def test_a_warning_is_written_at_once_behind_what_came_before(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    log.info("begun")
    log.warning("slow")
    log.info("done")
    assert messages(stream) == ["begun", "slow"]
    flush_log()
    assert messages(stream) == ["begun", "slow", "done"]


async def test_no_line_of_another_thread_is_lost_or_waits(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    log.info("begun")
    thread = threading.Thread(target=log.info, args=("elsewhere",))
    thread.start()
    thread.join()
    assert messages(stream) == ["begun", "elsewhere"]


def test_lines_that_an_event_loop_left_behind_are_written_by_the_next(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "FLUSH_SECONDS", 0.0)
    configure_logging("info", "json", stream)

    async def tell(text: str, steps: int) -> None:
        log.info(text)
        for _ in range(steps):
            await asyncio.sleep(0)

    asyncio.run(tell("first", 0))
    asyncio.run(tell("second", 5))
    assert messages(stream) == ["first", "second"]


async def test_what_is_set_up_anew_leaves_no_line_behind(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    log.info("begun")
    configure_logging("info", "json", io.StringIO())
    assert messages(stream) == ["begun"]


def test_who_watches_a_terminal_does_not_wait(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "isatty", lambda: True)
    configure_logging("info", "json", stream)

    async def tell() -> None:
        log.info("begun")
        assert messages(stream) == ["begun"]

    asyncio.run(tell())


def test_a_line_is_no_reason_to_fail(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    stream.close()
    log.warning("nobody takes this")


def test_characters_that_a_stream_cannot_take_are_spelt_out(stream: io.StringIO) -> None:
    written = io.BytesIO()
    configure_logging("info", "json", io.TextIOWrapper(written, "ascii"))
    log.warning("näh")
    assert b"n\\xe4h" in written.getvalue()
