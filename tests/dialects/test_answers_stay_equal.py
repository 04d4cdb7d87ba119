"""What clients get and the log keeps of each answer of the corpus, byte for byte as it is written down.

`python -m tests.dialects.test_answers_stay_equal` writes it down anew, in `golden_answers.json.gz`.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from app.dialects.responses.response_object import DEFAULT_ECHO
from app.dialects.search_tool import TOOL_NAME
from tests.dialects.answer_corpus import (
    CALLS_END,
    CHAT_CALL,
    CHAT_STREAMS,
    PROVIDER_BODIES,
    PROVIDER_STREAMS,
    RESPONSES,
    ROLE,
    build_body,
    call_chunk,
    chat_body,
    make_call,
    stream_response,
)
from tests.live import Reply, ScriptedUpstream, chunk, completion
from tests.support.raw_http import SUMMARY, long_talk
from tests.support.responses_upstream import ResponsesUpstream, function_call_item, reasoning_item, respond, text_item
from tests.support.responses_world import ResponsesWorld, responses_world

GOLDEN: Final = Path(__file__).with_name("golden_answers.json.gz")
PROTOCOLS: Final = ("openai", "responses")
FORMS: Final = ("stream", "whole", "progress", "search stream", "search whole", "all asked for")
ARGUMENTS: Final = json.dumps({"query": "vault quokka"})
SEARCH: Final = make_call(TOOL_NAME, ARGUMENTS, "call_s")
SEARCH_ITEM: Final = function_call_item(TOOL_NAME, ARGUMENTS, "call_s")
CHAT_SEARCH_STREAMS: Final[dict[str, Sequence[Sequence[Any]]]] = {
    "no search": (CHAT_STREAMS["parallel calls"],),
    "a search": ((ROLE, call_chunk(0, ARGUMENTS, id="call_s", name=TOOL_NAME), *CALLS_END), CHAT_STREAMS["plain"]),
    "text before a search": (
        (
            ROLE,
            chunk({"reasoning_content": "hm"}),
            chunk({"content": "Let me see. "}),
            call_chunk(0, id="call_s", name=TOOL_NAME),
            call_chunk(0, ARGUMENTS),
            *CALLS_END,
        ),
        CHAT_STREAMS["reasoning"],
    ),
    "a call after a search": (
        (ROLE, call_chunk(0, ARGUMENTS, id="call_s", name=TOOL_NAME), *CALLS_END),
        CHAT_STREAMS["parallel calls"],
    ),
    "a signature after a search": (
        (ROLE, call_chunk(0, ARGUMENTS, id="call_s", name=TOOL_NAME), *CALLS_END),
        CHAT_STREAMS["a call with a signature"],
    ),
    "a call beside a search": (
        (
            ROLE,
            call_chunk(0, ARGUMENTS, id="call_s", name=TOOL_NAME),
            call_chunk(1, "{}", id="call_a", name="look"),
            *CALLS_END,
        ),
    ),
    "an error after a search": (
        (ROLE, chunk({"content": "a"}), call_chunk(0, ARGUMENTS, id="call_s", name=TOOL_NAME), *CALLS_END),
        CHAT_STREAMS["an error in the middle"],
    ),
    "half surrogates after a search": (
        (ROLE, call_chunk(0, ARGUMENTS, id="call_s", name=TOOL_NAME), *CALLS_END),
        CHAT_STREAMS["half surrogates"],
    ),
}
RESPONSES_SEARCHES: Final = {
    "no search": (RESPONSES["text and parallel calls"],),
    "a search": (respond(SEARCH_ITEM), RESPONSES["plain"]),
    "text before a search": (
        respond(reasoning_item("hm"), text_item("Let me see. "), SEARCH_ITEM),
        RESPONSES["reasoning"],
    ),
    "a call beside a search": (respond(SEARCH_ITEM, function_call_item("look", "{}", "call_a")),),
    "a failure after a search": (respond("a", SEARCH_ITEM), RESPONSES["a failure"]),
}
SEARCH_STREAMS: Final[dict[str, Mapping[str, Sequence[Any]]]] = {
    "openai": CHAT_SEARCH_STREAMS,
    "responses": {name: [stream_response(one) for one in rounds] for name, rounds in RESPONSES_SEARCHES.items()},
}
SEARCH_BODIES: Final[dict[str, Mapping[str, Sequence[Any]]]] = {
    "openai": {
        "no search": (chat_body({"content": "a", "tool_calls": [CHAT_CALL]}, reason="tool_calls"),),
        "a search": (
            chat_body({"content": "Let me see. ", "tool_calls": [SEARCH]}, reason="tool_calls"),
            chat_body({"content": "Found.", "reasoning_content": "hm"}),
        ),
        "a call beside a search": (
            chat_body({"content": None, "tool_calls": [SEARCH, CHAT_CALL]}, reason="tool_calls"),
        ),
    },
    "responses": {name: [build_body(one) for one in rounds] for name, rounds in RESPONSES_SEARCHES.items()},
}
PROGRESS_NAMES: Final = {
    "openai": (
        "plain",
        "further fields",
        "reasoning in blocks",
        "parallel calls",
        "two choices",
        "an error in the middle",
    ),
    "responses": (
        "plain",
        "reasoning",
        "a search by the provider",
        "text and parallel calls",
        "an error in the middle",
    ),
}
ASKED_FOR: Final = {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}
TOOL_NAMES: Final = ("look", "find", "patch")
CHAT_TOOLS: Final = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in TOOL_NAMES
]
RESPONSES_TOOLS: Final = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, "strict": False}
    for name in TOOL_NAMES
]


def list_cases(provider: str, form: str) -> Mapping[str, list[Reply]]:
    """The replies of the provider, one for each round, by the name of the case."""
    match form:
        case "stream":
            return {name: [Reply(pieces=pieces)] for name, pieces in PROVIDER_STREAMS[provider].items()}
        case "whole":
            return {name: [Reply(body)] for name, body in PROVIDER_BODIES[provider].items()}
        case "progress":
            return {name: [Reply(pieces=PROVIDER_STREAMS[provider][name])] for name in PROGRESS_NAMES[provider]}
        case "search stream":
            rounds = SEARCH_STREAMS[provider]
            return {name: [Reply(pieces=pieces) for pieces in one] for name, one in rounds.items()}
        case "search whole":
            return {name: [Reply(body) for body in one] for name, one in SEARCH_BODIES[provider].items()}
    names = ("log probabilities", "encrypted reasoning", "reasoning in blocks", "cut off", "thinking blocks")
    return {name: [Reply(pieces=pieces)] for name in names if (pieces := PROVIDER_STREAMS[provider].get(name))}


async def run_cases(provider: str, client: str, form: str) -> dict[str, Any]:
    """What the client got and the log kept of each case."""
    replies: list[Reply] = []

    def answer(body: dict[str, Any]) -> Reply:
        if "material to be summarized" in json.dumps(body):
            return completion(SUMMARY) if provider == "openai" else Reply(build_body(respond(SUMMARY)))
        return replies.pop(0)

    upstream = ResponsesUpstream() if provider == "responses" else ScriptedUpstream()
    upstream.default = answer
    found = {}
    async with responses_world(upstream) as world:
        for name, case in list_cases(provider, form).items():
            replies[:] = case
            seen = {one.id for one in world.conversations()}
            status, content = await ask(world, client, form, name)
            kept = [entry async for entry in read_new_answers(world, seen)]
            found[name] = {"status": status, "client": mask(content, is_whole=name == "plain"), "kept": kept}
    return found


async def ask(world: ResponsesWorld, client: str, form: str, name: str) -> tuple[int, str]:
    is_streamed = form not in ("whole", "search whole")
    talk = (
        long_talk(40) if form in ("progress", "search stream", "search whole") else [{"role": "user", "content": name}]
    )
    if form.startswith("search"):
        fields: dict[str, Any] = {"context": {"recall": "tool", "summarize": "never"}}
    else:
        fields = dict(ASKED_FOR) if form == "all asked for" and client == "responses" else {}
    if form == "progress":
        talk[0]["content"] = f"{name}. {talk[0]['content']}"
    if client == "openai":
        options: dict[str, Any] = (
            {"stream_options": {"include_usage": True}} if is_streamed and name != "no usage" else {}
        )
        got = await world.post(talk, stream=is_streamed, tools=CHAT_TOOLS, **options, **fields)
    else:
        got = await world.ask(
            [{"type": "message", **one} for one in talk], stream=is_streamed, tools=RESPONSES_TOOLS, **fields
        )
    return got.status_code, got.content.decode()


async def read_new_answers(world: ResponsesWorld, seen: set[str]) -> AsyncIterator[dict[str, Any]]:
    for conversation in world.conversations():
        if conversation.id not in seen:
            (entry,) = await world.store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
            facts = dict(entry.meta or {})
            names = ("id", "model", "finish_reason", "usage", "response", "alternatives", "opaque_origin")
            yield {
                "raw": mask(bytes(entry.message.raw).decode()),
                "facts": json.loads(mask(json.dumps({name: facts[name] for name in names if name in facts}))),
                "incomplete": entry.incomplete,
            }


def mask(text: str, *, is_whole: bool = False) -> str:
    """Replaces what differs from run to run, and the echo of a request's defaults."""
    text = re.sub(r"resp_[0-9a-f]{48}", lambda at: at[0] if at[0].endswith("0" * 40) else "resp_OURS", text)
    text = re.sub(r"\b([a-z]+_)[0-9a-f]{48}([0-9a-f]{2})\b", r"\1OURS\2", text)
    text = re.sub(r"chatcmpl-[0-9a-f]{8,}[-0-9a-f]*", "chatcmpl-OURS", text)
    text = re.sub(r"conv_[0-9a-zA-Z]+", "conv_OURS", text)
    text = re.sub(r'("(?:created(?:_at)?|completed_at)":)(?!1700000000)1[78]\d{8}', r"\1NOW", text)
    text = re.sub(r'("duration_ms":)\d+', r"\g<1>0", text)
    text = re.sub(r'("input_tokens":)\d{3,}', r"\g<1>0", text)
    text = mask_objects(text, '"context":{')
    text = mask_objects(text, '"tools":[{')
    if not is_whole:
        for name, value in DEFAULT_ECHO.items():
            text = text.replace(f',"{name}":{value.decode()}', "")
    return text


def mask_objects(text: str, begin: str) -> str:
    """Replaces the values that begin so."""
    pieces, at = [], 0
    while (start := text.find(begin, at)) >= 0:
        start += len(begin) - (2 if begin.endswith("[{") else 1)
        _, end = json.JSONDecoder().raw_decode(text, start)
        pieces += [text[at:start], "MASKED"]
        at = end
    return "".join([*pieces, text[at:]])


async def run_all() -> dict[str, Any]:
    return {
        f"{provider} to {client}, {form}": await run_cases(provider, client, form)
        for provider in PROTOCOLS
        for client in PROTOCOLS
        for form in FORMS
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize("provider", PROTOCOLS)
async def test_answers_are_what_is_written_down(provider: str, client: str, form: str) -> None:
    expected = json.loads(gzip.decompress(GOLDEN.read_bytes()))[f"{provider} to {client}, {form}"]
    found = await run_cases(provider, client, form)
    assert found.keys() == expected.keys()
    differing = [name for name in found if json.loads(json.dumps(found[name])) != expected[name]]
    assert differing == []


if __name__ == "__main__":
    written = json.dumps(asyncio.run(run_all()), ensure_ascii=False)
    GOLDEN.write_bytes(gzip.compress(written.encode(), mtime=0))
