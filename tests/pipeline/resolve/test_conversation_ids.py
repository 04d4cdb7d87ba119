"""Conversation ids that clients send: where, whose, and what they mean for the messages beside them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.live import ScriptedUpstream, completion
from tests.support.gateway import World, assistant, system, texts, user, world
from tests.support.memory_store import MemoryStore

PLACES: dict[str, dict[str, Any]] = {
    "X-Conversation-Id": {"headers": {"x-conversation-id": "chat-1"}},
    "conversation_id": {"conversation_id": "chat-1"},
    "conversation": {"conversation": "chat-1"},
    "conversation.id": {"conversation": {"id": "chat-1"}},
    "metadata": {"metadata": {"conversation_id": "chat-1", "kept": "yes"}},
}
OWN_FIELDS = ("conversation_id", "conversation", "store", "context")


class Points(MemoryStore):
    """Counts how often a client's id was made to mean another conversation."""

    pointed = 0

    async def assign_external_id(self, **named: Any) -> None:
        self.pointed += 1
        await super().assign_external_id(**named)


def points() -> Points:
    return Points(clock=lambda: datetime.now(UTC))


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
async def test_an_id_is_found_in_each_place_and_only_new_messages_need_to_come(
    place: dict[str, Any],
) -> None:
    async with world(ScriptedUpstream(completion("Hello Ada."), completion("Ada."))) as gateway:
        one = await gateway.say([user("I am Ada")], **place)
        two = await gateway.say([user("Who am I?")], **place)
        assert one["conversation_id"] == two["conversation_id"]
        asked = gateway.upstream.requests[-1]
        assert [m["content"] for m in asked["messages"]] == ["I am Ada", "Hello Ada.", "Who am I?"]
        assert not set(OWN_FIELDS) & set(asked)
        assert asked.get("metadata", {}) in ({}, {"kept": "yes"})
        assert len(await gateway.log(one["conversation_id"])) == 4


async def test_the_first_place_wins() -> None:
    everywhere: dict[str, Any] = {
        "headers": {"x-conversation-id": "a", "x-openwebui-chat-id": "e"},
        "conversation_id": "b",
        "conversation": {"id": "c"},
        "metadata": {"conversation_id": "d"},
    }
    async with world(ScriptedUpstream()) as gateway:
        await gateway.say([user("Hi")], **everywhere)
        await gateway.say([user("Hi")], **{**everywhere, "headers": {"x-openwebui-chat-id": "e"}})
        await gateway.say([user("Hi")], conversation="c", metadata={"conversation_id": "d"})
        await gateway.say([user("Hi")], metadata={"conversation_id": "d"}, headers={"x-openwebui-chat-id": "e"})
        await gateway.say([user("Hi")], headers={"x-openwebui-chat-id": "e"})
        assert [one.external_id for one in gateway.conversations()] == ["a", "b", "c", "d", "e"]


async def test_an_id_of_ours_is_appended_to_and_an_unknown_one_is_not_found() -> None:
    async with world(ScriptedUpstream()) as gateway:
        ours = (await gateway.say([user("Hi")]))["conversation_id"]
        assert (await gateway.say([user("More")], conversation=ours))["conversation_id"] == ours
        assert len(await gateway.log(ours)) == 4
        answer = await gateway.post([user("More")], conversation=f"{ours[:-4]}0000")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "conversation_not_found"
        assert gateway.rows() == 4


async def test_tenants_with_the_same_id_never_meet() -> None:
    async with world(ScriptedUpstream()) as gateway:
        one = await gateway.say([user("I am Ada")], conversation="chat-1", key="sk-one")
        two = await gateway.say([user("I am Bob")], conversation="chat-1", key="sk-two")
        assert one["conversation_id"] != two["conversation_id"]
        await gateway.say([user("Who am I?")], conversation="chat-1", key="sk-two")
        assert "Ada" not in str(gateway.upstream.requests[-1]["messages"])
        assert len(await gateway.log(one["conversation_id"])) == 2


