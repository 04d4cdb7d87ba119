"""Whatever a provider answers, or does not: no error is the gateway's own fault, and each has the documented shape."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest

from tests.api.admin.test_metrics import told
from tests.live import DONE, ScriptedUpstream, chunk, completion
from tests.security.seeds import SEEDS
from tests.security.targets import CUT
from tests.security.test_targets import TOKENS
from tests.support.gateway import World, assistant, user, world

KEYS: Final = {"message", "type", "param", "code"}
OWN_FAULTS: Final = ("internal_error", "store_unavailable", "store_unreadable")
TIMEOUTS: Final = {
    "connect_seconds": 1,
    "first_byte_seconds": 0.2,
    "between_bytes_seconds": 0.2,
    "total_seconds": 0.5,
}
SILENCE: Final = None
"""A provider that says nothing more and keeps the connection open."""
RANDOM_ANSWERS: Final = 60
Answer = Sequence[bytes | None]


def http(body: bytes, status: str = "200 OK", *, length: int | None = None, **headers: str) -> bytes:
    """An answer in one piece.

    Args:
        length: what it says of itself; None: the truth.
    """
    said = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {text}" for name, text in said.items())]
    lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def with_choices(*choices: Any, **fields: Any) -> bytes:
    whole: dict[str, Any] = {**completion().body, "choices": list(choices), **fields}
    return http(json.dumps(whole).encode())


def with_message(**fields: Any) -> bytes:
    return with_choices({"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **fields}})


def events(*pieces: bytes, **headers: str) -> bytes:
    return http(b"".join(pieces), length=None, content_type="text/event-stream", **headers)


def data(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


ERROR: Final = json.dumps({"error": {"message": "No.", "type": "t", "param": None, "code": None}}).encode()
WHOLE: Final = json.dumps(completion().body).encode()
BEGUN: Final = chunk({"role": "assistant", "content": "Half an"})
STATUSES: Final = (
    *("201 Created", "204 No Content", "205 Reset Content", "206 Partial Content", "301 Moved", "304 Not Modified"),
    *("307 Temporary Redirect", "400 Bad", "401 No", "402 Pay", "403 No", "404 No", "408 Late", "409 No", "413 Large"),
    *("418 Teapot", "422 No", "424 No", "425 Early", "429 Slow down", "451 No", "499 Left", "500 Broken", "501 No"),
    *("502 Bad", "503 Away", "504 Late", "520 Odd", "529 Overloaded", "599 Odd", "600 Odd", "799 Odd", "999 Odd"),
)
ODD_VALUES: Final[tuple[Any, ...]] = (None, 1, "x", [], {}, [None], {"delta": 1}, {"choices": None})
ODD_CALLS: Final[tuple[Any, ...]] = (1, {}, [None], [{"index": "x"}], [{"index": 2**70}], [{}])
ANSWERS: Final[dict[str, Answer]] = {
    **{f"{status} with an error": [http(ERROR, status)] for status in STATUSES},
    **{f"{status} with nothing": [http(b"", status)] for status in STATUSES},
    "429 with an odd pause": [http(ERROR, "429 Slow down", retry_after="soon")],
    "429 with an endless pause": [http(ERROR, "429 Slow down", retry_after="9" * 400)],
    "503 with a negative pause": [http(ERROR, "503 Away", retry_after="-1")],
    "503 of a proxy": [http(b"<html>away</html>", "503 Away", content_type="text/html")],
    "500 with half of an error": [http(ERROR[:20], "500 Broken")],
    "400 with an odd error": [http(b'{"error":[{"message":{}}]}', "400 Bad")],
    "400 with text": [http(b"\xff\xfe maximum context length", "400 Bad")],
    "an overflow with odd numbers": [
        http(b'{"error":{"message":"maximum context length is -1 tokens, you requested 1e999"}}', "400 Bad")
    ],
    "hangs up": [],
    "says nothing": [SILENCE],
    "hangs up in the head": [b"HTTP/1.1 200 OK\r\ncontent-"],
    "stops in the head": [b"HTTP/1.1 200 OK\r\ncontent-", SILENCE],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.6\r\n"],
    "HTTP/2": [b"\0\0\0\4\0\0\0\0\0"],
    "a status that is none": [b"HTTP/1.1 abc OK\r\n\r\n"],
    "only continue": [b"HTTP/1.1 100 Continue\r\n\r\n"],
    "switches protocols": [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"],
    "a body that is shorter than it says": [http(WHOLE, length=len(WHOLE) + 100)],
    "a body that stops": [http(WHOLE[:40], length=len(WHOLE)), SILENCE],
    "a length that is none": [http(WHOLE).replace(b"content-length: ", b"content-length: x")],
    "chunks that are none": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}"],
    "not compressed as it says": [http(WHOLE, content_encoding="gzip")],
    "compressed and cut": [http(gzip.compress(WHOLE)[:30], content_encoding="gzip")],
    "compressed in an unknown way": [http(WHOLE, content_encoding="br")],
    "empty": [http(b"")],
    "no JSON": [http(b"<html>login</html>", content_type="text/html")],
    "half of JSON": [http(WHOLE[:60])],
    "not UTF-8": [http(WHOLE.replace(b"Fine.", b"\xff\xfe"))],
    "half of an emoji": [http(WHOLE.replace(b"Fine.", b"\\ud83d"))],
    "a null byte": [http(WHOLE.replace(b"Fine.", b"\\u0000"))],
    "nested without end": [http(b"[" * 100_000)],
    "nested in the message": [http(WHOLE.replace(b'"Fine."', b"[" * 5000 + b"]" * 5000))],
    "numbers beyond double": [http(WHOLE.replace(b"1700000000", b"1e999").replace(b": 10,", b": 1e999,"))],
    "numbers beyond 64 bits": [http(WHOLE.replace(b"1700000000", b"9" * 400).replace(b": 10,", b": " + b"9" * 400))],
    "NaN": [http(WHOLE.replace(b"1700000000", b"NaN"))],
    **{f"JSON that is {text}": [http(text.encode())] for text in ("null", "[]", '"x"', "1", "{}", '{"error":null}')},
    "an error with status 200": [http(ERROR)],
    "no choices": [with_choices()],
    "choices that are none": [with_choices(None, 1, "x", [], {})],
    "choices that are an object": [http(json.dumps({**completion().body, "choices": {}}).encode())],
    "no message": [with_choices({"index": 0, "finish_reason": "stop"})],
    "a message that is a list": [with_choices({"index": 0, "message": [], "finish_reason": "stop"})],
    "an index that is none": [with_choices({"index": "x", "message": {"content": "a"}, "finish_reason": {}})],
    "a huge index": [with_choices({"index": 2**70, "message": {"content": "a"}, "finish_reason": "stop"})],
    "content that is a number": [with_message(content=1)],
    "content that is an object": [with_message(content={"a": 1})],
    "content of odd parts": [with_message(content=[None, 1, {"type": []}, {"type": "text", "text": 5}])],
    "a role that is a list": [with_message(role=[], content="x")],
    "calls that are none": [with_message(content=None, tool_calls=[None, 1, {"function": None}, {"id": 5}])],
    "calls that are an object": [with_message(content=None, tool_calls={"a": 1})],
    "calls without a name": [with_message(content=None, tool_calls=[{"id": None, "function": {"arguments": {}}}])],
    "usage that is text": [with_choices(*completion().body["choices"], usage="much")],
    "usage of odd numbers": [
        with_choices(*completion().body["choices"], usage={"prompt_tokens": -5, "completion_tokens": "x"})
    ],
    "usage of odd details": [
        with_choices(
            *completion().body["choices"],
            usage={"prompt_tokens": 1e300, "prompt_tokens_details": [], "completion_tokens": None},
        )
    ],
    "an id that is a number": [with_choices(*completion().body["choices"], id=5, model=[], created="x", object=None)],
    "events that are none": [events(b"what is this\n\nand this")],
    "events without data": [events(b": ping\n\n", b"event: x\n\n", b"id: 5\n\n")],
    "events of nothing": [events()],
    "events that end at once": [events(DONE)],
    "events that are no JSON": [events(BEGUN, b"data: {\n\n", DONE)],
    "events of odd JSON": [events(*(data(value) for value in ODD_VALUES), DONE)],
    "events of odd choices": [events(*(data({"choices": [value]}) for value in ODD_VALUES), DONE)],
    "events of odd deltas": [
        events(
            *(chunk({"content": value}) for value in ODD_VALUES),
            *(chunk({"tool_calls": value}) for value in ODD_CALLS),
            *(chunk({"role": value}) for value in ODD_VALUES),
            chunk({}, "stop"),
            DONE,
        )
    ],
    "events that are an error": [events(b"data: " + ERROR + b"\n\n")],
    "events that become an error": [events(BEGUN, b"event: error\ndata: " + ERROR + b"\n\n")],
    "events that stop": [http(BEGUN, length=9999, content_type="text/event-stream"), SILENCE],
    "events that are cut": [http(BEGUN, length=9999, content_type="text/event-stream")],
    "events that are cut in an event": [http(BEGUN[:30], length=9999, content_type="text/event-stream")],
    "events that are not UTF-8": [events(BEGUN.replace(b"Half an", b"\xff"), chunk({}, "stop"), DONE)],
    "events of a huge event": [events(b"data: " + b"x" * 3_000_000)],
    "events with odd usage": [events(BEGUN, chunk({}, "stop"), data({"choices": [], "usage": {"prompt_tokens": []}}))],
    "events that are compressed, it says": [events(BEGUN, content_encoding="gzip")],
}


class Failing:
    """A provider that answers in turn with each of its answers, whatever it is asked for.

    Attributes:
        answers: those that are set by `answer` are one: all requests get it.
    """

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()

    def answer(self, answer: Answer) -> None:
        self.answers = deque([answer])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    await reader.readexactly(int(line.partition(b":")[2]))
            answer = self.answers[0]
            self.answers.rotate(-1)
            for piece in answer:
                if piece is SILENCE:
                    await reader.read()
                else:
                    writer.write(piece)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def failing() -> AsyncIterator[tuple[Failing, World]]:
    upstream = Failing()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1")
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    sections: dict[str, Any] = {
        "providers": {"upstream": {"base_url": f"{address}/v1", "timeouts": TIMEOUTS}},
        "retries": {"attempts": 1, "breaker_failures": 1_000_000},
    }
    async with server, world(ScriptedUpstream(), **sections) as w:
        yield upstream, w


def requests(number: int) -> list[tuple[str, str, dict[str, Any] | None]]:
    """What is asked while a provider fails: each endpoint that asks one."""
    asked = {"model": "m", "messages": [user(f"question {number}")]}
    talk = [message for turn in range(6) for message in (user(f"{number} {turn}"), assistant("word " * 30))]
    compacted = {"messages": [*talk, user("And now?")], "context": {"summarize": "now"}}
    return [
        ("POST", "chat/completions", asked),
        ("POST", "chat/completions", {**asked, "stream": True}),
        ("POST", "chat/completions", {**asked, **compacted}),
        ("POST", "chat/completions", {**asked, **compacted, "stream": True}),
        ("POST", "conversations/kept/compact", {"model": "m"}),
        ("GET", "models", None),
        ("GET", "models/m", None),
        ("POST", "embeddings", {"model": "m", "input": "x"}),
        ("GET", "files", None),
    ]


async def faults_of(w: World, upstream: Failing, number: int) -> list[str]:
    """Ask everything once; tell what is not as documented."""

    async def ask(method: str, path: str, body: dict[str, Any] | None) -> str | None:
        try:
            answer = await w.client.request(method, f"{w.base_url}/{path}", json=body)
        except httpx.HTTPError as error:
            # What was passed through broke off after its first byte: there is no other way to say so.
            passed = path in ("embeddings", "files") and isinstance(error, httpx.RemoteProtocolError)
            return None if passed else f"{method} {path}: {error!r}"
        sent = b"".join(piece or b"" for piece in upstream.answers[0])
        return None if is_documented(answer, sent) else f"{path} {answer.status_code}: {answer.text[:300]}"

    found = await asyncio.gather(*(ask(*asked) for asked in requests(number)))
    return [fault for fault in found if fault is not None]


def is_documented(answer: httpx.Response, sent: bytes) -> bool:
    """Whether an answer is none of an error, the provider's own error, or an error of ours that blames the provider.

    Args:
        sent: what the provider said.
    """
    if answer.status_code < 400 or answer.content in sent:
        return True
    error = answer.json()["error"]
    is_blamed = answer.status_code in (502, 503, 504) and error["code"] == "upstream_unavailable"
    return error.keys() == KEYS and (answer.status_code < 500 or is_blamed)


@pytest.mark.timeout(300)
async def test_no_failure_of_a_provider_is_a_fault_of_the_gateway(caplog: pytest.LogCaptureFixture) -> None:
    faults: dict[str, list[str]] = {}
    async with failing() as (upstream, w):
        await keep_a_conversation(upstream, w)
        for number, (name, answer) in enumerate(ANSWERS.items()):
            upstream.answer(answer)
            if found := await faults_of(w, upstream, number):
                faults[name] = found
        counted = await told(w)
    assert faults == {}
    assert [counted("errors_total", code=code) for code in OWN_FAULTS] == [0, 0, 0]
    assert [line for line in caplog.messages if "unexpectedly" in line or "Exception in ASGI" in line] == []


async def keep_a_conversation(upstream: Failing, w: World) -> None:
    """Store a conversation that can be compacted, while the provider answers well."""
    upstream.answer([http(WHOLE)])
    messages = [message for turn in range(12) for message in (user(f"old {turn}"), assistant("word " * 40))]
    await w.say([*messages, user("And now?")], headers={"x-conversation-id": "kept"})


@pytest.mark.parametrize("name", ["events that are cut", "a body that stops", "not compressed as it says"])
async def test_a_passed_through_answer_that_breaks_off_is_counted_as_the_providers_failure(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with failing() as (upstream, w):
        upstream.answer(ANSWERS[name])
        with pytest.raises(httpx.RemoteProtocolError):
            await w.client.post(f"{w.base_url}/embeddings", json={"model": "m", "input": "x"})
        counted = await told(w)
    assert (counted("errors_total"), counted("errors_total", code="upstream_unavailable")) == (1, 1)
    assert "Exception in ASGI application" not in caplog.text


async def test_a_204_with_a_body_is_told_as_no_http() -> None:
    async with failing() as (upstream, w):
        upstream.answer(ANSWERS["204 No Content with an error"])
        answer = await w.client.delete(f"{w.base_url}/files/f")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_unavailable")
    assert "its answer is not HTTP" in answer.json()["error"]["message"]


def damaged_answer(choose: random.Random) -> Answer:
    """An answer of a provider in which pieces are cut out, put in or doubled, in the head or in the body."""
    kind = choose.choice(("answer", "completion", "stream"))
    one = choose.choice(SEEDS[kind]).replace(CUT, b"")
    if kind != "answer":
        one = events(one) if kind == "stream" else http(one)
    for _ in range(choose.randint(1, 3)):
        start = choose.randint(0, len(one))
        end = choose.randint(start, min(len(one), start + 200))
        make: Callable[[], bytes] = choose.choice(
            (
                lambda: one[:start] + one[end:],  # noqa: B023 - called at once
                lambda: one[:start] + choose.choice(TOKENS) + one[start:],  # noqa: B023
                lambda: one[:end] + one[start:],  # noqa: B023
            )
        )
        one = make()
    return [one, *([SILENCE] if choose.random() < 0.1 else [])]


@pytest.mark.timeout(300)
async def test_no_damaged_answer_of_a_provider_is_a_fault_of_the_gateway(caplog: pytest.LogCaptureFixture) -> None:
    choose = random.Random(7)
    faults: dict[Any, list[str]] = {}
    async with failing() as (upstream, w):
        await keep_a_conversation(upstream, w)
        for number in range(RANDOM_ANSWERS):
            upstream.answer(damaged_answer(choose))
            if found := await faults_of(w, upstream, number):
                faults[tuple(upstream.answers[0])] = found
        counted = await told(w)
    assert faults == {}
    assert [counted("errors_total", code=code) for code in OWN_FAULTS] == [0, 0, 0]
    assert [line for line in caplog.messages if "unexpectedly" in line or "Exception in ASGI" in line] == []
