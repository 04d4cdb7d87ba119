"""An operator sees every tenant's conversations. Nobody else may name a tenant."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from app.conversation.api_keys import CONTEXT_TENANT_SUFFIX, Scope
from app.conversations.api_keys import ApiKeys, NewApiKey
from app.settings import ConfigurationError, Settings, load_settings
from tests.api.edge.test_tenant_isolation import OWNER, STRANGER, WITH_IDS, Kept, kept
from tests.live import ScriptedUpstream
from tests.support.gateway import World, answering, user, world

TOKEN = "cop_" + "0123456789abcdef" * 3
EVERYWHERE = {"x-concertina-tenant": "*"}
OF_CONVERSATIONS = [operation for operation in WITH_IDS if "{conversation_id}" in operation]


@asynccontextmanager
async def two_tenants(**auth: Any) -> AsyncIterator[World]:
    settings: dict[str, Any] = {"auth": {"operator_token": TOKEN, **auth}}
    async with world(ScriptedUpstream(default=answering), **settings) as gateway:
        yield gateway


async def get(gateway: World, path: str, key: str = TOKEN, **headers: str) -> Any:
    return await gateway.client.get(f"{gateway.base_url}/{path}", headers={"authorization": f"Bearer {key}", **headers})


async def make_key(gateway: World, *scopes: Scope, tenant: str) -> str:
    issuing = ApiKeys(
        gateway.store,
        usage=gateway.store,
        policies=[],
        now=lambda: datetime.now(UTC),
        random_bytes=secrets.token_bytes,
    )
    return (await issuing.create_key(NewApiKey(name="test", tenant=tenant, scopes=scopes)))[0]


async def test_an_operator_lists_and_searches_the_conversations_of_all_tenants() -> None:
    async with two_tenants() as gateway:
        ours = await gateway.say([user("The ships of one")], key="sk-one")
        theirs = await gateway.say([user("The ships of two")], key="sk-two")
        ids = {ours["conversation_id"], theirs["conversation_id"]}
        answer = (await get(gateway, "conversations", **EVERYWHERE)).json()
        page = answer["data"]
        assert "hint" not in answer
        assert {row["id"] for row in page} == ids
        tenants = {row["id"]: row["tenant"] for row in page}
        assert len(set(tenants.values())) == 2
        found = (await get(gateway, "search?q=ships", **EVERYWHERE)).json()["data"]
        assert {(row["conversation_id"], row["tenant"]) for row in found} == set(tenants.items())
        first = (await get(gateway, "conversations?limit=1&order=asc", **EVERYWHERE)).json()
        rest = (await get(gateway, f"conversations?order=asc&after={first['last_id']}", **EVERYWHERE)).json()
        assert [row["id"] for row in (*first["data"], *rest["data"])] == list(dict.fromkeys(tenants))[::-1]
        one = {"x-concertina-tenant": tenants[ours["conversation_id"]]}
        assert [row["id"] for row in (await get(gateway, "conversations", **one)).json()["data"]] == [
            ours["conversation_id"]
        ]
        own = (await get(gateway, "conversations")).json()
        assert (own["data"], own["hint"]) == ([], "Send `X-Concertina-Tenant: *` to look in all tenants.")
        assert "hint" not in (await get(gateway, "conversations", key="sk-three")).json()
        assert "tenant" not in (await get(gateway, "conversations", key="sk-one")).json()["data"][0]


@pytest.mark.parametrize("operation", OF_CONVERSATIONS)
async def test_an_operator_does_with_a_conversation_what_its_owner_does(operation: str) -> None:
    async with kept(auth={"operator_token": TOKEN}) as found:
        answer = await found.ask(TOKEN, operation, found.ids, headers=EVERYWHERE)
        assert answer.status_code == WITH_IDS[operation].status, answer.text
        without = await found.ask(TOKEN, operation, found.ids)
        assert without.status_code == 404
        hint = "Send `X-Concertina-Tenant: *` to look in all tenants."
        assert without.json()["error"]["message"].endswith(hint)
        for key, headers in ((STRANGER, {}), (TOKEN, EVERYWHERE)):
            unknown = {**found.ids, "conversation_id": f"conv_{'0' * 48}"}
            others = await found.ask(key, operation, unknown, headers=headers)
            assert others.status_code == 404
            assert hint not in others.text


async def test_nobody_else_may_name_a_tenant() -> None:
    async with kept(auth={"operator_token": TOKEN}) as found:
        before = await found.everything()
        tenant = (await find_owner(found))["tenant"]
        for key in (STRANGER, OWNER, TOKEN[:-1], f"{TOKEN}f"):
            for header in ("*", tenant):
                for operation in WITH_IDS:
                    answer = await found.ask(key, operation, found.ids, headers={"x-concertina-tenant": header})
                    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_permissions")
                chat = await found.gateway.post([user("Hi")], key=key, headers={"x-concertina-tenant": header})
                assert chat.status_code == 403
        assert await found.everything() == before


async def find_owner(found: Kept) -> Any:
    path = f"conversations/{found.ids['conversation_id']}"
    return (await get(found.gateway, path, **EVERYWHERE)).json()


async def test_a_key_with_scope_admin_is_an_operator_if_it_names_a_tenant() -> None:
    async with two_tenants(mode="keys", cache_seconds=0) as gateway:
        admin = await make_key(gateway, "admin", tenant="ops")
        reader = await make_key(gateway, "chat", "read", "manage", tenant="shop")
        kept = (await gateway.say([user("Hi")], key=reader))["conversation_id"]
        page = (await get(gateway, "conversations", key=admin, **EVERYWHERE)).json()["data"]
        assert [(row["id"], row["tenant"]) for row in page] == [(kept, "shop")]
        assert (await get(gateway, f"conversations/{kept}/items", key=admin, **EVERYWHERE)).status_code == 200
        assert (await get(gateway, "conversations", key=admin)).status_code == 403
        assert (await get(gateway, "conversations", key=reader, **EVERYWHERE)).status_code == 403
        assert (await get(gateway, "conversations", **EVERYWHERE)).json()["data"][0]["id"] == kept
        assert (await get(gateway, "admin/keys")).status_code == 200


@pytest.mark.parametrize("headers", [{}, EVERYWHERE, {"x-concertina-tenant": "shop"}])
async def test_keys_that_an_operator_makes_share_nothing_unless_a_tenant_is_named(headers: dict[str, str]) -> None:
    async with two_tenants(mode="keys", cache_seconds=0) as gateway:
        admin = await make_key(gateway, "admin", tenant="ops")
        made = [
            (
                await gateway.client.post(
                    f"{gateway.base_url}/admin/keys",
                    json={"name": "team"},
                    headers={"authorization": f"Bearer {maker}", **headers},
                )
            ).json()
            for maker in (TOKEN, TOKEN, admin, admin)
        ]
        tenants = {key["tenant"] for key in made}
        assert len(tenants) == 4
        assert all(re.fullmatch("ten_[0-9a-f]{24}", tenant) for tenant in tenants)
        kept = (await gateway.say([user("Hi")], key=made[0]["key"]))["conversation_id"]
        assert [(await get(gateway, f"conversations/{kept}", key=key["key"])).status_code for key in made] == [
            200,
            404,
            404,
            404,
        ]


@pytest.mark.parametrize("named", ["", "a b", "x" * 201, f"shop{CONTEXT_TENANT_SUFFIX}"])
async def test_a_header_that_names_no_tenant_is_refused(named: str) -> None:
    async with two_tenants() as gateway:
        answer = await get(gateway, "conversations", **{"x-concertina-tenant": named})
        assert answer.status_code == 400, answer.text


async def test_what_is_kept_only_for_continuing_is_hidden_from_operators() -> None:
    async with two_tenants() as gateway:
        body = {"model": "m", "input": "The ships", "store": False}
        headers = {"authorization": "Bearer sk-one"}
        answer = await gateway.client.post(f"{gateway.base_url}/responses", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        kept = [one for one in gateway.conversations() if one.tenant.endswith(CONTEXT_TENANT_SUFFIX)]
        assert kept
        assert (await get(gateway, "conversations", **EVERYWHERE)).json()["data"] == []
        assert (await get(gateway, "search?q=ships", **EVERYWHERE)).json()["data"] == []
        assert (await get(gateway, f"conversations/{kept[0].id}", **EVERYWHERE)).status_code == 404
        assert (await get(gateway, f"conversations?after={kept[0].id}", **EVERYWHERE)).status_code == 404


async def test_an_operator_goes_on_with_a_conversation_where_it_is() -> None:
    async with two_tenants() as gateway:
        kept = (await gateway.say([user("Hi")], key="sk-one"))["conversation_id"]
        went_on = await gateway.say([user("Go on")], key=TOKEN, headers=EVERYWHERE, conversation=kept)
        assert went_on["conversation_id"] == kept
        own = await gateway.say([user("A chat of my own")], key=TOKEN, headers=EVERYWHERE)
        page = (await get(gateway, "conversations", **EVERYWHERE)).json()["data"]
        assert {row["id"]: row["messages"] for row in page} == {kept: 4, own["conversation_id"]: 2}
        assert {row["tenant"] for row in page} >= {"operator"}


async def test_no_provider_sees_the_operators_token() -> None:
    async with two_tenants() as gateway:
        for key_header in ({"authorization": f"Bearer {TOKEN}"}, {"x-api-key": TOKEN}, {"api-key": TOKEN}):
            for path, body in (
                ("chat/completions", {"model": "m", "messages": [user("Hi")]}),
                ("embeddings", {"model": "m", "input": "Hi"}),
            ):
                await gateway.client.post(f"{gateway.base_url}/{path}", json=body, headers={**key_header, **EVERYWHERE})
        assert gateway.upstream.headers
        for sent in gateway.upstream.headers:
            assert TOKEN not in str(sent)
            assert "x-concertina-tenant" not in {name.lower() for name in sent}


async def test_two_credentials_are_refused_also_if_one_is_the_operators() -> None:
    async with two_tenants() as gateway:
        answer = await get(gateway, "conversations", **{"x-api-key": "sk-one"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "conflicting_credentials")


async def test_the_session_says_who_is_an_operator() -> None:
    async with two_tenants() as gateway:
        for key, is_operator in ((TOKEN, True), ("sk-one", False)):
            headers = {"authorization": f"Bearer {key}"}
            session = await gateway.client.get(
                gateway.base_url.removesuffix("/v1") + "/console/session", headers=headers
            )
            assert session.json()["operator"] is is_operator
            assert ("admin" in session.json()["scopes"]) is is_operator


async def test_the_root_leads_to_the_console() -> None:
    async with two_tenants() as gateway:
        root = await gateway.client.get(gateway.base_url.removesuffix("v1"))
        assert (root.status_code, root.headers["location"]) == (307, "console/")


def load(token: str) -> Settings:
    return load_settings(environ={}, arguments={("auth", "operator_token"): token})


@pytest.mark.parametrize(("value", "token"), [(TOKEN, TOKEN), ("none", None), ("", None)])
def test_a_token_is_configured_or_switched_off(value: str, token: str | None) -> None:
    assert load(value).operator_token == token


def test_a_short_token_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match=r"auth\.operator_token.*32 characters"):
        load("x" * 31)
