"""`/metrics` and `/v1/admin/overview` tell what clients were told, no more and no less."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.errors import StoreUnavailable
from app.settings import load_settings
from tests.api.edge.test_disconnect import BEGUN, leave_after
from tests.live import DROP, Reply, ScriptedUpstream, chunk, completion, create_test_app, serving, stream
from tests.support.conversations_client import WINDOW, question
from tests.support.gateway import World, answering, is_summary, until, user, world
from tests.support.memory_store import MemoryStore
from tests.support.raw_http import long_talk, summarizing

MODEL = "gpt-4o"
PRICE = {"input": 2.0, "cached_input": 1.0, "output": 10.0}
PRICED = {"*": {"provider": "upstream", "context_window": 8192, "price": PRICE}}
TOKENS: dict[str, Any] = {"telemetry": {"metrics_token": "scraping-secret"}}
OF_MODEL = {"provider": "upstream", "model": MODEL}


class Told:
    """What `/metrics` says."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of a family's samples that have these labels."""
        samples = [one for one in self._samples if one.name == f"concertina_{name}"]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())


async def told(w: World) -> Told:
    answer = await w.client.get(w.base_url.removesuffix("/v1") + "/metrics")
    assert answer.status_code == 200
    return Told(answer.text)


async def overview(w: World) -> dict[str, Any]:
    answer = await w.client.get(f"{w.base_url}/admin/overview")
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


async def test_what_answers_say_of_their_tokens_is_what_is_counted() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
    upstream = ScriptedUpstream(*(Reply({**completion().body, "usage": usage}) for _ in range(3)))
    async with world(upstream, models=PRICED) as w:
        answers = [await w.say([user(question(number))], model=MODEL) for number in range(3)]
        seen, at_a_glance = await told(w), await overview(w)
    sent = sum(answer["context"]["prompt_tokens"] for answer in answers)
    assert seen("turns_total", status="full", policy="additive") == 3
    assert seen("prompt_tokens_total", kind="estimated", **OF_MODEL) == sent
    assert seen("prompt_tokens_total", kind="log") == sent
    assert seen("prompt_tokens_total", kind="saved") == 0
    assert seen("prompt_tokens_total", kind="reported") == 300
    assert seen("prompt_tokens_total", kind="cached") == 192
    assert seen("completion_tokens_total", **OF_MODEL) == 21
    assert seen("context_pressure_count") == 3
    cost = 3 * (36 * PRICE["input"] + 64 * PRICE["cached_input"] + 7 * PRICE["output"]) / 1_000_000
    assert seen("cost_usd_total", kind="answer", **OF_MODEL) == pytest.approx(cost)
    totals = at_a_glance["totals"]
    assert (totals["prompt_tokens"], totals["reported_prompt_tokens"], totals["cached_tokens"]) == (sent, 300, 192)
    assert (totals["requests"], totals["completion_tokens"]) == (3, 21)
    assert totals["cost_usd"] == pytest.approx(cost)
    (row,) = at_a_glance["models"]
    assert (row["model"], row["requests"], row["errors"], row["prompt_tokens"]) == (MODEL, 3, 0, sent)


async def test_requests_are_counted_by_path_and_status() -> None:
    async with world(ScriptedUpstream()) as w:
        await w.say([user("Hi")])
        await w.stream([user("Hello")])
        await w.post([])
        await w.client.get(f"{w.base_url}/conversations/conv_unknown")
        await w.client.get(f"{w.base_url}/models")
        await w.client.get(w.base_url.removesuffix("/v1") + "/nowhere")
        seen = await told(w)
    chat = {"endpoint": "/v1/chat/completions"}
    assert seen("requests_total", code="200", **chat) == 2
    assert seen("requests_total", code="400", **chat) == 1
    assert seen("request_seconds_count", stream="true", **chat) == 1
    assert seen("first_byte_seconds_count", stream="false") == 2
    assert seen("requests_total", endpoint="/v1/conversations/{conversation_id}", code="404") == 1
    assert seen("requests_total", endpoint="/v1/models", code="200") == 1
    assert seen("requests_total", endpoint="other", code="404") == 1
    assert seen("errors_total", code="conversation_not_found", status="404") == 1
    assert seen("errors_total") == 3
    assert 'errors_total{code="model_not_found",status="404"} 0.0' in seen.text, "the first would be no change"
    assert seen("requests_in_flight") == seen("streams_open") == 0
    assert "conv_unknown" not in seen.text
    assert "nowhere" not in seen.text


