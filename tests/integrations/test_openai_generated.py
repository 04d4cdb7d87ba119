"""The `openai` package's own generated tests of the Responses API run against a gateway.

They are in the package's source distribution, which is fetched as the development lock names it. The plugin in
`generated/generated_tests.py` has the table of which tests run as they are, which need another request, and which
assert an error that is documented.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.harness import Gateway
from tests.integrations.pages import ROOT
from tests.node.packages import missing

PLUGIN_FOLDER: Final = Path(__file__).parent / "generated"
FOLDER: Final = ROOT / ".venv" / "openai-tests"
FILES: Final = ("tests/api_resources/test_responses.py", "tests/api_resources/responses")
FETCH_SECONDS: Final = 100
RUN_SECONDS: Final = 200
COUNTS: Final = re.compile(r"^(\d+) passed in ", re.MULTILINE)
MIN_TESTS: Final = 195
"""How many tests of these files version 3.54 has; each is run at least once."""


@pytest.fixture(scope="session")
def generated_tests() -> Path:
    """The folder of the source distribution of the package that is installed."""
    version = importlib.metadata.version("openai")
    unpacked = FOLDER / f"openai-{version}"
    with (Path(tempfile.gettempdir()) / f"concertina-tests-openai-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run side by side fetch it once
        if not (unpacked / "tests").exists():
            fetch_source(version)
    return unpacked


def fetch_source(version: str) -> None:
    """Fetches and unpacks the source distribution; its hash is in the development lock."""
    locked = re.search(rf"^openai=={re.escape(version)} \\\n(?:    --hash=\S+(?: \\)?\n)+", read_lock(), re.MULTILINE)
    if locked is None:
        missing(f"the lock does not name version {version} of the package `openai`")
    FOLDER.mkdir(parents=True, exist_ok=True)
    requirement = FOLDER / "requirement.txt"
    requirement.write_text(locked[0])
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--require-hashes"]
    command += ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(FOLDER)]
    try:
        ended = subprocess.run(
            [*command, "--requirement", str(requirement)],
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        missing("the source distribution of the package `openai` could not be fetched in time")
    if ended.returncode != 0:
        missing(f"the source distribution of the package `openai` could not be fetched: {ended.stderr[-500:]}")
    with tarfile.open(FOLDER / f"openai-{version}.tar.gz") as archive:
        archive.extractall(FOLDER, filter="data")


def read_lock() -> str:
    return (ROOT / "requirements-dev.lock").read_text()


@pytest.mark.timeout(400)
def test_the_generated_tests_pass(generated_tests: Path, tmp_path: Path) -> None:
    database = tmp_path / "kept.db"
    with Gateway(tmp_path, {"database": {"url": f"sqlite:///{database}"}}) as gateway:
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--maxfail=20", "-o", "addopts=", *FILES]
        command += ["-p", "generated_tests", "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:xdist"]
        ended = subprocess.run(
            command,
            cwd=generated_tests,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTEST_"))},
                "PYTHONPATH": str(PLUGIN_FOLDER),
                "PYTHONDONTWRITEBYTECODE": "1",
                "TEST_API_BASE_URL": gateway.base_url,
                "TEST_DATABASE": str(database),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
        )
    assert ended.returncode == 0, ended.stdout[-12000:] + ended.stderr[-2000:]
    counts = COUNTS.search(ended.stdout)
    assert counts is not None, ended.stdout[-2000:]
    assert int(counts[1]) >= MIN_TESTS
