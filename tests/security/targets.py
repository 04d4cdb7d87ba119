"""What is fuzzed: each target takes bytes that a client or a provider could send, and fails if a promise is broken.

The same targets run with few examples in every test run (`test_targets`) and guided by coverage, by hand (`fuzz`).
Whatever comes, the answer is a value or an error of ours; anything else, slowness included, is a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, get_args

import msgspec
import orjson

from app.api.chat_request_parser import parse_chat_request
from app.api.request_options import READ_HEADERS
from app.compaction.acceptance.value_finding import MentionCollector
from app.compaction.capsule import CapsuleSealer
from app.compaction.summarizer.transcript import build_transcript_entries, render_fenced_transcript
from app.context.count.image_tokens import count_image_tokens
from app.context.count.tokenizers import Tokenizer
from app.conversation.conversation_types import LogMessage
from app.conversation.identity import compute_links_after_messages, compute_start_position, is_valid_conversation_id
from app.conversation.search_terms import extract_message_terms, extract_searchable_text
from app.conversations.history.readable_log import build_message_row
from app.conversations.items.item_building import build_items, parse_item_id
from app.conversations.items.item_parser import parse_items
from app.conversations.transfer import import_file_parser
from app.dialects.answer_format import Progress
from app.dialects.body.canonical_message import canonicalize_message
from app.dialects.body.message import ChatMessage, check_messages
from app.dialects.capsule_parts import split_at_capsules
from app.dialects.chat.stream_decoder import ChatStreamDecoder
from app.dialects.chat.stream_frames import DONE_FRAME, render_error_frames
from app.dialects.sse import SseDecoder, SseEvent
from app.errors import GatewayError, InvalidCapsule, InvalidRequest, UpstreamUnavailable
from app.pipeline.call.upstream_request_body import build_upstream_body
from app.pipeline.turn.chat_request import Caller
from app.upstream.http.decompression import STEP_OUTPUT_BYTES, Decompressor, NotCompressedAsAnnounced
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.protocols.overflow_detection import detect_overflow
from app.upstream.provider_contract import ModelDeployment, ProviderQuirks, UpstreamRequest
from tests.dialects.chat.test_stream_splicer import relayed
from tests.support.chat_counter import ChatCounter
from tests.upstream.http.test_answer_properties import answered

Target = Callable[[bytes], None]
fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
ADDED_FIELDS: Final = ("stream_options",)

CUT: Final = b"\xff\x00"
BROTLI_STEP_BYTES: Final = 1024 * 1024
"""Where a target that takes pieces has its input cut: in no text, and seldom found by chance."""
SMALL_EVENT_BYTES: Final = 256
CALLER: Final = Caller(tenant="t")
SEALER: Final = CapsuleSealer([bytes(32)])
LATIN_1: Final = "latin-1"


class _Letters(Tokenizer):
    """A tokenizer that never takes long: a token for each character."""

    def _load(self) -> Callable[[str], int]:
        return len

    def count(self, text: str) -> int:
        return len(text)


COUNTER: Final = ChatCounter(_Letters("letters"))
PROVIDER: Final = OpenAIProvider("p", "http://provider.test/v1")
REBUILDING: Final = ModelDeployment(
    PROVIDER,
    "other",
    quirks=ProviderQuirks(
        merge_same_role=True,
        developer_to_system=True,
        alternate_roles=True,
        reasoning="tool_loop",
        tool_call_ids="alnum9",
        tool_result_names=True,
        split_calls=True,
        empty_content="text",
        flatten_text=True,
        message_fields=("name",),
        drop_nulls=True,
    ),
)
"""A provider that wants everything otherwise."""


def chat_request(data: bytes) -> None:
    """A request with headers: refused with a 4xx that can be written, or read to its last message."""
    head, _, body = data.rpartition(CUT)
    headers = dict(_headers(head))
    try:
        request = parse_chat_request(body, headers, CALLER, "req_1")
        assert request.model
        requested_id = request.continuation.conversation_id
        assert requested_id is None or is_valid_conversation_id(requested_id)
        for raw in request.raw_messages:
            _look_at(bytes(raw))
        check_messages(
            [ChatMessage(bytes(raw)) for raw in request.raw_messages], first_index=0, may_begin_with_result=False
        )
        assert fields_of(build_upstream_body(request, None, REBUILDING).body).keys() <= {
            *request.raw_fields,
            *ADDED_FIELDS,
        }
    except GatewayError as error:
        _check_refusal(error)


def message(data: bytes) -> None:
    """One message in every room that looks into messages."""
    try:
        _look_at(data)
    except GatewayError as error:
        _check_refusal(error)


def capsules(data: bytes) -> None:
    """The capsules of a message: nothing opens, and what is not a capsule stays."""
    try:
        for part in split_at_capsules(data):
            if isinstance(part, bytes):
                continue
            try:
                SEALER.open(part.text, tenant="t", end_user=None, param="input")
            except InvalidCapsule:
                continue
            else:
                raise AssertionError("a capsule that was never sealed was opened")
    except GatewayError as error:
        _check_refusal(error)


def canonical_form(data: bytes) -> None:
    """The canonical form of any JSON that Python reads: one value, one form, whatever the order of keys."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        form = canonicalize_message(value)
        assert form == canonicalize_message(dict(reversed(value.items())))
        assert form == canonicalize_message(value)


