"""Fetches a package's source distribution, whose generated tests run against a gateway, and runs them."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.integrations.pages import ROOT
from tests.node.packages import missing

PLUGIN_FOLDER: Final = Path(__file__).parent / "generated"
FETCH_SECONDS: Final = 100
RUN_SECONDS: Final = 200
BUILT_WITH_THE_LOCK: Final = frozenset({"openai"})
"""Packages whose build needs nothing but what the development lock has. pip builds a package before it downloads it."""
COUNTS: Final = re.compile(r"^(\d+) passed(?:, \d+ skipped)? in ", re.MULTILINE)


def find_generated_tests(package: str) -> Path:
    """The folder of the source distribution of a package, in the version that is installed."""
    version = importlib.metadata.version(package)
    folder = ROOT / ".venv" / f"{package}-tests"
    unpacked = folder / f"{package}-{version}"
    with (Path(tempfile.gettempdir()) / f"concertina-tests-{package}-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run side by side fetch it once
        if not (unpacked / "tests").exists():
            fetch_source(package, version, folder)
    return unpacked


def fetch_source(package: str, version: str, folder: Path) -> None:
    """Fetches and unpacks the source distribution; its hash is in the development lock."""
    pattern = rf"^{package}=={re.escape(version)} \\\n(?:    --hash=\S+(?: \\)?\n)+"
    locked = re.search(pattern, (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE)
    if locked is None:
        missing(f"the lock does not name version {version} of the package `{package}`")
    folder.mkdir(parents=True, exist_ok=True)
    requirement = folder / "requirement.txt"
    requirement.write_text(locked[0])
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--require-hashes"]
    command += ["--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
    command += ["--no-build-isolation"] if package in BUILT_WITH_THE_LOCK else []
    try:
        ended = subprocess.run(
            [*command, "--requirement", str(requirement)],
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired:
        missing(f"the source distribution of the package `{package}` could not be fetched in time")
    if ended.returncode != 0:
        missing(f"the source distribution of the package `{package}` could not be fetched: {ended.stderr[-500:]}")
    with tarfile.open(folder / f"{package}-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")


def run_generated_tests(
    folder: Path, files: Sequence[str], plugin: str, environ: Mapping[str, str], *options: str
) -> int:
    """Runs files of generated tests with one of the plugins in `generated`. Returns how many have passed: all."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--maxfail=20", "-o", "addopts=", *files]
    command += ["-p", plugin, "-p", "no:cacheprovider", "-p", "no:schemathesis", "-p", "no:xdist", *options]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "ANTHROPIC_", "AWS_", "PYTEST_"))
    }
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTHONPATH": str(PLUGIN_FOLDER), "PYTHONDONTWRITEBYTECODE": "1", **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert ended.returncode == 0, ended.stdout[-12000:] + ended.stderr[-2000:]
    counts = COUNTS.search(ended.stdout)
    assert counts is not None, ended.stdout[-2000:]
    return int(counts[1])
