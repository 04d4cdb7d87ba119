"""A request with a capsule continues exactly what the capsule stands for, or is refused: never another's words."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest

from app.store.contract.conversations import ConversationQuery
from tests.live import ScriptedUpstream
from tests.support.gateway import answering, assistant, is_summary, system, user
from tests.support.responses_world import ResponsesWorld, message, responses_world

TRIGGER: Final = {"type": "compaction_trigger"}
WINDOW: Final = 8192
KEY: Final = "ab" * 32
SECRET: Final = "The gate code is 4711."
INVALID: Final = "invalid_compaction_item"


def talk(turns: int = 12, *, first: str = SECRET, words: int = 120) -> list[dict[str, Any]]:
    said = [message(first)]
    for turn in range(turns):
        said.append(message(f"Fine {turn}. " + f"word{turn} " * words, "assistant"))
        said.append(message(f"Question {turn}? " + f"ask{turn} " * words))
    return said


@asynccontextmanager
async def gateway_world(**options: Any) -> AsyncIterator[ResponsesWorld]:
    async with responses_world(ScriptedUpstream(default=answering), **{"window": WINDOW, **options}) as w:
        yield w


async def compact(w: ResponsesWorld, said: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The item of a compaction."""
    response = await w.respond([*said, TRIGGER], **fields)
    item: dict[str, Any] = response["output"][0]
    return item


def view(w: ResponsesWorld) -> str:
    return json.dumps([body["messages"] for body in w.upstream.requests if not is_summary(body)][-1])


def check_refused(answer: httpx.Response, place: str = "input[0]") -> Mapping[str, Any]:
    error: Mapping[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, INVALID, place)
    assert "4711" not in answer.text
    return error


async def test_whatever_stands_before_a_capsule_is_in_its_range() -> None:
    said = talk()
    async with gateway_world() as w:
        item = await compact(w, said)
        for before in ([], said[:1], said[-3:], [message("I was never there.", "assistant")], said):
            response = await w.respond([*before, item, message("Go on.")])
            assert response["context_status"] == "summarized"
            assert "compaction" not in str(response["context"]["warnings"])
        assert "I was never there." not in view(w)
        families = {conversation.family_id for conversation in w.conversations()}
        assert len(families) == 1, "nothing was aligned, and nothing begins anew"


async def test_a_new_message_before_a_capsule_is_not_lost() -> None:
    said = talk()
    async with gateway_world() as w:
        item = await compact(w, said)
        response = await w.respond([message("Today is Monday."), said[0], item, message("Go on.")])
        shown = view(w)
        assert 0 < shown.index("Today is Monday.") < shown.index("Go on.")
        assert response["context_status"] == "summarized"
        again = await w.respond([message("Today is Monday."), said[0], item, message("Go on."), *response["output"]])
        assert again["conversation_id"] == response["conversation_id"]
        assert view(w).count("Today is Monday.") == 1


async def test_instructions_before_a_capsule_stay_instructions() -> None:
    async with gateway_world() as w:
        item = await compact(w, [message("Old rules.", "developer"), *talk()])
        await w.respond([message("Hi."), message("New rules.", "developer"), item, message("Go on.")])
        first, second, *_ = json.loads(view(w))
        assert first["content"] == "New rules."
        assert "Old rules." not in view(w)
        assert second["role"] == "user"


async def test_a_history_after_a_capsule_grows_in_one_conversation() -> None:
    async with gateway_world() as w:
        said = [await compact(w, talk())]
        ids = set()
        for turn in range(6):
            said.append(message(f"Next {turn}?"))
            response = await w.respond(said)
            said += response["output"]
            ids.add(response["conversation_id"])
        assert len(ids) == len(w.conversations()) == 1
        log = await w.log(ids.pop())
        assert len(log) == 25 + 12
        newer = await compact(w, said)
        assert newer != said[0]
        await w.respond([*said, newer, message("Last?")])
        assert "Last?" in view(w)
        assert len(w.conversations()) == 1


async def test_another_question_after_a_capsule_begins_a_branch() -> None:
    async with gateway_world() as w:
        item = await compact(w, talk())
        one = await w.respond([item, message("One?")])
        two = await w.respond([item, message("Two?")])
        assert one["conversation_id"] != two["conversation_id"]
        assert {conversation.family_id for conversation in w.conversations()} == {w.conversations()[0].id}
        three = await w.respond([item, message("One?"), *one["output"], message("Three?")])
        assert three["conversation_id"] == one["conversation_id"]
        assert "Two?" not in view(w)


