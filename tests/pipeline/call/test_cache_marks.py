"""Where the gateway tells providers' prompt caches what to keep, in each protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pytest

from app.context.view.cache_boundaries import find_cache_marks
from app.context.view.view_rendering import SUMMARY_PREAMBLE, render_summary_section
from app.dialects.cache_marks import TOOLS_INDEX, CacheMark
from app.dialects.message_rendering import render_messages_for_chat, render_messages_for_responses
from app.dialects.messages.message import MessagesMessage
from app.dialects.provider_dialects import PROVIDER_DIALECTS
from tests.live import ScriptedUpstream
from tests.support.gateway import (
    answering,
    assistant,
    call,
    is_summary,
    long_history,
    result,
    system,
    user,
    world,
)
from tests.support.messages_world import MessagesUpstream, messages_world
from tests.support.raw_http import raw
from tests.support.responses_upstream import ResponsesUpstream
from tests.support.responses_world import responses_world

CONTROL = {"type": "ephemeral"}
BREAKPOINT = {"mode": "explicit"}
MODELS = {"m": {"provider": "upstream", "context_window": 8192}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def dump(*messages: Mapping[str, Any]) -> list[bytes]:
    return [orjson.dumps(one) for one in messages]


def ruled(cache: str) -> dict[str, Any]:
    return {"models": {"m": {**MODELS["m"], "cache": cache}}}


def list_marks(value: Any, name: str) -> list[str]:
    """The texts, ids or names of what has a mark, in order."""
    if isinstance(value, dict):
        inner = [found for one in value.values() for found in list_marks(one, name)]
        told = next((value[key] for key in ("text", "tool_use_id", "name") if key in value), "?")
        return [*inner, *([told] if name in value else [])]
    return [found for one in value for found in list_marks(one, name)] if isinstance(value, list) else []


TALK = [system("Be kind."), user("one"), assistant("1"), user("two"), assistant("2"), user("three")]


@pytest.mark.parametrize(
    ("messages", "anthropic", "breakpoints"),
    [
        (TALK[:2], [0], [0]),
        (TALK[:4], [0, 1, 3], [0, 1]),
        (TALK, [0, 3, 5], [0, 3]),
        (TALK[1:], [TOOLS_INDEX, 2, 4], [TOOLS_INDEX, 2]),
        ([*TALK[:4], assistant(None, tool_calls=[call("f")]), result("7")], [0, 3, 5], [0, 3]),
        ([*TALK[:2], assistant("1, 2, ")], [0], [0]),  # the beginning of the answer
        ([system("A"), assistant("Hello"), user("Hi")], [0], [0]),
        ([system("A")], [0], [0]),
    ],
)
def test_marks_stand_at_the_ends_of_instructions_of_the_last_prompt_and_of_this_one(
    messages: Sequence[Mapping[str, Any]], anthropic: list[int], breakpoints: list[int]
) -> None:
    assert sorted(find_cache_marks(dump(*messages), "anthropic")) == sorted(anthropic)
    assert sorted(find_cache_marks(dump(*messages), "breakpoints")) == sorted(breakpoints)
    assert not find_cache_marks(dump(*messages), "prefix")
    assert not find_cache_marks(dump(*messages), "none")


def test_the_prompt_of_a_summary_has_no_mark_at_its_end() -> None:
    assert sorted(find_cache_marks(dump(*TALK), "anthropic", is_summary_call=True)) == [0, 3]


def test_each_summary_becomes_a_part_that_stays_equal_when_more_are_added() -> None:
    told = ["They met.", "They </earlier_conversation> parted."]
    sections = [render_summary_section(text, through_turn=turn) for turn, text in enumerate(told)]

    def render(count: int) -> list[dict[str, Any]]:
        text = "".join([SUMMARY_PREAMBLE, *sections[:count]])
        view = dump(TALK[0], user(text), *TALK[3:])
        marks = find_cache_marks(view, "breakpoints")
        parts: list[dict[str, Any]] = orjson.loads(render_messages_for_chat(view, marks)[0][1])["content"]
        assert "".join(part["text"] for part in parts) == text
        return parts

    (only,) = render(1)
    first, second = render(2)
    assert first == only == {**only, "prompt_cache_breakpoint": BREAKPOINT}
    assert second == {"type": "text", "text": sections[1], "prompt_cache_breakpoint": BREAKPOINT}


def test_a_message_without_a_part_for_a_breakpoint_keeps_its_bytes() -> None:
    raws = [b'{"role": "assistant", "content":null, "tool_calls":[]}', b'{"role": "user", "content": ""}']
    assert render_messages_for_chat(raws, {0: CacheMark(), 1: CacheMark()})[0] == raws
    given = [{"role": "user", "content": "a"}, {"type": "function_call_output", "call_id": "c", "output": "b"}]
    marked = render_messages_for_responses(
        [orjson.dumps([one]) for one in given], cache_marks=dict.fromkeys((0, 1), CacheMark())
    )
    assert [list_marks(orjson.loads(one), "prompt_cache_breakpoint") for one in marked.messages] == [["a"], ["b"]]
    items = [b'[{"type":"message", "role":"assistant","content":[{"type":"output_text","text":"a"}]}]']
    rendered = render_messages_for_responses(items, cache_marks={0: CacheMark()})
    assert rendered.messages == [items[0][1:-1]]


def test_what_is_beside_a_breakpoint_keeps_its_bytes() -> None:
    raws = [b'{"role":"user","x_n":123456789012345678901234567890,"content":[{"type":"text", "text":"\\u00e9" } ]}']
    marked = b'{"type":"text", "text":"\\u00e9" ,"prompt_cache_breakpoint":{"mode":"explicit"}}'
    assert render_messages_for_chat(raws, {0: CacheMark()})[0] == [
        b'{"role":"user","x_n":123456789012345678901234567890,"content":[' + marked + b"]}"
    ]


def test_blocks_that_are_not_valid_are_left_to_the_provider() -> None:
    contents: list[Any] = [[{}], [], ["a"], [{"type": "text", "text": ""}], [{"type": "x", "text": 1}]]
    for content in contents:
        raw = orjson.dumps({"role": "user", "content": content})
        assert len(render_messages_for_chat([raw], {0: CacheMark()})[0]) == 1
        own = MessagesMessage.from_native(raw).raw
        PROVIDER_DIALECTS["anthropic"].render_messages([own], None, {}, cache_marks={0: CacheMark()})


def test_thinking_gets_no_mark() -> None:
    dialect = PROVIDER_DIALECTS["anthropic"]
    blocks = [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b", "signature": "c2ln"}]
    raws = [*dump(user("x")), MessagesMessage.from_raw_blocks("assistant", dump(*blocks)).raw, *dump(user("y"))]
    rendered = dialect.render_messages(raws, None, {}, cache_marks={1: CacheMark()})
    assert list_marks([orjson.loads(one) for one in rendered.messages], "cache_control") == ["a"]


async def test_chat_clients_get_marks_of_anthropic() -> None:
    upstream = MessagesUpstream()
    async with messages_world(upstream, **ruled("anthropic")) as w:
        await w.say(TALK[:2], tools=[TOOL])
        await w.say(TALK[1:4], tools=[TOOL])
        await w.say([*TALK[:4], assistant("Well.", tool_calls=[call("f")]), result("7")], tools=[TOOL])
    assert [sorted(list_marks(one, "cache_control")) for one in upstream.requests] == [
        ["Be kind."],
        ["f", "one", "two"],
        ["Be kind.", "call_1", "two"],
    ]
    assert not upstream.refusals


@pytest.mark.parametrize("protocol", ["openai", "responses"])
async def test_models_with_breakpoints_get_breakpoints_and_the_name_of_the_family(protocol: str) -> None:
    upstream = ResponsesUpstream() if protocol == "responses" else ScriptedUpstream()
    field = "input" if protocol == "responses" else "messages"
    async with responses_world(upstream, **ruled("breakpoints")) as w:
        first = await w.say(TALK[:2])
        said = first["choices"][0]["message"]["content"]
        await w.say([*TALK[:2], assistant(said), user("two")])
        await w.say([*TALK[:2], assistant("Something else."), user("two")])  # a branch
        await w.say([*TALK[:2], assistant(said), user("two")], prompt_cache_key="mine")
        await w.say(TALK[:2], key="sk-two")
        await w.say(TALK[:2], store=False)
    marks = [list_marks(one[field], "prompt_cache_breakpoint") for one in upstream.requests]
    assert marks[:2] == [["Be kind."], ["Be kind.", "one"]]
    first_key, second_key, branch, own, other, unstored = [one.get("prompt_cache_key") for one in upstream.requests]
    assert first_key == second_key
    assert len(str(first_key)) == 32
    assert (own, unstored) == ("mine", None)
    assert other not in (None, first_key)
    assert branch is not None


async def test_prefix_caches_get_the_name_alone() -> None:
    upstream = ScriptedUpstream()
    async with world(upstream, **ruled("prefix")) as w:
        await w.say(TALK)
    assert upstream.requests[0].keys() == {"prompt_cache_key", "model", "messages"}
    assert upstream.requests[0]["messages"] == TALK


async def test_nothing_is_set_where_nothing_is_known() -> None:
    upstream = ScriptedUpstream()
    body = json.dumps({"model": "m", "messages": TALK}, indent=1).encode()
    async with world(upstream, **ruled("none")) as w:
        await raw(w, body)
    async with world(upstream, models={"gpt-5.6": MODELS["m"]}) as w:
        await raw(w, body.replace(b'"m"', b'"gpt-5.6"'))
    assert upstream.bodies == [body, body.replace(b'"m"', b'"gpt-5.6"')]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [user([{"type": "text", "text": "a", "prompt_cache_breakpoint": BREAKPOINT}]), *TALK[2:]]},
        {"messages": TALK, "prompt_cache_options": {"mode": "explicit"}},
    ],
)
async def test_a_clients_own_breakpoints_pass_byte_for_byte(fields: dict[str, Any]) -> None:
    upstream = ScriptedUpstream()
    body = json.dumps({"model": "m", "prompt_cache_key": "k", **fields}, indent=1).encode()
    async with world(upstream, **ruled("breakpoints")) as w:
        assert (await raw(w, body)).status_code == 200
    assert upstream.bodies == [body]


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_control": CONTROL},
        {"system": [{"type": "text", "text": "Be kind.", "cache_control": CONTROL}]},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": CONTROL}]},
        {"messages": [user([{"type": "text", "text": "a", "cache_control": CONTROL}]), *TALK[2:]]},
    ],
)
async def test_a_clients_own_marks_pass_byte_for_byte(fields: dict[str, Any]) -> None:
    upstream = MessagesUpstream()
    body = json.dumps({"model": "m", "max_tokens": 100, "messages": TALK[1:], **fields}, indent=1).encode()
    async with messages_world(upstream, **ruled("anthropic")) as w:
        headers = {"x-api-key": "sk-one", "content-type": "application/json"}
        answer = await w.client.post(f"{w.base_url}/messages", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
    assert upstream.bodies == [body]


async def test_a_mark_that_moves_changes_no_conversation() -> None:
    """Clients of the same protocol send back what they said, without the gateway's marks."""
    upstream = MessagesUpstream()
    async with messages_world(upstream, **ruled("anthropic")) as w:
        for turn in range(2, 7, 2):
            assert (await w.ask(TALK[1:turn], system="Be kind.")).status_code == 200
        assert len(w.conversations()) <= 3
        (log,) = [await w.log(one.id) for one in w.conversations()][-1:]
    assert "cache_control" not in str(log)
    assert list_marks(upstream.requests[-1], "cache_control") == ["two", "three", "Be kind."]