def events(data: bytes) -> None:
    """A stream of events: the same however it is cut, the same bytes, and never more held than is allowed."""
    stream = data.replace(CUT, b"")
    decoder = SseDecoder("p", max_event_bytes=SMALL_EVENT_BYTES)
    found: list[SseEvent] = []
    try:
        for piece in data.split(CUT):
            found += decoder.feed(piece)
            assert decoder._buffered_bytes <= SMALL_EVENT_BYTES
        found += decoder.flush()
    except UpstreamUnavailable:
        return
    assert b"".join(event.raw for event in found) == stream
    whole = SseDecoder("p")
    assert [*whole.feed(stream), *whole.flush()] == found


def stream(data: bytes) -> None:
    """A provider's stream on its way to a client: what goes out is events of one JSON object each, with our fields."""
    early = Progress(completion_id="c", created=1, model="m", style="chunk", fields=b'"f":1')
    for begun in (None, early):
        frames, relay = relayed(data.split(CUT), early=begun)
        if relay.stream_failure is not None:
            frames += render_error_frames(relay.stream_failure).removesuffix(DONE_FRAME)
        for frame in frames.split(b"\n\n")[:-1]:
            assert frame.startswith(b"data: "), frame
            assert b"\n" not in frame, frame
            assert b"\r" not in frame, frame
            assert _is_object(frame[6:]), frame
        _kept(relay.answer)


def completion(data: bytes) -> None:
    """A provider's whole answer."""
    collector = ChatStreamDecoder()
    try:
        collector.add_whole(data)
        _kept(collector)
    except GatewayError as error:
        orjson.dumps(error.build_body())
    detect_overflow(400, data)


def answer(data: bytes) -> None:
    """A provider's HTTP: an answer whose headers end no line, or an error of ours."""
    said = answered([piece for piece in data.split(CUT) if piece], ends=True)
    if isinstance(said, tuple):
        status, headers, _ = said
        assert 200 <= status <= 999
        for text in (*headers, *headers.values()):
            assert not any(character in text for character in "\r\n\0"), text


def inflated(data: bytes) -> None:
    """A body that is compressed unasked: pieces of bounded size, or an error."""
    for encoding in ("gzip", "deflate", "zstd", "br"):
        inflater = Decompressor(encoding)
        # Brotli's decoder takes its limit for a hint: it fills the block that it has begun.
        longest = BROTLI_STEP_BYTES if encoding == "br" else STEP_OUTPUT_BYTES
        try:
            for piece in data.split(CUT):
                assert all(0 < len(made) <= longest for made in inflater.decompress(piece))
        except NotCompressedAsAnnounced:
            continue