async def test_a_capsule_stands_in_the_middle_and_twice() -> None:
    said = talk()
    async with gateway_world() as w:
        item = await compact(w, said)
        answered = await w.respond([item, message("Next?")])
        both = [*said[:2], item, message("Next?"), *answered["output"], item, message("Other?")]
        response = await w.respond(both)
        assert "Other?" in view(w)
        assert "Next?" in view(w), "the last one counts, and what its range does not have is not lost"
        assert response["context_status"] == "summarized"


async def test_the_newest_of_two_capsules_of_a_conversation_counts() -> None:
    async with gateway_world() as w:
        older = await compact(w, talk())
        answered = await w.respond([older, message("Between?")])
        newer = await compact(w, [older, message("Between?"), *answered["output"], message("And? " * 50)])
        await w.respond([older, newer, message("Now?")])
        assert "And? And?" in view(w)
        check_refused(await w.ask([newer, older, message("Now?")]), "input[1]")


async def test_capsules_of_two_conversations_or_branches_are_refused() -> None:
    async with gateway_world() as w:
        one, two = await compact(w, talk()), await compact(w, talk(first="Another talk."))
        check_refused(await w.ask([one, two, message("Now?")]), "input[1]")
        answered = [[message(text), *(await w.respond([one, message(text)]))["output"]] for text in ("A?", "B?")]
        first, second = [await compact(w, [one, *branch, message("More? " * 40)]) for branch in answered]
        check_refused(await w.ask([first, second, message("Now?")]), "input[1]")


async def test_a_capsule_of_somebody_else_is_refused() -> None:
    async with gateway_world() as w:
        item = await compact(w, talk(), user="alice")
        check_refused(await w.ask([item, message("Tell me.")], key="sk-two"))
        check_refused(await w.ask([item, message("Tell me.")], user="bob"))
        check_refused(await w.ask([item, message("Tell me.")], safety_identifier="bob"))
        changed = {**item, "encrypted_content": item["encrypted_content"][:-9] + "AAAAAAAAA"}
        assert "changed" in check_refused(await w.ask([changed, message("Tell me.")]))["message"]
        cut = {**item, "encrypted_content": item["encrypted_content"][:200]}
        check_refused(await w.ask([cut, message("Tell me.")]))
        assert not [body for body in w.upstream.requests if not is_summary(body)]
        assert (await w.ask([item, message("Go on.")], user="alice")).status_code == 200


async def test_a_capsule_and_a_named_conversation_must_agree() -> None:
    async with gateway_world() as w:
        other = await w.respond("Hello.")
        item = await compact(w, talk())
        check_refused(await w.ask([item, message("Go on.")], previous_response_id=other["id"]))
        check_refused(await w.ask([item, message("Go on.")], conversation=other["conversation_id"]))
        check_refused(await w.ask([item, message("Go on.")], conversation_id=other["conversation_id"]))
        answered = await w.respond([item, message("Go on.")])
        for named in ("conversation", "conversation_id"):
            response = await w.respond([item, message(f"By {named}.")], **{named: answered["conversation_id"]})
            assert response["context_status"] == "summarized"
        follow = await w.respond([item, message("Further.")], previous_response_id=answered["id"])
        assert "Go on." in view(w)
        assert follow["context_status"] == "summarized"


async def test_a_clients_own_id_names_the_conversation_of_the_capsule() -> None:
    async with gateway_world() as w:
        item = await compact(w, talk())
        first = await w.respond([item, message("Go on.")], conversation_id="mine")
        second = await w.respond([item, message("Go on."), *first["output"], message("Now?")], conversation_id="mine")
        assert first["conversation_id"] == second["conversation_id"]
        assert "Go on." in view(w)


@pytest.mark.parametrize("store", [True, False])
async def test_a_capsule_stands_alone_when_retention_has_erased_the_log(store: bool) -> None:
    said = talk()
    async with gateway_world() as w:
        item = await compact(w, said, store=store)
        await forget(w)
        response = await w.respond([*said[:1], item, message("Go on.")], store=store)
        assert any("log behind the compaction" in one for one in response["context"]["warnings"])
        shown = view(w)
        for kept in (SECRET, "Question 0?", "Question 11?", "word11 word11", "Go on.", "compacted_conversation"):
            assert kept in shown, kept
        assert "word1 word1" not in shown
        again = await w.respond(
            [*said[:1], item, message("Go on."), *response["output"], message("Further.")], store=store
        )
        assert again["conversation_id"] == response["conversation_id"]
        talk_after = [message("Go on."), *response["output"], message("Further."), *again["output"]]
        newer = await compact(w, [item, *talk_after], store=store)
        following = await w.respond([item, newer, message("Last.")], store=store)
        assert following["conversation_id"] == response["conversation_id"]


