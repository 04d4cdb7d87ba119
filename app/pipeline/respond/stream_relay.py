"""The upstream's answer on its way to the client: bytes go through, a collector listens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import orjson

from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, release_frames
from app.pipeline.call.first_event import Begun, no_answer
from app.pipeline.respond.context_status import Report
from app.pipeline.respond.stream_frames import EarlyStream, decoded, encoded, spliced
from app.upstream.protocols.sse import DONE, Event
from app.upstream.protocols.stream_collector import Collector
from app.upstream.provider import Deployment

BAD_GATEWAY: Final = 502
END_WAIT_SECONDS: Final = 0.1
"""After `[DONE]`: a connection whose end comes this soon can be used again."""
ERROR_EVENT: Final = b"error"
IDENTITY: Final[tuple[str, ...]] = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""What all chunks of a stream have in common."""
MOST_KINDS: Final = 8
"""How often a stream's chunks may change their form before each is looked into."""
EVENT_END: Final = b"\n\n"
HELD_BYTES: Final = 65_536
"""Of an event whose end has not come: more than that is one for the decoder alone."""


class Relay:
    """A stream on its way through: what to send for what has come. Nothing is awaited here.

    Once it is over `failure` says why it is not whole, and `collector` what it amounted to.

    Attributes:
        has_ended: nothing more is relayed: the end has come, or a failure.
        is_done: the upstream has said that it is done, or what it said ends the answer.
    """

    def __init__(
        self, begun: Begun, report: Report, *, include_usage: bool, early: EarlyStream | None, source: str
    ) -> None:
        self._begun = begun
        self._decoder = begun.decoder
        self._include_usage = include_usage
        self._early = early
        self._source = source
        self._fields = report.fields()
        self._report = report
        self._alike: Alike | None = None
        self._last: bytes | None = None
        """The provider's chunk that told of the end."""
        self._may_hold = True
        """The decoder may hold the beginning of an event."""
        self._kinds_left = MOST_KINDS if early is None else 0
        self.is_done = False
        self.has_ended = False
        self.collector = Collector(source)
        self.failure: GatewayError | None = None

    @property
    def completion_id(self) -> str | None:
        """The completion's id as the client was told."""
        return self.collector.id if self._early is None else self._early.completion_id

    def begin(self) -> bytes:
        """The client's frames for what had come before the stream was relayed."""
        return self._frames(self._begun.events)

    def feed(self, piece: bytes) -> bytes:
        """The client's frames for what has come, errors and the end not among them."""
        if self._may_hold and self._alike is not None:
            held = self._decoder.take_back(HELD_BYTES)
            if held is None:
                return self._one_by_one(piece)
            self._may_hold = False
            piece = held + piece
        known = self._alike
        taken = None if known is None else known.taken(piece)
        if taken is None:
            return self._one_by_one(piece)
        self.collector.add_text(taken.text, taken.chunks)
        return taken.frames + self._one_by_one(taken.rest) if taken.rest else taken.frames

    def _one_by_one(self, piece: bytes) -> bytes:
        """The client's frames for events that are looked into, until it is known what the others look like."""
        known, end = self._alike, piece.find(EVENT_END) + len(EVENT_END)
        if self._kinds_left and len(EVENT_END) < end < len(piece):
            frames = self._frames(self._decoder.feed(piece[:end]))
            if self.has_ended:
                return frames
            if self._alike is not known:
                return frames + self.feed(piece[end:])
            piece = piece[end:]
        else:
            frames = b""
        self._may_hold = not piece.endswith(EVENT_END)
        rest = self._frames(self._decoder.feed(piece))
        return frames + rest if frames else rest

    def finish(self) -> bytes:
        """The client's frames for what was held back until the upstream's end."""
        return self._frames(self._decoder.finish())

    def close(self, broken: UpstreamUnavailable | None = None) -> None:
        """Nothing more comes: the upstream has ended, or this broke it off."""
        if broken is not None:
            release_frames(broken)
        if self.failure is None and not self.collector.complete:
            self.failure = broken or UpstreamUnavailable(f"The stream of {self._source!r} ended before its answer did.")

    def _frames(self, events: list[Event]) -> bytes:
        """The client's frames for some events, up to the first that is a failure or the end."""
        frames = []
        for event in events:
            data = event.data.strip() if event.data else b""
            if not data:
                continue
            if data == DONE:
                self.is_done = self.has_ended = True
                break
            try:
                frames.append(self._frame(data, event.name))
            except UpstreamUnavailable as error:
                release_frames(error)
                self.failure = None if self.collector.complete else error
                self.is_done = self.has_ended = True
            if self.has_ended:
                break
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _frame(self, data: bytes, name: bytes) -> bytes:
        """The client's frame for one upstream event; empty for what the client is not to see."""
        collector = self.collector
        was_complete = collector.complete
        usage_before = collector.usage
        collector.add(data)
        if collector.error is not None or name == ERROR_EVENT:
            self.failure = UpstreamRefused(BAD_GATEWAY, collector.error_data or data, {})
            self.has_ended = True
            return b""
        if not self._include_usage and collector.usage is not usage_before and _is_usage_only(data):
            return b""
        fields = self._fields
        if collector.complete and not was_complete:
            self._last, fields = data, self._report.all_fields(self._report.context())
        if self._early is not None:
            return self._early.adopted(data, fields)
        if self._kinds_left and not was_complete and tells_text(data):
            self._kinds_left -= 1
            self._alike = alike(data, self._fields) or self._alike
        if b"\n" in data:
            data = data.replace(b"\n", b" ")
        return b"data: " + spliced(data, fields) + b"\n\n"

    def amended(self, report: Report) -> bytes:
        """A chunk without text, for what became true of the answer after its last chunk was sent."""
        if self._last is None:
            return b""
        last = decoded(self._last)
        identity = {name: last[name] for name in IDENTITY if name in last}
        data = encoded({**identity, "choices": [{"index": 0, "delta": {}, "finish_reason": None}]})
        fields = report.all_fields(report.context())
        if self._early is not None:
            return self._early.adopted(data, fields)
        return b"data: " + spliced(data, fields) + b"\n\n"


