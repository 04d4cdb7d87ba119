"""The `openai` package's own generated tests of the Responses API run against a gateway.

They are in the package's source distribution, which is fetched as the development lock names it. The plugin in
`generated/generated_tests.py` has the table of which tests run as they are, which need another request, and which
assert an error that is documented.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.harness import Gateway
from tests.integrations.generated_sources import find_generated_tests, run_generated_tests

FILES: Final = ("tests/api_resources/test_responses.py", "tests/api_resources/responses")
MIN_TESTS: Final = 195
"""How many tests of these files version 3.54 has; each is run at least once."""


@pytest.mark.timeout(400)
def test_the_generated_tests_pass(tmp_path: Path) -> None:
    folder = find_generated_tests("openai")
    database = tmp_path / "kept.db"
    with Gateway(tmp_path, {"database": {"url": f"sqlite:///{database}"}}) as gateway:
        environ = {"TEST_API_BASE_URL": gateway.base_url, "TEST_DATABASE": str(database)}
        assert run_generated_tests(folder, FILES, "generated_tests", environ) >= MIN_TESTS
