"""The `anthropic` package's own generated tests of messages, token counts and models run against a gateway.

They are in the package's source distribution, which is fetched as the development lock names it. The plugin in
`generated/anthropic_tests.py` says how they are run. Others are left out: files, skills, batches, agents, organizations
and the rest are endpoints that the gateway does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.harness import Gateway
from tests.integrations.generated_sources import find_generated_tests, run_generated_tests

FILES: Final = tuple(
    f"tests/api_resources/{part}test_{name}.py" for part in ("", "beta/") for name in ("messages", "models")
)
MIN_TESTS: Final = 180
"""How many tests of these files version 2.14 has, without those of the client over aiohttp."""
LOOPS: Final = ("mode=auto", "default_test_loop_scope=session", "default_fixture_loop_scope=session")


@pytest.mark.timeout(400)
def test_the_generated_tests_pass(tmp_path: Path) -> None:
    folder = find_generated_tests("anthropic")
    with Gateway(tmp_path, {"database": {"url": f"sqlite:///{tmp_path}/kept.db"}}) as gateway:
        environ = {"TEST_API_BASE_URL": gateway.address}
        options = ("--noconftest", *[word for loop in LOOPS for word in ("-o", f"asyncio_{loop}")])
        assert run_generated_tests(folder, FILES, "anthropic_tests", environ, *options) >= MIN_TESTS
