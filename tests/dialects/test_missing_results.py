from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.missing_tool_results import (
    MISSING_RESULT_TEXT,
    add_missing_tool_results,
    has_missing_tool_results,
    is_placeholder_result,
    may_have_tool_calls,
)
from tests.scenarios.rewriting import find_orphan

USER, ANSWER = {"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Yes."}


def calling(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": one, "type": "function"} for one in ids]}


def result(call_id: str, content: str = "7") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def missing(call_id: str) -> dict[str, Any]:
    return result(call_id, MISSING_RESULT_TEXT)


def closed(*messages: Any, at_end: bool = False) -> list[dict[str, Any]]:
    return [
        orjson.loads(raw) for raw in add_missing_tool_results([orjson.dumps(one) for one in messages], at_end=at_end)
    ]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([calling("a"), USER], [calling("a"), missing("a"), USER]),
        ([calling("a", "b"), result("b"), USER], [calling("a", "b"), result("b"), missing("a"), USER]),
        ([calling("a", "b"), result("b")], [calling("a", "b"), result("b"), missing("a")]),
        ([calling("a"), calling("a"), result("a")], [calling("a"), missing("a"), calling("a"), result("a")]),
    ],
)
def test_a_call_without_a_result_gets_one_behind_the_others(
    messages: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    assert closed(*messages) == expected


@pytest.mark.parametrize(
    "messages",
    [
        [USER, calling("a")],
        [calling("a", "b"), result("b"), result("a"), USER],
        [calling("a"), {"role": "function", "name": "f", "content": "7"}, USER],
        [calling("", ""), result(""), result(""), USER],
        [calling("a"), result("renamed"), USER],
        [calling("a"), {"content": 'says "role": "user"', **result("a", "7")}, USER],
        [calling("a"), {"tool_call_id": "a", "role": "tool", "content": "7"}, USER],
        [{"role": "user", "content": 'What is "tool_calls"?'}, USER],
        [{"role": "assistant", "content": None, "tool_calls": None}, USER],
    ],
)
def test_what_lacks_nothing_stays_as_it_is(messages: list[dict[str, Any]]) -> None:
    raws = [orjson.dumps(one) for one in messages]
    assert add_missing_tool_results(raws) == raws
    assert not has_missing_tool_results(raws)
    assert not any(map(is_placeholder_result, raws))


def test_an_open_call_at_the_end_is_closed_where_something_is_to_follow() -> None:
    assert closed(USER, calling("a"), at_end=True) == [USER, calling("a"), missing("a")]


ROUNDS = st.one_of(
    st.just([USER]),
    st.just([ANSWER]),
    st.tuples(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), st.randoms(use_true_random=False)).map(
        lambda drawn: [calling(*drawn[0]), *(result(one) for one in drawn[0] if drawn[1].random() < 0.5)]
    ),
)


@given(st.lists(ROUNDS, max_size=8).map(lambda rounds: [message for one in rounds for message in one]))
def test_a_strict_provider_takes_every_view_and_nothing_is_lost(messages: list[dict[str, Any]]) -> None:
    view = closed(*messages, USER)
    assert find_orphan(view) is None
    assert [one for one in view if one.get("content") != MISSING_RESULT_TEXT] == [*messages, USER]
    assert closed(*view) == view


def run(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return list(items)


def call(call_id: str, kind: str = "function_call") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str, kind: str = "function_call_output") -> list[dict[str, Any]]:
    return [{"type": kind, "call_id": call_id, "output": "7"}]


SAID: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": "Go on."}]
CLOUD_SHELL = {**call("a", "shell_call"), "environment": {"type": "container_reference", "container_id": "c"}}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([run(call("a")), SAID], [run(call("a")), missing("a"), SAID]),
        (
            [run({"type": "reasoning"}, call("a", "custom_tool_call"), call("b")), output("b"), SAID],
            [run({"type": "reasoning"}, call("a", "custom_tool_call"), call("b")), output("b"), missing("a"), SAID],
        ),
        ([run(call("a")), USER], [run(call("a")), missing("a"), USER]),
        ([run(call("a", "shell_call")), SAID], [run(call("a", "shell_call")), missing("a"), SAID]),
        ([calling("a", "b"), output("b"), SAID], [calling("a", "b"), output("b"), missing("a"), SAID]),
    ],
)
def test_calls_of_the_responses_protocol_get_results_too(messages: list[Any], expected: list[Any]) -> None:
    assert closed(*messages) == expected


@pytest.mark.parametrize(
    "messages",
    [
        [SAID, run(call("a"))],
        [run(call("a"), call("b")), output("b"), output("a"), SAID],
        [run(call("a", "custom_tool_call")), output("a", "custom_tool_call_output"), SAID],
        [run(call("a")), result("a"), SAID],
        [calling("a"), output("a"), USER],
        [run({"type": "web_search_call", "id": "ws", "action": {}}), SAID],
        [run(CLOUD_SHELL), SAID],
        [run({"type": "tool_search_call", "execution": "server", "call_id": None}), SAID],
        [['Be brief. Never send a function_call".'], SAID],
        [[7, "_call"], SAID],
    ],
)
def test_items_that_lack_nothing_stay_as_they_are(messages: list[Any]) -> None:
    raws = [orjson.dumps(one) for one in messages]
    assert add_missing_tool_results(raws) == raws
    assert not has_missing_tool_results(raws)


@pytest.mark.parametrize("one", [calling("a"), run(call("a")), run(call("a", "custom_tool_call")), {"input": SAID}])
def test_a_search_for_bytes_finds_what_may_call_a_tool(one: Any) -> None:
    assert may_have_tool_calls(orjson.dumps(one)) == (one != {"input": SAID})
