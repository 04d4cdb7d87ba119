"""Which standing requests hold, which a view shows, and how it shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.context.count.token_counter import TokenCounter
from app.context.count.tokenizers import load_tokenizer
from app.context.plan.policy import ContextPolicy, PolicyKind
from app.context.standing.request_finder import find_standing_requests
from app.context.standing.standing_message import (
    build_standing_message,
    count_standing_frame_tokens,
    render_standing_line,
)
from app.context.standing.standing_requests import (
    MAX_KEPT_REQUESTS,
    NewRequest,
    StandingRequest,
    StandingRequests,
    StandingScan,
    add_new_requests,
    drop_requests,
    limit_scan_to_log,
)
from app.dialects.body.message import ChatMessage
from tests.context.planned_conversation import World, assistant, user, words

SENTENCES = (
    "Call me Sam.",
    "Call me Alex.",
    "Never suggest peanuts.",
    "Always answer in French.",
    "Please answer in German from now on.",
    "I prefer metric units.",
    "Don't use tables.",
    "You can use tables again.",
    "Is it raining?",
)
TALKS = st.lists(st.sampled_from(SENTENCES), max_size=90)
LINES = st.text(max_size=60).map(lambda text: " ".join(["Never", *text.split()]))
NOTHING_SHOWN: frozenset[int] = frozenset()


def scanned(talk: list[str], *, from_seq: int = 0, tokens: int = 10) -> list[NewRequest]:
    """The requests of a talk with one sentence in each message."""
    return [
        NewRequest(StandingRequest(seq, one.start, one.end, tokens, one.strength), one.subject, one.withdraws)
        for seq, text in enumerate(talk[from_seq:], from_seq)
        for one in find_standing_requests(text)
    ]


def shown(talk: list[str], boundary_seq: int, *, room_tokens: int = 1_000) -> list[str]:
    requests = StandingRequests(add_new_requests([], scanned(talk)), 20, room_tokens)
    return [talk[one.seq] for one in requests.choose_before(boundary_seq, NOTHING_SHOWN)]


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        (["Call me Sam.", "Call me Alex."], ["Call me Alex."]),
        (["Don't use tables.", "You can use tables again."], ["You can use tables again."]),
        (["You can use tables again."], []),
        (["Never suggest peanuts.", "Never suggest peanuts."], ["Never suggest peanuts."]),
        (["Call me Sam.", "Don't use tables."], ["Call me Sam.", "Don't use tables."]),
        (["Always answer in French.", "Is it raining?"], ["Always answer in French."]),
    ],
)
def test_a_later_request_replaces_an_earlier_one_on_the_same_subject(talk: list[str], expected: list[str]) -> None:
    assert shown(talk, len(talk)) == expected


def test_a_request_holds_until_the_one_that_replaces_it_is_hidden_too() -> None:
    talk = ["Call me Sam.", "Is it raining?", "Call me Alex."]
    assert shown(talk, 2) == ["Call me Sam."]
    assert shown(talk, 3) == ["Call me Alex."]


def test_the_strongest_and_then_the_newest_are_shown_if_not_all_fit() -> None:
    talk = ["Never suggest peanuts.", "I prefer metric units.", "Always answer in French.", "Don't use tables."]
    assert shown(talk, 4, room_tokens=20 + 2 * 10) == ["Never suggest peanuts.", "Don't use tables."]
    assert shown(talk, 4, room_tokens=20 + 9) == []


def test_a_request_of_a_message_that_is_shown_anyway_is_not_repeated() -> None:
    requests = StandingRequests(add_new_requests([], scanned(["Call me Sam.", "I prefer metric units."])), 20, 1_000)
    assert [one.seq for one in requests.choose_before(2, {0})] == [1]


def test_a_request_holds_again_when_the_message_that_replaced_it_is_gone() -> None:
    requests = add_new_requests([], scanned(["Call me Sam.", "Call me Alex."]))
    (left,) = drop_requests(requests, gone_seqs={1}, removed_places=frozenset())
    assert (left.seq, left.replaced_by) == (0, None)
    assert drop_requests(requests, gone_seqs={1}, removed_places={(0, 0)}) == ()


@pytest.mark.parametrize("name", ["additive", "window"])
def test_a_view_that_would_fit_without_them_is_never_too_long_because_of_them(name: PolicyKind) -> None:
    fits = set[tuple[bool, bool]]()
    for size in range(1_300, 2_000, 20):
        world = World(window=2_000, policy=ContextPolicy(name=name, kind=name))
        world.say(user("never"), assistant(words(600)), user(words(size)))
        without = world.plan("never").fits
        world.keep_standing(0)
        decided = world.plan("never")
        assert decided.fits == without
        fits.add((decided.fits, bool(decided.standing_requests)))
    assert fits == {(True, True), (True, False), (False, False)}


@given(talk=TALKS, boundary=st.integers(0, 90))
def test_what_is_shown_does_not_depend_on_messages_after_the_boundary(talk: list[str], boundary: int) -> None:
    """Below the bound on kept requests: so the beginning of a view stays the same while the talk goes on."""
    if len(scanned(talk)) <= MAX_KEPT_REQUESTS:
        assert shown(talk, boundary) == shown(talk[:boundary], boundary)


@given(talk=TALKS, cut=st.integers(0, 90))
def test_a_log_is_scanned_in_parts_as_at_once(talk: list[str], cut: int) -> None:
    early = {one.request.place: one for one in scanned(talk[:cut])}
    kept = add_new_requests([], early.values())
    known = [NewRequest(one, early[one.place].subject) for one in kept]
    at_once = add_new_requests([], scanned(talk))
    assert len(at_once) <= MAX_KEPT_REQUESTS
    if len(scanned(talk)) <= MAX_KEPT_REQUESTS:
        assert add_new_requests(known, scanned(talk, from_seq=cut)) == at_once


@given(talk=TALKS, last_seq=st.integers(-1, 90))
def test_a_branch_has_the_requests_of_the_log_that_it_shares(talk: list[str], last_seq: int) -> None:
    if len(scanned(talk)) > MAX_KEPT_REQUESTS:
        return
    scan = limit_scan_to_log(StandingScan(len(talk), add_new_requests([], scanned(talk))), last_seq)
    assert scan.before_seq == min(len(talk), last_seq + 1)
    assert scan.requests == add_new_requests([], scanned(talk[: last_seq + 1]))


@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
@given(lines=st.lists(LINES, min_size=1, max_size=6))
def test_the_tokens_of_the_message_are_those_of_its_lines_and_its_frame(encoding: str, lines: list[str]) -> None:
    counter = TokenCounter(load_tokenizer(encoding))
    requests = [
        StandingRequest(seq, 0, len(line), counter.count(render_standing_line(line))) for seq, line in enumerate(lines)
    ]
    message = build_standing_message(requests, lambda seq: ChatMessage.from_text("user", lines[seq]).raw)
    expected = StandingRequests(tuple(requests), count_standing_frame_tokens(counter.count_message), 0).count_tokens(
        requests
    )
    assert counter.count_message(message) == expected
    assert message.text.count("standing_requests>") >= 2