async def test_instructions_sent_once_are_kept_until_others_come() -> None:
    async with world(ScriptedUpstream()) as gateway:
        await gateway.say([system("Be brief."), user("One")], conversation="c")
        await gateway.say([user("Two")], conversation="c")
        assert gateway.upstream.requests[-1]["messages"][0] == system("Be brief.")
        await gateway.say([system("Be long."), user("Three")], conversation="c")
        await gateway.say([user("Four")], conversation="c")
        sent = gateway.upstream.requests[-1]["messages"]
        assert sent[0] == system("Be long.")
        assert [m["role"] for m in sent] == ["system", *["user", "assistant"] * 3, "user"]


async def test_tool_results_alone_continue_a_turn() -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}} for name in ("one", "two")
    ]
    results = [{"role": "tool", "tool_call_id": name, "content": name.upper()} for name in ("one", "two")]
    upstream = ScriptedUpstream(completion(None, tool_calls=calls), completion("Both seen."))
    async with world(upstream) as gateway:
        ours = (await gateway.say([user("Look")], conversation="c"))["conversation_id"]
        await gateway.say(results, conversation="c")
        assert [m["role"] for m in upstream.requests[-1]["messages"]] == ["user", "assistant", "tool", "tool"]
        assert upstream.requests[-1]["messages"][2:] == results
        assert len(await gateway.log(ours)) == 5
        # Their answer may have been lost: repeated, they count once and are answered anew.
        assert (await gateway.post(results, conversation="c")).status_code == 200
        assert [message["role"] for message in await gateway.log(ours)].count("tool") == 2
        unknown = [{"role": "tool", "tool_call_id": "three", "content": "THREE"}]
        refused = await gateway.post(unknown, conversation="c")
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "messages[0].role"


async def test_the_mode_header_settles_what_messages_are() -> None:
    async with world(ScriptedUpstream()) as gateway:
        history = [user("Hi"), assistant("Fine."), user("Next")]

        def mode(name: str) -> dict[str, str]:
            return {"x-context-mode": name}

        appended = await gateway.say(history, headers=mode("append"))
        assert appended["context_status"] == "full"
        ours = appended["conversation_id"]
        assert len(await gateway.log(ours)) == 4
        await gateway.say(history, headers=mode("append"), conversation=ours)
        assert len(await gateway.log(ours)) == 8
        stateless = await gateway.say(history, headers=mode("stateless"), conversation=ours)
        assert stateless["context_status"] == "bypassed"
        assert stateless["conversation_id"] is None
        assert len(gateway.conversations()) == 1
        other = [user("Other"), assistant("Elsewhere."), user("Next")]
        begun = await gateway.say(other, headers=mode("resend"), conversation="mine")
        again = await gateway.say([*other, assistant("Fine."), user("On")], headers=mode("resend"), conversation="mine")
        assert begun["conversation_id"] == again["conversation_id"] != ours
        auto = await gateway.say([user("Appended")], conversation=ours)
        assert auto["conversation_id"] == ours
        assert len(await gateway.log(ours)) == 10


async def test_a_history_that_is_not_that_of_its_id_begins_a_log_and_the_id_moves_there() -> None:
    async with world(ScriptedUpstream()) as gateway:
        before = (await gateway.say([user("Hi")], conversation="c"))["conversation_id"]
        history = [user("Elsewhere"), assistant("Yes."), user("Well?")]
        body = await gateway.say(history, conversation="c")
        assert body["context_status"] == "full"
        assert body["conversation_id"] != before
        history += [assistant("Fine."), user("And then?")]
        assert (await gateway.say(history, conversation="c"))["conversation_id"] == body["conversation_id"]
        assert texts(await gateway.log(before)) == ["Hi", "Fine."]


async def test_a_chat_uis_side_calls_under_the_same_id_leave_no_trace() -> None:
    headers = {"x-openwebui-chat-id": "3f1c"}
    title = [user("### Task:\nGenerate a title.\n<chat_history>\nUSER: Hi\nASSISTANT: Fine.\n</chat_history>")]
    async with world(ScriptedUpstream()) as gateway:
        first = await gateway.say([user("Hi")], headers=headers)
        ours = first["conversation_id"]
        for _ in range(2):
            side = await gateway.say(title, headers=headers)
            assert side["context_status"] == "bypassed"
            assert side["conversation_id"] is None
        history = [user("Hi"), assistant("Fine."), user("More")]
        assert (await gateway.say(history, headers=headers))["conversation_id"] == ours
        await gateway.say(title, headers=headers)
        assert gateway.rows() == 4
        assert len(gateway.conversations()) == 1


