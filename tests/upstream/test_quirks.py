"""Requests made fit for providers that take less than OpenAI does."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.upstream.base import Quirks
from app.upstream.quirks import apply_quirks

CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def raws(*messages: dict[str, Any]) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def merge(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    merged, _ = apply_quirks(Quirks(merge_same_role=True), raws(*messages), {})
    return [json.loads(raw) for raw in merged]


def test_without_quirks_everything_is_the_same_object() -> None:
    messages, fields = raws(say("user", "a"), say("user", "b")), {"model": b'"m"', "max_tokens": b"5"}
    assert apply_quirks(Quirks(), messages, fields) == (messages, fields)
    assert apply_quirks(Quirks(), messages, fields)[0] is messages
    assert apply_quirks(Quirks(), messages, fields)[1] is fields


def test_with_nothing_to_do_everything_is_the_same_object() -> None:
    quirks = Quirks(True, True, "max_tokens", ("store",), stream_usage=False)
    messages, fields = raws(say("system", "s"), say("user", "a")), {"model": b'"m"', "max_tokens": b"5"}

    done, left = apply_quirks(quirks, messages, fields)

    assert done is messages
    assert left is fields


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([say("user", "a"), say("user", "b"), say("user", "c")], [say("user", "a\n\nb\n\nc")]),
        (
            [say("user", "a"), say("user", [{"type": "image_url", "image_url": {"url": "u"}}]), say("user", "b")],
            [
                say(
                    "user",
                    [
                        {"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": "u"}},
                        {"type": "text", "text": "b"},
                    ],
                )
            ],
        ),
        ([say("user", [{"type": "a"}]), say("user", [])], [say("user", [{"type": "a"}])]),
        ([say("assistant", "a"), say("assistant", None), say("assistant", "b")], [say("assistant", "a\n\nb")]),
        ([say("system", "a"), say("system", "b"), say("user", "c")], [say("system", "a\n\nb"), say("user", "c")]),
        ([say("user", "a", name="x"), say("user", "b", name="y")], [say("user", "a\n\nb")]),
        ([say("user", "a", name="x"), say("user", "b", name="x")], [say("user", "a\n\nb", name="x")]),
        ([say("assistant", "a", v=1), say("assistant", "b", v=2, w=3)], [say("assistant", "a\n\nb", v=1, w=3)]),
        ([say("assistant", "a", tool_calls=[]), say("assistant", "b")], [say("assistant", "a\n\nb", tool_calls=[])]),
    ],
)  # fmt: skip
def test_neighbours_of_one_role_become_one_message(
    messages: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert merge(*messages) == expected


@pytest.mark.parametrize(
    "messages",
    [
        [
            say("assistant", None, tool_calls=CALLS),
            say("tool", "1", tool_call_id="c"),
            say("tool", "2", tool_call_id="d"),
        ],
        [say("assistant", "a"), say("assistant", None, tool_calls=CALLS)],
        [say("assistant", None, tool_calls=CALLS), say("assistant", "a")],
        [say("assistant", None, function_call={"name": "f", "arguments": ""}), say("assistant", "a")],
        [say("user", "a"), say("assistant", "b"), say("user", "c")],
    ],
)
def test_calls_results_and_other_roles_are_never_merged(messages: list[dict[str, Any]]) -> None:
    assert merge(*messages) == messages


def test_developer_messages_become_system_messages_and_then_merge() -> None:
    quirks = Quirks(merge_same_role=True, developer_to_system=True)
    messages = raws(say("system", "s"), say("developer", "d", vendor=1), say("user", "u"))

    done, _ = apply_quirks(quirks, messages, {})

    assert [json.loads(raw) for raw in done] == [say("system", "s\n\nd", vendor=1), say("user", "u")]
    assert done[1] is messages[2]


@pytest.mark.parametrize(
    ("quirks", "fields", "expected"),
    [
        (
            Quirks(max_tokens_field="max_tokens"),
            {"max_completion_tokens": b"5", "n": b"1"},
            {"max_tokens": b"5", "n": b"1"},
        ),
        (Quirks(max_tokens_field="max_completion_tokens"), {"max_tokens": b"5"}, {"max_completion_tokens": b"5"}),
        (
            Quirks(max_tokens_field="max_tokens"),
            {"max_tokens": b"5", "max_completion_tokens": b"9"},
            {"max_tokens": b"5"},
        ),
        (Quirks(strip_fields=("seed", "user")), {"seed": b"1", "n": b"1"}, {"n": b"1"}),
        (Quirks(stream_usage=False), {"stream_options": b"{}", "stream": b"true"}, {"stream": b"true"}),
    ],
)
def test_fields_are_renamed_and_left_out(quirks: Quirks, fields: dict[str, bytes], expected: dict[str, bytes]) -> None:
    given_fields = dict(fields)

    _, left = apply_quirks(quirks, [], fields)

    assert left == expected
    assert list(left) == list(expected)
    assert fields == given_fields


_MESSAGES = st.lists(
    st.builds(
        lambda role, text, calls: say(role, text, **({"tool_calls": CALLS} if calls and role == "assistant" else {})),
        st.sampled_from(["system", "user", "assistant", "tool"]),
        st.text("ab ", min_size=1, max_size=5),
        st.booleans(),
    ),
    max_size=12,
)


@given(_MESSAGES)
def test_merging_loses_no_text_and_leaves_no_neighbours(messages: list[dict[str, Any]]) -> None:
    merged = merge(*messages)

    assert "".join(m["content"].replace("\n\n", "") for m in merged) == "".join(m["content"] for m in messages)
    for before, after in itertools.pairwise(merged):
        alone = {"tool"} & {before["role"]} or "tool_calls" in before or "tool_calls" in after
        assert alone or before["role"] != after["role"]
    assert merge(*merged) == merged


def test_what_cannot_be_read_is_left_to_the_provider() -> None:
    messages = [b'{"role": 3}', b'{"role": 3}', b"[]"]

    assert apply_quirks(Quirks(merge_same_role=True, developer_to_system=True), messages, {})[0] is messages
