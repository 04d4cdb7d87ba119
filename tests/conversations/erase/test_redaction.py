"""What is left of a message of which something was deleted or erased."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.conversation_types import LogMessage
from app.conversations.erase.redaction import DELETED_MARK, ERASED_MARK, read_deleted_parts, redact_item
from app.conversations.items.item_building import build_items
from app.dialects.body.message import ChatMessage, decode_body
from app.dialects.items.item_edits import EMPTY_IMAGE
from app.dialects.items.item_kinds import CALL_OUTPUT_TYPES
from app.dialects.items.message import ResponsesMessage

WORDS = "the secret word"
FIELDS: dict[str, Any] = {
    "refusal": WORDS,
    "name": WORDS,
    "reasoning_content": WORDS,
    "reasoning_details": [{"type": "reasoning.text", "text": WORDS}],
    "annotations": [{"type": "url_citation", "url_citation": {"url": WORDS, "title": WORDS}}],
    "audio": {"id": "a", "transcript": WORDS},
    "x_vendor": {"note": WORDS},
}
CONTENTS: list[Any] = [
    WORDS,
    "",
    None,
    [{"type": "text", "text": WORDS}],
    [{"type": "text", "text": WORDS}, {"type": "image_url", "image_url": {"url": f"data:,{WORDS}"}}],
]


def call(index: int) -> dict[str, Any]:
    arguments = f'{{"at": "{WORDS}"}}'
    return {"id": f"call_{index}", "type": "function", "function": {"name": "look", "arguments": arguments}}


def custom(index: int) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "custom", "custom": {"name": "run", "input": WORDS}}


RUN_ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": WORDS},
    {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": WORDS}]},
    {"type": "message", "role": "assistant", "content": WORDS, "x_vendor": WORDS},
    {"type": "function_call", "id": "f", "call_id": "call_0", "name": "look", "arguments": WORDS, "x_vendor": WORDS},
    {"type": "custom_tool_call", "call_id": "call_1", "name": "run", "input": WORDS},
    {"type": "shell_call", "id": "s", "call_id": "call_2", "action": {"commands": [WORDS], "timeout_ms": 5}},
    {"type": "mcp_approval_request", "id": "call_3", "name": "look", "arguments": WORDS, "server_label": "files"},
    {"type": "web_search_call", "id": "w", "action": {"query": WORDS}},
    {"type": "compaction", "encrypted_content": WORDS},
]
OUTPUTS: list[dict[str, Any]] = [
    {"type": "function_call_output", "call_id": "call_0", "output": WORDS},
    {"type": "custom_tool_call_output", "call_id": "call_0", "output": [{"type": "input_text", "text": WORDS}]},
    {"type": "shell_call_output", "call_id": "call_0", "output": [{"stdout": WORDS, "stderr": WORDS}]},
    {"type": "computer_call_output", "call_id": "call_0", "output": {"image_url": f"data:,{WORDS}"}},
    {"type": "local_shell_call_output", "id": "call_0", "output": WORDS},
    {"type": "apply_patch_call_output", "call_id": "call_0", "status": "failed", "output": WORDS},
    {"type": "mcp_approval_response", "approval_request_id": "call_0", "approve": False, "reason": WORDS},
    {"type": "tool_search_output", "execution": "client", "call_id": "call_0", "tools": [{"name": WORDS}]},
]


def make_entry_of_items(items: list[dict[str, Any]]) -> LogMessage:
    link = bytes(range(16))
    return LogMessage(7, ResponsesMessage.from_items(items), link, link, True, 5, 50, True, meta={"id": "chatcmpl-1"})


@st.composite
def entries(draw: st.DrawFn) -> LogMessage:
    if draw(st.booleans()):
        said = {"role": "user", "content": WORDS}
        runs = st.lists(st.sampled_from(RUN_ITEMS), min_size=1, max_size=6)
        return make_entry_of_items(draw(st.one_of(runs, st.sampled_from([[one] for one in [said, *OUTPUTS]]))))
    role = draw(st.sampled_from(["user", "assistant", "tool", "function", "system"]))
    body: dict[str, Any] = {"role": role, "content": draw(st.sampled_from(CONTENTS))}
    for name in draw(st.sets(st.sampled_from(sorted(FIELDS)))):
        body[name] = "look" if (role, name) == ("function", "name") else FIELDS[name]
    if role == "assistant":
        makers = draw(st.lists(st.sampled_from([call, custom]), max_size=3))
        if makers:
            body["tool_calls"] = [maker(index) for index, maker in enumerate(makers)]
    if role == "tool":
        body["tool_call_id"] = "call_0"
    return entry(body, meta={"id": "chatcmpl-1", "alternatives": [{"role": "assistant", "content": WORDS}]})


def entry(body: dict[str, Any], meta: dict[str, Any] | None = None) -> LogMessage:
    link = bytes(range(16))
    return LogMessage(7, ChatMessage.from_body(body), link, link, True, 5, 50, True, meta=meta)


@given(entries())
def test_erasing_all_items_one_by_one_leaves_no_word_and_every_id_and_call(one: LogMessage) -> None:
    before = build_items(one)
    for item in before:
        items = build_items(one, with_deleted=True)
        assert [known["id"] for known in items] == [known["id"] for known in before]
        if item["id"] in {known["id"] for known in build_items(one)}:
            current = next(known for known in items if known["id"] == item["id"])
            one = redact_item(one, current, items, erase=True)
    assert build_items(one) == []
    assert WORDS not in one.message.raw.decode()
    assert WORDS not in str(one.meta)
    assert (one.meta or {})["id"] == "chatcmpl-1"
    assert [known["id"] for known in build_items(one, with_deleted=True)] == [known["id"] for known in before]


def test_what_stands_beside_reasoning_alone_goes_with_it() -> None:
    one = entry({"role": "assistant", "content": "", "reasoning_content": WORDS, "annotations": FIELDS["annotations"]})
    items = build_items(one)
    assert [item["type"] for item in items] == ["reasoning"]
    assert WORDS not in redact_item(one, items[0], items, erase=True).message.raw.decode()


@given(entries())
def test_roles_calls_and_what_they_answer_stay(one: LogMessage) -> None:
    items = build_items(one)
    after = redact_item(one, items[0], items, erase=True)
    assert after.message.role == one.message.role
    assert [known.id for known in after.message.calls] == [known.id for known in one.message.calls]
    assert decode_body(after.message).get("tool_call_id") == decode_body(one.message).get("tool_call_id")


def test_what_is_only_hidden_is_kept_until_it_is_erased() -> None:
    one = entry({"role": "user", "content": WORDS})
    (item,) = build_items(one)
    hidden = redact_item(one, item, [item], erase=False)
    assert decode_body(hidden.message)["content"] == DELETED_MARK
    assert (hidden.meta or {})["deleted"] == {"parts": [0], "erased": False, "body": one.message.raw.decode()}
    assert build_items(hidden) == []
    erased = redact_item(
        hidden, build_items(hidden, with_deleted=True)[0], build_items(hidden, with_deleted=True), erase=True
    )
    assert decode_body(erased.message)["content"] == ERASED_MARK
    assert WORDS not in str(erased.meta)
    assert read_deleted_parts(erased) == (0,)


@pytest.mark.parametrize(("make", "left"), [(call, {"name": "look", "arguments": "{}"}), (custom, None)])
def test_one_call_of_several_is_cleared(make: Any, left: dict[str, str] | None) -> None:
    one = entry({"role": "assistant", "content": "Looking.", "tool_calls": [make(0), make(1)]})
    items = build_items(one)
    after = redact_item(one, items[2], items, erase=True)
    assert after.message.text == "Looking."
    kept, cleared = decode_body(after.message)["tool_calls"]
    assert kept == make(0)
    assert cleared.get("function") == left
    assert WORDS not in str(cleared)


def test_a_redacted_item_has_the_shape_that_providers_check() -> None:
    for item in [*RUN_ITEMS, *OUTPUTS]:
        one = make_entry_of_items([item])
        items = build_items(one)
        after = redact_item(one, items[0], items, erase=False).message
        assert isinstance(after, ResponsesMessage)
        (left,) = after.items
        assert isinstance(left, dict)
        if item["type"] in CALL_OUTPUT_TYPES or item["type"].endswith(("_output", "_response")):
            assert left.keys() <= item.keys() >= {"type"}
            assert (left["type"], after.result_for) == (item["type"], one.message.result_for)
        else:
            assert left["type"] == ("reasoning" if item["type"] == "reasoning" else "message")
        if item["type"] == "computer_call_output":
            assert left["output"]["image_url"] == EMPTY_IMAGE


def test_one_item_of_a_run_is_redacted_alone_if_it_is_a_call() -> None:
    one = make_entry_of_items(RUN_ITEMS)
    items = build_items(one)
    after = redact_item(one, items[4], items, erase=True).message
    assert isinstance(after, ResponsesMessage)
    cleared = {**RUN_ITEMS[4], "input": ERASED_MARK}
    assert after.items == [*RUN_ITEMS[:4], cleared, *RUN_ITEMS[5:]]
