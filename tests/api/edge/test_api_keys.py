"""Keys of the gateway's own, over HTTP and on the command line: what they let in, and what stays outside."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.__main__ import main
from app.assembly import providers_and_routes as models
from app.conversation.api_keys import ApiKey
from app.conversations.api_keys import ApiKeys, NewApiKey
from app.errors import StoreUnavailable
from tests.live import Reply, ScriptedUpstream, completion, gateway, serving
from tests.support.gateway import World, answered, answering, user, world
from tests.support.memory_store import MemoryStore

KEYS = {"mode": "keys", "cache_seconds": 0}
SHAPE = {
    "id", "object", "name", "hint", "tenant", "scopes", "policy", "models", "created_at", "expires_at", "revoked_at",
    "retention_days", "budget_usd", "spent_usd", "pass_through", "requests_per_minute", "tokens_per_minute",
}  # fmt: skip


def anything(body: dict[str, Any]) -> Reply:
    """An upstream that answers chats and whatever else there is."""
    return answering(body) if "messages" in body else completion()


class Locked:
    """A gateway in mode `keys`."""

    def __init__(self, gateway: World) -> None:
        self.gateway = gateway
        self.upstream = gateway.upstream
        self.issuing = ApiKeys(
            gateway.store,
            usage=gateway.store,
            policies=["fade"],
            now=lambda: datetime.now(UTC),
            random_bytes=secrets.token_bytes,
        )

    async def key(self, **wish: Any) -> tuple[str, ApiKey]:
        return await self.issuing.create_key(NewApiKey(**{"name": "test", **wish}))

    async def ask(self, method: str, path: str, secret: str | None = None, **options: Any) -> httpx.Response:
        headers = {**({"authorization": f"Bearer {secret}"} if secret else {}), **options.pop("headers", {})}
        return await self.gateway.client.request(method, f"{self.gateway.base_url}{path}", headers=headers, **options)


@asynccontextmanager
async def locked(**options: Any) -> AsyncIterator[Locked]:
    async with world(ScriptedUpstream(default=anything), **{"auth": KEYS, **options}) as gateway:
        yield Locked(gateway)


CHAT = {"model": "m", "messages": [user("Hi")]}
NEEDS_CHAT: list[tuple[str, str, Any]] = [
    ("POST", "/chat/completions", CHAT),
    ("POST", "/chat/completions", {**CHAT, "stream": True}),
    ("POST", "/context/count", CHAT),
    ("POST", "/embeddings", {"model": "m", "input": "Hi"}),
    ("GET", "/models", None),
    ("GET", "/models/upstream-model", None),
]


@pytest.mark.parametrize(("method", "path", "body"), NEEDS_CHAT)
async def test_nothing_is_answered_without_a_key(
    method: str,
    path: str,
    body: Any,
) -> None:
    async with locked() as gateway:
        reader, _ = await gateway.key(scopes=("read", "manage", "admin"))
        for secret, status, code in (
            (None, 401, "invalid_api_key"),
            ("ck_made-up", 401, "invalid_api_key"),
            ("sk-of-a-provider", 401, "invalid_api_key"),
            (reader, 403, "insufficient_permissions"),
        ):
            refused = await gateway.ask(method, path, secret, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
            assert refused.json()["error"].keys() == {"message", "type", "param", "code"}
            assert refused.headers["x-should-retry"] == "false"
            assert secret is None or secret not in refused.text
        assert gateway.upstream.requests == []
        assert gateway.gateway.rows() == 0
        chatter, _ = await gateway.key(scopes=("chat",))
        assert (await gateway.ask(method, path, chatter, json=body)).status_code == 200


@pytest.mark.parametrize("path", ["/chat/completions", "/context/count", "/embeddings"])
async def test_no_body_is_read_of_somebody_who_is_not_let_in(path: str) -> None:
    async with locked() as gateway, asyncio.timeout(10):
        address = httpx.URL(gateway.gateway.base_url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(f"POST /v1{path} HTTP/1.1\r\nhost: here\r\ncontent-length: 1000000\r\n\r\n{{".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()


async def test_what_anybody_may_see_needs_no_key() -> None:
    async with locked() as gateway:
        root = gateway.gateway.base_url.removesuffix("/v1")
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert (await gateway.gateway.client.get(root + path)).status_code == 200


async def test_a_key_of_ours_never_reaches_a_provider() -> None:
    async with locked() as gateway:
        secret, _ = await gateway.key()
        for name in ("authorization", "api-key", "x-api-key"):
            shown = {name: f"Bearer {secret}" if name == "authorization" else secret}
            for method, path, body in NEEDS_CHAT:
                assert (await gateway.ask(method, path, headers=shown, json=body)).status_code == 200
    assert gateway.upstream.headers
    told = json.dumps(gateway.upstream.headers)
    assert "ck_" not in told
    assert secret not in b"".join(gateway.upstream.bodies).decode() + told


async def test_a_provider_without_a_key_is_called_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = models._build_provider
    monkeypatch.setattr(
        models, "_build_provider", lambda name, section: made(name, section.model_copy(update={"api_key": None}))
    )
    async with locked() as gateway:
        secret, _ = await gateway.key()
        for method, path, body in NEEDS_CHAT:
            assert (await gateway.ask(method, path, secret, json=body)).status_code == 200
    assert gateway.upstream.headers
    assert [headers for headers in gateway.upstream.headers if "authorization" in headers] == []


async def test_keys_of_one_tenant_share_conversations_and_those_of_two_do_not() -> None:
    async with locked() as gateway:
        first, key = await gateway.key()
        second, _ = await gateway.key(tenant=key.tenant)
        stranger, _ = await gateway.key()
        ours = (await gateway.gateway.say([user("Hi")], key=first))["conversation_id"]
        history = [user("Hi"), answered("Hi"), user("More")]
        assert (await gateway.gateway.say(history, key=second))["conversation_id"] == ours
        assert (await gateway.gateway.say(history, key=stranger))["conversation_id"] != ours
        refused = await gateway.gateway.post([user("More")], key=stranger, conversation=ours)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "conversation_not_found")


async def test_other_models_than_those_allowed_are_refused_everywhere() -> None:
    models = {name: {"provider": "upstream", "context_window": 8192} for name in ("m", "m-large", "other")}
    async with locked(models={**models, "*": {"provider": "upstream"}}) as gateway:
        secret, key = await gateway.key(models=("m", "m-*"))
        for path in ("/chat/completions", "/context/count", "/embeddings"):
            body = CHAT if path != "/embeddings" else {"input": "Hi"}
            for model, status in (("m", 200), ("m-large", 200), ("other", 403), ("m2", 403), ("M", 403)):
                answer = await gateway.ask("POST", path, secret, json={**body, "model": model})
                assert answer.status_code == status, answer.text
                if status == 403:
                    error = answer.json()["error"]
                    assert (error["code"], error["param"]) == ("insufficient_permissions", "model")
                    assert model in error["message"]
                    assert key.id in error["message"]
        for options in ({}, {"json": {"input": "Hi"}}, {"content": b'{"model": "x"}'}, {"json": {"model": ["m"]}}):
            assert (await gateway.ask("POST", "/embeddings", secret, **options)).status_code == 403
        assert (await gateway.ask("GET", "/files", secret)).status_code == 403
        asked = {body["model"] for body in gateway.upstream.requests}
        assert asked == {"m", "m-large"}
        listed = (await gateway.ask("GET", "/models", secret)).json()["data"]
        assert {model["id"] for model in listed} == {"m", "m-large"}
        assert (await gateway.ask("GET", "/models/m", secret)).status_code == 200
        assert (await gateway.ask("GET", "/models/other", secret)).status_code == 404


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings"])
async def test_a_model_that_is_named_twice_cannot_slip_through(path: str) -> None:
    async with locked() as gateway:
        secret, _ = await gateway.key(models=("m",))
        twice = b'{"model": "other", "mod\\u0065l": "m", "input": "Hi", "messages": [{"role":"user","content":"Hi"}]}'
        answer = await gateway.ask("POST", path, secret, content=twice, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        assert b"other" not in gateway.upstream.bodies[-1]
        assert b'"messages":[{"role":"user","content":"Hi"}]' in gateway.upstream.bodies[-1]


@pytest.mark.parametrize("path", ["/chat/completions", "/embeddings"])
async def test_no_other_model_is_named_for_a_provider_to_fall_back_to(path: str) -> None:
    async with locked() as gateway:
        secret, _ = await gateway.key(models=("m", "m-*"))
        body = {**CHAT, "model": "m", "input": "Hi"}
        refused: list[dict[str, Any]] = [
            {"models": ["m", "other"]},
            {"fallbacks": [{"model": "other"}]},
            {"models": "other"},
        ]
        for extra in refused:
            answer = await gateway.ask("POST", path, secret, json={**body, **extra})
            assert (answer.status_code, answer.json()["error"]["param"]) == (403, next(iter(extra)))
        allowed: list[dict[str, Any]] = [{"models": ["m-large"]}, {"models": None}, {"fallbacks": []}]
        for extra in allowed:
            assert (await gateway.ask("POST", path, secret, json={**body, **extra})).status_code == 200
        free, _ = await gateway.key()
        assert (await gateway.ask("POST", path, free, json={**body, "models": ["other"]})).status_code == 200


async def test_a_keys_policy_holds_where_the_request_names_none() -> None:
    options = {"models": {"*": {"provider": "upstream", "policy": "prune"}}}
    async with locked(**options) as gateway:
        plain, _ = await gateway.key()
        fading, _ = await gateway.key(policy="fade")
        say = gateway.gateway.say
        assert (await say([user("1")], key=plain))["context"]["policy"] == "prune"
        assert (await say([user("1")], key=fading))["context"]["policy"] == "fade"
        named = await say([user("2")], key=fading, headers={"x-context-policy": "window"})
        assert named["context"]["policy"] == "window"


class Away(MemoryStore):
    """A store that can be taken away."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: datetime.now(UTC))
        self.is_away = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        is_call = callable(found) and not name.startswith("_") and name not in ("open", "close")
        return refuse if is_call and super().__getattribute__("is_away") else found


