"""Answers of providers of both protocols, in every form that matters to a client: plain, odd, broken and cut off.

Each case is what a provider sends. `PROVIDER_STREAMS` and `PROVIDER_BODIES` are keyed by protocol, then by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.live import DONE, DROP, chunk, usage_chunk
from tests.support.responses_upstream import (
    ScriptedResponse,
    build_events,
    build_response,
    custom_call_item,
    function_call_item,
    number_events,
    reasoning_item,
    refusal_item,
    render_event,
    respond,
    text_item,
    web_search_item,
)

Pieces = Sequence[Any]
IDS: Final = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}
ROLE: Final = chunk({"role": "assistant", "content": ""})
STOP: Final = chunk({}, "stop")
END: Final = (STOP, usage_chunk(), DONE)
CALLS_END: Final = (chunk({}, "tool_calls"), usage_chunk(), DONE)
CITATION: Final = {"type": "url_citation", "start_index": 0, "end_index": 2, "url": "https://a.test", "title": "A"}
CHAT_CITATION: Final = {
    "type": "url_citation",
    "url_citation": {name: value for name, value in CITATION.items() if name != "type"},
}
TOKEN: Final = {"token": "Hel", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "Ho", "logprob": -2.0}]}
CHAT_ERROR: Final = b'data: {"error":{"message":"overloaded","type":"server_error","code":529,"x":1}}\n\n'
EVENT_ERROR: Final = b'event: error\ndata: {"message":"overloaded"}\n\n'


def raw_chunk(text: bytes) -> bytes:
    return b'data: {"id":"chatcmpl-upstream","choices":[{"index":0,"delta":{"content":%b}}]}\n\n' % text


def choice_chunk(index: int, delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": reason, **more}
    return b"data: %b\n\n" % json.dumps({"id": "chatcmpl-upstream", "model": "m", "choices": [choice]}).encode()


def call_chunk(index: int | None, arguments: str | None = None, **more: Any) -> bytes:
    function = {name: value for name, value in (("name", more.pop("name", None)), ("arguments", arguments)) if value}
    place = {} if index is None else {"index": index}
    return chunk({"tool_calls": [{**place, **more, "function": function}]})


def make_call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


BLOCKS: Final = (
    {"type": "reasoning.text", "index": 0, "text": "Let "},
    {"type": "reasoning.text", "index": 0, "text": "me see.", "signature": "sig"},
    {"type": "reasoning.summary", "index": 1, "summary": "In short."},
    {"type": "reasoning.encrypted", "index": 2, "data": "c2VhbGVk"},
)
CUSTOM_BEGIN: Final = {"index": 0, "id": "call_c", "type": "custom", "custom": {"name": "patch", "input": "*** "}}
CHAT_STREAMS: Final[dict[str, Pieces]] = {
    "plain": (ROLE, chunk({"content": "Hel"}), chunk({"content": 'lo, “x” é 😀\n"y"'}), *END),
    "in one piece": (b"".join([ROLE, chunk({"content": "Hel"}), chunk({"content": "lo"}), *END]),),
    "usage beside the end": (ROLE, chunk({"content": "a"}, "stop", usage={"prompt_tokens": 7}), DONE),
    "no usage": (ROLE, chunk({"content": "a"}, "length"), DONE),
    "filtered": (ROLE, chunk({"content": "a"}, "content_filter"), DONE),
    "nothing": (ROLE, *END),
    "further fields": (
        chunk({"content": "a", "x": {"y": 1}}, None, system_fingerprint="fp", service_tier="flex"),
        *END,
    ),
    "comments": (b": ping\n\n", ROLE, b": ping\n\n", chunk({"content": "a"}), STOP, DONE),
    "no done": (ROLE, chunk({"content": "a"}), STOP),
    "carriage returns": (raw_chunk(b'"a"').replace(b"\n", b"\r\n"), STOP.replace(b"\n", b"\r\n"), DONE),
    "data of several lines": (b'data: {"id":"c",\ndata: "choices":[{"index":0,"delta":{"content":"a"}}]}\n\n', *END),
    "half surrogates": (raw_chunk(b'"a\\ud83d"'), raw_chunk(b'"\\ude00b"'), raw_chunk(b'"\\ud83d"'), *END),
    "large numbers": (ROLE, chunk({"content": "a"}, "stop", usage={"prompt_tokens": 7, "x": 10**25}), DONE),
    "a list": (b'data: [{"id":"c","choices":[{"index":0,"delta":{"content":"a"}}]}]\n\n', *END),
    "a call": (
        ROLE,
        call_chunk(0, id="call_a", type="function", name="look"),
        call_chunk(0, '{"a"'),
        call_chunk(0, ":1}"),
        *CALLS_END,
    ),
    "parallel calls": (
        chunk({"role": "assistant", "content": "I look."}),
        call_chunk(0, id="call_a", type="function", name="look"),
        call_chunk(0, '{"a"'),
        call_chunk(1, "{", id="call_b", type="function", name="find"),
        call_chunk(0, ":1}"),
        call_chunk(1, "}"),
        *CALLS_END,
    ),
    "calls without ids": (call_chunk(0, "{}", name="look"), call_chunk(1, "{}", name="find"), *CALLS_END),
    "calls without indexes": (
        call_chunk(None, '{"a":1}', id="x", name="look"),
        call_chunk(None, '{"b":1}', id="y", name="find"),
        *CALLS_END,
    ),
    "a call in pieces": (
        call_chunk(0, id="call_a"),
        call_chunk(0, name="lo"),
        call_chunk(0, name="ok"),
        call_chunk(0, "{}"),
        *CALLS_END,
    ),
    "a call with a signature": (
        call_chunk(0, "{}", id="call_a", name="look", extra_content={"google": {"thought_signature": "s"}}),
        *CALLS_END,
    ),
    "a call without arguments": (call_chunk(0, id="call_a", name="look"), *CALLS_END),
    "a custom call": (
        chunk({"tool_calls": [CUSTOM_BEGIN]}),
        chunk({"tool_calls": [{"index": 0, "custom": {"input": "Begin"}}]}),
        *CALLS_END,
    ),
    "text after a call": (call_chunk(0, "{}", id="call_a", name="look"), chunk({"content": "Done?"}), *CALLS_END),
    "a call that is cut off": (call_chunk(0, '{"a', id="call_a", name="look"), chunk({}, "length"), DONE),
    "a legacy call": (chunk({"function_call": {"name": "look", "arguments": "{}"}}), chunk({}, "function_call"), DONE),
    "reasoning": (
        ROLE,
        chunk({"reasoning_content": "hm", "content": None}),
        chunk({"reasoning_content": "m"}),
        chunk({"content": "a"}),
        *END,
    ),
    "reasoning under two names": (chunk({"reasoning": "hm", "reasoning_content": "hm"}), chunk({"content": "a"}), *END),
    "reasoning in blocks": (
        *(chunk({"reasoning_details": [block]}) for block in BLOCKS),
        chunk({"content": "a"}),
        *END,
    ),
    "thinking blocks": (
        chunk({"thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}),
        chunk({"content": "a"}),
        *END,
    ),
    "thinking parts": (
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        *END,
    ),
    "text parts": (chunk({"content": [{"type": "text", "text": "a"}]}), chunk({"content": "b"}), *END),
    "text before parts": (chunk({"content": "a"}), chunk({"content": [{"type": "text", "text": "b"}]}), *END),
    "a refusal": (ROLE, chunk({"refusal": "I will "}), chunk({"refusal": "not."}), *END),
    "a refusal after text": (chunk({"content": "a"}), chunk({"refusal": "no"}), *END),
    "citations": (ROLE, chunk({"content": "Hi"}), chunk({"annotations": [CHAT_CITATION, {"type": "x"}]}), *END),
    "log probabilities": (
        choice_chunk(0, {"content": "Hel"}, logprobs={"content": [TOKEN], "refusal": None}),
        choice_chunk(0, {"content": "lo"}, logprobs=None),
        *END,
    ),
    "two choices": (
        choice_chunk(0, {"role": "assistant", "content": "a"}),
        choice_chunk(1, {"role": "assistant", "content": "b"}),
        choice_chunk(1, {"content": "c"}, "stop"),
        choice_chunk(0, {}, "stop"),
        usage_chunk(),
        DONE,
    ),
    "audio": (chunk({"audio": {"id": "audio_1", "transcript": "Hi"}}), *END),
    "an error at the start": (CHAT_ERROR,),
    "a named error at the start": (EVENT_ERROR, DONE),
    "an error in the middle": (ROLE, chunk({"content": "Half"}), CHAT_ERROR, chunk({"content": "never"})),
    "an error in a call": (call_chunk(0, '{"a', id="call_a", name="look"), CHAT_ERROR),
    "a named error in the middle": (ROLE, chunk({"content": "Half"}), EVENT_ERROR),
    "an error in a list": (ROLE, chunk({"content": "Half"}), b'data: [{"error":{"message":"overloaded"}}]\n\n'),
    "cut off": (ROLE, chunk({"content": "Half"})),
    "broken": (ROLE, chunk({"content": "Half"}), DROP),
    "no json": (ROLE, chunk({"content": "Half"}), b"data: <html>\n\n"),
    "no json at the end": (ROLE, chunk({"content": "All"}), STOP, b"data: <html>\n\n"),
    "done without an end": (ROLE, chunk({"content": "Half"}), DONE),
}


def name_items(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": f"{IDS.get(item['type'], 'x_')}{at}", **item} for at, item in enumerate(items)]


def build_body(answer: ScriptedResponse, **fields: Any) -> dict[str, Any]:
    return build_response(answer, {"model": "m", **fields}, "resp_1", name_items(answer.items), tokens=20)


def stream_response(answer: ScriptedResponse) -> list[bytes]:
    return [render_event(event) for event in number_events(build_events(build_body(answer), answer))]


def event(kind: str, **fields: Any) -> bytes:
    return render_event({"type": kind, "sequence_number": 0, **fields})


CALL_A: Final = function_call_item("look", '{"x": "first one"}', "call_a")
CALL_B: Final = function_call_item("find", '{"z": "second one"}', "call_b")
SEALED: Final = {**reasoning_item("Thinking."), "encrypted_content": "gAAAA"}
RESPONSES: Final[dict[str, ScriptedResponse]] = {
    "plain": respond("Hello, dear “x” é 😀 world."),
    "nothing": respond(),
    "an empty text": respond(""),
    "two texts": respond(text_item("I look.", phase="commentary"), text_item("It rains.", phase="final_answer")),
    "a text of parts": respond(
        {**text_item(""), "content": [*text_item("One ")["content"], *text_item("two.")["content"]]}
    ),
    "citations": respond(text_item("It is so.", CITATION), text_item("And so on.", CITATION)),
    "reasoning": respond(reasoning_item("First this.", "Then that."), reasoning_item("At last."), "Done."),
    "open reasoning": respond(reasoning_item(texts=["I think of it."]), "Done."),
    "encrypted reasoning": respond(SEALED, "Done."),
    "only encrypted reasoning": respond({**reasoning_item(), "encrypted_content": "gAAAA"}, "Done."),
    "a call": respond(CALL_A),
    "text and parallel calls": respond("I look.", CALL_A, CALL_B),
    "calls in turns": respond(CALL_A, CALL_B, interleaves=True),
    "a call without arguments": respond(function_call_item("look", "", "call_a")),
    "a custom call": respond(custom_call_item("patch", "*** Begin Patch", "call_c"), CALL_A),
    "a search by the provider": respond(web_search_item("rain"), "It rains."),
    "a refusal": respond(refusal_item("I will not.")),
    "a long answer": respond("It was", incomplete="max_output_tokens"),
    "a long call": respond(CALL_A, incomplete="max_output_tokens"),
    "a filtered answer": respond("It", incomplete="content_filter"),
    "no usage": respond("Hello.", has_usage=False),
    "a failure": respond("Half of", error={"code": "server_error", "message": "overloaded"}),
    "a failure at the start": respond(error={"code": "rate_limit_exceeded", "message": "Slow down."}),
}
PLAIN: Final = stream_response(RESPONSES["plain"])
PROVIDER_ERROR: Final = event("error", code="server_error", message="overloaded", param=None)
LOGPROB_DELTA: Final = event(
    "response.output_text.delta", item_id="msg_0", output_index=0, content_index=0, delta="Hel", logprobs=[TOKEN]
)
MESSAGE_ADDED: Final = event(
    "response.output_item.added", output_index=0, item={**text_item(""), "id": "msg_0", "content": []}
)
PART_ADDED: Final = event(
    "response.content_part.added", item_id="msg_0", output_index=0, content_index=0, part=text_item("")["content"][0]
)


def delta_event(json_text: bytes) -> bytes:
    data = b'{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_0","output_index":0'
    return b"data: %b\n\n" % (data + b',"content_index":0,"delta":%b}' % json_text)


RESPONSES_STREAMS: Final[dict[str, Pieces]] = {
    **{name: stream_response(answer) for name, answer in RESPONSES.items()},
    "in one piece": (b"".join(PLAIN),),
    "with done": (*PLAIN, DONE),
    "without event lines": [piece.partition(b"\n")[2] for piece in PLAIN],
    "nothing but the end": (PLAIN[0], PLAIN[-1]),
    "an end without output": (
        *PLAIN[:-1],
        event("response.completed", response={**build_body(RESPONSES["plain"]), "output": []}),
    ),
    "a call that only ends": (
        PLAIN[0],
        event("response.output_item.done", output_index=0, item={**CALL_A, "id": "fc_0"}),
        event("response.completed", response=build_body(RESPONSES["a call"])),
    ),
    "half surrogates": (
        *PLAIN[:4],
        delta_event(b'"a\\ud83d"'),
        delta_event(b'"\\ude00b"'),
        delta_event(b'"\\ud83d"'),
        PLAIN[-1],
    ),
    "data of several lines": (
        *PLAIN[:4],
        delta_event(b'"a"').replace(b',"content', b',\ndata: "content'),
        PLAIN[-1],
    ),
    "log probabilities": (PLAIN[0], MESSAGE_ADDED, PART_ADDED, LOGPROB_DELTA, *PLAIN[-4:]),
    "comments": (b": ping\n\n", *PLAIN[:5], b": ping\n\n", *PLAIN[5:]),
    "unknown events": (*PLAIN[:3], event("response.new_kind", output_index=0, x=1), *PLAIN[3:]),
    "an error at the start": (PROVIDER_ERROR,),
    "an error after the start": (PLAIN[0], PROVIDER_ERROR),
    "an error in the middle": (*PLAIN[:6], PROVIDER_ERROR, *PLAIN[6:]),
    "an untyped error": (*PLAIN[:6], b'data: {"error":{"message":"overloaded","code":"x"}}\n\n'),
    "an error in a call": (*stream_response(RESPONSES["a call"])[:4], PROVIDER_ERROR),
    "an unreadable event": (*PLAIN[:6], b'data: {"type":"response.output_text.delta","output_index":"x"}\n\n'),
    "cut off": PLAIN[:6],
    "cut off in a call": stream_response(RESPONSES["text and parallel calls"])[:-4],
    "cut off in a search": stream_response(RESPONSES["a search by the provider"])[:4],
    "broken": (*PLAIN[:6], DROP),
    "no json": (*PLAIN[:6], b"data: <html>\n\n"),
    "chat chunks": (ROLE, chunk({"content": "a"}), STOP, DONE),
}


def chat_body(*messages: Mapping[str, Any], reason: str = "stop", **fields: Any) -> dict[str, Any]:
    choices = [
        {"index": at, "message": {"role": "assistant", **message}, "finish_reason": reason}
        for at, message in enumerate(messages)
    ]
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    return {
        "id": "chatcmpl-upstream",
        "created": 1_700_000_000,
        "model": "m",
        "choices": choices,
        "usage": usage,
        **fields,
    }


CHAT_CALL: Final = make_call("look", '{"x":1}', "call_a")
CUSTOM_CALL: Final = {"id": "call_c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
CHAT_BODIES: Final[dict[str, Any]] = {
    "plain": chat_body({"content": "Hello “x” é 😀", "refusal": None}, x_vendor={"kept": True}),
    "nothing": chat_body({"content": ""}),
    "a long answer": chat_body({"content": "a"}, reason="length"),
    "reasoning": chat_body({"content": "a", "reasoning_content": "hm"}),
    "reasoning in blocks": chat_body({"content": "a", "reasoning_details": list(BLOCKS)}),
    "calls": chat_body(
        {"content": "I look.", "tool_calls": [CHAT_CALL, {**CHAT_CALL, "id": "call_b"}]}, reason="tool_calls"
    ),
    "a custom call": chat_body({"content": None, "tool_calls": [CUSTOM_CALL]}, reason="tool_calls"),
    "a legacy call": chat_body(
        {"content": None, "function_call": {"name": "look", "arguments": "{}"}}, reason="function_call"
    ),
    "a refusal": chat_body({"content": None, "refusal": "I will not."}),
    "citations": chat_body({"content": "Hi", "annotations": [CHAT_CITATION]}),
    "two choices": chat_body({"content": "a"}, {"content": "b"}),
    "parts": chat_body({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]}),
    "log probabilities": {
        **chat_body({"content": "Hel"}),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hel"},
                "logprobs": {"content": [TOKEN], "refusal": None},
                "finish_reason": "stop",
            }
        ],
    },
    "an error": {"error": {"message": "overloaded", "code": 529}},
    "no answer": {"x": 1},
    "a list": [chat_body({"content": "a"})],
}
RESPONSES_BODIES: Final[dict[str, Any]] = {
    **{name: build_body(answer) for name, answer in RESPONSES.items()},
    "a shell call": build_body(
        respond({"type": "apply_patch_call", "call_id": "call_p", "operation": {"type": "delete_file"}})
    ),
    "an error": {"error": {"message": "overloaded", "code": "server_error"}},
    "no answer": {"x": 1},
    "a chat completion": chat_body({"content": "a"}),
}
PROVIDER_STREAMS: Final[dict[str, dict[str, Pieces]]] = {"openai": CHAT_STREAMS, "responses": RESPONSES_STREAMS}
PROVIDER_BODIES: Final[dict[str, dict[str, Any]]] = {"openai": CHAT_BODIES, "responses": RESPONSES_BODIES}