async def test_failing_providers_are_counted_by_how_they_fail() -> None:
    refusal = {"error": {"message": "No.", "type": "server_error", "code": "their_code"}}
    upstream = ScriptedUpstream(
        *(Reply(refusal, 500), Reply(refusal, 429), completion()),
        *(Reply(refusal, 400), Reply(pieces=[*BEGUN, DROP])),
    )
    async with world(upstream, retries={"attempts": 3, "base_seconds": 0.001}) as w:
        await w.say([user("Hi")], model=MODEL)
        assert (await w.post([user("Hello")], model=MODEL)).status_code == 400
        await w.post([user("Well")], model=MODEL, stream=True)
        seen = await told(w)
    asked = {"purpose": "answer", "provider": "upstream"}
    assert seen("upstream_requests_total", outcome="server_error", **asked) == 1
    assert seen("upstream_requests_total", outcome="rate_limited", **asked) == 1
    assert seen("upstream_requests_total", outcome="refused", **asked) == 1
    assert seen("upstream_requests_total", outcome="ok", model=MODEL, **asked) == 2
    assert seen("upstream_retries_total") == 2
    assert seen("upstream_seconds_count", **asked) == 2
    assert seen("errors_total", code="upstream_refused", status="400") == 1
    assert seen("errors_total", code="upstream_unavailable") == 1
    assert seen("interrupted_turns_total") == 1
    assert seen("turns_total") == 2
    assert "their_code" not in seen.text


async def test_an_open_breaker_shows() -> None:
    upstream = ScriptedUpstream(default=lambda _: Reply({"error": {"message": "Down."}}, 500))
    retries = {"attempts": 1, "breaker_failures": 2}
    models = {MODEL: {"provider": "upstream", "context_window": 8192}}
    async with world(upstream, retries=retries, models=models) as w:
        await w.post([user("Hi")], model=MODEL)
        assert (await told(w))("upstream_breaker_open") == 0
        await w.post([user("Hello")], model=MODEL)
        assert (await told(w))("upstream_breaker_open", purpose="answer", **OF_MODEL) == 1


async def test_summaries_and_what_they_save_are_counted() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(upstream, models=PRICED) as w:
        answer = await w.say(long_talk(), model=MODEL)
        seen, at_a_glance = await told(w), await overview(w)
    context = answer["context"]
    assert answer["context_status"] == "summarized"
    asked = sum(map(is_summary, upstream.requests))
    assert seen("compactions_total", outcome="made", trigger="request") == len(context["summaries"]) > 0
    assert seen("compaction_seconds_count", outcome="made") == len(context["summaries"])
    assert seen("compactions_running") == 0
    assert seen("upstream_requests_total", purpose="summary", outcome="ok") == asked
    assert seen("summary_tokens_total", kind="prompt") == asked * 1000
    assert seen("turns_total", status="summarized") == 1
    log, sent = (seen("prompt_tokens_total", kind=kind) for kind in ("log", "estimated"))
    assert sent == context["prompt_tokens"] < log
    assert seen("prompt_tokens_total", kind="saved") == log - sent
    summaries = asked * (1000 * PRICE["input"] + 2 * PRICE["output"]) / 1_000_000
    assert seen("cost_usd_total", kind="summary") == pytest.approx(summaries)
    saved = (log - sent) * PRICE["input"] / 1_000_000 - summaries
    assert at_a_glance["totals"]["saved_usd"] == pytest.approx(saved, abs=1e-6)
    assert at_a_glance["totals"]["compactions"] == {"made": len(context["summaries"])}


async def test_a_failing_summarizer_shows() -> None:
    upstream = summarizing(summary=Reply({"error": {"message": "No."}}, 400))
    async with world(upstream) as w:
        answer = await w.say(long_talk())
        seen = await told(w)
    assert answer["context"]["compaction"]["outcome"] == "failed"
    assert seen("compactions_total", outcome="mechanical", trigger="request") >= 1
    assert seen("compactions_total", outcome="made") == 0
    assert seen("upstream_requests_total", purpose="summary", outcome="refused") >= 1
    assert seen("summary_tokens_total") == 0


async def test_a_compaction_that_is_under_way_shows() -> None:
    slow = completion("They spoke about gardens.")
    slow.gate = asyncio.Event()
    upstream = summarizing(summary=slow)
    async with world(upstream) as w:
        asking = asyncio.ensure_future(w.say(long_talk()))
        await until(lambda: any(map(is_summary, upstream.requests)))
        now = (await overview(w))["now"]
        slow.gate.set()
        await asking
        after = (await overview(w))["now"]
    assert (now["requests_in_flight"], after["requests_in_flight"]) == (1, 0)
    assert now["compactions_running"] >= 1
    assert now["background_tasks"] >= 1
    assert after["compactions_running"] == 0


