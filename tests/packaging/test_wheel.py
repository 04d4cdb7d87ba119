"""The wheel in an environment of its own, used from a folder in which `app` and `migrations` are somebody else's."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.store.database_url import parse_database_url
from app.store.sql.required_schema_version import SCHEMA_VERSION
from migrations import upgrading
from tests.harness import Process

ROOT = Path(__file__).parents[2]
PACKAGE = "concertina_gateway"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
USERS_CODE = "OWNER = '{owner}'\n"
TELL_OWNERS = "import concertina_gateway, app, migrations; print(app.OWNER, migrations.OWNER)"


@dataclass(frozen=True, slots=True)
class Installation:
    """A virtual environment with the wheel in it."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin/python")

    @property
    def command(self) -> str:
        return str(self.folder / "bin/concertina")

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.folder)}))


def build(target: str, source: Path, folder: Path) -> Path:
    """Builds a `wheel` or an `sdist`; returns its file."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=100)
    (built,) = folder.iterdir()
    return built


def run(command: Sequence[str], folder: Path, **environ: str) -> str:
    """Runs a command that must succeed; returns what it printed."""
    environ = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **environ}
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def write_users_code(folder: Path, shape: str, owner: str) -> None:
    """Writes modules `app` and `migrations` of a user into a folder."""
    for name in ("app", "migrations"):
        file = {"package": f"{name}/__init__.py", "folder": f"{name}/main.py", "module": f"{name}.py"}[shape]
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(USERS_CODE.format(owner=owner))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution."""
    sources = tmp_path_factory.mktemp("sources")
    with tarfile.open(build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))) as archive:
        archive.extractall(sources, filter="data")
    (source,) = sources.iterdir()
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel beside a user's installed packages `app` and `migrations`. Dependencies are those of this process."""
    installation = Installation(tmp_path_factory.mktemp("installation"))
    venv.create(installation.folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(installation.folder), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True, timeout=100)
    # A path file in the folder that it names is not read: the editable installation of the clone stays out.
    (installation.site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    write_users_code(installation.site_packages, "package", "installed")
    return installation


def test_the_wheel_has_one_package_with_code_configuration_and_types(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: info.CRC for info in archive.infolist()}
    assert {name.partition("/")[0] for name in files} == {PACKAGE, f"{PACKAGE}-{VERSION}.dist-info"}
    assert f"{PACKAGE}/py.typed" in files
    for folder in ("app", "config", "migrations"):
        kept = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        packed = {name for name in files if name.startswith(f"{PACKAGE}/{folder}/")}
        assert packed == {f"{PACKAGE}/{path.relative_to(ROOT)}" for path in kept}
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path)) as archive:
        assert {info.filename: info.CRC for info in archive.infolist()} == files, "the source distribution lacks files"


# Python prefers an installed package to a folder without `__init__.py`.
@pytest.mark.parametrize(("shape", "owner"), [("package", "user"), ("module", "user"), ("folder", "installed")])
@pytest.mark.parametrize("python_path", ["", "."])
def test_the_command_is_ours_and_import_app_is_the_users(
    installation: Installation, shape: str, owner: str, python_path: str, tmp_path: Path
) -> None:
    write_users_code(tmp_path, shape, "user")
    for command in ([installation.command], [installation.python, "-m", PACKAGE]):
        assert run([*command, "--version"], tmp_path, PYTHONPATH=python_path) == f"concertina {VERSION}\n"
    told = run([installation.python, "-c", TELL_OWNERS], tmp_path, PYTHONPATH=python_path)
    assert told == f"{owner} {owner}\n"


@pytest.mark.parametrize("shape", ["package", "module", "folder"])
def test_the_command_is_ours_without_the_working_directory_on_the_path(
    installation: Installation, shape: str, tmp_path: Path
) -> None:
    write_users_code(tmp_path, shape, "user")
    for command in ([installation.command], ["-m", PACKAGE]):
        assert run([installation.python, "-P", *command, "--version"], tmp_path) == f"concertina {VERSION}\n"
    assert run([installation.python, "-P", "-c", TELL_OWNERS], tmp_path) == "installed installed\n"


@pytest.mark.timeout(90)
def test_two_workers_serve_an_old_database_from_a_folder_with_an_app(
    installation: Installation, tmp_path: Path
) -> None:
    write_users_code(tmp_path, "package", "user")
    url = f"sqlite:///{tmp_path}/old.db"
    upgrading.upgrade_schema(parse_database_url(url), "2026_11_22_find_messages")
    environ = {"PYTHONPATH": ".", "CONCERTINA_DATABASE__URL": url, "CONCERTINA_SERVER__WORKERS": "2"}
    with Process("serve", "--port", "0", environ=environ, cwd=tmp_path, program=[installation.command]) as gateway:
        body = {"model": "sim-8k", "messages": [{"role": "user", "content": "The locker code is 7741."}]}
        answer = json.loads(fetch(f"{gateway.address}/v1/chat/completions", body))
        assert answer["context_status"] == "full"
        assert answer["choices"][0]["message"]["content"]
        for path in ("/console/", "/docs", "/metrics", f"/v1/conversations/{answer['conversation_id']}"):
            assert fetch(gateway.address + path)
        assert len(list_workers(gateway.process.pid)) == 2
        assert gateway.stop() == 0, gateway.output
    with sqlite3.connect(tmp_path / "old.db") as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [(SCHEMA_VERSION,)]
    database.close()


def test_the_configuration_files_are_where_the_pages_say(installation: Installation, tmp_path: Path) -> None:
    write_users_code(tmp_path, "package", "user")
    page = (ROOT / "docs/quickstart.md").read_text()
    line = f"python -c 'import {PACKAGE}; print(*{PACKAGE}.__path__)'"
    assert line in page
    environ = {"PATH": f"{installation.folder}/bin:{os.environ['PATH']}"}
    folder = Path(run(["sh", "-c", line], tmp_path, **environ).strip()) / "config"
    for name in ("concertina.yaml", "default.yaml"):
        copied = str(shutil.copy(folder / name, tmp_path))
        assert ": ok\n" in run([installation.command, "check-config", copied], tmp_path)


def fetch(address: str, body: Any = None) -> bytes:
    """Sends a request; returns the answer's body."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(address, data, timeout=20) as answer:
        received: bytes = answer.read()
    return received


def list_workers(process_id: int) -> list[int]:
    """Returns the ids of a gateway's worker processes."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
