"""A scripted model server that costs next to nothing: prebuilt answers behind a bare asyncio protocol.

    python -m tests.benchmarks.upstream PORT

`POST …/chat/completions`, `…/responses` and `…/messages` are answered at once. The model name is the script:
`scripted-<chunks>-<ms>` streams that many chunks, all in one write (0 ms) or one every so many milliseconds; without
`"stream":true` it gives one answer of about 1 KB. Every answer is numbered, so that no two conversations grow alike.
Anything else gets counters as JSON.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import cast

import httptools
import orjson
import uvloop

from tests.benchmarks.messages import words

ANSWER_CHARS = 640
EDGE_BYTES = 4096
"""The script and the stream flag stand within so many bytes of the start or the end of a body."""

_SCRIPT = re.compile(rb'"model" ?: ?"scripted-(\d+)-(\d+)"')
_STREAM = re.compile(rb'"stream" ?: ?true')
_USAGE = re.compile(rb'"include_usage" ?: ?true')

_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_IDENTITY = b'"id":"chatcmpl-scripted","created":1780000000,"model":"scripted","system_fingerprint":"fp_scripted",'
_ANSWER = (
    b'{"object":"chat.completion",' + _IDENTITY + b'"choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"Answer %08d. ' + orjson.dumps(words(ANSWER_CHARS, seed=7))[1:-1] + b'","refusal":null},'
    b'"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":150,"total_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}'
)
_CHUNK = (
    b'{"object":"chat.completion.chunk",' + _IDENTITY + b'"choices":[{"index":0,"delta":{%b},"logprobs":null,'
    b'"finish_reason":%b}]%b}'
)
_USAGE_CHUNK = (
    b'{"object":"chat.completion.chunk",' + _IDENTITY + b'"choices":[],"usage":{"prompt_tokens":%d,'
    b'"completion_tokens":%d,"total_tokens":%d}}'
)
_NOT_YET = b',"usage":null'
_RESPONSE = (
    b'{"id":"resp_%08d","object":"response","created_at":1780000000,"status":"%b","error":null,'
    b'"incomplete_details":null,"instructions":null,"max_output_tokens":null,"metadata":{},"model":"scripted",'
    b'"output":[%b],"parallel_tool_calls":true,"temperature":1.0,"text":{"format":{"type":"text"}},'
    b'"tool_choice":"auto","tools":[],"top_p":1.0,"usage":%b}'
)
_RESPONSE_USAGE = (
    b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0},"output_tokens":%d,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}'
)
_ITEM = b'{"id":"msg_%08d","type":"message","status":"%b","role":"assistant","content":[%b]}'
_PART = b'{"type":"output_text","annotations":[],"logprobs":[],"text":"%b"}'
_WORDS = orjson.dumps(words(ANSWER_CHARS, seed=7))[1:-1]


_MESSAGE = (
    b'{"id":"msg_%08d","type":"message","role":"assistant","model":"scripted","content":[%b],"stop_reason":%b,'
    b'"stop_sequence":null,"usage":{"input_tokens":%d,"output_tokens":%d}}'
)


def framed(data: bytes) -> bytes:
    """One server-sent event as one piece of a chunked body."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


@cache
def stream_frames(chunks: int, *, with_usage: bool) -> tuple[bytes, ...]:
    """The content frames of a stream; the first names the role."""
    usage = _NOT_YET if with_usage else b""
    roles = [b'"role":"assistant",', *[b""] * (chunks - 1)]
    deltas = [b'%b"content":"word%d "' % (role, number) for number, role in enumerate(roles)]
    return tuple(framed(_CHUNK % (delta, b"null", usage)) for delta in deltas)


def stream_end(chunks: int, prompt_tokens: int, *, with_usage: bool) -> bytes:
    """What follows the last content frame: finish reason, usage where asked for, `[DONE]`, the end of the body."""
    usage = _NOT_YET if with_usage else b""
    reported = framed(_USAGE_CHUNK % (prompt_tokens, chunks, prompt_tokens + chunks)) if with_usage else b""
    return framed(_CHUNK % (b"", b'"stop"', usage)) + reported + framed(b"[DONE]") + b"0\r\n\r\n"


def response_body(number: int, prompt_tokens: int) -> bytes:
    """A whole response."""
    item = _ITEM % (number, b"completed", _PART % (b"Answer %08d. %b" % (number, _WORDS)))
    return _RESPONSE % (number, b"completed", item, _RESPONSE_USAGE % (prompt_tokens, 150, prompt_tokens + 150))


def response_frames(number: int, chunks: int, prompt_tokens: int) -> list[bytes]:
    """The events of a streamed response and the end of the body."""
    item_id, text = b"msg_%08d" % number, b"".join(b"word%d " % place for place in range(chunks))
    place = b'"item_id":"%b","output_index":0,"content_index":0,' % item_id
    begun, item = _RESPONSE % (number, b"in_progress", b"", b"null"), _ITEM % (number, b"completed", _PART % text)
    usage = _RESPONSE_USAGE % (prompt_tokens, chunks, prompt_tokens + chunks)
    events = [
        (b"created", b'"response":' + begun),
        (b"in_progress", b'"response":' + begun),
        (b"output_item.added", b'"output_index":0,"item":' + _ITEM % (number, b"in_progress", b"")),
        (b"content_part.added", place + b'"part":' + _PART % b""),
        *[(b"output_text.delta", place + b'"delta":"word%d ","logprobs":[]' % one) for one in range(chunks)],
        (b"output_text.done", place + b'"text":"%b","logprobs":[]' % text),
        (b"content_part.done", place + b'"part":' + _PART % text),
        (b"output_item.done", b'"output_index":0,"item":' + item),
        (b"completed", b'"response":' + _RESPONSE % (number, b"completed", item, usage)),
    ]
    frames = []
    for sequence, (name, fields) in enumerate(events):
        event = b"response." + name
        data = b'{"type":"%b","sequence_number":%d,%b}' % (event, sequence, fields)
        frame = b"event: %b\ndata: %b\n\n" % (event, data)
        frames.append(b"%x\r\n%b\r\n" % (len(frame), frame))
    return [*frames, b"0\r\n\r\n"]


