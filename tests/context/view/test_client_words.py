from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from app.context.plan.outline import LastView, Quotation, QuotedPassage
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.context.view.client_words import ClientWords, find_version_effect, mark_instructions
from app.context.view.message_edits import Edit
from app.conversation.conversation_types import SHARED_THROUGH, ClientVersion, Conversation
from tests.context.planned_conversation import World, assistant, calls, chunk_of, result, user

Shown = Mapping[int, Sequence[dict[str, Any]]]


LOG = World(
    bodies=[
        user("The limit is 500."),
        assistant("Noted, the limit is 500."),
        user("Look it up."),
        calls("look"),
        result("much text"),
        assistant("Found."),
        user("And now?"),
        assistant("So."),
    ]
).log


def read(shown: Shown, *, is_named: bool = True, **facts: Any) -> ClientWords:
    """What a client says that shows other messages in the place of some; `to_seq` names the end of its own summary."""
    to_seq = facts.pop("to_seq", {})
    versions = NO_VERSIONS.with_later_versions(
        ClientVersion(seq, 8, to_seq.get(seq, seq + 1), tuple(json.dumps(body).encode() for body in bodies), 0)
        for seq, bodies in shown.items()
    )
    effects = {
        seq: find_version_effect(version, LOG[seq]) for seq in versions if (version := versions.get(seq)) is not None
    }
    return ClientWords(None, versions, effects, next_seq=len(LOG), is_named=is_named, **facts)


def read_texts(words: ClientWords) -> list[str]:
    return [entry.message.text for entry in words.apply_to_log_messages(LOG[:3])]


def test_without_a_name_no_summary_is_used_that_may_repeat_what_stands_before_it_and_is_left_out() -> None:
    summary = chunk_of(6, from_seq=2)
    whole, cut = read({}, is_named=False), read({0: []}, is_named=False)
    cut_further = read({0: [], 1: []}, is_named=False)
    assert whole.is_usable(summary)
    assert not cut.is_usable(summary), "its summarizer may have seen message 0"
    written_anew = replace(summary, versions_digest=cut.compute_digest(2, 6))
    assert cut_further.is_usable(written_anew), "its summarizer saw nothing but the range"
    assert (whole.leaves_out_before(2), cut.leaves_out_before(2), cut.leaves_out_before(0)) == (False, True, False)
    assert read({0: []}).is_usable(summary), "who names a conversation can read it all"


def test_a_summary_is_used_for_the_words_that_it_was_written_from() -> None:
    original, changed = read({}), read({0: [user("The limit is 900.")]})
    summary = chunk_of(2)
    assert original.is_usable(summary)
    assert not changed.is_usable(summary)
    assert changed.is_usable(chunk_of(6, from_seq=2)), "nothing in this range was changed"
    written_anew = replace(summary, versions_digest=changed.compute_digest(0, 2))
    assert changed.is_usable(written_anew)
    assert not original.is_usable(written_anew)
    assert not read({0: [user("The limit is 901.")]}).is_usable(written_anew)
    assert not read({0: []}, is_named=False).is_usable(written_anew)


def test_what_a_client_shortens_counts_as_changed() -> None:
    words = read({0: [user("The  limit is")]}, is_named=False)
    assert words.compute_digest(0, 8) != b"", "what it no longer carries is not shown to it"


def test_what_is_merely_marked_or_masked_is_no_change() -> None:
    histories: list[Shown] = [
        {0: [user("The  limit is 500.")]},
        {0: [{"role": "user", "content": [{"type": "text", "text": "The limit is 500.", "cache": {}}]}]},
        {4: [result("[left out]")]},
        {3: [], 4: []},
        {0: [{"role": "system", "content": "a note"}, user("The limit is 500.")]},
    ]
    for shown in histories:
        words = read(shown, is_named=False)
        assert words.compute_digest(0, 8) == b""
        assert not words.forbidden_seqs


def test_a_summarizer_reads_what_the_client_shows() -> None:
    words = read({0: [user("I moved."), user("The limit is 900.")], 1: []}, is_named=False)
    assert read_texts(words) == ["I moved.", "The limit is 900.", "Look it up."]


