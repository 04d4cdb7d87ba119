"""`make test` leaves long tests to `make test-full`; whatever is named is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selection import FULL_RUN_VARIABLE, LEFT_TO_FULL_RUN, MAIN_PATH_IN_BROWSER, TESTS, is_left_out

WHOLE_RUN = [str(TESTS)]


@pytest.fixture(autouse=True)
def not_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FULL_RUN_VARIABLE, raising=False)


def test_a_new_folder_is_run_without_being_named() -> None:
    assert not is_left_out(TESTS / "a_new_room", WHOLE_RUN)
    assert not is_left_out(TESTS / "docs" / "test_new.py", WHOLE_RUN)


@pytest.mark.parametrize("place", ["faults", "docs/test_snippets.py", "console/test_mishaps.py"])
def test_a_long_one_is_left_out_unless_it_is_named_or_the_run_is_full(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TESTS / place
    assert is_left_out(path, WHOLE_RUN)
    assert is_left_out(path, [])
    assert not is_left_out(path, [str(path)])
    assert not is_left_out(path, [f"{path}::test_one"])
    assert not is_left_out(path, [str(path / "test_one.py")])
    monkeypatch.setenv(FULL_RUN_VARIABLE, "1")
    assert not is_left_out(path, WHOLE_RUN)


def test_a_folder_that_is_named_is_run_with_all_its_files() -> None:
    assert not is_left_out(TESTS / "console" / "test_mishaps.py", [str(TESTS / "console")])
    assert not is_left_out(TESTS / "faults" / "test_kills.py", ["tests/faults"])


def test_what_is_named_here_exists() -> None:
    for place in LEFT_TO_FULL_RUN:
        assert (TESTS / place).exists(), place
    for name in MAIN_PATH_IN_BROWSER:
        assert (TESTS / "console" / name).is_file(), name


def test_a_path_elsewhere_is_run() -> None:
    assert not is_left_out(Path("/somewhere/test_one.py"), [])