async def refuse(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("The database is away.")


async def test_while_the_database_is_away_known_keys_are_served() -> None:
    store = Away()
    async with locked(store=store) as gateway:
        known, _ = await gateway.key()
        unknown, _ = await gateway.key()
        await gateway.gateway.say([user("Hi")], key=known)
        store.is_away = True
        body = await gateway.gateway.say([user("Hi"), answered("Hi"), user("More")], key=known)
        assert body["context_status"] == "degraded"
        refused = await gateway.gateway.post([user("Hi")], key=unknown)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert "retry-after" in refused.headers
        store.is_away = False
        assert (await gateway.gateway.say([user("Hi")], key=unknown))["context_status"] == "full"


async def test_an_admin_makes_lists_and_revokes_keys() -> None:
    async with locked() as gateway:
        admin, own = await gateway.key(scopes=("admin",), tenant="ops")
        soon = int((datetime.now(UTC) + timedelta(days=1)).timestamp())
        wish = {
            "name": "shop",
            "tenant": "shop",
            "scopes": ["read", "chat"],
            "policy": "fade",
            "models": ["gpt-*"],
            "expires_at": soon,
            "retention_days": 30,
        }
        made = (await gateway.ask("POST", "/admin/keys", admin, json=wish)).json()
        secret = made.pop("key")
        assert re.fullmatch(r"ck_[0-9a-f]{64}", secret)
        assert made.keys() == SHAPE
        assert made == {**made, **wish, "scopes": ["chat", "read"], "object": "api_key", "hint": f"…{secret[-4:]}"}
        plain = (await gateway.ask("POST", "/admin/keys", admin, json={"name": "mine"})).json()
        assert plain["scopes"] == ["chat", "read", "manage"]
        assert (await gateway.gateway.post([user("Hi")], key=plain["key"])).status_code == 200

        listed = await gateway.ask("GET", "/admin/keys", admin)
        assert [key["id"] for key in listed.json()["data"]] == [own.id, made["id"], plain["id"]]
        assert listed.json()["data"][1] == made
        for key in (admin, secret, plain["key"]):
            assert key not in listed.text
        page = (await gateway.ask("GET", f"/admin/keys?limit=1&after={own.id}", admin)).json()
        assert ([key["id"] for key in page["data"]], page["has_more"]) == ([made["id"]], True)
        only = (await gateway.ask("GET", "/admin/keys?tenant=shop", admin)).json()
        assert ([key["id"] for key in only["data"]], only["has_more"]) == ([made["id"]], False)

        revoked = (await gateway.ask("DELETE", f"/admin/keys/{plain['id']}", admin)).json()
        assert revoked == {**{name: plain[name] for name in SHAPE}, "revoked_at": revoked["revoked_at"]}
        assert revoked["revoked_at"] >= plain["created_at"]
        again = (await gateway.ask("DELETE", f"/admin/keys/{plain['id']}", admin)).json()
        assert again == revoked
        assert (await gateway.gateway.post([user("Hi")], key=plain["key"])).status_code == 401
        for method, path in (("DELETE", "/admin/keys/key_none"), ("GET", "/admin/keys?after=key_none")):
            assert (await gateway.ask(method, path, admin)).status_code == 404


async def test_a_revocation_is_known_here_at_once() -> None:
    async with locked(auth={"mode": "keys", "cache_seconds": 3600}) as gateway:
        admin, _ = await gateway.key(scopes=("admin",))
        secret, key = await gateway.key()
        await gateway.gateway.say([user("Hi")], key=secret)
        await gateway.ask("DELETE", f"/admin/keys/{key.id}", admin)
        assert (await gateway.gateway.post([user("Hi")], key=secret)).status_code == 401


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({}, "name"),
        ({"name": " "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "x", "tenant": "a/b"}, "tenant"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["root"]}, "scopes.0"),
        ({"name": "x", "policy": "none"}, "policy"),
        ({"name": "x", "models": [""]}, "models.0"),
        ({"name": "x", "expires_at": 1_700_000_000}, "expires_at"),
        ({"name": "x", "expires_at": -1}, "expires_at"),
        ({"name": "x", "expires_at": 10**30}, "expires_at"),
        ({"name": "x", "retention_days": 0}, "retention_days"),
        ({"name": "x", "key": "ck_mine"}, "key"),
    ],
)
async def test_a_key_that_could_not_be_used_is_not_made(
    wish: dict[str, Any],
    param: str,
) -> None:
    async with locked() as gateway:
        admin, _ = await gateway.key(scopes=("admin",))
        refused = await gateway.ask("POST", "/admin/keys", admin, json=wish)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert len(await gateway.gateway.store.list_api_keys()) == 1


