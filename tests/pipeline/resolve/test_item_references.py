"""A client that refers to items of earlier responses by their ids sends the history that it refers to."""

from __future__ import annotations

from typing import Any

import pytest

from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from app.errors import InvalidRequest
from tests.support.responses_turns import ResponsesTurns, function_call, items, output, said, said_by

PROVIDER_IDS = ("rs_provider1", "msg_provider1", "fc_provider1")
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def reference(item_id: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": item_id}


def from_provider() -> Item:
    return items(
        {"type": "reasoning", "id": PROVIDER_IDS[0], "summary": [], "encrypted_content": "sealed"},
        {
            "type": "message",
            "id": PROVIDER_IDS[1],
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look it up.", "annotations": []}],
        },
        function_call("c1", PROVIDER_IDS[2]),
    )


def derived_ids(response_id: str, *kinds: str) -> list[str]:
    return [f"{kind}_{response_id.removeprefix('resp_')}{index:02x}" for index, kind in enumerate(kinds)]


async def test_references_to_a_providers_items_continue_the_conversation(turns: ResponsesTurns) -> None:
    first = await turns.ask("Look", from_provider())
    history = [said_by("user", "Look"), *map(reference, PROVIDER_IDS), output("c1")]
    second = await turns.ask(history, said("Found."))
    assert second.conversation.id == first.conversation.id
    assert second.conversation.head_seq == 3
    sent = second.resolved_request.client_messages
    assert sent is not None
    # The bytes of the answer in the log, with what the client has never seen.
    assert bytes(sent[1]) == from_provider().raw
    third = await turns.ask(
        [*history, *map(reference, derived_ids(second.response_id, "msg")), said_by("user", "Thanks")]
    )
    assert third.conversation.id == first.conversation.id
    assert third.conversation.head_seq == 5


async def test_references_to_items_of_a_chat_answer_continue_the_conversation(turns: ResponsesTurns) -> None:
    answer = ChatMessage.from_body({"role": "assistant", "content": "I look it up.", "tool_calls": [CHAT_CALL]})
    first = await turns.ask("Look", answer)
    told = [reference(item_id) for item_id in derived_ids(first.response_id, "msg", "fc")]
    second = await turns.ask([said_by("user", "Look"), *told, output("c1")])
    assert second.conversation.id == first.conversation.id
    assert second.conversation.head_seq == 3


async def test_a_reference_among_new_messages_is_taken_after_a_response(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", from_provider())
    with pytest.raises(InvalidRequest) as caught:
        await turns.ask([reference(PROVIDER_IDS[1]), output("c9")])
    assert caught.value.param == "input[1].call_id"
    assert (
        await turns.ask([said_by("user", "Hm"), reference(PROVIDER_IDS[1])])
    ).conversation.id != first.conversation.id


async def test_an_item_that_is_not_the_tenants_is_not_found(turns: ResponsesTurns) -> None:
    first = await turns.ask("Look", from_provider())
    derived = derived_ids(first.response_id, "msg")[0]
    cases: list[tuple[str, dict[str, Any]]] = [
        ("msg_unknown", {}),
        ("msg_\0", {}),
        (derived.replace(derived[-2:], "7f"), {}),
        (PROVIDER_IDS[1], {"tenant": "another"}),
        (derived, {"tenant": "another"}),
    ]
    for item_id, fields in cases:
        with pytest.raises(InvalidRequest) as caught:
            await turns.ask([said_by("user", "Look"), reference(item_id)], **fields)
        assert caught.value.message.startswith(f"Item with id '{item_id}' not found.")
        assert (caught.value.status, caught.value.param) == (400, "input[1].id")


async def test_another_end_users_item_is_not_found(turns: ResponsesTurns) -> None:
    await turns.ask("Look", from_provider(), safety_identifier="anna")
    with pytest.raises(InvalidRequest, match="not found"):
        await turns.ask([reference(PROVIDER_IDS[1])], safety_identifier="bert")


async def test_erased_items_are_not_found(turns: ResponsesTurns) -> None:
    first = await turns.ask("Look", from_provider())
    (entry,) = await turns.store.read_log(first.conversation, 1, 2)
    await turns.store.redact_messages(first.conversation, [entry])
    for item_id in PROVIDER_IDS:
        with pytest.raises(InvalidRequest, match="not found"):
            await turns.ask([said_by("user", "Look"), reference(item_id)])
    second = await turns.ask("Look elsewhere", from_provider())
    await turns.store.erase_conversation(tenant=turns.tenant, conversation_id=second.conversation.id)
    with pytest.raises(InvalidRequest, match="not found"):
        await turns.ask([reference(PROVIDER_IDS[1])])


async def test_a_response_that_is_not_stored_has_no_items(turns: ResponsesTurns) -> None:
    for fields in ({}, {"keeps_context_only": True}):
        await turns.ask("Look", from_provider(), store=False, **fields)
        with pytest.raises(InvalidRequest, match="not found"):
            await turns.ask([reference(PROVIDER_IDS[1])])


async def test_a_resent_history_of_calls_alone_continues_its_conversation(turns: ResponsesTurns) -> None:
    first = await turns.ask("Look", items(function_call("c1", "fc_1")))
    second = await turns.ask([said_by("user", "Look"), function_call("c1", "fc_1"), output("c1")])
    assert second.conversation.id == first.conversation.id


async def test_a_retry_of_a_history_with_references_gets_the_stored_answer(turns: ResponsesTurns) -> None:
    await turns.ask("Look", from_provider())
    history = [said_by("user", "Look"), *map(reference, PROVIDER_IDS), output("c1")]
    await turns.ask(history, said("Found."))
    async with turns.resolved(turns.request(history, is_retry=True)) as resolved_request:
        assert resolved_request.stored_answer is not None
        assert resolved_request.stored_answer.message.text == "Found."
        conversation_id = resolved_request.conversation.id
    replayed = await turns.stored_answers.replay_answer(turns.request(history, is_retry=True), conversation_id)
    assert replayed is not None
