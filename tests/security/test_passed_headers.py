"""What a provider's answer may do to the gateway's origin, and what of a client a provider gets to see."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.edge.error_responses import build_error_headers
from app.api.edge.headers import SANDBOX_HEADERS
from app.errors import UpstreamRefused
from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import user, world

FORGED = {
    "access-control-allow-origin": "*",
    "access-control-allow-credentials": "true",
    "alt-svc": "h3=evil.example",
    "cache-control": "public, max-age=9999",
    "clear-site-data": "*",
    "content-security-policy": "default-src *",
    "link": "</x>; rel=preload",
    "location": "https://evil.example",
    "nel": "{}",
    "refresh": "0;url=https://evil.example",
    "report-to": "{}",
    "service-worker-allowed": "/",
    "set-cookie": "a=b",
    "strict-transport-security": "max-age=1",
    "upgrade": "h2c",
    "www-authenticate": "Basic",
    "x-accel-redirect": "/internal",
    "x-concertina-simulated": "true",
    "x-content-type-options": "sniff",
    "x-context-status": "forged",
    "x-context-tokens": "1/2",
    "x-conversation-id": "conv_forged",
    "x-powered-by": "them",
}
USEFUL = {"openai-processing-ms": "3", "x-ratelimit-remaining-tokens": "7", "retry-after": "3", "request-id": "theirs"}


def forging(status: int = 200, kind: str = "text/html", body: Any = b"<script>alert(1)</script>") -> Reply:
    return Reply(body, status, {**FORGED, **USEFUL, "content-type": kind})


def check_forged(headers: Any, *, own: tuple[str, ...] = ()) -> None:
    kept = {name: value for name, value in FORGED.items() if headers.get(name) == value and name not in own}
    assert kept == {}
    assert "sandbox" in headers["content-security-policy"]
    assert headers.get_list("x-content-type-options") == ["nosniff"]
    assert "no-store" in headers["cache-control"]


@pytest.mark.parametrize("status", [200, 400, 503])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
async def test_headers_of_a_provider_pass_only_where_they_are_known(
    method: str,
    status: int,
) -> None:
    async with world(ScriptedUpstream(forging(status))) as w:
        answer = await w.client.request(method, f"{w.base_url}/files/file-1/content")
    assert answer.status_code == status
    check_forged(answer.headers)
    assert answer.headers["content-type"] == "text/html"
    assert {name: answer.headers[name] for name in USEFUL} == USEFUL
    assert "x-conversation-id" not in answer.headers


async def test_headers_of_a_provider_do_not_pass_with_a_chat_or_its_refusal() -> None:
    said = completion()
    said.headers.update(FORGED)
    async with world(ScriptedUpstream(said, forging(400), forging(401))) as w:
        chat = await w.post([user("x")])
        refused = [await w.post([user("y")], stream=streams) for streams in (False, True)]
    assert (chat.status_code, [answer.status_code for answer in refused]) == (200, [400, 401])
    assert chat.headers["x-conversation-id"] == chat.json()["conversation_id"] != "conv_forged"
    assert {name for name in FORGED if chat.headers.get(name) == FORGED[name]} == set()
    for answer in refused:
        check_forged(answer.headers)
        assert answer.headers.get("x-conversation-id") != "conv_forged"
        assert answer.headers["retry-after"] == "3"


def test_headers_of_a_refusal_do_not_pass_whoever_raises_it() -> None:
    headers = build_error_headers(UpstreamRefused(400, b"{}", {**FORGED, "content-length": "9", "retry-after": "3"}))
    assert headers == {**SANDBOX_HEADERS, "retry-after": "3"}


async def test_a_client_shows_a_provider_what_is_meant_for_it_only() -> None:
    kept = {
        "accept": "text/event-stream",
        "anthropic-version": "2023-06-01",
        "openai-beta": "assistants=v2",
        "traceparent": "00-1",
        "user-agent": "its own",
        "x-stainless-lang": "python",
    }
    private = {
        **dict.fromkeys(("api-key", "cookie", "forwarded", "from", "idempotency-key", "referer", "via"), "canary"),
        **dict.fromkeys(("x-api-key", "x-chat-id", "x-context-mode", "x-conversation-id", "x-goog-api-key"), "canary"),
        **{f"x-forwarded-{name}": "canary" for name in ("for", "host", "proto", "user", "email")},
        **dict.fromkeys(("x-real-ip", "cf-connecting-ip", "x-amzn-oidc-data", "x-auth-request-user"), "canary"),
        "authorization": "Bearer canary",
        "origin": "http://localhost:3000/canary",
        "sec-fetch-site": "same-origin",
    }
    upstream = ScriptedUpstream()
    async with world(upstream) as w:
        body = {"model": "m", "input": "x"}
        answer = await w.client.post(f"{w.base_url}/embeddings", json=body, headers={**kept, **private})
    assert answer.status_code == 200, answer.text
    (got,) = upstream.headers
    assert "canary" not in str(got)
    assert {name: got[name] for name in kept} == kept
    assert got["authorization"] == "Bearer sk-upstream"
    assert set(got) - set(kept) == {"host", "accept-encoding", "authorization", "content-type", "content-length"}


@pytest.mark.parametrize("mode", ["navigate", "no-cors"])
async def test_a_page_of_another_site_does_not_lead_a_browser_to_a_provider(mode: str) -> None:
    upstream = ScriptedUpstream(Reply(b"1"), Reply(b"1"), Reply(b"1"))
    async with world(upstream) as w:
        place = f"{w.base_url}/files/file-1/content"
        foreign = await w.client.get(place, headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": mode})
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert upstream.bodies == []
        for site in ("none", "same-origin"):
            own = await w.client.get(place, headers={"sec-fetch-site": site, "sec-fetch-mode": mode})
            assert own.status_code == 200
        program = await w.client.get(place)
        assert program.status_code == 200
