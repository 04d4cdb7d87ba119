"""Writes values as chunks of Chat Completions, or as a whole completion. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from app.dialects.answer_events import (
    AnswerValue,
    Begin,
    CallBegin,
    CallText,
    Citation,
    Failure,
    Finish,
    Other,
    Reasoning,
    Refusal,
    Text,
    Usage,
    move_citation,
)
from app.dialects.chat.choice_collector import ChoiceCollector
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.provider_json import encode_json, join_surrogates

PROTOCOL: Final = "openai"
PARAGRAPH_BREAK: Final = "\n\n"
"""Stands between the texts of two blocks, and between two parts of reasoning: a message has one text of each."""
_NO_PLACE: Final = (-1,)


class ChatStreamEncoder:
    """Writes the chunks of one answer. What a chunk cannot say (`Sealed`) is left out.

    Args:
        identity: of a completion whose first chunk the client has got; otherwise None.

    Attributes:
        has_begun: whether the client has got a first chunk, which tells the role.
    """

    def __init__(self, identity: Mapping[str, Any] | None = None) -> None:
        self._has_own_identity = identity is not None
        self.has_begun = self._has_own_identity
        self._set_identity(identity or {})
        self._members: dict[str, Any] = {}
        """Further members of the next chunk."""
        self._text_length = 0
        self._text_blocks: dict[int | None, int] = {}
        """Where in the text each block begins; the last one grows."""
        self._reasoning_place: tuple[Any, ...] = _NO_PLACE
        self._calls: dict[tuple[int, int], bool] = {}
        """Whether a call is one of a custom tool, by choice and call."""

    def continue_after(self, decoder: ChatStreamDecoder) -> None:
        """Continues a stream of which the client has got chunks of the provider's, which `decoder` has read."""
        self.has_begun = self.has_begun or decoder.chunk_count > 0
        calls = decoder.first_choice.tool_calls
        for number, call in enumerate(() if calls is None else calls.calls):
            self._calls.setdefault((0, number), call.is_custom)

    def encode(self, value: AnswerValue) -> bytes:
        """Returns the JSON text of the chunk that says a value; nothing if there is none.

        Raises:
            UpstreamUnavailable: the value is nested too deeply.
        """
        match value:
            case Begin():
                return self._begin(value)
            case Usage():
                return self._encode_chunk({"choices": [], "usage": value.counts})
            case Failure():
                return value.body
            case Other(choice=None):
                self._members |= value.fields if value.protocol == PROTOCOL else {}
                return b""
            case Finish():
                return self._encode_delta({}, value.choice, finish_reason=value.reason)
        delta = self.build_delta(value)
        if delta is None:
            return b""
        logprobs = {"content": value.logprobs, "refusal": None} if isinstance(value, Text) and value.logprobs else None
        return self._encode_delta(delta, getattr(value, "choice", 0), logprobs)

    def build_delta(self, value: AnswerValue) -> dict[str, Any] | None:
        """Builds the delta that says a value; None if there is none."""
        match value:
            case Text():
                return {"content": self._join_text(value)}
            case Reasoning():
                place = (value.choice, value.block, value.part, value.is_summary)
                is_next = self._reasoning_place not in (_NO_PLACE, place)
                if not value.text:
                    return None
                self._reasoning_place = place
                return {"reasoning_content": PARAGRAPH_BREAK + value.text if is_next else value.text}
            case Refusal():
                return {"refusal": value.text}
            case CallBegin():
                self._calls[value.choice, value.call] = value.is_custom
                kind, texts = ("custom", {"input": ""}) if value.is_custom else ("function", {"arguments": ""})
                call = {"id": value.id, "type": kind, kind: {"name": value.name, **texts}}
                return {"tool_calls": [{"index": value.call, **call}]}
            case CallText():
                is_custom = self._calls.get((value.choice, value.call), False)
                text = {"custom": {"input": value.text}} if is_custom else {"function": {"arguments": value.text}}
                return {"tool_calls": [{"index": value.call, **text}]}
            case Citation():
                return {"annotations": [self._build_citation(value)]}
            case Other(protocol=protocol) if protocol == PROTOCOL:
                fields = dict(value.fields)
                return fields if value.call is None else {"tool_calls": [{"index": value.call, **fields}]}
        return None

    def _build_citation(self, value: Citation) -> dict[str, Any]:
        start = self._text_blocks.get(value.block, self._text_length)
        return {"type": "url_citation", "url_citation": move_citation(value.fields, start)}

    def _begin(self, value: Begin) -> bytes:
        if not self._has_own_identity:
            members = {"id": value.id, "created": value.created, "model": value.model}
            self._set_identity({name: member for name, member in members.items() if member is not None})
        if self.has_begun:
            return b""
        self.has_begun = True
        return self._encode_delta({"role": "assistant", "content": ""})

    def _set_identity(self, identity: Mapping[str, Any]) -> None:
        self._identity = {**identity, "object": "chat.completion.chunk"}

    def _join_text(self, value: Text) -> str:
        text = value.text
        if not value.choice:
            if value.block not in self._text_blocks:
                if self._text_blocks:
                    text = PARAGRAPH_BREAK + text
                    self._text_length += len(PARAGRAPH_BREAK)
                self._text_blocks[value.block] = self._text_length
            elif value.block != next(reversed(self._text_blocks)):
                text = PARAGRAPH_BREAK + text
            self._text_length += len(value.text)
        return text

    def _encode_delta(
        self,
        delta: Mapping[str, Any],
        index: int = 0,
        logprobs: Mapping[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._encode_chunk({"choices": [choice]})

    def _encode_chunk(self, members: Mapping[str, Any]) -> bytes:
        others, self._members = self._members, {}
        return encode_json({**self._identity, **members, **others})


class BodyAssembler:
    """Assembles the body of the message that values of choice 0 say.

    Attributes:
        logprobs: the log probabilities of the tokens of all texts.
    """

    def __init__(self) -> None:
        self._encoder, self._choice = ChatStreamEncoder(), ChoiceCollector()
        self.logprobs: list[Any] = []

    def add(self, value: AnswerValue) -> None:
        if isinstance(value, Text):
            self.logprobs += value.logprobs
        if not getattr(value, "choice", 0) and (delta := self._encoder.build_delta(value)) is not None:
            self._choice.add_delta(delta)

    def build(self) -> dict[str, Any]:
        body = self._choice.build_message()
        try:
            orjson.dumps(body)
        except TypeError:  # halves of surrogate pairs, which came in pieces of their own
            body = join_surrogates(body)
        return body


def encode_completion(values: Sequence[AnswerValue]) -> bytes:
    """Writes a whole completion with one choice.

    Raises:
        UpstreamUnavailable: a value is nested too deeply.
    """
    begin, reason, usage, body = Begin(), None, None, BodyAssembler()
    others: dict[str, Any] = {}
    for value in values:
        match value:
            case Begin():
                begin = value
            case Usage():
                usage = value.counts
            case Finish():
                reason = value.reason
            case Other(choice=None):
                others |= value.fields if value.protocol == PROTOCOL else {}
            case _:
                body.add(value)
    built = body.build()
    content = built["content"]
    if content is None and not ("tool_calls" in built or "refusal" in built):
        content = ""
    message = {"role": "assistant", "content": content, "refusal": built.get("refusal")}
    choice = {
        "index": 0,
        "message": message | {name: built[name] for name in built if name not in message},
        "logprobs": {"content": body.logprobs, "refusal": None} if body.logprobs else None,
        "finish_reason": reason,
    }
    identity = {"id": begin.id, "created": begin.created, "model": begin.model}
    completion = {
        **others,
        **{name: member for name, member in identity.items() if member is not None},
        "object": "chat.completion",
        "choices": [choice],
        **({} if usage is None else {"usage": usage}),
        **({} if begin.service_tier is None else {"service_tier": begin.service_tier}),
    }
    return encode_json(completion)
