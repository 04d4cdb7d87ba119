"""A protocol of a hundred lines, spoken by clients and by providers: what docs/adding-a-protocol.md tells how to write.

A message is the text `role: words`. A request is `{"model", "say": [messages], "stream"}`. An answer, or each event of
one, is `{"said": words}`, `{"end": reason, "cost": [prompt, answer]}` or `{"error": {…}}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Literal, Self

import orjson
import pytest

from app.assembly import gateway
from app.conversation.item import EditOperation, Item
from app.dialects import client_dialects, item_decoding, provider_dialects
from app.dialects.answer_decoding import Answer, AnswerDecoder
from app.dialects.answer_events import AnswerValue, Begin, Failure, Finish, Text, Usage
from app.dialects.answer_format import AnswerFormat, StoredAnswer
from app.dialects.assembled_answer import AssembledAnswer
from app.dialects.body.message import BodyMessage, decode_body
from app.dialects.body.message_edits import OPERATIONS, apply_operations
from app.dialects.body.message_fields import extract_text, read_schemas
from app.dialects.cache_marks import NO_CACHE_MARKS, CacheMarks
from app.dialects.client_dialects import ClientDialect
from app.dialects.item_decoding import decode_item
from app.dialects.provider_dialect import ProviderDialect, RenderedMessages, SelectedFields
from app.dialects.request_body import decode_body_fields, decode_field
from app.dialects.stream_relay import RelayOptions, StreamRelay
from app.errors import GatewayError
from app.pipeline.turn.chat_request import Caller, ChatRequest, DeliveryOptions
from app.upstream import provider_contract
from app.upstream.protocols.openai_provider import OpenAIProvider
from tests.live import Reply, ScriptedUpstream, completion, stream
from tests.support.gateway import World, long_history, user, world
from tests.support.raw_http import SUMMARY
from tests.support.responses_world import responses_world


class ToyMessage(BodyMessage):
    """Items: the JSON text as it came, and what the core reads of it."""

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        return cls(orjson.dumps(f"{body['role']}: {extract_text(body.get('content'))}"))

    @property
    def body(self) -> dict[str, Any]:
        if self._body is None:
            role, _, words = orjson.loads(self.raw).partition(": ")
            self._body = {"role": role, "content": words}
        return self._body

    def edit(self, operations: Sequence[EditOperation]) -> Self:
        return self.from_body(apply_operations(OPERATIONS, self.body, operations))


class ToyDecoder(AnswerDecoder):
    """Answers of providers."""

    protocol = "toy"
    words = ""

    def decode(self, data: bytes, name: bytes = b"") -> list[AnswerValue]:
        event, values = orjson.loads(data), list[AnswerValue]()
        if "error" in event:
            self.error_data, self.has_ended = data, True
            return [Failure(data)]
        if self.id is None:
            self.id = "toy-1"
            values.append(Begin(self.id))
        if words := event.get("said"):
            self.words += words
            self.has_content = True
            values.append(Text(words))
        if "end" in event:
            self.finish, (asked, said) = event["end"], event["cost"]
            self.usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
            self.is_complete = self.has_ended = True
            values += [Finish(event["end"]), Usage(self.usage)]
        return values

    def add_whole(self, body: bytes) -> None:
        self.whole = self.decode(body)

    def decode_whole(self, body: bytes) -> list[AnswerValue]:
        return self.whole

    def build_item(self) -> Item:
        return ToyMessage.from_body({"role": "assistant", "content": self.words})


class ToyProviderDialect(ProviderDialect):
    """Requests to providers. Fields that the protocol lacks are left out."""

    protocol = client_protocol = "toy"
    messages_field = "say"
    make_decoder = ToyDecoder

    def find_answer_start(self, data: bytes, name: bytes = b"") -> bytes | Literal[True] | None:
        return data if b'"error"' in data else True

    def select_fields(self, client: str, fields: Mapping[str, bytes], *, keeps_metadata: bool = True) -> SelectedFields:
        names = ("model", "stream", "say")
        return SelectedFields({name: bytes(fields[name]) for name in names if name in fields}, "say" in fields)

    def render_messages(
        self,
        raws: Sequence[bytes],
        own_contents: Set[str] | None,
        fields: Mapping[str, bytes] | None = None,
        *,
        is_edited: bool = False,
        cache_marks: CacheMarks = NO_CACHE_MARKS,
    ) -> RenderedMessages:
        return RenderedMessages([ToyMessage.from_body(decode_body(decode_item(bytes(raw)))).raw for raw in raws])

    def lower_output_limit(self, fields: Mapping[str, bytes], limit: int) -> dict[str, bytes]:
        return {}


def encode(values: Sequence[AnswerValue]) -> bytes:
    """Answers to clients, one line for each value that the protocol can say."""
    lines = [
        {"said": value.text} if isinstance(value, Text) else {"end": value.reason}
        for value in values
        if isinstance(value, Text | Finish)
    ]
    return b"".join([b"data: %b\n\n" % orjson.dumps(line) for line in lines])


class ToyRelay(StreamRelay):
    """Streams to clients: what a provider of any protocol says."""

    answer: AssembledAnswer
    answer_id: str | None = None

    def __init__(self, decoder: AnswerDecoder, options: RelayOptions) -> None:
        super().__init__(AssembledAnswer(), options)
        self._decoder = decoder

    def _relay_event(self, data: bytes, name: bytes) -> bytes:
        frames = self.relay_values(self._decoder.decode(data, name))
        if self._decoder.error_data is not None:
            self._fail(self._decoder.error_data)
        elif self._decoder.has_ended:
            self.is_upstream_done = self.has_ended = True
        return frames

    def relay_values(self, values: Sequence[AnswerValue]) -> bytes:
        self.answer.add(values)
        return encode(values)

    def render_heartbeat(self) -> bytes:
        return b""

    def render_end(self, changed_fields: bytes | None = None) -> bytes:
        return b'data: {"over":true}\n\n'

    def build_answer_message(self) -> Item:
        return ToyMessage.from_body(decode_body(self.answer.build_item()))


class ToyAnswerFormat(AnswerFormat):
    """Answers to clients. A client of the toy protocol sees no progress and no stored answers."""

    protocol = "toy"

    def translate_whole_answer(self, answer: Answer, body: bytes) -> tuple[Answer, bytes]:
        return AssembledAnswer(answer.decode_whole(body)), body

    def render_whole_answer(self, answer: Answer, body: bytes, fields: bytes) -> bytes:
        said = {"said": self.build_answer_message(answer).text, "end": answer.finish}
        return orjson.dumps(said)[:-1] + b"," + fields + b"}"

    def build_answer_message(self, answer: Answer) -> Item:
        return ToyMessage.from_body(decode_body(answer.build_item()))

    def _make_relay(self, answer: AnswerDecoder, options: RelayOptions) -> ToyRelay:
        return ToyRelay(answer, options)

    def render_error_frames(self, error: GatewayError) -> bytes:
        return b"data: %b\n\n" % orjson.dumps(error.build_body())

    def _render_progress(self, extra: Mapping[str, Any]) -> bytes:
        return b": a summary is made\n\n"

    def render_stored_answer(self, stored: StoredAnswer) -> bytes:
        return orjson.dumps({"said": stored.entry.message.text})

    def render_stored_stream(self, stored: StoredAnswer) -> Iterator[bytes]:
        yield encode([Text(stored.entry.message.text)])


def parse_toy_request(body: bytes, headers: Mapping[str, str], caller: Caller, request_id: str) -> ChatRequest:
    fields = decode_body_fields(body)
    return ChatRequest(
        caller=caller,
        request_id=request_id,
        body=body,
        raw_fields=fields,
        raw_messages=[orjson.dumps(words) for words in decode_field(fields, "say")],
        model=decode_field(fields, "model"),
        protocol="toy",
        delivery=DeliveryOptions(bool(decode_field(fields, "stream")), answer_format=ToyAnswerFormat()),
    )


def translate_to_chat(fields: Mapping[str, bytes]) -> SelectedFields:
    return SelectedFields({name: bytes(raw) for name, raw in fields.items() if name != "say"})


TOY_CLIENT = ClientDialect(
    "say", frozenset(), read_schemas, lambda _: False, lambda _fields, _request_id: {}, translate_to_chat
)


@contextmanager
def speaking_toy(monkeypatch: pytest.MonkeyPatch, *, provider: bool, client: bool) -> Iterator[None]:
    """Names the protocol where the gateway looks for its protocols."""
    monkeypatch.setitem(item_decoding.MESSAGE_CLASSES, b'"', ToyMessage)
    if provider:
        monkeypatch.setitem(provider_dialects.PROVIDER_DIALECTS, "toy", ToyProviderDialect())
        monkeypatch.setitem(provider_contract.CALL_PATHS, "toy", "/toy")
        monkeypatch.setattr(OpenAIProvider, "protocol", "toy")
    if client:
        monkeypatch.setitem(client_dialects.CLIENT_DIALECTS, "toy", TOY_CLIENT)
        monkeypatch.setattr(gateway, "parse_chat_request", parse_toy_request)
    yield


def toy_reply(streamed: bool, words: str) -> Reply:
    if not streamed:
        return Reply({"said": words, "end": "stop", "cost": [7, 2]})
    pieces = [{"said": words[:3]}, {"said": words[3:]}, {"end": "stop", "cost": [7, 2]}]
    return Reply(pieces=[b"data: %b\n\n" % orjson.dumps(piece) for piece in pieces])


async def say(w: World, *lines: str, streamed: bool) -> str:
    """What a toy client gets said."""
    body = {"model": "m", "say": lines, "stream": streamed}
    answer = await w.client.post(
        f"{w.base_url}/chat/completions", json=body, headers={"authorization": "Bearer sk-one"}
    )
    assert answer.status_code == 200, answer.text
    if not streamed:
        return str(answer.json()["said"])
    events = [orjson.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == {"over": True}
    assert {"end": "stop"} in events
    return "".join(event.get("said", "") for event in events)


EITHER = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@EITHER
async def test_clients_of_other_protocols_reach_its_providers(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    upstream = ScriptedUpstream(toy_reply(streamed, "Fine, thanks."), toy_reply(streamed, "You are welcome."))
    with speaking_toy(monkeypatch, provider=True, client=False):
        async with responses_world(upstream) as w:
            if streamed:
                chunks = await w.stream([user("How are you?")], stream_options={"include_usage": True})
                text = "".join(one["choices"][0]["delta"].get("content", "") for one in chunks if one["choices"])
                usage = chunks[-1]["usage"]
            else:
                body = await w.say([user("How are you?")])
                text, usage = body["choices"][0]["message"]["content"], body["usage"]
            response = await w.respond_either("Thanks.", stream=streamed)
    assert text == "Fine, thanks."
    assert usage == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert response["output"][0]["content"][0]["text"] == "You are welcome."
    assert upstream.requests[0]["say"] == ["user: How are you?"]
    assert upstream.requests[1]["say"] == ["user: Thanks."]


@EITHER
@pytest.mark.parametrize("own", [False, True], ids=["a chat provider", "its own provider"])
async def test_its_clients_reach_every_provider(monkeypatch: pytest.MonkeyPatch, streamed: bool, own: bool) -> None:
    def reply(words: str) -> Reply:
        return toy_reply(streamed, words) if own else stream(words) if streamed else completion(words)

    upstream = ScriptedUpstream(reply("Fine."), reply("Good."))
    with speaking_toy(monkeypatch, provider=own, client=True):
        async with world(upstream) as w:
            assert await say(w, "user: How are you?", streamed=streamed) == "Fine."
            lines = ("user: How are you?", "assistant: Fine.", "user: I am, too.")
            assert await say(w, *lines, streamed=streamed) == "Good."
            (conversation,) = w.conversations()
            entries = await w.store.read_log(conversation, 0, 4)
    assert [orjson.loads(entry.message.raw) for entry in entries] == [*lines, "assistant: Good."]
    sent = upstream.requests[1]
    assert sent.get("say", [f"{one['role']}: {one['content']}" for one in sent.get("messages", ())]) == list(lines)


async def test_its_conversations_are_summarized(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        if "material to be summarized" in str(body):
            return toy_reply(bool(body.get("stream")), SUMMARY)
        return toy_reply(False, "Good.")

    lines = [f"{one['role']}: {one['content']}" for one in long_history(40)]
    upstream = ScriptedUpstream(default=answer)
    with speaking_toy(monkeypatch, provider=True, client=True):
        async with world(upstream) as w:
            assert await say(w, *lines, "user: And now?", streamed=False) == "Good."
            assert w.chunks()
    sent = next(body["say"] for body in upstream.requests if body["say"][-1] == "user: And now?")
    assert len(sent) < len(lines)