ADMIN: list[tuple[str, str, Any]] = [
    ("GET", "/admin/keys", None),
    ("GET", "/admin/costs", None),
    ("GET", "/admin/learned-limits", None),
    ("DELETE", "/admin/learned-limits/p/m", None),
    ("POST", "/admin/keys", {"name": "x"}),
    ("POST", "/admin/keys", {"wrong": 1}),
    ("POST", "/admin/keys/key_x", {"budget_usd": 5}),
    ("DELETE", "/admin/keys/key_x", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ADMIN)
async def test_keys_are_the_business_of_admins(
    method: str,
    path: str,
    body: Any,
) -> None:
    async with locked() as gateway:
        secret, _ = await gateway.key(scopes=("chat", "read", "manage"))
        refused = await gateway.ask(method, path, secret, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert "'admin'" in refused.json()["error"]["message"]
        assert (await gateway.ask(method, path, json=body)).status_code == 401


@pytest.mark.parametrize(("method", "path", "body"), ADMIN)
async def test_in_mode_open_there_are_no_keys_to_handle(
    method: str,
    path: str,
    body: Any,
) -> None:
    async with locked(auth={"mode": "open"}) as gateway:
        refused = await gateway.ask(method, path, "sk-anything", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert "auth.mode" in refused.json()["error"]["message"]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite+aiosqlite:///{tmp_path}/kept.db"
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", url)
    return url


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["keys", *arguments]) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def test_the_command_line_makes_lists_and_revokes_keys(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no database at" in told(capsys, "list", status=1)
    created = told(capsys, "create", "--name", "shop", "--expires-in", "30d")
    secret = created.splitlines()[0]
    assert re.fullmatch(r"ck_[0-9a-f]{64}", secret)
    tenant = re.findall(r"--tenant (ten_[0-9a-f]{24})", created)[0]
    assert "auth.mode" in created
    wished = f"--name ops --tenant {tenant} --scopes admin,chat --models gpt-*,o3 --policy fade --json"
    limits = "--expires-at 2999-01-31 --retention-days 30 --budget-usd 20"
    rates = "--requests-per-minute 5 --tokens-per-minute 1000 --pass-through files,batches"
    second = json.loads(told(capsys, "create", *wished.split(), *limits.split(), *rates.split()))
    assert second.keys() == SHAPE | {"key"}
    assert (second["budget_usd"], second["spent_usd"]) == (20.0, 0.0)
    assert (second["requests_per_minute"], second["tokens_per_minute"]) == (5, 1000)
    assert second["pass_through"] == ["files", "batches"]
    assert (second["scopes"], second["models"]) == (["chat", "admin"], ["gpt-*", "o3"])
    assert datetime.fromtimestamp(second["expires_at"], UTC) == datetime(2999, 1, 31, tzinfo=UTC)
    listed = told(capsys, "list")
    assert secret not in listed
    assert "shop" in listed
    assert "$0.00 of $20.00" in re.sub(r"\s+", " ", listed)
    first = json.loads(told(capsys, "list", "--tenant", tenant, "--json"))[0]
    assert timedelta(days=29) < datetime.fromtimestamp(first["expires_at"], UTC) - datetime.now(UTC)
    assert "revoked since" in told(capsys, "revoke", first["id"])
    assert [bool(key["revoked_at"]) for key in json.loads(told(capsys, "list", "--json"))] == [True, False]


def test_the_command_line_changes_a_budget(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    key_id = json.loads(told(capsys, "create", "--name", "shop", "--json"))["id"]
    assert "may spend $20.00 a month, and has spent $0.00" in told(capsys, "update", key_id, "--budget-usd", "20")
    assert json.loads(told(capsys, "list", "--json"))[0]["budget_usd"] == 20
    assert "has no budget" in told(capsys, "update", key_id, "--budget-usd", "none")
    assert json.loads(told(capsys, "update", key_id, "--budget-usd", "2.5", "--json"))["budget_usd"] == 2.5


@pytest.mark.parametrize("mode", ["keys", "open"])
def test_models_without_a_price_are_named_where_a_budget_would_not_hold(
    mode: str, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "concertina.yaml"
    file.write_text(f"""
auth: {{mode: {mode}}}
providers: {{local: {{base_url: "http://127.0.0.1:9/v1"}}}}
models:
  mine: {{provider: local}}
  paid: {{provider: local, price: {{input: 1, output: 2}}}}
  gpt-4o: {{provider: local}}
  alias: {{provider: local, model: gpt-4o}}
  "*": {{provider: local}}
""")
    warning = "No price is known of mine: their calls do not count for the budgets of keys. Set models.<name>.price."
    config = ("--config", str(file))
    assert warning in told(capsys, "create", "--name", "x", "--budget-usd", "5", *config)
    assert warning not in told(capsys, "create", "--name", "x", *config)
    assert main(["check-config", str(file)]) == 0
    assert (warning in capsys.readouterr().out) == (mode == "keys")
    assert main(["doctor", *config]) == 1  # nothing listens at the provider's address
    assert (warning in capsys.readouterr().out) == (mode == "keys")


def test_a_key_is_named_by_its_name_or_a_part_of_its_id(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("team red", "team red", "team blue")
    first, second, blue = (json.loads(told(capsys, "create", "--name", name, "--json")) for name in names)
    refused = told(capsys, "revoke", "team red", status=1)
    assert "2 keys match 'team red'. Type the id of one of them:" in refused
    for key in (first, second):
        assert f"{key['id']}: 'team red', ck_{key['hint']}, tenant {key['tenant']}" in refused
    assert blue["id"] not in refused
    assert "There is no API key 'key_'" in told(capsys, "revoke", "key_", status=1)
    assert first["id"] in told(capsys, "revoke", first["id"][:16])
    # One of them is revoked, so that the name is unique.
    assert second["id"] in told(capsys, "update", "team red", "--budget-usd", "5")
    assert second["id"] in told(capsys, "revoke", "team red")
    assert blue["id"] in told(capsys, "revoke", f"ck_{blue['hint']}")
    assert blue["id"] in told(capsys, "revoke", blue["hint"][-4:])
    assert "There is no API key ''" in told(capsys, "revoke", "", status=1)
    assert all(key["revoked_at"] for key in json.loads(told(capsys, "list", "--json")))


def test_a_command_takes_the_hint_of_every_key(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint that begins with `-` would be taken for an option."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"\xfe" * size)  # in base64 each fourth digit is `-`
    made = json.loads(told(capsys, "create", "--name", "odd", "--json"))
    assert made["id"] in told(capsys, "revoke", made["hint"][-4:])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["create", "--name", "x", "--scopes", "root"], "`scopes` must be some of chat, read, manage, admin"),
        (["create", "--name", "x", "--policy", "none"], "There is no policy 'none'"),
        (["create", "--name", "x", "--tenant", "a b"], "`tenant` must be"),
        (["create", "--name", "x", "--expires-in", "soon"], "--expires-in: expected a number"),
        (["create", "--name", "x", "--expires-at", "soon"], "--expires-at: expected such as"),
        (["create", "--name", "x", "--expires-at", "2020-01-01"], "must lie in the future"),
        (["create", "--name", "x", "--requests-per-minute", "0"], "`requests_per_minute` must be 1 to 1,000,000,000."),
        (["create", "--name", "x", "--budget-usd", "0"], "`budget_usd` must be dollars for a month: more than 0"),
        (["create", "--name", "x", "--budget-usd", "nan"], "`budget_usd` must be dollars for a month: more than 0"),
        (["update", "key_none", "--budget-usd", "5"], "There is no API key 'key_none'"),
        (["update", "key_none", "--budget-usd", "0"], "`budget_usd` must be dollars for a month: more than 0"),
        (["update", "key_none", "--budget-usd", "much"], "--budget-usd: expected US dollars, or none, not 'much'"),
        (["revoke", "key_none"], "There is no API key 'key_none'"),
    ],
)
def test_a_command_that_cannot_be_done_says_why(
    arguments: list[str], reason: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "create", "--name", "first")  # makes the database
    assert reason in told(capsys, *arguments, status=1)


def test_keys_are_not_made_in_a_database_that_forgets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", "memory://")
    assert "memory://" in told(capsys, "create", "--name", "x", status=1)


async def test_a_key_of_the_command_line_opens_a_running_gateway(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    created = await asyncio.to_thread(told, capsys, "create", "--name", "shop")
    secret = created.splitlines()[0]
    async with (
        serving(ScriptedUpstream(default=anything), lifespan="off") as upstream,
        gateway(upstream, database=database, auth=KEYS) as base_url,
        httpx.AsyncClient() as client,
    ):
        headers = {"authorization": f"Bearer {secret}"}
        assert (await client.post(f"{base_url}/chat/completions", json=CHAT, headers=headers)).status_code == 200
        key_id = json.loads(await asyncio.to_thread(told, capsys, "list", "--json"))[0]["id"]
        await asyncio.to_thread(told, capsys, "revoke", key_id)
        assert (await client.post(f"{base_url}/chat/completions", json=CHAT, headers=headers)).status_code == 401


async def test_a_form_names_its_model_too() -> None:
    async with locked(models={"*": {"provider": "upstream"}}) as gateway:
        gateway.upstream.replies = [completion() for _ in range(9)]
        secret, _ = await gateway.key(models=("m",))
        audio = {"file": ("a.wav", b"abc", "audio/wav")}
        refused: list[dict[str, Any]] = [
            {"data": {"model": "other"}, "files": audio},
            {"data": {"model": "m", "models[]": "other"}, "files": audio},
            {"data": {"model": ["m", "other"]}, "files": audio},
            {"data": {"purpose": "m"}, "files": audio},
            {"params": {"model": "m"}},
        ]
        answers = [await gateway.ask("POST", "/audio/transcriptions", secret, **options) for options in refused]
        assert [answer.status_code for answer in answers] == [403, 403, 400, 403, 403]
        assert gateway.upstream.bodies == []
        allowed: list[dict[str, Any]] = [
            {"data": {"model": "m", "models[]": "m"}, "files": audio},
            {"data": {"model": "m"}},
            {"content": b'{"model": "x", "model": "m"}', "headers": {"content-type": "text/plain"}},
        ]
        for options in allowed:
            answer = await gateway.ask("POST", "/audio/transcriptions", secret, **options)
            assert answer.status_code == 200, answer.text
    assert gateway.upstream.bodies[1:] == [b"model=m", b'{"model":"m"}']
    assert gateway.upstream.headers[-1]["content-type"] == "application/json"
