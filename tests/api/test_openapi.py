"""The OpenAPI document is complete and true: requests made from it get the answers it describes."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from app.settings import load_settings
from tests.api.admin.test_metrics import told as metrics_of
from tests.live import create_test_app, serving
from tests.pipeline.call.test_failing_upstreams import ANSWERS, failing, keep_a_conversation

TESTS = Path(__file__).parents[1]
REPORT_CHARS = 20_000
ASKS_A_PROVIDER = "^/v1/(chat/completions|responses|models|models/.model.|conversations/.conversation_id./compact)$"
UNUSABLE = (
    *("hangs up", "hangs up in the head", "no HTTP", "only continue", "a body that is shorter than it says"),
    *("says nothing", "a length that is none", "chunks that are none", "empty", "half of JSON", "no JSON"),
    *("nested without end", "no choices", "choices that are none", "events of nothing", "events that are none"),
)
"""Of `ANSWERS`, those that a provider's failure is made of: none is an error of its own that would pass unchanged."""


def application() -> Any:
    """The gateway with the simulated model, over a store in memory."""
    return create_test_app(load_settings(environ={}, arguments={("database",): {"url": "memory://"}}))


async def check_generated_requests(address: str, folder: Path, *options: str) -> None:
    """Send requests made from the document of the gateway at `address`; fail with the report if an answer is wrong."""
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(TESTS / "schemathesis.toml")),
        *("run", f"{address}/openapi.json", *options, "--max-examples", "20", "--seed", "7"),
        *("--generation-database", "none", "--no-color"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await run.communicate()
    told = output.decode(errors="replace")
    assert run.returncode == 0, told[-REPORT_CHARS:]
    assert "Tested" in told


@pytest.mark.timeout(300)
@pytest.mark.parametrize("phases", ["examples,coverage,fuzzing", "stateful"])
async def test_generated_requests_get_what_is_described(phases: str, tmp_path: Path) -> None:
    async with serving(application()) as address:
        await check_generated_requests(address, tmp_path, "--phases", phases)


@pytest.mark.timeout(300)
async def test_generated_requests_get_what_is_described_while_the_provider_fails(tmp_path: Path) -> None:
    async with failing() as (upstream, w):
        await keep_a_conversation(upstream, w)
        upstream.answers = deque(ANSWERS[name] for name in UNUSABLE)
        options = ["--phases", "coverage,fuzzing", "--include-path-regex", ASKS_A_PROVIDER]
        # That the provider fails is a server error; which ones there were is counted below.
        options += ["--exclude-checks", "not_a_server_error,positive_data_acceptance"]
        await check_generated_requests(w.base_url.removesuffix("/v1"), tmp_path, *options)
        seen = await metrics_of(w)
    assert seen("errors_total", code="upstream_unavailable") > 10
    assert seen("errors_total", code="internal_error") == 0
    assert seen("requests_total", code="500") == 0
