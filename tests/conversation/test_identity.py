"""The chain of links: stable under what clients do to a history, different for every other history."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.identity import (
    PrefixCache,
    compute_anchor_digest,
    compute_family_root,
    compute_first_link,
    compute_links_after_messages,
    compute_prefix_digests,
    compute_start_position,
    extract_family_root,
    is_valid_conversation_id,
    make_conversation_id,
)
from app.dialects.body.canonical_message import canonicalize_message
from app.dialects.body.message import ChatMessage

Body = dict[str, Any]

RECORDINGS = Path(__file__).parents[3] / "shared" / "eval" / "resent_histories.jsonl"
LOSSY_CLIENTS = {"ai_js"}
"""Clients that drop tool traffic from what they send back."""


def chain(bodies: Iterable[Body], tenant: str = "t") -> list[bytes]:
    return [
        position.link
        for position in compute_links_after_messages(map(ChatMessage.from_body, bodies), compute_start_position(tenant))
    ]


def skeleton(bodies: Iterable[Body], tenant: str = "t") -> list[bytes]:
    return [
        p.skeleton_link
        for p in compute_links_after_messages(map(ChatMessage.from_body, bodies), compute_start_position(tenant))
        if p.is_in_skeleton
    ]


words = st.text(min_size=1, max_size=30).filter(
    lambda text: text.strip() != "" and not text.lstrip().startswith("<think")
)
arguments = st.dictionaries(st.text(max_size=6), st.integers() | st.text(max_size=6) | st.just(1.0), max_size=3)
call = st.builds(lambda n, a: ("function", n, a), st.sampled_from(["read", "write"]), arguments)
turns = st.lists(
    st.tuples(words, st.lists(st.tuples(call, st.dictionaries(words, st.integers(), max_size=2)), max_size=2), words),
    min_size=1,
    max_size=4,
)


def as_sent(history: list[Any]) -> list[Body]:
    """A history as the gateway answered it."""
    bodies: list[Body] = [{"role": "system", "content": "Be brief."}]
    for number, (question, steps, answer) in enumerate(history):
        bodies.append({"role": "user", "content": question})
        for step, ((_, name, args), result) in enumerate(steps):
            call_id = f"call_{number}_{step}"
            function = {"name": name, "arguments": json.dumps(args)}
            bodies.append(
                {
                    "role": "assistant",
                    "content": "One moment.",
                    "refusal": None,
                    "annotations": [],
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                }
            )
            bodies.append({"role": "tool", "tool_call_id": call_id, "content": json.dumps(result)})
        bodies.append({"role": "assistant", "content": answer, "refusal": None, "reasoning_content": "hm"})
    return bodies


def as_resent(history: list[Any]) -> list[Body]:
    """The same history after a client has rebuilt it: new system text, parts, ids, key order, serializer."""
    bodies: list[Body] = [{"role": "developer", "content": "Be brief. It is Monday."}]
    for number, (question, steps, answer) in enumerate(history):
        half = len(question) // 2
        texts = [question[:half], question[half:]]
        bodies.append({"content": [{"type": "text", "text": text} for text in texts], "role": "user", "name": "Ann"})
        for step, ((_, name, args), result) in enumerate(steps):
            reordered = {key: args[key] for key in reversed(list(args))}
            function = {"arguments": json.dumps(reordered, ensure_ascii=False, indent=1), "name": name}
            tool_call = {"index": 0, "function": function, "id": f"new_{number}_{step}", "type": "function"}
            bodies.append({"tool_calls": [tool_call], "content": None, "role": "assistant", "parsed": None})
            bodies.append({"content": json.dumps(result, separators=(",", ":")), "role": "tool", "name": name})
        bodies.append({"role": "assistant", "content": None, "annotations": []})
        bodies.append({"role": "assistant", "content": f"<think>hm</think>{answer}\r\n", "audio": None})
    return bodies


@given(turns)
def test_a_history_that_a_client_rebuilt_has_the_same_chain(history: list[Any]) -> None:
    assert chain(as_sent(history))[-1] == chain(as_resent(history))[-1]
    assert set(chain(as_sent(history))) == set(chain(as_resent(history)))
    assert skeleton(as_sent(history)) == skeleton(as_resent(history))


@given(turns)
def test_a_history_without_its_tool_traffic_has_the_same_skeleton(history: list[Any]) -> None:
    lossy = [body for body in as_sent(history) if body["role"] != "tool" and "tool_calls" not in body]
    assert skeleton(lossy) == skeleton(as_sent(history))


@given(turns, st.data())
def test_changing_any_one_message_changes_every_link_after_it(history: list[Any], data: st.DataObject) -> None:
    bodies = as_sent(history)
    at = data.draw(st.integers(1, len(bodies) - 1))
    changed = json.loads(json.dumps(bodies))
    if "tool_calls" in changed[at]:
        changed[at]["tool_calls"][0]["function"]["arguments"] = '{"another": "argument of this call"}'
    else:
        changed[at]["content"] = "another text, longer than any that was drawn"
    before, after = chain(bodies), chain(changed)
    assert before[:at] == after[:at]
    assert not set(before[at:]) & set(after[at:])


def test_the_order_of_messages_is_part_of_the_chain() -> None:
    one, other = {"role": "user", "content": "one"}, {"role": "user", "content": "other"}
    assert chain([one, other])[-1] != chain([other, one])[-1]


@given(turns, st.text(), st.text())
def test_tenants_share_no_link(history: list[Any], one: str, other: str) -> None:
    bodies = as_sent(history)
    ours = {*chain(bodies, one), *skeleton(bodies, one), compute_first_link(one)}
    theirs = {*chain(bodies, other), *skeleton(bodies, other), compute_first_link(other)}
    assert (one == other) == bool(ours & theirs)


def test_the_chain_and_the_skeleton_never_meet() -> None:
    bodies = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert not set(chain(bodies)) & set(skeleton(bodies))


def test_links_are_sixteen_bytes_and_a_walk_can_go_on_from_any_position() -> None:
    messages = [ChatMessage.from_body(body) for body in as_sent([("Hi", [], "Hello"), ("More", [], "Here")])]
    positions = list(compute_links_after_messages(messages, compute_start_position("t")))
    assert {len(p.link) for p in positions} == {len(p.skeleton_link) for p in positions} == {16}
    assert list(compute_links_after_messages(messages[2:], positions[1])) == positions[2:]


def test_a_walk_is_the_chain_of_canonical_forms() -> None:
    bodies = as_sent([("Hi", [(("function", "read", {}), {})], "Hello")])
    link, bones = compute_first_link("t"), compute_start_position("t").skeleton_link
    for body, position in zip(
        bodies,
        compute_links_after_messages(map(ChatMessage.from_body, bodies), compute_start_position("t")),
        strict=True,
    ):
        part, is_in_skeleton = canonicalize_message(body), ChatMessage.from_body(body).is_in_skeleton
        if part is not None:
            link = hashlib.sha256(link + part).digest()[:16]
            bones = hashlib.sha256(bones + part).digest()[:16] if is_in_skeleton else bones
        assert (position.link, position.skeleton_link) == (link, bones)
        assert position.is_in_skeleton == is_in_skeleton


def test_the_links_of_a_known_history_never_change() -> None:
    """Stored links outlive a release: a change of the canonical form needs a new algorithm name."""
    bodies = as_sent([("Hi", [(("function", "read", {"n": 1.0, "s": "é"}), {"t": 21})], "Hello")])
    assert chain(bodies)[-1].hex() == "2541bc15cee7abd5c13836bc245faa22"
    assert skeleton(bodies)[-1].hex() == "2c1dcaccb93cc9b8320d72e218da84cf"


def recorded() -> list[Any]:
    if not RECORDINGS.exists():
        return [
            pytest.param({}, marks=pytest.mark.skip(reason="recordings of real clients are not part of the project"))
        ]
    sessions = [json.loads(line) for line in RECORDINGS.read_text().splitlines()]
    return [pytest.param(session, id=session["client"]) for session in sessions]


@pytest.mark.parametrize("session", recorded())
def test_each_later_request_of_a_real_client_contains_the_one_before(session: dict[str, Any]) -> None:
    requests = session["requests"]
    for earlier, later in pairwise(requests):
        assert skeleton(earlier) == skeleton(later)[: len(skeleton(earlier))]
        if session["client"] not in LOSSY_CLIENTS:
            assert set(chain(earlier)) <= set(chain(later))


def test_a_conversation_id_carries_its_root() -> None:
    root = compute_family_root("t", chain([{"role": "user", "content": "Hi"}])[0])
    conversation_id = make_conversation_id(root, lambda count: b"\x01" * count)
    assert len(root) == 16
    assert conversation_id == f"conv_{root}{'01' * 16}"
    assert extract_family_root(conversation_id) == root
    assert is_valid_conversation_id(conversation_id)
    assert root != compute_family_root("u", chain([{"role": "user", "content": "Hi"}])[0])


@pytest.mark.parametrize(
    "foreign", ["", "conv_", "chat-1", "conv_" + "g" * 48, "conv_" + "A" * 48, "conv_" + "a" * 48 + "\n"]
)
def test_an_id_that_is_not_ours_has_no_root(foreign: str) -> None:
    assert extract_family_root(foreign) is None


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("a", True),
        ("A.b_c:d-9", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("a b", False),
        ("a\n", False),
        ("é", False),
        ("a/b", False),
    ],
)
def test_ids_of_clients_are_held_to_a_plain_alphabet(text: str, valid: bool) -> None:
    assert is_valid_conversation_id(text) is valid


raw_messages = st.lists(st.binary(max_size=12), max_size=40)


@given(raw_messages, raw_messages)
def test_a_longer_request_meets_the_digests_of_the_shorter_one(known: list[bytes], added: list[bytes]) -> None:
    later = dict(compute_prefix_digests([*known, *added], "t", last=100))
    for count, digest in compute_prefix_digests(known, "t"):
        assert later[count] == digest


@given(raw_messages, raw_messages)
def test_only_equal_splits_of_equal_bytes_share_a_digest(one: list[bytes], other: list[bytes]) -> None:
    if one and other:
        assert (compute_prefix_digests(one, "t")[-1][1] == compute_prefix_digests(other, "t")[-1][1]) == (one == other)
        assert compute_prefix_digests(one, "t")[-1][1] != compute_prefix_digests(one, "u")[-1][1]


def test_digests_are_of_the_last_boundaries_and_take_views_of_a_body() -> None:
    raws = [b"%d" % number for number in range(40)]
    assert [count for count, _ in compute_prefix_digests(raws, "t")] == list(range(25, 41))
    assert compute_prefix_digests([memoryview(raw) for raw in raws], "t") == compute_prefix_digests(raws, "t")
    assert compute_prefix_digests([], "t") == []


def test_the_deepest_known_prefix_is_recalled() -> None:
    memory: PrefixCache[str] = PrefixCache()
    digests = compute_prefix_digests([b"a", b"b", b"c"], "t")
    assert memory.find_longest_prefix(digests) is None
    memory.put(digests[0][1], "one")
    memory.put(digests[1][1], "two")
    assert memory.find_longest_prefix(digests) == (2, "two")
    memory.discard(digests[1][1])
    assert memory.find_longest_prefix(digests) == (1, "one")


def test_the_memory_is_bounded_and_forgets_what_was_used_longest_ago() -> None:
    memory: PrefixCache[int] = PrefixCache(max_entries=2)
    memory.put(b"a", 1)
    memory.put(b"b", 2)
    memory.find_longest_prefix([(1, b"a")])
    memory.put(b"c", 3)
    assert len(memory) == 2
    assert memory.find_longest_prefix([(1, b"b")]) is None
    assert memory.find_longest_prefix([(1, b"a")]) == (1, 1)


def test_two_megabytes_over_two_thousand_messages_take_a_few_milliseconds() -> None:
    raws = [b"x" * 1000] * 2000
    best = min(_cpu_seconds(raws) for _ in range(5))
    assert best < 0.02  # 1.5 ms where SHA-256 has its own instructions


def _cpu_seconds(raws: list[bytes]) -> float:
    started = time.process_time()
    compute_prefix_digests(raws, "t")
    return time.process_time() - started


def test_names_of_answers_are_shared_by_no_tenants_and_no_kinds() -> None:
    named = [(tenant, kind, value) for tenant in ("a", "b") for kind in ("answer", "call") for value in (b"x", b"y")]
    assert len({compute_anchor_digest(*one) for one in named}) == len(named)
