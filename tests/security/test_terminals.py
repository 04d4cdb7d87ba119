"""What keys are called steers no terminal that a command writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.__main__ import main
from tests.support.sqlite_gateway import config_in

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m[red]not markup[/nothing]\r"


def test_names_of_keys_are_shown_without_what_they_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_in(tmp_path, auth={"mode": "keys"})
    assert main(["keys", "create", "--name", "ab", "--config", config]) == 0
    main(["keys", "create", "--name", STEERING, "--config", config])
    main(["keys", "list", "--config", config])
    told = capsys.readouterr()
    assert not any(character in told.out + told.err for character in "\x1b\x07\x9b\r")
