"""The list of the model calls that ended last, and the timeline of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.conversation.api_keys import ApiKey
from app.observability.request_record import RequestRecord, current_request_record
from app.upstream.routing import measured_calls
from tests.api.edge.test_api_keys import Locked, locked
from tests.api.edge.test_disconnect import BEGUN
from tests.live import DROP, Reply, completion, stream
from tests.pipeline.admission.test_admission_over_http import held
from tests.support.gateway import user
from tests.support.raw_http import long_talk, summarizing, until

ROW = {
    *("id", "object", "started_at", "endpoint", "protocol", "model", "answered_by", "provider", "attempts", "status"),
    *(
        "error",
        "stream",
        "tenant",
        "tenant_name",
        "key_id",
        "key_name",
        "conversation_id",
        "item_id",
        "context_status",
        "prompt_tokens",
        "cached_tokens",
    ),
    *("completion_tokens", "cost_usd", "duration_ms", "first_byte_ms", "queue_ms", "compaction_ms"),
}


class Watched:
    """A gateway in mode `keys`, an application that calls it, and an operator who looks at its requests."""

    def __init__(self, gateway: Locked, operator: str, application: str, key: ApiKey) -> None:
        self.gateway = gateway
        self.operator = operator
        self.application = application
        self.key = key

    async def post(self, messages: list[dict[str, Any]], *, path: str = "/chat/completions", **fields: Any) -> Any:
        body = {"model": "m", "messages": messages, **fields}
        return await self.gateway.ask("POST", path, self.application, json=body)

    async def look(self, path: str = "", **query: Any) -> httpx.Response:
        return await self.gateway.ask("GET", f"/admin/requests{path}", self.operator, params=query)

    async def rows(self, count: int = 1, **query: Any) -> list[dict[str, Any]]:
        """The list, when it has as many requests. A request is listed a moment after its client has the last byte."""
        async with asyncio.timeout(30):
            while len(rows := await self.read_rows(**query)) < count:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.005)
        assert len(rows) == count
        return rows

    async def read_rows(self, **query: Any) -> list[dict[str, Any]]:
        answer = await self.look(**query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["data"]
        return found

    async def open(self, request_id: str) -> dict[str, Any]:
        answer = await self.look(f"/{request_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def open_only(self) -> dict[str, Any]:
        """The only request of the list, with its timeline."""
        (row,) = await self.rows()
        return await self.open(row["id"])

    def play(self, *replies: Reply) -> None:
        """Sets the next answers of the model."""
        self.gateway.upstream.replies = list(replies)


@asynccontextmanager
async def watched(**options: Any) -> AsyncIterator[Watched]:
    async with locked(**options) as gateway:
        operator, _ = await gateway.key(scopes=("admin",), tenant="operators")
        application, key = await gateway.key(tenant="shop")
        yield Watched(gateway, operator, application, key)


def names(timeline: list[dict[str, Any]], *, without: str = "") -> list[str]:
    return [step["name"] for step in timeline if step["name"] != without]


def details(request: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [step["detail"] for step in request["timeline"] if step["name"] == name]


def step_of(request: dict[str, Any], name: str) -> dict[str, Any]:
    (step,) = (step for step in request["timeline"] if step["name"] == name)
    found: dict[str, Any] = step
    return found


FALLBACK = {"m": {"provider": "upstream", "fallbacks": ["spare"]}, "spare": {"provider": "upstream"}}
FAILED = Reply({"error": {"message": "no"}}, status=500)


async def test_an_answered_request_is_listed_with_its_timeline() -> None:
    async with watched() as w:
        answer = await w.post([user("Hi")])
        (row,) = await w.rows()
        opened = await w.open(answer.headers["x-request-id"])
    assert set(row) == ROW
    timeline = opened.pop("timeline")
    assert opened == row
    assert (row["id"], row["object"]) == (answer.headers["x-request-id"], "request")
    assert (row["endpoint"], row["protocol"]) == ("/v1/chat/completions", "chat_completions")
    assert (row["model"], row["answered_by"], row["provider"], row["attempts"]) == ("m", "m", "upstream", 1)
    assert (row["status"], row["error"], row["stream"]) == (200, None, False)
    assert (row["tenant"], row["key_id"]) == ("shop", w.key.id)
    assert (row["conversation_id"], row["context_status"]) == (answer.json()["conversation_id"], "full")
    usage = answer.json()["usage"]
    assert (row["prompt_tokens"], row["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (row["queue_ms"], row["compaction_ms"]) == (0, 0)
    assert 0 < row["first_byte_ms"] <= row["duration_ms"] < 5000
    # Whether question and answer are one write depends on how long the model takes.
    assert names(timeline, without="store") == ["read", "resolve", "recall", "plan", "attempt", "first_byte", "end"]
    assert [step["detail"] for step in timeline if step["name"] == "store"][-1] == {"what": "answer"}
    assert all(0 <= step["start_ms"] <= step["end_ms"] <= row["duration_ms"] for step in timeline)
    (attempt,) = (step["detail"] for step in timeline if step["name"] == "attempt")
    assert attempt == {"provider": "upstream", "model": "m", "status": 200, "error": None}


async def test_the_item_of_a_request_shows_what_the_model_saw_for_its_answer() -> None:
    async with watched() as w:
        await w.post([user("Hello")])
        await w.post([user("Nothing of this is kept")], store=False)
        kept_nothing, stored = await w.rows(2)
        assert kept_nothing["item_id"] is None
        path = f"/conversations/{stored['conversation_id']}/items/{stored['item_id']}/context"
        seen = await w.gateway.ask("GET", path, w.application)
        assert (seen.status_code, seen.json()["item_id"]) == (200, stored["item_id"])


async def test_only_operators_see_requests() -> None:
    async with watched() as w:
        await w.post([user("Hi")])
        for path in ("/admin/requests", "/admin/requests/req_1"):
            assert (await w.gateway.ask("GET", path, w.application)).status_code == 403
            assert (await w.gateway.ask("GET", path)).status_code == 401


async def test_a_stream_is_listed_with_its_first_byte_before_its_end() -> None:
    async with watched() as w:
        w.play(stream("a", "b"))
        await w.post([user("Hi")], stream=True)
        request = await w.open_only()
    assert (request["status"], request["error"], request["stream"]) == (200, None, True)
    assert request["first_byte_ms"] <= request["duration_ms"]
    first_byte, end = step_of(request, "first_byte"), step_of(request, "end")
    assert first_byte["start_ms"] == first_byte["end_ms"] == request["first_byte_ms"]
    assert end["start_ms"] == end["end_ms"] == request["duration_ms"]
    assert details(request, "attempt") == [{"provider": "upstream", "model": "m", "status": 200, "error": None}]
    assert (request["prompt_tokens"], request["completion_tokens"], request["cached_tokens"]) == (10, 2, 0)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_of_the_built_in_model_is_no_failure(streamed: bool) -> None:
    async with watched(providers={}, models={}) as w:
        answer = await w.post([user("Hi")], model="sim-8k", stream=streamed)
        request = await w.open_only()
    assert answer.status_code == 200
    (attempt,) = details(request, "attempt")
    assert (attempt["provider"], attempt["status"], attempt["error"]) == ("simulator", 200, None)


async def test_an_answer_of_the_built_in_model_that_breaks_off_is_interrupted() -> None:
    async with watched(providers={}, models={}) as w:
        await w.post([user("Hi there, you")], model="sim-8k!break_after=2", stream=True)
        request = await w.open_only()
    assert [(one["status"], one["error"]) for one in details(request, "attempt")] == [(200, "interrupted")]


async def test_retries_and_the_fallback_that_answered_are_attempts() -> None:
    async with watched(models=FALLBACK, retries={"attempts": 2, "base_seconds": 0.01}) as w:
        w.play(FAILED, Reply({"error": {"message": "slower"}}, status=429), completion())
        await w.post([user("Hi")])
        request = await w.open_only()
    assert (request["model"], request["answered_by"], request["provider"]) == ("m", "spare", "upstream")
    assert (request["attempts"], request["status"], request["error"]) == (3, 200, None)
    assert [(one["model"], one["status"], one["error"]) for one in details(request, "attempt")] == [
        ("m", 500, "server_error"),
        ("m", 429, "rate_limited"),
        ("spare", 200, None),
    ]


async def test_a_provider_that_is_away_or_refuses_is_named() -> None:
    async with watched(retries={"attempts": 1}) as w:
        w.play(Reply({"error": {"message": "not so"}}, status=418), FAILED)
        await w.post([user("one")])
        await w.post([user("two")])
        w.gateway.upstream.default = lambda _: Reply(pieces=[DROP])
        await w.post([user("three")])
        rows = await w.rows(3)
        opened = [await w.open(row["id"]) for row in rows]
    assert [(row["status"], row["error"]) for row in rows] == [
        (502, "upstream_unavailable"),
        (500, "upstream_refused"),
        (418, "upstream_refused"),
    ]
    assert [(row["provider"], row["answered_by"]) for row in rows] == [("upstream", None)] * 3
    assert [details(one, "attempt")[-1]["error"] for one in opened] == ["interrupted", "server_error", "refused"]


async def test_a_broken_stream_has_status_200_and_an_error() -> None:
    async with watched() as w:
        w.play(Reply(pieces=[*BEGUN, DROP]))
        await w.post([user("Hi")], stream=True)
        request = await w.open_only()
    assert (request["status"], request["error"]) == (200, "upstream_unavailable")
    assert [(one["status"], one["error"]) for one in details(request, "attempt")] == [(200, "interrupted")]


async def test_a_client_that_leaves_a_stream_is_listed() -> None:
    async with watched() as w:
        w.play(Reply(pieces=[*BEGUN, 60]))
        body = {"model": "m", "messages": [user("x")], "stream": True}
        address, headers = f"{w.gateway.gateway.base_url}/chat/completions", {"x-api-key": w.application}
        async with w.gateway.gateway.client.stream("POST", address, json=body, headers=headers) as answer:
            lines = answer.aiter_lines()  # kept: the stream is closed when its reader is collected
            await anext(lines)
        request = await w.open_only()
    assert (request["status"], request["error"]) == (200, "client_disconnected")
    assert request["conversation_id"] == answer.headers["x-conversation-id"]
    assert [(one["status"], one["error"]) for one in details(request, "attempt")] == [(200, "interrupted")]


async def test_a_client_that_leaves_before_its_request_is_whole_is_listed() -> None:
    async with watched() as w:
        host, port = w.gateway.gateway.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nx-api-key: {w.application}\r\n"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: 100\r\n\r\n{{".encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        request = await w.open_only()
    assert (request["status"], request["error"], request["model"]) == (499, "client_disconnected", None)
    assert (request["tenant"], names(request["timeline"])) == ("shop", ["end"])


async def test_refused_requests_are_listed() -> None:
    async with watched(models={"m": {"provider": "upstream"}}) as w:
        await w.gateway.ask("POST", "/chat/completions", "ck_wrong", json={})
        await w.post([])
        await w.post([user("Hi")], model="none")
        await w.post([user("Hi")], stream="yes")
        await w.gateway.ask("POST", "/responses", w.application, json={"model": "m", "input": 7})
        await w.gateway.ask("POST", "/chat/completions", w.application, headers={"x-api-key": "other"}, json={})
        rows = await w.rows(6)
    found = [(row["status"], row["error"], row["tenant"]) for row in reversed(rows)]
    assert found[0] == (401, "invalid_api_key", None)
    assert found[1] == (400, "empty_array", "shop")
    assert found[2] == (404, "model_not_found", "shop")
    assert [row["protocol"] for row in reversed(rows)].index("responses") == 4
    assert [status for status, _, _ in found] == [401, 400, 404, 400, 400, 400]
    assert all(error for _, error, _ in found)
    assert all(row["id"].startswith("req_") for row in rows)
    assert {row["attempts"] for row in rows} == {0}
    assert rows[-1]["queue_ms"] is rows[-1]["compaction_ms"] is rows[-1]["provider"] is None


async def test_a_request_that_waited_for_a_slot_says_how_long() -> None:
    gate = asyncio.Event()
    async with watched(limits={"max_concurrent_requests": 1, "max_wait_seconds": 5}) as w:
        w.play(held(gate), completion())
        first = asyncio.ensure_future(w.post([user("one")]))
        await until(lambda: bool(w.gateway.upstream.bodies))
        second = asyncio.ensure_future(w.post([user("two")]))
        await asyncio.sleep(0.05)
        gate.set()
        waiting, running = (await second).headers["x-request-id"], (await first).headers["x-request-id"]
        await w.rows(2)
        waited, ran = await w.open(waiting), await w.open(running)
    assert names(waited["timeline"])[:3] == ["read", "queue", "resolve"]
    step = step_of(waited, "queue")
    assert waited["queue_ms"] == pytest.approx(step["end_ms"] - step["start_ms"], abs=0.01)
    assert waited["queue_ms"] > 40
    assert (ran["queue_ms"], "queue" in names(ran["timeline"])) == (0, False)


async def test_a_request_that_finds_the_queue_full_is_listed() -> None:
    gate = asyncio.Event()
    async with watched(limits={"max_concurrent_requests": 1, "max_waiting": 0}) as w:
        w.play(held(gate))
        first = asyncio.ensure_future(w.post([user("one")]))
        await until(lambda: bool(w.gateway.upstream.bodies))
        refused = await w.post([user("two")])
        request = await w.open(refused.headers["x-request-id"])
        gate.set()
        await first
    assert (request["status"], request["error"]) == (503, "overloaded")
    assert names(request["timeline"]) == ["read", "queue", "first_byte", "end"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_compaction_is_a_step_with_the_calls_of_the_summarizer(streamed: bool) -> None:
    async with watched() as w:
        w.gateway.upstream.default = summarizing().default
        await w.post(long_talk(), stream=streamed)
        request = await w.open_only()
    assert request["context_status"] == "summarized"
    compaction = step_of(request, "compaction")
    assert request["compaction_ms"] == pytest.approx(compaction["end_ms"] - compaction["start_ms"], abs=0.01)
    assert request["compaction_ms"] > 0
    summaries = details(request, "summary")
    assert {"provider": "upstream", "model": "m", "status": 200, "error": None} in summaries
    assert request["attempts"] == len(details(request, "attempt")) == 1
    order = names(request["timeline"])
    assert order.index("plan") < order.index("compaction") < order.index("summary") < order.index("attempt")


async def test_a_summary_that_is_made_ahead_belongs_to_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    belongs_to_request: list[bool] = []

    def find_record() -> RequestRecord | None:
        record = current_request_record()
        belongs_to_request.append(record is not None)
        return record

    monkeypatch.setattr(measured_calls, "current_request_record", find_record)
    async with watched(policies={"additive": {"prepare_ratio": 0.3}}) as w:
        w.gateway.upstream.default = summarizing().default
        await w.post(long_talk(turns=8))
        await until(lambda: len(w.gateway.upstream.bodies) == 2)
        request = await w.open_only()
    assert belongs_to_request == [True, False]
    assert "summary" not in names(request["timeline"])
    assert request["compaction_ms"] == 0


async def test_a_prompt_that_the_provider_finds_too_long_is_sent_again() -> None:
    overflow = {"error": {"message": "maximum context length is 4096 tokens", "code": "context_length_exceeded"}}
    async with watched(window=16_384) as w:
        w.gateway.upstream.default = summarizing().default
        w.play(Reply(overflow, status=400))
        await w.post(long_talk(turns=20))
        request = await w.open_only()
    assert [one["status"] for one in details(request, "attempt")] == [400, 200]
    assert names(request["timeline"]).count("plan") == 2


async def test_responses_are_listed() -> None:
    async with watched() as w:
        answer = await w.gateway.ask("POST", "/responses", w.application, json={"model": "m", "input": "Hi"})
        request = await w.open_only()
    assert answer.status_code == 200
    assert (request["endpoint"], request["protocol"]) == ("/v1/responses", "responses")
    assert (request["status"], request["answered_by"], request["prompt_tokens"]) == (200, "m", 10)
    assert names(request["timeline"], without="store") == [
        *("read", "resolve", "recall", "plan", "attempt", "first_byte", "end"),
    ]


async def test_a_retry_that_joins_a_running_request_waits_for_it() -> None:
    gate = asyncio.Event()
    async with watched() as w:
        w.play(held(gate))
        body, headers = {"model": "m", "messages": [user("Hi")]}, {"idempotency-key": "one"}
        ask = w.gateway.ask("POST", "/chat/completions", w.application, json=body, headers=headers)
        first = asyncio.ensure_future(ask)
        await until(lambda: bool(w.gateway.upstream.bodies))
        ask = w.gateway.ask("POST", "/chat/completions", w.application, json=body, headers=headers)
        second = asyncio.ensure_future(ask)
        await asyncio.sleep(0.05)
        gate.set()
        await first
        joined = await second
        await w.rows(2)
        request = await w.open(joined.headers["x-request-id"])
    assert names(request["timeline"]) == ["read", "join", "first_byte", "end"]
    assert (request["attempts"], request["status"], request["conversation_id"] is not None) == (0, 200, True)


async def test_an_append_that_finds_its_conversation_busy_says_so() -> None:
    gate = asyncio.Event()
    async with watched(compaction={"wait_seconds": 0.05}) as w:
        w.play(held(gate))
        first = asyncio.ensure_future(w.post([user("one")], conversation="c"))
        await until(lambda: bool(w.gateway.upstream.bodies))
        refused = await w.post([user("two")], conversation="c")
        gate.set()
        await first
        await w.rows(2)
        request = await w.open(refused.headers["x-request-id"])
    assert (request["status"], request["error"]) == (409, "conversation_busy")
    lease = step_of(request, "lease")
    assert lease["detail"] == {"of": "conversation", "outcome": "busy"}
    assert lease["end_ms"] - lease["start_ms"] > 40


async def test_an_end_user_of_an_application_is_a_tenant() -> None:
    async with watched(auth={"mode": "keys", "cache_seconds": 0, "end_users": True}) as w:
        await w.post([user("Hi")], user="someone@example.com")
        (row,) = await w.rows()
    assert row["tenant"].startswith("shop")
    assert len(row["tenant"]) > len("shop")
    assert "someone" not in row["tenant"]


async def test_the_list_is_filtered_and_paged() -> None:
    async with watched() as w:
        other, _ = await w.gateway.key(tenant="school")
        first = await w.post([user("one")])
        await w.post([user("two")], model="n")
        await w.post([])
        await w.gateway.ask("POST", "/chat/completions", other, json={"model": "m", "messages": [user("Hi")]})
        rows = await w.rows(4)
        ids = [row["id"] for row in rows]
        assert [row["id"] for row in await w.rows(1, outcome="error")] == [ids[1]]
        assert [row["id"] for row in await w.rows(3, outcome="ok")] == [ids[0], ids[2], ids[3]]
        assert [row["id"] for row in await w.rows(1, model="n")] == [ids[2]]
        assert [row["id"] for row in await w.rows(1, tenant="school")] == [ids[0]]
        conversation = first.json()["conversation_id"]
        assert [row["id"] for row in await w.rows(1, conversation_id=conversation)] == [ids[3]]
        page = (await w.look(limit=2)).json()
        assert ([row["id"] for row in page["data"]], page["has_more"]) == (ids[:2], True)
        page = (await w.look(limit=2, after=page["last_id"])).json()
        assert ([row["id"] for row in page["data"]], page["has_more"]) == (ids[2:], False)
        page = (await w.look(limit=1, after=ids[0], outcome="ok")).json()
        assert ([row["id"] for row in page["data"]], page["has_more"]) == ([ids[2]], True)
        for path, query in (("/req_none", {}), ("", {"after": "req_none"})):
            missing = await w.look(path, **query)
            assert missing.status_code == 404
        assert (await w.look(outcome="bad")).status_code == 400


async def test_only_calls_of_models_are_listed() -> None:
    async with watched() as w:
        await w.post([user("Hi")])
        await w.gateway.ask("GET", "/models", w.application)
        await w.gateway.ask("GET", "/conversations", w.application, headers={"x-concertina-console": "1"})
        await w.gateway.ask("GET", "/chat/completions", w.application)
        await w.rows(1)
        assert len(await w.read_rows()) == 1


async def test_as_many_requests_are_kept_as_the_setting_says() -> None:
    async with watched(telemetry={"recent_requests": 2}, retention={"request_hours": 0}) as w:
        for text in ("one", "two", "three"):
            await w.post([user(text)])
        await w.rows(2)
    async with watched(telemetry={"recent_requests": 0}) as w:
        await w.post([user("Hi")])
        answer = await w.look()
        assert answer.status_code == 404
        assert "telemetry.recent_requests" in answer.json()["error"]["message"]
        assert (await w.look("/req_1")).status_code == 404


async def test_requests_are_kept_without_metrics_and_log_lines() -> None:
    async with watched(telemetry={"metrics": False, "request_log": False}) as w:
        await w.post([user("Hi")])
        request = await w.open_only()
    assert (request["attempts"], request["prompt_tokens"], request["completion_tokens"]) == (1, 10, 2)


async def test_a_list_contains_no_content_and_no_key() -> None:
    canary = "xylograph7781"
    async with watched() as w:
        w.play(completion(canary), Reply({"error": {"message": canary}}, status=400), Reply(pieces=[*BEGUN, DROP]))
        for streamed in (False, False, True):
            await w.post([user(f"{canary} {streamed}")], metadata={"note": canary}, stream=streamed)
        await w.gateway.ask("POST", "/chat/completions", f"ck_{canary}", json={"model": canary * 100, "messages": []})
        rows = await w.rows(4)
        told = (await w.look()).text + "".join([(await w.look(f"/{row['id']}")).text for row in rows])
    assert canary not in told
    assert w.application not in told
