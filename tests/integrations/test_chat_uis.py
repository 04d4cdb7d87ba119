"""What chat UIs send, replayed: their chats are kept whole, and what they ask besides leaves no trace in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.__main__ import main
from app.settings.environment import variable_name
from app.settings.settings_tree import list_setting_paths
from tests.integrations.pages import ROOT, Page
from tests.live import ScriptedUpstream
from tests.shared_data import FOLDER, recorded
from tests.support.gateway import World, answered, answering, system, texts, user, world

PAGES = ("open-webui", "librechat")
FILES = ROOT / "config" / "integrations"
RECORDINGS = "resent_histories.jsonl"
OPEN_WEBUI: dict[str, Any] = yaml.safe_load((FILES / "open-webui" / "gateway.yaml").read_text())
LIBRECHAT: dict[str, Any] = yaml.safe_load((FILES / "librechat.yaml").read_text())
CHAT = {"x-openwebui-chat-id": "5b1f3a3e-2f6e-4a55-9a4e-0d2c1f7b9d10", "x-openwebui-user-id": "ada"}
TASKS = {
    "title_generation": "Generate a concise, 3-5 word title.",
    "tags_generation": "Generate 1-3 broad tags.",
    "follow_up_generation": "Suggest 3-5 follow-up questions.",
    "query_generation": "Generate search queries.",
}


def side(task: str, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = "\n".join(f"{message['role'].upper()}: {message['content']}" for message in history)
    return [user(f"### Task:\n{TASKS[task]}\n### Chat History:\n<chat_history>\n{told}\n</chat_history>")]


async def chat(gateway: World, turns: int, *, before: str | None = None, **sent: Any) -> list[str]:
    """A chat of some turns with everything that a UI asks around it; the ids under which its turns were kept."""
    headers = {**CHAT, **sent}
    history: list[dict[str, Any]] = []
    kept = []
    for turn in range(turns):
        if before is not None:
            named = {"x-chat-task": before} if "x-chat-task" in headers else {}
            await gateway.say(side(before, history), headers={**headers, **named})
        history.append(user(f"Question {turn}"))
        clock = system(f"It is 10:{turn:02}.")
        kept.append((await gateway.say([clock, *history], headers=headers))["conversation_id"])
        history.append(answered(f"Question {turn}"))
        for task in TASKS:
            named = {"x-chat-task": task} if "x-chat-task" in headers else {}
            body = await gateway.say(side(task, history), headers={**headers, **named})
            assert body["conversation_id"] != kept[-1] or kept[-1] is None
    return kept


async def test_titles_tags_and_follow_ups_stay_out_of_the_chat() -> None:
    async with world(ScriptedUpstream(default=answering), auth=OPEN_WEBUI["auth"]) as gateway:
        (ours,) = set(await chat(gateway, 4))
        assert texts(await gateway.log(ours))[::2] == [f"Question {turn}" for turn in range(4)]
        assert gateway.rows() == 8


async def test_a_query_before_the_first_answer_does_not_cost_the_chat_its_place() -> None:
    async with world(ScriptedUpstream(default=answering), auth=OPEN_WEBUI["auth"]) as gateway:
        first, *later = await chat(gateway, 4, before="query_generation")
        assert first is None
        (ours,) = set(later)
        assert texts(await gateway.log(ours))[::2] == [f"Question {turn}" for turn in range(4)]


async def test_tasks_that_are_named_leave_no_trace() -> None:
    async with world(ScriptedUpstream(default=answering), auth=OPEN_WEBUI["auth"]) as gateway:
        assert len(set(await chat(gateway, 3, before="query_generation", **{"x-chat-task": ""}))) == 1
        assert len(gateway.conversations()) == 1


async def test_users_of_one_key_do_not_meet_in_a_chat() -> None:
    async with world(ScriptedUpstream(default=answering), auth=OPEN_WEBUI["auth"]) as gateway:
        ada = await gateway.say([user("My code is 7741.")], headers=CHAT)
        eve = await gateway.say([user("My code?")], headers={**CHAT, "x-openwebui-user-id": "eve"})
        assert ada["conversation_id"] != eve["conversation_id"]
        assert texts(gateway.upstream.requests[-1]["messages"]) == ["My code?"]
        assert not [name for name in gateway.upstream.headers[-1] if name.startswith("x-openwebui")]


async def test_a_chat_that_the_ui_shortened_itself_is_still_kept() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await chat(gateway, 3)
        rest = [user("Question 2"), answered("Question 2"), user("Question 3")]
        body = await gateway.say([system("[CONVERSATION SUMMARY] …"), *rest], headers=CHAT)
        assert body["conversation_id"] is not None
        longer = [*rest, answered("Question 3"), user("Question 4")]
        assert (await gateway.say(longer, headers=CHAT))["conversation_id"] == body["conversation_id"]


@pytest.mark.skipif(not (FOLDER / RECORDINGS).exists(), reason="there are no recordings here")
async def test_recorded_clients_keep_their_conversation_under_a_chats_id() -> None:
    for line in recorded(RECORDINGS) if (FOLDER / RECORDINGS).exists() else ():
        async with world(ScriptedUpstream(default=answering), window=100_000) as gateway:
            ids = [(await gateway.say(sent, headers=CHAT))["conversation_id"] for sent in line["requests"]]
            assert None not in ids, line["client"]


async def test_librechats_headers_name_the_chat_and_the_user() -> None:
    (endpoint,) = LIBRECHAT["endpoints"]["custom"]
    auth = yaml.safe_load(Page("librechat").blocks("yaml")[0])["auth"]

    def filled(chat_id: str, user_id: str) -> dict[str, str]:
        values = {"{{LIBRECHAT_BODY_CONVERSATIONID}}": chat_id, "{{LIBRECHAT_USER_ID}}": user_id}
        return {name: values[template] for name, template in endpoint["headers"].items()}

    async with world(ScriptedUpstream(default=answering), auth=auth) as gateway:
        begun = await gateway.say([user("Hi")], headers=filled("c1", "ada"))
        title = await gateway.say([user("Write a title for: Hi")], headers=filled("c1", "ada"))
        history = [user("Hi"), answered("Hi"), user("More")]
        more = await gateway.say(history, headers=filled("c1", "ada"))
        assert title["conversation_id"] is None
        assert begun["conversation_id"] == more["conversation_id"]
        assert (await gateway.say(history, headers=filled("", "eve")))["conversation_id"] != more["conversation_id"]


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_configuration_passes_check_config(page: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("\n".join(Page(page).blocks("yaml")))
    assert main(["check-config", str(file)]) == 0
    assert main(["check-config", str(FILES / "open-webui" / "gateway.yaml")]) == 0


def test_the_compose_file_names_what_exists() -> None:
    services = yaml.safe_load((FILES / "open-webui" / "compose.yml").read_text())["services"]
    environ = services["gateway"]["environment"]
    assert {name for name in environ if name.startswith("CONCERTINA_")} <= {
        *(variable_name(path) for path in list_setting_paths()), "CONCERTINA_CONFIG"
    }  # fmt: skip
    assert (FILES / "open-webui" / services["gateway"]["build"] / "Dockerfile").exists()
    assert services["open-webui"]["environment"]["OPENAI_API_BASE_URL"] == "http://gateway:8000/v1"
