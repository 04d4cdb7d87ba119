"""Clients such as the AI SDK name a conversation or a response, and send items again that are in the log already."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.errors import InvalidRequest
from tests.support.responses_turns import ResponsesTurns, Turn, function_call, items, output, said, said_by

RULES = said_by("system", "Be brief.")


def user(text: str) -> dict[str, Any]:
    """A user's message as the AI SDK writes it."""
    return {"role": "user", "content": [{"type": "input_text", "text": text}]}


def answered(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "output_text", "text": text}]}


def list_instructions(turn: Turn) -> list[str]:
    return [message.text for message in turn.resolved_request.instructions]


async def test_the_question_before_the_output_of_an_open_call_is_not_stored_again(turns: ResponsesTurns) -> None:
    created = await turns.ask([RULES, user("Hello")], said("Hi."))
    fields: dict[str, Any] = {"conversation": created.conversation.id}
    await turns.ask([RULES, user("Look")], items(function_call("c1"), function_call("c2")), **fields)
    outputs = [output("c1", "1"), output("c2", "2")]
    await turns.ask([RULES, user("Look"), *outputs], items(function_call("c3")), **fields)
    last = await turns.ask([RULES, user("Look"), *outputs, output("c3", "3")], said("Done."), **fields)
    assert last.conversation.id == created.conversation.id
    assert await turns.log(last.conversation) == ["Hello", "Hi.", "Look", "·", "1", "2", "·", "3", "Done."]
    assert list_instructions(last) == ["Be brief."]


async def test_a_whole_history_without_answers_is_not_stored_again(turns: ResponsesTurns) -> None:
    first = await turns.ask([RULES, user("One")], said("1"))
    fields: dict[str, Any] = {"conversation": first.conversation.id}
    await turns.ask([RULES, user("One"), user("Two")], items(function_call("c1")), **fields)
    await turns.ask([RULES, user("One"), user("Two"), output("c1", "x")], said("2"), **fields)
    last = await turns.ask([RULES, user("One"), user("Two"), output("c1", "x"), user("Two")], said("3"), **fields)
    assert await turns.log(last.conversation) == ["One", "1", "Two", "·", "x", "2", "Two", "3"]


@pytest.mark.parametrize("sends_answer", [True, False])
async def test_a_whole_history_for_a_conversation_is_not_stored_again(
    turns: ResponsesTurns, sends_answer: bool
) -> None:
    first = await turns.ask([user("One")], said("The first answer."))
    fields: dict[str, Any] = {"conversation": first.conversation.id}
    history = [user("One"), answered("The first answer."), user("Two")]
    second = await turns.ask(history, items(function_call("c1")), **fields)
    assert await turns.log(second.conversation) == ["One", "The first answer.", "Two", "·"]
    call = [function_call("c1")] if sends_answer else []
    last = await turns.ask([*history, *call, output("c1", "x")], said("Three."), **fields)
    assert last.conversation.id == first.conversation.id
    assert await turns.log(last.conversation) == ["One", "The first answer.", "Two", "·", "x", "Three."]


async def test_references_to_answers_of_the_conversation_are_not_stored_again(turns: ResponsesTurns) -> None:
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    answer = items({**message, "content": [{"type": "output_text", "text": "Hi.", "annotations": []}]})
    reference = {"type": "item_reference", "id": "msg_1"}
    first = await turns.ask([user("Hello")], answer)
    second = await turns.ask([user("Hello"), reference, user("And?")], said("Yes."), conversation=first.conversation.id)
    assert await turns.log(second.conversation) == ["Hello", "Hi.", "And?", "Yes."]
    for history in ([user("Hello"), reference, user("Or?")], [reference, user("Or?")]):
        branch = await turns.ask(history, said("No."), previous_response_id=first.response_id)
        assert await turns.log(branch.conversation) == ["Hello", "Hi.", "Or?", "No."]


async def test_the_same_words_again_are_a_new_turn(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("yes")], said("Go on?"))
    by_id: dict[str, Any] = {"conversation": first.conversation.id}
    await turns.ask([user("yes")], said("Go on?"), **by_id)
    last = await turns.ask([user("yes")], said("Go on?"), **by_id)
    assert await turns.log(last.conversation) == ["yes", "Go on?"] * 3
    following = await turns.ask([user("yes")], said("Go on?"), previous_response_id=last.response_id)
    assert following.conversation.id == last.conversation.id
    assert await turns.log(following.conversation) == ["yes", "Go on?"] * 4
    branch = await turns.ask([user("yes")], said("Stop."), previous_response_id=last.response_id)
    assert branch.conversation.id != last.conversation.id


