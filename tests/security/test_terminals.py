"""What conversations and keys are called, and what is said in them, steers no terminal that a command writes to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.__main__ import main
from tests.live import ScriptedUpstream, completion
from tests.support.gateway import user
from tests.support.sqlite_gateway import at_rest, config_in

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m[red]not markup[/nothing]\r"


async def stored(folder: Path) -> str:
    async with at_rest(folder, ScriptedUpstream(completion(STEERING))) as w:
        told = {"model": "m", "messages": [user(STEERING)]}
        answer = await w.client.post(f"{w.base_url}/chat/completions", json=told)
        return str(answer.json()["conversation_id"])


async def test_a_plan_is_shown_without_what_its_messages_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = await stored(tmp_path)
    config = config_in(tmp_path, models={"*": {"provider": "p"}}, providers={"p": {"base_url": "http://127.0.0.1:9"}})
    assert await asyncio.to_thread(main, ["show-plan", found, "--config", config]) == 0
    shown = capsys.readouterr().out
    assert "not markup" in shown
    assert not any(character in shown for character in "\x1b\x07\x9b\r")


def test_names_of_keys_are_shown_without_what_they_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_in(tmp_path, auth={"mode": "keys"})
    assert main(["keys", "create", "--name", "ab", "--config", config]) == 0
    main(["keys", "create", "--name", STEERING, "--config", config])
    main(["keys", "list", "--config", config])
    told = capsys.readouterr()
    assert not any(character in told.out + told.err for character in "\x1b\x07\x9b\r")