def test_without_a_name_each_omitted_message_is_forbidden_and_with_one_those_between_others() -> None:
    window: Shown = {seq: [] for seq in range(3)}
    assert read(window, is_named=False).forbidden_seqs == {0, 1, 2}
    assert read(window).forbidden_seqs == set()
    assert read({2: [], 3: [], 4: [], 5: []}).forbidden_seqs == {2, 5}
    assert read({6: [], 7: []}).forbidden_seqs == set(), "nothing that the client sends stands behind them"


def test_with_a_name_the_originals_of_what_the_clients_own_summary_stands_for_are_used() -> None:
    shown: Shown = {1: [user("A summary.")], 2: [], 3: [], 4: [], 5: []}
    named, unnamed = (read(shown, is_named=is_named, to_seq={1: 6}) for is_named in (True, False))
    assert named.is_usable(chunk_of(6))
    assert not unnamed.is_usable(chunk_of(6))
    assert read_texts(unnamed) == ["The limit is 500.", "A summary."]
    assert not unnamed.may_be_quoted(1)


def test_a_message_with_three_versions_is_read_by_no_summary_and_shown_instead() -> None:
    versions = [
        ClientVersion(0, 8 + minute, 1, (json.dumps(user(f"Minute {minute}.")).encode(),), 3) for minute in range(4)
    ]
    digests = []
    for count in (2, 3, 4):
        shown = NO_VERSIONS.with_later_versions(versions[:count])
        words = ClientWords(None, shown, {0: find_version_effect(versions[count - 1], LOG[0])}, next_seq=8)
        digests.append(words.compute_digest(0, 2))
    assert digests[0] != digests[1] == digests[2]
    assert read_texts(words) == ["Noted, the limit is 500.", "Look it up."]
    (pin,) = words.add_volatile_pins(())
    assert (pin.from_seq, pin.to_seq, pin.tokens) == (0, 1, LOG[0].tokens + 3)


def test_a_summary_with_a_message_that_was_erased_is_not_used() -> None:
    conversation = Conversation("own", "root", "t", 7, b"", b"", 0, True, "o200k_base", marks={"redacted": [2]})
    words = ClientWords(conversation)
    assert not words.is_usable(chunk_of(4))
    assert words.is_usable(chunk_of(2))
    assert words.is_usable(replace(chunk_of(4), versions_digest=words.compute_digest(0, 4)))
    further = ClientWords(replace(conversation, marks={"redacted": [2, 3]}))
    assert further.compute_digest(0, 4) != words.compute_digest(0, 4)


def test_of_a_shared_log_only_texts_that_nobody_edited_or_steered_are_used() -> None:
    conversation = Conversation("own", "root", "t", 7, b"", b"", 0, True, "o200k_base", (("other", 3),))
    shared = replace(conversation, marks={SHARED_THROUGH: 3})
    theirs = replace(chunk_of(4), conversation_id="other")
    for summary, is_used in (
        (theirs, True),
        (replace(theirs, kind="mechanical"), True),
        (replace(theirs, kind="edited", revision=2), False),
        (replace(theirs, revision=2), False),
        (replace(theirs, prompt_version=mark_instructions("1", "their secret")), False),
        (replace(theirs, folds=("a", "b")), False),
        (replace(theirs, kind="edited", revision=2, conversation_id="own"), True),
    ):
        assert ClientWords(shared).is_usable(summary) == is_used
        assert ClientWords(conversation).is_usable(summary), "a branch is a relative"


def test_quotations_of_what_changed_since_are_dropped() -> None:
    quotations = tuple(Quotation(6, (QuotedPassage(seq),), 9) for seq in (0, 2))
    view = LastView(quotations=quotations)
    assert read({0: [user("The limit is 900.")]}).drop_quotations(view, [0]).quotations == quotations[1:]
    assert read({0: []}, is_named=False).drop_quotations(view, []).quotations == quotations[1:]


def test_the_edits_of_a_condensed_round_stand_or_fall_together() -> None:
    told = Edit(3, "told", (("tell", 2, 80),), 9, 9)
    gone, masked = Edit(4, "told", (("gone",),), 0, 9), Edit(7, "masked", (("contents", 3),), 3, 9)
    view = LastView(edits=(told, gone, masked))
    versions = ClientVersions({4: ClientVersion(4, 8, 5, (b"{}",), 0)})
    assert versions.recount_view_for_versions(view, [4]).edits == (masked,)
    assert versions.recount_view_for_versions(view, [7]).edits == (told, gone)