async def test_the_same_words_after_the_output_are_kept(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Look")], items(function_call("c1")))
    last = await turns.ask([output("c1", "x"), user("Look")], said("Done."), conversation=first.conversation.id)
    assert await turns.log(last.conversation) == ["Look", "·", "x", "Look", "Done."]


async def test_other_words_before_the_output_are_kept_behind_it(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Look")], items(function_call("c1")))
    last = await turns.ask([user("Here"), output("c1", "x")], said("Done."), conversation=first.conversation.id)
    assert await turns.log(last.conversation) == ["Look", "·", "x", "Here", "Done."]


async def test_words_before_an_output_that_got_no_answer_are_not_stored_again(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Look")], items(function_call("c1")))
    fields: dict[str, Any] = {"conversation": first.conversation.id}
    given = [user("Here"), output("c1", "x")]
    async with turns.resolved(turns.request(given, **fields)) as resolved_request:
        await turns.store_question(resolved_request)
    last = await turns.ask(given, said("Done."), **fields)
    assert await turns.log(last.conversation) == ["Look", "·", "x", "Here", "Done."]


async def test_examples_that_are_not_in_the_log_are_kept(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("One")], said("OK"))
    last = await turns.ask(
        [user("Example"), answered("OK"), user("Two")], said("2"), conversation=first.conversation.id
    )
    assert await turns.log(last.conversation) == ["One", "OK", "Example", "OK", "Two", "2"]


async def test_an_output_that_got_no_answer_is_not_stored_again(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Look")], items(function_call("c1")))
    fields: dict[str, Any] = {"conversation": first.conversation.id}
    request = turns.request([user("Look"), output("c1", "x")], **fields)
    async with turns.resolved(request) as resolved_request:
        await turns.store_question(resolved_request)
    last = await turns.ask([user("Look"), output("c1", "x")], said("Done."), **fields)
    assert await turns.log(last.conversation) == ["Look", "·", "x", "Done."]
    with pytest.raises(InvalidRequest) as caught:
        await turns.ask([user("Look"), output("c1", "x")], **fields)
    assert caught.value.param == "input[1].call_id"


async def test_a_run_that_is_sent_again_after_its_response_continues_it(turns: ResponsesTurns) -> None:
    first = await turns.ask([RULES, user("Hello")], said("Hi."))
    fields: dict[str, Any] = {"previous_response_id": first.response_id}
    run = [RULES, user("Look")]
    await turns.ask(run, items(function_call("c1")), **fields)
    run += [function_call("c1"), output("c1", "1")]
    await turns.ask(run, items(function_call("c2"), function_call("c3")), **fields)
    run += [function_call("c2"), function_call("c3"), output("c2", "2"), output("c3", "3")]
    last = await turns.ask(run, said("Done."), **fields)
    assert last.conversation.id == first.conversation.id
    assert await turns.log(last.conversation) == ["Hello", "Hi.", "Look", "·", "1", "·", "2", "3", "Done."]
    assert list_instructions(last) == ["Be brief."]


async def test_a_step_that_is_answered_already_is_answered_on_a_branch(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Hello")], said("Hi."))
    fields: dict[str, Any] = {"previous_response_id": first.response_id}
    await turns.ask([user("Look")], items(function_call("c1")), **fields)
    step = [user("Look"), function_call("c1"), output("c1", "1")]
    one = await turns.ask(step, said("Warm."), **fields)
    other = await turns.ask(step, said("Cold."), **fields)
    assert other.conversation.id != one.conversation.id == first.conversation.id
    assert await turns.log(other.conversation) == ["Hello", "Hi.", "Look", "·", "1", "Cold."]


async def test_two_runs_at_once_stay_two_branches_although_their_words_are_equal(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Hello")], said("Hi."))
    fields: dict[str, Any] = {"previous_response_id": first.response_id}
    runs = [await turns.ask([user("Look")], items(function_call(call_id)), **fields) for call_id in ("a", "b")]
    assert runs[0].conversation.id != runs[1].conversation.id
    steps = await asyncio.gather(
        *(
            turns.ask([user("Look"), function_call(call_id), output(call_id, call_id)], said(f"{call_id}!"), **fields)
            for call_id in ("a", "b")
        )
    )
    assert [step.conversation.id for step in steps] == [run.conversation.id for run in runs]
    for call_id, step in zip("ab", steps, strict=True):
        assert await turns.log(step.conversation) == ["Hello", "Hi.", "Look", "·", call_id, f"{call_id}!"]


async def test_a_run_never_joins_an_unrelated_conversation_with_the_same_words(turns: ResponsesTurns) -> None:
    talks = [await turns.ask([user("Hello")], said("Hi."), safety_identifier=name) for name in ("anna", "bert")]
    assert talks[0].conversation.id != talks[1].conversation.id
    await turns.ask([user("Look")], said("I see."), previous_response_id=talks[0].response_id)
    run = [user("Look"), answered("I see."), user("And?")]
    other = await turns.ask(run, said("No."), previous_response_id=talks[1].response_id)
    assert other.conversation.id == talks[1].conversation.id
    assert await turns.log(other.conversation) == ["Hello", "Hi.", "Look", "I see.", "And?", "No."]


async def test_a_retry_whose_first_attempt_began_a_branch_gets_its_answer(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Hello")], said("Hi."))
    fields: dict[str, Any] = {"previous_response_id": first.response_id}
    await turns.ask([user("One")], said("1"), **fields)
    branch = await turns.ask([user("Two")], said("2"), **fields)
    async with turns.resolved(turns.request([user("Two")], is_retry=True, **fields)) as resolved_request:
        assert resolved_request.stored_answer is not None
        assert resolved_request.stored_answer.message.text == "2"
        assert resolved_request.conversation.id == branch.conversation.id
        assert not resolved_request.new_messages
    async with turns.resolved(turns.request([user("Two")], **fields)) as resolved_request:
        assert resolved_request.creates_conversation


async def test_referenced_calls_of_the_response_may_come_before_their_outputs(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Look")], items(function_call("c1", "fc_1"), function_call("c2", "fc_2")))
    calls = [{"type": "item_reference", "id": item_id} for item_id in ("fc_1", "fc_2")]
    for given in ([*calls, output("c1", "1"), output("c2", "2")], [user("Look"), *calls, output("c1"), output("c2")]):
        turn = await turns.ask(given, said("Done."), previous_response_id=first.response_id)
        assert (await turns.log(turn.conversation))[:2] == ["Look", "·"]
        assert turn.conversation.head_seq == 4
    with pytest.raises(InvalidRequest) as caught:
        await turns.ask([*calls, output("c9")], previous_response_id=first.response_id)
    assert caught.value.param == "input[2].call_id"


async def test_a_referenced_text_beside_a_call_is_not_stored_again(turns: ResponsesTurns) -> None:
    """The AI SDK refers to the text of an answer and leaves out the call of a custom tool beside it."""
    text = {"type": "output_text", "text": "I look it up.", "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    first = await turns.ask([user("Look")], items(message, function_call("c1")))
    given = [user("Look"), {"type": "item_reference", "id": "msg_1"}, output("c1", "1")]
    last = await turns.ask(given, said("Done."), previous_response_id=first.response_id)
    assert await turns.log(last.conversation) == ["Look", "I look it up.", "1", "Done."]


async def test_two_messages_that_begin_as_the_last_turn_are_kept(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Hello")], said("Hi."))
    fields: dict[str, Any] = {"conversation": first.conversation.id}
    await turns.ask([user("yes")], said("Go on?"), **fields)
    last = await turns.ask([user("yes"), user("no")], said("Well."), **fields)
    assert await turns.log(last.conversation) == ["Hello", "Hi.", "yes", "Go on?", "yes", "no", "Well."]


async def test_an_equal_output_of_another_call_is_no_repetition(turns: ResponsesTurns) -> None:
    first = await turns.ask([user("Look")], items(function_call("c1")))
    fields: dict[str, Any] = {"conversation": first.conversation.id}
    await turns.ask([output("c1", "x")], said("Done."), **fields)
    with pytest.raises(InvalidRequest) as caught:
        await turns.ask([user("Look"), output("c2", "x"), user("And?")], **fields)
    assert caught.value.param == "input[1].call_id"


@pytest.mark.parametrize("way", ["new_conversation", "conversation", "previous_response_id"])
async def test_an_output_without_its_call_is_named_in_each_way(turns: ResponsesTurns, way: str) -> None:
    first = await turns.ask([user("Look")], said("Nothing."))
    fields: dict[str, Any] = {
        "new_conversation": {"conversation": "mine"},
        "conversation": {"conversation": first.conversation.id},
        "previous_response_id": {"previous_response_id": first.response_id},
    }[way]
    with pytest.raises(InvalidRequest) as caught:
        await turns.ask([RULES, user("Look"), user("Here"), output("c1")], **fields)
    assert caught.value.param == "input[3].call_id"
