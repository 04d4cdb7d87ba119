"""The Dockerfile's steps run, each on a bare root and as another user; what they make serves and keeps its data."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.servers import free_port
from tests.node.packages import missing
from tests.packaging.image import BUILD_USER, Stage, begin_stage, build, can_build, read_steps

ROOT = Path(__file__).parents[2]
HEALTHY_SECONDS = 30.0
IMAGE_USER_ID = 10001


def test_each_install_is_from_a_lock_with_hashes_or_without_an_index() -> None:
    steps = read_steps((ROOT / "Dockerfile").read_text())
    commands = [command.strip() for name, text in steps if name == "RUN" for command in text.split("&&")]
    pip = [command for command in commands if "/pip " in command]
    locked = [command for command in pip if "--require-hashes" in command and "--only-binary :all:" in command]
    assert [command.split()[-1] for command in locked] == ["requirements-build.lock", "requirements.lock"]
    for command in pip:
        alone = "--no-deps" in command and ("--no-build-isolation" in command or "--no-index" in command)
        assert command in locked or alone, command


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a few hundred megabytes, which pytest would keep."""
    with tempfile.TemporaryDirectory(prefix="concertina-image-") as name:
        yield Path(name)


@pytest.mark.timeout(600)  # 45 s on an idle machine
@pytest.mark.skipif(not can_build(), reason="needs root, mounts of its own, and a Python with a command `python`")
def test_the_steps_make_an_image_that_serves_and_is_healthy(folder: Path) -> None:
    if not can_reach_registry(begin_stage(folder / "base", BUILD_USER)):
        missing("no package registry can be reached")
    image = build(ROOT / "Dockerfile", folder)
    installed = {path.name for path in image.path("/opt/concertina/lib").glob("python*/site-packages/*")}
    assert "concertina_gateway" in installed
    assert installed & {"hatchling", "pip"} == set()
    sidecar = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["sidecar"]
    environ = {"CONCERTINA_SERVER__PORT": str(free_port())}
    address = f"http://127.0.0.1:{environ['CONCERTINA_SERVER__PORT']}/v1"
    assert image.run(image.health_check, environ, image.user).returncode != 0, "nothing serves yet"
    with serving(image, image.command, environ, folder / "first.log"):
        status, conversation_id = ask(address, ["Hello"])
        assert status == "full"
    own = {"CONCERTINA_SERVER__HOST": sidecar["environment"]["CONCERTINA_SERVER__HOST"], **environ}
    with serving(image, sidecar["command"], own, folder / "second.log"):
        again = ask(address, ["And now?"], conversation_id)
        assert again == ("full", conversation_id), "the conversation has survived the restart"
        with urllib.request.urlopen(f"{address}/conversations/{conversation_id}/items", timeout=20) as answer:
            assert len(json.load(answer)["data"]) == 4
        ask_once = [sys.executable, str(ROOT / "config/sidecar/ask.py")]
        application = {"OPENAI_BASE_URL": address, "MODEL": "sim-8k"}
        told = subprocess.run(ask_once, env=application, capture_output=True, text=True, timeout=60, check=True).stdout
        assert told.endswith("The model saw: full\n")
    assert image.path("/data/concertina.db").stat().st_uid == IMAGE_USER_ID


@contextmanager
def serving(image: Stage, command: Sequence[str], environ: dict[str, str], log: Path) -> Iterator[None]:
    """Runs a command of the image that serves until the context ends, and then must stop by itself."""
    inside, outside = image.wrap(command, environ, image.user)
    with log.open("w") as written:
        gateway = subprocess.Popen(inside, env=outside, stdout=written, stderr=subprocess.STDOUT)
    try:
        await_health(image, environ, log)
        yield
    finally:
        gateway.terminate()
        status = gateway.wait(30)
    assert status == 0, log.read_text()


def ask(address: str, texts: Sequence[str], conversation_id: str | None = None) -> tuple[str, str]:
    """Sends user messages; returns the answer's `context_status` and `conversation_id`."""
    body: dict[str, Any] = {"model": "sim-8k", "messages": [{"role": "user", "content": text} for text in texts]}
    if conversation_id is not None:
        body["conversation_id"] = conversation_id
    with urllib.request.urlopen(f"{address}/chat/completions", json.dumps(body).encode(), timeout=20) as answer:
        told = json.load(answer)
    return told["context_status"], told["conversation_id"]


def can_reach_registry(base: Stage) -> bool:
    """Tells whether pip, inside, can ask for a package of the lock."""
    pip = ["python", "-m", "pip", "--retries", "0", "--timeout", "10"]
    return base.run([*pip, "index", "versions", "hatchling"], {}, base.user).returncode == 0


def await_health(image: Stage, environ: dict[str, str], log: Path) -> None:
    """Waits until the image's own health check succeeds."""
    deadline = time.monotonic() + HEALTHY_SECONDS
    while (ended := image.run(image.health_check, environ, image.user)).returncode != 0:
        assert time.monotonic() < deadline, ended.stderr + log.read_text()
