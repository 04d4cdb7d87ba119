"""Relays the upstream's stream to the client, mostly without decoding it, and collects the answer for the store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import orjson

from app.dialects.chat.stream_collector import StreamCollector
from app.dialects.chat.stream_frames import CompactionProgressStream, decode_chunk, encode_chunk, splice_fields
from app.dialects.sse import DONE_DATA, SseEvent
from app.errors import GatewayError, UpstreamRefused, UpstreamUnavailable, drop_tracebacks
from app.pipeline.call.first_event import StreamReply, build_bad_answer_error
from app.pipeline.respond.context_status import ContextReport
from app.upstream.provider_contract import ModelDeployment

BAD_GATEWAY: Final = 502
DRAIN_TIMEOUT_SECONDS: Final = 0.1
"""How long to wait after `[DONE]` for the end of the response, so that its connection can be used again."""
ERROR_EVENT: Final = b"error"
IDENTITY_FIELDS: Final[tuple[str, ...]] = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""Fields that are equal in all chunks of a stream."""
MAX_TEMPLATES: Final = 8
"""How many chunk templates are built for a stream. A stream whose chunks change their form more often is decoded
chunk by chunk."""
EVENT_END: Final = b"\n\n"
MAX_HELD_BYTES: Final = 65_536
"""A partial event above this size stays in the decoder: joining it with each new piece would cost more than the
template saves."""


class StreamRelay:
    """Turns the bytes of the upstream's stream into the client's frames. Does no I/O and never waits.

    Attributes:
        collector: the answer, as far as it has come.
        has_ended: the end of the stream or a failure has come; nothing more is relayed.
        is_upstream_done: the upstream has sent `[DONE]`, or data that cannot be part of an answer.
        stream_failure: why the answer is not whole; None while there is no failure.
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
        """The provider's chunk that completed the answer."""
        self._may_hold_partial_event = True
        """Whether the decoder may hold the beginning of an event."""
        # After the progress of a compaction each chunk gets our identity, so each must be decoded.
        self._templates_left = MAX_TEMPLATES if progress_stream is None else 0
        self.is_upstream_done = False
        self.has_ended = False
        self.collector = StreamCollector(source)
        self.stream_failure: GatewayError | None = None

    @property
    def completion_id(self) -> str | None:
        """The completion's id in the client's frames."""
        return self.collector.id if self._progress_stream is None else self._progress_stream.completion_id

    def relay_first_events(self) -> bytes:
        """Renders the frames for the events that came before the relay began."""
        return self._render_frames(self._stream_reply.first_events)

    def feed(self, piece: bytes) -> bytes:
        """Renders the frames for the next bytes of the stream, without error events and `[DONE]`.

        A piece that consists of chunks of the known form is rewritten by its bytes alone.
        """
        # A template compares whole events, so the beginning that the decoder holds must come back first.
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
        """Renders the frames for events that are decoded one by one.

        If the first event yields a new chunk template, the rest of the piece goes through the template.
        """
        # `find` returns -1 without an event's end: `end` is then not above the length of EVENT_END, and the test below
        # fails.
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

    def flush(self) -> bytes:
        """Renders the frames for an event that the upstream's end cut off from its blank line."""
        return self._render_frames(self._decoder.flush())

    def record_stream_end(self, stream_error: UpstreamUnavailable | None = None) -> None:
        """Notes that no more bytes come, and that the answer is incomplete if its finish reason is missing.

        Args:
            stream_error: the error that broke the stream off; None if the upstream ended it.
        """
        if stream_error is not None:
            drop_tracebacks(stream_error)
        # A complete answer stands even if the connection broke afterwards: only `[DONE]` or the usage is missing.
        if self.stream_failure is None and not self.collector.is_complete:
            self.stream_failure = stream_error or UpstreamUnavailable(
                f"The stream of {self._source!r} ended before the answer was complete."
            )

    def _render_frames(self, events: list[SseEvent]) -> bytes:
        """Renders the frames for events, up to the first failure or the end."""
        frames = []
        for event in events:
            data = event.data.strip() if event.data else b""
            # Comments and keep-alives have no data. They are for our connection, not for the client's.
            if not data:
                continue
            if data == DONE_DATA:
                self.is_upstream_done = self.has_ended = True
                break
            try:
                frames.append(self._render_frame(data, event.name))
            except UpstreamUnavailable as error:
                drop_tracebacks(error)
                # Some servers append data that is not JSON after the answer. The client has the answer by then.
                self.stream_failure = None if self.collector.is_complete else error
                self.is_upstream_done = self.has_ended = True
            if self.has_ended:
                break
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def _render_frame(self, data: bytes, name: bytes) -> bytes:
        """Renders the frame for one upstream event; empty if the client must not see the event."""
        collector = self.collector
        was_complete = collector.is_complete
        usage_before = collector.usage
        collector.add_chunk(data)
        if collector.error is not None or name == ERROR_EVENT:
            # The HTTP status is already 200; 502 is what the failure would have been.
            self.stream_failure = UpstreamRefused(BAD_GATEWAY, collector.error_data or data, {})
            self.has_ended = True
            return b""
        # The gateway asks for usage in each stream. The client did not, so it must not get a chunk without choices.
        if not self._include_usage and collector.usage is not usage_before and _is_usage_only_chunk(data):
            return b""
        fields = self._fields
        if collector.is_complete and not was_complete:
            # `context` comes with the chunk that completes the answer: the searches of the model are known only then.
            self._last_chunk, fields = data, self._report.render_all_fields(self._report.build_context_object())
        if self._progress_stream is not None:
            return self._progress_stream.render_upstream_chunk(data, fields)
        if self._templates_left and not was_complete and may_hold_text(data):
            self._templates_left -= 1
            self._chunk_template = build_chunk_template(data, self._fields) or self._chunk_template
        if b"\n" in data:
            # Data of several lines is legal in server-sent events. Many clients parse line by line; outside of strings,
            # where it cannot occur, a line break in JSON equals a space.
            data = data.replace(b"\n", b" ")
        return b"data: " + splice_fields(data, fields) + b"\n\n"

    def render_correction_chunk(self, report: ContextReport) -> bytes:
        """Renders a chunk without text that corrects our fields after the last chunk was sent; empty before that.

        Args:
            report: the facts of the answer as they are now.
        """
        if self._last_chunk is None:
            return b""
        last_chunk = decode_chunk(self._last_chunk)
        identity = {name: last_chunk[name] for name in IDENTITY_FIELDS if name in last_chunk}
        data = encode_chunk({**identity, "choices": [{"index": 0, "delta": {}, "finish_reason": None}]})
        fields = report.render_all_fields(report.build_context_object())
        if self._progress_stream is not None:
            return self._progress_stream.render_upstream_chunk(data, fields)
        return b"data: " + splice_fields(data, fields) + b"\n\n"