def message_body(number: int, prompt_tokens: int) -> bytes:
    """A whole message of Anthropic's API."""
    content = b'{"type":"text","text":"Answer %08d. %b"}' % (number, _WORDS)
    return _MESSAGE % (number, content, b'"end_turn"', prompt_tokens, 150)


def message_frames(number: int, chunks: int, prompt_tokens: int) -> list[bytes]:
    """The events of a streamed message and the end of the body."""
    delta = b'"index":0,"delta":{"type":"text_delta","text":"word%d "}'
    events = [
        (b"message_start", b'"message":' + _MESSAGE % (number, b"", b"null", prompt_tokens, 1)),
        (b"content_block_start", b'"index":0,"content_block":{"type":"text","text":""}'),
        *[(b"content_block_delta", delta % one) for one in range(chunks)],
        (b"content_block_stop", b'"index":0'),
        (
            b"message_delta",
            b'"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":%d}' % chunks,
        ),
        (b"message_stop", b""),
    ]
    frames = []
    for name, fields in events:
        frame = b'event: %b\ndata: {"type":"%b"%b%b}\n\n' % (name, name, b"," if fields else b"", fields)
        frames.append(b"%x\r\n%b\r\n" % (len(frame), frame))
    return [*frames, b"0\r\n\r\n"]


class Counters:
    """What the server has seen."""

    def __init__(self) -> None:
        self.requests = 0
        self.connections = 0


class ScriptedModel(asyncio.Protocol):
    """One connection, kept alive; requests one after another."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._url = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._counters.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._body.clear()
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"POST" and self._url.endswith(b"/chat/completions"):
            self._answer(b"".join(self._body))
        elif self._parser.get_method() == b"POST" and self._url.endswith(b"/responses"):
            self._respond(b"".join(self._body), response_body, response_frames)
        elif self._parser.get_method() == b"POST" and self._url.endswith(b"/messages"):
            self._respond(b"".join(self._body), message_body, message_frames)
        else:
            counted = b'{"object":"list","data":[],"requests":%d,"connections":%d}'
            self._whole(counted % (self._counters.requests, self._counters.connections))

    def _answer(self, body: bytes) -> None:
        self._counters.requests += 1
        prompt_tokens = len(body) // 4
        edges = body if len(body) <= 2 * EDGE_BYTES else body[:EDGE_BYTES] + body[-EDGE_BYTES:]
        if _STREAM.search(edges) is None:
            self._whole(_ANSWER % (self._counters.requests, prompt_tokens, prompt_tokens + 150))
            return
        script = _SCRIPT.search(edges)
        chunks, milliseconds = (int(script[1]), int(script[2])) if script is not None else (20, 0)
        with_usage = _USAGE.search(edges) is not None
        frames = stream_frames(chunks, with_usage=with_usage)
        end = stream_end(chunks, prompt_tokens, with_usage=with_usage)
        if milliseconds:
            self._transport.write(_STREAM_HEAD)
            loop = asyncio.get_running_loop()
            self._paced(loop, frames, end, 0, loop.time(), milliseconds / 1000)
        else:
            self._transport.write(b"".join([_STREAM_HEAD, *frames, end]))

    def _respond(
        self,
        body: bytes,
        build_body: Callable[[int, int], bytes],
        build_frames: Callable[[int, int, int], list[bytes]],
    ) -> None:
        self._counters.requests += 1
        number, prompt_tokens = self._counters.requests, len(body) // 4
        if _STREAM.search(body) is None:
            self._whole(build_body(number, prompt_tokens))
            return
        script = _SCRIPT.search(body)
        chunks = int(script[1]) if script is not None else 20
        self._transport.write(b"".join([_STREAM_HEAD, *build_frames(number, chunks, prompt_tokens)]))

    def _paced(
        self,
        loop: asyncio.AbstractEventLoop,
        frames: tuple[bytes, ...],
        end: bytes,
        sent: int,
        start_seconds: float,
        pause_seconds: float,
    ) -> None:
        last = sent == len(frames) - 1
        self._transport.write(frames[sent] + end if last else frames[sent])
        if not last:
            due = start_seconds + (sent + 1) * pause_seconds
            self._timer = loop.call_at(due, self._paced, loop, frames, end, sent + 1, start_seconds, pause_seconds)

    def _whole(self, body: bytes) -> None:
        self._transport.write(_JSON_HEAD % len(body) + body)


async def serve(port: int) -> None:
    counters = Counters()
    server = await asyncio.get_running_loop().create_server(lambda: ScriptedModel(counters), "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
