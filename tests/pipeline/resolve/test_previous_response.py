"""`previous_response_id`: a response is a place in a log, which the next request continues or branches from."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from app.errors import InvalidRequest, PreviousResponseNotFound
from tests.support.responses_turns import ResponsesTurns, function_call, items, output, said, said_by

UNKNOWN = f"resp_{'0' * 48}"


def instructions_of(turn: Any) -> list[Any]:
    return [orjson.loads(message.raw) for message in turn.resolved_request.instructions]


async def test_a_response_at_the_head_is_continued(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."))
    second = await turns.ask("And now?", said("Later."), previous_response_id=first.response_id)
    assert second.conversation.id == first.conversation.id
    assert await turns.log(second.conversation) == ["Hello", "Hi.", "And now?", "Later."]
    assert second.resolved_request.client_messages is None


async def test_an_earlier_response_begins_a_branch(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."))
    second = await turns.ask("One", said("1"), previous_response_id=first.response_id)
    other = await turns.ask("Two", said("2"), previous_response_id=first.response_id)
    assert other.conversation.id != second.conversation.id
    assert await turns.log(second.conversation) == ["Hello", "Hi.", "One", "1"]
    assert await turns.log(other.conversation) == ["Hello", "Hi.", "Two", "2"]
    third = await turns.ask("Three", said("3"), previous_response_id=other.response_id)
    assert await turns.log(third.conversation) == ["Hello", "Hi.", "Two", "2", "Three", "3"]


async def test_two_at_once_are_two_branches_and_both_answers_are_kept(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."))
    one, other = await asyncio.gather(
        *(turns.ask(text, said(text.upper()), previous_response_id=first.response_id) for text in ("a", "b"))
    )
    assert one.conversation.id != other.conversation.id
    assert await turns.log(one.conversation) == ["Hello", "Hi.", "a", "A"]
    assert await turns.log(other.conversation) == ["Hello", "Hi.", "b", "B"]
    for turn in (one, other):
        following = await turns.ask("next", said("Next."), previous_response_id=turn.response_id)
        assert following.conversation.id == turn.conversation.id


async def test_a_turn_at_once_does_not_wait_for_the_lease_of_an_append(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."))
    appending = turns.request("append", conversation=first.conversation.id)
    async with turns.resolved(appending) as resolved_request:
        assert resolved_request.storage.lease is not None
        stored = await turns.store_question(resolved_request)
        beside = await turns.ask("beside", said("Beside."), previous_response_id=first.response_id)
        _, conversation = await turns.store_answer(appending, stored, said("Appended."))
    assert await turns.log(conversation) == ["Hello", "Hi.", "append", "Appended."]
    assert await turns.log(beside.conversation) == ["Hello", "Hi.", "beside", "Beside."]


async def refused(turns: ResponsesTurns, response_id: str, **fields: Any) -> PreviousResponseNotFound:
    with pytest.raises(PreviousResponseNotFound) as caught:
        await turns.ask("Again", previous_response_id=response_id, **fields)
    return caught.value


async def test_what_is_no_response_of_the_tenant_is_not_found(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello")
    error = await refused(turns, UNKNOWN)
    assert (error.status, error.code, error.param) == (400, "previous_response_not_found", "previous_response_id")
    assert error.message == f"Previous response with id '{UNKNOWN}' not found."
    foreign = await refused(turns, first.response_id, tenant="another")
    assert foreign.message == error.message.replace(UNKNOWN, first.response_id)
    for malformed in ("chatcmpl-1", "resp_\0", first.conversation.id):
        await refused(turns, malformed)
    await turns.store.delete_completion(tenant=turns.tenant, completion_id=first.response_id)
    await refused(turns, first.response_id)
    second = await turns.ask("Hello again")
    await turns.store.erase_conversation(tenant=turns.tenant, conversation_id=second.conversation.id)
    await refused(turns, second.response_id)


async def test_another_end_users_response_is_not_found(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", safety_identifier="anna")
    await refused(turns, first.response_id, safety_identifier="bert")
    assert (await turns.ask("Yes", previous_response_id=first.response_id, safety_identifier="anna")).response_id


async def test_the_field_instructions_holds_once_and_messages_stay(turns: ResponsesTurns) -> None:
    rules, more = said_by("developer", "Use metric units."), said_by("developer", "Be brief.")
    first = await turns.ask([rules, said_by("user", "Hi")], instructions="You are a pirate.")
    assert instructions_of(first) == [["You are a pirate."], [rules]]
    second = await turns.ask("And?", previous_response_id=first.response_id)
    assert instructions_of(second) == [[rules]]
    third = await turns.ask(
        [rules, more, said_by("user", "Go on")], previous_response_id=second.response_id, instructions="Sing."
    )
    assert instructions_of(third) == [["Sing."], [rules], [more]]
    fourth = await turns.ask("Last", previous_response_id=third.response_id)
    assert instructions_of(fourth) == [[rules], [more]]


async def test_messages_of_the_first_request_stay_for_an_append_by_conversation(turns: ResponsesTurns) -> None:
    rules = said_by("developer", "Use metric units.")
    first = await turns.ask([rules, said_by("user", "Hi")], instructions="You are a pirate.")
    second = await turns.ask("And?", conversation=first.conversation.id, instructions="Sing.")
    assert instructions_of(second) == [["Sing."], [rules]]
    assert second.conversation.id == first.conversation.id


async def test_outputs_whose_call_is_in_the_log_are_taken(turns: ResponsesTurns) -> None:
    first = await turns.ask("Look", items(function_call("c1"), function_call("c2")))
    second = await turns.ask([output("c1"), output("c2")], previous_response_id=first.response_id)
    assert second.conversation.head_seq == 4
    third = await turns.ask("Look again", items(function_call("c3")), conversation=first.conversation.id)
    assert (await turns.ask([output("c3")], conversation=third.conversation.id)).conversation.head_seq == 8


@pytest.mark.parametrize("way", ["previous_response_id", "conversation"])
async def test_an_output_without_its_call_is_named(turns: ResponsesTurns, way: str) -> None:
    first = await turns.ask("Look", items(function_call("c1")))
    fields: dict[str, Any] = {way: first.response_id if way == "previous_response_id" else first.conversation.id}
    with pytest.raises(InvalidRequest) as caught:
        await turns.ask([said_by("user", "Here"), output("c1"), output("c9")], **fields)
    assert caught.value.param == "input[2].call_id"
    assert "c9" in caught.value.message


async def test_a_request_without_input_is_answered_at_the_head(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."))
    for instructions in (None, "Sing."):
        turn = await turns.ask("", said("More."), previous_response_id=first.response_id, instructions=instructions)
        assert await turns.log(turn.conversation) == ["Hello", "Hi.", "More."]


async def test_a_retry_gets_the_stored_answer(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello")
    second = await turns.ask("Again", said("Once."), previous_response_id=first.response_id)
    retried = turns.request("Again", previous_response_id=first.response_id, is_retry=True)
    async with turns.resolved(retried) as resolved_request:
        assert resolved_request.stored_answer is not None
        assert resolved_request.stored_answer.message.text == "Once."
        assert resolved_request.conversation.id == second.conversation.id
    async with turns.resolved(turns.request("Again", previous_response_id=first.response_id)) as resolved_request:
        assert resolved_request.stored_answer is None
        assert resolved_request.creates_conversation


async def test_a_question_that_got_no_answer_is_not_stored_again(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."))
    request = turns.request("Again", previous_response_id=first.response_id)
    async with turns.resolved(request) as resolved_request:
        await turns.store_question(resolved_request)
    second = await turns.ask("Again", said("Yes."), previous_response_id=first.response_id)
    assert second.conversation.id == first.conversation.id
    assert await turns.log(second.conversation) == ["Hello", "Hi.", "Again", "Yes."]


async def test_a_turn_that_is_not_to_be_stored_reads_the_log_and_leaves_it(turns: ResponsesTurns) -> None:
    first = await turns.ask("Hello", said("Hi."))
    for keeps_context_only in (False, True):
        turn = await turns.ask(
            "Secret", previous_response_id=first.response_id, store=False, keeps_context_only=keeps_context_only
        )
        assert not turn.resolved_request.storage.is_stored
        assert turn.resolved_request.next_seq == 3
        assert turn.resolved_request.warnings == ("`store: false`: nothing of this turn is kept.",)
    second = await turns.ask("Go on", said("Well."), previous_response_id=first.response_id)
    assert await turns.log(second.conversation) == ["Hello", "Hi.", "Go on", "Well."]