@pytest.mark.parametrize("header", ["x-chat-id", "x-openwebui-chat-id"])
async def test_a_side_call_that_comes_first_does_not_keep_the_chats_id(header: str) -> None:
    """Chat UIs ask for search queries before the first answer, and for titles while it is being made."""
    headers = {header: "3f1c"}
    side = [user("### Task:\nGenerate search queries.\n<chat_history>\nUSER: Hi\n</chat_history>")]
    async with world(ScriptedUpstream()) as gateway:
        await gateway.say(side, headers=headers)
        history = [user("Hi")]
        assert (await gateway.say(history, headers=headers))["context_status"] == "bypassed"
        history += [assistant("Fine."), user("More")]
        ours = (await gateway.say(history, headers=headers))["conversation_id"]
        assert (await gateway.say(side, headers=headers))["conversation_id"] != ours
        history += [assistant("Fine."), user("And more")]
        assert (await gateway.say(history, headers=headers))["conversation_id"] == ours
        assert len(await gateway.log(ours)) == 6


async def test_a_request_that_names_its_task_is_kept_out_of_the_chat() -> None:
    headers = {"x-chat-id": "3f1c"}
    async with world(ScriptedUpstream()) as gateway:
        side = await gateway.say([user("Find a title.")], headers={**headers, "x-chat-task": "title_generation"})
        assert side["context_status"] == "bypassed"
        assert gateway.rows() == 0
        ours = (await gateway.say([user("Hi")], headers={**headers, "x-chat-task": ""}))["conversation_id"]
        assert len(await gateway.log(ours)) == 2
        assert not {"x-chat-id", "x-chat-task"} & set(gateway.upstream.headers[-1])


async def test_a_chat_uis_id_may_be_empty() -> None:
    async with world(ScriptedUpstream()) as gateway:
        await gateway.say([user("Hi")], headers={"x-chat-id": "", "x-openwebui-chat-id": ""})
        assert [one.external_id for one in gateway.conversations()] == [None]


async def test_store_false_keeps_nothing() -> None:
    async with world(ScriptedUpstream()) as gateway:
        body = await gateway.say([user("Hi")], store=False)
        assert body["conversation_id"] is None
        assert body["context_status"] == "full"
        assert gateway.rows() == 0
        await gateway.say([user("Hi")], store=False, conversation="c")
        assert gateway.rows() == 0
        ours = (await gateway.say([user("I am Ada")], conversation="c"))["conversation_id"]
        await gateway.say([user("Secret")], store=False, conversation="c")
        assert [m["content"] for m in gateway.upstream.requests[-1]["messages"]] == ["I am Ada", "Fine.", "Secret"]
        await gateway.stream([user("I am Ada"), assistant("Fine."), user("Secret")], store=False)
        assert len(await gateway.log(ours)) == 2
        assert gateway.rows() == 2
        await gateway.say([user("Open")], conversation="c")
        assert "Secret" not in str(gateway.upstream.requests[-1])


async def test_an_id_follows_the_branch_in_the_lead_and_is_not_written_anew_each_turn() -> None:
    store = points()
    async with world(ScriptedUpstream(), store=store) as gateway:
        begun = [user("Hi"), assistant("Fine."), user("Left"), assistant("Fine.")]
        first = (await gateway.say(begun[:1], conversation="c"))["conversation_id"]
        assert (await gateway.say(begun[:3], conversation="c"))["conversation_id"] == first
        assert store.pointed == 0
        edited = [*begun[:2], user("Right")]
        branch = (await gateway.say(edited, conversation="c"))["conversation_id"]
        assert branch != first
        assert store.pointed == 1
        longer = [*edited, assistant("Fine."), user("On")]
        assert (await gateway.say(longer, conversation="c"))["conversation_id"] == branch
        assert store.pointed == 1
        (named,) = [one for one in gateway.conversations() if one.external_id == "c"]
        assert named.id == branch
        assert (await gateway.say([*begun, user("Back")], conversation="c"))["conversation_id"] == first
        assert store.pointed == 2


