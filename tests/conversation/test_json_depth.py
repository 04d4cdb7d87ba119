"""JSON that is nested deeper than any client means it: refused or taken as text, whoever looks at it."""

from __future__ import annotations

import orjson
import pytest

from app.conversation.identity import compute_links_after_messages, compute_start_position
from app.conversation.json_text import MAX_JSON_DEPTH, is_too_deep, may_be_too_deep
from app.conversation.search_terms import extract_message_terms
from app.dialects.body.message import ChatMessage, check_messages
from app.errors import InvalidRequest

DEPTHS = (MAX_JSON_DEPTH - 20, MAX_JSON_DEPTH + 1, 330, 500, 900, 1_000)
"""Up to what the parser takes."""
PLACES = (
    '{"role":"user","content":%s}',
    '{"role":"user","content":[{"type":"x","y":%s}]}',
    '{"role":"user","content":"a","name":%s}',
    '{"role":"assistant","content":"a","refusal":%s}',
    '{"role":"assistant","tool_calls":[{"id":"c","zz":%s}]}',
    '{"role":"assistant","tool_calls":[{"id":"c","function":{"name":%s,"arguments":"{}"}}]}',
    '{"role":"assistant","tool_calls":[{"id":"c","custom":{"name":%s,"input":"a"}}]}',
    '{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":%s}}]}',
    '{"role":"assistant","function_call":{"name":"f","arguments":%s}}',
)


def nested(depth: int, *, lists: bool) -> str:
    return "[" * depth + "]" * depth if lists else '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("depth", [depth for depth in DEPTHS if depth > MAX_JSON_DEPTH])
@pytest.mark.parametrize("place", PLACES)
def test_a_message_that_is_nested_too_deeply_is_refused_by_name(place: str, depth: int, lists: bool) -> None:
    message = ChatMessage((place % nested(depth, lists=lists)).encode())
    with pytest.raises(InvalidRequest, match=r"messages\[3\] is nested too deeply: at most 200 levels") as refused:
        check_messages([message], first_index=3, may_begin_with_result=False)
    assert refused.value.param == "messages[3]"


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("place", PLACES)
def test_whatever_can_be_read_has_a_link_and_terms(place: str, depth: int, lists: bool) -> None:
    message = ChatMessage((place % nested(depth, lists=lists)).encode())
    assert len(list(compute_links_after_messages([message], compute_start_position("t")))) == 1
    assert isinstance(extract_message_terms(message), list)


def test_arguments_are_searchable_however_deep_their_text_is_nested() -> None:
    arguments = '{"a":' * 900 + '"lighthouse"' + "}" * 900
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    message = ChatMessage(orjson.dumps({"role": "assistant", "tool_calls": [call]}))
    assert "lighthous" in extract_message_terms(message)
    check_messages([message], first_index=0, may_begin_with_result=False)


def test_depth_is_counted_by_levels_and_not_by_brackets() -> None:
    wide = b"[" + b",".join([b"[{}]"] * 500) + b"]"
    assert may_be_too_deep(wide)
    assert not is_too_deep(orjson.loads(wide))
    for depth in (MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1):
        text = nested(depth, lists=True)
        assert is_too_deep(orjson.loads(text)) == may_be_too_deep(text.encode()) == (depth > MAX_JSON_DEPTH)


def test_a_message_that_cannot_be_written_is_refused_for_its_depth() -> None:
    body = {"role": "user", "content": orjson.loads(nested(300, lists=True))}
    with pytest.raises(InvalidRequest, match="A message is nested too deeply"):
        ChatMessage.from_body(body)
