"""No page reaches a gateway without keys by a name that a stranger registered; no header says twice who asks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.edge.header_checks import SINGLE_HEADERS, HeaderCheckMiddleware, HostRules
from app.api.edge.request_reader import read_headers
from app.settings import load_settings
from tests.live import ScriptedUpstream, completion
from tests.security.test_request_framing import send_raw
from tests.support.gateway import World, user, world

ROOT = Path(__file__).parents[2]
OPEN = HostRules()
KEYS = HostRules(asks_for_key=True)
NAMED = HostRules(["Gateway.example.com"])
REBOUND = ["evil.example.com", "localhost.evil.com:8000", "127.0.0.1.nip.io", "1.2.3.4.evil.com:80", "evil.com."]
PATHS = [
    *(
        "/v1/chat/completions",
        "/v1/models",
        "/v1/conversations",
        "/v1/files",
        "/v1/admin/overview",
        "/v1/context/count",
    ),
    *("/console", "/console/", "/console/session", "/docs", "/openapi.json", "/metrics", "/nothing", "/"),
]


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:8000", "127.9.9.9", "localhost:1", "LOCALHOST.", "a.localhost", "[::1]:8000", "10.0.0.5:8000"),
        *("gateway:8000", "host.docker.internal:8000", "mac.local", "192.168.1.2", "", "open_webui", "[fe80::1]"),
        *("concertina.ai.svc", "concertina.ai.svc.cluster.local:8000", "box.home.arpa", "203.0.113.7"),
    ],
)
def test_a_gateway_without_keys_is_reached_by_what_no_stranger_can_name(host: str) -> None:
    assert OPEN.is_allowed(host)


@pytest.mark.parametrize(
    "host",
    [
        *REBOUND,
        "concertina.dev",
        "a.svc.evil.com",
        "evil.com,x.local",
        "evil.com/x.local",
        "a@b.local",
        "[evil.com]",
        "::1",
    ],
)
def test_a_gateway_without_keys_is_not_reached_by_a_name_that_was_made_to_mean_it(host: str) -> None:
    assert not OPEN.is_allowed(host)
    assert not NAMED.is_allowed(host)
    assert KEYS.is_allowed(host)
    assert HostRules(["*"]).is_allowed(host)
    assert HostRules(["*", "gateway.example.com"]).is_allowed(host)


def test_with_names_of_its_own_a_gateway_has_no_others() -> None:
    for rules in (NAMED, HostRules(["Gateway.example.com"], asks_for_key=True)):
        for host in (
            "gateway.example.com:443",
            "GATEWAY.example.COM.",
            "127.0.0.1:8000",
            "localhost",
            "10.1.2.3:8000",
            "",
        ):
            assert rules.is_allowed(host), host
        for host in ("gateway", "evil.com", "mac.local", "x.gateway.example.com", "gateway.example.com.evil.com"):
            assert not rules.is_allowed(host), host


async def _answer_nothing(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application."""


def test_what_is_remembered_is_bounded() -> None:
    heads = HeaderCheckMiddleware(_answer_nothing, HostRules(["*"]))
    for number in range(1000):
        assert heads.find_fault([(b"host", b"h%d" % number)]) is None
    assert heads.find_fault([(b"host", b"h" * 10_000)]) is None
    assert len(heads._allowed_host_cache) < 1000
    assert max(map(len, filter(None, heads._allowed_host_cache))) < 1000


def test_a_refusal_names_the_host_and_the_setting() -> None:
    heads = HeaderCheckMiddleware(_answer_nothing, HostRules())
    for _ in range(2):
        fault = heads.find_fault([(b"host", b"evil.com:8000")])
        assert fault is not None
        assert (fault.status, fault.code) == (403, "host_not_allowed")
        assert "'evil.com:8000'" in fault.message
        assert "`auth.allowed_hosts`" in fault.message
    long = heads.find_fault([(b"host", b"evil.com\x1b" + b"x" * 10_000)])
    assert long is not None
    assert len(long.message) < 500
    assert "\x1b" not in long.message


@pytest.mark.parametrize("server", ["0.0.0.0", "127.0.0.1"])
async def test_every_path_but_probes_refuses_a_rebound_name(server: str) -> None:
    async with world(ScriptedUpstream(), server={"host": server}) as w:
        root = w.base_url.removesuffix("/v1")
        for host in REBOUND:
            for method in ("GET", "POST", "HEAD", "OPTIONS"):
                for path in PATHS:
                    refused = await w.client.request(method, root + path, headers={"host": host})
                    assert refused.status_code == 403, (method, path)
                    assert refused.headers["x-request-id"].startswith("req_")
                    if method != "HEAD":
                        assert refused.json()["error"]["code"] == "host_not_allowed", (method, path)
            for path in ("/healthz", "/readyz"):
                assert (await w.client.get(root + path, headers={"host": host})).status_code == 200
        assert w.upstream.bodies == []
        chat = await w.client.post(f"{w.base_url}/chat/completions", headers={"host": "evil.com"}, json={})
        assert chat.headers["x-context-status"] == "bypassed"
        assert (await w.post([user("x")])).status_code == 200
        numbers = (await w.client.get(f"{root}/metrics")).text
        assert re.search(r"concertina_errors_total\{[^}]*host_not_allowed", numbers), "refusals are counted"