async def test_an_answer_that_is_given_again_is_no_second_turn() -> None:
    async with world(ScriptedUpstream()) as w:
        for _ in range(3):
            await w.say([user("Hi")], headers={"idempotency-key": "order-17"})
        seen = await told(w)
    assert seen("requests_total", endpoint="/v1/chat/completions") == 3
    assert seen("replays_total") == 2
    assert seen("turns_total") == 1
    assert seen("prompt_tokens_total", kind="reported") == 10
    assert seen("upstream_requests_total") == 1


async def test_clients_that_hang_up_are_counted() -> None:
    upstream = ScriptedUpstream(Reply(pieces=[*BEGUN, 60]))
    async with world(upstream) as w:
        await leave_after(w, [user("x")], 4)
        await until(lambda: w.rows() == 2)
        seen = await told(w)
    assert seen("client_disconnects_total") == 1
    assert seen("interrupted_turns_total") == 1
    assert seen("streams_open") == seen("requests_in_flight") == 0
    assert seen("unpriced_calls_total", reason="usage") == 1


async def test_a_store_that_is_away_shows() -> None:
    class Away(MemoryStore):
        async def append(self, write: Any) -> None:
            raise StoreUnavailable("The database is away.")

    async with world(ScriptedUpstream(), store=Away(clock=lambda: datetime.now(UTC))) as w:
        answer = await w.say([user("Hi")])
        seen = await told(w)
    assert answer["context_status"] == "degraded"
    assert seen("turns_total", status="degraded") == 1
    assert seen("store_errors_total", operation="append") >= 1
    assert seen("store_seconds_count", operation="append") >= 1
    assert seen("store_queue_depth") == 0


async def test_a_wait_for_a_conversation_is_counted() -> None:
    async with world(ScriptedUpstream()) as w:
        await w.say([user(question(0))], conversation="c")
        before = (await told(w))("lease_wait_seconds_count", of="conversation", outcome="held")
        await w.say([user(question(1))], conversation="c")
        assert (await told(w))("lease_wait_seconds_count", of="conversation", outcome="held") == before + 1


async def test_costs_that_nobody_knows_are_none() -> None:
    async with world(ScriptedUpstream()) as w:
        await w.say([user("Hi")], model="a-model-of-our-own")
        seen, at_a_glance = await told(w), await overview(w)
    assert "concertina_cost_usd_total{" not in seen.text
    assert seen("unpriced_calls_total", reason="price") == 1
    assert (at_a_glance["totals"]["cost_usd"], at_a_glance["totals"]["saved_usd"]) == (None, None)
    assert at_a_glance["models"][0]["cost_usd"] is None


async def test_model_names_that_clients_make_up_do_not_pile_up() -> None:
    upstream = ScriptedUpstream(default=lambda _: Reply({"error": {"message": "Unknown model."}}, 404))
    async with world(upstream) as w:
        for number in range(5):
            await w.post([user("Hi")], model=f"made-up-{number}")
        seen = await told(w)
    assert "made-up" not in seen.text
    assert seen("upstream_requests_total", model="other", outcome="refused") == 5


async def test_openmetrics_is_told_to_whom_it_is_asked_by() -> None:
    async with world(ScriptedUpstream()) as w:
        address = w.base_url.removesuffix("/v1") + "/metrics"
        plain = await w.client.get(address)
        accepting = await w.client.get(address, headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert accepting.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert accepting.text.endswith("# EOF\n")


async def test_a_token_keeps_others_from_the_numbers() -> None:
    async with world(ScriptedUpstream(), **TOKENS) as w:
        address = w.base_url.removesuffix("/v1") + "/metrics"
        shown = [None, "Bearer other", "scraping-secret", "Bearer scraping-secret"]
        answers = [await w.client.get(address, headers={"authorization": one} if one else {}) for one in shown]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 200]
    assert answers[0].json()["error"]["code"] == "invalid_api_key"


async def test_metrics_and_overview_can_be_switched_off() -> None:
    async with world(ScriptedUpstream(), telemetry={"metrics": False}) as w:
        await w.say([user("Hi")])
        answers: list[httpx.Response] = [
            await w.client.get(w.base_url.removesuffix("/v1") + "/metrics"),
            await w.client.get(f"{w.base_url}/admin/overview"),
        ]
    assert [answer.status_code for answer in answers] == [404, 404]


async def test_gateways_in_one_process_count_for_themselves() -> None:
    async with world(ScriptedUpstream(), window=WINDOW) as one:
        await one.say([user("Hi")])
    async with world(ScriptedUpstream(), window=WINDOW) as other:
        assert (await told(other))("turns_total") == 0


