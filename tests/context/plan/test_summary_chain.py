from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.context.plan.budget import compute_budget
from app.context.plan.log_rounds import LogTail
from app.context.plan.outline import LOG_START, Outline, SummaryRange
from app.context.plan.planner import choose_fold_range
from app.context.plan.policy import ContextPolicy
from app.context.plan.summary_chain import (
    accumulate_chain_tokens,
    choose_fold,
    find_chain_and_folds,
    list_shown_summaries,
)
from app.context.plan.view_candidates import ViewCandidate
from app.context.stages.draft import Draft, DraftContext
from app.context.view.client_versions import ClientVersions
from app.context.view.client_words import ClientWords
from app.conversation.conversation_types import ClientVersion, Summary
from tests.context.planned_conversation import COUNT, START, World, chunk_of, user

BUDGET = compute_budget(ContextPolicy(), window=8192, requested_output=None)


def leave_out(seqs: set[int]) -> ClientWords:
    """Of a client that leaves out tool rounds."""
    return ClientWords(versions=ClientVersions({seq: ClientVersion(seq, 99, seq + 1, (), 0) for seq in seqs}))


def later(seconds: int) -> dict[str, Any]:
    return {"created_at": START + timedelta(seconds=seconds)}


def test_each_chunk_of_the_chain_begins_where_the_one_before_ended() -> None:
    first, second, apart = chunk_of(4), chunk_of(9, from_seq=4), chunk_of(20, from_seq=12)
    assert find_chain_and_folds([apart, second, first]) == ((first, second), ())


def test_without_a_chunk_from_the_start_there_is_no_chain() -> None:
    assert find_chain_and_folds([chunk_of(9, from_seq=4)]) == ((), ())


def test_a_models_summary_goes_before_a_mechanical_one_then_the_oldest() -> None:
    mechanical = chunk_of(4, id="a", kind="mechanical")
    newer = chunk_of(5, id="b", **later(2))
    older = chunk_of(6, id="c", **later(1))
    assert find_chain_and_folds([mechanical, newer, older])[0] == (older,)
    assert find_chain_and_folds([mechanical])[0] == (mechanical,)


def test_a_summary_that_was_revised_goes_before_an_older_one() -> None:
    older, revised = chunk_of(5, id="a"), chunk_of(6, id="b", revision=2, kind="edited", **later(9))
    assert find_chain_and_folds([older, revised])[0] == (revised,)


def test_the_id_settles_what_time_does_not() -> None:
    assert find_chain_and_folds([chunk_of(6, id="b"), chunk_of(5, id="a")])[0][0].id == "a"


def test_a_fold_counts_only_where_a_chunk_of_the_chain_ends() -> None:
    first, second = chunk_of(4), chunk_of(9, from_seq=4)
    fold = chunk_of(9, id="fold", folds=("chunk_0_4", "chunk_4_9"))
    astray = chunk_of(7, id="astray", folds=("x", "y"))
    assert find_chain_and_folds([fold, astray, second, first]) == ((first, second), (fold,))
    assert find_chain_and_folds([fold]) == ((), ())


def test_the_fold_that_takes_in_least_stands_where_the_chunks_weigh_too_much() -> None:
    chain = tuple(chunk_of(end, from_seq=end - 5, tokens=100) for end in (5, 10, 15, 20))
    short = chunk_of(10, id="short", folds=("1", "2"), tokens=100)
    long = chunk_of(15, id="long", folds=("short", "3"), tokens=100)

    def shown(count: int, limit_tokens: int) -> tuple[Summary, ...]:
        totals = accumulate_chain_tokens(chain)
        fold = choose_fold((short, long), totals, chain[count - 1].to_seq if count else 0, limit_tokens)
        return list_shown_summaries(chain, fold, count)

    assert shown(4, 400) == chain
    assert shown(4, 399) == (short, *chain[2:])
    assert shown(4, 299) == (long, chain[3])
    assert shown(4, 0) == (long, chain[3])
    assert shown(2, 0) == (short,)
    assert shown(1, 0) == (chain[0],)
    assert shown(0, 0) == ()


@given(st.permutations([chunk_of(end, from_seq=start) for start in (0, 3, 6) for end in (start + 3, start + 6)]))
def test_the_order_in_which_chunks_are_read_does_not_matter(chunks: list[Summary]) -> None:
    assert find_chain_and_folds(chunks) == find_chain_and_folds(chunks[::-1])


def test_the_chain_goes_on_behind_what_the_client_leaves_out() -> None:
    first, second = chunk_of(9, from_seq=4), chunk_of(20, from_seq=12)
    assert find_chain_and_folds([first, second], words=leave_out({0, 1, 2, 3, 9, 10, 11}))[0] == (first, second)
    assert find_chain_and_folds([first, second], words=leave_out({0, 1, 2, 3, 9, 11}))[0] == (first,)


def test_a_chunk_of_which_the_client_sends_nothing_is_not_shown_and_one_of_which_it_sends_some_is() -> None:
    first, second, third = chunk_of(4), chunk_of(9, from_seq=4), chunk_of(12, from_seq=9)
    assert find_chain_and_folds([first, second, third], words=leave_out({*range(8)}))[0] == (second, third)
    assert find_chain_and_folds([first, second, third], words=leave_out({*range(9)}))[0] == (third,)


def test_a_fold_stands_for_what_begins_no_earlier_than_itself() -> None:
    chunks = [chunk_of(4), chunk_of(9, from_seq=4), chunk_of(12, from_seq=9)]
    fold = chunk_of(12, from_seq=4, id="fold", folds=("chunk_4_9", "chunk_9_12"))
    assert find_chain_and_folds([*chunks, fold], words=leave_out({*range(5)})) == ((chunks[1], chunks[2]), (fold,))
    assert find_chain_and_folds([*chunks, fold], words=leave_out({*range(1, 4)})) == (tuple(chunks), ())


def test_messages_that_a_summary_of_the_client_stands_for_are_not_left_out() -> None:
    versions = {seq: ClientVersion(seq, 20, seq + 1, (), -9) for seq in range(10)}
    assert ClientWords(versions=ClientVersions(versions)).omitted_seqs == set(range(10))
    versions[2] = ClientVersion(2, 20, 7, (b'{"role":"user","content":"a summary"}',), -9)
    assert ClientWords(versions=ClientVersions(versions)).omitted_seqs == {0, 1, 7, 8, 9}


def test_a_fold_takes_in_no_chunk_behind_a_gap() -> None:
    first, second, apart = (chunk_of(end, from_seq=end - 4, tokens=900) for end in (8, 12, 24))
    view = ViewCandidate((first, second, apart), LOG_START, 4000)
    fold, _ = choose_fold_range(view, BUDGET, ContextPolicy(), COUNT, 8000)
    assert fold == SummaryRange(4, 12, (first.id, second.id))


def test_what_the_client_leaves_out_is_not_counted_as_dropped() -> None:
    log = World(bodies=[user("a") for _ in range(12)]).log
    tail = LogTail(log, after=None)

    def count_dropped(omitted_seqs: set[int]) -> int:
        outline = Outline(0, log_tokens=0, next_seq=len(log), omitted_seqs=omitted_seqs)
        context = DraftContext(outline, tail, BUDGET, ContextPolicy(), COUNT)
        return Draft(context, (), tail.build_boundary(8)).dropped_message_count

    assert count_dropped({0, 1, 2, 6}) == 4
    assert count_dropped(set()) == 8
