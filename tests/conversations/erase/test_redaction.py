"""What is left of a message of which something was deleted or erased."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.conversation_types import LogMessage
from app.conversations.erase.redaction import DELETED_MARK, ERASED_MARK, read_deleted_parts, redact_item
from app.conversations.items.item_building import build_items
from app.dialects.chat.message import ChatMessage, decode_body

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


@st.composite
def entries(draw: st.DrawFn) -> LogMessage:
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
