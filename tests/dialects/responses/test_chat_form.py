"""Identity: a message of items is the same message as its chat form."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.item import Image
from app.dialects.body.message import ChatMessage, check_messages
from app.dialects.items.chat_form import build_chat_form
from app.dialects.items.input_items import encode_instructions, encode_text_input
from app.dialects.items.message import ResponsesMessage
from tests.dialects.responses.histories import TALKS, Talk
from tests.support.input_items import group_input_items

CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paris."}]}
SEARCH = {"type": "web_search_call", "action": {"type": "search", "query": "Paris"}}


def group(items: list[dict[str, Any]]) -> list[ResponsesMessage]:
    raws = group_input_items([orjson.dumps(item) for item in items], may_begin_with_result=False)
    return [ResponsesMessage(raw) for raw in raws]


def form(*items: Any) -> dict[str, Any]:
    return build_chat_form(items)


@given(TALKS)
def test_the_same_talk_has_the_same_identity_in_both_protocols(talk: Talk) -> None:
    chat, items = talk
    messages = group(items)
    assert [one.canonical_form for one in messages] == [ChatMessage.from_body(body).canonical_form for body in chat]
    assert [one.is_in_skeleton for one in messages] == [ChatMessage.from_body(body).is_in_skeleton for body in chat]
    assert [one.body for one in messages] == chat


@given(TALKS, st.randoms(use_true_random=False))
def test_what_clients_move_about_changes_no_identity(talk: Talk, rng: random.Random) -> None:
    changed = []
    for item in talk[1]:
        if item["type"] == "reasoning" and rng.random() < 0.5:
            continue
        copy = {**item, "id": f"x_{rng.random()}", "status": rng.choice(["completed", "in_progress"]), "phase": "p"}
        if item["type"] == "message" and item["role"] == "assistant" and isinstance(item["content"], str):
            copy["content"] = [{"type": "output_text", "text": item["content"], "annotations": [{"type": "x"}]}]
        fields = list(copy.items())
        rng.shuffle(fields)
        changed.append(dict(fields))
    assert [one.canonical_form for one in group(changed)] == [one.canonical_form for one in group(talk[1])]


@given(TALKS)
def test_the_checks_of_chat_accept_every_grouped_talk(talk: Talk) -> None:
    check_messages(group(talk[1]), first_index=0, may_begin_with_result=False)


def test_a_text_and_instructions_are_messages() -> None:
    assert ResponsesMessage(encode_text_input(b'"Hi"')).body == {"role": "user", "content": "Hi"}
    assert ResponsesMessage(encode_instructions(b'"Brief."')).body == {"role": "system", "content": "Brief."}


def test_texts_of_several_items_are_paragraphs_of_one_text() -> None:
    assert form(ANSWER, ANSWER)["content"] == "Paris.\n\nParis."


def test_reasoning_is_text_or_else_sealed() -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "zz"}
    told = {**sealed, "summary": [{"type": "summary_text", "text": "Hm."}]}
    assert form(told, ANSWER)["reasoning_content"] == "Hm."
    assert form(sealed, ANSWER)["reasoning_details"] == [{"type": "reasoning.encrypted", "data": "zz"}]


def test_items_of_hosted_tools_stand_among_the_content_without_what_changes() -> None:
    body = form({**SEARCH, "id": "ws_1", "status": "completed"}, ANSWER)
    assert body["content"] == [SEARCH, {"type": "text", "text": "Paris."}]
    other = form({**SEARCH, "action": {"type": "search", "query": "Rome"}}, ANSWER)
    assert ChatMessage(b"", body).canonical_form != ChatMessage(b"", other).canonical_form
    assert "Paris" in str(ChatMessage(b"", body).counted_content)


def test_what_only_a_model_writes_is_an_answer_whatever_role_it_has() -> None:
    assert form({"type": "reasoning", "summary": [], "role": "user"}, ANSWER)["role"] == "assistant"


def test_a_generated_image_counts_as_an_image() -> None:
    message = ResponsesMessage.from_items([{"type": "image_generation_call", "id": "ig", "result": "AAAA"}])
    assert message.attachments == [Image("data:image/png;base64,AAAA")]


def test_a_compaction_is_read_if_it_has_a_text() -> None:
    ours = ResponsesMessage.from_items([{"type": "compaction", "encrypted_content": "We met.", "text": "We met."}])
    theirs = ResponsesMessage.from_items([{"type": "compaction", "encrypted_content": "zz"}])
    assert (ours.text, theirs.text) == ("We met.", "")
    assert "zz" in str(theirs.counted_content)


@pytest.mark.parametrize(
    ("call", "output", "called", "said"),
    [
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]},
            ("shell_call", '{"action":{"commands":["ls"]}}'),
            '[{"stdout":"a","stderr":""}]',
        ),
        (
            {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
            {"type": "local_shell_call_output", "id": "c", "output": "a"},
            ("local_shell_call", '{"action":{"command":["ls"]}}'),
            "a",
        ),
        (
            {"type": "mcp_approval_request", "id": "c", "name": "rm", "arguments": "{}"},
            {"type": "mcp_approval_response", "approval_request_id": "c", "approve": True},
            ("mcp_approval_request", '{"name":"rm","arguments":"{}"}'),
            '{"approve":true}',
        ),
        (
            {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}},
            {
                "type": "computer_call_output",
                "call_id": "c",
                "output": {"type": "computer_screenshot", "image_url": "data:x"},
            },
            ("computer_call", '{"action":{"type":"screenshot"}}'),
            [{"type": "image_url", "image_url": {"url": "data:x"}}],
        ),
        (
            {**CALL, "namespace": "files"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
            ("files__f", '{"a": 1}'),
            "a",
        ),
    ],
)
def test_every_call_of_a_client_is_a_call_and_its_output_a_result(
    call: dict[str, Any], output: dict[str, Any], called: tuple[str, str], said: object
) -> None:
    asking, answering = group([call, output])
    assert [(one.id, one.name, one.arguments) for one in asking.calls] == [("c", *called)]
    assert (answering.role, answering.result_for, answering.body["content"]) == ("tool", "c", said)
