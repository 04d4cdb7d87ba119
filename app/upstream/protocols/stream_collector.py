"""Stream chunks → assistant message, usage and how it ended. Pure; the bytes themselves are relayed by others.

Nearly every chunk carries one piece of text: it is read by a typed decoder that knows the usual fields and nothing
else. A chunk with anything more goes through the general path, so that no field of a message is lost.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson

from app.conversation.json_depth import TOO_DEEP, is_too_deep
from app.errors import UpstreamUnavailable
from app.upstream.protocols.choice_deltas import ChoiceSoFar, Delta


class _Message(Delta):
    """Of an answer that comes as a whole."""

    annotations: list[Any] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    message: None = None


class _WholeChoice(msgspec.Struct, gc=False):
    index: int = 0
    message: _Message | None = None
    finish_reason: str | None = None
    delta: None = None


class _Around(msgspec.Struct, gc=False):
    usage: dict[str, Any] | None = None
    error: None = None
    id: str | None = None
    model: str | None = None
    object: str | None = None
    x_groq: dict[str, Any] | None = None


class _Chunk(_Around):
    choices: list[_Choice] | None = None


class _Whole(_Around):
    choices: list[_WholeChoice] | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


class Collector:
    """What a completion amounts to, gathered chunk by chunk.

    Args:
        source: whose answer it is, for error messages.

    Attributes:
        id, model: from the first chunk that names them.
        usage: the last one reported; None if none was.
        error: a top-level `error` (or `{"object": "error"}`) as decoded; None if there was none.
        error_data: the event data that carried it, for `overflow.recognise`.
        chunks: how many were added.
        complete: whether every choice that began has given a finish reason, and choice 0 has.
    """

    __slots__ = (
        *("_choices", "_first", "_is_torn", "_source"),
        *("chunks", "complete", "error", "error_data", "id", "model", "usage"),
    )

    def __init__(self, source: str = "upstream") -> None:
        self._source = source
        self._first = ChoiceSoFar()
        self._choices: dict[int, ChoiceSoFar] = {}
        self._is_torn = False
        """Whether halves of surrogate pairs have come, which no other part of the gateway could write."""
        self.id: str | None = None
        self.model: str | None = None
        self.usage: dict[str, Any] | None = None
        self.error: Any = None
        self.error_data: bytes | None = None
        self.chunks = 0
        self.complete = False

    def add(self, data: bytes) -> None:
        """Take the data of one event, `[DONE]` excepted.

        Raises:
            UpstreamUnavailable: it is not a JSON object.
        """
        self.chunks += 1
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._add_leniently(data)
            return
        if chunk.object == "error":
            self._add_leniently(data)
            return
        if self.id is None or chunk.usage or chunk.x_groq is not None:
            self._add_around(chunk)
        for choice in chunk.choices or ():
            so_far = self._choice(choice.index) if choice.index else self._first
            if choice.delta is not None:
                so_far.add_typed(choice.delta)
            if choice.finish_reason:
                self._finish(so_far, choice.finish_reason)

    def add_text(self, text: str, chunks: int) -> None:
        """Take text of choice 0 that came in chunks which told nothing else that is new."""
        self.chunks += chunks
        self._first.add_content(text)

    def add_completion(self, body: bytes) -> None:
        """Take the body of a whole answer instead of chunks.

        Raises:
            UpstreamUnavailable: it is not a JSON object.
        """
        self.chunks += 1
        try:
            whole = _decode_whole(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._add_leniently(body)
            return
        if whole.object == "error":
            self._add_leniently(body)
            return
        self._add_around(whole)
        for choice in whole.choices or ():
            so_far = self._choice(choice.index) if choice.index else self._first
            if (message := choice.message) is not None:
                so_far.add_typed(message)
                if message.annotations is not None:
                    so_far.lists.setdefault("annotations", []).extend(message.annotations)
            if choice.finish_reason:
                self._finish(so_far, choice.finish_reason)

    @property
    def finish_reason(self) -> str | None:
        """Of choice 0."""
        return self._first.finish_reason

    @property
    def failed(self) -> bool:
        """Whether the upstream said that it failed: an error chunk, or finish reason `error`."""
        return self.error is not None or self._first.finish_reason == "error"

    @property
    def has_content(self) -> bool:
        """Whether anything that a user or a program would see has come: text, a refusal, a tool call, audio."""
        has_content = self._first.has_content
        return has_content or (bool(self._choices) and any(choice.has_content for choice in self._choices.values()))

    def message(self) -> dict[str, Any]:
        """The assistant message of choice 0 as a client sends it back."""
        return self._message_of(self._first)

    def messages(self) -> list[dict[str, Any]]:
        """The assistant messages of all choices, by index."""
        first = self.message()
        if not self._choices:  # as nearly every answer
            return [first]
        return [first, *(self._message_of(self._choices[index]) for index in sorted(self._choices))]

    def _message_of(self, choice: ChoiceSoFar) -> dict[str, Any]:
        message = choice.message()
        return _mended(message) if self._is_torn else message

    def _add_around(self, chunk: _Around) -> None:
        if self.id is None:
            self._identify(chunk.id, chunk.model)
        if chunk.usage:
            self.usage = chunk.usage
        elif chunk.x_groq is not None:
            self._take_groq_usage(chunk.x_groq)

    def _choice(self, index: int) -> ChoiceSoFar:
        if index == 0:
            return self._first
        so_far = self._choices.get(index)
        if so_far is None:
            so_far = self._choices[index] = ChoiceSoFar()
            self.complete = False
        return so_far

    def _finish(self, so_far: ChoiceSoFar, reason: str) -> None:
        so_far.finish_reason = reason
        if not self._choices:
            self.complete = True
            return
        self.complete = all(choice.finish_reason is not None for choice in (self._first, *self._choices.values()))

    def _identify(self, completion_id: object, model: object) -> None:
        if isinstance(completion_id, str) and completion_id:
            self.id = completion_id
        if isinstance(model, str) and model and self.model is None:
            self.model = model

    def _take_groq_usage(self, x_groq: object) -> None:
        if isinstance(x_groq, dict) and isinstance(x_groq.get("usage"), dict):
            self.usage = x_groq["usage"]

    def _add_leniently(self, data: bytes) -> None:
        try:
            chunk = _object_of(orjson.loads(data), self._source)
        except orjson.JSONDecodeError:
            chunk = _object_of(_decode_torn(data, self._source), self._source)
            self._is_torn = True
            self._add_general(_mended(chunk), data)
        else:
            self._add_general(chunk, data)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._add_general_choice(choice)

    def _add_general(self, chunk: dict[str, Any], data: bytes) -> None:
        error = chunk if chunk.get("object") == "error" else chunk.get("error")
        if error is not None:
            self.error, self.error_data = error, data
        if self.id is None:
            self._identify(chunk.get("id"), chunk.get("model"))
        usage = chunk.get("usage")
        if usage and isinstance(usage, dict):
            self.usage = usage
        else:
            self._take_groq_usage(chunk.get("x_groq"))

    def _add_general_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index")
        so_far = self._choice(index if isinstance(index, int) else 0)
        for delta in (choice.get("delta"), choice.get("message")):
            if isinstance(delta, dict):
                so_far.add(delta)
        reason = choice.get("finish_reason")
        if reason:
            self._finish(so_far, str(_mended(reason) if self._is_torn else reason))


def _decode_torn(data: bytes, source: str) -> Any:
    """Decode a chunk in which lone surrogates may stand, since some servers cut an emoji's two halves apart."""
    try:
        decoded = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UpstreamUnavailable(f"{source!r} answered with data that is not JSON.") from error
    if is_too_deep(decoded):
        raise UpstreamUnavailable(f"{source!r} answered with data that {TOO_DEEP}")
    return decoded


def _object_of(chunk: Any, source: str) -> dict[str, Any]:
    if isinstance(chunk, list) and len(chunk) == 1:
        chunk = chunk[0]
    if not isinstance(chunk, dict):
        raise UpstreamUnavailable(f"{source!r} answered with data that is not a JSON object.")
    return chunk


def _mended(value: Any) -> Any:
    """JSON in which halves of surrogate pairs have found each other; one that stayed alone becomes U+FFFD."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
