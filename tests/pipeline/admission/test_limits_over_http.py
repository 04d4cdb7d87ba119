"""Budgets and rates over HTTP: parallel requests, passed-through calls, headers of limits, SDKs that back off."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from typing import Any

import httpx
import openai
import pytest

from tests.api.admin.test_costs import HISTORY, PRICED, UNPRICED, Gateway, locked
from tests.live import Reply, ScriptedUpstream, chunk, completion, stream
from tests.support.gateway import user

USAGE = {"prompt_tokens": 10, "total_tokens": 12, "completion_tokens": 2}
ANTHROPIC_STREAM = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}},
    {"type": "content_block_delta", "delta": {"text": 'says "usage": {}'}},
    {"type": "message_delta", "usage": {"output_tokens": 2}},
]
EVERYTHING: dict[str, Any] = {"pass_through": ["*"]}


async def spent(gateway: Gateway, key_id: str) -> float:
    """What a key has cost, as soon as nothing of it is reserved."""
    async with asyncio.timeout(5):
        while True:
            use = await gateway.inner.store.read_budget_use(key_id=key_id, since_day="2026-11-01")
            if not use.reserved_usd:
                return float(use.spent_usd)
            await asyncio.sleep(0.01)


def answer(body: dict[str, Any]) -> Reply:
    return stream("Fine.") if body.get("stream") else completion()


def sse(events: list[dict[str, Any]]) -> Reply:
    pieces = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return Reply(pieces=[pieces[0][:9], pieces[0][9:], *pieces[1:]])


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_of_parallel_requests_only_those_are_answered_that_fit_the_budget(is_streamed: bool) -> None:
    async with locked(ScriptedUpstream(default=answer)) as gateway:
        secret, key_id = await gateway.make_key(budget_usd=0.5)
        answers = await asyncio.gather(
            *(post_numbered(gateway, secret, number, stream=is_streamed) for number in range(60))
        )
        statuses = Counter(answer.status_code for answer in answers)
        assert statuses.keys() == {200, 429}
        assert 5 <= statuses[200] <= 16
        assert await spent(gateway, key_id) == pytest.approx(0.03 * statuses[200])


async def test_what_a_request_may_cost_is_told_if_it_is_too_much_and_nothing_is_called() -> None:
    async with locked() as gateway:
        secret, _ = await gateway.make_key(budget_usd=1)
        refused = await gateway.inner.post(HISTORY, key=secret, max_tokens=100)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")
        assert "this request may cost $1.0220" in refused.json()["error"]["message"]
        assert "retry-after" not in refused.headers
        assert (await gateway.inner.post(HISTORY, key=secret, max_tokens=40, n=3)).status_code == 429
        assert gateway.inner.upstream.requests == []
        assert (await gateway.inner.post(HISTORY, key=secret, max_tokens=40)).status_code == 200


async def test_a_failed_call_gives_its_reservation_back() -> None:
    failing = [Reply({"error": {"message": "no"}}, status=400)] * 3
    async with locked(ScriptedUpstream(*failing)) as gateway:
        secret, key_id = await gateway.make_key(budget_usd=0.05)
        for _ in failing:
            assert (await gateway.inner.post(HISTORY, key=secret)).status_code == 400
        assert await spent(gateway, key_id) == 0.0
        assert (await gateway.inner.post(HISTORY, key=secret)).status_code == 200


async def test_a_summary_that_the_budget_has_no_room_for_is_not_written() -> None:
    models = {**PRICED, "writer": {**PRICED["*"], "price": {"input": 1e6, "output": 1e6}}}
    policies = {"additive": {"summarizer": {"model": "writer"}}}
    upstream = ScriptedUpstream(default=answer)
    async with locked(upstream, models=models, policies=policies) as gateway:
        secret, _ = await gateway.make_key(budget_usd=100)
        history = [{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 300} for i in range(41)]
        said = await gateway.inner.say(history, key=secret)
        assert said["context"]["compaction"]["ran"] is False or said["context_status"] == "trimmed"
        assert [body["model"] for body in upstream.requests] == ["m"]


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/embeddings", Reply({"data": [{"embedding": [0.5] * 9000}], "usage": {**USAGE, "completion_tokens": 2}})),
        ("/completions", Reply({"choices": [], "usage": USAGE})),
        ("/deployments/m/chat/completions", Reply({"choices": [], "usage": USAGE})),
        ("/deployments/m/messages", Reply({"content": [], "usage": {"input_tokens": 10, "output_tokens": 2}})),
        ("/deployments/m/messages", sse(ANTHROPIC_STREAM)),
        (
            "/completions",
            sse([{"choices": [], "usage": None}, {"choices": [], "usage": USAGE}]),
        ),
    ],
)
async def test_a_passed_through_call_costs_what_its_answer_reports(path: str, reply: Reply) -> None:
    async with locked(ScriptedUpstream(reply), provider=EVERYTHING) as gateway:
        secret, key_id = await gateway.make_key(scopes=("chat", "admin"), budget_usd=0.05)
        answer = await gateway.request("POST", path, secret, json={"model": "m", "max_tokens": 2})
        assert answer.status_code == 200, answer.text
        assert await spent(gateway, key_id) == pytest.approx(0.03)
        (row,) = await gateway.costs(secret)
        assert (row["requests"], row["prompt_tokens"], row["unpriced_calls"]) == (1, 10, 0)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_message_costs_what_its_answer_reports_within_the_budget(streams: bool) -> None:
    pieces = [chunk({"content": "Fine."}, "stop"), chunk({}, usage=USAGE), b"data: [DONE]\n\n"]
    reply = Reply(pieces=pieces) if streams else completion("Fine.", usage=USAGE)
    async with locked(ScriptedUpstream(reply, completion())) as gateway:
        secret, key_id = await gateway.make_key(scopes=("chat", "admin"), budget_usd=0.05)
        body = {"model": "m", "max_tokens": 2, "stream": streams, "messages": [user("Hi")]}
        answer = await gateway.request("POST", "/messages", secret, json=body)
        assert answer.status_code == 200, answer.text
        assert await spent(gateway, key_id) == pytest.approx(0.03)
        refused = await gateway.request("POST", "/messages", secret, json={**body, "max_tokens": 2000})
        assert (refused.status_code, refused.json()["type"]) == (429, "error")


@pytest.mark.parametrize(
    "text", [b'{"usage": ' + b"[" * 5000, b'{"usage": 5}', b'{"usage": {"prompt_tokens": "\xff"}}', b"[]"]
)
async def test_an_answer_whose_usage_cannot_be_read_passes_all_the_same(text: bytes) -> None:
    async with locked(ScriptedUpstream(Reply(text))) as gateway:
        secret, _ = await gateway.make_key(budget_usd=0.05)
        answer = await gateway.request("POST", "/embeddings", secret, json={"model": "m"})
        assert (answer.status_code, answer.content) == (200, text)


async def test_a_passed_through_answer_without_usage_costs_its_estimate() -> None:
    async with locked(ScriptedUpstream(Reply({"choices": []})), provider=EVERYTHING) as gateway:
        secret, key_id = await gateway.make_key(budget_usd=0.05)
        body = json.dumps({"model": "m", "prompt": "Hi", "max_tokens": 2})
        assert (await gateway.request("POST", "/completions", secret, content=body)).status_code == 200
        assert await spent(gateway, key_id) == pytest.approx(0.001 * (len(body) // 3) + 0.02)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
@pytest.mark.parametrize("path", ["/audio/speech", "/files", "/responsesx", "/messages/batches", "/completions/x"])
async def test_a_call_that_cannot_be_priced_is_refused_for_a_key_with_a_budget(method: str, path: str) -> None:
    async with locked(provider=EVERYTHING) as gateway:
        secret, _ = await gateway.make_key(budget_usd=5)
        refused = await gateway.request(method, path, secret, json={"model": "m"})
        # Errors below `/v1/messages` have the form of that API, which has no codes.
        named = ("type", "permission_error") if path.startswith("/messages") else ("code", "insufficient_permissions")
        assert (refused.status_code, refused.json()["error"][named[0]]) == (403, named[1])
        assert "has a budget, and what '/v1" in refused.json()["error"]["message"]
        free, _ = await gateway.make_key()
        assert (await gateway.request(method, path, free, json={"model": "m"})).status_code == 200
        assert (await gateway.request("GET", path, secret)).status_code != 403


async def test_a_passed_through_model_needs_a_price_for_a_key_with_a_budget() -> None:
    async with locked(models=UNPRICED) as gateway:
        secret, _ = await gateway.make_key(budget_usd=5)
        refused = await gateway.request("POST", "/embeddings", secret, json={"model": "m"})
        assert refused.status_code == 403
        assert "models.<name>.price" in refused.json()["error"]["message"]
        assert (await gateway.request("POST", "/moderations", secret, json={"input": "x"})).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_no_method_passes_a_spent_budget(method: str) -> None:
    async with locked(provider=EVERYTHING) as gateway:
        secret, key_id = await gateway.make_key(budget_usd=5)
        await gateway.spend(key_id, 5)
        refused = await gateway.request(method, "/embeddings", secret, json={"model": "m"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")


def limits(kind: str, **rates: int) -> dict[str, Any]:
    return {f"{kind}_per_minute": rates, "assumed_answer_tokens": 2}


async def post_numbered(gateway: Gateway, secret: str, number: int, **options: Any) -> httpx.Response:
    return await gateway.inner.post([*HISTORY, {"role": "user", "content": str(number)}], key=secret, **options)


async def post_many(gateway: Gateway, secret: str, count: int, **options: Any) -> list[httpx.Response]:
    return await asyncio.gather(*(post_numbered(gateway, secret, number, **options) for number in range(count)))


async def test_requests_above_the_rate_of_a_key_are_refused_as_openai_does() -> None:
    async with locked(ScriptedUpstream(default=answer), limits=limits("requests", key=3)) as gateway:
        secret, key_id = await gateway.make_key()
        other, _ = await gateway.make_key()
        answers = await post_many(gateway, secret, 8)
        assert Counter(one.status_code for one in answers) == {200: 3, 429: 5}
        remaining = {one.headers["x-ratelimit-remaining-requests"] for one in answers if one.status_code == 200}
        assert remaining == {"0", "1", "2"}
        refused = next(one for one in answers if one.status_code == 429)
        error = refused.json()["error"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
        assert error["message"].startswith(f"This API key ({key_id}) may send 3 requests in a minute; it has sent 3.")
        assert "`limits.requests_per_minute.key`" in error["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["x-ratelimit-limit-requests"] == "3"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
        assert "x-should-retry" not in refused.headers
        streamed = await gateway.inner.post(HISTORY, key=other, stream=True)
        assert (streamed.status_code, streamed.headers["x-ratelimit-remaining-requests"]) == (200, "2")
        passed = await gateway.request("POST", "/embeddings", other, json={"model": "m"})
        assert (passed.status_code, passed.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        assert (await gateway.request("PUT", "/embeddings", other, json={"model": "m"})).status_code == 200
        assert (await gateway.request("POST", "/embeddings", other, json={"model": "m"})).status_code == 429


async def test_a_rate_of_a_tenant_holds_for_its_keys_and_end_users_together() -> None:
    auth = {"mode": "keys", "cache_seconds": 0, "end_users": True}
    async with locked(limits=limits("requests", tenant=2, all=3), auth=auth) as gateway:
        keys = [(await gateway.make_key())[0] for _ in range(2)]
        elsewhere, _ = await gateway.make_key(tenant="site")
        for secret, status in ((keys[0], 200), (keys[1], 200), (keys[0], 429)):
            user = {"x-end-user-id": secret[-8:]}
            assert (await gateway.inner.post(HISTORY, key=secret, headers=user)).status_code == status
        assert (await gateway.inner.post(HISTORY, key=elsewhere)).status_code == 200
        refused = await gateway.inner.post(HISTORY, key=elsewhere)
        assert (refused.status_code, "This gateway may send 3" in refused.text) == (429, True)


async def test_a_keys_own_rate_stands_before_that_of_the_settings() -> None:
    async with locked(limits=limits("requests", key=1)) as gateway:
        wider, _ = await gateway.make_key(requests_per_minute=2)
        assert [one.status_code for one in await post_many(gateway, wider, 1)] == [200]
        assert [one.status_code for one in await post_many(gateway, wider, 1)] == [200]
        assert [one.status_code for one in await post_many(gateway, wider, 1)] == [429]
    async with locked() as gateway:
        limited, _ = await gateway.make_key(requests_per_minute=1, tokens_per_minute=1000)
        assert sorted(one.status_code for one in await post_many(gateway, limited, 2)) == [200, 429]


async def test_tokens_are_counted_before_the_answer_and_settled_after_it() -> None:
    async with locked(ScriptedUpstream(default=answer), limits=limits("tokens", all=300)) as gateway:
        secret, _ = await gateway.make_key()
        parallel = await post_many(gateway, secret, 6, max_tokens=100)
        assert Counter(one.status_code for one in parallel) == {200: 2, 429: 4}
        refused = next(one for one in parallel if one.status_code == 429)
        assert (refused.json()["error"]["type"], refused.headers["x-ratelimit-limit-tokens"]) == ("tokens", "300")
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) < 130
        async with asyncio.timeout(5):
            while (settled := await gateway.inner.post(HISTORY, key=secret, max_tokens=100)).status_code == 429:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        # Two answers of 12 tokens, and this one's estimate.
        assert int(settled.headers["x-ratelimit-remaining-tokens"]) > 120


@pytest.mark.parametrize("number", [0, -5, 2**31, 2**63 - 1])
async def test_no_limit_of_an_answer_breaks_the_counting(number: int) -> None:
    """A client's number neither adds to what is left nor overflows the database's."""
    reply = completion()
    reply.body["usage"]["completion_tokens"] = 2**63 - 1
    async with locked(ScriptedUpstream(reply), limits=limits("tokens", all=10**9)) as gateway:
        secret, key_id = await gateway.make_key()
        budgeted, _ = await gateway.make_key(budget_usd=0.01)
        for key, path in itertools.product((secret, budgeted), ("chat/completions", "embeddings")):
            body = {"model": "m", "messages": HISTORY, "max_tokens": number}
            answer = await gateway.request("POST", f"/{path}", key, json=body)
            assert answer.status_code in (200, 400, 429), answer.text
        counts = gateway.inner.store.execute_now("SELECT tokens FROM rate_counts WHERE scope = 'all'")
        assert counts
        assert all(0 <= tokens <= 10**10 for (tokens,) in counts)
        assert await spent(gateway, key_id) >= 0


async def test_an_sdk_backs_off_and_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for what `Retry-After` says, as with OpenAI."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        gateway.inner.store.execute_now("DELETE FROM rate_counts")

    monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
    async with locked(limits=limits("requests", key=1)) as gateway:
        secret, _ = await gateway.make_key()
        client = openai.AsyncOpenAI(api_key=secret, base_url=gateway.inner.base_url)
        for number in itertools.islice(itertools.count(), 2):
            done = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"question {number}"}]
            )
            assert done.choices
        await client.close()
    assert len(slept) == 1
    assert 1 <= slept[0] <= 61


async def test_without_limits_nothing_is_counted() -> None:
    async with locked() as gateway:
        secret, _ = await gateway.make_key()
        answer = await gateway.inner.post(HISTORY, key=secret)
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        assert gateway.inner.store.execute_now("SELECT * FROM rate_counts") == []
