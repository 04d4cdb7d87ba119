"""The OpenAPI document is complete and true: requests made from it get the answers it describes."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from app.api.openapi_texts import BODY_EXAMPLES, SDK_SAMPLES
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


def test_every_tag_is_described_and_every_example_has_its_operation() -> None:
    document = application().application.openapi()
    operations = {
        (method, path): operation for path, item in document["paths"].items() for method, operation in item.items()
    }
    assert {tag for operation in operations.values() for tag in operation["tags"]} == {
        tag["name"] for tag in document["tags"]
    }
    assert BODY_EXAMPLES.keys() | SDK_SAMPLES.keys() <= operations.keys()
    with_bodies = {key for key, operation in operations.items() if "requestBody" in operation}
    # The one without: it takes pairs that only the application knows.
    assert with_bodies - BODY_EXAMPLES.keys() == {("post", "/v1/chat/completions/{completion_id}")}


async def test_the_samples_of_code_for_python_run() -> None:
    samples = [one["source"] for samples in SDK_SAMPLES.values() for one in samples if one["lang"] == "python"]
    assert len(samples) == len(SDK_SAMPLES)
    async with serving(application()) as address:
        for sample in samples:
            code = sample.replace("http://127.0.0.1:8000", address)
            ran = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
            output, _ = await ran.communicate()
            assert (ran.returncode, bool(output.strip())) == (0, True)