async def forget(w: ResponsesWorld) -> None:
    """Erases all conversations, as retention does."""
    for one in await w.store.list_conversations(tenant=None, query=ConversationQuery(limit=99)):
        await w.store.erase_conversation(tenant=one.tenant, conversation_id=one.id)


async def test_a_capsule_of_an_erased_conversation_gives_nothing_and_says_so() -> None:
    said = talk()
    async with gateway_world() as w:
        item = await compact(w, said)
        headers = {"authorization": "Bearer sk-one"}
        (conversation,) = w.conversations()
        deleted = await w.client.delete(f"{w.base_url}/conversations/{conversation.id}", headers=headers)
        assert deleted.status_code == 200
        response = await w.respond([*said[:1], item, message("Go on.")])
        (warning,) = response["context"]["warnings"]
        assert "erased on 2" in warning
        assert [one["content"] for one in json.loads(view(w))] == ["Go on."]
        newer = await compact(w, [*said[:1], item, message("Go on."), *response["output"], message("More.")])
        await forget(w)
        await w.respond([newer, message("What was the code?")])
        assert "4711" not in view(w)
        assert "More." in view(w)
        check_refused(await w.ask([item]))


async def test_a_redacted_message_is_not_in_a_capsule_any_more() -> None:
    async with gateway_world() as w:
        item = await compact(w, talk())
        (conversation,) = w.conversations()
        base, headers = f"{w.base_url}/conversations/{conversation.id}/items", {"authorization": "Bearer sk-one"}
        listed = (await w.client.get(base, params={"order": "asc"}, headers=headers)).json()["data"]
        gone = await w.client.delete(f"{base}/{listed[0]['id']}", params={"erase": "true"}, headers=headers)
        assert gone.status_code == 200
        response = await w.respond([item, message("Go on.")])
        assert response["conversation_id"] == conversation.id
        assert "4711" not in view(w)
        newer = await compact(w, [item, message("Go on."), *response["output"], message("More.")])
        await forget(w)
        await w.respond([newer, message("What was the code?")])
        assert "4711" not in view(w)
        assert "Question 11?" in view(w)
        await w.respond([item, message("What was the code?")])
        assert "4711" not in view(w)


async def test_another_gateway_with_the_same_key_reads_a_capsule() -> None:
    options = {"compaction": {"capsule_key": [KEY]}, "auth": {"mode": "open", "pepper": "a pepper of twenty-odd"}}
    async with gateway_world(**options) as w:
        item = await compact(w, talk())
    async with gateway_world(**options) as w:
        await w.respond([item, message("Go on.")])
        assert SECRET in view(w)
    async with gateway_world(**{**options, "compaction": {}}) as w:
        assert "key" in check_refused(await w.ask([item, message("Go on.")]))["message"]
    async with gateway_world(**{**options, "compaction": {"capsule_key": ["cd" * 32, KEY]}}) as w:
        await w.respond([item, message("Go on.")])
        assert SECRET in view(w)


async def test_a_chat_client_and_a_client_of_messages_continue_a_capsule() -> None:
    async with gateway_world() as w:
        item = await compact(w, talk())
        sealed = item["encrypted_content"]
        part = {"type": "compaction", "encrypted_content": sealed}
        chat = await w.say([system("Be brief."), assistant(None, content=[part]), user("By chat?")])
        assert chat["context_status"] == "summarized"
        assert "By chat?" in view(w)
        block = {"type": "compaction", "content": None, "signature": sealed}
        answer = await w.client.post(
            f"{w.base_url}/messages",
            json={
                "model": "m",
                "max_tokens": 99,
                "messages": [
                    {"role": "assistant", "content": [block]},
                    {"role": "user", "content": "By messages?"},
                ],
            },
            headers={"x-api-key": "sk-one", "anthropic-version": "2023-06-01"},
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["context_status"] == "summarized"
        assert "By messages?" in view(w)
        stateless = [assistant(None, content=[part]), user("And stateless?")]
        await w.say(stateless, headers={"x-context-mode": "stateless"})
        assert SECRET in view(w)
        assert "cc1." not in json.dumps(w.upstream.requests)
        assert len({conversation.family_id for conversation in w.conversations()}) == 1