async def test_a_public_name_is_served_where_it_is_listed() -> None:
    async with world(ScriptedUpstream(), auth={"allowed_hosts": ["gateway.example.com"]}) as w:
        listed = await w.client.get(f"{w.base_url}/models", headers={"host": "gateway.example.com"})
        assert listed.status_code == 200
        other = await w.client.get(f"{w.base_url}/models", headers={"host": "gateway"})
        assert (other.status_code, other.json()["error"]["code"]) == (403, "host_not_allowed")


async def test_a_gateway_with_keys_is_reached_by_any_name() -> None:
    async with world(ScriptedUpstream(), auth={"mode": "keys"}) as w:
        refused = await w.client.get(f"{w.base_url}/models", headers={"host": "gateway.example.com"})
        assert refused.status_code == 401


def test_the_setting_takes_names_and_a_star() -> None:
    def hosts(*names: str) -> Any:
        return load_settings(environ={}, arguments={("auth",): {"allowed_hosts": list(names)}}).auth.allowed_hosts

    assert hosts("*") == ("*",)
    assert hosts("a.example.com", "b") == ("a.example.com", "b")
    for wrong in ("http://a.com", "a.com:80", "*.a.com", ""):
        with pytest.raises(Exception, match="allowed_hosts"):
            hosts(wrong)


def test_what_comes_with_the_gateway_reaches_it_by_names_that_are_served() -> None:
    files = [
        ROOT / "docker-compose.yml",
        ROOT / "Dockerfile",
        *(ROOT / "config").rglob("*.y*ml"),
        *(ROOT / "docs").rglob("*.md"),
    ]
    text = "\n".join(file.read_text() for file in files)
    hosts = set(re.findall(r"(?:http://|targets: \[\"?)(\[?[A-Za-z0-9_.:-]+\]?:8000)\b", text))
    assert {"127.0.0.1:8000", "gateway:8000", "concertina:8000"} <= hosts
    assert [host for host in hosts if not OPEN.is_allowed(host)] == []


async def send(w: World, path: str, headers: list[tuple[str, str]], *, method: str = "POST") -> httpx.Response:
    body = {"model": "m", "messages": [user("x")]} if method == "POST" else None
    given = [*([("content-type", "application/json")] if body else []), *headers]
    request = httpx.Request(method, w.base_url.removesuffix("/v1") + path, json=body, headers=given)
    return await w.client.send(request)


DECIDING = [
    *("Authorization", "x-api-key", "api-key", "X-OpenWebUI-User-Id", "X-Conversation-Id", "X-Chat-Id"),
    *("X-OpenWebUI-Chat-Id", "Idempotency-Key", "X-Context-Mode", "X-Context-Policy", "Content-Type", "Origin"),
]


@pytest.mark.parametrize("name", DECIDING)
async def test_a_header_that_decides_who_asks_stands_once(name: str) -> None:
    auth = {"end_users": True, "end_user_header": "X-OpenWebUI-User-Id"}
    async with world(ScriptedUpstream(default=lambda _: completion()), auth=auth) as w:
        for values in (("a", "b"), ("a", "a"), ("", "a")):
            twice = [(name, value) for value in values]
            if name == "Content-Type":
                twice = twice[:1]  # one is sent with the body
            answers = [
                await send(w, "/v1/chat/completions", twice),
                await send(w, "/v1/embeddings", twice),
                await send(w, "/v1/context/count", twice),
                *[await send(w, path, [*twice, (name, "c")], method="GET") for path in PATHS[1:4]],
                await send(w, "/console/session", [*twice, (name, "c")], method="GET"),
                await send(w, "/metrics", [*twice, (name, "c")], method="GET"),
            ]
            for answer in answers:
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, name.lower()), answer.request.url
                assert "is repeated" in error["message"]
        assert (w.upstream.bodies, w.rows()) == ([], 0)


@pytest.mark.parametrize("second", ["127.0.0.1", "evil.com"])
async def test_a_host_stands_once(second: str) -> None:
    async with world(ScriptedUpstream()) as w:
        for request in ("GET /v1/models", "GET /docs", "POST /v1/chat/completions"):
            head = f"{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: {second}\r\nConnection: close\r\n"
            answer = await send_raw(w, f"{head}Content-Length: 0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 400 "), request
            assert b'"param":"host"' in answer


async def test_headers_that_decide_nothing_may_stand_twice() -> None:
    async with world(ScriptedUpstream(default=lambda _: completion())) as w:
        twice = [
            ("accept", "a/b"),
            ("accept", "*/*"),
            ("x-other", "1"),
            ("x-other", "2"),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
        ]
        assert (await send(w, "/v1/chat/completions", twice)).status_code == 200
        assert (await send(w, "/v1/models", twice, method="GET")).status_code == 200


def test_a_list_that_stands_twice_is_read_as_one() -> None:
    headers = [(b"tracestate", b"a=1"), (b"accept", b"x"), (b"tracestate", b"b=2")]
    assert read_headers({"headers": headers}) == {"tracestate": "a=1, b=2", "accept": "x"}
    assert "tracestate" not in SINGLE_HEADERS


def test_every_path_reads_headers_alike() -> None:
    sources = {str(file): file.read_text() for file in (ROOT / "app/api").rglob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"request\.headers|\bHeader\(|\bHeaders\(", text)] == []
