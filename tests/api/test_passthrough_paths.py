"""Which paths reach a provider: in mode `keys` those that the settings or the key allow, never our own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from app.api.passthrough_paths import normalize_path
from tests.api.admin.test_costs import Gateway, locked
from tests.live import ScriptedUpstream

OUTSIDE = [
    ("GET", "/files"),
    ("POST", "/batches"),
    ("GET", "/organization/admin_api_keys"),
    ("POST", "/realtime/client_secrets"),
    ("POST", "/completions"),
    ("POST", "/deployments/m/chat/completions"),
    ("PUT", "/embeddingsx"),
    ("DELETE", "/audiobooks/1"),
]
OWN = [
    "/CHAT/completions",
    "/chat/Completions",
    "/Conversations",
    "/chat//completions",
    "/./chat/completions",
    "/chat%2Fcompletions/",
    "/chat%252Fcompletions",
    "/embeddings/../chat/completions",
    "/embeddings/%2e%2e/files",
    "/embeddings/%252e%252e/files",
    "/embeddings%5C..%5Cfiles",
    "/embeddings/..;x/files",
    "/chat/completions;x",
]


@asynccontextmanager
async def keyed(**provider: Any) -> AsyncIterator[tuple[Gateway, ScriptedUpstream]]:
    upstream = ScriptedUpstream()
    async with locked(upstream, provider=provider) as gateway:
        yield gateway, upstream


async def send(gateway: Gateway, method: str, path: str, secret: str) -> httpx.Response:
    url = httpx.URL(f"{gateway.inner.base_url}{path}")
    body = {"model": "m"} if method != "GET" else None
    return await gateway.inner.client.request(method, url, headers={"authorization": f"Bearer {secret}"}, json=body)


@pytest.mark.parametrize(("method", "path"), OUTSIDE)
async def test_a_key_reaches_only_the_paths_that_the_settings_name(method: str, path: str) -> None:
    async with keyed() as (gateway, upstream):
        secret, _ = await gateway.make_key(scopes=("chat",))
        refused = await send(gateway, method, path, secret)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert "`providers.upstream.pass_through`" in refused.json()["error"]["message"]
        assert upstream.paths == []


@pytest.mark.parametrize(
    "path",
    ["/embeddings", "/moderations", "/audio/speech", "/images/generations", "/deployments/m/embeddings", "/Embeddings"],
)
async def test_embeddings_moderations_audio_and_images_pass_by_default(path: str) -> None:
    async with keyed() as (gateway, upstream):
        secret, _ = await gateway.make_key(scopes=("chat",))
        assert (await send(gateway, "POST", path, secret)).status_code == 200
        assert upstream.paths == [f"/v1{path}"]


async def test_a_provider_and_a_key_may_allow_other_paths() -> None:
    async with keyed(pass_through=["files"]) as (gateway, _):
        plain, _ = await gateway.make_key()
        own, _ = await gateway.make_key(pass_through=("batches",))
        nothing, _ = await gateway.make_key(pass_through=())
        everything, _ = await gateway.make_key(pass_through=("*",))
        allowed = {
            name: [
                (await send(gateway, "POST", f"/{path}", secret)).status_code for path in ("files/1", "batches", "x")
            ]
            for name, secret in (("plain", plain), ("own", own), ("nothing", nothing), ("everything", everything))
        }
        refused = await send(gateway, "POST", "/files", own)
    assert allowed == {
        "plain": [200, 403, 403],
        "own": [403, 200, 403],
        "nothing": [403, 403, 403],
        "everything": [200, 200, 200],
    }
    assert "`pass_through` of this API key allows batches" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", OWN)
async def test_no_other_way_to_write_a_path_of_ours_reaches_the_provider(path: str) -> None:
    async with keyed(pass_through=["*"]) as (gateway, upstream):
        secret, _ = await gateway.make_key()
        answer = await send(gateway, "PUT", path, secret)
        assert answer.status_code in (400, 404, 405), answer.text
        assert upstream.paths == []


@pytest.mark.parametrize(("path", "normalized"), [("A//b/./C/", "a/b/c"), ("a;x/b", "a/b"), ("a%2Fb\\c", "a/b/c")])
def test_paths_are_compared_in_one_form(path: str, normalized: str) -> None:
    assert normalize_path(path) == normalized
