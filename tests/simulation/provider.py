"""A provider that is strict with what it is asked, answers by seed, and checks whose words it is shown."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from app.context.count.token_counter import choose_token_counter_name, load_token_counter
from app.errors import UpstreamUnavailable
from app.upstream.provider_contract import ClientKeyRule, ProviderProtocol, UpstreamRequest
from tests.support.gateway import material

MARKER = re.compile(r"⟦(\w+):([uatcs])(\d+)⟧")
"""Owner, kind and number of a text that one person has. Kinds: user, answer, tool result, call, side text."""
FAQ = {
    f"What does rule {number} of the house say about guests, pets and bicycles in the yard?": (
        f"Rule {number} of the house says that guests, pets and bicycles are welcome in the yard until ten in the "
        f"evening, that everyone closes the gate, and that number {number} on the list is called if anything breaks."
    )
    for number in range(4)
}
GREETING = "Hello! How can I help you today?"
SHORT_ANSWERS = ("Done.", "Yes.", "OK, I will do that.", "No, that is not needed.")
COMMON_START = "Sure, here is what I found about it, step by step, in the order in which you asked: "
WORDS = tuple(
    f"{a}{b}" for a in ("lo", "mi", "ta", "re", "su", "ka", "ve", "po") for b in ("ran", "dek", "sil", "mon", "tup")
)


@dataclasses.dataclass
class SentRequest:
    """One request of a person, for those who judge what was done for it.

    Attributes:
        person, voice: who sent it, and whom the markers of its own words name (twins say the same).
        known: the markers that this person has sent or received so far.
        carried: the markers in the bytes of this request, and of its answer.
        newest: the text of its newest user message.
        is_named: it names a conversation.
        call_ids: `random`, `counted` or `nine`.
        views: the messages of each upstream request for its answer.
    """

    person: str
    voice: str
    known: set[str]
    carried: set[str]
    newest: str | None
    is_named: bool
    rng: random.Random
    call_ids: str = "random"
    views: list[list[dict[str, Any]]] = dataclasses.field(default_factory=list)


CURRENT: ContextVar[SentRequest] = ContextVar("request")


def find_markers(text: str) -> set[str]:
    return {match[0] for match in MARKER.finditer(text)}


def find_others(markers: set[str], known: set[str], person: str, voice: str) -> set[str]:
    """Returns the markers of words that this person has neither said nor received. An answer to its own request counts
    as received also if the client hung up."""
    return {
        marker
        for marker in markers - known
        if (found := MARKER.fullmatch(marker)) and found[1] != (person if found[2] in "ac" else voice)
    }


def make_words(rng: random.Random, count: int) -> str:
    words = [rng.choice(WORDS) for _ in range(count)]
    words[9::10] = [f"{word} [{at + 1}].\n" for at, word in enumerate(words[9::10])]
    return " ".join(words)


class ScriptedReply:
    """Implements `UpstreamReply`. `breaks_after`: the connection ends after so many pieces."""

    def __init__(
        self, status: int, pieces: list[bytes], breaks_after: int | None = None, kind: str = "application/json"
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": kind}
        self._pieces = pieces
        self._breaks_after = breaks_after

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.iter_bytes()])

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        for index, piece in enumerate(self._pieces):
            await asyncio.sleep(0.01)
            if index == self._breaks_after:
                raise UpstreamUnavailable("The scripted provider broke off.")
            yield piece

    async def aclose(self) -> None:
        return None


class ScriptedProvider:
    """Implements `UpstreamProvider`.

    Args:
        report: called with the name of an invariant and what breaks it.
        windows: tokens by model.
    """

    name = "upstream"
    protocol: ProviderProtocol = "openai"
    client_key_rule: ClientKeyRule = "never"

    def __init__(self, report: Callable[[str, str], None], windows: Mapping[str, int]) -> None:
        self._report = report
        self._windows = windows
        self._answers = 0
        self.failing_until = 0.0

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        return []

    async def aclose(self) -> None:
        return None

    async def send(self, request: UpstreamRequest) -> ScriptedReply:
        sent, body = CURRENT.get(), json.loads(request.body)
        messages: list[dict[str, Any]] = body["messages"]
        await asyncio.sleep(0.02 + sent.rng.random() * 0.3)
        fails = asyncio.get_running_loop().time() < self.failing_until
        if fails and (fault := sent.rng.randrange(4)) < 2:
            if fault:
                raise UpstreamUnavailable("The scripted provider is away.")
            return _refuse(sent.rng.choice((429, 500, 503)), "The scripted provider is busy.")
        is_summary = _asks_for_summary(messages)
        self._check_words(sent, request.body.decode(), is_summary)
        refusal = find_pairing_fault(messages)
        if refusal is not None:
            self._report("paired", f"{sent.person}: {refusal}")
            return _refuse(400, refusal)
        tokens, window = count_tokens(body), self._windows[body["model"]]
        if tokens > window:
            self._report("window", f"{sent.person}: {tokens} tokens in a window of {window}")
            return _refuse(400, f"This model's maximum context length is {window} tokens.", "context_length_exceeded")
        if not is_summary:
            sent.views.append(messages)
            self._check_newest(sent, messages)
        message = _summarize(sent, messages) if is_summary else self._answer(sent, body)
        choices = [message, *(self._answer(sent, body) for _ in range((body.get("n") or 1) - 1))]
        if not is_summary:
            sent.carried |= find_markers(json.dumps(choices, ensure_ascii=False))
        usage = {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}
        breaks_after = sent.rng.randrange(4) if fails else None
        return _render(choices, usage, is_stream=bool(body.get("stream")), breaks_after=breaks_after)

    def _check_words(self, sent: SentRequest, shown_text: str, is_summary: bool) -> None:
        assert r"\u27e6" not in shown_text, "the gateway escapes text, so that markers are not found"
        shown, place = find_markers(shown_text), "a summary call" if is_summary else "a view"
        may_see = sent.carried | (sent.known if sent.is_named else set())
        others = find_others(shown, may_see, sent.person, sent.voice)
        if others:
            self._report("leak_view", f"{place} for {sent.person} shows {sorted(others)}")
        # A view repeats all markers of its summaries, so what a summary call reads is judged where it is shown. A tool
        # round that a client masked or left out may stand there as it was.
        uncarried = {marker for marker in shown - may_see - others if MARKER.sub(r"\2", marker) not in "tc"}
        if uncarried and not (sent.is_named or is_summary):
            self._report("uncarried", f"{place} for {sent.person} shows {sorted(uncarried)}")

    def _check_newest(self, sent: SentRequest, messages: list[dict[str, Any]]) -> None:
        if sent.newest is not None and find_markers(sent.newest):
            times = sum(sent.newest in str(one.get("content")) for one in messages if one["role"] == "user")
            if times != 1:
                self._report("newest", f"{sent.person}: {sent.newest[:60]!r} stands {times} times in the view")

    def _answer(self, sent: SentRequest, body: dict[str, Any]) -> dict[str, Any]:
        rng, messages = sent.rng, body["messages"]
        last = messages[-1]
        text = str(last.get("content"))
        self._answers += 1
        if last["role"] == "user" and (known := [answer for question, answer in FAQ.items() if question in text]):
            return {"role": "assistant", "content": known[-1]}
        if text == "Hello":
            return {"role": "assistant", "content": GREETING}
        marker = f"⟦{sent.person}:a{self._answers}⟧"
        rounds = [one["role"] for one in messages[-7:]].count("tool")
        if body.get("tools") and rng.random() < 0.6 and rounds < 3:
            return _call_tools(sent, f"⟦{sent.person}:c{self._answers}⟧", messages)
        if rng.random() < 0.25:
            return {"role": "assistant", "content": rng.choice(SHORT_ANSWERS)}
        start = COMMON_START if rng.random() < 0.25 else ""
        return {"role": "assistant", "content": f"{start}{marker} {make_words(rng, rng.choice((8, 30, 90)))}"}


def _call_tools(sent: SentRequest, marker: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    calls, before = [], sum(len(one.get("tool_calls") or ()) for one in messages)
    for index in range(sent.rng.choice((1, 1, 2))):
        name = sent.rng.choice(("bash", "read"))
        ids = {
            "random": f"call_{sent.rng.getrandbits(64):016x}",
            "counted": f"functions.{name}:{before + index}",
            "nine": f"{sent.rng.getrandbits(32) % 10**9:09d}",
        }
        arguments = json.dumps({"run": f"ls {marker} {index}"}, ensure_ascii=False)
        call = {"id": ids[sent.call_ids], "type": "function", "function": {"name": name, "arguments": arguments}}
        calls.append(call)
    content = sent.rng.choice((None, f"{marker} I will look."))
    return {"role": "assistant", "content": content, "tool_calls": calls}


SECOND_REQUESTS: Final = ("That summary leaves out values", "That is no summary:")
"""How the summarizer begins when it asks once more."""


def _asks_for_summary(messages: list[dict[str, Any]]) -> bool:
    last = str(messages[-1].get("content"))
    return "All of it is material to be summarized." in last or last.startswith(SECOND_REQUESTS)


def _summarize(sent: SentRequest, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A summary that repeats the markers of what it sums up: a wrong reader of it is seen."""
    asked = messages[:-2] if str(messages[-1]["content"]).startswith(SECOND_REQUESTS) else messages
    # Earlier summaries before the conversation are the summarizer's context, and no part of what it sums up. A fold has
    # nothing else.
    later = [one for one in asked if not str(one.get("content")).startswith("Summary of earlier conversation.")]
    asked = later if sum(one["role"] != "system" for one in later) > 1 else asked
    markers = dict.fromkeys(match[0] for match in MARKER.finditer(material({"messages": asked})))
    return {"role": "assistant", "content": f"They spoke of {', '.join(markers)}. {make_words(sent.rng, 12)}"}


