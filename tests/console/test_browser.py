"""Which browser the tests take, and that nothing else is unpacked than what is expected."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.console import browser, install_browser


def playwright_with(own: Path) -> Any:
    return SimpleNamespace(chromium=SimpleNamespace(executable_path=str(own)))


def a_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_browser_that_is_named_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, unpacked = tmp_path / "own", tmp_path / "unpacked"
    monkeypatch.delenv(browser.ENVIRONMENT, raising=False)
    monkeypatch.setattr(browser, "UNPACKED", unpacked)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    playwright = playwright_with(own)
    assert browser.find_browser(playwright) is None
    assert browser.find_browser(playwright_with(a_program(own))) == str(own)
    machine = a_program(tmp_path / "bin" / "chromium-browser")
    assert browser.find_browser(playwright) == str(machine)
    assert browser.find_browser(playwright_with(a_program(unpacked))) == str(unpacked)
    monkeypatch.setenv(browser.ENVIRONMENT, "/elsewhere/chrome")
    assert browser.find_browser(playwright) == "/elsewhere/chrome"


def test_an_archive_that_is_another_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "package.tgz"
    archive.write_bytes(b"something else")
    with pytest.raises(ValueError, match="is not what it was"):
        install_browser.unpack(archive, "node", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["package.tgz"]