async def drain_stream(pieces: AsyncIterator[bytes]) -> None:
    """Reads the rest of a response whose last event has come, for at most `DRAIN_TIMEOUT_SECONDS`."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
            async for _ in pieces:
                pass
    except TimeoutError:
        return


def parse_whole_answer(body: bytes, deployment: ModelDeployment) -> StreamCollector:
    """Collects a deployment's answer that is not streamed.

    Raises:
        UpstreamUnavailable: the body is not a chat completion.
        UpstreamRefused: the body is an error although its status is 200.
    """
    collector = StreamCollector(deployment.key)
    try:
        collector.add_completion(body)
    except UpstreamUnavailable as error:
        raise build_bad_answer_error(deployment, "answered with something that is not a chat completion") from error
    if collector.error is not None:
        raise UpstreamRefused(BAD_GATEWAY, body, {"content-type": "application/json"})
    # A finish reason alone is an answer: a model may stop at once, with nothing to say.
    if not collector.has_content and collector.finish_reason is None:
        raise build_bad_answer_error(deployment, "answered with something that is not a chat completion")
    return collector


def _is_usage_only_chunk(data: bytes) -> bool:
    """Whether a chunk has usage and no choice: it was sent only because the gateway asked for usage."""
    return not decode_chunk(data).get("choices")


_CONTENT_PATTERN: Final = re.compile(rb'"content"\s*:\s*"((?:[^"\\]|\\.)*)"')
_PLAIN_DELTA_FIELDS: Final = {"content", "role"}
_PROBE_TEXT: Final = "x"


class TemplateMatch(msgspec.Struct, frozen=True):
    """The chunks of the known form at the beginning of a piece.

    Attributes:
        text: the text of all these chunks, joined.
        chunk_count: how many chunks these are.
        frames: the chunks with our fields.
        remaining_bytes: the bytes of the piece after these chunks.
    """

    text: str
    chunk_count: int
    frames: bytes
    remaining_bytes: bytes


class ChunkTemplate:
    """The bytes that the chunks of a stream share: everything but their text.

    A piece that matches the template is rewritten without decoding each chunk as JSON.

    Args:
        before_text, after_text: the bytes of a chunk's JSON before and after its text.
        fields: our fields, which are added to each chunk.
    """

    __slots__ = ("_after_text", "_after_with_fields", "_before_text", "_between_texts")

    def __init__(self, before_text: bytes, after_text: bytes, fields: bytes) -> None:
        self._before_text = b"data: " + before_text
        self._after_text = after_text + b"\n\n"
        self._after_with_fields = splice_fields(after_text, fields) + b"\n\n"
        self._between_texts = self._after_text + self._before_text

    def match_chunks(self, piece: bytes) -> TemplateMatch | None:
        """Matches the chunks at the beginning of a piece; None if the first one does not match, or a text is not
        JSON."""
        before_text, after_text = self._before_text, self._after_text
        # From the right: all chunks up to the last match are taken at once. Another kind of chunk in between ends up in
        # a "text", which then is not valid inside a JSON string.
        end = piece.rfind(after_text)
        if end < 0 or not piece.startswith(before_text):
            return None
        matched, match_end = piece[len(before_text) : end], end + len(after_text)
        rest = b"" if match_end == len(piece) else piece[match_end:]
        try:
            # Too short to hold the bytes between two texts, so this is one chunk, the most frequent case.
            if len(matched) <= len(self._between_texts):
                return TemplateMatch(orjson.loads(b'"%b"' % matched), 1, piece[:end] + self._after_with_fields, rest)
            texts = matched.split(self._between_texts)
            text = _join_json_texts(texts)
        except ValueError:
            return None
        return TemplateMatch(text, len(texts), piece[:match_end].replace(after_text, self._after_with_fields), rest)


def _join_json_texts(texts: list[bytes]) -> str:
    """Decodes the insides of JSON strings and joins the texts.

    Raises:
        ValueError: one of them is not valid inside a JSON string.
    """
    joined = b"".join(texts)
    # One decoding for all. Not for other than ASCII: bytes of one character, each invalid in its own chunk, could join
    # to a valid one.
    if joined.isascii() and (b"\\" not in joined or _has_whole_escapes(texts, joined)):
        return str(orjson.loads(b'"%b"' % joined))
    return "".join([orjson.loads(b'"%b"' % text) for text in texts])


def _has_whole_escapes(texts: list[bytes], joined: bytes) -> bool:
    """Whether no JSON escape reaches from one text into the next: then the joined text has the same value.

    `\\u` is excluded because halves of a surrogate pair in two texts would join to one character.
    """
    return b"\\u" not in joined and b"\\\n" not in b"\n".join(texts)


def may_hold_text(data: bytes) -> bool:
    """Whether a chunk has a `content` string, so that a template may be built from it."""
    return _CONTENT_PATTERN.search(data) is not None


def build_chunk_template(data: bytes, fields: bytes) -> ChunkTemplate | None:
    """Builds the template of a chunk; None if the chunk holds more than text of choice 0.

    Args:
        data: the data of the chunk's event.
        fields: our fields, as `splice_fields` takes them.
    """
    match = _CONTENT_PATTERN.search(data)
    if match is None or data[:1] != b"{" or data[-1:] != b"}" or b"\n" in data:
        return None
    before_text, after_text = data[: match.start(1)], data[match.end(1) :]
    try:
        chunk, probe = orjson.loads(data), orjson.loads(b"%b%b%b" % (before_text, _PROBE_TEXT.encode(), after_text))
    except orjson.JSONDecodeError:
        return None
    delta = _find_text_only_delta(chunk)
    if delta is None:
        return None
    delta["content"] = _PROBE_TEXT
    # The pattern may have found "content" elsewhere in the chunk. Replacing the text in the bytes must have the same
    # effect as replacing it in the delta.
    return ChunkTemplate(before_text, after_text, fields) if chunk == probe else None


def _find_text_only_delta(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """Finds the delta of a chunk that does nothing but add text to choice 0; None for any other chunk."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    # The collector must see each error, usage, finish reason and tool call; a matched chunk passes by without it.
    if chunk.get("object") == "error" or any(chunk.get(name) for name in ("error", "usage", "x_groq")):
        return None
    choice = choices[0]
    delta = choice.get("delta")
    if choice.get("index", 0) != 0 or choice.get("finish_reason") or choice.get("message") is not None:
        return None
    if not isinstance(delta, dict) or not isinstance(delta.get("content"), str):
        return None
    return delta if {name for name, value in delta.items() if value is not None} <= _PLAIN_DELTA_FIELDS else None