def find_pairing_fault(messages: list[dict[str, Any]]) -> str | None:
    """Returns what a strict provider says to a call without its results, or to a result without its call."""
    open_ids: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_ids:
                return f"the result {message.get('tool_call_id')!r} has no call"
            open_ids.discard(message["tool_call_id"])
        elif open_ids:
            return f"the calls {sorted(open_ids)} have no results"
        else:
            open_ids = {call["id"] for call in message.get("tool_calls") or ()}
    return f"the calls {sorted(open_ids)} have no results" if open_ids else None


@functools.lru_cache(100_000)
def _count(text: str) -> int:
    return load_token_counter(choose_token_counter_name("")).count(text)


def count_tokens(body: dict[str, Any]) -> int:
    """Counts a prompt as a provider does that adds three tokens for each message."""
    tokens = sum(_count(json.dumps(tool)) for tool in body.get("tools") or ())
    for message in body["messages"]:
        content = message.get("content") or ""
        tokens += 3 + _count(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
        for call in message.get("tool_calls") or ():
            tokens += _count(call["function"]["name"]) + _count(call["function"]["arguments"])
    return tokens


def _refuse(status: int, message: str, code: str | None = None) -> ScriptedReply:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return ScriptedReply(status, [json.dumps({"error": error}).encode()])


def _render(
    choices: list[dict[str, Any]], usage: dict[str, int], *, is_stream: bool, breaks_after: int | None
) -> ScriptedReply:
    base = {"id": "chatcmpl-upstream", "created": 1_700_000_000, "model": "upstream-model"}
    ends = ["tool_calls" if message.get("tool_calls") else "stop" for message in choices]
    if not is_stream:
        rendered = [
            {"index": index, "message": message, "finish_reason": end}
            for index, (message, end) in enumerate(zip(choices, ends, strict=True))
        ]
        body = {**base, "object": "chat.completion", "choices": rendered, "usage": usage}
        return ScriptedReply(200, [json.dumps(body, ensure_ascii=False).encode()], breaks_after)
    pieces = []

    def add(index: int, delta: dict[str, Any], end: str | None = None) -> None:
        chunk = {"object": "chat.completion.chunk", "choices": [{"index": index, "delta": delta, "finish_reason": end}]}
        pieces.append(b"data: " + json.dumps({**base, **chunk}, ensure_ascii=False).encode() + b"\n\n")

    for index, (message, end) in enumerate(zip(choices, ends, strict=True)):
        text = message.get("content")
        add(index, {"role": "assistant", "content": None if text is None else ""})
        for at in range(0, len(text or ""), 60):
            add(index, {"content": str(text)[at : at + 60]})
        for at, call in enumerate(message.get("tool_calls") or ()):
            add(index, {"tool_calls": [{"index": at, **call}]})
        add(index, {}, end)
    last = {**base, "object": "chat.completion.chunk", "choices": [], "usage": usage}
    pieces += [b"data: " + json.dumps(last).encode() + b"\n\n", b"data: [DONE]\n\n"]
    return ScriptedReply(200, pieces, breaks_after, kind="text/event-stream")
