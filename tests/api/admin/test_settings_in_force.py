"""`GET /v1/admin/settings` tells every setting once, from where it comes, and no secret."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import httpx

from app.settings import Settings, load_settings
from app.settings.settings_in_force import SettingInForce, list_settings_in_force
from app.settings.settings_tree import list_setting_paths
from tests.api.edge.test_api_keys import locked
from tests.live import create_test_app, serving

FILE = """
server: {port: 9000}
database: {url: "postgresql://me:db-secret@db:5432/c?password=db-secret"}
auth: {mode: keys}
providers:
  main:
    base_url: https://user:url-secret@api.example/v1?key=url-secret
    api_key: "sk-${SUFFIX}"
    headers: {X-Team: header-secret-of-a-team}
    proxy: http://me:proxy-secret@proxy:3128
models:
  gpt-4.1:
    deployments: [{provider: main, context_window: 1000}]
policies:
  additive: {summarizer: {parameters: {temperature: 0}}}
"""


def load(tmp_path: Path, **variables: str) -> Settings:
    file = tmp_path / "c.yaml"
    file.write_text(FILE)
    environ = {"SUFFIX": "a-long-provider-key", **variables}
    return load_settings(str(file), environ=environ, arguments={("server", "workers"): "2"})


def by_path(settings: Settings) -> dict[str, SettingInForce]:
    rows = list_settings_in_force(settings)
    assert len({row.path for row in rows}) == len(rows), "each path once"
    return {row.path: row for row in rows}


def test_every_setting_is_listed_with_its_default() -> None:
    rows = by_path(Settings())
    fixed = {".".join(path) for path in list_setting_paths() if not {"<name>", "[]"} & set(path)}
    assert fixed - {"encryption.keys"} <= rows.keys()
    assert {row.source for row in rows.values()} == {"default"}
    assert rows["policies.additive.threshold_ratio"].value == 0.7
    assert rows["auth.pepper"] == SettingInForce("auth.pepper", None, "default", None, secret=True)


def test_each_setting_names_its_source(tmp_path: Path) -> None:
    rows = by_path(load(tmp_path, CONCERTINA_SERVER__PORT="9001", CONCERTINA_MODELS="{other: {provider: main}}"))
    told = {path: (row.value, row.source, row.place) for path, row in rows.items()}
    assert told["server.port"] == (9001, "environment", "CONCERTINA_SERVER__PORT")
    assert told["server.workers"] == (2, "command line", "--workers")
    assert told["server.host"] == ("127.0.0.1", "default", None)
    assert told["auth.mode"] == ("keys", "file", "c.yaml:4")
    assert told['models."gpt-4.1".deployments[0].provider'] == ("main", "file", "c.yaml:13")
    assert told['models."gpt-4.1".deployments[0].price.input'] == (None, "default", None)
    assert told["models.other.provider"] == ("main", "environment", "CONCERTINA_MODELS")
    assert told["policies.additive.summarizer.parameters"] == ({"temperature": 0}, "file", "c.yaml:15")


def test_no_secret_is_shown(tmp_path: Path) -> None:
    rows = by_path(load(tmp_path))
    shown = {path: row.value for path, row in rows.items() if row.secret and row.value}
    assert shown == {"providers.main.api_key": "…ey", "providers.main.headers.X-Team": "…am"}
    assert rows["providers.main.api_key"].place == "c.yaml:8", "without the text of the value"
    assert rows["database.url"].value == "postgresql://db:5432/c"
    assert rows["providers.main.base_url"].value == "https://api.example/v1"
    assert rows["providers.main.proxy"].value == "http://proxy:3128"
    assert not [row for row in rows.values() if "secret-" in str(row) or "-secret" in str(row)]


def test_a_short_secret_shows_none_of_its_characters(tmp_path: Path) -> None:
    assert by_path(load(tmp_path, SUFFIX="short"))["providers.main.api_key"].value == "…"


def test_worker_processes_know_the_sources_too(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert by_path(pickle.loads(pickle.dumps(settings))) == by_path(settings)


async def test_an_admin_key_reads_the_settings_and_no_other() -> None:
    async with locked() as gateway:
        admin, _ = await gateway.key(scopes=("admin",))
        other, _ = await gateway.key(scopes=("chat", "read", "manage"))
        answer = await gateway.ask("GET", "/admin/settings", admin)
        refused = await gateway.ask("GET", "/admin/settings", other)
    assert refused.status_code == 403
    body: dict[str, Any] = answer.json()
    assert body["object"] == "list"
    rows = {row["path"]: row for row in body["data"]}
    assert rows["auth.mode"] == {
        "path": "auth.mode",
        "value": "keys",
        "source": "command line",
        "place": "--auth",
        "secret": False,
    }
    assert admin not in answer.text


async def test_nobody_reads_the_settings_of_an_open_gateway_without_the_operators_right() -> None:
    settings = load_settings(environ={}, arguments={("database", "url"): "memory://"})
    async with serving(create_test_app(settings)) as address, httpx.AsyncClient() as client:
        assert (await client.get(f"{address}/v1/admin/settings")).status_code == 403
