"""The OpenAPI document is complete and true: requests made from it get the answers it describes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from app.main import create_app
from app.settings import load
from tests.live import serving

TESTS = Path(__file__).parents[1]
REPORT_CHARS = 20_000


def application() -> Any:
    """The gateway with the simulated model, over a store in memory."""
    return create_app(load(environ={}, arguments={("database",): {"url": "memory://"}}))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("phases", ["examples,coverage,fuzzing", "stateful"])
async def test_generated_requests_get_what_is_described(phases: str, tmp_path: Path) -> None:
    async with serving(application()) as address:
        run = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(TESTS / "schemathesis.toml")),
            *("run", f"{address}/openapi.json", "--phases", phases, "--max-examples", "20", "--seed", "7"),
            *("--generation-database", "none", "--no-color"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await run.communicate()
    told = output.decode(errors="replace")
    assert run.returncode == 0, told[-REPORT_CHARS:]
    assert "Tested" in told
