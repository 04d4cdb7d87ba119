"""`context_management` of Messages requests: done by a provider that does it, otherwise by the gateway."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from anthropic.types.beta import BetaMessage, BetaMessageTokensCount, BetaRawMessageDeltaEvent

from app.context.stages.clear_results_and_reasoning import CLEARED_RESULT_TEXT
from tests.live import DROP, Reply, ScriptedUpstream
from tests.support.messages_world import (
    USER,
    MessagesUpstream,
    MessagesWorld,
    join_message,
    messages_world,
    read_events,
    text,
    thinking,
    tool_result,
    tool_use,
)
from tests.support.raw_http import SUMMARY
from tests.support.responses_upstream import ResponsesUpstream

TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"at": {}}}}
OTHER_TOOL = {**TOOL, "name": "ask"}
LONG = "word " * 400
FOREIGN = {"openai": ScriptedUpstream, "responses": ResponsesUpstream}


def tool_rounds(count: int, *, first: int = 0, name: str = "look") -> list[dict[str, Any]]:
    return [
        message
        for number in range(first, first + count)
        for message in (
            {"role": "assistant", "content": [tool_use(f"toolu_{number}", name, at=f"place {number} " * 20)]},
            tool_result(f"Result {number}: {LONG}", f"toolu_{number}"),
        )
    ]


def clear_results(tokens: int = 1000, *, kept: int = 1, **fields: Any) -> dict[str, Any]:
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": tokens},
        "keep": {"type": "tool_uses", "value": kept},
    }
    return {"edits": [edit | fields]}


def clear_thinking(keep: object) -> dict[str, Any]:
    return {"edits": [{"type": "clear_thinking_20251015", "keep": keep}]}


def list_sent_results(upstream: ScriptedUpstream, index: int = -1) -> list[str]:
    """The texts of the results that a provider got, of whichever protocol."""
    sent = upstream.requests[index]
    if "input" in sent:
        outputs = [one["output"] for one in sent["input"] if one.get("type") == "function_call_output"]
        return [one if isinstance(one, str) else one[0]["text"] for one in outputs]
    if "system" in sent or any(isinstance(one["content"], list) for one in sent["messages"]):
        blocks = [block for one in sent["messages"] for block in one["content"] if isinstance(block, dict)]
        return [block["content"] for block in blocks if block["type"] == "tool_result"]
    return [one["content"] for one in sent["messages"] if one["role"] == "tool"]


def list_applied(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    applied: list[dict[str, Any]] = message["context_management"]["applied_edits"]
    return applied


@pytest.mark.parametrize("provider", FOREIGN)
@pytest.mark.parametrize("stream", [False, True])
async def test_old_results_are_cleared_and_told_as_anthropic_tells_it(provider: str, stream: bool) -> None:
    async with messages_world(FOREIGN[provider]()) as w:
        answer = await w.ask(
            [USER, *tool_rounds(4)], tools=[TOOL], context_management=clear_results(kept=2), stream=stream
        )
        assert answer.status_code == 200, answer.text
        if stream:
            events = read_events(answer.content)
            (delta,) = (event for event in events if event["type"] == "message_delta")
            BetaRawMessageDeltaEvent.model_validate(delta, strict=True)
            assert "context_management" not in events[0]["message"]
            message = join_message(events)
        else:
            message = answer.json()
            BetaMessage.model_validate(message, strict=True)
        results = list_sent_results(w.upstream)
        assert results[:2] == [CLEARED_RESULT_TEXT] * 2
        assert [one[:9] for one in results[2:]] == ["Result 2:", "Result 3:"]
        (edit,) = list_applied(message)
        assert (edit["type"], edit["cleared_tool_uses"]) == ("clear_tool_uses_20250919", 2)
        assert 700 < edit["cleared_input_tokens"] < 1100
        assert message["context"]["warnings"] == []
        assert message["context_status"] == "trimmed"


async def test_cleared_results_stay_cleared_until_the_trigger_is_passed_again() -> None:
    upstream = ScriptedUpstream()
    history: list[dict[str, Any]] = []
    async with messages_world(upstream) as w:
        counts = []
        for number in range(7):
            history += [USER, *tool_rounds(1, first=number)]
            message = await w.create(history, tools=[TOOL], context_management=clear_results(1500))
            cleared = sum(one == CLEARED_RESULT_TEXT for one in list_sent_results(upstream))
            assert sum(one["cleared_tool_uses"] for one in list_applied(message)) == cleared
            counts.append(cleared)
            history.append({"role": "assistant", "content": message["content"]})
        assert counts == [0, 0, 2, 2, 4, 4, 6]
        # Who does not ask for it any more gets everything again.
        message = await w.create([*history, USER], tools=[TOOL])
        assert CLEARED_RESULT_TEXT not in list_sent_results(upstream)
        assert "context_management" not in message
        assert len(w.conversations()) == 1


@pytest.mark.parametrize(
    ("edit", "cleared", "has_inputs"),
    [
        ({"trigger": {"type": "tool_uses", "value": 3}}, [0, 1, 2], True),
        ({"trigger": {"type": "tool_uses", "value": 4}}, [], True),
        ({"trigger": {"type": "input_tokens", "value": 90_000}}, [], True),
        ({"exclude_tools": ["look"]}, [2], True),
        ({"clear_at_least": {"type": "input_tokens", "value": 1500}}, [], True),
        ({"clear_at_least": {"type": "input_tokens", "value": 800}}, [0, 1, 2], True),
        ({"clear_tool_inputs": True}, [0, 1, 2], False),
        ({"clear_tool_inputs": ["look"]}, [0, 1, 2], False),
        ({"clear_tool_inputs": ["ask"]}, [0, 1, 2], True),
        ({"keep": {"type": "tool_uses", "value": 0}}, [0, 1, 2], True),
    ],
)
async def test_each_parameter_is_followed(edit: dict[str, Any], cleared: list[int], has_inputs: bool) -> None:
    rounds = [*tool_rounds(2), *tool_rounds(1, first=2, name="ask"), *tool_rounds(1, first=3)]
    async with messages_world(ScriptedUpstream()) as w:
        message = await w.create(
            [USER, *rounds], tools=[TOOL, OTHER_TOOL], context_management=clear_results(1000, **edit)
        )
        results = list_sent_results(w.upstream)
        assert [index for index, one in enumerate(results) if one == CLEARED_RESULT_TEXT] == cleared
        assert [one["cleared_tool_uses"] for one in list_applied(message)] == ([len(cleared)] if cleared else [])
        calls = [one for one in w.upstream.requests[-1]["messages"] if one.get("tool_calls")]
        assert ("place 0" in calls[0]["tool_calls"][0]["function"]["arguments"]) == has_inputs


@pytest.mark.parametrize(
    ("keep", "kept", "turns"),
    [
        ({"type": "thinking_turns", "value": 1}, ["Third."], 2),
        ({"type": "thinking_turns", "value": 2}, ["Second.", "Third."], 1),
        ({"type": "all"}, ["First.", "Second.", "Third."], 0),
        ("all", ["First.", "Second.", "Third."], 0),
        (None, ["Third."], 2),
    ],
)
async def test_old_thinking_is_cleared(keep: object, kept: list[str], turns: int) -> None:
    history: list[dict[str, Any]] = []
    for words in ("First.", "Second.", "Third."):
        history += [USER, {"role": "assistant", "content": [thinking(words), text("Fine.")]}]
    edits = clear_thinking(keep) if keep else {"edits": [{"type": "clear_thinking_20251015"}]}
    async with messages_world(ScriptedUpstream()) as w:
        message = await w.create([*history, USER], context_management=edits)
        sent = w.upstream.requests[-1]["messages"]
        assert [one["reasoning_content"] for one in sent if one.get("reasoning_content")] == kept
        BetaMessage.model_validate(message, strict=True)
        assert [one["cleared_thinking_turns"] for one in list_applied(message)] == ([turns] if turns else [])


async def test_thinking_of_an_open_tool_loop_is_never_cleared() -> None:
    history: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": [thinking("Old."), text("Fine.")]},
        USER,
        {"role": "assistant", "content": [thinking("New."), tool_use(at="x")]},
        tool_result(),
        {"role": "assistant", "content": [thinking("Newer."), tool_use("toolu_2", at="y")]},
        tool_result(call_id="toolu_2"),
    ]
    async with messages_world(ScriptedUpstream()) as w:
        keep = {"type": "thinking_turns", "value": 1}
        message = await w.create(history, tools=[TOOL], context_management=clear_thinking(keep))
        sent = w.upstream.requests[-1]["messages"]
        assert [one.get("reasoning_content") for one in sent if one["role"] == "assistant"] == [None, "New.", "Newer."]
        assert list_applied(message)[0]["cleared_thinking_turns"] == 1


async def test_claude_codes_edit_asks_for_nothing() -> None:
    async with messages_world(ScriptedUpstream()) as w:
        message = await w.create([USER], context_management=clear_thinking("all"))
        assert list_applied(message) == []
        assert (message["context_status"], message["context"]["warnings"]) == ("full", [])
        assert "context_management" not in w.upstream.requests[-1]


@pytest.mark.parametrize(
    ("edits", "place", "said"),
    [
        (
            [{"type": "clear_everything_20990101"}],
            "edits.0",
            "Input tag 'clear_everything_20990101' found using 'type'",
        ),
        ([*clear_results()["edits"], 7], "edits.1", "Expected `object`"),
        ([{"keep": "all"}], "edits.0.type", "Field required"),
        (clear_results(-1)["edits"], "edits.0.trigger.value", "Expected `int` >= 0"),
        (clear_results(keep_all=True)["edits"], "edits.0", "unknown field `keep_all`"),
        (clear_thinking({"type": "thinking_turns", "value": 0})["edits"], "edits.0.keep.value", "Expected `int` >= 1"),
        (clear_thinking("none")["edits"], "edits.0.keep", "Invalid enum value 'none'"),
        ({}, "edits", "Input should be a valid list"),
    ],
)
async def test_an_edit_that_nobody_does_is_refused_with_its_place(edits: object, place: str, said: str) -> None:
    async with messages_world(ScriptedUpstream()) as w:
        answer = await w.ask([USER], context_management={"edits": edits or {"type": "x"}})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"].startswith(f"context_management.{place}: ")
        assert said in error["message"]
        assert (w.upstream.bodies, w.rows()) == ([], 0)


APPLIED = {
    "applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 3, "cleared_input_tokens": 7000}]
}


def say_applied(upstream: MessagesUpstream) -> None:
    """Lets a provider tell that it has cleared most of each prompt."""
    reply = upstream.default

    def answer(body: dict[str, Any]) -> Reply:
        made = reply(body)
        if made.pieces is None:
            assert isinstance(made.body, dict)
            return Reply(
                {**made.body, "context_management": APPLIED, "usage": {"input_tokens": 90, "output_tokens": 5}}
            )
        told = f',"context_management":{json.dumps(APPLIED)},"usage":'.encode()
        pieces = [piece.replace(b',"usage":', told) if b"message_delta" in piece else piece for piece in made.pieces]
        return Reply(pieces=pieces)

    upstream.default = answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_does_them_gets_the_edits_unchanged(stream: bool) -> None:
    upstream = MessagesUpstream()
    say_applied(upstream)
    edits = {"edits": [*clear_results()["edits"], {"type": "clear_everything_20990101", "x": [1.0]}]}
    async with messages_world(upstream) as w:
        answer = await w.ask([USER, *tool_rounds(8)], tools=[TOOL], context_management=edits, stream=stream)
        message = join_message(read_events(answer.content)) if stream else answer.json()
        assert upstream.requests[0]["context_management"] == edits
        assert CLEARED_RESULT_TEXT not in str(upstream.requests[0])
        assert message["context_management"] == APPLIED
        assert message["context_status"] == "full"


async def test_what_a_provider_cleared_is_not_taken_for_a_cut_prompt() -> None:
    upstream = MessagesUpstream()
    say_applied(upstream)
    async with messages_world(upstream) as w:
        message = await w.create([USER, *tool_rounds(12)], tools=[TOOL], context_management=clear_results())
        assert message["context"]["warnings"] == []
        calibration = message["context"]["calibration"]
        assert calibration["reported_tokens"] == 90
        history = [USER, *tool_rounds(12), {"role": "assistant", "content": message["content"]}, USER]
        message = await w.create(history, tools=[TOOL])
        assert message["context"]["calibration"]["slope"] > 0.5


async def test_a_replayed_answer_tells_the_edits_again() -> None:
    for upstream in (ScriptedUpstream(), MessagesUpstream()):
        if isinstance(upstream, MessagesUpstream):
            say_applied(upstream)
        async with messages_world(upstream) as w:
            asked: dict[str, Any] = {"tools": [TOOL], "context_management": clear_results()}
            key = {"idempotency-key": "one"}
            first = await w.ask([USER, *tool_rounds(3)], headers=key, **asked)
            again = await w.ask([USER, *tool_rounds(3)], headers=key, **asked)
            assert again.headers["idempotent-replayed"] == "true"
            assert list_applied(first.json()) == list_applied(again.json()) != []


async def test_a_provider_that_refuses_the_field_gets_a_cleared_view() -> None:
    upstream = MessagesUpstream()
    models = {"*": {"provider": "upstream", "quirks": {"strip_fields": ["context_management"]}}}
    async with messages_world(upstream, models=models) as w:
        for stream in (False, True):
            answer = await w.ask(
                [USER, *tool_rounds(3)], tools=[TOOL], context_management=clear_results(), stream=stream
            )
            message = join_message(read_events(answer.content)) if stream else answer.json()
            assert "context_management" not in upstream.requests[-1]
            assert list_sent_results(upstream)[:2] == [CLEARED_RESULT_TEXT] * 2
            assert list_applied(message)[0]["cleared_tool_uses"] == 2
        assert upstream.refusals == []


@pytest.mark.parametrize("native_first", [False, True])
async def test_a_fallback_of_another_protocol_gets_the_view_that_it_needs(native_first: bool) -> None:
    down = Reply({"error": {"message": "Down.", "type": "server_error"}}, status=500)
    native, foreign = MessagesUpstream(), ScriptedUpstream()
    first, second = (native, foreign) if native_first else (foreign, native)
    first.default = lambda _: down
    models = {"m": {"provider": "upstream", "fallbacks": ["n"]}, "n": {"provider": "second"}}
    async with messages_world(first, second, models=models, retries={"attempts": 1}) as w:
        message = await w.create([USER, *tool_rounds(3)], tools=[TOOL], context_management=clear_results())
        if native_first:
            assert list_sent_results(foreign)[:2] == [CLEARED_RESULT_TEXT] * 2
            assert list_applied(message)[0]["cleared_tool_uses"] == 2
        else:
            assert CLEARED_RESULT_TEXT not in list_sent_results(native)
            assert native.requests[-1]["context_management"] == clear_results()
            assert "context_management" not in message


def keep_thinking_edits() -> dict[str, Any]:
    return {"edits": [*clear_thinking({"type": "thinking_turns", "value": 1})["edits"], *clear_results()["edits"]]}


async def test_a_shortened_request_with_edits_is_taken_by_a_provider_that_does_them() -> None:
    """Anthropic refuses to clear thinking in a request without thinking."""

    def answer(body: dict[str, Any]) -> Sequence[dict[str, Any]]:
        if "clear_thinking_20251015" in json.dumps(body.get("context_management")):
            assert (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        if "material to be summarized" in json.dumps(body["messages"][-1]):
            return [text(SUMMARY)]
        return [thinking(), tool_use(f"toolu_{len(upstream.bodies)}", at="x")]

    upstream = MessagesUpstream(default=answer, window=8192)
    options: dict[str, Any] = {"tools": [TOOL], "context_management": keep_thinking_edits(), "max_tokens": 1500}
    async with messages_world(upstream) as w:
        history: list[dict[str, Any]] = [USER]
        for number in range(24):
            message = await w.create(history, thinking={"type": "enabled", "budget_tokens": 1024}, **options)
            call = message["content"][-1]
            history.append({"role": "assistant", "content": message["content"]})
            history.append(tool_result(f"Result {number}: {LONG}", call["id"]))
        assert message["context_status"] in ("trimmed", "summarized")
        assert upstream.refusals == []
        last = [one for one in upstream.requests[-1]["messages"] if one["role"] == "assistant"][-1]
        assert last["content"][0]["type"] == "thinking"


async def ask_count(w: MessagesWorld, messages: Sequence[Mapping[str, Any]], **fields: Any) -> httpx.Response:
    return await w.client.post(
        f"{w.base_url}/messages/count_tokens",
        json={"model": "m", "messages": [*messages], **fields},
        headers={"x-api-key": "sk-one", "anthropic-version": "2024-01-01", "anthropic-beta": "a,b"},
    )


async def test_the_gateways_count_tells_the_tokens_before_and_after_the_edits() -> None:
    async with messages_world(ScriptedUpstream()) as w:
        history = [USER, *tool_rounds(3)]
        plain = (await ask_count(w, history, tools=[TOOL])).json()
        edited = (await ask_count(w, history, tools=[TOOL], context_management=clear_results())).json()
        BetaMessageTokensCount.model_validate(edited, strict=True)
        assert plain.keys() == {"input_tokens"}
        assert edited["context_management"] == {"original_input_tokens": plain["input_tokens"]}
        assert 700 < plain["input_tokens"] - edited["input_tokens"] < 900
        answer = await w.create(history, tools=[TOOL], context_management=clear_results())
        assert list_applied(answer)[0]["cleared_input_tokens"] == plain["input_tokens"] - edited["input_tokens"]
        refused = await ask_count(w, history, context_management={"edits": [{"type": "x"}]})
        assert refused.json()["error"]["message"].startswith("context_management.edits.0: ")
        assert w.rows() == 8  # of the answer


async def test_a_provider_counts_itself_if_it_can() -> None:
    counted = b'{"input_tokens": 17, "context_management": {"original_input_tokens": 25}, "x": 1}'
    upstream = ScriptedUpstream(default=lambda _: Reply(counted))
    async with messages_world(upstream, protocol="anthropic") as w:
        answer = await ask_count(w, [USER], context_management=clear_results(), context={"recall": "off"})
        assert (answer.status_code, answer.content) == (200, counted)
        assert upstream.paths == ["/v1/messages/count_tokens"]
        assert upstream.requests == [{"model": "m", "messages": [USER], "context_management": clear_results()}]
        sent = upstream.headers[0]
        assert (sent["anthropic-version"], sent["anthropic-beta"]) == ("2024-01-01", "a,b")
        assert sent["x-api-key"] == "sk-upstream"
        assert w.rows() == 0


REFUSED = {"type": "error", "error": {"type": "not_found_error", "message": "Not found"}}


@pytest.mark.parametrize(
    "reply", [Reply(REFUSED, 404), Reply(b"<html>"), Reply({"tokens": 1}), Reply(pieces=[DROP]), Reply(b"", 529)]
)
async def test_a_provider_that_does_not_count_is_counted_for(reply: Reply) -> None:
    async with messages_world(ScriptedUpstream(default=lambda _: reply), protocol="anthropic") as w:
        answer = await ask_count(w, [USER])
        assert answer.status_code == 200
        BetaMessageTokensCount.model_validate(answer.json(), strict=True)
        assert answer.json()["input_tokens"] > 5
