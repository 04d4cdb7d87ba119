"""A checkpoint of a long log reads summaries of its older parts, each of which is written once."""

from __future__ import annotations

import re

from app.context.plan.outline import SummaryRange
from app.context.plan.policy import make_policy
from app.context.plan.summary_chain import find_chain_and_folds
from app.conversation.conversation_types import Summary
from tests.compaction.simulated_compaction import Body, Scene, job_for, log_of, saying, talk

CHECKPOINT = make_policy(name="checkpoint", kind="checkpoint")
GOOD = "Lockers were given to colleagues, each with a code."


def said_of(body: Body) -> str:
    return str(body["messages"][-1]["content"])


def parts_in(scene: Scene) -> list[Summary]:
    return sorted(
        (chunk for chunk in scene.shelf.chunks_by_range.values() if chunk.kind == "part"),
        key=lambda chunk: (bool(chunk.folds), chunk.from_seq),
    )


async def checkpoints(scene: Scene, ends: list[int]) -> list[int]:
    """Write one after the other, each over a longer log. How many calls each took."""
    log = log_of(talk(ends[-1] // 2))
    base, calls = None, []
    for end in ends:
        wanted = SummaryRange(0, end, style="checkpoint", base=base.id if base else "")
        job = job_for(log[:end], wanted, policy=CHECKPOINT, available_summaries=(base,) if base else ())
        before = len(scene.router.calls)
        [base] = (await scene.compactor.compact(job)).summaries
        assert (base.kind, base.from_seq, base.to_seq) == ("model", 0, end)
        calls.append(len(scene.router.calls) - before)
    return calls


async def test_what_fits_is_read_as_it_is_and_leaves_no_parts() -> None:
    scene = Scene(said=saying(GOOD))
    assert await checkpoints(scene, [60]) == [1]
    assert parts_in(scene) == []


async def test_a_part_is_summarized_once_whatever_the_number_of_checkpoints() -> None:
    scene = Scene(said=saying(GOOD))
    ends = [120 * number for number in range(1, 18)]
    calls = await checkpoints(scene, ends)
    assert sum(calls) <= 2.3 * len(ends), "linear in the log, not in its square"
    assert max(calls) <= 4
    parts = parts_in(scene)
    assert [one.to_seq for one in parts[:-1]] == [one.from_seq for one in parts[1:]], "without gap or overlap"


async def test_a_later_checkpoint_reads_parts_and_the_end_of_the_log_and_never_the_checkpoint_before() -> None:
    scene = Scene(
        said=lambda body: {
            "role": "assistant",
            "content": "All lockers" if "checkpoint" in said_of(body) else "Lockers",
        }
    )
    await checkpoints(scene, [180, 200])
    told = said_of(scene.router.calls[-1])
    assert "An earlier checkpoint was written for me" in told
    assert "Its older parts are given below as summaries" in told
    assert len(re.findall(r"\[\d+\] summary\nLockers", told)) == len(parts_in(scene)) > 0
    assert not re.findall(r"\[\d+\] summary\nAll", told)
    assert "Number99 has code" in told, "the end of the log word for word"
    assert "The locker of colleague Number3 has code" not in told


async def test_another_process_finds_the_parts() -> None:
    first, second = Scene(said=saying(GOOD)), Scene(said=saying(GOOD))
    before = await checkpoints(first, [400])
    second.shelf.chunks_by_range = {key: one for key, one in first.shelf.chunks_by_range.items() if one.kind == "part"}
    assert (await checkpoints(second, [400]), before[0] > 2) == ([1], True)


async def test_a_part_that_was_deleted_is_written_again_and_the_others_are_not() -> None:
    scene = Scene(said=saying(GOOD))
    await checkpoints(scene, [700])
    gone = parts_in(scene)[1]
    shelf = scene.shelf.chunks_by_range
    del shelf[gone.from_link, gone.to_link, False]
    assert await checkpoints(scene, [702]) == [2]
    assert gone.to_link in {chunk.to_link for chunk in parts_in(scene)}


async def test_summaries_of_parts_that_grow_too_long_are_merged_and_the_merged_one_is_kept() -> None:
    scene = Scene(said=saying(GOOD * 30))
    calls = await checkpoints(scene, [120 * number for number in range(1, 18)])
    merged = [chunk for chunk in parts_in(scene) if chunk.folds]
    assert merged
    assert sum(calls) <= 2.5 * 17
    assert set(merged[0].folds) <= {chunk.id for chunk in parts_in(scene)}


async def test_parts_that_were_written_are_kept_although_the_checkpoint_fails() -> None:
    asked: list[str] = []

    def failing(body: Body) -> Body | int:
        asked.append(said_of(body))
        return 500 if "checkpoint" in asked[-1] else {"role": "assistant", "content": GOOD}

    scene = Scene(said=failing)
    log = log_of(talk(200))
    made = await scene.compactor.compact(job_for(log, SummaryRange(0, 400, style="checkpoint"), policy=CHECKPOINT))
    assert made.outcome == "mechanical"
    assert len(parts_in(scene)) >= 2
    again = Scene(said=saying(GOOD))
    again.shelf.chunks_by_range = {key: one for key, one in scene.shelf.chunks_by_range.items() if one.kind == "part"}
    assert await checkpoints(again, [400]) == [1]


async def test_a_part_is_shown_in_no_view() -> None:
    scene = Scene(said=saying(GOOD))
    await checkpoints(scene, [400])
    parts = parts_in(scene)
    assert parts[0].from_seq == 0
    assert find_chain_and_folds(parts) == ((), ())
    [shown] = find_chain_and_folds(scene.shelf.chunks_by_range.values(), are_replacing=True)[0]
    assert (shown.kind, shown.to_seq) == ("model", 400)
