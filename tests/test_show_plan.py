"""`concertina show-plan`: reads the database of a gateway, calls no model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.__main__ import main
from app.pipeline.view.view_restoration import restore_view, restore_view_messages
from app.settings import load_settings
from migrations.run import prepare_database
from tests.live import ScriptedUpstream, create_test_app, serving
from tests.support.gateway import answering, user, world
from tests.support.gateway import shown as shown_to

TURNS = 24
FACT = "The locker of the archive has code 7741."
RULE = "Never call the archive on Sundays."


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("show-plan")
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"database": {"url": f"sqlite:///{folder}/kept.db"}}))
    prepare_database(f"sqlite:///{folder}/kept.db", auto_migrate=True)
    return file


@pytest.fixture(scope="module")
def conversation_id(config: Path) -> str:
    """A conversation that was compacted at least once."""
    return asyncio.run(_talk(config))


async def _talk(config: Path) -> str:
    application = create_test_app(load_settings(str(config), environ={}))
    padding = "It went on and on without anything that one would have to write down. " * 20
    messages: list[dict[str, Any]] = []
    async with serving(application) as address, httpx.AsyncClient(base_url=address, timeout=30) as client:
        for number in range(TURNS):
            text = f"{FACT if number == 0 else f'Parcel {number} weighs {number * 3} kg.'} {padding}"
            if number == 1:
                text = f"{RULE} {text}"
            messages.append({"role": "user", "content": text})
            answer = await client.post("/v1/chat/completions", json={"model": "sim-8k", "messages": messages})
            messages.append(answer.json()["choices"][0]["message"])
    found: str = answer.json()["conversation_id"]
    return found


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["show-plan", *arguments, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_each_message_is_told_with_what_becomes_of_it(
    config: Path, conversation_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(capsys, conversation_id, "--config", str(config))
    assert (told["model"], told["window"], told["status"]) == ("sim-8k", 8192, "summarized")
    assert [message["seq"] for message in told["messages"]] == list(range(2 * TURNS))
    known = {summary["id"] for summary in told["summaries"]}
    assert {message["summary"] for message in told["messages"]} == known | {None}
    assert told["messages"][0]["disposition"] == "summarized"
    assert told["messages"][-1]["disposition"] == "verbatim"
    assert FACT in told["summaries"][0]["text"]
    assert told["prompt_tokens"] <= told["compacts_above"]


def test_the_standing_requests_of_the_view_are_told(
    config: Path, conversation_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(capsys, conversation_id, "--config", str(config))
    assert told["standing_requests"] == [{"seq": 2, "text": RULE}]
    assert main(["show-plan", conversation_id, "--config", str(config)]) == 0
    assert f"standing request of message 2: {RULE}" in capsys.readouterr().out


def test_a_larger_model_would_see_everything(
    config: Path, conversation_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(capsys, conversation_id, "--config", str(config), "--model", "sim-128k")
    assert (told["window"], told["status"], told["summaries"]) == (128_000, "full", [])


def test_a_window_can_be_tried_out(config: Path, conversation_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, conversation_id, "--config", str(config), "--window", "2000")
    assert told["prompt_tokens"] <= told["limit"] == 1900
    assert {message["disposition"] for message in told["messages"]} >= {"dropped"} or told["summaries"]


def test_the_table_names_summaries_and_reasons(
    config: Path, conversation_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show-plan", conversation_id, "--config", str(config)]) == 0
    told = capsys.readouterr().out
    assert f"{conversation_id} as sim-8k would see it now: summarized" in told
    assert told.count("verbatim") >= 2
    assert "in sum_" in told
    assert "note: view_fits" in told


@pytest.mark.parametrize("unknown", ["conv_" + "0" * 48, "chat-1"])
def test_an_unknown_conversation_ends_with_1_and_says_so(
    unknown: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show-plan", unknown, "--config", str(config)]) == 1
    assert f"there is no conversation '{unknown}'" in capsys.readouterr().err


def test_an_unknown_policy_ends_with_1_and_names_the_known_ones(
    config: Path, conversation_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show-plan", conversation_id, "--config", str(config), "--policy", "fold"]) == 1
    assert "there is no policy 'fold'; known are additive" in capsys.readouterr().err


def test_what_the_model_saw_for_an_answer_is_put_together_again(
    config: Path, conversation_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in (1, 2 * TURNS - 1):
        told = shown(capsys, conversation_id, "--config", str(config), "--answer", str(answer))
        assert [row["seq"] for row in told["messages"]] == list(range(answer))
        assert told["sent"][-1] == {"role": "user", "content": told["sent"][-1]["content"]}
    assert told["status"] == "summarized"
    assert "earlier_conversation" in told["sent"][0]["content"]
    assert {row["reason"] for row in told["messages"]} >= {
        "a summary stands for it",
        "it is in the part of the log that is shown as it is",
    }


def test_a_question_is_no_answer(config: Path, conversation_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    for seq in ("0", "999"):
        assert main(["show-plan", conversation_id, "--config", str(config), "--answer", seq]) != 0
        assert "is not an answer of this gateway" in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["additive", "checkpoint", "fade", "prune", "window"])
async def test_a_view_is_replayed_from_what_is_stored_byte_for_byte(policy: str) -> None:
    """The client appends, so every byte that was sent is one that is stored."""
    upstream = ScriptedUpstream(default=answering)
    changed = {"recall": "quote", "clear_tool_results": {"trigger_tokens": 1_000}}
    async with world(upstream, window=4096, policy=policy, policies={policy: changed}) as gateway:
        for number in range(60):
            text = f"Parcel {number} for Maria weighs {number * 3} kg. " + "It went on and on. " * 20
            told = [user(text if number % 9 else "What does the parcel for Maria weigh, number 3?")]
            body = await gateway.say(told, conversation="c", headers={"x-context-mode": "append"})
        (conversation,) = gateway.conversations()
        answers = [entry for entry in await gateway.store.read_log(conversation, 0, 120) if entry.meta]
        for answer, sent in zip(answers, shown_to(upstream), strict=True):
            view = await restore_view(gateway.store, conversation, answer)
            assert view is not None
            assert view.is_exact
            replayed = await restore_view_messages(gateway.store, conversation, view)
            assert [json.loads(raw) for raw in replayed] == sent
        assert body["context_status"] in {"summarized", "trimmed"}
