"""A page of somebody else's does nothing with a gateway that asks for no key, however it comes there."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.api.visitors import Visitors, listens_locally
from app.errors import InsufficientPermissions
from tests.edge.kept import user, world
from tests.live import ScriptedUpstream

LOCAL = Visitors(is_local=True)
OPEN = Visitors(is_local=False)
NAMED = Visitors(is_local=False, allowed_hosts=["Gateway.example.com"])
HERE = "127.0.0.1:8000"


def is_taken(visitors: Visitors, *, has_credential: bool = False, **headers: str) -> bool:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        visitors.check(named, has_credential=has_credential)
    except InsufficientPermissions as error:
        assert "auth.allowed_hosts" in error.message
        return False
    return True


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8000", "127.9.9.9", "localhost:1", "LOCALHOST.", "a.localhost", "[::1]:8000", "10.0.0.5:8000"),
        *("gateway:8000", "host.docker.internal:8000", "mac.local", "192.168.1.2", ""),
    ],
)
def test_a_local_gateway_is_reached_by_what_no_stranger_can_name(host: str) -> None:
    assert is_taken(LOCAL, host=host)


@pytest.mark.parametrize(
    "host", ["evil.example.com", "localhost.evil.com:8000", "127.0.0.1.nip.io", "1.2.3.4.evil.com:80"]
)
def test_a_local_gateway_is_not_reached_by_a_name_that_was_made_to_mean_it(host: str) -> None:
    for _ in range(2):
        assert not is_taken(LOCAL, host=host)
        assert not is_taken(LOCAL, host=host, has_credential=True)
    assert is_taken(OPEN, host=host)


def test_with_names_of_its_own_a_gateway_has_no_others() -> None:
    assert is_taken(NAMED, host="gateway.example.com:443")
    assert is_taken(NAMED, host=HERE)
    assert not is_taken(NAMED, host="gateway")
    assert not is_taken(NAMED, host="evil.com")
    assert is_taken(NAMED, host=HERE, origin="https://gateway.example.com", sec_fetch_site="cross-site")


@pytest.mark.parametrize("visitors", [LOCAL, OPEN])
@pytest.mark.parametrize("origin", ["https://evil.com", "http://evil.com:8000", "null", "http://10.0.0.9"])
def test_what_another_sites_page_sends_without_a_key_is_refused(visitors: Visitors, origin: str) -> None:
    assert not is_taken(visitors, host=HERE, origin=origin)
    assert not is_taken(visitors, host=HERE, origin=origin, sec_fetch_site="cross-site")
    assert is_taken(visitors, host=HERE, origin=origin, has_credential=True), "it asked, and nobody consents here"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": f"http://{HERE}"},
        {"origin": "http://localhost:3000", "sec_fetch_site": "cross-site"},
        {"origin": "https://behind.a.proxy", "sec_fetch_site": "same-origin"},
        {"origin": "chrome-extension://abc"},
        {"origin": "app://obsidian.md"},
        {},
    ],
)
def test_its_own_pages_local_ones_and_programs_are_served(headers: Any) -> None:
    assert is_taken(LOCAL, host=HERE, **headers)


def test_listening_on_loopback_is_known() -> None:
    assert [listens_locally(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "::")] == (
        [True] * 3 + [False] * 3
    )


async def test_every_endpoint_refuses_pages_of_others_and_answers_them_no_cors(monkeypatch: pytest.MonkeyPatch) -> None:
    chat: dict[str, Any] = {"model": "m", "messages": [user("x")]}
    async with world(monkeypatch, ScriptedUpstream()) as w:
        root = w.base_url.removesuffix("/v1")
        for headers in ({"origin": "https://evil.com"}, {"host": "evil.com:8000"}):
            said = {"content-type": "text/plain", **headers}
            for path in (
                "/chat/completions",
                "/conversations",
                "/embeddings",
                "/context/count",
                "/conversations/import",
            ):
                refused = await w.client.post(w.base_url + path, json=chat, headers=said)
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions"), path
            session = await w.client.get(f"{root}/console/session", headers=headers)
            assert session.status_code == 403
        answers: list[httpx.Response] = []
        for method, path in (("OPTIONS", "/v1/chat/completions"), ("OPTIONS", "/v1/embeddings"), ("GET", "/healthz")):
            asked = {"origin": "https://evil.com", "access-control-request-method": "POST"}
            answers.append(await w.client.request(method, root + path, headers=asked))
        assert [name for answer in answers for name in answer.headers if name.startswith("access-control")] == []
        assert (await w.post([user("x")])).status_code == 200
        assert len(w.upstream.bodies) == 1
