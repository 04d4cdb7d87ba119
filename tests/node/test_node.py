"""OpenAI's client for JavaScript against a gateway: each script here is one group of endpoints."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.harness import Gateway
from tests.node.packages import HERE, node_with_packages

SCRIPTS = sorted(path.name for path in HERE.glob("*.mjs") if path.name != "client.mjs")
SCRIPT_SECONDS = 60


@pytest.fixture(scope="session")
def node() -> str:
    return node_with_packages()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("node")
    with Gateway(folder, {"database": {"url": "memory://"}}) as running:
        yield running.address


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_client_for_javascript_does(script: str, node: str, address: str) -> None:
    ended = subprocess.run(
        [node, script],
        cwd=HERE,
        env={**os.environ, "GATEWAY_URL": f"{address}/v1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SCRIPT_SECONDS,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