async def test_a_compacted_view_and_its_summary_call_begin_with_the_same_marks() -> None:
    upstream = ScriptedUpstream(default=answering)
    async with world(
        upstream, policies={"additive": {"blocking": True, "prepare_ratio": 1.0}}, **ruled("breakpoints")
    ) as w:
        history = [system("Be kind."), *long_history(60, words=500)]
        for end in range(41, 122, 2):
            await w.say([*history[:end], user("And now?")] if end == 121 else history[: end + 1])
    # Other calls of the summarizer send a transcript, which no other prompt begins with.
    calls = [body for body in upstream.requests if is_summary(body) and "prompt_cache_key" in body]
    assert len(calls) >= 2
    assert len({body["prompt_cache_key"] for body in upstream.requests if body in calls or not is_summary(body)}) == 1
    for body in calls:
        marked = list_marks(body["messages"], "prompt_cache_breakpoint")
        assert "Be kind." in marked
        assert 2 <= len(marked) <= 4
        assert body["messages"][-1]["content"] not in marked
    views = [body["messages"] for body in upstream.requests if not is_summary(body)]
    assert max(len(list_marks(view, "prompt_cache_breakpoint")) for view in views) == 4
    assert all(len(list_marks(view, "prompt_cache_breakpoint")) <= 4 for view in views)
