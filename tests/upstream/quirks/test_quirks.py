"""Requests made fit for providers that take less than OpenAI does."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.upstream.provider_contract import ProviderQuirks
from app.upstream.quirks import fit_to_quirks

CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def raws(*messages: dict[str, Any]) -> list[bytes]:
    return [json.dumps(message).encode() for message in messages]


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def merge(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    merged, _ = fit_to_quirks("openai", ProviderQuirks(merge_same_role=True), raws(*messages), {})
    return [json.loads(raw) for raw in merged]


def test_without_quirks_everything_is_the_same_object() -> None:
    messages, fields = raws(say("user", "a"), say("user", "b")), {"model": b'"m"', "max_tokens": b"5"}
    assert fit_to_quirks("openai", ProviderQuirks(), messages, fields) == (messages, fields)
    assert fit_to_quirks("openai", ProviderQuirks(), messages, fields)[0] is messages
    assert fit_to_quirks("openai", ProviderQuirks(), messages, fields)[1] is fields


def test_with_nothing_to_do_everything_is_the_same_object() -> None:
    quirks = ProviderQuirks(True, True, "max_tokens", ("store",), stream_usage=False)
    messages, fields = raws(say("system", "s"), say("user", "a")), {"model": b'"m"', "max_tokens": b"5"}

    done, left = fit_to_quirks("openai", quirks, messages, fields)

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
    ("messages", "expected"),
    [
        (
            [say("assistant", "a"), say("assistant", None, tool_calls=CALLS)],
            [say("assistant", "a", tool_calls=CALLS)],
        ),
        (
            [say("assistant", None, tool_calls=CALLS), say("assistant", None, tool_calls=CALLS)],
            [say("assistant", None, tool_calls=CALLS * 2)],
        ),
        (
            [say("assistant", "a", reasoning_content="r"), say("assistant", "b", reasoning_content="s")],
            [say("assistant", "a\n\nb", reasoning_content="r\n\ns")],
        ),
        (
            [say("assistant", "a", reasoning_details=[{"d": 1}]), say("assistant", "", reasoning_details=[{"d": 2}])],
            [say("assistant", "a", reasoning_details=[{"d": 1}, {"d": 2}])],
        ),
    ],
)  # fmt: skip
def test_merging_keeps_calls_and_reasoning_of_all(
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
        [say("assistant", None, function_call={"name": name, "arguments": ""}) for name in "fg"],
        [say("assistant", None, audio={"id": name}) for name in "fg"],
        [say("assistant", "a"), say("assistant", "b", tool_calls="no list")],
        [say("user", "a"), say("assistant", "b"), say("user", "c")],
        [say("critic", "a"), say("critic", "b")],
    ],
)
def test_results_other_roles_and_what_a_message_has_once_are_never_merged(messages: list[dict[str, Any]]) -> None:
    assert merge(*messages) == messages


def test_developer_messages_become_system_messages_and_then_merge() -> None:
    quirks = ProviderQuirks(merge_same_role=True, developer_to_system=True)
    messages = raws(say("system", "s"), say("developer", "d", vendor=1), say("user", "u"))

    done, _ = fit_to_quirks("openai", quirks, messages, {})

    assert [json.loads(raw) for raw in done] == [say("system", "s\n\nd", vendor=1), say("user", "u")]
    assert done[1] is messages[2]


@pytest.mark.parametrize(
    ("quirks", "fields", "expected"),
    [
        (
            ProviderQuirks(max_tokens_field="max_tokens"),
            {"max_completion_tokens": b"5", "n": b"1"},
            {"max_tokens": b"5", "n": b"1"},
        ),
        (
            ProviderQuirks(max_tokens_field="max_completion_tokens"),
            {"max_tokens": b"5"},
            {"max_completion_tokens": b"5"},
        ),
        (
            ProviderQuirks(max_tokens_field="max_tokens"),
            {"max_tokens": b"5", "max_completion_tokens": b"9"},
            {"max_tokens": b"5"},
        ),
        (ProviderQuirks(strip_fields=("seed", "user")), {"seed": b"1", "n": b"1"}, {"n": b"1"}),
        (ProviderQuirks(stream_usage=False), {"stream_options": b"{}", "stream": b"true"}, {"stream": b"true"}),
    ],
)
def test_fields_are_renamed_and_left_out(
    quirks: ProviderQuirks, fields: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    given_fields = dict(fields)

    _, left = fit_to_quirks("openai", quirks, [], fields)

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
        assert before["role"] == "tool" or before["role"] != after["role"]
    assert merge(*merged) == merged


def reshaped(quirks: ProviderQuirks, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    shown, _ = fit_to_quirks("openai", quirks, raws(*messages), {})
    return [json.loads(raw) for raw in shown]


def calling(*ids: str | None, text: str | None = None, **more: Any) -> dict[str, Any]:
    calls = [{"id": id_, "type": "function", "function": {"name": f"f{n}"}, **more} for n, id_ in enumerate(ids)]
    return say("assistant", text, tool_calls=calls)


def result(id_: str | None, content: str = "r", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content, **more}


USER, ANSWER = say("user", "u"), say("assistant", "a")
S, D = say("system", "s"), say("developer", "d")
ONLY_ONE = ProviderQuirks(system_messages="first")
NO_SYSTEM = ProviderQuirks(system_messages="into_user")
ALTERNATING = ProviderQuirks(alternate_roles=True)
PARTS = [{"type": "text", "text": "p"}, {"type": "text", "text": "q"}]
IMAGE = {"type": "image_url", "image_url": {"url": "u"}}


@pytest.mark.parametrize(
    ("quirks", "messages", "expected"),
    [
        (ONLY_ONE, [S, USER], [S, USER]),
        (ONLY_ONE, [D, USER], [say("system", "d"), USER]),
        (ONLY_ONE, [S, USER, ANSWER, D, USER], [say("system", "s\n\nd"), USER, ANSWER, USER]),
        (ONLY_ONE, [USER, say("system", PARTS)], [say("system", "p\nq"), USER]),
        (ONLY_ONE, [USER, say("system", "")], [USER]),
        (NO_SYSTEM, [S, USER, D], [say("user", "s\n\nd\n\nu")]),
        (NO_SYSTEM, [S, ANSWER], [say("user", "s"), ANSWER]),
        (NO_SYSTEM, [S, say("user", [IMAGE])], [say("user", [{"type": "text", "text": "s"}, IMAGE])]),
        (NO_SYSTEM, [say("system", ""), USER], [USER]),
        (ALTERNATING, [S, ANSWER, USER], [S, say("user", "Begin."), ANSWER, USER]),
        (ALTERNATING, [USER, ANSWER, say("assistant", ""), USER], [USER, ANSWER, USER]),
        (ALTERNATING, [USER, say("assistant", None, tool_calls=None, refusal=None), USER], [say("user", "u\n\nu")]),
        (
            ALTERNATING,
            [USER, calling("c"), result("c"), USER],
            [USER, calling("c"), result("c"), say("assistant", "Noted."), USER],
        ),
        (
            ALTERNATING,
            [USER, calling("c"), result("c"), ANSWER, calling("d"), result("d"), ANSWER],
            [USER, calling("c"), result("c"), calling("d", text="a"), result("d"), ANSWER],
        ),
        (
            ProviderQuirks(split_calls=True),
            [calling("c", "d", text="a"), result("d", "2"), result("c", "1"), USER],
            [
                ANSWER,
                calling("c"),
                result("c", "1"),
                say("assistant", None, tool_calls=calling("c", "d")["tool_calls"][1:]),
                result("d", "2"),
                USER,
            ],
        ),
        (ProviderQuirks(split_calls=True), [calling("c", "d"), result("c")], [calling("c", "d"), result("c")]),
        (ProviderQuirks(tool_result_names=True), [calling("c", "c"), result("c"), result("c")],
            [calling("c", "c"), result("c", name="f0"), result("c", name="f1")]),
        (ProviderQuirks(empty_content="text"), [calling("c"), result("c"), say("assistant", [])],
            [calling("c", text=""), result("c"), say("assistant", "")]),
        (ProviderQuirks(empty_content="none"), [calling("c", text=""), ANSWER], [calling("c"), ANSWER]),
        (ProviderQuirks(flatten_text=True), [say("user", PARTS), say("user", [*PARTS, IMAGE])],
            [say("user", "p\nq"), say("user", [*PARTS, IMAGE])]),
        (ProviderQuirks(strip_message_fields=("name", "tool_calls.index")),
            [say("user", "u", name="n"), calling("c", index=0)],
            [USER, calling("c")]),
        (ProviderQuirks(message_fields=("name",)),
            [say("user", "u", name="n", x=1, tool_calls=None), calling("c", index=0)],
            [say("user", "u", name="n"), calling("c")]),
        (ProviderQuirks(message_fields=()), [say("assistant", None, refusal="no"), result("c", name="n")],
            [say("assistant", "no"), result("c")]),
        (ProviderQuirks(drop_nulls=True), [say("assistant", None, refusal=None, tool_calls=[]), result("")],
            [say("assistant", None), result("")]),
    ],
)  # fmt: skip
def test_messages_take_the_shape_that_is_understood(
    quirks: ProviderQuirks, messages: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert reshaped(quirks, *messages) == expected


THINKING = [{"type": "thinking", "thinking": "t", "signature": "s+/="}]


def thinking(text: str) -> dict[str, Any]:
    return say("assistant", text, reasoning_content="r", reasoning="r", reasoning_details=[{"x": 1}])


@pytest.mark.parametrize(
    ("reasoning", "keeping"),
    [("keep", {1, 3, 5, 8}), ("drop", set()), ("tool_loop", {8}), ("tool_turns", {3, 5, 8})],
)
def test_reasoning_goes_back_where_the_model_builds_on_it(reasoning: Any, keeping: set[int]) -> None:
    talk = [USER, thinking("a"), USER, {**thinking(""), **calling("c")}, result("c"), thinking("b")]
    talk += [USER, ANSWER, {**thinking(""), **calling("d")}, result("d")]

    shown = reshaped(ProviderQuirks(reasoning=reasoning), *talk)

    assert {place for place, message in enumerate(shown) if "reasoning_content" in message} == keeping
    assert {place for place, message in enumerate(shown) if "reasoning_details" in message} == keeping
    assert [message["content"] for message in shown] == [message["content"] for message in talk]


def test_parts_of_reasoning_are_left_out_whole() -> None:
    messages = [say("assistant", [*THINKING, *PARTS]), say("assistant", THINKING), USER, say("assistant", THINKING)]

    assert [m["content"] for m in reshaped(ProviderQuirks(reasoning="tool_loop"), *messages)] == [
        PARTS,
        "",
        "u",
        THINKING,
    ]


def test_what_stays_of_a_changed_message_stays_byte_for_byte() -> None:
    signed = b'[ {"type":"reasoning.encrypted", "data":"\\u00e9/+=", "n":1.0e2, "big":123456789012345678901234} ]'
    raw = b'{"role": "assistant", "content": "\\ud83d\\ude00", "audio": null, "reasoning_details": %b}' % signed

    (shown,), _ = fit_to_quirks("openai", ProviderQuirks(drop_nulls=True), [raw], {})

    assert signed in shown
    assert b"audio" not in shown
    assert b'"\\ud83d\\ude00"' in shown


@pytest.mark.parametrize("form", ["unique", "alnum9"])
def test_reused_and_empty_ids_become_ids_of_their_own_in_calls_and_results(form: Any) -> None:
    talk = [calling("c", "", None), result("c"), result(""), result(None), calling("c"), result("c"), result("zz")]

    shown = reshaped(ProviderQuirks(tool_call_ids=form), *talk)

    ids = [call["id"] for message in shown for call in message.get("tool_calls", [])]
    assert len({*ids}) == 4
    assert [m["tool_call_id"] for m in shown if m["role"] == "tool"][:4] == ids
    assert (ids[0] == "c") == (form == "unique")


def test_ids_that_mistral_takes_are_kept_and_others_are_always_given_the_same_one() -> None:
    quirks = ProviderQuirks(tool_call_ids="alnum9")
    talk = [calling("AbCdEf123", "call_1"), result("AbCdEf123"), result("call_1")]

    shown = reshaped(quirks, *talk)

    assert shown == reshaped(quirks, *talk)
    first, second = (call["id"] for call in shown[0]["tool_calls"])
    assert first == "AbCdEf123"
    assert len(second) == 9
    assert second.isascii()
    assert second.isalnum()


def test_a_result_that_comes_twice_keeps_the_id_of_its_call() -> None:
    shown = reshaped(ProviderQuirks(tool_call_ids="alnum9"), calling("call_1"), result("call_1"), result("call_1"))

    assert shown[1]["tool_call_id"] == shown[2]["tool_call_id"] == shown[0]["tool_calls"][0]["id"]


def test_what_cannot_be_read_is_left_to_the_provider() -> None:
    messages = [b'{"role": 3}', b'{"role": 3}', b"[]", b'{"role":"assistant","tool_calls":3}', b"{"]
    quirks = ProviderQuirks(merge_same_role=True, developer_to_system=True, tool_call_ids="alnum9", reasoning="drop")

    assert fit_to_quirks("openai", quirks, messages, {})[0] is messages
