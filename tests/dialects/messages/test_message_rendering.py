"""Views for a provider of the Messages API keep its rules, and name what it cannot express."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import render_messages_for_chat, render_messages_for_responses
from app.dialects.messages.message import MessagesMessage
from app.dialects.messages.message_rendering import (
    BEGIN_TEXT,
    RenderedView,
    build_sealed_text,
    render_messages_for_anthropic,
)
from tests.dialects.messages.talks import TALKS, Talk, split
from tests.dialects.responses.histories import TALKS as RESPONSES_TALKS
from tests.dialects.responses.histories import Talk as ResponsesTalk

HI = {"role": "user", "content": "Hi"}
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
SAID = {"type": "text", "text": "Yes."}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "7"}
MARK = {"cache_control": {"type": "ephemeral"}}


def dump(*messages: Any) -> list[bytes]:
    return [orjson.dumps(one) for one in messages]


def render(raws: list[bytes], **options: Any) -> list[dict[str, Any]]:
    return [orjson.loads(raw) for raw in render_messages_for_anthropic(raws, **options).raw_messages]


def check_rules(rendered: RenderedView) -> None:
    messages = [orjson.loads(raw) for raw in rendered.raw_messages]
    roles = [one["role"] for one in messages if one["role"] != "system"]
    assert roles[:1] in ([], ["user"])
    assert all(first != second for first, second in itertools.pairwise(roles))
    for message in messages:
        blocks = [{"type": "text", "text": one} for one in [message["content"]] if isinstance(one, str)]
        blocks = blocks or message["content"]
        assert blocks
        kinds = [one["type"] == "tool_result" for one in blocks]
        assert kinds == sorted(kinds, reverse=True)
        assert all(one["text"].strip() for one in blocks if one["type"] == "text")
    if messages and messages[-1]["role"] == "assistant" and messages[-1]["content"][-1]["type"] == "text":
        assert messages[-1]["content"][-1]["text"].rstrip() == messages[-1]["content"][-1]["text"]


@given(TALKS)
def test_chat_goes_to_messages_and_back(talk: Talk) -> None:
    chat, messages = talk
    rendered = render_messages_for_anthropic(dump(*chat))
    assert rendered.warnings == []
    check_rules(rendered)
    back, warnings = render_messages_for_chat(split([orjson.loads(raw) for raw in rendered.raw_messages]))
    # The API takes no white space at the end of a prefill.
    *others, last = chat
    if last["role"] == "assistant" and last.get("content") and not last.get("tool_calls"):
        last = {**last, "content": last["content"].rstrip()}
    assert ([orjson.loads(raw) for raw in back], warnings) == ([*others, last], [])
    # What the client sends in this protocol passes, message by message; but for that white space.
    *others, last = messages
    if last["role"] == "assistant" and "text" in last["content"][-1]:
        *blocks, prefill = last["content"]
        last = {**last, "content": [*blocks, {**prefill, "text": prefill["text"].rstrip()}]}
    assert render(split(messages)) == [*others, last]


@given(TALKS)
def test_messages_go_to_items_and_back(talk: Talk) -> None:
    _, messages = talk
    rendered = render_messages_for_responses(split(messages))
    assert rendered.warnings == []
    chat, _ = render_messages_for_chat(split(messages))
    assert [orjson.loads(raw) for raw in rendered.messages] == [
        orjson.loads(raw) for raw in render_messages_for_responses(chat).messages
    ]


@given(RESPONSES_TALKS, st.integers(0, 3))
def test_every_view_keeps_the_rules(talk: ResponsesTalk, dropped: int) -> None:
    chat, items = talk
    check_rules(render_messages_for_anthropic(dump(*chat[dropped:])))
    check_rules(render_messages_for_anthropic([ResponsesMessage.from_items([one]).raw for one in items[dropped:]]))


def test_neighbours_are_joined_with_their_bytes() -> None:
    summary = orjson.dumps({"role": "user", "content": "Summary."})
    (message,) = render([summary, *split([{"role": "user", "content": [{"type": "text", "text": "Hi", "new": 1}]}])])
    assert message == {
        "role": "user",
        "content": [{"type": "text", "text": "Summary."}, {"type": "text", "text": "Hi", "new": 1}],
    }


def test_a_view_that_begins_with_an_answer_gets_a_user() -> None:
    assert render(split([{"role": "assistant", "content": "Yes.  "}])) == [
        {"role": "user", "content": [{"type": "text", "text": BEGIN_TEXT}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
    ]


def test_empty_texts_and_messages_are_left_out() -> None:
    blank = {"role": "assistant", "content": [{"type": "text", "text": " \n"}]}
    messages: list[dict[str, Any]] = [HI, blank, {"role": "user", "content": "Go."}]
    assert render(split(messages)) == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "Go."}]}
    ]


def test_system_prompts_are_joined_and_the_only_one_keeps_its_bytes() -> None:
    own = split([{"role": "system", "content": [{"type": "text", "text": "A", **MARK}]}, HI])
    assert render_messages_for_anthropic(own).system == orjson.dumps([{"type": "text", "text": "A", **MARK}])
    foreign = dump({"role": "system", "content": "B"}, {"role": "developer", "content": "C"}, HI)
    rendered = render_messages_for_anthropic([own[0], *foreign])
    assert [one["text"] for one in orjson.loads(rendered.system or b"")] == ["A", "B", "C"]
    later = render_messages_for_anthropic(dump(HI, {"role": "system", "content": "Now in French."}))
    assert "role of system messages" in later.warnings[0]
    assert b"Now in French." in later.raw_messages[0]


def loop(*, asked: str = "And?") -> list[bytes]:
    """A turn that has ended, and an open tool loop; both have thinking."""
    return split(
        [
            HI,
            {"role": "assistant", "content": [{**THINKING, "signature": "b2xk"}, SAID]},
            {"role": "user", "content": asked},
            {"role": "assistant", "content": [THINKING, USE]},
            {"role": "user", "content": [RESULT, {"type": "text", "text": "Hurry."}]},
        ]
    )


def find_signatures(raws: list[bytes], **options: Any) -> list[str]:
    return [
        block["signature"]
        for message in render(raws, **options)
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "thinking"
    ]


def test_thinking_is_bound_to_what_stands_before_it() -> None:
    assert find_signatures(loop()) == ["b2xk", "c2ln"]
    # After an edit of the prefix, only the open tool loop keeps its thinking.
    assert find_signatures(loop(), keeps_thinking=False) == ["c2ln"]
    rendered = render_messages_for_anthropic(loop(), keeps_thinking=False)
    assert (rendered.has_loop_thinking, rendered.lacks_loop_thinking) == (True, False)


def test_thinking_of_another_model_is_left_out() -> None:
    assert find_signatures(loop(), own_seals=frozenset({"b2xk"})) == ["b2xk"]
    rendered = render_messages_for_anthropic(loop(), own_seals=frozenset())
    assert (rendered.has_loop_thinking, rendered.lacks_loop_thinking) == (False, True)
    unsigned = split([HI, {"role": "assistant", "content": [{**THINKING, "signature": ""}, SAID]}, HI])
    assert find_signatures(unsigned) == []


def test_thinking_comes_back_from_the_other_protocols() -> None:
    chat = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.", "thinking_blocks": [THINKING]}
    items: list[dict[str, Any] | str] = [
        {"type": "reasoning", "summary": [], "encrypted_content": build_sealed_text(THINKING)},
        {"type": "message", "role": "assistant", "content": "Yes."},
    ]
    for raw in (orjson.dumps(chat), ResponsesMessage.from_items(items).raw):
        rendered = render_messages_for_anthropic([*dump(HI), raw, *dump(HI)])
        assert rendered.warnings == []
        assert orjson.loads(rendered.raw_messages[1])["content"] == [THINKING, SAID]
    bare = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert "no signature" in render_messages_for_anthropic(dump(HI, bare, HI)).warnings[0]


def test_at_most_four_cache_marks_the_last_ones() -> None:
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": [{**SAID, **MARK}]} for n in range(7)]
    marked = ["cache_control" in one["content"][0] for one in render(split(messages))]
    assert marked == [False] * 3 + [True] * 4
    marked = ["cache_control" in one["content"][0] for one in render(split(messages), cache_marks=1)]
    assert marked == [False] * 6 + [True]


def test_call_ids_fit_and_are_used_once() -> None:
    def call(call_id: str | None) -> dict[str, Any]:
        function = {"name": "f", "arguments": "{}"}
        return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}] * 2}

    def result(call_id: str | None) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call_id, "content": "7"}

    chat = [HI, *[one for name in ("f:0", "", "f:0") for one in (call(name), result(name), result(name))]]
    messages = render(dump(*chat))
    uses = [block["id"] for one in messages for block in one["content"] if one["role"] == "assistant"]
    results = [block["tool_use_id"] for one in messages[1:] for block in one["content"] if one["role"] == "user"]
    assert len(set(uses)) == 6
    assert uses == results


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "eA=="}}]}, "'input_audio'"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}, "'file'"),
        ({"role": "user", "content": "Hi", "name": "ann"}, "'name'"),
        ({"role": "assistant", "content": "Yes.", "audio": {"id": "x"}}, "'audio'"),
    ],
)
def test_what_chat_says_and_messages_cannot_is_named(message: dict[str, Any], named: str) -> None:
    assert named in str(render_messages_for_anthropic(dump(HI, message)).warnings)


@pytest.mark.parametrize(
    ("blocks", "named"),
    [
        ([{**THINKING}, SAID], "'signature'"),
        ([{"type": "redacted_thinking", "data": "x"}, SAID], "'data'"),
        ([{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, SAID], "'server_tool_use'"),
        ([{"type": "brand_new", "x": 1}, SAID], "'brand_new'"),
        ([{**SAID, "citations": [{"type": "char_location"}]}], "'citations'"),
    ],
)
def test_what_messages_say_and_others_cannot_is_named(blocks: list[dict[str, Any]], named: str) -> None:
    raws = split([HI, {"role": "assistant", "content": blocks}, HI])
    assert named in str(render_messages_for_chat(raws)[1])
    assert named in str(render_messages_for_responses(raws).warnings)
    assert MessagesMessage(raws[1]).native in [bytes(raw) for raw in render_messages_for_anthropic(raws).raw_messages]
