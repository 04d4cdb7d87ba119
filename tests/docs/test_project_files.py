"""Container, compose and make files name things that exist."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import load_settings
from tests.upstream.http.loopback_server import Received, loopback, whole

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = [ROOT / f"requirements{part}.lock" for part in ("", "-dev", "-build")]
SERVED_PORT = 8000
COMMANDS = {"serve", "migrate", "check-config", "simulate"}


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    """What a service's container finds in its environment when nothing is set outside."""
    environment: dict[str, Any] = service.get("environment", {})
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for name, value in environment.items()}


def gateways() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in COMPOSE["services"].items() if "build" in service}


def test_the_image_is_made_of_files_that_exist_and_are_sent_along() -> None:
    sent = set(re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = set(" ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)).split())
    assert {name.partition("/")[0] for name in copied} == sent
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_image_runs_a_command_that_exists_as_an_ordinary_user() -> None:
    program, command, *_ = json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1])
    assert program in PROJECT["project"]["scripts"]
    assert command in COMMANDS
    assert re.search(r"^USER (?!root)", DOCKERFILE, re.MULTILINE)


def defaults_of(service: dict[str, Any]) -> str:
    """The file of defaults of a service's container: the image's own unless another is mounted in its place."""
    (place,) = re.findall(r"CONCERTINA_DEFAULTS=(\S+)", DOCKERFILE)
    (copied,) = re.findall(rf"^COPY (\S+) {place}$", DOCKERFILE, re.MULTILINE)
    mounted = dict(reversed(volume.removesuffix(":ro").split(":")) for volume in service.get("volumes", ()))
    return str(ROOT / mounted.get(place, copied))


def test_the_image_is_set_up_by_a_file_of_defaults_and_by_nothing_that_overrides_a_file() -> None:
    assert re.findall(r"CONCERTINA_\w+", DOCKERFILE) == ["CONCERTINA_DEFAULTS"]
    assert json.loads(re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[-1]) == ["concertina", "serve"]
    settings = load_settings(environ={"CONCERTINA_DEFAULTS": defaults_of({})})
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", SERVED_PORT)
    assert settings.database.url_without_credentials.endswith(":////data/concertina.db")
    assert f"EXPOSE {SERVED_PORT}" in DOCKERFILE
    assert "VOLUME /data" in DOCKERFILE


@pytest.mark.parametrize("status", [200, 503])
async def test_the_health_check_asks_the_port_that_a_mounted_file_names(status: int, tmp_path: Path) -> None:
    program, *arguments = json.loads(re.findall(r"^ +CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)[0])
    assert program == "python"

    async def answer(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(b"", f"{status} Status"))
        writer.close()

    async with loopback(answer) as server:
        (tmp_path / "mounted.yaml").write_text(f"server: {{port: {server.port}}}")
        environ = {"CONCERTINA_DEFAULTS": defaults_of({}), "CONCERTINA_CONFIG": str(tmp_path / "mounted.yaml")}
        checking = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=ROOT, env=environ, stderr=asyncio.subprocess.PIPE
        )
        await checking.communicate()
        assert [request.line for request in server.requests] == ["GET /healthz HTTP/1.1"]
    assert (checking.returncode == 0) == (status == 200)


def test_what_a_mounted_file_says_is_overridden_by_no_image_and_no_compose_file(tmp_path: Path) -> None:
    file = tmp_path / "mounted.yaml"
    file.write_text(
        "server: {host: 10.0.0.1, port: 9000}\n"
        "database: {url: 'postgresql://u:p@db/d'}\n"
        "telemetry: {traces: {endpoint: 'http://mine:4318'}}\n"
    )
    services: list[dict[str, Any]] = [{}, COMPOSE["services"]["gateway"]]
    for service in services:
        environ = environment_of(service) | {"CONCERTINA_DEFAULTS": defaults_of(service)}
        overrides: list[str] = []
        settings = load_settings(str(file), environ=environ, on_override=overrides.append)
        assert (settings.server.host, settings.server.port) == ("10.0.0.1", 9000)
        assert settings.database.url_without_credentials == "postgresql://db/d"
        assert settings.telemetry.traces.endpoint == "http://mine:4318"
        assert overrides == []


@pytest.mark.parametrize("name", gateways())
def test_each_gateway_of_the_compose_file_is_configured_soundly(name: str) -> None:
    service = gateways()[name]
    mounted = dict(volume.removesuffix(":ro").split(":") for volume in service["volumes"])
    environ = environment_of(service)
    inside = environ.pop("CONCERTINA_CONFIG")
    outside = next(source for source, target in mounted.items() if target == inside)
    settings = load_settings(str(ROOT / outside), environ=environ | {"CONCERTINA_DEFAULTS": defaults_of(service)})
    kept_in, host = {"gateway": ("postgresql+asyncpg", "0.0.0.0"), "sidecar": ("sqlite+aiosqlite", "127.0.0.1")}[name]
    assert (settings.database.url_without_credentials.partition("://")[0], settings.server.host) == (kept_in, host)
    assert not settings.uses_simulated_model
    assert float(service["stop_grace_period"].removesuffix("s")) > settings.server.drain_seconds


def test_the_compose_file_mounts_what_exists_and_publishes_the_served_port() -> None:
    for service in COMPOSE["services"].values():
        sources = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert [name for name in sources if name not in COMPOSE["volumes"] and not (ROOT / name).exists()] == []
    assert [port.split(":")[-1] for port in COMPOSE["services"]["gateway"]["ports"]] == [str(SERVED_PORT)]
    assert f":{SERVED_PORT}/v1" in environment_of(COMPOSE["services"]["application"])["OPENAI_BASE_URL"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_locks_name_packages_and_hashes_and_no_place(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    package_or_hash = re.compile(r"[A-Za-z0-9._\[\],-]+==\S+|    --hash=sha256:[0-9a-f]{64}")
    assert [line for line in lines if not package_or_hash.match(line)] == []
    assert [line for line in lines if re.search(r"://|index|find-links|file:", line)] == []


def test_locks_hold_every_dependency_and_agree() -> None:
    version = re.compile(r"^([a-z0-9-]+)(?:\[.*\])?==(\S+)", re.MULTILINE)
    runtime, development, build = (dict(version.findall(lock.read_text())) for lock in LOCKS)
    named = {re.split(r"[\[<>=]", entry)[0] for entry in PROJECT["project"]["dependencies"]}
    assert named - runtime.keys() == set()
    assert {name: development.get(name) for name in runtime} == runtime
    assert {name: development.get(name) for name in build} == build
    assert {re.split(r"[<>=]", entry)[0] for entry in PROJECT["build-system"]["requires"]} - build.keys() == set()


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] in {"Unreleased", PROJECT["project"]["version"]}


def test_pages_name_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = {target for page in pages for target in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named - targets == set()


def test_pages_link_to_files_that_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    link_here = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")
    links = [(page, link) for page in pages for link in link_here.findall(page.read_text())]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []
