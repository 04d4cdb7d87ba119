"""The upstream's answer on its way to the client: bytes go through, a collector listens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import orjson

from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, drop_tracebacks
from app.pipeline.call.first_event import StreamReply, build_bad_answer_error
from app.pipeline.respond.context_status import ContextReport
from app.pipeline.respond.stream_frames import CompactionProgressStream, decode_chunk, encode_chunk, splice_fields
from app.upstream.protocols.sse import DONE_DATA, SseEvent
from app.upstream.protocols.stream_collector import StreamCollector
from app.upstream.provider import ModelDeployment

BAD_GATEWAY: Final = 502
DRAIN_TIMEOUT_SECONDS: Final = 0.1
"""After `[DONE]`: a connection whose end comes this soon can be used again."""
ERROR_EVENT: Final = b"error"
IDENTITY_FIELDS: Final[tuple[str, ...]] = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""What all chunks of a stream have in common."""
MAX_TEMPLATES: Final = 8
"""How often a stream's chunks may change their form before each is looked into."""
EVENT_END: Final = b"\n\n"
MAX_HELD_BYTES: Final = 65_536
"""Of an event whose end has not come: more than that is one for the decoder alone."""


class StreamRelay:
    """A stream on its way through: what to send for what has come. Nothing is awaited here.

    Once it is over `stream_failure` says why it is not whole, and `collector` what it amounted to.

    Attributes:
        has_ended: nothing more is relayed: the end has come, or a failure.
        is_upstream_done: the upstream has said that it is done, or what it said ends the answer.
    """

    def __init__(
        self,
        stream_reply: StreamReply,
        report: ContextReport,
        *,
        include_usage: bool,
        progress_stream: CompactionProgressStream | None,
        source: str,
    ) -> None:
        self._stream_reply = stream_reply
        self._decoder = stream_reply.decoder
        self._include_usage = include_usage
        self._progress_stream = progress_stream
        self._source = source
        self._fields = report.render_status_fields()
        self._report = report
        self._chunk_template: ChunkTemplate | None = None
        self._last_chunk: bytes | None = None
        """The provider's chunk that told of the end."""
        self._may_hold_partial_event = True
        """The decoder may hold the beginning of an event."""
        self._templates_left = MAX_TEMPLATES if progress_stream is None else 0
        self.is_upstream_done = False
        self.has_ended = False
        self.collector = StreamCollector(source)
        self.stream_failure: GatewayError | None = None

    @property
    def completion_id(self) -> str | None:
        """The completion's id as the client was told."""
        return self.collector.id if self._progress_stream is None else self._progress_stream.completion_id

    def relay_first_events(self) -> bytes:
        """The client's frames for what had come before the stream was relayed."""
        return self._render_frames(self._stream_reply.first_events)

    def feed(self, piece: bytes) -> bytes:
        """The client's frames for what has come, errors and the end not among them."""
        if self._may_hold_partial_event and self._chunk_template is not None:
            partial_event = self._decoder.take_unfinished(MAX_HELD_BYTES)
            if partial_event is None:
                return self._relay_event_by_event(piece)
            self._may_hold_partial_event = False
            piece = partial_event + piece
        template = self._chunk_template
        match = None if template is None else template.match_chunks(piece)
        if match is None:
            return self._relay_event_by_event(piece)
        self.collector.add_text(match.text, match.chunk_count)
        return (
            match.frames + self._relay_event_by_event(match.remaining_bytes) if match.remaining_bytes else match.frames
        )

    def _relay_event_by_event(self, piece: bytes) -> bytes:
        """The client's frames for events that are looked into, until it is known what the others look like."""
        template_before, end = self._chunk_template, piece.find(EVENT_END) + len(EVENT_END)
        if self._templates_left and len(EVENT_END) < end < len(piece):
            frames = self._render_frames(self._decoder.feed(piece[:end]))
            if self.has_ended:
                return frames
            if self._chunk_template is not template_before:
                return frames + self.feed(piece[end:])
            piece = piece[end:]
        else:
            frames = b""
        self._may_hold_partial_event = not piece.endswith(EVENT_END)
        rest = self._render_frames(self._decoder.feed(piece))
        return frames + rest if frames else rest

    def finish(self) -> bytes:
        """The client's frames for what was held back until the upstream's end."""
        return self._render_frames(self._decoder.flush())

    def close(self, stream_error: UpstreamUnavailable | None = None) -> None:
        """Nothing more comes: the upstream has ended, or this broke it off."""
        if stream_error is not None:
            drop_tracebacks(stream_error)
        if self.stream_failure is None and not self.collector.is_complete:
            self.stream_failure = stream_error or UpstreamUnavailable(
                f"The stream of {self._source!r} ended before its answer did."
            )

    def _render_frames(self, events: list[SseEvent]) -> bytes:
        """The client's frames for some events, up to the first that is a failure or the end."""
        frames = []
        for event in events:
            data = event.data.strip() if event.data else b""
            if not data:
                continue
            if data == DONE_DATA:
                self.is_upstream_done = self.has_ended = True
                break
            try:
                frames.append(self._render_frame(data, event.name))
            except UpstreamUnavailable as error:
                drop_tracebacks(error)
                self.stream_failure = None if self.collector.is_complete else error
                self.is_upstream_done = self.has_ended = True
            if self.has_ended:
                break
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _render_frame(self, data: bytes, name: bytes) -> bytes:
        """The client's frame for one upstream event; empty for what the client is not to see."""
        collector = self.collector
        was_complete = collector.is_complete
        usage_before = collector.usage
        collector.add_chunk(data)
        if collector.error is not None or name == ERROR_EVENT:
            self.stream_failure = UpstreamRefused(BAD_GATEWAY, collector.error_data or data, {})
            self.has_ended = True
            return b""
        if not self._include_usage and collector.usage is not usage_before and _is_usage_only_chunk(data):
            return b""
        fields = self._fields
        if collector.is_complete and not was_complete:
            self._last_chunk, fields = data, self._report.render_all_fields(self._report.build_context())
        if self._progress_stream is not None:
            return self._progress_stream.render_upstream_chunk(data, fields)
        if self._templates_left and not was_complete and may_hold_text(data):
            self._templates_left -= 1
            self._chunk_template = build_chunk_template(data, self._fields) or self._chunk_template
        if b"\n" in data:
            data = data.replace(b"\n", b" ")
        return b"data: " + splice_fields(data, fields) + b"\n\n"

    def render_amendment(self, report: ContextReport) -> bytes:
        """A chunk without text, for what became true of the answer after its last chunk was sent."""
        if self._last_chunk is None:
            return b""
        last_chunk = decode_chunk(self._last_chunk)
        identity = {name: last_chunk[name] for name in IDENTITY_FIELDS if name in last_chunk}
        data = encode_chunk({**identity, "choices": [{"index": 0, "delta": {}, "finish_reason": None}]})
        fields = report.render_all_fields(report.build_context())
        if self._progress_stream is not None:
            return self._progress_stream.render_upstream_chunk(data, fields)
        return b"data: " + splice_fields(data, fields) + b"\n\n"


