"""The console's files over HTTP: what is there, under which policy, and what cannot be had."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from app.api.console import CONSOLE_FOLDER, CONSOLE_HEADERS, CONTENT_TYPES, read_console_files
from app.settings import load_settings
from tests.api.edge.test_api_keys import locked
from tests.live import create_test_app, serving

FILES = sorted(str(path.relative_to(CONSOLE_FOLDER)) for path in CONSOLE_FOLDER.rglob("*") if path.is_file())
DIRECTIVES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "font-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}


@asynccontextmanager
async def gateway(**sections: Any) -> AsyncIterator[httpx.AsyncClient]:
    values = {"database": {"url": "memory://"}, **sections}
    settings = load_settings(environ={}, arguments={(name,): value for name, value in values.items()})
    async with serving(create_test_app(settings)) as address, httpx.AsyncClient(base_url=address) as client:
        yield client


def check_policy(answer: httpx.Response) -> None:
    told = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert told == DIRECTIVES
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


async def test_every_file_is_served_as_it_is_under_the_policy() -> None:
    async with gateway() as client:
        for name in FILES:
            answer = await client.get(f"/console/{name}")
            assert answer.status_code == 200, name
            assert answer.content == (CONSOLE_FOLDER / name).read_bytes()
            assert answer.headers["content-type"] == CONTENT_TYPES[Path(name).suffix]
            assert answer.headers["cache-control"] == "no-cache"
            check_policy(answer)
            assert "set-cookie" not in answer.headers


async def test_the_page_stands_at_the_folder() -> None:
    async with gateway() as client:
        page, named = await client.get("/console/"), await client.get("/console/index.html")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.content == named.content == (CONSOLE_FOLDER / "index.html").read_bytes()


@pytest.mark.parametrize("prefix", ["", "/ai", "/a/b"])
async def test_the_address_without_a_slash_leads_to_the_page_behind_any_prefix(prefix: str) -> None:
    async with gateway() as client:
        for path in ("/console", "/console?from=mail"):
            answer = await client.get(path)
            assert answer.status_code == 307
            check_policy(answer)
            led = urljoin(f"https://host.example{prefix}{path}", answer.headers["location"])
            assert led == f"https://host.example{prefix}{path.replace('/console', '/console/')}"


async def test_the_page_names_its_files_relative_to_itself() -> None:
    page = (CONSOLE_FOLDER / "index.html").read_text()
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert named
    assert [name for name in named if name.partition("?")[0] not in FILES and not name.startswith("#/")] == []


async def test_a_file_that_did_not_change_is_not_sent_again() -> None:
    async with gateway() as client:
        first = await client.get("/console/index.html")
        tag = first.headers["etag"]
        for told in (tag, f'W/{tag}, "other"', f'"other", {tag}', "*"):
            again = await client.get("/console/index.html", headers={"if-none-match": told})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            check_policy(again)
        changed = await client.get("/console/index.html", headers={"if-none-match": '"other"'})
        assert changed.status_code == 200


async def test_head_tells_the_same_without_the_file() -> None:
    async with gateway() as client:
        for path in ("/console/", "/console/js/main.js", "/console/bundle/console.js"):
            whole, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (200, b"")
            for name in ("content-length", "content-type", "etag", "content-security-policy"):
                assert head.headers[name] == whole.headers[name]


@pytest.mark.parametrize(
    "path",
    [
        b"/console/nothing.js",
        b"/console/js",
        b"/console/js/",
        b"/console/../main.py",
        b"/console/%2e%2e/main.py",
        b"/console/js/../../main.py",
        b"/console/..%2f..%2fpyproject.toml",
        b"/console/%2e%2e%2f%2e%2e%2fpyproject.toml",
        b"/console/..%5c..%5cpyproject.toml",
        b"/console//etc/passwd",
        b"/console/%2fetc%2fpasswd",
        b"/console/js/main.js%00.html",
        b"/console/index.html/",
        b"/console/INDEX.HTML",
        b"/console/.gitignore",
        b"/consoles/index.html",
    ],
)
async def test_nothing_else_can_be_had(path: bytes) -> None:
    async with gateway() as client:
        url = client.base_url.copy_with(raw_path=path)
        answer = await client.get(url)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["type"] == "invalid_request_error"
        if url.raw_path.startswith(b"/console/"):
            check_policy(answer)


def test_files_of_other_kinds_and_hidden_ones_are_left_out(tmp_path: Path) -> None:
    for name in ("index.html", "js/main.js", ".secret.js", ".git/config.js", "notes.bak", "js/main.py", "LICENSE"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    outside = tmp_path.parent / "outside.js"
    outside.write_text("outside")
    (tmp_path / "link.js").symlink_to(outside)
    assert sorted(read_console_files(tmp_path)) == ["index.html", "js/main.js"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_files_are_only_read(method: str) -> None:
    async with gateway() as client:
        answer = await client.request(method, "/console/index.html")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert (await client.head("/console/index.html")).status_code == 200


async def test_switched_off_there_is_no_console() -> None:
    async with gateway(server={"console": False}) as client:
        for path in ("/console", "/console/", "/console/index.html", "/console/session"):
            assert (await client.get(path)).status_code == 404


async def test_the_console_is_no_part_of_the_api() -> None:
    async with gateway() as client:
        document = (await client.get("/openapi.json")).json()
        assert not [path for path in document["paths"] if "console" in path]
        api = await client.get("/v1/models")
        assert "content-security-policy" not in api.headers


async def test_a_session_says_what_a_page_must_know() -> None:
    async with gateway() as client:
        answer = await client.get("/console/session")
        check_policy(answer)
        assert answer.headers["cache-control"] == "no-store"
        told = answer.json()
        assert told.pop("version")
        assert told == {
            "auth_mode": "open",
            "scopes": ["chat", "read", "manage"],
            "operator": False,
            "end_users": False,
            "end_user_header": None,
            "simulated": True,
            "policies": ["additive", "checkpoint", "fade", "prune", "window"],
            "default_policy": "additive",
            "database": "memory",
            "encrypted": False,
        }


async def test_a_session_knows_its_key() -> None:
    sections: dict[str, Any] = {
        "auth": {"mode": "keys", "cache_seconds": 0, "end_users": True},
        "policy": "fade",
        "encryption": {"keys": {"k1": "00" * 32}, "active": "k1"},
    }
    async with locked(**sections) as keys:
        root = keys.gateway.base_url.removesuffix("/v1")

        async def session(secret: str | None) -> httpx.Response:
            headers = {"authorization": f"Bearer {secret}"} if secret else {}
            return await keys.gateway.client.get(f"{root}/console/session", headers=headers)

        for nobody in (None, "ck_made-up"):
            refused = await session(nobody)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await keys.gateway.client.get(f"{root}/console/")).status_code == 200
        for scopes, shown in ((("read",), ["read"]), (("chat", "admin"), ["chat", "read", "manage", "admin"])):
            secret, key = await keys.key(scopes=scopes)
            told = (await session(secret)).json()
            assert (told["scopes"], told["operator"]) == (shown, "admin" in scopes)
            assert (told["auth_mode"], told["default_policy"], told["encrypted"]) == ("keys", "fade", True)
            assert (told["end_users"], told["end_user_header"]) == (True, "X-End-User-Id")
            assert told["simulated"] is False
        await keys.gateway.store.revoke_api_key(key.id)
        assert (await session(secret)).status_code == 401


def test_the_policy_is_on_everything() -> None:
    assert CONSOLE_HEADERS["content-security-policy"].count(";") == len(DIRECTIVES) - 1
