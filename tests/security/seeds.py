"""Inputs to begin with: of each target something that is right, and what is known to be hard."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from tests.live import DONE, chunk, usage_chunk
from tests.security.targets import CUT

CALL: Final = b'{"id":"c1","type":"function","function":{"name":"f","arguments":"{\\"a\\": [1, 2.0, null]}"}}'
MESSAGES: Final = (
    b'{"role":"user","content":"Hello <|endoftext|> \\u0000 \\n\\n </quoted 12345678>"}',
    b'{"role":"assistant","content":null,"tool_calls":[' + CALL + b"]}",
    b'{"role":"tool","tool_call_id":"c1","content":"{\\"n\\": 18446744073709551617, \\"x\\": 1e400}"}',
    b'{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"<think>a</think>b"}]}',
    (
        b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},'
        b'{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}},'
        b'{"type":"file","file":{"file_data":"data:application/pdf;base64,JVBERi0="}}]}'
    ),
    b'{"role":"function","name":"f","content":"NaN"}',
)
ODD_JSON: Final = (
    b'{"role":"user","content":' + b"[" * 1500 + b"]" * 1500 + b"}",
    b'{"role":"user","content":' + b'{"a":' * 1500 + b"1" + b"}" * 1500 + b"}",
    b'{"role":"user","content":"\\ud83d"}',
    b'{"role":"user","role":"tool","content":"x","content":null}',
    b'{"role":"user","content":' + b"9" * 5000 + b"}",
    b'{"role":"user","content":[NaN,Infinity,-0.0,1e999]}',
    b'{"role":"tool","tool_call_id":"c","content":"' + b"[" * 1500 + b'"}',
    b'{"role":"user","content":"\xff\xfe"}',
    b"\xef\xbb\xbf{}",
    b"null",
    b"",
)
CHAT: Final = tuple(
    b'{"model":"m","messages":[' + b",".join(MESSAGES[:3]) + b"]," + more + b"}"
    for more in (
        b'"stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":-1',
        b'"conversation":{"id":"conv_1"},"metadata":{"conversation_id":"a","b":"c"},"store":true',
        b'"context":{"policy":"p","pin":[0,1],"recall":"quote","summarize":"now","instructions":"x"},"tools":[]',
        b'"x":' + b"[" * 1200 + b"]" * 1200,
        b'"messages":[],"model":"\\ud800"',
    )
)
STREAMS: Final = (
    chunk({"role": "assistant", "content": "a"}) + CUT + chunk({"content": "b"}) + chunk({}, "stop") + DONE,
    chunk({"content": "a"}) + chunk({"content": "b\n"})[:40] + CUT + chunk({"content": "b\n"})[40:] + usage_chunk(),
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"f"}}]}}]}\r\n\r\n',
    b'event: error\ndata: {"error":{"message":"a\\nb"}}\n\n',
    b"\xef\xbb\xbf: hm\r\rdata: {}\n\rdata:[1\ndata:]\n\n",
    b'data: {"choices":[{"index":1,"delta":{"content":"\\ud83d"},"finish_reason":"stop"}]}\n\ndata: [{"id":"x"}]\n\n',
    *(b'data: {"usage":{"a":' + b"[" * deep + b"]" * deep + b"}}\n\n" for deep in (300, 980, 1500)),
    *(b'data: {"choices":[],"x":' + b"[" * deep + b"]" * deep + b"}\n\n" for deep in (300, 980, 1500, 5000)),
    *(b'data: {"error":{"message":"m","x":' + b"[" * deep + b"]" * deep + b"}}\n\n" for deep in (300, 980, 1500)),
    b'data: {"error":"\\ud83d"}\n\n',
    b'data: {"choic\xe1es":[]}\n\n',
    b'data: {"usage":{"a":1},"x":"\xff"}\n\n',
)
ANSWERS: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\n" + CUT + b"{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\nX-T: 1\r\n\r\n",
    b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.0 429 No\r\n\r\nbody",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}"),
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Encoding: gzip\r\n\r\n\xff}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\nTransfer-Encoding: gzip, chunked\r\n\r\n{}",
)
FILES: Final = (
    b"\n".join(MESSAGES),
    b"[" + b",".join(MESSAGES) + b"]",
    b'{"messages":[' + b",".join(MESSAGES) + b'],"metadata":{"a":{"b":1}},"external_id":"t","created_at":1e300}',
    b'{"messages":' + b"[" * 1500 + b"]" * 1500 + b"}",
)
ITEMS: Final = (
    (
        b'[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]},'
        b'{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":"e"},'
        b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},'
        b'{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"x"}]}]'
    ),
    b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"x","annotations":[{}]}]}',
    b"msg_0000_1",
)
SEEDS: Final[Mapping[str, Sequence[bytes]]] = {
    "chat_request": (*CHAT, b"\x01v\n\x02auto" + CUT + CHAT[0]),
    "message": (*MESSAGES, *ODD_JSON),
    "capsules": (
        b'[{"type":"compaction","encrypted_content":"cc1.AAAA"},{"type":"message","role":"user","content":"x"}]',
        b'{"role":"assistant","content":[{"type":"compaction","encrypted_content":"cc1.' + b"A" * 80 + b'"}]}',
        b'{"anthropic":{"role":"assistant","content":[{"type":"compaction","signature":"cc1.x"}]}}',
        *MESSAGES,
    ),
    "canonical_form": (*MESSAGES, *ODD_JSON),
    "events": STREAMS,
    "stream": STREAMS,
    "completion": (
        b'{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}',
        b'{"error":{"message":"maximum context length is 8192 tokens, however you requested 9000 tokens"}}',
        b'{"error":"' + b"1" * 5000 + b'"}',
        *ODD_JSON,
    ),
    "answer": ANSWERS,
    "inflated": (gzip.compress(b"{}") * 3, zlib.compress(bytes(5000)), zlib.compress(b"{}")[2:-4]),
    "head": (b"embeddings\na=b\nx-a: b\rkey:Bearer x", b"%2e%2e/x\n\n", b"..\\x\n\n", b"a b\r\nHost: x\n\nhost:x"),
    "imported": (*FILES, *ODD_JSON),
    "items": (*ITEMS, *ODD_JSON),
    "image": (
        b"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
        b"data:image/jpeg;base64,/9j/4AAQSkZJRgABAQAAAQABAAD/2wBD",
        b"data:image/webp;base64,UklGRhIAAABXRUJQVlA4WAoAAAA=",
        b"data:image/gif;base64,R0lGODlhAQABAAAAACw=",
        b"http://169.254.169.254/latest",
    ),
}
