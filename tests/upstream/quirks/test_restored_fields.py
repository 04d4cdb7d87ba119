"""What clients drop from our answers, put back from the stored ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from app.upstream.quirks.field_restoration import find_messages_missing_fields, restore_missing_fields
from tests.upstream.quirks.templates import rules
from tests.upstream.quirks.templates.talks import talks

USER = {"role": "user", "content": "u"}
SIGNATURE = ["tool_calls.extra_content"]


def raws(*messages: dict[str, Any]) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


def calling(
    name: str, call_id: str = "c", *, thought: str | None = None, signature: str | None = None
) -> dict[str, Any]:
    call: dict[str, Any] = {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}}
    if signature is not None:
        call["extra_content"] = {"google": {"thought_signature": signature}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return message if thought is None else {**message, "reasoning_content": thought}


def result(call_id: str = "c") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


def answer(text: str, thought: str | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return message if thought is None else {**message, "reasoning_content": thought}


TURN = [USER, calling("f"), result(), answer("a")]


@pytest.mark.parametrize(("scope", "expected"), [("tool_loop", (7,)), ("tool_turns", (1, 3, 7))])
def test_only_answers_of_the_scope_are_missed(scope: Any, expected: tuple[int, ...]) -> None:
    talk = raws(*TURN, USER, answer("b"), USER, calling("g"), result())

    assert find_messages_missing_fields(talk, ["reasoning_content"], scope) == expected


def test_answers_that_have_everything_and_fields_without_calls_are_not_missed() -> None:
    talk = raws(USER, calling("f", thought="t", signature="s"), result(), answer("a", "t"))

    assert find_messages_missing_fields(talk, ["reasoning_content", *SIGNATURE], "tool_loop") == ()


def test_reasoning_and_signatures_come_back_byte_for_byte() -> None:
    (stored,) = raws(calling("f", thought="é", signature="s+/=\u00e9"))
    stored = stored.replace(b"\\u00e9", b"\\u00E9")
    talk = raws(USER, {**calling("f", "other"), "content": ""}, result("other"))

    filled = restore_missing_fields(talk, [stored], ["reasoning_content", *SIGNATURE], "tool_loop")

    assert b'"reasoning_content":"\\u00E9"' in filled[1]
    assert b'"extra_content":{"google": {"thought_signature": "s+/=\\u00E9"}}' in filled[1]
    assert json.loads(filled[1])["tool_calls"][0]["id"] == "other"
    assert [filled[0], filled[2]] == [talk[0], talk[2]]


def test_equal_calls_are_paired_from_the_newest_back() -> None:
    stored = raws(*(calling("f", thought=str(number)) for number in range(5)))
    talk = raws(USER, calling("f"), result(), answer("said by nobody"), calling("f"), result())

    filled = restore_missing_fields(talk, stored, ["reasoning_content"], "tool_loop")

    assert [json.loads(filled[place]).get("reasoning_content") for place in (1, 3, 4)] == ["3", None, "4"]


def test_a_call_that_was_changed_gets_no_signature() -> None:
    changed = calling("f")
    changed["tool_calls"][0]["function"]["arguments"] = '{"a": 2}'
    talk = raws(USER, changed, result())

    assert restore_missing_fields(talk, raws(calling("f", signature="s")), SIGNATURE, "tool_loop") == talk


def test_the_one_signature_of_parallel_calls_returns_to_its_call() -> None:
    both = calling("f", "1", signature="s")["tool_calls"] + calling("g", "2")["tool_calls"]
    bare = calling("f", "1")["tool_calls"] + calling("g", "2")["tool_calls"]
    stored = raws({"role": "assistant", "content": None, "tool_calls": both})

    filled = restore_missing_fields(
        raws(USER, {"role": "assistant", "tool_calls": bare}), stored, SIGNATURE, "tool_loop"
    )

    assert json.loads(filled[1])["tool_calls"] == both


@given(talks(reasons=True))
def test_a_client_that_drops_all_reasoning_still_satisfies_deepseek(messages: list[dict[str, Any]]) -> None:
    messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
    dropped = [{name: value for name, value in m.items() if name != "reasoning_content"} for m in messages]
    stored = [raw for raw, m in zip(raws(*messages), messages, strict=True) if m["role"] == "assistant"]

    filled = [
        json.loads(raw) for raw in restore_missing_fields(raws(*dropped), stored, ["reasoning_content"], "tool_turns")
    ]

    said = [m for m in filled if m["content"] or m.get("refusal") or m.get("tool_calls") or m["role"] != "assistant"]
    rules.deepseek_api(said)
