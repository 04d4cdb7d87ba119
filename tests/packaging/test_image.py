"""The Dockerfile's steps run, each on a bare root and as another user; what they make serves and is healthy."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    environ = {"CONCERTINA_SERVER__PORT": str(free_port())}
    assert image.run(image.health_check, environ, image.user).returncode != 0, "nothing serves yet"
    command, outside = image.wrap(image.command, environ, image.user)
    log = folder / "log"
    with log.open("w") as written:
        gateway = subprocess.Popen(command, env=outside, stdout=written, stderr=subprocess.STDOUT)
    try:
        await_health(image, environ, log)
        body = json.dumps({"model": "sim-8k", "messages": [{"role": "user", "content": "Hello"}]}).encode()
        address = f"http://127.0.0.1:{environ['CONCERTINA_SERVER__PORT']}"
        with urllib.request.urlopen(f"{address}/v1/chat/completions", body, timeout=20) as answer:
            assert json.load(answer)["context_status"] == "full"
    finally:
        gateway.terminate()
        status = gateway.wait(30)
    assert status == 0, log.read_text()
    assert image.path("/data/concertina.db").stat().st_uid == IMAGE_USER_ID


def can_reach_registry(base: Stage) -> bool:
    """Tells whether pip, inside, can ask for a package of the lock."""
    pip = ["python", "-m", "pip", "--retries", "0", "--timeout", "10"]
    return base.run([*pip, "index", "versions", "hatchling"], {}, base.user).returncode == 0


def await_health(image: Stage, environ: dict[str, str], log: Path) -> None:
    """Waits until the image's own health check succeeds."""
    deadline = time.monotonic() + HEALTHY_SECONDS
    while (ended := image.run(image.health_check, environ, image.user)).returncode != 0:
        assert time.monotonic() < deadline, ended.stderr + log.read_text()
