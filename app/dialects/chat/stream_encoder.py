"""Writes values as chunks of Chat Completions, or as a whole completion. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from app.dialects.answer_decoding import AnswerDecoder
from app.dialects.answer_events import (
    AnswerValue,
    Begin,
    CallBegin,
    CallText,
    Citation,
    Failure,
    Finish,
    Reasoning,
    Refusal,
    Text,
    Usage,
)
from app.dialects.chat.choice_collector import ChoiceCollector
from app.dialects.chat.stream_frames import encode_chunk
from app.dialects.sse import DONE_DATA, SseEvent

PROTOCOL: Final = "openai"
PARAGRAPH_BREAK: Final = "\n\n"
"""Stands between the texts of two blocks, and between two parts of reasoning: a message has one text of each."""
_NO_PLACE: Final = (-1,)
_TEXT_END: Final = b'},"logprobs":null,"finish_reason":null}]}'


class ChatStreamEncoder:
    """Writes the chunks of one answer. What a chunk cannot say (`Sealed`) is left out."""

    __slots__ = ("_calls", "_has_begun", "_identity", "_reasoning_place", "_text_begin", "_text_blocks", "_text_length")

    def __init__(self) -> None:
        self._identity: dict[str, Any] = {"object": "chat.completion.chunk"}
        self._text_begin = b""
        self._has_begun = False
        self._text_length = 0
        self._text_blocks: dict[int | None, int] = {}
        """Where in the text each block begins; the last one grows."""
        self._reasoning_place: tuple[Any, ...] = _NO_PLACE
        self._calls: dict[tuple[int, int], bool] = {}
        """Whether a call is one of a custom tool, by choice and call."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What all chunks say of the completion."""
        return self._identity

    def encode(self, value: AnswerValue) -> bytes:
        """Returns the JSON text of the chunk that says a value; nothing if there is none.

        Raises:
            UpstreamUnavailable: the value is nested too deeply.
        """
        if type(value) is Text and not value.logprobs and not value.choice:  # as nearly every value
            return self._text_begin + _encode_text(self._join_text(value)) + _TEXT_END
        match value:
            case Begin():
                return self._begin(value)
            case Usage():
                return self._encode_chunk({"choices": [], "usage": value.counts})
            case Failure():
                return value.body
            case Finish():
                choice = {"index": value.choice, "delta": {}, "logprobs": None, "finish_reason": value.reason}
                return self._encode_chunk({"choices": [choice]})
        delta = self.build_delta(value)
        if delta is None:
            return b""
        logprobs = {"content": value.logprobs, "refusal": None} if isinstance(value, Text) and value.logprobs else None
        choice = {"index": getattr(value, "choice", 0), "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return self._encode_chunk({"choices": [choice]})

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
                is_custom = self._calls[value.choice, value.call]
                text = {"custom": {"input": value.text}} if is_custom else {"function": {"arguments": value.text}}
                return {"tool_calls": [{"index": value.call, **text}]}
            case Citation():
                return {"annotations": [self._build_citation(value)]}
        return None

    def _build_citation(self, value: Citation) -> dict[str, Any]:
        start = self._text_blocks.get(value.block, self._text_length)
        places = ("start_index", "end_index")
        moved = {
            name: place + start if name in places and isinstance(place, int) else place
            for name, place in value.fields.items()
        }
        return {"type": "url_citation", "url_citation": moved}

    def _begin(self, value: Begin) -> bytes:
        members = {"id": value.id, "created": value.created, "model": value.model}
        self._identity = {name: member for name, member in members.items() if member is not None}
        self._identity["object"] = "chat.completion.chunk"
        begin = encode_chunk(self._identity)[:-1] + b',"choices":[{"index":0,"delta":{'
        self._text_begin = begin + b'"content":'
        if self._has_begun:
            return b""
        self._has_begun = True
        return begin + b'"role":"assistant","content":""' + _TEXT_END

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

    def _encode_chunk(self, members: Mapping[str, Any]) -> bytes:
        return encode_chunk({**self._identity, **members})


class ChunkTranslator:
    """Translates the events of a stream to chunks, for readers that know only these. Those of a chat provider pass.

    Args:
        decoder: of the provider's protocol.
    """

    def __init__(self, decoder: AnswerDecoder) -> None:
        self._decoder = decoder
        self._encoder = ChatStreamEncoder()

    def translate(self, events: list[SseEvent]) -> list[SseEvent]:
        """Returns the chunks that events say, and `[DONE]` after the end of the answer.

        Raises:
            UpstreamUnavailable: the data of an event is not a JSON object.
        """
        decoder = self._decoder
        if decoder.protocol == PROTOCOL:
            return events
        chunks: list[bytes] = []
        for event in events:
            if event.data and not decoder.has_ended:
                chunks += map(self._encoder.encode, decoder.decode(event.data.strip(), event.name))
                chunks += [DONE_DATA] if decoder.is_complete else []
        return [SseEvent(b"", chunk) for chunk in chunks if chunk]


def encode_completion(values: Sequence[AnswerValue]) -> bytes:
    """Writes a whole completion with one choice.

    Raises:
        UpstreamUnavailable: a value is nested too deeply.
    """
    encoder, choice = ChatStreamEncoder(), ChoiceCollector()
    reason, usage, tier = None, None, None
    logprobs: list[Any] = []
    for value in values:
        match value:
            case Begin():
                encoder.encode(value)
                tier = value.service_tier
            case Usage():
                usage = value.counts
            case Finish():
                reason = value.reason
            case _:
                logprobs += getattr(value, "logprobs", ())
                if (delta := encoder.build_delta(value)) is not None:
                    choice.add_untyped_delta(delta)
    built = choice.build_message()
    content = built["content"]
    if content is None and not ("tool_calls" in built or "refusal" in built):
        content = ""
    names = ("reasoning_content", "annotations", "tool_calls")
    message = {"role": "assistant", "content": content, "refusal": built.get("refusal")}
    message |= {name: built[name] for name in names if name in built}
    completion = {
        **encoder.identity,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
                "finish_reason": reason,
            }
        ],
        **({} if usage is None else {"usage": usage}),
        **({} if tier is None else {"service_tier": tier}),
    }
    return encode_chunk(completion)


def _encode_text(text: str) -> bytes:
    """Encodes a text that may hold halves of a surrogate pair."""
    try:
        return orjson.dumps(text)
    except TypeError:
        return encode_chunk(text)
