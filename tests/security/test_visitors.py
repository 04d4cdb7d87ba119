"""A page of somebody else's does nothing with a gateway that asks for no key, however it comes there."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.api.edge.header_checks import BrowserOriginCheck
from app.errors import InsufficientPermissions
from tests.live import ScriptedUpstream
from tests.support.gateway import user, world

PLAIN = BrowserOriginCheck()
NAMED = BrowserOriginCheck(["Gateway.example.com"])
HERE = "127.0.0.1:8000"


def is_taken(visitors: BrowserOriginCheck, *, has_credential: bool = False, **headers: str) -> bool:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        visitors.check_request(named, has_credential=has_credential)
    except InsufficientPermissions as error:
        assert "auth.allowed_hosts" in error.message
        return False
    return True


@pytest.mark.parametrize("visitors", [PLAIN, NAMED, BrowserOriginCheck(["*"])])
@pytest.mark.parametrize("origin", ["https://evil.com", "http://evil.com:8000", "null", "http://10.0.0.9"])
def test_what_another_sites_page_sends_without_a_key_is_refused(visitors: BrowserOriginCheck, origin: str) -> None:
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
    assert is_taken(PLAIN, host=HERE, **headers)


def test_pages_of_a_listed_name_are_served() -> None:
    assert is_taken(NAMED, host=HERE, origin="https://gateway.example.com", sec_fetch_site="cross-site")


async def test_every_endpoint_refuses_pages_of_others_and_answers_them_no_cors() -> None:
    chat: dict[str, Any] = {"model": "m", "messages": [user("x")]}
    async with world(ScriptedUpstream()) as w:
        root = w.base_url.removesuffix("/v1")
        refusals = [
            ({"origin": "https://evil.com"}, "insufficient_permissions"),
            ({"host": "evil.com:8000"}, "host_not_allowed"),
        ]
        for headers, code in refusals:
            said = {"content-type": "text/plain", **headers}
            for path in (
                "/chat/completions",
                "/conversations",
                "/embeddings",
                "/context/count",
                "/conversations/import",
            ):
                refused = await w.client.post(w.base_url + path, json=chat, headers=said)
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, code), path
            session = await w.client.get(f"{root}/console/session", headers=headers)
            assert session.status_code == 403
        answers: list[httpx.Response] = []
        for method, path in (("OPTIONS", "/v1/chat/completions"), ("OPTIONS", "/v1/embeddings"), ("GET", "/healthz")):
            asked = {"origin": "https://evil.com", "access-control-request-method": "POST"}
            answers.append(await w.client.request(method, root + path, headers=asked))
        assert [name for answer in answers for name in answer.headers if name.startswith("access-control")] == []
        assert (await w.post([user("x")])).status_code == 200
        assert len(w.upstream.bodies) == 1
