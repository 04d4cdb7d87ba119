"""What the model saw begins with the instructions of that request, in both protocols."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live import ScriptedUpstream
from tests.support.gateway import World, answering, assistant, system, user, world

POLITE, CURT = system("Be polite, and speak of ships. " * 40), system("Be curt.")


async def seen(gateway: World, conversation_id: str, answer: int = -1) -> dict[str, Any]:
    """What the model saw for an answer of a conversation, counted from the first."""
    headers = {"authorization": "Bearer sk-one"}
    items = f"{gateway.base_url}/conversations/{conversation_id}/items"
    rows = (await gateway.client.get(items, headers=headers, params={"order": "asc"})).json()["data"]
    answers = [row["id"] for row in rows if row.get("role") == "assistant"]
    told = await gateway.client.get(
        f"{items}/{answers[answer]}/context", headers=headers, params={"include[]": "sent", "order": "asc"}
    )
    assert told.status_code == 200, told.text
    body: dict[str, Any] = told.json()
    return body


async def kept_texts(gateway: World) -> str:
    metas = []
    for conversation in gateway.conversations():
        entries = await gateway.store.read_log(conversation, 0, conversation.head_seq + 1)
        metas += [str(entry.meta) for entry in entries]
    return "".join(metas)


async def test_each_answer_shows_its_own_instructions_and_equal_ones_are_stored_once() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        history: list[dict[str, Any]] = []
        for turn, instructions in enumerate([POLITE, POLITE, CURT, POLITE]):
            history.append(user(f"Question {turn}"))
            answer = await gateway.say([instructions, *history])
            history.append(assistant(answer["choices"][0]["message"]["content"]))
        conversation_id = answer["conversation_id"]
        for turn, instructions in enumerate([POLITE, POLITE, CURT, POLITE]):
            view = await seen(gateway, conversation_id, turn)
            assert view["exact"] is True
            assert [one["content"] for one in view["instructions"]] == [instructions["content"]]
            assert view["sent"] == gateway.upstream.requests[turn]["messages"]
            assert view["sent_places"][0]["kind"] == "instructions"
        assert (await kept_texts(gateway)).count(POLITE["content"]) == 2


async def test_an_answer_without_instructions_has_none() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        answer = await gateway.say([user("Hi")])
        view = await seen(gateway, answer["conversation_id"])
        assert view["instructions"] == []
        assert view["sent"] == [user("Hi")]


async def test_a_branch_shows_the_instructions_of_each_answer() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        first = await gateway.say([POLITE, user("One")])
        past = [user("One"), assistant(first["choices"][0]["message"]["content"])]
        await gateway.say([CURT, *past, user("Two")])
        branch = await gateway.say([CURT, *past, user("Three")])
        assert branch["conversation_id"] != first["conversation_id"]
        for answer, instructions in ((0, POLITE), (1, CURT)):
            view = await seen(gateway, branch["conversation_id"], answer)
            assert [one["content"] for one in view["instructions"]] == [instructions["content"]]


@pytest.mark.parametrize("store", [True, False])
async def test_responses_keep_them_unless_nothing_is_to_be_stored(store: bool) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        body = {"model": "m", "instructions": POLITE["content"], "input": "Hi", "store": store}
        headers = {"authorization": "Bearer sk-one"}
        answer = await gateway.client.post(f"{gateway.base_url}/responses", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        if store:
            (conversation,) = gateway.conversations()
            view = await seen(gateway, conversation.id)
            assert POLITE["content"] in str(view["instructions"])


async def test_nothing_is_kept_of_a_chat_that_is_not_stored() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        await gateway.say([POLITE, user("Hi")], store=False)
        assert POLITE["content"] not in await kept_texts(gateway)


async def test_an_erased_instruction_is_in_no_view_any_more() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        mode = {"x-context-mode": "append"}
        first = await gateway.say([POLITE, user("Hi")], conversation_id="c", headers=mode)
        await gateway.say([user("And now?")], conversation_id="c", headers=mode)
        headers = {"authorization": "Bearer sk-one"}
        items = f"{gateway.base_url}/conversations/c/items"
        rows = (await gateway.client.get(items, headers=headers, params={"order": "asc"})).json()["data"]
        assert rows[0]["role"] == "system"
        gone = await gateway.client.delete(f"{items}/{rows[0]['id']}", headers=headers, params={"erase": "true"})
        assert gone.status_code == 200, gone.text
        assert POLITE["content"] not in await kept_texts(gateway)
        for answer in (0, 1):
            assert (await seen(gateway, first["conversation_id"], answer))["instructions"] is None
        await gateway.say([user("And then?")], conversation_id="c", headers=mode)
        assert (await seen(gateway, first["conversation_id"], 2))["instructions"] == []
