"""The benchmark of the console's lists runs, over a small database."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.benchmarks.console_lists import CONVERSATIONS, REQUESTS
from tests.console.browser import MISSING, REQUIRED, ROOT

SECONDS = 300
"""40 on an idle machine; a hang ends it."""


@pytest.mark.timeout(SECONDS + 10)
def test_each_action_is_timed() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.console_lists", "--conversations", "450", "--requests", "460"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS)
    if MISSING in ended.stderr and REQUIRED not in os.environ:
        pytest.skip(MISSING)
    assert ended.returncode == 0, ended.stderr
    assert "450 conversations, 460 requests" in ended.stdout
    assert (
        len(re.findall(r"painted +\d+ +request +\d+ +processor +\d+", ended.stdout))
        == len(CONVERSATIONS) + len(REQUESTS) + 2
    )
