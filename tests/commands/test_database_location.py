"""SQLite's path is relative to the working folder: commands say where they looked, and make no second database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.__main__ import main
from app.settings.sections import Database
from tests.harness import Process

READING = {
    "keys list": 1,
    "keys revoke key_0": 1,
    "export": 1,
    "purge --dry-run": 1,
}
"""Commands with the exit status where there is no database."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration; the working folder is an empty one beside it."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    file = tmp_path / "my own.yaml"
    file.write_text("auth: {mode: keys}\ndatabase: {url: 'sqlite:///data/c.db'}")
    return file


@pytest.mark.parametrize("command", READING)
def test_a_command_that_only_reads_makes_no_database(
    command: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--config", str(file)]) == READING[command]
    assert (
        f"concertina: there is no database at {Path.cwd()}/data/c.db; "
        "run this in the folder where the gateway runs, or pass --config.\n"
    ) in capsys.readouterr().err
    assert list(Path.cwd().iterdir()) == []


def test_a_new_key_is_told_with_what_was_set_and_where_it_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create = ["keys", "create", "--name", "x", "--config", str(file)]
    limits = ["--models", "a,b*", "--budget-usd", "20", "--retention-days", "30", "--policy", "fade"]
    assert main([*create, *limits, "--tenant", "acme", "--expires-at", "2999-01-31"]) == 0
    told = capsys.readouterr().out
    assert (
        "· tenant acme · scopes chat, read, manage · models a, b* · policy fade · budget $20.00 a month · "
        "erases conversations that rest for 30 days · valid until 2999-01-31 00:00\n"
    ) in told
    assert f"It is in the database {Path.cwd()}/data/c.db\n" in told
    assert main(create) == 0
    assert "· all models · no budget · valid until it is revoked\n" in capsys.readouterr().out


def test_hints_of_commands_name_the_file_that_was_given(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = f"concertina keys create --name NAME --config '{file}'"
    assert main(["doctor", "--config", str(file)]) == 0
    told = capsys.readouterr().out
    assert f"Database {Path.cwd()}/data/c.db\n" in told
    assert f"nobody is served: {hint}\n" in told
    assert main(["keys", "list", "--config", str(file)]) == 0
    assert f"`{hint}`" in capsys.readouterr().out
    assert main(["keys", "revoke", "key_0", "--config", str(file)]) == 1
    assert f"`concertina keys list --config '{file}'`" in capsys.readouterr().err
    with Process("serve", "--port", "0", "--config", str(file), environ={"PYTHONPATH": ROOT}) as served:
        assert f"; database: {Path.cwd()}/data/c.db)" in served.output
        messages = [json.loads(line)["message"] for line in served.output.splitlines() if line.startswith("{")]
    assert f"there is no API key yet, so every request is refused: run `{hint}`" in messages


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("sqlite+aiosqlite:////srv/a%20b@c.db?x=1", "/srv/a b@c.db"),
        ("postgresql://me:secret@db/c?password=secret", "postgresql://db/c"),
        ("memory://", "memory://"),
    ],
)
def test_a_location_has_no_credentials(url: str, location: str) -> None:
    assert Database.model_validate({"url": url}).location == location


ROOT = str(Path(__file__).parents[2])
