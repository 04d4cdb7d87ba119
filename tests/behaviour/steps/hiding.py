"""What is kept under a key, not kept, or not kept for ever."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml
from pytest_bdd import given, then, when

from app.__main__ import main
from app.store.store_factory import read_utc_now
from tests.behaviour.steps.words import step
from tests.behaviour.talk import Talk


def _key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _run(talk: Talk, *command: str) -> None:
    """A command with the gateway's own configuration."""
    sections: dict[str, Any] = {
        name: talk.settings[name] for name in ("encryption", "retention") if name in talk.settings
    }
    file = talk.folder / "config.yaml"
    file.write_text(yaml.safe_dump({"database": {"url": talk.database}, **sections}))
    assert main([*command, "--config", str(file)]) == 0


def _file(talk: Talk) -> bytes:
    """The database after the gateway has ended."""
    talk.stop()
    return b"".join(file.read_bytes() for file in talk.folder.glob("kept.db*"))


def _encrypt(talk: Talk, keys: list[str], active: str | None) -> None:
    section: dict[str, Any] = {"keys": {name: _key(name) for name in keys}, "active": active}
    talk.configure("encryption", section)


@given(step('what is kept is encrypted with the key "{name}"'))
def _(talk: Talk, name: str) -> None:
    _encrypt(talk, [name], name)


@when(step('the key is changed to "{name}" and everything is encrypted anew'))
def _(talk: Talk, name: str) -> None:
    talk.stop()
    known = talk.settings.get("encryption", {}).get("keys", {})
    _encrypt(talk, [*known, name], name)
    _run(talk, "reencrypt")


@when(step('the key "{name}" is thrown away'))
@when(step('the key "{name}" is lost'))
def _(talk: Talk, name: str) -> None:
    talk.stop()
    left = [one for one in talk.settings["encryption"]["keys"] if one != name]
    _encrypt(talk, left, left[0] if left else None)


@given(step("conversations are kept for {days:N} days"))
def _(talk: Talk, days: int) -> None:
    talk.configure("retention", {"days": days})


@given(step('the user said "{text}" {days:N} days ago'))
def _(talk: Talk, text: str, days: int) -> None:
    said_at = datetime.now(UTC) - timedelta(days=days)
    talk.clock = lambda: said_at
    talk.say({"role": "user", "content": text})
    talk.stop()
    talk.clock = read_utc_now


@when("old conversations are erased")
def _(talk: Talk) -> None:
    _run(talk, "purge")


@then(step('the word "{word}" is nowhere in the database'))
def _(talk: Talk, word: str) -> None:
    assert word.encode() not in _file(talk)


@then(step('the word "{word}" is in the database'))
def _(talk: Talk, word: str) -> None:
    assert word.encode() in _file(talk)


@then(step('nothing in the database is under the key "{name}"'))
def _(talk: Talk, name: str) -> None:
    assert f"enc1:{name}:".encode() not in _file(talk)


@then(step('the request is refused because the key "{name}" is missing'))
def _(talk: Talk, name: str) -> None:
    assert talk.answer.status == 500
    error = talk.answer.body["error"]
    assert error["code"] == "store_unreadable"
    assert f"encryption.keys.{name}" in error["message"]


@then("the conversation is another one")
def _(talk: Talk) -> None:
    first, *_, last = (answer.body["conversation_id"] for answer in talk.answers)
    assert first != last


@then("the conversation is still the same")
def _(talk: Talk) -> None:
    assert len({answer.body["conversation_id"] for answer in talk.answers}) == 1
