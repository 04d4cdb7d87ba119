"""Files of conversations: told apart by their shape, read without loss, refused by the place."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import load_tokenizer
from app.conversations.transfer.conversation_import import ConversationImporter
from app.conversations.transfer.import_file_parser import Format, ImportedConversation, parse_import_file
from app.conversations.transfer.message_export import ConversationExporter, build_export_fields
from app.dialects.body.message import decode_body
from app.errors import InvalidRequest
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.token_counting import MessageCounter
from tests.support.memory_store import MemoryStore

ENCODING = "o200k_base"


def bodies(found: ImportedConversation) -> list[dict[str, Any]]:
    return [decode_body(one.message) for one in found.messages]


def only(data: object, *, wanted: Any = "auto") -> ImportedConversation:
    """The one conversation of a file."""
    (found,) = parse_import_file(data if isinstance(data, bytes) else orjson.dumps(data), wanted)
    return found


HISTORY = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "1"}]


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (b'{"role": "user", "content": "One"}\r\n\r\n {"role": "assistant", "content": "1"} ', "concertina"),
        (b'\xef\xbb\xbf{"role": "user", "content": "One"}\n{"role": "assistant", "content": "1"}\n', "concertina"),
        (orjson.dumps({"messages": HISTORY}), "openai"),
        (orjson.dumps({"model": "m", "tools": [], "messages": HISTORY}, option=orjson.OPT_INDENT_2), "openai"),
        (orjson.dumps([{"messages": HISTORY}]), "openai"),
        (orjson.dumps({"messages": HISTORY}) + b"\n", "openai"),
        (orjson.dumps(HISTORY), "openai"),
    ],
)
def test_a_format_is_told_by_its_shape(data: bytes, source: str) -> None:
    found = only(data)
    assert bodies(found) == HISTORY
    assert found.metadata == {"imported_from": source}


def test_the_text_of_a_message_stays_as_it_is() -> None:
    raw = b'{ "content":"caf\\u00e9", "role" : "user", "n": 1.0 }'
    for data in (raw, b'{"messages": [' + raw + b"]}", b"[" + raw + b"]"):
        assert [one.message.raw for one in only(data).messages] == [raw]


def test_metadata_is_kept_as_far_as_it_can_be() -> None:
    told: dict[str, Any] = {
        "a": "x" * 600,
        "n" * 70: "long name",
        "null": None,
        "number": 1.5,
        "inside": {"a": [1]},
        "nul": "a\0b",
    }
    found = only({"metadata": told | {f"k{n}": "v" for n in range(20)}, "messages": HISTORY}).metadata
    assert len(found) <= 16
    assert found["a"] == "x" * 512
    assert found["n" * 64] == "long name"
    assert {name: found[name] for name in ("number", "inside", "nul")} == {
        "number": "1.5",
        "inside": '{"a":[1]}',
        "nul": "ab",
    }
    assert "null" not in found


@pytest.mark.parametrize(
    ("data", "wanted", "param"),
    [
        (b"[]", "auto", None),
        (b"5", "auto", "line 1"),
        (b'{"a": 1}', "auto", None),
        (b"[[5]]", "auto", "[0]"),
        (b"[{", "auto", None),
        (b'{"role": "user"}', "openai", None),
        (b'{"messages": [5]}', "openai", "messages[0]"),
        (b'[{"role": "user"}, 5]', "auto", "[1]"),
        (b'{"messages": [{"content": "x"}]}', "openai", "messages[0]"),
        (b'{"role": "user"}\n5', "auto", "line 2"),
        (b'{"role": "user", "content": "\xff"}', "auto", "line 1"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "auto", "messages[0]"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(data: bytes, wanted: Any, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_import_file(data, wanted)
    assert raised.value.param == param
    assert "expected" in raised.value.message


FIELDS = [
    *("role", "content", "messages", "message", "type", "id", "a", "tool_calls", "metadata", "external_id"),
    *("created_at", "call_id", "output"),
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "a", "user", "human"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(value=JSON, wanted=st.sampled_from(get_args(Format)))
def test_any_json_is_read_or_refused(value: object, wanted: Any) -> None:
    with contextlib.suppress(InvalidRequest):
        for found in parse_import_file(orjson.dumps(value), wanted):
            assert all(isinstance(decode_body(one.message), dict) for one in found.messages)


@given(data=st.binary(max_size=40) | st.text(alphabet='[]{}",:a1\n', max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_import_file(data)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CALL_IDS = st.lists(st.integers(0, 99).map("call_{}".format), min_size=1, max_size=3, unique=True)


@st.composite
def rounds(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A user's message with an answer, or with calls and their results."""
    said: list[dict[str, Any]] = [{"role": "user", "content": draw(TEXT)}]
    for call_id in draw(CALL_IDS) if draw(st.booleans()) else []:
        function = {"name": draw(st.sampled_from("fg")), "arguments": draw(TEXT)}
        said.append(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            }
        )
        said.append({"role": "tool", "tool_call_id": call_id, "content": draw(TEXT)})
    return [*said, {"role": "assistant", "content": f"A{draw(TEXT)}", "refusal": None}]


HISTORIES = st.tuples(
    st.lists(TEXT.map(lambda text: {"role": "system", "content": text}), max_size=2),
    st.lists(rounds(), min_size=1, max_size=4).map(lambda found: [one for round_ in found for one in round_]),
).map(lambda parts: [*parts[0], *parts[1]])


@given(histories=st.lists(HISTORIES, min_size=1, max_size=3), as_lines=st.booleans())
def test_what_is_exported_is_imported_as_the_same_messages(
    histories: Sequence[Sequence[dict[str, Any]]], as_lines: bool
) -> None:
    async def there_and_back() -> list[list[dict[str, Any]]]:
        store = MemoryStore(clock=lambda: datetime.now(UTC))
        counting = MessageCounter(lambda name: TokenCounter(load_tokenizer(name)))
        random = iter(range(1_000_000))
        importing = ConversationImporter(
            store=store,
            message_counter=counting,
            tasks=BackgroundTasks(),
            random_bytes=lambda size: next(random).to_bytes(size, "big"),
            encoding=ENCODING,
        )
        exporting = ConversationExporter(store)
        first = await importing.import_file("t", orjson.dumps([{"messages": one} for one in histories]))
        out = [
            [
                piece
                async for piece in (
                    exporting.stream_json_object(one, with_hidden=False, fields=build_export_fields(one))
                    if as_lines
                    else exporting.stream_message_lines(one, with_hidden=False)
                )
            ]
            for one in first.conversations
        ]
        files = [b"".join(piece for pieces in out for piece in pieces)] if as_lines else [b"".join(one) for one in out]
        second = [kept for file in files for kept in (await importing.import_file("t", file)).conversations]
        found = []
        for one in second:
            log = await store.read_log(one, 0, one.head_seq + 1)
            told = [json.loads(text) for text in one.state.get("instructions", [])]
            found.append([*told, *(decode_body(entry.message) for entry in log)])
            assert log[-1].answered
            assert log[-1].tokens_total == sum(entry.tokens for entry in log) == one.head_tokens_total
        return found

    assert asyncio.run(there_and_back()) == [list(one) for one in histories]
