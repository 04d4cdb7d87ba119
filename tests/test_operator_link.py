"""The start line's link to the console: what it opens, and when it has no token."""

from __future__ import annotations

import json
import re
import stat
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import main
from tests.harness import Process

LINK = re.compile(r"Console: (http://\S+/console/)(?: \(operator's token: (\S+)\))?\n")
ENVIRONMENT = {"CONCERTINA_DATABASE__URL": "memory://"}


def get(url: str, token: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def start(*arguments: str, **environ: str) -> Process:
    return Process("serve", "--port", "0", *arguments, environ={**ENVIRONMENT, **environ})


@pytest.mark.parametrize("mode", ["open", "keys"])
def test_a_local_start_names_a_private_file_with_a_token_that_makes_an_operator(mode: str) -> None:
    tokens = set()
    for _ in range(2):
        with start(CONCERTINA_AUTH__MODE=mode) as served:
            found = LINK.search(served.output)
            assert found is not None
            assert found[1] == f"{served.address}/console/"
            file = Path(found[2])
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            token = file.read_text()
            assert token not in served.output
            tokens.add(token)
            assert get(f"{served.address}/console/session", token)["operator"] is True
            assert get(f"{served.address}/v1/admin/keys", token)["data"] == []
            with pytest.raises(urllib.error.HTTPError):
                get(f"{served.address}/v1/admin/keys", token[:-1])
        assert not file.exists()
    assert len(tokens) == 2
    assert all(len(token) > 40 for token in tokens)


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (("--host", "0.0.0.0"), {}),
        ((), {"CONCERTINA_AUTH__OPERATOR_TOKEN": "none"}),
        ((), {"CONCERTINA_AUTH__OPERATOR_TOKEN": "s" * 40}),
    ],
)
def test_no_token_is_printed_where_strangers_may_come_or_one_is_configured(
    arguments: tuple[str, ...], environ: dict[str, str]
) -> None:
    with start(*arguments, **environ) as served:
        found = LINK.search(served.output)
        assert found is not None
        assert found[2] is None
        assert ("sees the numbers of /v1/admin/overview" in served.output) == ("0.0.0.0" in arguments)
        assert "s" * 40 not in served.output


def test_without_a_console_there_is_no_link() -> None:
    with start(CONCERTINA_SERVER__CONSOLE="false") as served:
        assert "Console" not in served.output


def test_a_terminal_gets_the_whole_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    with main._show_operator_token("cop_secret") as path:
        assert path == "/console/#token=cop_secret"
