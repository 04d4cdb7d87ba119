"""Histories as other programs write them: told apart by their shape, read without loss, refused by the place."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import load_tokenizer
from app.conversations.transfer.conversation_import import ConversationImporter
from app.conversations.transfer.formats.import_file_parser import Format, parse_import_file
from app.conversations.transfer.formats.imported_conversation import ImportedConversation
from app.conversations.transfer.message_export import ConversationExporter, build_export_fields
from app.dialects.chat.message import decode_body
from app.errors import InvalidRequest
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.token_counting import MessageCounter
from tests.conversations.transfer.chatgpt_files import chatgpt_conversation, chatgpt_message, node
from tests.support.memory_store import MemoryStore

DUMPS = Path(__file__).parent / "langchain_dumps"
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


def test_a_chatgpt_conversation_is_its_current_path_with_other_paths_as_branches() -> None:
    nodes = {
        "root": node(None),
        "system": node("root", chatgpt_message("system", "")),
        "q": node("system", chatgpt_message("user", "Name a colour.", 10)),
        "red": node("q", chatgpt_message("assistant", "Red.", 11)),
        "blue": node("q", chatgpt_message("assistant", "Blue.", 12)),
        "more": node("blue", chatgpt_message("user", "Another.", 13)),
        "green": node("more", chatgpt_message("assistant", "Green.", 14)),
        "again": node("more", chatgpt_message("assistant", "Grey.", 15)),
        "other": node("system", chatgpt_message("user", "Name a tree.", 16)),
    }
    found = only([chatgpt_conversation(nodes, "green", title="Colours", create_time=9)])
    assert [body["content"] for body in bodies(found)] == ["Name a colour.", "Blue.", "Another.", "Green."]
    told = [(one.parent_index, one.shared_messages, [m.message.text for m in one.messages]) for one in found.branches]
    assert told == [(0, 1, ["Red."]), (0, 3, ["Grey."]), (0, 0, ["Name a tree."])]
    assert (found.title, found.created_at) == ("Colours", datetime.fromtimestamp(9, UTC))
    assert found.messages[0].created_at == datetime.fromtimestamp(10, UTC)
    assert found.warnings == ()


def test_a_branch_of_a_branch_shares_what_it_can() -> None:
    nodes = {
        "q": node(None, chatgpt_message("user", "Q")),
        "a": node("q", chatgpt_message("assistant", "A", 1)),
        "b": node("q", chatgpt_message("assistant", "B", 2)),
        "b1": node("b", chatgpt_message("user", "B1", 3)),
        "b2": node("b", chatgpt_message("user", "B2", 4)),
    }
    found = only([chatgpt_conversation(nodes, "a")])
    assert [(one.parent_index, one.shared_messages) for one in found.branches] == [(0, 1), (1, 2)]


def test_what_a_chat_does_not_show_is_left_out_and_counted() -> None:
    code = {"content_type": "code", "language": "python", "text": "print(1)"}
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-1"}
    steps = [
        chatgpt_message("user", "", content={"content_type": "user_editable_context", "user_profile": "secret"}),
        chatgpt_message("user", "", content={"content_type": "multimodal_text", "parts": [image, "What is this?"]}),
        chatgpt_message("user", "", content={"content_type": "multimodal_text", "parts": [image]}),
        chatgpt_message("assistant", "", content={"content_type": "thoughts", "thoughts": [{"summary": "hm"}]}),
        chatgpt_message("assistant", "", content=code, recipient="python"),
        chatgpt_message("tool", "1"),
        chatgpt_message("system", "Hidden rule.", metadata={"is_visually_hidden_from_conversation": True}),
        chatgpt_message("user", "Hidden.", metadata={"is_visually_hidden_from_conversation": True}),
        chatgpt_message("assistant", "A cat.\nReally."),
        chatgpt_message(
            "user",
            "",
            content={
                "content_type": "multimodal_text",
                "parts": [{"content_type": "audio_transcription", "text": "Said."}],
            },
        ),
    ]
    names = [f"n{index}" for index in range(len(steps))]
    nodes = {
        name: node(names[index - 1] if index else None, step)
        for index, (name, step) in enumerate(zip(names, steps, strict=True))
    }
    found = only([chatgpt_conversation(nodes, names[-1])])
    assert bodies(found) == [
        {"role": "user", "content": "What is this?"},
        {"role": "user", "content": "[image left out]"},
        {"role": "assistant", "content": "A cat.\nReally."},
        {"role": "user", "content": "Said."},
    ]
    (warning,) = found.warnings
    assert warning == (
        "[0]: left out: 2 hidden or system messages, 2 image parts, 1 messages of kind 'thoughts', "
        "1 messages of kind 'user_editable_context', 2 tool calls and results."
    )


def test_without_a_current_node_the_newest_path_is_taken() -> None:
    nodes = {
        "q": node(None, chatgpt_message("user", "Q", 1)),
        "a": node("q", chatgpt_message("assistant", "A", 3)),
        "b": node("q", chatgpt_message("assistant", "B", 2)),
    }
    found = only([chatgpt_conversation(nodes, "gone")])
    assert [body["content"] for body in bodies(found)] == ["Q", "A"]
    assert "current_node" in found.warnings[0]


def test_conversations_of_chatgpt_without_a_message_are_passed_over() -> None:
    empty = chatgpt_conversation({"root": node(None)}, "root")
    full = chatgpt_conversation({"q": node(None, chatgpt_message("user", "Q"))}, "q")
    assert len(parse_import_file(orjson.dumps([empty, full]))) == 1
    with pytest.raises(InvalidRequest, match="at least one conversation"):
        parse_import_file(orjson.dumps([empty]))


def test_where_the_current_path_says_nothing_another_is_taken() -> None:
    nodes = {
        "q": node(None, chatgpt_message("user", "Q", 1)),
        "empty": node(None, chatgpt_message("system", "", 2)),
    }
    assert [body["content"] for body in bodies(only([chatgpt_conversation(nodes, "empty")]))] == ["Q"]


def test_more_branches_than_can_be_are_told() -> None:
    nodes = {"q": node(None, chatgpt_message("user", "Q", 0))}
    nodes |= {f"a{n}": node("q", chatgpt_message("assistant", f"A{n}", n)) for n in range(70)}
    found = only([chatgpt_conversation(nodes, "a69")])
    assert len(found.branches) == 64
    assert "5 further branches" in found.warnings[0]


LANGCHAIN_HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather?", "name": "ann"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"where":"Zürich","days":1.0}'},
            },
            {"id": "c2", "type": "function", "function": {"name": "look_up", "arguments": '{"where": bad'}},
        ],
    },
    {"role": "tool", "content": "Rain.", "tool_call_id": "c1"},
    {"role": "tool", "content": [{"type": "text", "text": "Unknown."}], "tool_call_id": "c2"},
    {"role": "assistant", "content": [{"type": "text", "text": "It rains."}]},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "And this?"},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c3", "type": "function", "function": {"name": "look_up", "arguments": '{ "where": "there" }'}}
        ],
    },
    {"role": "tool", "content": "Sun.", "tool_call_id": "c3"},
    {"role": "assistant", "content": "The sun shines."},
    {"role": "user", "content": "Thanks."},
]


@pytest.mark.parametrize("form", ["messages_to_dict", "dumpd"])
def test_langchains_dumps_become_chat_messages(form: str) -> None:
    """The dumps were written by `tools/langchain_dumps.py` with langchain-core."""
    found = only((DUMPS / f"langchain_{form}.json").read_bytes())
    assert bodies(found) == LANGCHAIN_HISTORY
    assert found.metadata == {"imported_from": "langchain"}
    assert found.warnings == (
        "The file: left out: 1 content blocks of type 'reasoning', 1 markers of removed messages.",
    )


def test_langchains_histories_by_session_become_a_conversation_each() -> None:
    dump = json.loads((DUMPS / "langchain_messages_to_dict.json").read_bytes())
    by_session = parse_import_file(orjson.dumps({"ann": dump[:2], "bob": {"messages": dump[:2]}}))
    assert [found.metadata["title"] for found in by_session] == ["ann", "bob"]
    listed = parse_import_file(orjson.dumps([dump[:2], dump[:3]]))
    assert [len(found.messages) for found in listed] == [2, 3]
    lines = parse_import_file(b"\n".join(orjson.dumps(one) for one in dump[:2]))
    assert [len(found.messages) for found in lines] == [2]
    for found in (*by_session, *listed, *lines):
        assert bodies(found)[:2] == LANGCHAIN_HISTORY[:2]


@pytest.mark.parametrize(
    ("data", "wanted", "param"),
    [
        (b"[]", "auto", None),
        (b"5", "auto", "line 1"),
        (b'{"a": 1}', "auto", None),
        (b"[[5]]", "auto", "[0][0]"),
        (b"[{", "auto", None),
        (b'{"role": "user"}', "openai", None),
        (b'{"messages": []}', "chatgpt", "mapping"),
        (b'{"messages": [5]}', "openai", "messages[0]"),
        (b'[{"role": "user"}, 5]', "auto", "[1]"),
        (b'{"messages": [{"content": "x"}]}', "openai", "messages[0]"),
        (b'{"role": "user"}\n5', "auto", "line 2"),
        (b'{"role": "user", "content": "\xff"}', "auto", "line 1"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "auto", "messages[0]"),
        (b'{"mapping": {"a": {"parent": "a"}}, "current_node": "a"}', "auto", "mapping['a'].parent"),
        (
            b'{"mapping": {"a": {"message": {"content": 1}}}, "current_node": "a"}',
            "auto",
            "mapping['a'].message.content",
        ),
        (b'[{"type": "ai", "data": {"content": "", "tool_calls": [5]}}]', "auto", "[0].tool_calls[0]"),
        (b'[{"lc": 1, "type": "not_implemented", "id": ["a"]}]', "auto", "[0]"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(data: bytes, wanted: Any, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_import_file(data, wanted)
    assert raised.value.param == param
    assert "expected" in raised.value.message


FIELDS = [
    *("role", "content", "messages", "mapping", "current_node", "parent", "message", "type", "data", "lc", "id"),
    *("kwargs", "a", "tool_calls", "author", "parts", "content_type", "metadata", "args", "additional_kwargs"),
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
