"""`concertina init` writes a configuration that can be used, contains no key, and overwrites nothing."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from app.__main__ import main
from app.commands.init import PROVIDERS
from app.settings import load_settings

ADDRESSED = {"azure": "https://mine.openai.azure.com/openai/v1", "other": "https://api.example.com/v1"}
SECONDS = 30


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def options_for(provider: str) -> list[str]:
    return ["--provider", provider, *(["--base-url", ADDRESSED[provider]] if provider in ADDRESSED else [])]


@pytest.mark.parametrize("auth", ["open", "keys"])
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_is_written_passes_check_config(
    provider: str, database: str, auth: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.yaml"
    choices = ["--key-env", "MY_KEY", "--database", database, "--auth", auth]
    assert main(["init", str(file), *options_for(provider), *choices]) == 0
    monkeypatch.setenv("MY_KEY", "sk-secret")
    assert main(["check-config", str(file)]) == 0
    settings = load_settings(str(file))
    section = settings.providers[provider]
    assert section.api_key is not None
    assert section.api_key.get_secret_value() == "sk-secret"
    assert section.base_url == (ADDRESSED.get(provider) or PROVIDERS[provider].base_url)
    assert settings.auth.mode == auth
    assert settings.database.url.get_secret_value().startswith(database)


@pytest.mark.parametrize("auth", ["open", "keys"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_may_need_no_key(provider: str, auth: str, tmp_path: Path) -> None:
    file = str(tmp_path / "c.yaml")
    assert main(["init", file, *options_for(provider), "--key-env", "none", "--auth", auth]) == 0
    assert main(["check-config", file]) == 0


def test_the_defaults_suit_somebody_who_only_names_a_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["init", "--provider", "openai"]) == 0
    told = capsys.readouterr().out
    assert "OPENAI_API_KEY is not set in this shell" in told
    assert "concertina doctor --config concertina.yaml" in told
    assert told.splitlines()[-1].endswith("concertina serve --config concertina.yaml")
    assert main(["check-config", "concertina.yaml"]) == 0


def test_the_next_commands_are_told_as_this_one_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/concertina", "init"])
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my own.yaml", "--provider", "ollama", "--auth", "keys"]) == 0
    *_, doctor, key, serve = capsys.readouterr().out.splitlines()
    assert doctor.endswith(" .venv/bin/concertina doctor --config 'my own.yaml'")
    assert key.endswith(" .venv/bin/concertina keys create --name NAME --config 'my own.yaml'")
    assert serve.endswith(" .venv/bin/concertina serve --config 'my own.yaml'")


def test_a_file_is_overwritten_by_force_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("precious")
    assert main(["init", str(file), "--provider", "openai"]) == 1
    assert "--force" in capsys.readouterr().err
    assert file.read_text() == "precious"
    assert main(["init", str(file), "--provider", "openai", "--force"]) == 0
    assert "openai" in file.read_text()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "--provider"),
        (["--provider", "azure"], "--base-url"),
        (["--provider", "openai", "--key-env", "sk-secret"], "never the key itself"),
        (["--provider", "gemini", "--key-env", "AIzaSySecret"], "never the key itself"),
    ],
)
def test_what_cannot_be_used_is_refused_without_writing_and_without_asking(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    assert main(["init", str(file), *options]) == 1
    output = capsys.readouterr()
    assert told in output.err
    assert "ecret" not in output.out + output.err
    assert not file.exists()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:9318/v1", "begin with http:// or https://; did you mean http://127.0.0.1:9318/v1?\n"),
        ("localhost:9318/v1", "did you mean http://localhost:9318/v1?\n"),
        ("gpu-box:9318", "did you mean http://gpu-box:9318?\n"),
        ("api.example.com", "did you mean https://api.example.com?\n"),
        ("ftp://api.example.com/v1", "did you mean https://api.example.com/v1?\n"),
        ("sk-secret-0123", "it must begin with http:// or https://.\n"),
        ("me:secret@api.example.com/v1", "it must begin with http:// or https://.\n"),
        ("api.example.com/v1?key=secret", "it must begin with http:// or https://.\n"),
        ("127.0.0.1:93180/v1", "it must begin with http:// or https://.\n"),
        ("http://h:93180/v1", "its port must be a number from 1 to 65535.\n"),
        ("http://h:secret/v1", "its port must be a number from 1 to 65535.\n"),
        ("http:///v1", "expected the address of an API, such as 'https://api.openai.com/v1'.\n"),
        ("http://[::1/v1", "expected the address of an API, such as 'https://api.openai.com/v1'.\n"),
        ("http://h/v1/chat/completions", "expected the part before '/chat/completions'"),
        ("http://h/v1/responses/", "expected the part before '/responses'"),
        ("http://h/v1#x", "expected the part before '/chat/completions'"),
        ("https://me:secret@api.example.com", "it must have no key and no password inside"),
        ("https://api.example.com/v1?api_key=secret", "it must have no key and no password inside"),
        ("https://api.example.com/${v1}", "it must have no spaces, quotes, braces"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_what_is_wrong(
    address: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    assert main(["init", str(file), "--provider", "other", "--base-url", address]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("concertina: the address: ")
    assert told in output.err
    assert "ecret" not in output.out + output.err
    assert not file.exists()


def test_servers_without_a_key_and_other_addresses_are_told_apart(tmp_path: Path) -> None:
    _, shown = converse(tmp_path, ["\x04"])
    assert "7  local: local server without a key (vLLM, llama.cpp, LM Studio)" in shown
    assert "8  other: any other address, with a key" in shown


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "none/c.yaml"), "--provider", "openai"]) == 1
    assert "none/c.yaml: No such file" in capsys.readouterr().err


def converse(folder: Path, typed: list[str], *options: str) -> tuple[int, str]:
    """Runs `concertina init` on a terminal; gives its exit status and all that the terminal showed."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "concertina_gateway", "init", *options]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environ)
    os.close(theirs)
    shown, replies = b"", iter(typed)
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        shown += piece
        if shown.endswith(b"] "):
            os.write(ours, next(replies).encode())
    os.close(ours)
    return process.wait(SECONDS), shown.decode()


def test_three_questions_on_a_terminal_make_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, shown = converse(tmp_path, ["anthropc\n", "anthropic\n", "\n", "team\n"])
    assert status == 0, shown
    assert "did you mean 'anthropic'?" in shown
    assert "[ANTHROPIC_API_KEY]" in shown
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    settings = load_settings(str(tmp_path / "concertina.yaml"))
    assert list(settings.providers) == ["anthropic"]
    assert settings.auth.mode == "keys"


def test_only_what_no_option_says_is_asked(tmp_path: Path) -> None:
    status, shown = converse(tmp_path, ["http://10.0.0.5:9000/v1\n"], "my.yaml", *("--provider", "local"), *REST)
    assert status == 0, shown
    assert "Which provider" not in shown
    assert "Who uses" not in shown
    assert load_settings(str(tmp_path / "my.yaml")).providers["local"].base_url == "http://10.0.0.5:9000/v1"


def test_an_input_that_ends_writes_nothing(tmp_path: Path) -> None:
    status, shown = converse(tmp_path, ["openai\n", "\x04"])
    assert status == 1
    assert "nothing was written" in shown
    assert list(tmp_path.iterdir()) == []


REST = ("--key-env", "none", "--database", "sqlite", "--auth", "open")
