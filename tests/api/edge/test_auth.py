"""Who is behind a request, by what it shows: without a network, on a clock that the test moves."""

from __future__ import annotations

import hashlib
import logging
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.edge.auth import Authenticator, AuthRules, derive_end_user_tenant, derive_tenant, may_use_model
from app.conversation.api_keys import SCOPES, ApiKey, extract_application_tenant
from app.conversation.conversation_types import Conversation
from app.conversation.identity import (
    compute_family_root,
    compute_first_link,
    compute_start_position,
    make_conversation_id,
)
from app.conversations.api_keys import ApiKeys, NewApiKey
from app.errors import InsufficientPermissions, InvalidApiKey, InvalidRequest, StoreUnavailable
from app.pipeline.turn.chat_request import Caller, ChatRequest
from app.store.contract.conversations import LogAppend
from tests.support.memory_store import MemoryStore

PEPPER = "a pepper of twenty-odd"
MANY = 10_000


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)


class Watched(MemoryStore):
    """Counts how often keys are looked up, and can be away."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock.now)
        self.looks = 0
        self.is_away = False

    async def find_api_key(self, digest: str) -> ApiKey | None:
        self.looks += 1
        if self.is_away:
            raise StoreUnavailable("The database is away.")
        return await super().find_api_key(digest)


class Door:
    """An `Auth` with its store and clock."""

    def __init__(self, mode: Any = "keys", *, max_cached: int = MANY, **rules: Any) -> None:
        self.clock = Clock()
        self.store = Watched(self.clock)
        self.auth = self.another(mode, max_cached=max_cached, **rules)
        self.issuing = ApiKeys(
            self.store, usage=self.store, policies=["fade"], now=self.clock.now, random_bytes=secrets.token_bytes
        )

    def another(self, mode: Any = "open", *, max_cached: int = MANY, **rules: Any) -> Authenticator:
        return Authenticator(
            self.store,
            AuthRules(mode=mode, **rules),
            conversations=self.store,
            now=self.clock.now,
            seconds=lambda: self.clock.seconds,
            random_bytes=secrets.token_bytes,
            max_cached_keys=max_cached,
            max_cached_callers=max_cached,
        )

    async def key(self, **wish: Any) -> tuple[str, ApiKey]:
        return await self.issuing.create_key(NewApiKey(**{"name": "test", **wish}))

    async def enter(self, secret: str, needs: Any = "chat", **headers: str) -> Caller:
        return await self.auth.authenticate({"authorization": f"Bearer {secret}", **headers}, needs)


def chat(caller: Caller, **fields: bytes) -> ChatRequest:
    return ChatRequest(caller=caller, request_id="r", body=b"{}", raw_fields=fields, raw_messages=[], model="m")


async def test_a_key_is_its_tenant_and_never_travels_on() -> None:
    door = Door()
    secret, key = await door.key(tenant="acme", models=("m*",), policy="fade")
    for headers in (
        {"authorization": f"Bearer {secret}"},
        {"authorization": f"bearer  {secret} "},
        {"api-key": secret},
        {"x-api-key": secret},
        {"authorization": f"Bearer {secret}", "x-api-key": secret},
        {"authorization": "Bearer ", "x-api-key": secret},
    ):
        caller = await door.auth.authenticate(headers, "chat")
        assert caller == Caller(
            tenant="acme",
            scopes=("chat", "read", "manage"),
            default_policy="fade",
            allowed_models=("m*",),
            api_key_id=key.id,
            api_key_name=key.name,
        )
        assert caller.authorization is None


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Basic dTpw"}, {"authorization": "Bearer "}, {"api-key": " "}, {"x-api-key": ""}]
)
async def test_without_a_key_nobody_is_let_in(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidApiKey, match="did not provide"):
        await Door().auth.authenticate(headers, "chat")


async def test_a_key_that_is_unknown_revoked_or_expired_is_refused_without_being_told() -> None:
    door = Door(cache_seconds=0)
    expiring, _ = await door.key(expires_at=door.clock.now() + timedelta(days=30))
    revoked, key = await door.key()
    await door.issuing.revoke_key(key.id)
    await door.enter(expiring)
    door.clock.seconds += 30 * 86_400
    for secret, told in ((expiring, "expired"), (revoked, "revoked"), ("ck_wrong", "Incorrect API key")):
        with pytest.raises(InvalidApiKey, match=told) as refused:
            await door.enter(secret)
        assert secret not in refused.value.message


@pytest.mark.parametrize("needs", SCOPES)
async def test_what_a_key_lacks_is_named(needs: Any) -> None:
    door = Door()
    others = tuple(scope for scope in SCOPES if scope != needs)
    having, _ = await door.key(scopes=(needs,))
    lacking, _ = await door.key(scopes=others)
    await door.enter(having, needs)
    with pytest.raises(InsufficientPermissions, match=f"scope '{needs}'") as refused:
        await door.enter(lacking, needs)
    assert (refused.value.status, refused.value.code) == (403, "insufficient_permissions")


async def test_a_key_is_looked_up_once_and_trusted_for_a_while() -> None:
    door = Door(cache_seconds=5)
    secret, key = await door.key()
    for _ in range(10):
        await door.enter(secret)
    assert door.store.looks == 1
    await door.issuing.revoke_key(key.id)
    door.clock.seconds += 4.9
    await door.enter(secret)
    door.clock.seconds += 0.2
    with pytest.raises(InvalidApiKey):
        await door.enter(secret)


async def test_this_process_notices_at_once_what_it_changed_itself() -> None:
    door = Door(cache_seconds=3600)
    secret, key = await door.key()
    await door.enter(secret)
    door.auth.evict_key(await door.issuing.revoke_key(key.id))
    with pytest.raises(InvalidApiKey):
        await door.enter(secret)


async def test_a_key_expires_while_it_is_trusted() -> None:
    door = Door(cache_seconds=3600)
    secret, _ = await door.key(expires_at=door.clock.now() + timedelta(seconds=10))
    await door.enter(secret)
    door.clock.seconds = 10
    with pytest.raises(InvalidApiKey):
        await door.enter(secret)


async def test_an_unknown_key_is_believed_to_be_unknown_for_a_second_only() -> None:
    door = Door(cache_seconds=60)
    secret, key = await door.key()
    await door.store.revoke_api_key(key.id)
    other = Door(cache_seconds=60)
    for _ in range(3):
        with pytest.raises(InvalidApiKey):
            await other.enter(secret)
    assert other.store.looks == 1
    await other.store.add_api_key(key)
    other.clock.seconds += 1
    await other.enter(secret)


async def test_guesses_never_push_out_keys_that_exist() -> None:
    door = Door(max_cached=3)
    secret, _ = await door.key()
    await door.enter(secret)
    for guess in range(10):
        with pytest.raises(InvalidApiKey):
            await door.enter(f"ck_{guess}")
    before = door.store.looks
    await door.enter(secret)
    assert door.store.looks == before


async def test_while_the_store_is_away_keys_that_were_seen_lately_still_work() -> None:
    door = Door()
    seen, _ = await door.key()
    never_seen, _ = await door.key()
    await door.enter(seen)
    door.store.is_away = True
    door.clock.seconds += 200
    looks = door.store.looks
    for _ in range(5):
        await door.enter(seen)
    assert door.store.looks == looks + 1, "the store was asked again before a second was over"
    with pytest.raises(StoreUnavailable):
        await door.enter(never_seen)
    door.clock.seconds += 101
    with pytest.raises(StoreUnavailable):
        await door.enter(seen)
    door.store.is_away = False
    await door.enter(seen)


async def test_a_revoked_key_does_not_come_back_while_the_store_is_away() -> None:
    door = Door(cache_seconds=0)
    secret, key = await door.key()
    await door.enter(secret)
    await door.issuing.revoke_key(key.id)
    with pytest.raises(InvalidApiKey):
        await door.enter(secret)
    door.store.is_away = True
    with pytest.raises(InvalidApiKey):
        await door.enter(secret)


async def test_in_mode_open_each_credential_is_a_tenant_and_travels_on() -> None:
    door = Door("open")
    one = await door.enter("sk-one")
    assert one.authorization == "Bearer sk-one"
    assert await door.enter("sk-one") is one, "remembered"
    by_header = await door.auth.authenticate({"api-key": "sk-one"}, "manage")
    assert by_header.authorization == "Bearer sk-one"
    nobody = await door.auth.authenticate({}, "chat")
    assert nobody == Caller(tenant="anonymous")
    assert len({one.tenant, (await door.enter("sk-two")).tenant, nobody.tenant}) == 3
    with pytest.raises(InsufficientPermissions, match=r"auth\.mode"):
        await door.enter("sk-one", "admin")


async def test_in_mode_open_x_api_key_is_a_credential_like_a_bearer_token() -> None:
    door = Door("open")
    one = await door.enter("sk-one")
    for headers in (
        {"x-api-key": "sk-one"},
        {"x-api-key": "sk-one", "authorization": "Bearer "},
        {"x-api-key": " sk-one", "authorization": "Bearer sk-one", "api-key": "sk-one"},
    ):
        assert await door.auth.authenticate(headers, "chat") == one


@pytest.mark.parametrize("mode", ["open", "keys"])
@pytest.mark.parametrize(
    "others",
    [
        {"authorization": "Bearer another"},
        {"authorization": "Basic dTpw"},
        {"api-key": "another"},
        {"authorization": "Bearer {}", "api-key": "another"},
    ],
)
async def test_headers_that_show_different_credentials_are_refused(mode: Any, others: dict[str, str]) -> None:
    door = Door(mode)
    secret, _ = await door.key()
    headers = {"x-api-key": secret, **{name: value.format(secret) for name, value in others.items()}}
    with pytest.raises(InvalidRequest, match="different credentials") as refused:
        await door.auth.authenticate(headers, "chat")
    assert (refused.value.status, refused.value.code) == (400, "conflicting_credentials")
    assert secret not in refused.value.message
    with pytest.raises(InvalidRequest, match="different credentials"):
        await door.auth.list_scopes(headers)


async def test_no_more_callers_are_remembered_than_is_allowed() -> None:
    door = Door("open", max_cached=3)
    callers = [await door.enter(f"sk-{number}") for number in range(10)]
    long = await door.enter("sk-" + "x" * 5000)
    assert await door.enter("sk-" + "x" * 5000) is not long
    again = [await door.enter(f"sk-{number}") for number in reversed(range(10))]  # the newest first: it is still there
    is_remembered = [one is caller for one, caller in zip(reversed(again), callers, strict=True)]
    assert is_remembered == [False] * 7 + [True] * 3


async def test_a_new_database_gets_a_pepper_that_all_processes_share() -> None:
    door = Door("open")
    replica = door.another()
    await door.auth.initialize()
    await replica.initialize()
    tenants = {
        (await auth.authenticate({"authorization": "Bearer sk"}, "chat")).tenant for auth in (door.auth, replica)
    }
    assert len(tenants) == 1
    assert tenants != {derive_tenant("Bearer sk", "")}
    elsewhere = Door("open")
    await elsewhere.auth.initialize()
    assert (await elsewhere.enter("sk")).tenant not in tenants


async def test_a_database_from_before_peppers_keeps_its_tenants() -> None:
    door = Door("open")
    old = hashlib.sha256(b"concertina/tenant\0Bearer sk").hexdigest()[:32]
    await door.store.append(LogAppend(conversation_of(old), after_seq=-1, messages=[], creates_conversation=True))
    await door.auth.initialize()
    assert (await door.enter("sk")).tenant == old
    await door.another().initialize()
    assert await door.store.ensure_server_secret("pepper", proposed="another") == ""


def conversation_of(tenant: str) -> Conversation:
    root = compute_family_root(tenant, compute_first_link(tenant))
    start = compute_start_position(tenant)
    return Conversation(
        id=make_conversation_id(root, secrets.token_bytes),
        root=root,
        tenant=tenant,
        head_seq=-1,
        head_link=start.link,
        head_skeleton=start.skeleton_link,
        head_tokens_total=0,
        answered=False,
        encoding="o200k_base",
    )


async def test_a_configured_pepper_counts_and_is_kept_nowhere() -> None:
    door = Door("open", pepper=PEPPER)
    await door.auth.initialize()
    assert (await door.enter("sk")).tenant == derive_tenant("Bearer sk", PEPPER)
    assert await door.store.ensure_server_secret("pepper", proposed="nothing") == "nothing"


async def test_a_start_without_any_key_says_how_to_make_one(caplog: pytest.LogCaptureFixture) -> None:
    door = Door("keys")
    with caplog.at_level(logging.WARNING):
        await door.auth.initialize()
        assert [record.message for record in caplog.records] == [
            "there is no API key yet, so every request is refused: run `concertina keys create --name NAME`"
        ]
        caplog.clear()
        await door.key()
        await door.another("keys").initialize()
        await Door("open").auth.initialize()
    assert caplog.records == []


@pytest.mark.parametrize("mode", ["open", "keys"])
async def test_end_users_are_tenants_of_their_own(mode: Any) -> None:
    door = Door(mode, pepper=PEPPER, end_user_header="x-end-user-id")
    secret, _ = await door.key()
    application = await door.enter(secret)
    anna, ben = [await door.enter(secret, **{"x-end-user-id": name}) for name in ("anna", "ben")]
    assert len({application.tenant, anna.tenant, ben.tenant}) == 3
    assert {extract_application_tenant(one.tenant) for one in (anna, ben)} == {application.tenant}
    assert await door.enter(secret, "read", **{"x-end-user-id": "anna"}) == anna
    assert (await door.enter(secret, **{"x-end-user-id": " "})).tenant == application.tenant
    other, _ = await door.key()
    assert (await door.enter(other, **{"x-end-user-id": "anna"})).tenant != anna.tenant
    assert "anna" not in anna.tenant


async def test_a_body_names_the_end_user_where_no_header_does() -> None:
    door = Door("open", end_user_header="x-end-user-id")
    by_header = await door.enter("sk", **{"x-end-user-id": "ann\u00c3\u00a0"})
    application = await door.enter("sk")

    def tenant(headers: dict[str, str] | None = None, **fields: bytes) -> str:
        return door.auth.authorize_request(chat(application, **fields), headers or {}).caller.tenant

    assert tenant(safety_identifier='"annà"'.encode()) == by_header.tenant, "latin-1 in headers, UTF-8 in bodies"
    assert tenant(user='"annà"'.encode()) == by_header.tenant
    assert tenant(user=b'"ben"', safety_identifier='"annà"'.encode()) == by_header.tenant
    assert tenant(user=b'"ben"', safety_identifier=b"null") != application.tenant
    assert tenant(user=b'""', safety_identifier=b"null") == application.tenant
    assert tenant({"x-end-user-id": "x"}, user=b'"ben"') == application.tenant, "the header has counted already"
    with pytest.raises(Exception, match="`user` must be a string"):
        tenant(user=b"7")


async def test_end_users_are_not_told_apart_unless_that_is_wanted() -> None:
    door = Door("open")
    caller = await door.enter("sk", **{"x-end-user-id": "anna"})
    assert caller == await door.enter("sk")
    request = chat(caller, user=b'"anna"')
    assert door.auth.authorize_request(request, {}) is request


@pytest.mark.parametrize(
    ("allowed", "model", "may"),
    [
        ((), "anything", True),
        (("gpt-4o",), "gpt-4o", True),
        (("gpt-4o",), "gpt-4o-mini", False),
        (("gpt-4o",), "GPT-4o", False),
        (("gpt-4*", "o?"), "gpt-4o-mini", True),
        (("gpt-4*", "o?"), "o3", True),
        (("gpt-4*", "o?"), "o3-mini", False),
        (("my[1]",), "my[1]", True),
        (("my[1]",), "my1", False),
    ],
)
def test_models_are_allowed_by_name_and_wildcard(allowed: tuple[str, ...], model: str, may: bool) -> None:
    assert may_use_model(Caller("t", allowed_models=allowed), model) is may


@given(st.text(), st.text(), st.binary(), st.binary(), st.text())
def test_tenants_of_end_users_never_meet(tenant: str, other: str, user: bytes, other_user: bytes, pepper: str) -> None:
    pepper = pepper.encode("utf-8", "replace").decode()
    pairs = [(tenant.replace("/", ""), user), (other.replace("/", ""), other_user)]
    derived = [derive_end_user_tenant(*pair, pepper) for pair in pairs]
    assert (derived[0] == derived[1]) is (pairs[0] == pairs[1])
    assert [extract_application_tenant(one) for one in derived] == [application for application, _ in pairs]
