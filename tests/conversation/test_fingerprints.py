"""An answer is known by the same words and the same ids, and by nothing that only resembles them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.fingerprints import (
    FEW_WORDS,
    MANY_WORDS,
    FingerprintScope,
    is_text_contained,
    list_digests,
    list_known_words,
    list_words,
)
from app.conversation.identity import LinkPosition
from app.dialects.body.message import ChatMessage

POSITION = LinkPosition(b"l" * 16, b"s" * 16, True)
LONG = " ".join(f"word{number}" for number in range(40))


def answer(text: str, **fields: Any) -> ChatMessage:
    return ChatMessage.from_body({"role": "assistant", "content": text, **fields})


def call(call_id: str, arguments: str) -> ChatMessage:
    function = {"name": "look", "arguments": arguments}
    return answer("", tool_calls=[{"id": call_id, "type": "function", "function": function}])


def compute_digests(scope: FingerprintScope, message: ChatMessage, *earlier: ChatMessage) -> set[bytes]:
    found = scope.list_fingerprints(POSITION, message, earlier, has_tool_traffic=False)
    return {one.digest for one in found if one.kind != "link"}


def test_scopes_share_no_fingerprints() -> None:
    scopes = [
        FingerprintScope("one", None),
        FingerprintScope("two", None),
        FingerprintScope("one", "ann"),
        FingerprintScope("one", "bob"),
        FingerprintScope("one", None, ("session-id", "1")),
        FingerprintScope("one", None, ("session-id", "2")),
    ]
    found = [set(list_digests(scope.list_fingerprints(POSITION, answer(LONG), (), has_tool_traffic=True)))
             for scope in scopes]  # fmt: skip
    assert all(len(one) == 4 for one in found), "link, skeleton, many words, few words"
    for one, other in itertools.combinations(found, 2):
        assert one.isdisjoint(other)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (LONG, LONG.upper()),
        (LONG, LONG.replace(" ", "\n\n")),
        (LONG, f"{LONG}\n\n---\n*Sources: [1] doc.pdf*"),
        (LONG, " ".join(LONG.split()[:15]) + " [Response interrupted by user]"),
        (LONG.replace("word3 ", "word3 [1] 【4†source】 "), LONG),
        (LONG.replace("word2", "**word2**"), LONG),
        ("这是一个关于豆子的很长的回答，它有很多字。", "这是一个关于豆子的很长的回答，它有很多字。完"),
    ],
)
def test_an_answer_is_known_in_the_shapes_in_which_clients_send_it_back(given: str, sent: str) -> None:
    scope = FingerprintScope("one", None)
    assert compute_digests(scope, answer(given)) & compute_digests(scope, answer(sent))


@pytest.mark.parametrize("sent", [LONG.replace("word5", "word6"), " ".join(LONG.split()[:8]), f"So {LONG}"])
def test_other_words_are_another_answer(sent: str) -> None:
    scope = FingerprintScope("one", None)
    assert not compute_digests(scope, answer(LONG)) & compute_digests(scope, answer(sent))


def test_short_answers_are_known_together_with_those_before_them() -> None:
    first, second, third = answer("Yes, of course I do."), answer("No, never on Sundays."), answer("Done it now.")
    scope = FingerprintScope("one", None)
    assert list_known_words(third, [second, first])
    assert compute_digests(scope, third, second, first) != compute_digests(scope, third, first, second)
    assert not compute_digests(scope, third, second), "fewer than twelve words"
    assert not compute_digests(scope, answer(""), second, first)


def test_calls_are_known_by_ids_names_and_arguments_together() -> None:
    scope = FingerprintScope("one", None)
    known = compute_digests(scope, call("call_0", '{"at": "the hedge"}'))
    assert known == compute_digests(scope, call("call_0", '{"at": "the hedge"}'))
    assert known == compute_digests(scope, call("call_0", '{"at":"the hedge"}')), "written anew"
    assert known.isdisjoint(compute_digests(scope, call("call_1", '{"at": "the hedge"}')))
    assert known.isdisjoint(compute_digests(scope, call("call_0", '{"at": "the wall"}')))


def test_texts_contain_each_other_as_whole_words() -> None:
    assert is_text_contained("When is it open?", "<context>Much.</context>\nWhen is  it open?")
    assert is_text_contained("ok", "ok")
    assert not is_text_contained("ok", "look")
    assert not is_text_contained("", "look")


@given(st.text(max_size=400))
def test_words_are_few_and_fewer_than_twelve_are_known_by_nothing(text: str) -> None:
    words = list_words(text)
    assert len(words) <= MANY_WORDS
    known = list_known_words(answer(text), ())
    assert bool(known) == (len(words) >= FEW_WORDS)
