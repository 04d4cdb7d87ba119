"""Requests of the Messages API: split into messages of the log, and refused by their place."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given

from app.dialects.item_decoding import decode_item
from app.dialects.messages.message import MessagesMessage
from app.dialects.messages.request import MessagesFields, parse_messages_fields
from app.dialects.request_body import decode_body_fields
from app.errors import InvalidRequest
from tests.dialects.messages.talks import TALKS, Talk, split

HI = {"role": "user", "content": "Hi"}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
CALL = {"role": "assistant", "content": [USE]}
BODY = {"model": "m", "max_tokens": 5, "messages": [HI]}


def parse(body: dict[str, Any], **options: bool) -> MessagesFields:
    options = {"may_begin_with_result": False, **options}
    return parse_messages_fields(decode_body_fields(orjson.dumps(body)), **options)


def result(call_id: Any = "a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "7", **more}


@given(TALKS)
def test_blocks_keep_their_order_and_bytes(talk: Talk) -> None:
    _, messages = talk
    units = [MessagesMessage(raw) for raw in split(messages)]
    assert [block for one in units for block in one.raw_blocks] == [
        block for one in messages for block in MessagesMessage.from_native(orjson.dumps(one)).raw_blocks
    ]


def test_results_come_first_each_on_its_own() -> None:
    said = {"type": "text", "text": "And?"}
    call = {"role": "assistant", "content": [USE, {**USE, "id": "b"}]}
    fields = parse({**BODY, "messages": [HI, call, {"role": "user", "content": [said, result("b"), result("a")]}]})
    units = [decode_item(raw) for raw in fields.raw_messages]
    assert [one.role for one in units] == ["user", "assistant", "tool", "tool", "user"]
    assert [one.result_for for one in units[2:4]] == ["b", "a"]
    assert list(fields.message_indexes) == [[0], [1], [2], [2], [2]]


def test_results_of_one_answer_may_stand_in_several_messages() -> None:
    call = {"role": "assistant", "content": [USE, {**USE, "id": "b"}]}
    messages = [HI, call, {"role": "user", "content": [result()]}, {"role": "user", "content": [result("b")]}]
    assert [decode_item(raw).role for raw in parse({**BODY, "messages": messages}).raw_messages][2:] == ["tool", "tool"]


def test_the_system_prompt_is_the_first_message() -> None:
    for system in ("Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]):
        fields = parse({**BODY, "system": system})
        first = decode_item(fields.raw_messages[0])
        assert (first.role, first.text) == ("system", "Be brief.")
        assert list(fields.message_indexes) == [[], [0]]
    assert len(parse({**BODY, "system": ""}).raw_messages) == 1
    in_the_middle = parse({**BODY, "messages": [HI, {"role": "system", "content": "New."}, HI]})
    assert [decode_item(raw).role for raw in in_the_middle.raw_messages] == ["user", "system", "user"]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"max_tokens": True}, "max_tokens: "),
        ({"model": None}, "model: Field required"),
        ({"messages": None}, "messages: "),
        ({"messages": []}, "messages: "),
        ({"messages": {}}, "messages: "),
        ({"messages": [7]}, "messages.0: "),
        ({"messages": [HI, {"role": "bot", "content": "x"}]}, "messages.1.role: "),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content: "),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0.type: Field required"),
        ({"messages": [{"role": "user", "content": [{"type": 7}]}]}, "messages.0.content.0.type: "),
        ({"messages": [HI, {"role": "user", "content": [result()]}]}, "messages.1.content.0: unexpected `tool_use_id`"),
        ({"messages": [HI, CALL, {"role": "user", "content": [result(7)]}]}, "messages.2.content.0.tool_use_id: "),
        ({"messages": [HI, CALL, HI, {"role": "user", "content": [result()]}]}, "messages.3.content.0: unexpected"),
        ({"messages": [HI, {"role": "assistant", "content": [result()]}]}, "messages.1.content.0: "),
        ({"system": 7}, "system: "),
        ({"system": [{"type": "image"}]}, "system.0: "),
        ({"system": ["x"]}, "system.0: "),
        ({"tools": {}}, "tools: "),
        ({"tools": [7]}, "tools.0: "),
        ({"stream": "yes"}, "stream: "),
        ({"stop_sequences": "x"}, "stop_sequences: "),
        ({"thinking": True}, "thinking: "),
    ],
)
def test_what_is_wrong_is_named_by_its_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse({**BODY, **change})
    assert refused.value.message.startswith(place)


def test_a_request_that_continues_may_begin_with_a_result() -> None:
    messages = [{"role": "user", "content": [result()]}]
    assert len(parse({**BODY, "messages": messages}, may_begin_with_result=True).raw_messages) == 1


def test_a_count_needs_no_limit() -> None:
    assert parse({**BODY, "max_tokens": None}, needs_limit=False).max_output_tokens is None
