"""The body of a summary call, made to fit the window of whoever reads it: a fenced transcript, or a conversation with
one more message. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import orjson

from app.compaction.summarizer.prompts import again, conversation_prompt, transcript_prompt
from app.compaction.summarizer.summary_request import SummaryRefused
from app.compaction.summarizer.transcript import Entry, fenced
from app.context.plan.budget import summary_limit
from app.context.plan.policy import Policy
from app.context.view.view_messages import Counter
from app.upstream.provider import Deployment
from app.upstream.quirks import apply_quirks

MARGIN_RATIO: Final = 0.06
"""Of the window, left free because our count of a summarizer's prompt is an estimate."""
SMALLEST_INPUT_TOKENS: Final = 128
INSTRUCTION_TOKENS: Final = 400
"""What instruction and fence take, generously, where ranges are cut before there is a call to count."""
SPOKEN_SHARE: Final = 0.85
"""Of a transcript, what the messages themselves take; the rest is lines that name speakers."""
REASONING_MODELS: Final = ("o1", "o3", "o4", "gpt-5")
"""Models of OpenAI's that know `max_completion_tokens` only."""
BOUND_FIELDS: Final = ("tools", "functions", "parallel_tool_calls", "prompt_cache_key")
"""Of a request, what belongs to its cached prefix or names it."""
OWN_FIELDS: Final = frozenset(
    {"model", "messages", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "tool_choice"}
    | {"function_call", *BOUND_FIELDS}
)
"""What configured parameters do not change."""


@dataclass(frozen=True, slots=True)
class Room:
    """What one call may take. Tokens as the deployment counts them."""

    window_tokens: int
    output_tokens: int
    count: Counter
    input_share: float = 1.0
    """Of the room that is left for material, how much is used."""

    @property
    def prompt_tokens(self) -> int:
        return self.window_tokens - self.output_tokens - round(self.window_tokens * MARGIN_RATIO)


class Prompt(Protocol):
    """What is asked, for any room."""

    @property
    def limit_tokens(self) -> int:
        """How long the summary may be."""

    @property
    def fields(self) -> Mapping[str, bytes]:
        """Further top-level fields."""

    def messages(self, room: Room) -> list[bytes]:
        """JSON text of the messages.

        Raises:
            SummaryRefused: they cannot be made to fit.
        """


@dataclass(frozen=True, slots=True)
class TranscriptPrompt:
    """Entries in a fence, shortened to what fits."""

    text: str
    """The instruction."""
    entries: Sequence[Entry]
    limit_tokens: int
    fields: Mapping[str, bytes] = field(default_factory=dict)

    def material_tokens(self, room: Room) -> int:
        """How many tokens of material there is room for."""
        frame = _user(transcript_prompt(self.text, "0" * 8, "", limit_tokens=self.limit_tokens))
        return max(SMALLEST_INPUT_TOKENS, int((room.prompt_tokens - room.count.message(frame)) * room.input_share))

    def messages(self, room: Room) -> list[bytes]:
        material = fenced(self.entries, self.material_tokens(room), room.count.count)
        told = transcript_prompt(self.text, material.mark, material.text, limit_tokens=self.limit_tokens)
        return [orjson.dumps(_user(told))]


@dataclass(frozen=True, slots=True)
class ConversationPrompt:
    """The messages that the provider has seen last, byte for byte, and the instruction after them."""

    text: str
    scope: str
    prefix: Sequence[bytes]
    limit_tokens: int
    fields: Mapping[str, bytes] = field(default_factory=dict)

    def messages(self, room: Room) -> list[bytes]:
        told = _user(conversation_prompt(self.text, self.scope, limit_tokens=self.limit_tokens))
        tokens = room.count.message(told) + sum(room.count.message(orjson.loads(raw)) for raw in self.prefix)
        tokens += sum(room.count.count(raw.decode()) for name, raw in self.fields.items() if name in BOUND_FIELDS)
        # No margin is kept as for what is put together here: the provider has taken these messages before.
        if tokens > room.window_tokens - room.output_tokens:
            raise SummaryRefused("the conversation does not fit into the summarizer's window")
        return [*self.prefix, orjson.dumps(told)]


@dataclass(frozen=True, slots=True)
class AgainPrompt:
    """The same call with its answer, and what that lacks."""

    before: Prompt
    answer: str
    lacks: Sequence[str]

    @property
    def limit_tokens(self) -> int:
        return self.before.limit_tokens

    @property
    def fields(self) -> Mapping[str, bytes]:
        return self.before.fields

    def messages(self, room: Room) -> list[bytes]:
        more = [{"role": "assistant", "content": self.answer}, _user(again(self.lacks, limit_tokens=self.limit_tokens))]
        taken = sum(map(room.count.message, more))
        smaller = replace(room, window_tokens=room.window_tokens - taken)
        return [*self.before.messages(smaller), *map(orjson.dumps, more)]


def bound_fields(fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """A request's fields as a call in its place binds them: the same tools, none of which may be called."""
    bound = {name: bytes(fields[name]) for name in BOUND_FIELDS if name in fields}
    for name, choice in (("tools", "tool_choice"), ("functions", "function_call")):
        if orjson.loads(bound.get(name, b"null")):
            bound[choice] = b'"none"'
    return bound


def input_tokens(policy: Policy, window_tokens: int) -> int:
    """The most tokens of log that one summary call may read, as the provider counts: what ranges are cut to.

    Args:
        window_tokens: context window of the summarizer.
    """
    output_tokens = min(summary_limit(policy, window_tokens), window_tokens // 4)
    margin = round(window_tokens * MARGIN_RATIO)
    room = window_tokens - output_tokens - margin - INSTRUCTION_TOKENS
    return max(SMALLEST_INPUT_TOKENS, int(room * SPOKEN_SHARE))


def body_of(prompt: Prompt, policy: Policy, deployment: Deployment, room: Room) -> bytes:
    """A body whose prompt and answer fit into the window, as this deployment's provider takes it.

    Raises:
        SummaryRefused: it cannot be made to fit.
    """
    parameters = {
        name: orjson.dumps(value) for name, value in policy.summarizer.parameters.items() if name not in OWN_FIELDS
    }
    limit = {_limit_field(deployment): b"%d" % room.output_tokens}
    messages, fields = apply_quirks(deployment.quirks, prompt.messages(room), {**prompt.fields, **parameters, **limit})
    fields = {"model": orjson.dumps(deployment.upstream_model), "messages": b"[" + b",".join(messages) + b"]", **fields}
    return b"{" + b",".join(b"%b:%b" % (orjson.dumps(name), raw) for name, raw in fields.items()) + b"}"


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _limit_field(deployment: Deployment) -> str:
    told = deployment.quirks.max_tokens_field
    name = deployment.upstream_model.rpartition("/")[2]
    return told or ("max_completion_tokens" if name.startswith(REASONING_MODELS) else "max_tokens")
