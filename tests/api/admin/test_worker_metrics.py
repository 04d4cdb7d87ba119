"""Whichever of several workers is asked tells for all of them, those that were killed included."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Gateway
from tests.selection import IS_FULL_RUN

WORKERS = 2
BACK_SECONDS = 60.0
KILLS = 20 if IS_FULL_RUN else 4
MANY = 20
"""Connections go to workers at random: one may serve a few in a row."""


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(address + path, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def ask(address: str, text: str) -> None:
    body = json.dumps({"model": "sim-echo", "messages": [{"role": "user", "content": text}]}).encode()
    asking = urllib.request.Request(f"{address}/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asking, timeout=20) as answer:
        assert answer.status == 200


def number(address: str, sample: str) -> float:
    found = re.search(rf"^concertina_{re.escape(sample)} (\S+)$", get(address, "/metrics"), re.MULTILINE)
    assert found is not None
    return float(found[1])


def await_workers(address: str) -> None:
    """Until as many serve as are meant to: the one that was killed is missed within half a second."""
    deadline = time.monotonic() + BACK_SECONDS
    while number(address, "workers") < WORKERS:
        assert time.monotonic() < deadline, "the worker does not come back"
        time.sleep(0.05)


def workers_of(gateway: Gateway) -> list[int]:
    """Process ids, those of multiprocessing's own helpers left out."""
    listed = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
    return [int(pid) for pid in listed if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.timeout(600)  # it starts a worker process for each kill
def test_killed_workers_take_no_number_with_them(tmp_path: Path) -> None:
    turns = 'turns_total{policy="additive",status="full"}'
    config: dict[str, Any] = {
        "server": {"workers": WORKERS},
        "database": {"url": f"sqlite+aiosqlite:///{tmp_path}/kept.db"},
    }
    with Gateway(tmp_path, config) as gateway:
        await_workers(gateway.address)
        for one in range(MANY):
            ask(gateway.address, f"Question {one}")
        assert {number(gateway.address, turns) for _ in range(MANY)} == {MANY}
        for kill in range(KILLS):
            os.kill(workers_of(gateway)[kill % WORKERS], signal.SIGKILL)
            deadline = time.monotonic() + BACK_SECONDS
            while number_or_none(gateway.address, "workers") == WORKERS:
                assert time.monotonic() < deadline, "the killed worker is counted on"
            assert number(gateway.address, turns) == MANY + kill
            await_workers(gateway.address)
            ask(gateway.address, f"One more question after kill {kill}")
            assert {number(gateway.address, turns) for _ in range(WORKERS)} == {MANY + kill + 1}
        at_a_glance = json.loads(get(gateway.address, "/v1/admin/overview"))
        assert (at_a_glance["workers"], at_a_glance["totals"]["requests"]) == (WORKERS, MANY + KILLS)
        assert at_a_glance["now"]["requests_in_flight"] == 0


def number_or_none(address: str, sample: str) -> float | None:
    """None where the connection was the killed worker's."""
    try:
        return number(address, sample)
    except (urllib.error.URLError, ConnectionError):
        return None
