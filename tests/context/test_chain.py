from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.context.chain import active_chain, fold_at, shown_at, totals_by_end
from app.conversation.messages import Chunk
from tests.context.worlds import START, chunk_of


def later(seconds: int) -> dict[str, Any]:
    return {"created_at": START + timedelta(seconds=seconds)}


def test_each_chunk_of_the_chain_begins_where_the_one_before_ended() -> None:
    first, second, apart = chunk_of(4), chunk_of(9, from_seq=4), chunk_of(20, from_seq=12)
    assert active_chain([apart, second, first]) == ((first, second), ())


def test_without_a_chunk_from_the_start_there_is_no_chain() -> None:
    assert active_chain([chunk_of(9, from_seq=4)]) == ((), ())


def test_a_models_summary_goes_before_a_mechanical_one_then_the_oldest() -> None:
    mechanical = chunk_of(4, id="a", kind="mechanical")
    newer = chunk_of(5, id="b", **later(2))
    older = chunk_of(6, id="c", **later(1))
    assert active_chain([mechanical, newer, older])[0] == (older,)
    assert active_chain([mechanical])[0] == (mechanical,)


def test_a_summary_that_was_revised_goes_before_an_older_one() -> None:
    older, revised = chunk_of(5, id="a"), chunk_of(6, id="b", revision=2, kind="edited", **later(9))
    assert active_chain([older, revised])[0] == (revised,)


def test_the_id_settles_what_time_does_not() -> None:
    assert active_chain([chunk_of(6, id="b"), chunk_of(5, id="a")])[0][0].id == "a"


def test_a_fold_counts_only_where_a_chunk_of_the_chain_ends() -> None:
    first, second = chunk_of(4), chunk_of(9, from_seq=4)
    fold = chunk_of(9, id="fold", folds=("chunk_0_4", "chunk_4_9"))
    astray = chunk_of(7, id="astray", folds=("x", "y"))
    assert active_chain([fold, astray, second, first]) == ((first, second), (fold,))
    assert active_chain([fold]) == ((), ())


def test_the_fold_that_takes_in_least_stands_where_the_chunks_weigh_too_much() -> None:
    chain = tuple(chunk_of(end, from_seq=end - 5, tokens=100) for end in (5, 10, 15, 20))
    short = chunk_of(10, id="short", folds=("1", "2"), tokens=100)
    long = chunk_of(15, id="long", folds=("short", "3"), tokens=100)

    def shown(count: int, limit_tokens: int) -> tuple[Chunk, ...]:
        totals = totals_by_end(chain)
        fold = fold_at((short, long), totals, chain[count - 1].to_seq if count else 0, limit_tokens)
        return shown_at(chain, fold, count)

    assert shown(4, 400) == chain
    assert shown(4, 399) == (short, *chain[2:])
    assert shown(4, 299) == (long, chain[3])
    assert shown(4, 0) == (long, chain[3])
    assert shown(2, 0) == (short,)
    assert shown(1, 0) == (chain[0],)
    assert shown(0, 0) == ()


@given(st.permutations([chunk_of(end, from_seq=start) for start in (0, 3, 6) for end in (start + 3, start + 6)]))
def test_the_order_in_which_chunks_are_read_does_not_matter(chunks: list[Chunk]) -> None:
    assert active_chain(chunks) == active_chain(chunks[::-1])
