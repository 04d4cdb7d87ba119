"""What keys and tenants cost, and what a key may spend in a month."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from app.conversations.api_keys import ApiKeys, NewApiKey
from app.store.contract.usage import UsageQuery, UsageTotals
from tests.live import DROP, TEST_DEPENDENCIES, Reply, ScriptedUpstream, chunk, completion, serving, stream
from tests.support.gateway import World, assistant, user, world

NOW = datetime(2026, 11, 24, 6, 0, tzinfo=UTC)
PRICED = {"*": {"provider": "upstream", "context_window": 8192, "price": {"input": 1000, "output": 10_000}}}
"""A prompt of 10 tokens and an answer of 2, as the scripted upstream reports them, cost 1 cent and 2 cents."""
UNPRICED = {"*": {"provider": "upstream", "context_window": 8192}}
HISTORY = [user("Hi"), assistant("Hello."), user("How are you?")]
"""22 tokens by our own count: with an answer of `assumed_answer_tokens`, 4.2 cents are reserved for it."""


class Gateway:
    def __init__(self, inner: World) -> None:
        self.inner = inner
        self.keys = ApiKeys(
            inner.store, usage=inner.store, policies=[], now=lambda: NOW, random_bytes=secrets.token_bytes
        )

    async def make_key(self, **fields: Any) -> tuple[str, str]:
        """Returns the secret and the id of a new key."""
        secret, key = await self.keys.create_key(NewApiKey(**{"name": "shop", "tenant": "shop", **fields}))
        return secret, key.id

    async def spend(self, key_id: str, usd: float) -> None:
        await self.inner.store.add_usage([UsageTotals("shop", key_id, NOW.date().isoformat(), "m", cost_usd=usd)])

    async def request(self, method: str, path: str, secret: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {secret}", **options.pop("headers", {})}
        return await self.inner.client.request(method, f"{self.inner.base_url}{path}", headers=headers, **options)

    async def costs(self, secret: str, **query: Any) -> list[dict[str, Any]]:
        answer = await self.request("GET", "/admin/costs", secret, params=query)
        assert answer.status_code == 200, answer.text
        rows: list[dict[str, Any]] = answer.json()["data"]
        return rows


@asynccontextmanager
async def locked(
    upstream: ScriptedUpstream | None = None, *, provider: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Gateway]:
    """A gateway in mode `keys`; `provider`: further settings of its provider."""
    limits = {"assumed_answer_tokens": 2}
    values = {"auth": {"mode": "keys", "cache_seconds": 0}, "models": PRICED, "limits": limits, **options}
    dependencies = dataclasses.replace(TEST_DEPENDENCIES, now=lambda: NOW)
    async with (
        serving(upstream := upstream or ScriptedUpstream(), lifespan="off") as address,
        world(
            upstream,
            dependencies=dependencies,
            providers={"upstream": {"base_url": f"{address}/v1", "api_key": "sk-upstream", **(provider or {})}},
            **values,
        ) as inner,
    ):
        yield Gateway(inner)


async def test_costs_are_listed_by_key_tenant_and_model() -> None:
    async with locked() as gateway:
        operator, _ = await gateway.make_key(name="operator", tenant="operator", scopes=("admin",))
        shop, shop_id = await gateway.make_key()
        site, site_id = await gateway.make_key(name="site")
        for secret, count in ((shop, 1), (site, 2)):
            for _ in range(count):
                await gateway.inner.say(HISTORY, key=secret)
        await gateway.inner.stream(HISTORY, key=site)
        by_key = await gateway.costs(operator)
        common = {"tenant": "shop", "model": None, "day": None, "unpriced_calls": 0, "cached_tokens": 0}
        sums = {"requests": 3, "prompt_tokens": 30, "completion_tokens": 6, "cost_usd": pytest.approx(0.09)}
        assert by_key[0] == {**common, "key_id": site_id, "key_name": "site", "tenant_name": None, **sums}
        assert (by_key[1]["key_id"], by_key[1]["key_name"], by_key[1]["requests"]) == (shop_id, "shop", 1)
        (by_tenant,) = await gateway.costs(operator, by="tenant")
        assert (by_tenant["tenant"], by_tenant["key_id"], by_tenant["requests"]) == ("shop", None, 4)
        (by_model,) = await gateway.costs(operator, by="model")
        assert (by_model["model"], by_model["tenant"], by_model["cost_usd"]) == ("m", None, pytest.approx(0.12))
        page = (await gateway.request("GET", "/admin/costs?limit=1", operator)).json()
        assert ([row["key_id"] for row in page["data"]], page["has_more"]) == ([site_id], True)


async def test_costs_begin_with_the_month_or_with_the_day_that_is_asked_for() -> None:
    async with locked() as gateway:
        operator, _ = await gateway.make_key(scopes=("admin",))
        days = ("2026-10-31", "2026-11-01", "2026-11-23")
        await gateway.inner.store.add_usage([UsageTotals("shop", "", day, "m", 1) for day in days])
        november, the_23rd = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()), datetime(2026, 11, 23, 12, tzinfo=UTC)
        for query, since, count in (
            ({}, november, 2),
            ({"since": november - 1}, november - 86_400, 3),
            ({"since": int(the_23rd.timestamp())}, int(the_23rd.timestamp()) - 43_200, 1),
        ):
            answer = (await gateway.request("GET", "/admin/costs", operator, params=query)).json()
            assert (answer["object"], answer["since"]) == ("list", since)
            assert [row["requests"] for row in answer["data"]] == [count]


async def test_costs_are_split_by_day() -> None:
    async with locked() as gateway:
        operator, _ = await gateway.make_key(scopes=("admin",))
        for day, model, usd in (("2026-11-02", "a", 1.0), ("2026-11-03", "a", 2.0), ("2026-11-03", "b", 4.0)):
            await gateway.inner.store.add_usage([UsageTotals("shop", "", day, model, cost_usd=usd)])
        by_day = await gateway.costs(operator, by="day")
        assert [(row["day"], row["model"], row["cost_usd"]) for row in by_day] == [
            ("2026-11-03", None, 6.0),
            ("2026-11-02", None, 1.0),
        ]
        daily = await gateway.costs(operator, by="model", daily="true")
        assert [(row["day"], row["model"], row["cost_usd"]) for row in daily] == [
            ("2026-11-03", "b", 4.0),
            ("2026-11-03", "a", 2.0),
            ("2026-11-02", "a", 1.0),
        ]
        assert [row["day"] for row in await gateway.costs(operator, by="model")] == [None, None]


async def test_the_holder_of_a_key_sees_its_own_costs() -> None:
    async with locked() as gateway:
        shop, shop_id = await gateway.make_key(scopes=("read",), budget_usd=5)
        _, other_id = await gateway.make_key(name="other")
        chat, _ = await gateway.make_key(scopes=("chat",))
        for key_id, day, usd in (
            (shop_id, "2026-10-30", 1.0),
            (shop_id, "2026-11-02", 2.0),
            (other_id, "2026-11-02", 4.0),
        ):
            await gateway.inner.store.add_usage([UsageTotals("shop", key_id, day, "m", cost_usd=usd)])
        told = (await gateway.request("GET", "/costs", shop)).json()
        assert [(row["model"], row["cost_usd"]) for row in told["data"]] == [("m", 2.0)]
        assert (told["key_name"], told["budget_usd"], told["spent_usd"]) == ("shop", 5.0, 2.0)
        october = {"since": int(datetime(2026, 10, 1, tzinfo=UTC).timestamp()), "by": "day"}
        told = (await gateway.request("GET", "/costs", shop, params=october)).json()
        assert [row["day"] for row in told["data"]] == ["2026-11-02", "2026-10-30"]
        assert told["spent_usd"] == 2.0
        assert (await gateway.request("GET", "/costs", chat)).status_code == 403
        assert (await gateway.request("GET", "/costs?by=key", shop)).status_code == 400


async def test_without_keys_a_caller_sees_the_costs_of_its_credential() -> None:
    async with locked(auth={"mode": "open"}) as gateway:
        await gateway.inner.say(HISTORY, key="sk-one")
        for secret, count in (("sk-one", 1), ("sk-two", 0)):
            told = (await gateway.request("GET", "/costs", secret)).json()
            assert (len(told["data"]), told["key_name"], told["budget_usd"]) == (count, None, None)
            assert told["spent_usd"] == pytest.approx(0.03 * count)


async def test_only_operators_see_costs() -> None:
    async with locked() as gateway:
        shop, _ = await gateway.make_key()
        assert (await gateway.request("GET", "/admin/costs", shop)).status_code == 403
        assert (await gateway.request("GET", "/admin/costs", "ck_made-up")).status_code == 401


@pytest.mark.parametrize("query", ["by=week", "daily=x", "since=-1", "since=x", "limit=0", "limit=1001"])
async def test_an_invalid_question_is_refused(query: str) -> None:
    async with locked() as gateway:
        operator, _ = await gateway.make_key(scopes=("admin",))
        assert (await gateway.request("GET", f"/admin/costs?{query}", operator)).status_code == 400


async def test_end_users_count_for_their_application() -> None:
    auth = {"mode": "keys", "cache_seconds": 0, "end_users": True}
    async with locked(auth=auth) as gateway:
        secret, key_id = await gateway.make_key(scopes=("chat", "admin"))
        for name in ("ann", "bob"):
            await gateway.inner.say(HISTORY, key=secret, headers={"x-end-user-id": name})
        (row,) = await gateway.costs(secret)
        assert (row["tenant"], row["key_id"], row["requests"]) == ("shop", key_id, 2)


async def test_calls_without_a_price_are_counted_and_have_no_cost() -> None:
    async with locked(models=UNPRICED) as gateway:
        secret, _ = await gateway.make_key(scopes=("chat", "admin"), budget_usd=0.01)
        for _ in range(2):
            await gateway.inner.say(HISTORY, key=secret)
        (row,) = await gateway.costs(secret)
        assert (row["requests"], row["unpriced_calls"], row["prompt_tokens"], row["cost_usd"]) == (2, 2, 20, None)


async def test_a_key_over_its_budget_is_refused_until_the_month_ends() -> None:
    async with locked() as gateway:
        secret, key_id = await gateway.make_key(budget_usd=0.05)
        other, _ = await gateway.make_key()
        await gateway.inner.say(HISTORY, key=secret)
        await gateway.spend(key_id, 0.03)
        calls = len(gateway.inner.upstream.requests)
        options: list[dict[str, Any]] = [{}, {"stream": True}]
        for fields in options:
            refused = await gateway.inner.post(HISTORY, key=secret, **fields)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["type"]) == (429, "budget_exceeded", "insufficient_quota")
            assert refused.headers["retry-after"] == str(6 * 86_400 + 18 * 3600)
            assert refused.headers["x-should-retry"] == "false"
            assert error["message"] == (
                f"This API key ({key_id}) has spent its budget of $0.05 for November 2026: $0.06 until now. It can be "
                "used again from 2026-12-01 00:00 UTC. Ask the operator of this gateway for a higher budget."
            )
        assert len(gateway.inner.upstream.requests) == calls
        await gateway.inner.say(HISTORY, key=other)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/responses", {"model": "m", "input": "Hi"}),
        ("/embeddings", {"model": "m", "input": "Hi"}),
        ("/conversations/{id}/compact", {}),
        ("/conversations/{id}/summaries/chunk_1/regenerate", {}),
    ],
)
async def test_whatever_calls_a_model_needs_a_budget(path: str, body: dict[str, Any]) -> None:
    async with locked() as gateway:
        secret, key_id = await gateway.make_key(budget_usd=0.05)
        said = await gateway.inner.say(HISTORY, key=secret)
        await gateway.spend(key_id, 0.02)
        calls = len(gateway.inner.upstream.requests)
        refused = await gateway.request("POST", path.format(id=said["conversation_id"]), secret, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "budget_exceeded")
        assert len(gateway.inner.upstream.requests) == calls
        read = await gateway.request("GET", f"/conversations/{said['conversation_id']}", secret)
        assert read.status_code == 200


async def test_a_retry_gets_its_answer_although_the_budget_is_spent() -> None:
    async with locked() as gateway:
        secret, _ = await gateway.make_key(budget_usd=0.05)
        named = {"headers": {"idempotency-key": "one"}}
        first = await gateway.inner.say(HISTORY, key=secret, **named)
        again = await gateway.inner.say(HISTORY, key=secret, **named)
        assert again["id"] == first["id"]
        assert (await gateway.inner.post(HISTORY, key=secret)).status_code == 429


async def test_a_stream_that_breaks_off_is_counted_by_our_own_counts() -> None:
    words = [chunk({"content": "word "}) for _ in range(50)]
    upstream = ScriptedUpstream(Reply(pieces=[chunk({"role": "assistant", "content": ""}), *words, DROP]))
    async with locked(upstream) as gateway:
        secret, _ = await gateway.make_key(scopes=("chat", "admin"))
        broken = await gateway.inner.post(HISTORY, key=secret, stream=True)
        assert '"error"' in broken.text
        (row,) = await wait_for_costs(gateway, secret)
        assert (row["requests"], row["unpriced_calls"]) == (1, 0)
        assert 10 <= row["prompt_tokens"] <= 40
        assert 45 <= row["completion_tokens"] <= 65
        cost = (row["prompt_tokens"] + 10 * row["completion_tokens"]) / 1000
        assert row["cost_usd"] == pytest.approx(cost)


@pytest.mark.parametrize("words", [0, 3])
async def test_a_client_that_leaves_pays_for_what_came(words: int) -> None:
    pieces = [chunk({"role": "assistant", "content": ""}), *[chunk({"content": "word "})] * words, 30]
    upstream = ScriptedUpstream(Reply(pieces=pieces))
    async with locked(upstream) as gateway:
        secret, _ = await gateway.make_key(scopes=("chat", "admin"))
        body = {"model": "m", "messages": HISTORY, "stream": True}
        headers = {"authorization": f"Bearer {secret}"}
        url = f"{gateway.inner.base_url}/chat/completions"
        async with gateway.inner.client.stream("POST", url, json=body, headers=headers) as answer:
            if words:
                async for line in answer.aiter_lines():
                    if "word" in line:
                        break
            else:
                await asyncio.sleep(0.1)
        (row,) = await wait_for_costs(gateway, secret)
        assert (row["requests"], row["unpriced_calls"]) == (1, 0)
        assert row["prompt_tokens"] >= 10
        assert (row["completion_tokens"] > 0) == bool(words)


async def wait_for_costs(gateway: Gateway, secret: str) -> list[dict[str, Any]]:
    """The rows, as soon as there are any."""
    async with asyncio.timeout(5):
        while not (rows := await gateway.costs(secret)):  # noqa: ASYNC110 - nothing announces them
            await asyncio.sleep(0.01)
    return rows


async def test_summaries_count_for_the_key_that_needed_them() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        if body.get("model") == "writer":
            return completion("They spoke of gardens.")
        return stream("Fine.") if body.get("stream") else completion()

    models = {**PRICED, "writer": {**PRICED["*"], "price": {"input": 500, "output": 5000}}}
    policies = {"additive": {"summarizer": {"model": "writer"}}}
    async with locked(ScriptedUpstream(default=answer), models=models, policies=policies) as gateway:
        secret, key_id = await gateway.make_key(scopes=("chat", "read", "manage", "admin"))
        history = [
            user(f"Question {i}: " + "word " * 150) if i % 2 == 0 else assistant("Yes. " * 100) for i in range(21)
        ]
        said = await gateway.inner.say(history, key=secret)
        done = await gateway.request("POST", f"/conversations/{said['conversation_id']}/compact", secret, json={})
        assert done.status_code == 200, done.text
        rows = {row["model"]: row for row in await gateway.costs(secret, by="model")}
        calls = [body for body in gateway.inner.upstream.requests if body["model"] == "writer"]
        assert len(calls) > 0
        assert (rows["m"]["requests"], rows["writer"]["requests"]) == (1, 0)
        assert rows["writer"]["prompt_tokens"] == 10 * len(calls)
        assert rows["writer"]["cost_usd"] == pytest.approx(0.015 * len(calls))
        (by_key,) = await gateway.costs(secret)
        assert by_key["key_id"] == key_id
        assert by_key["cost_usd"] == pytest.approx(0.03 + 0.015 * len(calls))


async def test_a_key_tells_its_budget_and_what_it_has_spent() -> None:
    async with locked() as gateway:
        operator, _ = await gateway.make_key(name="operator", tenant="operator", scopes=("admin",))
        wish = {"name": "shop", "tenant": "shop", "scopes": ["chat"], "budget_usd": 20}
        made = (await gateway.request("POST", "/admin/keys", operator, json=wish)).json()
        assert (made["budget_usd"], made["spent_usd"]) == (20.0, 0.0)
        await gateway.inner.say(HISTORY, key=made["key"])
        listed = (await gateway.request("GET", "/admin/keys", operator)).json()["data"]
        spending = {key["name"]: (key["budget_usd"], key["spent_usd"]) for key in listed}
        assert spending == {"operator": (None, 0.0), "shop": (20.0, pytest.approx(0.03))}
        revoked = (await gateway.request("DELETE", f"/admin/keys/{made['id']}", operator)).json()
        assert (revoked["budget_usd"], revoked["spent_usd"]) == (20.0, pytest.approx(0.03))


async def test_a_changed_budget_counts_at_once_with_what_was_spent_before() -> None:
    async with locked(auth={"mode": "keys", "cache_seconds": 3600}) as gateway:
        operator, _ = await gateway.make_key(scopes=("admin",))
        secret, key_id = await gateway.make_key()
        await gateway.inner.say(HISTORY, key=secret)
        for budget, status in ((0.02, 429), (0.08, 200), (0.08, 429), (None, 200)):
            changed = await gateway.request("POST", f"/admin/keys/{key_id}", operator, json={"budget_usd": budget})
            assert (changed.status_code, changed.json()["budget_usd"]) == (200, budget), changed.text
            assert changed.json()["spent_usd"] >= 0.03
            assert "key" not in changed.json()
            assert (await gateway.inner.post(HISTORY, key=secret)).status_code == status, budget


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "budget_usd"),
        ({"budget_usd": 0}, "budget_usd"),
        ({"budget_usd": 1e10}, "budget_usd"),
        ({"budget_usd": "much"}, "budget_usd"),
        ({"budget_usd": 5, "name": "other"}, "name"),
    ],
)
async def test_a_change_of_a_key_that_is_none_is_refused(body: dict[str, Any], param: str) -> None:
    async with locked() as gateway:
        operator, _ = await gateway.make_key(scopes=("admin",))
        _, key_id = await gateway.make_key(budget_usd=7)
        refused = await gateway.request("POST", f"/admin/keys/{key_id}", operator, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        unknown = await gateway.request("POST", "/admin/keys/key_none", operator, json={"budget_usd": 5})
        assert unknown.status_code == 404
        assert {key.budget_usd for key in await gateway.inner.store.list_api_keys()} == {None, 7}


@pytest.mark.parametrize("budget", [0, -1, 1e10, "much"])
async def test_a_budget_is_a_number_of_dollars(budget: Any) -> None:
    async with locked() as gateway:
        operator, _ = await gateway.make_key(scopes=("admin",))
        refused = await gateway.request("POST", "/admin/keys", operator, json={"name": "x", "budget_usd": budget})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "budget_usd")


async def test_in_mode_open_costs_are_those_of_tenants() -> None:
    async with locked(auth={"mode": "open"}) as gateway:
        await gateway.inner.say(HISTORY, key="sk-one")
    # The stop writes them.
    (row,) = await gateway.inner.store.sum_usage(UsageQuery("2026-11-24", "key"))
    assert (len(row.tenant), row.key_id, row.requests) == (32, "", 1)