async def drain_stream(pieces: AsyncIterator[bytes]) -> None:
    """Read on to the end of an answer whose last event has come, if it is not far."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
            async for _ in pieces:
                pass
    except TimeoutError:
        return


def collect_whole_answer(body: bytes, deployment: ModelDeployment) -> StreamCollector:
    """What an answer of a deployment that is not streamed amounts to.

    Raises:
        UpstreamUnavailable: it is not a chat completion.
        UpstreamRefused: it is an error in spite of its status.
    """
    collector = StreamCollector(deployment.key)
    try:
        collector.add_completion(body)
    except UpstreamUnavailable as error:
        raise build_bad_answer_error(deployment, "answered with something that is not a chat completion") from error
    if collector.error is not None:
        raise UpstreamRefused(BAD_GATEWAY, body, {"content-type": "application/json"})
    if not collector.has_content and collector.finish_reason is None:
        raise build_bad_answer_error(deployment, "answered with something that is not a chat completion")
    return collector


def _is_usage_only_chunk(data: bytes) -> bool:
    """Whether a chunk carries usage and no choice: it came because we asked for it."""
    return not decode_chunk(data).get("choices")


_CONTENT_PATTERN: Final = re.compile(rb'"content"\s*:\s*"((?:[^"\\]|\\.)*)"')
_PLAIN_DELTA_FIELDS: Final = {"content", "role"}
_PROBE_TEXT: Final = "x"


class TemplateMatch(msgspec.Struct, frozen=True):
    """What was recognised at the beginning of a piece.

    Attributes:
        frames: the chunks, with our fields.
        remaining_bytes: what follows them in the piece.
    """

    text: str
    chunk_count: int
    frames: bytes
    remaining_bytes: bytes


class ChunkTemplate:
    """The bytes that chunks have in common.

    Args:
        before, after: those before a chunk's text and behind it, in an event of its own.
        fields: ours, for each chunk.
    """

    __slots__ = ("_after_text", "_after_with_fields", "_before_text", "_between_texts")

    def __init__(self, before_text: bytes, after_text: bytes, fields: bytes) -> None:
        self._before_text = b"data: " + before_text
        self._after_text = after_text + b"\n\n"
        self._after_with_fields = splice_fields(after_text, fields) + b"\n\n"
        self._between_texts = self._after_text + self._before_text

    def match_chunks(self, piece: bytes) -> TemplateMatch | None:
        """As many chunks of this kind as a piece begins with; None if they cannot be told by their bytes alone."""
        before_text, after_text = self._before_text, self._after_text
        end = piece.rfind(after_text)
        if end < 0 or not piece.startswith(before_text):
            return None
        matched, match_end = piece[len(before_text) : end], end + len(after_text)
        rest = b"" if match_end == len(piece) else piece[match_end:]
        try:
            if len(matched) <= len(self._between_texts):
                return TemplateMatch(orjson.loads(b'"%b"' % matched), 1, piece[:end] + self._after_with_fields, rest)
            texts = matched.split(self._between_texts)
            text = _join_json_texts(texts)
        except ValueError:
            return None
        return TemplateMatch(text, len(texts), piece[:match_end].replace(after_text, self._after_with_fields), rest)


def _join_json_texts(texts: list[bytes]) -> str:
    """What the insides of JSON strings come to, one behind the other.

    Raises:
        ValueError: one of them is no such thing.
    """
    joined = b"".join(texts)
    if joined.isascii() and (b"\\" not in joined or _has_whole_escapes(texts, joined)):
        return str(orjson.loads(b'"%b"' % joined))
    return "".join([orjson.loads(b'"%b"' % text) for text in texts])


def _has_whole_escapes(texts: list[bytes], joined: bytes) -> bool:
    """Whether no escape can reach from one text into the next."""
    return b"\\u" not in joined and b"\\\n" not in b"\n".join(texts)


def may_hold_text(data: bytes) -> bool:
    """Whether a chunk may have to do with text at all."""
    return _CONTENT_PATTERN.search(data) is not None


def build_chunk_template(data: bytes, fields: bytes) -> ChunkTemplate | None:
    """What later chunks may have in common with this one; None if there is more to it than text of choice 0.

    Args:
        data: of the event that brought it.
        fields: ours, as they are spliced in.
    """
    match = _CONTENT_PATTERN.search(data)
    if match is None or data[:1] != b"{" or data[-1:] != b"}" or b"\n" in data:
        return None
    before_text, after_text = data[: match.start(1)], data[match.end(1) :]
    try:
        chunk, probe = orjson.loads(data), orjson.loads(b"%b%b%b" % (before_text, _PROBE_TEXT.encode(), after_text))
    except orjson.JSONDecodeError:
        return None
    delta = _find_plain_delta(chunk)
    if delta is None:
        return None
    delta["content"] = _PROBE_TEXT
    return ChunkTemplate(before_text, after_text, fields) if chunk == probe else None


def _find_plain_delta(chunk: dict[str, Any]) -> dict[str, Any] | None:
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
    return delta if {name for name, value in delta.items() if value is not None} <= _PLAIN_DELTA_FIELDS else None
