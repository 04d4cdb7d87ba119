"""The command line: what it prints, and with which status it ends."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from app.__main__ import main
from app.errors import StoreUnavailable
from app.settings import Settings

ROOT = Path(__file__).parents[1]
SLOW_TO_IMPORT = {"alembic", "asyncpg", "fastapi", "httpx", "sqlalchemy", "tiktoken", "uvicorn"}


def stand_in(monkeypatch: pytest.MonkeyPatch, module_name: str, **members: object) -> None:
    """Put a module in the place of one that need not be loaded here."""
    module = types.ModuleType(module_name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, module_name, module)


@pytest.mark.parametrize("file", sorted((ROOT / "config").glob("*.yaml")), ids=lambda file: file.name)
def test_check_config_tells_what_a_configuration_amounts_to(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", str(file)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{file}: ok\n")
    assert "policy additive" in told


def test_check_config_says_which_key_is_used_and_not_which_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("providers: {a: {base_url: 'http://a/v1', api_key: sk-secret}}")
    assert main(["check-config", str(file)]) == 0
    told = capsys.readouterr().out
    assert "provider a: http://a/v1, called with its own key" in told
    assert "sk-secret" not in told


TWO_KEYLESS = "{a: {base_url: 'https://a.example/v1'}, b: {base_url: 'http://localhost:9/v1'%s}, c: %s}"
OWN = "{base_url: 'https://c.example/v1', api_key: x}"


@pytest.mark.parametrize(
    ("providers", "told"),
    [
        (TWO_KEYLESS % ("", OWN), "could get a client’s key: a, b. It goes to the first provider of the model"),
        (TWO_KEYLESS % (", pass_client_key: true", OWN), "could get a client’s key: a, b. It goes to the first"),
        (TWO_KEYLESS % (", api_key: x", OWN), None),
    ],
)
def test_check_config_warns_where_several_providers_could_get_a_clients_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], providers: str, told: str | None
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"providers: {providers}\nmodels: {{'*': {{provider: a}}}}")
    assert main(["check-config", str(file)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert [told in line and "providers.<name>.pass_client_key" in line for line in lines if told] == [True] * bool(
        told
    )
    assert bool(lines) is bool(told)
    assert ("and to b always" in "".join(lines)) is ("pass_client_key" in providers)


@pytest.mark.parametrize(("mode", "told"), [("open", "called with the client’s key"), ("keys", "called without a key")])
def test_check_config_says_what_a_provider_without_a_key_is_called_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str, told: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"providers: {{a: {{base_url: 'http://localhost:9/v1'}}}}\nauth: {{mode: {mode}}}")
    assert main(["check-config", str(file)]) == 0
    assert f"provider a: http://localhost:9/v1, {told}\n" in capsys.readouterr().out


def test_check_config_says_which_provider_is_called_by_the_responses_api(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("providers: {a: {base_url: 'http://a/v1', api_key: sk-secret, protocol: responses}}")
    assert main(["check-config", str(file)]) == 0
    assert "provider a: http://a/v1, protocol responses, called with its own key\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check-config", "serve --config"])
def test_a_remote_provider_without_a_key_is_refused_in_mode_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("providers: {a: {base_url: 'https://api.openai.com/v1'}}\nauth: {mode: keys}")
    assert main([*command.split(), str(file)]) == 2
    told = capsys.readouterr().err
    assert "providers.a.api_key" in told
    assert "in mode 'keys' no client's key is passed on" in told


def test_a_configuration_that_cannot_be_used_ends_with_2_and_without_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("server: {prot: 1}\npolicy: none")
    assert main(["check-config", str(file)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "concertina: 2 faults in the configuration:",
        "  server.prot (c.yaml:1): unknown setting; did you mean 'server.port'?",
        "  policy (c.yaml:2): there is no policy 'none'; valid: 'additive', 'checkpoint', 'fade', 'prune', 'window'",
    ]


def test_a_configuration_of_litellm_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model_list: [{model_name: a, litellm_params: {model: openai/a}}]\nlitellm_settings: {}")
    assert main(["check-config", str(file)]) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  c.yaml:1: This is a configuration of LiteLLM. docs/moving-from-litellm.md has each setting's counterpart."
    ]


def test_a_command_that_fails_ends_with_1_and_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> int:
        raise StoreUnavailable("No database there.")

    stand_in(monkeypatch, "app.commands.migrate", run=run)
    assert main(["migrate"]) == 1
    assert capsys.readouterr().err == "concertina: No database there.\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("argument", ["doctor", "--version"])
def test_a_reader_that_stops_before_the_end_causes_no_trace(argument: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environ = {**os.environ, "CONCERTINA_DATABASE__URL": "memory://", "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(writer, "wb") as closed:
        command = [sys.executable, "-m", "app", argument]
        ended = subprocess.run(
            command, cwd=ROOT, env=environ, stdout=closed, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (1, "")


def test_an_interrupted_command_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: object) -> int:
        raise KeyboardInterrupt

    stand_in(monkeypatch, "app.commands.migrate", run=run)
    assert main(["migrate"]) == 130
    assert capsys.readouterr().err == ""


def test_migrate_makes_a_database_that_is_then_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", f"sqlite+aiosqlite:///{tmp_path}/c.db")
    assert [main(["migrate"]), main(["migrate"])] == [0, 0]
    assert "is up to date" in capsys.readouterr().out


def test_a_newer_schema_is_refused_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", f"sqlite+aiosqlite:///{tmp_path}/c.db")
    assert main(["migrate"]) == 0
    with contextlib.closing(sqlite3.connect(tmp_path / "c.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'from_the_future'")
    capsys.readouterr()
    assert main(["migrate"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("concertina: The database's schema is 'from_the_future'")
    assert len(told.splitlines()) == 1


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Settings]]:
    """The settings that `serve` was called with, in place of a server."""
    calls: list[Settings] = []

    def serve(settings: Settings, overrides: Sequence[str]) -> int:
        calls.append(settings)
        return 0

    stand_in(monkeypatch, "app.main", serve=serve)
    sys.modules.pop("app.commands.serve", None)
    yield calls
    sys.modules.pop("app.commands.serve", None)


def test_arguments_of_serve_win_over_the_file(served: list[Settings], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("server: {port: 1, host: 0.0.0.0, workers: 1}")
    assert main(["serve", "--config", str(file), "--port", "2"]) == 0
    assert (served[0].server.port, served[0].server.host) == (2, "0.0.0.0")


def test_the_start_names_variables_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The database is not there, so the start ends; by then the log has it."""
    file = tmp_path / "c.yaml"
    file.write_text("server: {log_format: json}\ndatabase: {url: 'sqlite:///inside.db', timeout_seconds: 1}")
    monkeypatch.setenv("CONCERTINA_DATABASE__URL", "postgresql://u:outside@127.0.0.1:1/d")
    override = "CONCERTINA_DATABASE__URL overrides database.url (c.yaml:2)"
    assert main(["check-config", str(file)]) == 0
    told = capsys.readouterr().out
    assert f"  {override}\n" in told
    command = [sys.executable, "-m", "app", "serve", "--config", str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    line = json.loads(ended.stderr.splitlines()[0])
    assert (line["level"], line["message"]) == ("warning", override)
    assert "inside" not in told + ended.stdout + ended.stderr
    assert "outside" not in told + ended.stdout + ended.stderr


def test_the_start_and_check_config_warn_of_a_key_whose_variable_is_unset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "providers: {a: {base_url: 'http://127.0.0.1:9/v1', api_key: '${OWN_KEY:-}'}}\n"
        "auth: {mode: keys}\nserver: {log_format: json}\n"
        "database: {url: 'postgresql://127.0.0.1:1/d', timeout_seconds: 1}"
    )
    warning = "providers.a.api_key is empty, because the variable OWN_KEY is unset or empty: requests carry no key."
    assert main(["check-config", str(file)]) == 0
    assert f"  warning: {warning}" in capsys.readouterr().out
    command = [sys.executable, "-m", "app", "serve", "--config", str(file)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    logged = [json.loads(line)["message"] for line in ended.stderr.splitlines() if line.startswith("{")]
    assert len([message for message in logged if message.startswith(warning)]) == 1


def test_a_bad_argument_of_serve_is_told_as_such(served: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "http"]) == 2
    assert "server.port (--port): expected a whole number, got 'http'" in capsys.readouterr().err
    assert served == []


@pytest.mark.parametrize("arguments", [[], ["--help"], ["serve", "--help"], ["--version"]])
def test_help_is_told_without_loading_the_server(arguments: list[str]) -> None:
    program = (
        "import sys; from app.__main__ import main\n"
        "try: status = main(sys.argv[1:])\n"
        "except SystemExit as ended: status = ended.code\n"
        f"assert not {SLOW_TO_IMPORT!r} & set(sys.modules), sys.modules\n"
        "sys.exit(status)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == (0 if arguments else 2), ended.stderr
    assert "concertina" in ended.stdout + ended.stderr


@pytest.mark.parametrize("arguments", [["serv"], ["check-config"], ["serve", "--prot", "1"]])
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: concertina" in capsys.readouterr().err