async def test_a_stream_in_error_is_told_and_counted_once() -> None:
    broken = Reply(pieces=[chunk({"content": "Half"}), b'data: {"error": {"message": "No more."}}\n\n'])
    async with world(ScriptedUpstream(broken, stream("Fine."))) as w:
        answer = await w.post([user("Hi")], stream=True)
        assert "No more." in answer.text
        seen = await told(w)
    assert seen("errors_total", code="upstream_refused") == 1
    assert seen("requests_total", code="200", endpoint="/v1/chat/completions") == 1


async def test_errors_are_counted_wherever_they_are_made() -> None:
    class Away(MemoryStore):
        async def check(self) -> Any:
            raise StoreUnavailable("The database is away.")

    store, limit = Away(clock=lambda: datetime.now(UTC)), {"body_limit_bytes": 500}
    async with world(ScriptedUpstream(), store=store, server=limit) as w:
        origin = w.base_url.removesuffix("v1")
        long = b'{"metadata": {"a": "' + b"x" * 1000 + b'"}}'

        async def pieces() -> AsyncIterator[bytes]:
            yield long[:400]
            yield long[400:]

        for content in (long, pieces()):
            headers = {"content-type": "application/json"}
            answer = await w.client.post(f"{w.base_url}/conversations", content=content, headers=headers)
            assert answer.status_code == 413
        assert (await w.client.get(f"{origin}readyz")).status_code == 503
        assert (await w.client.get(f"{origin}console/nothing")).status_code == 404
        seen = await told(w)
    assert seen("errors_total", code="request_too_large", status="413") == 2
    assert seen("errors_total", code="store_unavailable", status="503") == 1
    assert seen("errors_total", status="404") == 1
    assert seen("errors_total") == 4


async def test_the_overview_counts_no_request_of_its_own() -> None:
    console = {"x-concertina-console": "1"}
    async with world(ScriptedUpstream()) as w:
        await w.say([user("Hi")])
        origin = w.base_url.removesuffix("/v1")
        for path in ("/healthz", "/metrics", "/console/", "/console/nothing", "/docs", "/", "/v1/admin/keys"):
            await w.client.get(origin + path)
        await w.client.get(f"{w.base_url}/models", headers=console)
        await w.client.get(f"{w.base_url}/conversations/conv_unknown", headers=console)
        await overview(w)
        seen, at_a_glance = await told(w), await overview(w)
    assert (at_a_glance["totals"]["requests"], at_a_glance["totals"]["refusals"]) == (1, 0)
    assert at_a_glance["errors"] == []
    assert seen("requests_total", endpoint="console") == 2
    assert seen("errors_total") == seen("operator_errors_total") == 3


async def test_what_the_console_sends_and_asks_of_a_model_is_a_request() -> None:
    async with world(ScriptedUpstream()) as w:
        await w.say([user("Hi")], headers={"x-concertina-console": "1"})
        totals = (await overview(w))["totals"]
    assert totals["requests"] == 1


async def test_the_overview_s_totals_agree_with_its_table_of_errors() -> None:
    refusal = {"error": {"message": "No.", "type": "t", "param": None, "code": None}}
    broken = Reply(pieces=[chunk({"content": "Half"}), DROP])
    upstream = ScriptedUpstream(Reply(refusal, 404), Reply(refusal, 400), Reply(refusal, 500), broken)
    async with world(upstream, retries={"attempts": 1}) as w:
        await w.client.post(f"{w.base_url}/embeddings", json={"model": "m"})
        await w.post([user("Hi")])
        await w.post([user("Hello")])
        await w.post([user("Well")], stream=True)
        await w.client.get(f"{w.base_url}/conversations/conv_unknown")
        at_a_glance = await overview(w)
    totals, table = at_a_glance["totals"], at_a_glance["errors"]
    assert (totals["requests"], totals["refusals"], totals["errors"]) == (5, 3, 2)
    assert sum(row["count"] for row in table if row["status"] < 500) == totals["refusals"]
    assert sum(row["count"] for row in table if row["status"] >= 500) == totals["errors"]
    assert {"code": "upstream_refused", "status": 404, "count": 1} in table


async def test_the_simulated_model_costs_nothing_whatever_it_is_called() -> None:
    app = create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))
    async with serving(app) as address, httpx.AsyncClient(base_url=address) as client:
        for model in ("sim-gpt-4o", "sim", "sim-8k"):
            asked = {"model": model, "messages": [user("Hi")]}
            assert (await client.post("/v1/chat/completions", json=asked)).status_code == 200
        at_a_glance = (await client.get("/v1/admin/overview")).json()
    assert {row["model"]: row["cost_usd"] for row in at_a_glance["models"]} == {"other": 0, "sim": 0, "sim-8k": 0}
    assert (at_a_glance["totals"]["cost_usd"], at_a_glance["totals"]["saved_usd"]) == (0, 0)