async def test_an_id_of_ours_with_a_history_is_a_resend() -> None:
    store = points()
    async with world(ScriptedUpstream(), store=store) as gateway:
        ours = (await gateway.say([user("Hi")]))["conversation_id"]
        history = [user("Hi"), assistant("Fine."), user("Next")]
        assert (await gateway.say(history, conversation=ours))["conversation_id"] == ours
        assert len(await gateway.log(ours)) == 4
        assert (await gateway.say(history, conversation=ours))["conversation_id"] != ours
        assert len(await gateway.log(ours)) == 4
        assert store.pointed == 0


async def test_two_models_answer_one_chat_at_once() -> None:
    """Chat UIs ask several models the same first question under one id."""
    headers = {"x-openwebui-chat-id": "3f1c"}
    slow = ScriptedUpstream(default=lambda body: completion(f"I am {body['model']}."))
    async with world(slow) as gateway:
        answers = await asyncio.gather(
            *(gateway.say([user("Hi")], headers=headers, model=model) for model in ("red", "blue", "green"))
        )
        assert len({body["conversation_id"] for body in answers}) == 3
        for body in answers:
            said = body["choices"][0]["message"]["content"]
            history = [user("Hi"), assistant(said), user("Go on")]
            next_body = await gateway.say(history, headers=headers)
            assert next_body["conversation_id"] == body["conversation_id"]
            assert len(await gateway.log(body["conversation_id"])) == 4


async def test_a_failed_beginning_under_a_known_id_leaves_the_id_where_it_was() -> None:
    async with world(ScriptedUpstream()) as gateway:
        ours = (await gateway.say([user("Hi")], conversation="c"))["conversation_id"]
        await _refused(gateway, [user("Quite other")], conversation="c", headers={"x-context-mode": "resend"})
        again = await gateway.say([user("More")], conversation="c")
        assert again["conversation_id"] == ours
        assert [m["content"] for m in gateway.upstream.requests[-1]["messages"]] == ["Hi", "Fine.", "More"]


async def _refused(gateway: World, messages: list[dict[str, Any]], **options: Any) -> None:
    gateway.upstream.replies = [_bad_request()]
    assert (await gateway.post(messages, **options)).status_code == 400


def _bad_request() -> Any:
    reply = completion()
    reply.status, reply.body = 400, {"error": {"message": "no", "type": "invalid_request_error", "param": None}}
    return reply


async def test_a_message_alone_under_an_id_of_ours_is_appended_even_where_histories_were_resent() -> None:
    async with world(ScriptedUpstream()) as gateway:
        ours = (await gateway.say([user("Hi")]))["conversation_id"]
        await gateway.say([user("Hi"), assistant("Fine."), user("Next")])
        body = await gateway.say([user("More")], conversation=ours)
        assert body["conversation_id"] == ours
        assert len(gateway.upstream.requests[-1]["messages"]) == 5
        assert len(await gateway.log(ours)) == 6


async def test_an_id_that_two_end_users_share_never_joins_them() -> None:
    async with world(ScriptedUpstream()) as gateway:
        one = await gateway.say([user("Mine is 7741.")], conversation="main", user="one")
        other = await gateway.say([user("And mine?")], conversation="main", user="other")
        assert other["conversation_id"] != one["conversation_id"]
        assert gateway.upstream.requests[-1]["messages"] == [user("And mine?")]
        history = [user("Mine is 7741."), assistant("Fine."), user("Which?")]
        again = await gateway.say(history, conversation="main", user="one")
        assert again["conversation_id"] == one["conversation_id"]
        answer = await gateway.post([user("Tell")], conversation=one["conversation_id"], user="other")
        assert answer.status_code == 404
        assert texts(await gateway.log(other["conversation_id"])) == ["And mine?", "Fine."]
