"""The line that tells of a request when it is over, and what is in no line and no span."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from app.errors import UpstreamUnavailable
from app.observability.log import configure_logging
from app.pipeline.respond.response_delivery import ResponseDelivery
from tests.api.edge.test_api_keys import locked
from tests.api.edge.test_disconnect import BEGUN, leave_after
from tests.api.edge.test_request_traces import TRACEPARENT, TRACES, Trace, trace
from tests.live import DONE, DROP, STEP_SECONDS, Reply, ScriptedUpstream, completion
from tests.support.gateway import user, world
from tests.support.log_lines import read_log
from tests.support.raw_http import long_talk, summarizing, until

__all__ = ["trace"]

CANARY = "xylograph7781"
"""In everything that clients and models say, and in every credential."""
KEY = f"sk-{CANARY}-key"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    written = io.StringIO()
    configure_logging("debug", "json", written)
    for client in ("httpx", "httpcore"):  # the test's own, which says where it goes
        logging.getLogger(client).setLevel(logging.ERROR)
    yield written
    root.handlers[:], root.level = before[0], before[1]
    for client in ("httpx", "httpcore"):
        logging.getLogger(client).setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """The lines of requests, without when they were written."""
    found = [json.loads(line) for line in read_log(stream).splitlines()]
    return [line for line in found if line["logger"] == "concertina.requests"]


async def test_a_request_is_told_of_in_one_line(stream: io.StringIO) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await w.post([user("Hi")])
    (line,) = lines(stream)
    times = [line.pop(name) for name in ("time", "duration_ms", "first_byte_ms")]
    assert 0 < times[2] <= times[1] < 5000
    assert line == {
        "level": "info",
        "logger": "concertina.requests",
        "message": "request",
        "method": "POST",
        "route": "/v1/chat/completions",
        "status": 200,
        "model": "m",
        "stream": False,
        "request_id": answer.headers["x-request-id"],
        "conversation_id": answer.json()["conversation_id"],
        "context_status": "full",
        "prompt_tokens": answer.json()["context"]["prompt_tokens"],
        "saved_tokens": 0,
        "tenant": w.conversations()[0].tenant,
        "provider": "upstream",
        "cached": 0,
    }


async def test_the_line_names_the_key_and_has_the_cost(stream: io.StringIO) -> None:
    price = {"models": {"m": {"provider": "upstream", "price": {"input": 1000.0, "output": 1000.0}}}}
    async with locked(**price) as gateway:
        secret, _ = await gateway.key(name="Night jobs", tenant="shop")
        body = {"model": "m", "messages": [user("Hi")]}
        answer = await gateway.ask("POST", "/chat/completions", secret, json=body)
        await gateway.ask("GET", f"/conversations/{answer.json()['conversation_id']}", secret)
        await gateway.ask("GET", "/conversations", "ck_wrong")
    asked, read, refused = lines(stream)
    assert (asked["key"], asked["tenant"], asked["cached"]) == ("Night jobs", "shop", 0)
    assert asked["cost"] == answer.json()["context"]["cost"]["usd"] > 0
    assert (read["key"], read["tenant"], "cost" in read) == ("Night jobs", "shop", False)
    assert (refused["status"], "key" in refused, "tenant" in refused) == (401, False, False)
    assert not any(secret[:12] in json.dumps(line) for line in (asked, read))


async def test_a_compaction_is_told_of_with_what_it_took_and_saved(stream: io.StringIO) -> None:
    async with world(summarizing()) as w:
        await w.post(long_talk(), stream=True)
    (line,) = lines(stream)
    assert (line["context_status"], line["stream"]) == ("summarized", True)
    assert line["compaction_ms"] >= 1
    assert line["saved_tokens"] > 1000


async def test_errors_name_their_code(stream: io.StringIO) -> None:
    upstream = ScriptedUpstream(Reply(pieces=[*BEGUN, DROP]), Reply(pieces=[*BEGUN, 60]))
    async with world(upstream) as w:
        await w.post([])
        await w.post([user("x")], stream=True)
        await leave_after(w, [user("y")], 4)
        await until(lambda: w.rows() == 4)
        await w.client.get(f"{w.base_url}/conversations/conv_none", headers={"authorization": "Bearer sk-one"})
        await until(lambda: len(lines(stream)) == 4)
    told = [(line["level"], line["status"], line.get("error"), line.get("cut", False)) for line in lines(stream)]
    assert told == [
        ("info", 400, "empty_array", False),
        ("warning", 200, "upstream_unavailable", False),
        ("info", 200, None, True),
        ("info", 404, "conversation_not_found", False),
    ]
    assert lines(stream)[3]["route"] == "/v1/conversations/{conversation_id}"


async def test_probes_are_told_of_only_when_they_fail(stream: io.StringIO) -> None:
    async with world(ScriptedUpstream()) as w:
        for path in ("healthz", "readyz", "metrics"):
            assert (await w.client.get(f"{w.base_url.removesuffix('v1')}{path}")).status_code == 200
    assert lines(stream) == []


async def test_files_of_the_console_are_told_of_only_when_they_are_missing(stream: io.StringIO) -> None:
    async with world(ScriptedUpstream()) as w:
        for path, status in (("console/", 200), ("console/js/main.js", 200), ("console/js/none.js", 404)):
            assert (await w.client.get(f"{w.base_url.removesuffix('v1')}{path}")).status_code == status
    assert [(line["route"], line["status"]) for line in lines(stream)] == [
        ("/console/{path:path}", 200),
        ("/console/{path:path}", 404),
    ]


async def test_the_log_can_be_switched_off(stream: io.StringIO) -> None:
    async with world(ScriptedUpstream(), telemetry={"request_log": False}) as w:
        await w.say([user("Hi")])
    assert lines(stream) == []


async def test_every_line_of_a_traced_request_names_its_trace(
    stream: io.StringIO,
    trace: Trace,
) -> None:
    upstream = ScriptedUpstream(*[Reply({}, 500)] * 3)
    async with world(upstream, telemetry=TRACES) as w:
        await w.post([user("Hi")], headers={"traceparent": TRACEPARENT})
    of_gateway = [json.loads(line) for line in read_log(stream).splitlines()]
    of_request = [line for line in of_gateway if "request_id" in line and line["logger"].startswith(("app", "concer"))]
    assert len(of_request) > 1
    assert {line["trace_id"] for line in of_request} == {TRACEPARENT.split("-")[1]}
    server = trace.one("POST /v1/chat/completions")
    assert of_request[-1]["span_id"] == f"{server.context.span_id:016x}"


async def test_nothing_that_was_said_and_no_key_is_in_a_line_or_a_span(
    stream: io.StringIO,
    trace: Trace,
) -> None:
    """Every kind of endpoint, ending well and badly, with one word wherever a client or a model may say something."""
    said = [user(f"{CANARY} {turn['content']}") if turn["role"] == "user" else turn for turn in long_talk()]
    upstream = summarizing(lambda body: completion(f"It is {CANARY}."), summary=completion(f"They said {CANARY}."))
    key = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": f"s={CANARY}", "user-agent": CANARY}
    told = {"baggage": f"user={CANARY}", "x-title": CANARY, "idempotency-key": CANARY}
    async with world(upstream, telemetry=TRACES) as w:
        base = w.base_url

        async def ask(method: str, path: str, **options: Any) -> Any:
            return await w.client.request(method, base + path, headers={**key, **options.pop("headers", {})}, **options)

        chat = {"model": "m", "messages": said, "metadata": {"note": CANARY}, "user": CANARY, "store": True}
        answer = (await ask("POST", "/chat/completions", json=chat, headers=told)).json()
        conversation = f"/conversations/{answer['conversation_id']}"
        w.upstream.replies = [Reply({"error": {"message": CANARY}}, 400), Reply(pieces=[*BEGUN, DROP])]
        await ask("POST", "/chat/completions", json={**chat, "store": False, "temperature": CANARY})
        await ask("POST", "/chat/completions", json={**chat, "store": False, "stream": True})
        w.upstream.replies = [Reply({"error": {"message": CANARY}}, 500)] * 3
        await ask("POST", "/chat/completions", json={**chat, "messages": [user(CANARY)]})
        await ask("POST", "/chat/completions", content=f'{{"{CANARY}'.encode())
        await ask("POST", "/chat/completions", json={"model": "m", "messages": [{"role": CANARY, "content": CANARY}]})
        await ask("POST", "/chat/completions", json={**chat, "context": {"policy": CANARY}})
        await ask("POST", "/embeddings", json={"model": "m", "input": CANARY})
        await ask("POST", "/context/count", json=chat)
        await ask("GET", f"{conversation}/items", params={"after": CANARY})
        await ask("POST", f"{conversation}/items", json={"items": [{"type": "message", **user(CANARY)}]})
        await ask("POST", conversation, json={"metadata": {"title": CANARY}})
        await ask("GET", "/search", params={"query": CANARY, "q": CANARY})
        await ask("GET", f"{conversation}/search", params={"q": CANARY})
        await ask("POST", f"{conversation}/compact", json={"instructions": CANARY})
        await ask("GET", f"{conversation}/summaries")
        await ask("GET", f"{conversation}/export")
        await ask("POST", f"/{CANARY}/unknown", json={"model": "m"})
        await ask("GET", f"/conversations/{CANARY}")
        await ask("DELETE", f"{conversation}/items/{CANARY}")
        await ask("DELETE", conversation)
    written = read_log(stream).splitlines()
    assert len(lines(stream)) == 21
    assert [line for line in written if CANARY in line] == []
    assert len(trace.spans) > 40
    assert [span.to_json() for span in trace.spans if CANARY in span.to_json()] == []


@pytest.mark.parametrize(
    ("failure", "code"),
    [(UpstreamUnavailable("away"), "upstream_unavailable"), (ValueError("a fault of ours"), "internal_error")],
)
async def test_a_failure_is_told_of_in_the_line_of_each_request_whose_stream_ends_with_it(
    failure: Exception, code: str, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> bytes:
        raise failure

    monkeypatch.setattr(ResponseDelivery, "_finish_stream", fail)
    slow = Reply(pieces=[*BEGUN, STEP_SECONDS * 20, DONE])
    async with world(ScriptedUpstream(slow)) as w:
        headers = [{}, {"x-stainless-retry-count": "1"}]
        answers = await asyncio.gather(*(w.post([user("Hi")], stream=True, headers=one) for one in headers))
        assert len(w.upstream.bodies) == 1
    for answer in answers:
        assert "Half an" in answer.text
        error, done = answer.text.split("\n\n")[-3:-1]
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == code
        assert done == "data: [DONE]"
    assert [line["error"] for line in lines(stream)] == [code] * 2
