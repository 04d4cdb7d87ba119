"""The provider's side of a scenario: a model that counts, holds its window, checks pairs of calls and results, answers,
and takes notes when it is asked for a summary."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.behaviour.texts import COUNTER, text
from tests.live import Reply, chunk, completion, usage_chunk

Body = dict[str, Any]
SUMMARY_RULE: Final = "is material to be summarized."
"""In every call for a summary."""
_STRETCH: Final = re.compile(r"the last (\d+) messages before this one")
_FACT: Final = re.compile(r"Remember: [^.]+\.")
_SPOKEN_TO: Final = 3
"""How near to the end of a call the instruction stands; a second request for the same summary follows it."""


@dataclass(frozen=True)
class Call:
    """One request that reached the model."""

    body: Body
    is_summary: bool
    prompt_tokens: int

    @property
    def messages(self) -> list[Body]:
        found: list[Body] = self.body["messages"]
        return found


@dataclass
class Model:
    """A model behind the gateway; what a scenario says of it is set here.

    `complaints` are what no view may ever do: they fail the scenario.
    """

    windows: dict[str, int] = field(default_factory=dict)
    """The most that each model takes; one that is not named takes anything."""
    states_its_window: bool = True
    is_said_to_be_larger: bool = False
    """The gateway cannot know better: that a prompt is too long is no complaint."""
    counts: float = 1.0
    """How many tokens it counts for each of ours."""
    reports: Body | None = None
    """A usage object to report whatever was sent."""
    counts_tools: float = 1.0
    """The same for tool schemas."""
    cached_share: float = 0.0
    """Of what it counts, what it reports as read from its cache."""
    answers: str = "Noted."
    scripted: list[Body] = field(default_factory=list)
    """Assistant messages to answer with first."""
    summary_tokens: int = 60
    most_facts: int | None = None
    """How many facts a summary has room for; the newest are kept."""
    scripted_summaries: list[str] = field(default_factory=list)
    """Summaries to answer with first."""
    failing_summaries: dict[str, Reply] = field(default_factory=dict)
    """By the name of a model: what it answers instead of a summary."""
    summary_gate: asyncio.Event | None = None
    """Summaries are not given before it is set."""
    summary_seconds: float = 0.0
    """How long a summary takes."""
    calls: list[Call] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def asked(self) -> list[Call]:
        """Calls for an answer."""
        return [call for call in self.calls if not call.is_summary]

    @property
    def summaries_asked(self) -> list[Call]:
        return [call for call in self.calls if call.is_summary]

    def __call__(self, body: Body) -> Reply:
        tokens = COUNTER.count_request(body["messages"]) * self.counts
        tokens += COUNTER.count_tools(body.get("tools")) * self.counts_tools
        call = Call(body, is_summary(body), round(tokens))
        self.calls.append(call)
        self.complaints += orphans(call.messages)
        window = self.windows.get(body["model"])
        if window is not None and call.prompt_tokens > window:
            if not self.is_said_to_be_larger:
                self.complaints.append(f"a prompt of {call.prompt_tokens} tokens in a window of {window}")
            return self._too_long(window, call.prompt_tokens)
        if call.is_summary:
            return self._summary(call)
        return self._answer(call)

    def _answer(self, call: Call) -> Reply:
        message = self.scripted.pop(0) if self.scripted else {"content": self.answers}
        if call.body.get("stream"):
            return self._streamed(message, call)
        return self._with_usage(completion(**{"content": None, **message}), call)

    def _streamed(self, message: Body, call: Call) -> Reply:
        words = [chunk({"content": word}) for word in str(message["content"]).split(" ")]
        return Reply(
            pieces=[
                chunk({"role": "assistant", "content": ""}),
                *words,
                chunk({}, "stop"),
                usage_chunk(call.prompt_tokens),
                b"data: [DONE]\n\n",
            ]
        )

    def _summary(self, call: Call) -> Reply:
        failure = self.failing_summaries.get(call.body["model"])
        if failure is not None:
            return failure
        if self.scripted_summaries:
            return self._with_usage(completion(self.scripted_summaries.pop(0)), call)
        number = len(self.summaries_asked)
        facts = list(dict.fromkeys(_FACT.findall("\n".join(material(call.messages)))))
        if self.most_facts is not None:
            facts = facts[-self.most_facts :] if self.most_facts else []
        told = " ".join([f"Notes {number}.", *facts])
        reply = self._with_usage(completion(text(max(self.summary_tokens, COUNTER.count(told)), told)), call)
        reply.gate = self.summary_gate
        if self.summary_seconds:
            return Reply(pieces=[self.summary_seconds, json.dumps(reply.body).encode()])
        return reply

    def _with_usage(self, reply: Reply, call: Call) -> Reply:
        own: Body = {
            "prompt_tokens": call.prompt_tokens,
            "completion_tokens": 2,
            "total_tokens": call.prompt_tokens + 2,
        }
        if self.cached_share:
            own["prompt_tokens_details"] = {"cached_tokens": round(call.prompt_tokens * self.cached_share)}
        reply.body["usage"] = self.reports or own
        return reply

    def _too_long(self, window: int, tokens: int) -> Reply:
        stated = f"This model's maximum context length is {window} tokens. However, your messages resulted in {tokens}."
        said = stated if self.states_its_window else "Please reduce the length of the messages or completion."
        error = {"message": said, "type": "invalid_request_error", "param": "messages", "code": None}
        return Reply({"error": error}, 400)


def is_summary(body: Body) -> bool:
    """Whether a request is one for a summary."""
    return any(SUMMARY_RULE in str(message.get("content")) for message in body["messages"][-_SPOKEN_TO:])


def material(messages: Sequence[Body]) -> Iterator[str]:
    """The texts that a call for a summary is about."""
    instruction = next(at for at in range(len(messages)) if SUMMARY_RULE in str(messages[at].get("content")))
    told = str(messages[instruction]["content"])
    stretch = _STRETCH.search(told)
    first = max(0, instruction - int(stretch[1])) if stretch else 0
    yield from (str(message.get("content") or "") for message in messages[first:instruction])
    if instruction == 0:
        yield told


def orphans(messages: Sequence[Body]) -> Iterator[str]:
    """Calls without a result, results without their call."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"a result without its call: {message['tool_call_id']}"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield f"calls without a result: {waiting}"
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        for call in message.get("tool_calls") or ():
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                yield f"arguments that are no object: {call['function']['arguments'][:40]}"
    if waiting:
        yield f"calls without a result: {waiting}"