def head(data: bytes) -> None:
    """Path, query and headers on their way to a provider: one request below its base URL, or refused."""
    path, _, rest = data.decode(LATIN_1).partition("\n")
    query, _, rest = rest.partition("\n")
    named = dict(line.partition(":")[::2] for line in rest.split("\r"))
    call = UpstreamRequest(f"/{path}", body=b"{}", authorization=named.pop("key", None), headers=named, query=query)
    try:
        made = PROVIDER._build_head(call)
    except GatewayError as error:
        _check_refusal(error)
        return
    assert made.method == "POST"
    assert made.target.startswith("/v1/")
    assert not set(made.target) & set(" \r\n")
    assert "/../" not in f"{made.target.partition('?')[0]}/"
    assert [
        line for line in made.headers.items() if set("".join(line)) & set("\r\n\0") or set(line[0]) & set(": ")
    ] == []
    assert "host" in made.headers
    assert not {"content-length", "transfer-encoding", "connection"} & made.headers.keys()


def imported(data: bytes) -> None:
    """A file of conversations, of whichever format it may be."""
    for wanted in get_args(import_file_parser.Format):
        try:
            found = import_file_parser.parse_import_file(data, wanted)
            for conversation in found:
                for one in conversation.messages:
                    _look_at(one.message.raw)
        except InvalidRequest as error:
            _check_refusal(error)


def items(data: bytes) -> None:
    """Items that a client adds, and ids of items."""
    parse_item_id(data.decode(LATIN_1))
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    try:
        for one in parse_items(value if isinstance(value, list) else [value], open_calls=None):
            _look_at(one.raw)
    except InvalidRequest as error:
        _check_refusal(error)


def image(data: bytes) -> None:
    """An image's address, which says how large it is."""
    assert 0 <= count_image_tokens(data.decode(LATIN_1)) < 10**6


TARGETS: Final[dict[str, Target]] = {
    target.__name__: target
    for target in (
        *(chat_request, message, canonical_form, events, stream, completion, answer, inflated, head, imported),
        *(items, image, capsules),
    )
}


def _look_at(raw: bytes) -> None:
    said = ChatMessage(raw)
    body = said.body
    check_messages([said], first_index=0, may_begin_with_result=True)
    (position,) = compute_links_after_messages([said], compute_start_position("t"))
    tokens = COUNTER.count_message(body)
    assert tokens >= 0
    entry = LogMessage(
        seq=0,
        message=said,
        link=position.link,
        skeleton=position.skeleton_link,
        in_skeleton=position.is_in_skeleton,
        tokens=tokens,
        tokens_total=tokens,
        answered=False,
    )
    extract_message_terms(said)
    assert "\0" not in extract_searchable_text(said) or b"\\u0000" in raw
    orjson.dumps([build_items(entry), build_message_row(entry, 0, is_pinned=False, summary_id=None)])
    MentionCollector().add_message(entry)
    render_fenced_transcript(build_transcript_entries([entry]), 100, len)


def _is_object(data: bytes) -> bool:
    """Whether it is a JSON object; one with a half of a character, a name that is no UTF-8, or nested more deeply than
    this can look is passed on as well."""
    try:
        return bool(fields_of(data))
    except msgspec.DecodeError:
        return isinstance(json.loads(data), dict)
    except (RecursionError, UnicodeDecodeError):
        return data.startswith(b"{") and data.endswith(b"}")


def _kept(collector: ChatStreamDecoder) -> None:
    """What a provider said, as it is stored."""
    for said in [collector.build_message(), *collector.build_alternatives()]:
        try:
            _look_at(ChatMessage.from_body(said).raw)
        except InvalidRequest as error:
            _check_refusal(error)


def _headers(head: bytes) -> Iterator[tuple[str, str]]:
    names: Sequence[str] = sorted(READ_HEADERS)
    for line in head.split(b"\n"):
        if line:
            yield names[line[0] % len(names)], line[1:].decode(LATIN_1)


def _check_refusal(error: GatewayError) -> None:
    assert 400 <= error.status < 500, error
    said: dict[str, Any] = orjson.loads(orjson.dumps(error.build_body()))["error"]
    assert set(said) == {"message", "type", "param", "code"}
