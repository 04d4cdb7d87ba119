"""The gateway runs as nobody, without a home, without capabilities, with nothing to write to but its data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.servers import free_port

ROOT = Path(__file__).parents[2]
READY_SECONDS = 40.0
JAIL = """
set -e
mount --make-rprivate /
mount --bind "$BASE" "$ROOM/python"; mount --bind "$SITE" "$ROOM/site"; mount --bind "$CHECKOUT" "$ROOM/checkout"
mount --bind "$ROOM/data" "$ROOM/data"
for place in / "$ROOM/python" "$ROOM/site" "$ROOM/checkout"; do mount -o remount,bind,ro "$place"; done
cd "$ROOM/data"
exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \\
  env -i PATH=/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH="$ROOM/python/lib" \\
  PYTHONPATH="$ROOM/checkout:$ROOM/site" CONCERTINA_SERVER__PORT="$PORT" \\
  CONCERTINA_DATABASE__URL="sqlite+aiosqlite:///$ROOM/data/concertina.db" \\
  "$ROOM/python/bin/$PYTHON" -m app serve --workers "$WORKERS"
"""


def can_jail() -> bool:
    tools = all(shutil.which(name) for name in ("unshare", "setpriv", "mount"))
    return tools and os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


@pytest.mark.skipif(not can_jail(), reason="needs root, and a kernel that gives out name spaces")
@pytest.mark.parametrize("workers", [1, 2])
def test_it_serves_as_nobody_on_a_root_that_cannot_be_written(workers: int, tmp_path: Path) -> None:
    for folder in ("python", "site", "checkout", "data"):
        (tmp_path / folder).mkdir()
    os.chown(tmp_path / "data", 65534, 65534)
    for parent in (tmp_path, *tmp_path.parents[:-1]):
        if not parent.stat().st_mode & 1 and parent.name.startswith(("pytest", "popen", "test_")):
            parent.chmod(0o755)
    port = free_port()
    environ = {
        "BASE": sys.base_prefix,
        "SITE": sysconfig.get_path("purelib"),
        "CHECKOUT": str(ROOT),
        "PORT": str(port),
        "ROOM": str(tmp_path),
        "PYTHON": f"python3.{sys.version_info.minor}",
        "WORKERS": str(workers),
    }
    log = tmp_path / "data" / "log"
    with log.open("w") as written:
        jail = ["unshare", "-m", "sh", "-c", JAIL]
        running = subprocess.Popen(jail, env={**os.environ, **environ}, stdout=written, stderr=subprocess.STDOUT)
    try:
        _await(port, running, log)
        status = Path(f"/proc/{running.pid}/status").read_text()
        assert re.search(r"Uid:\s+65534", status)
        assert re.search(r"CapEff:\s+0+\n", status)
        asked = json.dumps({"model": "sim-8k", "messages": [{"role": "user", "content": "Hello"}]}).encode()
        told = json.loads(_read(port, "/v1/chat/completions", asked))
        assert told["context_status"] == "full"
        assert _read(port, f"/v1/conversations/{told['conversation_id']}")
        for path in ("/docs", "/console/", "/metrics", "/openapi.json"):
            assert _read(port, path)
    finally:
        running.terminate()
        running.wait(20)
    assert {file.name.partition("-")[0] for file in (tmp_path / "data").iterdir()} <= {"concertina.db", "log"}


def test_image_and_compose_file_ask_for_nothing_more() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    last = dockerfile.rpartition("\nFROM ")[2]
    assert re.search(r"^USER concertina$", last, re.MULTILINE)
    assert "RUN" not in last.partition("\nUSER ")[2], "nothing is done as root behind it"
    assert re.findall(r"--(?:chmod|privileged)|chmod|sudo|curl |ADD ", dockerfile) == []
    assert "--require-hashes" in dockerfile
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ours = {name: service for name, service in services.items() if service.get("image") == "concertina"}
    assert set(ours) == {"gateway", "sidecar"}
    for service in ours.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        assert "cap_add" not in service
    for service in services.values():
        assert [port for port in service.get("ports", []) if not port.startswith("127.0.0.1:")] == []
        assert "docker.sock" not in str(service)
        assert service.get("network_mode") != "host"


def _await(port: int, running: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        assert running.poll() is None, log.read_text()
        try:
            _read(port, "/readyz")
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(log.read_text())


def _read(port: int, path: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=20) as answer:
        told: bytes = answer.read()
    return told
