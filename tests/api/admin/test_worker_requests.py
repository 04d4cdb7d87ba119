"""Whichever of several workers is asked lists the requests of all of them, those that a killed one has written
included."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.__main__ import main
from tests.api.admin.test_worker_metrics import BACK_SECONDS, MANY, WORKERS, await_workers, workers_of
from tests.harness import Gateway


def ask(address: str, key: str, text: str) -> str:
    """Asks the model, and returns the id of the request."""
    body = json.dumps({"model": "sim-echo", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    asking = urllib.request.Request(f"{address}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(asking, timeout=20) as answer:
        request_id: str = answer.headers["x-request-id"]
    return request_id


def listed(address: str, key: str) -> set[str]:
    """The ids of the recent requests; empty if the connection was a killed worker's."""
    asking = urllib.request.Request(
        f"{address}/v1/admin/requests?limit=100", headers={"authorization": f"Bearer {key}"}
    )
    try:
        with urllib.request.urlopen(asking, timeout=20) as answer:
            return {request["id"] for request in json.load(answer)["data"]}
    except (urllib.error.URLError, ConnectionError):
        return set()


def await_listed(address: str, key: str, expected: set[str]) -> None:
    """Until each of several answers in a row, which come from different workers, has all requests."""
    deadline = time.monotonic() + BACK_SECONDS
    while not all(listed(address, key) == expected for _ in range(MANY)):
        assert time.monotonic() < deadline, "not all workers list all requests"
        time.sleep(0.05)


def await_written(database: Path, count: int) -> None:
    """Until the database has so many requests."""
    deadline = time.monotonic() + BACK_SECONDS
    with contextlib.closing(sqlite3.connect(database)) as connection:
        while connection.execute("SELECT count(*) FROM requests").fetchone() != (count,):
            assert time.monotonic() < deadline, "not all requests are written"
            time.sleep(0.05)


@pytest.mark.parametrize("metrics", [True, False])
def test_each_worker_lists_the_requests_of_all(
    metrics: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config: dict[str, Any] = {
        "server": {"workers": WORKERS},
        "auth": {"mode": "keys"},
        "database": {"url": f"sqlite+aiosqlite:///{tmp_path}/kept.db"},
        "telemetry": {"metrics": metrics},
    }
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump(config))
    assert main(["migrate", "--config", str(file)]) == 0
    capsys.readouterr()
    assert main(["keys", "create", "--name", "one", "--scopes", "chat,admin", "--config", str(file)]) == 0
    key = capsys.readouterr().out.splitlines()[0]
    with Gateway(tmp_path, config) as gateway:
        if metrics:
            await_workers(gateway.address)
        asked = {ask(gateway.address, key, f"Question {number}") for number in range(MANY)}
        await_listed(gateway.address, key, asked)
        await_written(tmp_path / "kept.db", len(asked))
        os.kill(workers_of(gateway)[0], signal.SIGKILL)
        await_listed(gateway.address, key, asked)
        if metrics:
            await_workers(gateway.address)
        asked.add(ask(gateway.address, key, "One more question"))
        await_listed(gateway.address, key, asked)
