"""The model searches what it is not shown: its own tool, run by the gateway, unseen by the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.dialects.search_tool import TOOL_NAME
from app.errors import StoreUnavailable
from app.pipeline.call.search_tool_loop import MAX_SEARCH_ROUNDS, SearchToolLoop
from app.store.store_factory import create_store
from tests.live import DONE, DROP, Reply, ScriptedUpstream, chunk, completion, stream, usage_chunk
from tests.support.gateway import World, assistant, call, is_summary, result, system, user, world
from tests.support.memory_store import MemoryStore
from tests.support.raw_http import chunks, long_talk, text_of, until, without_ours

SECRET = "The vault opens with quokka-7731 after sunset."
UNTOLD: dict[str, Any] = {"additive": {"user_text_ratio": 0}}
"""What the user said long ago is not shown."""
TOOL: dict[str, Any] = {"context": {"recall": "tool", "summarize": "never"}}
CLIENT_TOOL = {"type": "function", "function": {"name": "recall", "parameters": {"type": "object", "properties": {}}}}


def talk(turns: int = 40) -> list[Any]:
    """A history of which an 8k window shows the end; the secret stands at its beginning."""
    first, *rest = long_talk(turns)
    return [user(SECRET), assistant("Noted."), first, *rest]


def search(query: str = "vault quokka", call_id: str = "call_r", **limits: Any) -> dict[str, Any]:
    return call(TOOL_NAME, json.dumps({"query": query, **limits}), call_id)


def asks(*calls: dict[str, Any], text: str | None = None) -> Reply:
    """A whole answer that consists of calls."""
    return completion(text, tool_calls=list(calls))


def fragments(*calls: dict[str, Any]) -> list[bytes]:
    """Calls as OpenAI streams them: the head of each, then its arguments."""
    pieces = []
    for index, one in enumerate(calls):
        head = {**one, "index": index, "function": {**one["function"], "arguments": ""}}
        pieces.append(chunk({"tool_calls": [head]}))
        arguments = one["function"]["arguments"]
        for at in range(0, len(arguments), 7):
            piece = {"index": index, "function": {"arguments": arguments[at : at + 7]}}
            pieces.append(chunk({"tool_calls": [piece]}))
    return pieces


def streamed(*calls: dict[str, Any], text: str = "", prompt_tokens: int = 10) -> Reply:
    begun = [chunk({"role": "assistant", "content": ""})]
    said = [chunk({"content": text})] if text else []
    ended = [chunk({}, "tool_calls" if calls else "stop"), usage_chunk(prompt_tokens), DONE]
    return Reply(pieces=[*begun, *said, *fragments(*calls), *ended])


def results(body: dict[str, Any]) -> list[str]:
    """What the model was told of its searches."""
    return [message["content"] for message in body["messages"] if message["role"] == "tool"]


def names(body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", ())]


async def logged(w: World) -> dict[str, Any]:
    """The last message of the only conversation."""
    (conversation,) = w.conversations()
    return (await w.log(conversation.id))[-1]


async def test_a_search_finds_what_is_no_longer_shown_and_the_client_sees_only_the_answer() -> None:
    upstream = ScriptedUpstream(asks(search()), completion("It is quokka-7731.", prompt_tokens=30))
    async with world(upstream, policies=UNTOLD) as w:
        answer = await w.say(talk(), **TOOL)
        kept = await logged(w)
    first, second = upstream.requests
    assert SECRET not in json.dumps(first["messages"])
    assert names(first) == [TOOL_NAME]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert second["messages"][-2]["tool_calls"][0]["function"]["name"] == TOOL_NAME
    assert SECRET in results(second)[0]
    assert "[0] user" in results(second)[0]
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is quokka-7731.", "stop")
    assert "tool_calls" not in choice["message"]
    assert answer["usage"] == {"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44}
    (recall,) = answer["context"]["recalls"]
    assert recall["query"] == "vault quokka"
    assert recall["found"][0] == 0
    assert kept["content"] == "It is quokka-7731."
    assert "tool_calls" not in kept


async def test_a_stream_goes_on_through_a_search_as_one_answer() -> None:
    second = Reply(
        pieces=[
            chunk({"role": "assistant", "content": ""}, id="chatcmpl-other", created=1, model="other"),
            chunk({"content": "It is "}, id="chatcmpl-other"),
            chunk({"content": "quokka-7731."}, id="chatcmpl-other"),
            chunk({}, "stop", id="chatcmpl-other"),
            usage_chunk(30),
            DONE,
        ]
    )
    upstream = ScriptedUpstream(streamed(search(), text="Let me see. "), second)
    async with world(upstream) as w:
        events = chunks(await w.post(talk(), stream=True, stream_options={"include_usage": True}, **TOOL))
        kept = await logged(w)
    assert text_of(events) == kept["content"] == "Let me see. It is quokka-7731."
    assert {(event["id"], event["created"], event["model"]) for event in events} == {
        ("chatcmpl-upstream", 1_700_000_000, "upstream-model")
    }
    roles = [choice["delta"].get("role") for event in events for choice in event["choices"]]
    assert roles == ["assistant", *[None] * (len(roles) - 1)]
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert "tool_calls" not in json.dumps(events)
    assert events[-1]["usage"] == {"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44}
    (told,) = [event["context"] for event in events if "context" in event]
    assert [recall["query"] for recall in told["recalls"]] == ["vault quokka"]
    assert SECRET in results(upstream.requests[1])[0]


async def test_usage_reaches_no_client_that_did_not_ask() -> None:
    upstream = ScriptedUpstream(streamed(search()), stream("Fine."))
    async with world(upstream) as w:
        events = chunks(await w.post(talk(), stream=True, **TOOL))
        (conversation,) = w.conversations()
        (last,) = await w.store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
    assert not any("usage" in event for event in events)
    assert last.meta["usage"]["prompt_tokens"] == 20
    assert last.meta["context"]["recalls"][0]["query"] == "vault quokka"


async def test_while_everything_is_shown_nothing_is_offered_and_no_byte_changes() -> None:
    async with world(ScriptedUpstream()) as w:
        await w.say([user("x")])
        plain = w.upstream.bodies[-1]
        await w.say([user("x")], key="sk-two", **TOOL)
    assert w.upstream.bodies[-1] == plain


async def test_the_tool_is_the_last_one_and_stays_from_turn_to_turn() -> None:
    said = talk()
    async with world(ScriptedUpstream()) as w:
        for turn in range(4):
            answer = await w.say(said, tools=[CLIENT_TOOL], **TOOL)
            said += [answer["choices"][0]["message"], user(f"And then? {turn}")]
    views = [json.loads(body) for body in w.upstream.bodies]
    assert [names(view) for view in views] == [["recall", TOOL_NAME]] * 4
    raw = [body[body.index(b'"tools":') :].split(b'],"')[0] for body in w.upstream.bodies]
    assert len(set(raw)) == 1


@pytest.mark.parametrize(
    ("fields", "offered"),
    [
        ({"tool_choice": "none", "tools": [CLIENT_TOOL]}, True),
        ({"tool_choice": "required", "tools": [CLIENT_TOOL]}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "recall"}}, "tools": [CLIENT_TOOL]}, True),
        ({"tool_choice": "auto"}, True),
        ({"tool_choice": "required"}, False),
        ({"n": 2}, False),
        ({"functions": [{"name": "f"}]}, False),
        ({"tools": [{"type": "function", "function": {"name": TOOL_NAME}}]}, False),
        ({"store": False}, False),
        ({"context": {"recall": "quote", "summarize": "never"}}, False),
        ({"context": {"recall": True, "summarize": "never"}}, False),
        ({"context": {"recall": False, "summarize": "never"}}, False),
    ],
    ids=str,
)
async def test_what_the_client_asks_for_decides_whether_it_is_offered(fields: dict[str, Any], offered: bool) -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await w.post(talk(), **{**TOOL, **fields})
        assert answer.status_code == 200, answer.text
    (sent,) = w.upstream.requests
    own = [tool for tool in sent.get("tools", ()) if "description" in tool["function"]]
    assert bool(own) == offered
    if "tool_choice" in fields:
        assert sent["tool_choice"] == fields["tool_choice"]


async def test_a_recall_that_is_no_word_of_ours_is_refused() -> None:
    async with world(ScriptedUpstream()) as w:
        answer = await w.post([user("x")], context={"recall": "everything"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "context.recall"


async def test_a_policy_can_offer_it_and_a_request_can_refuse() -> None:
    policies = {"additive": {"recall": "tool"}}
    async with world(ScriptedUpstream(), policies=policies) as w:
        await w.say(talk(), context={"summarize": "never"})
        await w.say(talk(), context={"summarize": "never", "recall": False})
    assert [names(body) for body in w.upstream.requests] == [[TOOL_NAME], []]


AWKWARD: dict[str, Callable[[dict[str, Any]], Iterator[dict[str, Any]]]] = {}


def awkward(cut: Callable[[dict[str, Any]], Iterator[dict[str, Any]]]) -> Any:
    AWKWARD[cut.__name__] = cut
    return cut


@awkward
def in_single_bytes(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    function = one["function"]
    yield {"index": 0, "id": one["id"], "type": "function"}
    for letter in function["name"]:
        yield {"index": 0, "function": {"name": letter}}
    for letter in function["arguments"]:
        yield {"index": 0, "function": {"arguments": letter}}


@awkward
def id_first(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"index": 0, "id": one["id"]}
    yield {"index": 0, "type": "function", "function": {"name": one["function"]["name"][:6]}}
    yield {"index": 0, "function": {"name": one["function"]["name"][6:], "arguments": ""}}
    yield {"index": 0, "function": {"arguments": one["function"]["arguments"]}}


@awkward
def in_one_piece(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**one, "index": 0}


@awkward
def without_index_or_id(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"function": one["function"]}


@awkward
def with_everything_repeated(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    arguments = one["function"]["arguments"]
    for at in range(0, len(arguments), 5):
        piece = {"name": one["function"]["name"], "arguments": arguments[at : at + 5]}
        yield {"index": 0, "id": one["id"], "type": "function", "function": piece}


@pytest.mark.parametrize("cut", AWKWARD)
@pytest.mark.parametrize("ends", ["tool_calls", "stop"])
async def test_a_call_is_recognised_however_it_is_cut(cut: str, ends: str) -> None:
    pieces = [chunk({"role": "assistant", "content": None, "tool_calls": [one]}) for one in AWKWARD[cut](search())]
    upstream = ScriptedUpstream(Reply(pieces=[*pieces, chunk({}, ends), DONE]), stream("It is ", "quokka."))
    async with world(upstream) as w:
        events = chunks(await w.post(talk(), stream=True, **TOOL))
    assert text_of(events) == "It is quokka."
    assert "tool_calls" not in json.dumps(events)
    assert SECRET in results(upstream.requests[1])[0]
    asked = upstream.requests[1]["messages"][-2]["tool_calls"][0]
    assert asked["id"] == upstream.requests[1]["messages"][-1]["tool_call_id"] != ""
    assert [choice["delta"].get("role") for event in events for choice in event["choices"]].count("assistant") == 1


@pytest.mark.parametrize("cut", AWKWARD)
async def test_a_tool_of_the_clients_with_the_beginning_of_our_name_is_the_clients(cut: str) -> None:
    theirs = call("recall", '{"x": "yes"}', "call_c")
    pieces = [chunk({"role": "assistant", "content": None, "tool_calls": [one]}) for one in AWKWARD[cut](theirs)]
    upstream = ScriptedUpstream(Reply(pieces=[*pieces, chunk({}, "tool_calls"), DONE]))
    async with world(upstream) as w:
        answer = await w.post(talk(), stream=True, tools=[CLIENT_TOOL], **TOOL)
        kept = await logged(w)
    assert len(upstream.requests) == 1
    expected = theirs if "without" not in cut else {**theirs, "id": ""}
    assert kept["tool_calls"] == [expected]
    assert chunks(answer)[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_calls_of_the_clients_tools_beside_ours_reach_it_and_end_the_answer() -> None:
    first, second = call("recall", '{"a": 1}', "call_1"), call("weather", '{"b": 2}', "call_2")
    upstream = ScriptedUpstream(streamed(first, search(), second, text="One moment."))
    async with world(upstream) as w, client_of(w) as client:
        async with client.chat.completions.stream(
            model="m", messages=talk(), extra_body={**TOOL, "tools": [CLIENT_TOOL]}
        ) as parts:
            async for _ in parts:
                pass
            final = await parts.get_final_completion()
        kept = await logged(w)
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert [one.id for one in choice.message.tool_calls or ()] == ["call_1", "call_2"]
    assert kept == {"role": "assistant", "content": "One moment.", "tool_calls": [first, second]}
    assert len(upstream.requests) == 1


async def test_the_numbers_of_the_clients_calls_have_no_gap() -> None:
    first, second = call("weather", '{"a": 1}', "call_1"), call("recall", '{"b": 2}', "call_2")
    async with world(ScriptedUpstream(streamed(search(), first, second))) as w:
        events = chunks(await w.post(talk(), stream=True, **TOOL))
    found = [one for event in events for choice in event["choices"] for one in choice["delta"].get("tool_calls", ())]
    assert {(one["index"], one["id"]) for one in found if "id" in one} == {(0, "call_1"), (1, "call_2")}
    assert {one["index"] for one in found} == {0, 1}


async def test_the_next_turn_goes_on_after_a_dropped_call() -> None:
    theirs = call("weather", "{}", "call_w")
    upstream = ScriptedUpstream(asks(search(), theirs), completion("Sunny."))
    said = talk()
    async with world(upstream) as w:
        answer = await w.say(said, **TOOL)
        message = answer["choices"][0]["message"]
        assert message["tool_calls"] == [theirs]
        again = await w.say([*said, message, result("sun", "call_w")], **TOOL)
        assert len(w.conversations()) == 1
    assert again["choices"][0]["message"]["content"] == "Sunny."
    assert [one["id"] for one in upstream.requests[1]["messages"][-2]["tool_calls"]] == ["call_w"]


@pytest.mark.parametrize("own_only", [True, False])
@pytest.mark.parametrize("streams", [True, False])
async def test_after_eight_rounds_the_model_has_to_answer(own_only: bool, streams: bool) -> None:
    def insisting(body: dict[str, Any]) -> Reply:
        return streamed(search()) if body.get("stream") else asks(search())

    tools: dict[str, Any] = {} if own_only else {"tools": [CLIENT_TOOL]}
    async with world(ScriptedUpstream(default=insisting), window=16384) as w:
        answer = await w.post(talk(80), stream=streams, **TOOL, **tools)
        body = chunks(answer)[-1] if streams else answer.json()
    sent = w.upstream.requests
    assert len(sent) == MAX_SEARCH_ROUNDS + 1
    assert body["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in json.dumps(without_ours(body))
    assert len(body["context"]["recalls"]) == MAX_SEARCH_ROUNDS
    if own_only:
        assert sent[-1]["tool_choice"] == "none"
        assert names(sent[-1]) == [TOOL_NAME]
    else:
        assert "tool_choice" not in sent[-1]
        assert names(sent[-1]) == ["recall"]
    assert all(TOOL_NAME in names(body) for body in sent[:-1])


async def test_every_round_fits_the_window() -> None:
    def insisting(body: dict[str, Any]) -> Reply:
        return asks(search("question answer item"))

    sizes = []
    async with world(ScriptedUpstream(default=insisting), window=8192) as w:
        await w.say(talk(), **TOOL, max_tokens=1000)
        for sent in w.upstream.requests:
            body = {name: sent[name] for name in ("model", "messages", "tools") if name in sent}
            told = await w.client.post(f"{w.base_url}/context/count", json={**body, "model": "m"})
            sizes.append(told.json()["prompt_tokens"])
    reserve = round(8192 * 0.05)
    assert len(sizes) > 2
    assert max(sizes) <= 8192 - reserve - 1000
    assert sizes == sorted(sizes)
    assert "tool_choice" not in w.upstream.requests[-2]
    assert w.upstream.requests[-1]["tool_choice"] == "none"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [("{", "not valid JSON"), ("[]", "JSON object"), ("{}", "`query`"), ('{"query": "x", "before": "z"}', "`before`")],
)
async def test_arguments_that_cannot_be_used_are_explained_to_the_model(arguments: str, complaint: str) -> None:
    upstream = ScriptedUpstream(asks(call(TOOL_NAME, arguments)), completion())
    async with world(upstream) as w:
        await w.say(talk(), **TOOL)
    assert complaint in results(upstream.requests[1])[0]
    json.loads(upstream.requests[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"])


async def test_the_range_of_a_search_can_be_limited() -> None:
    upstream = ScriptedUpstream(
        asks(search(after=0)), asks(search("question", before=4, after=1)), asks(search("question")), completion()
    )
    async with world(upstream) as w:
        answer = await w.say(talk(), **TOOL)
        (conversation,) = w.conversations()
    without, between, all_of_it = (recall["found"] for recall in answer["context"]["recalls"])
    assert without == []
    assert set(between) <= {2, 3}
    shown_from = conversation.head_seq + 1 - answer["context"]["verbatim_messages"] - 1
    assert all(seq < shown_from for seq in all_of_it)


async def test_a_store_that_fails_in_a_search_is_told_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(MemoryStore, "search_log", away)
    upstream = ScriptedUpstream(asks(search()), completion("Never mind."))
    async with world(upstream) as w:
        answer = await w.say(talk(), **TOOL)
    assert answer["choices"][0]["message"]["content"] == "Never mind."
    assert "cannot be searched" in results(upstream.requests[1])[0]


async def test_no_tenant_finds_what_another_said() -> None:
    upstream = ScriptedUpstream(completion(), asks(search("quokka")), completion())
    async with world(upstream) as w:
        await w.say(talk(), **TOOL)
        answer = await w.say(long_talk(40), key="sk-two", **TOOL)
    assert answer["context"]["recalls"] == [{"query": "quokka", "found": []}]
    assert SECRET not in json.dumps(upstream.requests[2])


REFUSED = Reply({"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": "x"}}, status=400)


async def test_a_failure_after_a_search_is_an_ordinary_error_while_nothing_was_sent() -> None:
    silent = Reply(pieces=[chunk({"role": "assistant", "tool_calls": [{**search(), "index": 0}]}, "tool_calls"), DONE])
    async with world(ScriptedUpstream(silent, REFUSED, asks(search()), REFUSED)) as w:
        for streams in (True, False):
            answer = await w.post(talk(), stream=streams, **TOOL)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "x")
        assert w.rows() == 0


async def test_a_failure_after_the_first_byte_is_an_error_event() -> None:
    upstream = ScriptedUpstream(streamed(search(), text="Let me see. "), REFUSED)
    async with world(upstream) as w:
        events = chunks(await w.post(talk(), stream=True, **TOOL))
        (conversation,) = w.conversations()
        (last,) = await w.store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
    assert events[-1]["error"]["code"] == "x"
    assert (last.message.text, last.incomplete) == ("Let me see. ", True)


async def test_a_stream_that_breaks_in_a_later_round_is_not_ended_as_if_whole() -> None:
    upstream = ScriptedUpstream(streamed(search(), text="One. "), Reply(pieces=[chunk({"content": "Two"}), DROP]))
    async with world(upstream) as w:
        events = chunks(await w.post(talk(), stream=True, **TOOL))
        kept = await logged(w)
    assert "error" in events[-1]
    assert text_of(events) == kept["content"] == "One. Two"


async def test_a_client_that_hangs_up_in_a_later_round_takes_the_upstream_with_it() -> None:
    upstream = ScriptedUpstream(streamed(search(), text="One. "), Reply(pieces=[chunk({"content": "Two"}), 60]))
    async with world(upstream) as w:
        request = {"model": "m", "messages": talk(), "stream": True, **TOOL}
        async with w.client.stream("POST", f"{w.base_url}/chat/completions", json=request) as answer:
            async for line in answer.aiter_lines():
                if "Two" in line:
                    break
        async with asyncio.timeout(30):
            await upstream.left.wait()
        await until(lambda: w.rows() == len(talk()) + 1)
        (conversation,) = w.conversations()
        (last,) = await w.store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
    assert (last.message.text, last.incomplete) == ("One. Two", True)


async def test_a_client_that_hangs_up_while_nothing_has_come_leaves_nothing_running() -> None:
    held = stream("late")
    held.gate = asyncio.Event()
    silent = Reply(pieces=[chunk({"tool_calls": [{**search(), "index": 0}]}, "tool_calls"), DONE])
    upstream = ScriptedUpstream(silent, held)
    async with world(upstream) as w:
        asking = asyncio.ensure_future(w.post(talk(), stream=True, **TOOL))
        await until(lambda: len(upstream.bodies) == 2)
        asking.cancel()
        async with asyncio.timeout(30):
            await upstream.left.wait()
        await until(lambda: not w.conversations())


async def test_only_the_first_prompt_calibrates() -> None:
    def of(first: Reply, *more: Reply) -> ScriptedUpstream:
        return ScriptedUpstream(first, *more)

    ratios = []
    for upstream in (
        of(completion(prompt_tokens=5000)),
        of(completion(None, prompt_tokens=5000, tool_calls=[search()]), completion(prompt_tokens=50_000)),
    ):
        async with world(upstream) as w:
            await w.say(talk(), **TOOL)
            (conversation,) = w.conversations()
            ratios.append(conversation.state["calibration"])
    assert ratios[0] == ratios[1]


async def test_an_early_stream_goes_on_through_a_search() -> None:
    def answers(body: dict[str, Any]) -> Reply:
        if is_summary(body):
            return completion("They talked about gardens.")
        return stream("It is quokka.") if body["messages"][-1]["role"] == "tool" else streamed(search())

    async with world(ScriptedUpstream(default=answers)) as w:
        events = chunks(await w.post(talk(), stream=True, context={"recall": "tool"}))
        kept = await logged(w)
    told = [event["context_event"]["type"] for event in events if "context_event" in event]
    assert told == ["compaction_started", "compaction_completed"]
    assert text_of(events) == kept["content"] == "It is quokka."
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert events[-1]["context"]["recalls"][0]["found"]


async def test_text_and_unknown_fields_of_every_round_come_through() -> None:
    first = Reply(
        pieces=[
            chunk({"role": "assistant", "content": "", "vendor": {"a": 1}}),
            chunk({"reasoning_content": "I must look. "}),
            chunk({"content": 'He said "tool_calls" \u00e9\U0001f600'}, x={"b": 2}),
            *fragments(search()),
            chunk({"content": " then"}, "tool_calls"),
            DONE,
        ]
    )
    second = Reply(pieces=[chunk({"content": " more"}, x={"c": 3}), chunk({}, "stop"), DONE])
    upstream = ScriptedUpstream(first, second)
    async with world(upstream) as w:
        events = chunks(await w.post(talk(), stream=True, **TOOL))
    assert text_of(events) == 'He said "tool_calls" \u00e9\U0001f600 then more'
    assert [without_ours(event) for event in events[:3]] == [
        json.loads(piece.removeprefix(b"data: "))
        for piece in first.pieces[:3]  # type: ignore[index]
    ]
    assert [event["x"] for event in events if "x" in event] == [{"b": 2}, {"c": 3}]
    assert upstream.requests[1]["messages"][-2]["reasoning_content"] == "I must look. "


async def test_a_model_that_takes_no_tools_is_asked_again_without_and_from_then_on() -> None:
    error = {"message": "this model does not support tools", "type": "x", "param": None, "code": None}

    def answers(body: dict[str, Any]) -> Reply:
        return Reply({"error": error}, status=400) if "tools" in body else completion("Fine.", prompt_tokens=5000)

    async with world(ScriptedUpstream(default=answers)) as w:
        await w.say(talk(), **TOOL)
        await w.say(talk(), **TOOL)
        refused = await w.post(talk(), **TOOL, tools=[CLIENT_TOOL])
    assert [names(body) for body in w.upstream.requests] == [[TOOL_NAME], [], [], ["recall"]]
    assert refused.json()["error"]["message"] == error["message"]


async def test_an_answer_cut_short_in_its_call_is_not_gone_on_with() -> None:
    cut = Reply(pieces=[chunk({"content": "Hm."}), *fragments(search())[:3], chunk({}, "length"), DONE])
    async with world(ScriptedUpstream(cut)) as w:
        events = chunks(await w.post(talk(), stream=True, **TOOL))
        kept = await logged(w)
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert kept == {"role": "assistant", "content": "Hm."}


async def test_an_appending_client_can_have_it_too() -> None:
    upstream = ScriptedUpstream(completion(), asks(search()), completion("It is quokka."))
    headers = {"x-conversation-id": "mine"}
    async with world(upstream) as w:
        await w.say(talk(), headers=headers, **TOOL)
        answer = await w.say(
            [system("Be brief."), user("Which vault?")], headers={**headers, "x-context-mode": "append"}, **TOOL
        )
    assert answer["context"]["recalls"][0]["found"][0] == 0
    assert SECRET in results(upstream.requests[2])[0]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/c.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


async def test_it_works_on_a_database(database: str) -> None:
    upstream = ScriptedUpstream(asks(search()), completion("It is quokka."))
    async with world(upstream, store=create_store(database), database=database) as w:
        answer = await w.say(talk(), **TOOL)
        again = await w.say([*talk(), answer["choices"][0]["message"], user("Thanks.")], **TOOL)
    assert answer["context"]["recalls"][0]["found"][0] == 0
    assert SECRET in results(upstream.requests[1])[0]
    assert again["conversation_id"] == answer["conversation_id"]


def client_of(w: World) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=w.base_url, api_key="sk-one", max_retries=0)


async def test_openais_own_client_sees_an_ordinary_answer() -> None:
    def answers(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return stream("It is ", "quokka.") if body.get("stream") else completion("It is quokka.")
        return streamed(search()) if body.get("stream") else asks(search())

    async with world(ScriptedUpstream(default=answers)) as w, client_of(w) as client:
        whole = await client.chat.completions.create(model="m", messages=talk(), extra_body=TOOL)
        parts: Any = await client.chat.completions.create(model="m", messages=talk(), extra_body=TOOL, stream=True)
        text = "".join([part.choices[0].delta.content or "" async for part in parts if part.choices])
    assert whole.choices[0].message.content == text == "It is quokka."
    assert whole.choices[0].message.tool_calls is None


async def test_the_simulated_model_searches_what_it_does_not_see() -> None:
    async with world(ScriptedUpstream(), providers={}, models={}, policies=UNTOLD) as w:
        request = {"messages": [*talk()[:-1], user("When does the vault open?")], "model": "sim-8k", "context": {}}
        without = (await w.client.post(f"{w.base_url}/chat/completions", json={**request, "store": False})).json()
        answer = await w.client.post(f"{w.base_url}/chat/completions", json={**request, **TOOL, "stream": True})
    assert "quokka" not in json.dumps(without["choices"])
    assert "quokka-7731 after sunset" in text_of(chunks(answer))


async def test_the_fallback_that_began_an_answer_goes_on_with_it() -> None:
    def answers(body: dict[str, Any]) -> Reply:
        if body["model"] == "m":
            return Reply({"error": {"message": "down"}}, status=503)
        return completion("It is quokka.") if body["messages"][-1]["role"] == "tool" else asks(search())

    models = {
        "m": {"provider": "upstream", "context_window": 8192, "fallbacks": ["small"]},
        "small": {"provider": "upstream", "context_window": 4096},
    }
    async with world(ScriptedUpstream(default=answers), models=models) as w:
        answer = await w.say(talk(), **TOOL)
    *_, first, second = w.upstream.requests
    assert [first["model"], second["model"]] == ["small", "small"]
    assert second["messages"][:-2] == first["messages"]
    assert answer["choices"][0]["message"]["content"] == "It is quokka."


@pytest.mark.parametrize("streamed_answer", [False, True])
async def test_a_turn_without_the_search_tool_does_not_enter_its_loop(
    monkeypatch: pytest.MonkeyPatch, streamed_answer: bool
) -> None:
    entered: list[str] = []
    for name in vars(SearchToolLoop).keys() - {"__init__"}:
        if callable(getattr(SearchToolLoop, name)):
            monkeypatch.setattr(SearchToolLoop, name, lambda *_, name=name, **__: entered.append(name))
    async with world(ScriptedUpstream(stream("Fine.") if streamed_answer else completion("Fine.")), window=8192) as w:
        answer = await w.post(talk(), context={"summarize": "never"}, stream=streamed_answer)
    assert (answer.status_code, entered) == (200, [])