async def await_end(pieces: AsyncIterator[bytes]) -> None:
    """Read on to the end of an answer whose last event has come, if it is not far."""
    try:
        async with asyncio.timeout(END_WAIT_SECONDS):
            async for _ in pieces:
                pass
    except TimeoutError:
        return


def finished_whole(body: bytes, deployment: Deployment) -> Collector:
    """What an answer of a deployment that is not streamed amounts to.

    Raises:
        UpstreamUnavailable: it is not a chat completion.
        UpstreamRefused: it is an error in spite of its status.
    """
    collector = Collector(deployment.key)
    try:
        collector.add_completion(body)
    except UpstreamUnavailable as error:
        raise no_answer(deployment, "answered with something that is not a chat completion") from error
    if collector.error is not None:
        raise UpstreamRefused(BAD_GATEWAY, body, {"content-type": "application/json"})
    if not collector.has_content and collector.finish_reason is None:
        raise no_answer(deployment, "answered with something that is not a chat completion")
    return collector


def _is_usage_only(data: bytes) -> bool:
    """Whether a chunk carries usage and no choice: it came because we asked for it."""
    return not decoded(data).get("choices")


_CONTENT: Final = re.compile(rb'"content"\s*:\s*"((?:[^"\\]|\\.)*)"')
_OF_A_PLAIN_DELTA: Final = {"content", "role"}
_PROBE: Final = "x"


class Taken(msgspec.Struct, frozen=True):
    """What was recognised at the beginning of a piece.

    Attributes:
        frames: the chunks, with our fields.
        rest: what follows them in the piece.
    """

    text: str
    chunks: int
    frames: bytes
    rest: bytes


class Alike:
    """The bytes that chunks have in common.

    Args:
        before, after: those before a chunk's text and behind it, in an event of its own.
        fields: ours, for each chunk.
    """

    __slots__ = ("_after", "_after_with_ours", "_before", "_between")

    def __init__(self, before: bytes, after: bytes, fields: bytes) -> None:
        self._before = b"data: " + before
        self._after = after + b"\n\n"
        self._after_with_ours = spliced(after, fields) + b"\n\n"
        self._between = self._after + self._before

    def taken(self, piece: bytes) -> Taken | None:
        """As many chunks of this kind as a piece begins with; None if they cannot be told by their bytes alone."""
        before, after = self._before, self._after
        end = piece.rfind(after)
        if end < 0 or not piece.startswith(before):
            return None
        inside, past = piece[len(before) : end], end + len(after)
        rest = b"" if past == len(piece) else piece[past:]
        try:
            if len(inside) <= len(self._between):
                return Taken(orjson.loads(b'"%b"' % inside), 1, piece[:end] + self._after_with_ours, rest)
            texts = inside.split(self._between)
            text = _joined(texts)
        except ValueError:
            return None
        return Taken(text, len(texts), piece[:past].replace(after, self._after_with_ours), rest)


def _joined(texts: list[bytes]) -> str:
    """What the insides of JSON strings come to, one behind the other.

    Raises:
        ValueError: one of them is no such thing.
    """
    joined = b"".join(texts)
    if joined.isascii() and (b"\\" not in joined or _ends_no_escape_late(texts, joined)):
        return str(orjson.loads(b'"%b"' % joined))
    return "".join([orjson.loads(b'"%b"' % text) for text in texts])


def _ends_no_escape_late(texts: list[bytes], joined: bytes) -> bool:
    """Whether no escape can reach from one text into the next."""
    return b"\\u" not in joined and b"\\\n" not in b"\n".join(texts)


def tells_text(data: bytes) -> bool:
    """Whether a chunk may have to do with text at all."""
    return _CONTENT.search(data) is not None


def alike(data: bytes, fields: bytes) -> Alike | None:
    """What later chunks may have in common with this one; None if there is more to it than text of choice 0.

    Args:
        data: of the event that brought it.
        fields: ours, as they are spliced in.
    """
    place = _CONTENT.search(data)
    if place is None or data[:1] != b"{" or data[-1:] != b"}" or b"\n" in data:
        return None
    before, after = data[: place.start(1)], data[place.end(1) :]
    try:
        chunk, probe = orjson.loads(data), orjson.loads(b"%b%b%b" % (before, _PROBE.encode(), after))
    except orjson.JSONDecodeError:
        return None
    delta = _plain_delta(chunk)
    if delta is None:
        return None
    delta["content"] = _PROBE
    return Alike(before, after, fields) if chunk == probe else None


def _plain_delta(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The delta of a chunk that only adds text to choice 0, and tells nothing else that anybody would want to know."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    if chunk.get("object") == "error" or any(chunk.get(name) for name in ("error", "usage", "x_groq")):
        return None
    choice = choices[0]
    delta = choice.get("delta")
    if choice.get("index", 0) != 0 or choice.get("finish_reason") or choice.get("message") is not None:
        return None
    if not isinstance(delta, dict) or not isinstance(delta.get("content"), str):
        return None
    return delta if {name for name, value in delta.items() if value is not None} <= _OF_A_PLAIN_DELTA else None
