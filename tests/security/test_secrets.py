"""Whatever is secret stands nowhere: not in the database, not in a log, a number, a document, an error or a trace."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.__main__ import main
from app.observability import log as logs
from app.settings import load_settings
from tests.live import DROP, Reply, ScriptedUpstream, chunk, completion, create_test_app
from tests.support.gateway import user
from tests.support.log_lines import read_log
from tests.support.sqlite_gateway import at_rest, config_in, file_bytes

SECRETS: Final = {
    "provider": "sk-canary-provider-1f3a",
    "header": "canary-header-77b1",
    "proxy": "canary-proxy-password-9c2d",
    "database": "canary-database-password-5e4f",
    "metrics": "canary-metrics-token-3b8a",
    "pepper": "canary-pepper-of-some-length-0d6c",
    "client": "sk-canary-client-8e7d",
    "query": "canary-query-key-2a9b",
    "encryption": hashlib.sha256(b"canary").hexdigest(),
}
OWN_KEY: Final = "ck_"
TELEMETRY: Final = {"metrics_token": SECRETS["metrics"]}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    written = io.StringIO()
    logs.configure_logging("debug", "json", written)
    for name in ("httpx", "httpcore"):  # the test's own client, which tells whom it asks
        logging.getLogger(name).setLevel(logging.ERROR)
    yield written
    root.handlers[:] = before
    root.setLevel(level)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def found_in(text: str | bytes) -> list[str]:
    """Which secrets a text holds."""
    told = text if isinstance(text, bytes) else text.encode()
    return [name for name, secret in SECRETS.items() if secret.encode() in told]


def everything(upstream: str = "http://127.0.0.1:9") -> dict[str, Any]:
    """Sections with every secret that there can be."""
    provider = {
        "base_url": f"{upstream}/v1?key={SECRETS['query']}",
        "api_key": SECRETS["provider"],
        "headers": {"x-extra": SECRETS["header"]},
    }
    return {
        "providers": {"upstream": provider},
        "auth": {"pepper": SECRETS["pepper"]},
        "telemetry": {"metrics_token": SECRETS["metrics"]},
        "encryption": {"keys": {"k1": SECRETS["encryption"]}},
    }


async def test_a_run_of_all_kinds_leaves_no_secret_anywhere(tmp_path: Path, log: io.StringIO) -> None:
    upstream = ScriptedUpstream()
    told: list[str] = []
    sections = everything()
    sections.pop("providers")
    async with at_rest(tmp_path, upstream, **sections) as w:
        for credential in ({"authorization": f"Bearer {SECRETS['client']}"}, {"api-key": SECRETS["client"]}):

            async def ask(method: str, path: str, headers: dict[str, str] = credential, **more: Any) -> httpx.Response:
                answer = await w.client.request(method, w.base_url + path, headers=headers, **more)
                told.append(f"{answer.headers}{answer.text}")
                return answer

            chat: dict[str, Any] = {"model": "m", "messages": [user("hello")]}
            upstream.replies = [completion(), Reply({"error": {"message": "no"}}, 400), Reply(pieces=[chunk({}), DROP])]
            first = await ask("POST", "/chat/completions", json=chat)
            for _ in range(2):
                await ask("POST", "/chat/completions", json={**chat, "stream": True})
            upstream.replies = [Reply(b"no JSON", 500)] * 9
            await ask("POST", "/chat/completions", json={**chat, "messages": [user("else")]})
            await ask("POST", "/embeddings", json={"model": "m"})
            await ask("GET", f"/conversations/{first.json()['conversation_id']}/items")
            await ask("GET", "/models")
            await ask("GET", "/admin/overview")
            await ask("GET", "/admin/settings")
            await ask("POST", "/admin/keys", json={"name": "x"})
        root = w.base_url.removesuffix("/v1")
        for path in ("/metrics", "/docs", "/openapi.json", "/readyz", "/console/session"):
            for token in ("", SECRETS["metrics"]):
                answer = await w.client.get(root + path, headers={"authorization": f"Bearer {token}"} if token else {})
                told.append(f"{answer.headers}{answer.text}")
    assert found_in("".join(told)) == []
    assert found_in(read_log(log)) == []
    assert found_in(file_bytes(tmp_path)) == []
    digest = hashlib.sha256(f"Bearer {SECRETS['client']}".encode()).hexdigest()
    assert digest[:32].encode() not in file_bytes(tmp_path), "a digest without the pepper could be looked up"


def test_keys_of_the_gateways_own_are_kept_as_digests_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_in(tmp_path, auth={"mode": "keys"})
    assert main(["keys", "create", "--name", "one", "--scopes", "admin", "--config", config]) == 0
    secret = capsys.readouterr().out.splitlines()[0]
    assert secret.startswith(OWN_KEY)
    kept = file_bytes(tmp_path)
    assert b"one" in kept
    assert secret.encode() not in kept
    assert secret.removeprefix(OWN_KEY).encode() not in kept
    main(["keys", "list", "--config", config])
    main(["keys", "list", "--json", "--config", config])
    assert secret not in capsys.readouterr().out


def test_settings_show_no_secret_however_they_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sections = everything()
    sections["providers"]["upstream"]["proxy"] = f"http://user:{SECRETS['proxy']}@127.0.0.1:9"
    sections["database"] = {"url": f"postgresql+asyncpg://u:{SECRETS['database']}@127.0.0.1:9/db"}
    settings = load_settings(environ={}, arguments={(name,): value for name, value in sections.items()})
    shown = f"{settings!r}{settings}{settings.model_dump()!r}{settings.model_dump_json()}"
    assert set(found_in(shown)) <= {"query"}, "an address is no secret by its type"
    broken = {**sections, "server": {"port": "no"}, "auth": {"pepper": ["x"]}}
    broken["providers"] = {"upstream": {**sections["providers"]["upstream"], "timeouts": {"connect_seconds": "x"}}}
    config = config_in(tmp_path, **broken)
    assert main(["check-config", config]) == 2
    assert main(["migrate", "--config", config_in(tmp_path, **sections)]) != 0
    assert main(["doctor", "--config", config_in(tmp_path, **sections)]) == 1
    told = capsys.readouterr()
    assert "fault" in told.out
    assert found_in(told.out + told.err) == []
    assert main(["check-config", config_in(tmp_path, **sections)]) == 0
    assert found_in(capsys.readouterr().out) == []


def test_what_is_built_from_settings_shows_none_either() -> None:
    sections = {**everything(), "database": {"url": "memory://"}}
    app = create_test_app(load_settings(environ={}, arguments={(name,): value for name, value in sections.items()}))
    assert found_in(repr(vars(app))) == []


@pytest.mark.parametrize(
    "command", ["", "init", "serve", "migrate", "check-config", "doctor", "keys", "export", "purge"]
)
def test_help_shows_the_names_of_settings_and_no_value(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONCERTINA_API_KEY", SECRETS["client"])
    monkeypatch.setenv("CONCERTINA_PROVIDERS__OPENAI__API_KEY", SECRETS["provider"])
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [command]), "--help"])
    assert ended.value.code == 0
    assert found_in(capsys.readouterr().out) == []
