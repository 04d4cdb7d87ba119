"""Encryption at rest, as clients and operators meet it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from tests.live import Reply, ScriptedUpstream, completion
from tests.support.gateway import World, answering, assistant, is_summary, pick_word, system, user
from tests.support.sqlite_gateway import at_rest, config_in, file_bytes, words_in

OLD, NEW = bytes(range(32)).hex(), bytes(range(32, 64)).hex()
WORDS = ["marmalade", "zanzibar", "obelisk", "quinine", "clandestine"]
UNDER_OLD: dict[str, Any] = {"keys": {"k1": OLD}, "active": "k1"}
UNDER_NEW: dict[str, Any] = {"keys": {"k1": OLD, "k2": NEW}, "active": "k2"}
ONLY_NEW: dict[str, Any] = {"keys": {"k2": NEW}, "active": "k2"}


def telling(body: dict[str, Any]) -> Reply:
    """An upstream whose summaries say `quinine`, and whose answers say `zanzibar`."""
    if is_summary(body):
        return completion(f"They spoke of quinine and {pick_word(body)}.", prompt_tokens=1000)
    return answering(body) if body.get("stream") else completion("Gladly, says zanzibar.")


async def talk(world: World) -> str:
    """A conversation with a word of `WORDS` in its instructions, messages, summary and stored completion."""
    said: dict[str, Any] = {}
    for turn in range(20):
        padding = " ".join(f"item{turn}n{word}" for word in range(60))
        said = await world.say(
            [*([system("Speak of the obelisk.")] if not turn else []), user(f"Turn {turn}, marmalade: {padding}")],
            conversation_id="mine",
            store=True,
            **({"user": "clandestine"} if turn else {}),
        )
    assert said["context"]["summaries"]
    return str(said["conversation_id"])


async def history(world: World, conversation_id: str) -> list[dict[str, Any]]:
    answer = await world.client.get(
        f"{world.base_url}/conversations/{conversation_id}/items",
        params={"limit": 100, "order": "asc"},
        headers={"authorization": "Bearer sk-one"},
    )
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def test_no_word_of_a_conversation_reaches_the_disk_and_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(default=telling)
    async with at_rest(tmp_path, upstream, encryption=UNDER_OLD, window=4096) as world:
        conversation_id = await talk(world)
        items = await history(world, conversation_id)
    assert words_in(tmp_path, WORDS) == []
    assert b"enc1:k1:" in file_bytes(tmp_path)
    async with at_rest(tmp_path, upstream, encryption=UNDER_OLD, window=4096) as world:
        assert await history(world, conversation_id) == items
        said = await world.say([user("Go on.")], conversation_id=conversation_id)
        assert said["context"]["summaries"]
        sent = str(upstream.requests[-1]["messages"])
        assert all(word in sent for word in ("obelisk", "quinine", "marmalade"))


async def test_without_keys_the_words_are_in_the_file(tmp_path: Path) -> None:
    async with at_rest(tmp_path, ScriptedUpstream(default=telling), window=4096) as world:
        await talk(world)
    assert words_in(tmp_path, WORDS) == WORDS


async def test_keys_are_changed_while_a_gateway_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upstream = ScriptedUpstream(default=telling)
    async with at_rest(tmp_path, upstream, encryption=UNDER_OLD, window=4096) as world:
        conversation_id = await talk(world)
        items = await history(world, conversation_id)
    async with at_rest(tmp_path, upstream, encryption=UNDER_NEW, window=4096) as world:
        assert await history(world, conversation_id) == items
        assert await asyncio.to_thread(main, ["reencrypt", "--config", config_in(tmp_path, encryption=UNDER_NEW)]) == 0
        assert "under the key 'k2'" in capsys.readouterr().out
        await world.say([user("Still there?")], conversation_id=conversation_id)
    assert b"enc1:k1:" not in file_bytes(tmp_path)
    assert words_in(tmp_path, WORDS) == []
    async with at_rest(tmp_path, upstream, encryption=ONLY_NEW, window=4096) as world:
        assert (await history(world, conversation_id))[: len(items)] == items


async def test_encryption_can_be_switched_on_and_off_later(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(default=telling)
    async with at_rest(tmp_path, upstream, window=4096) as world:
        conversation_id = await talk(world)
        items = await history(world, conversation_id)
    assert await asyncio.to_thread(main, ["reencrypt", "--config", config_in(tmp_path, encryption=UNDER_OLD)]) == 0
    assert words_in(tmp_path, WORDS) == []
    off = {**UNDER_OLD, "active": None}
    assert await asyncio.to_thread(main, ["reencrypt", "--config", config_in(tmp_path, encryption=off)]) == 0
    assert b"enc1:" not in file_bytes(tmp_path)
    async with at_rest(tmp_path, upstream, window=4096) as world:
        assert await history(world, conversation_id) == items


async def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with at_rest(tmp_path, upstream, encryption=UNDER_OLD) as world:
        first = await world.say([user("Keep this.")], conversation_id="mine")
    async with at_rest(tmp_path, upstream, encryption=ONLY_NEW) as world:
        answer = await world.post([user("And this.")], conversation_id="mine")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "store_unreadable"
        assert "'k1', which is not configured" in answer.json()["error"]["message"]
        assert answer.headers["x-should-retry"] == "false"
        resent = [user("Keep this."), first["choices"][0]["message"], user("And this.")]
        assert (await world.say(resent))["context_status"] == "degraded"
        assert (await world.say([user("Something new.")]))["context_status"] == "full"
        mine = {"authorization": "Bearer sk-one"}
        listed = (await world.client.get(f"{world.base_url}/conversations", headers=mine)).json()["data"]
        assert len(listed) == 2
        path = f"{world.base_url}/conversations/{first['conversation_id']}"
        items = await world.client.get(f"{path}/items", headers=mine)
        assert items.json()["error"]["code"] == "store_unreadable"
        assert (await world.client.delete(path, headers=mine)).status_code == 200
        assert (await world.client.get(path, headers=mine)).status_code == 404


async def test_without_any_key_what_is_encrypted_is_not_taken_for_text(tmp_path: Path) -> None:
    upstream = ScriptedUpstream(default=answering)
    async with at_rest(tmp_path, upstream, encryption=UNDER_OLD) as world:
        await world.say([user("Keep this.")], conversation_id="mine")
    async with at_rest(tmp_path, upstream) as world:
        answer = await world.post([user("And this.")], conversation_id="mine")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "store_unreadable"


async def test_no_search_is_offered_and_the_answer_says_why(tmp_path: Path) -> None:
    async with at_rest(tmp_path, ScriptedUpstream(default=answering), encryption=UNDER_OLD) as world:
        said = await world.say([user("My passport number is K4471.")])
        for path in ("/search", f"/conversations/{said['conversation_id']}/search"):
            answer = await world.client.get(
                f"{world.base_url}{path}", params={"q": "passport"}, headers={"authorization": "Bearer sk-one"}
            )
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["code"] == "search_not_offered"
            assert "an index would reveal their words" in error["message"]


async def test_a_resent_history_is_recognised(tmp_path: Path) -> None:
    async with at_rest(tmp_path, ScriptedUpstream(default=answering), encryption=UNDER_OLD) as world:
        first = await world.say([user("One.")])
        answer = await world.say([user("One."), assistant("You said: One."), user("Two.")])
        assert answer["conversation_id"] == first["conversation_id"]


def test_checking_a_configuration_says_what_is_encrypted_and_erased(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-config", config_in(tmp_path, encryption=UNDER_NEW, retention={"days": 30})]) == 0
    told = capsys.readouterr().out
    assert "encrypts what it keeps with the key 'k2'" in told
    assert "erases conversations that rest for 30 days" in told
    assert OLD not in told
    assert NEW not in told


async def test_commands_read_what_is_encrypted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with at_rest(tmp_path, ScriptedUpstream(default=answering), encryption=UNDER_OLD) as world:
        said = await world.say([user("Keep the marmalade.")])
    config = config_in(tmp_path, encryption=UNDER_OLD)
    assert await asyncio.to_thread(main, ["export", said["conversation_id"], "--config", config]) == 0
    assert "marmalade" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["", "short", "00" * 31, "not base64 !" * 4])
def test_a_key_that_is_none_is_refused_at_start(tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_in(tmp_path, encryption={"keys": {"k1": key}, "active": "k1"})
    assert main(["check-config", config]) == 2
    told = capsys.readouterr().err
    assert "encryption.keys.k1" in told
    assert "expected a key of 32 bytes in base64 or hex; make one with `openssl rand -base64 32`" in told
    assert not key or key not in told


def test_an_active_key_that_is_not_there_is_refused_at_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-config", config_in(tmp_path, encryption={"keys": {"k2026": OLD}, "active": "k2025"})]) == 2
    assert "encryption.active" in (told := capsys.readouterr().err)
    assert "did you mean 'k2026'?" in told


def test_reencrypting_without_keys_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reencrypt", "--config", config_in(tmp_path)]) == 1
    assert "encryption.keys" in capsys.readouterr().err
