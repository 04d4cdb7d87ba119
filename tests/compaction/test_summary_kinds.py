"""Checkpoints, rolling summaries, and mechanical chunks that a model replaces later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.compaction.compaction_job import CompactionJob
from app.context.plan.log_rounds import LogTail
from app.context.plan.outline import SummaryRange
from app.context.plan.policy import ContextPolicy, SummarizerPolicy, make_policy
from app.conversation.conversation_types import LogMessage, Summary
from app.conversation.identity import compute_start_position
from app.errors import UpstreamUnavailable
from app.store.contract.conversations import WriteConflict
from tests.compaction.simulated_compaction import TENANT, Scene, job_for, log_of, rewrite, saying, talk

GOOD = "Colleague lockers were discussed at length."


def rolling(log: list[LogMessage], base: Summary, to_seq: int) -> CompactionJob:
    """The job for a rolling summary after `base`, with the tail that a planner has loaded by then."""
    wanted = SummaryRange(0, to_seq, style="recursive", base=base.id)
    tail = LogTail(log[base.to_seq :], after=base)
    return job_for(log, wanted, log_tail=tail, start_link=base.to_link, available_summaries=(base,))


async def test_a_checkpoint_reads_the_whole_log_and_does_not_take_the_last_one_for_itself() -> None:
    scene, log = Scene(said=saying(GOOD)), log_of(talk(20))
    [first] = (await scene.compactor.compact(job_for(log[:20], SummaryRange(0, 20, style="checkpoint")))).summaries
    wanted = SummaryRange(0, 40, style="checkpoint", base=first.id)
    [second] = (await scene.compactor.compact(job_for(log, wanted, available_summaries=(first,)))).summaries
    told = [body["messages"][0]["content"] for body in scene.router.calls]
    assert [text.startswith("Stop here for a moment.") for text in told] == [True, False]
    assert told[1].startswith("An earlier checkpoint was written for me")
    assert "Number3 has code" in told[1]
    assert GOOD not in told[1]
    assert (second.from_seq, second.to_seq, second.folds) == (0, 40, ())
    assert second.prompt_version != first.prompt_version
    again = await scene.compactor.compact(job_for(log, wanted, available_summaries=(first,)))
    assert (again.summaries, again.outcome) == ((second,), "found")


async def test_a_checkpoint_without_a_known_one_before_is_made_although_a_shorter_is_stored() -> None:
    scene, log = Scene(said=saying(GOOD)), log_of(talk(20))
    await scene.compactor.compact(job_for(log[:20], SummaryRange(0, 20, style="checkpoint")))
    [second] = (await scene.compactor.compact(job_for(log, SummaryRange(0, 40, style="checkpoint")))).summaries
    assert second.to_seq == 40


async def test_a_rolling_summary_reads_the_last_one_and_what_was_said_since() -> None:
    scene, log = (
        Scene(said=saying("The first ten lockers were told.", "All twenty lockers were told.")),
        log_of(talk(20)),
    )
    [first] = (await scene.compactor.compact(job_for(log[:20], SummaryRange(0, 20, style="recursive")))).summaries
    [second] = (await scene.compactor.compact(rolling(log, first, 40))).summaries
    told = scene.router.calls[1]["messages"][0]["content"]
    assert "[1] summary\nThe first ten lockers were told." in told
    assert "Number12 has code" in told
    assert "Thank you for all of this, it was a pleasure to hear from you" in told
    assert told.count("The locker of colleague") == 10
    assert (second.from_seq, second.to_seq, second.folds) == (0, 40, ())
    assert second.from_link == compute_start_position(TENANT).link
    assert second.tokens_total == log[-1].tokens_total
    assert second.through_turn == 20
    assert "Number3" in second.text


async def test_a_rolling_summary_without_a_model_keeps_lines_of_the_last_one() -> None:
    scene, log = Scene(said=saying("The first ten lockers were told.")), log_of(talk(20))
    [first] = (await scene.compactor.compact(job_for(log[:20], SummaryRange(0, 20, style="recursive")))).summaries
    failing = Scene(said=lambda body: 500)
    [second] = (await failing.compactor.compact(rolling(log, first, 40))).summaries
    assert (second.kind, second.to_seq) == ("mechanical", 40)
    assert second.text.startswith("The first ten lockers were told.")
    assert "Number12" in second.text


async def test_a_range_is_asked_for_where_its_prefix_ends() -> None:
    scene, log = Scene(said=saying(GOOD)), log_of(talk(20))
    prefix = [b'{"role":"system","content":"Be brief."}', *(entry.message.raw for entry in log[:20])]
    tools = b'[{"type":"function","function":{"name":"look"}}]'
    job = job_for(
        log, SummaryRange(0, 20), SummaryRange(20, 40), view_prefixes={20: (prefix, 0)}, fields={"tools": tools}
    )
    await scene.compactor.compact(job)
    assert sorted(len(body["messages"]) for body in scene.router.calls) == [1, 22]
    assert sorted("tools" in body for body in scene.router.calls) == [False, True]


async def test_a_mechanical_chunk_is_replaced_under_its_id_once_a_model_is_back() -> None:
    answers = [500, 500]
    scene = Scene(said=lambda body: answers.pop() if answers else {"content": GOOD})
    job = job_for(log_of(talk(20)))
    [there] = (await scene.compactor.compact(job)).summaries
    assert there.kind == "mechanical"
    with pytest.raises(UpstreamUnavailable):
        await rewrite(scene.compactor, job, there)
    assert scene.stored == [there]
    chunk = await rewrite(scene.compactor, job, there)
    assert (chunk.id, chunk.kind, chunk.revision) == (there.id, "model", 2)
    assert scene.stored == [chunk]
    calls = len(scene.router.calls)
    with pytest.raises(WriteConflict):
        await rewrite(scene.compactor, job, there)
    assert len(scene.router.calls) == calls


async def test_nothing_is_written_again_while_models_rest_or_nothing_is_stored() -> None:
    scene = Scene(said=lambda body: 500)
    job = job_for(log_of(talk(20)))
    [unstored] = (await Scene(said=lambda body: 500).compactor.compact(job)).summaries
    with pytest.raises(WriteConflict):
        await rewrite(scene.compactor, job, unstored)
    assert scene.router.calls == []
    [there] = (await scene.compactor.compact(job)).summaries
    for _ in range(3):
        with pytest.raises(UpstreamUnavailable):
            await rewrite(scene.compactor, job, there)
    calls = len(scene.router.calls)
    assert calls == 3
    scene.seconds += 31
    with pytest.raises(UpstreamUnavailable):
        await rewrite(scene.compactor, job, there)
    assert len(scene.router.calls) == calls + 1


async def test_a_mechanical_chunk_stands_while_a_model_rests_and_is_not_asked_for_every_turn() -> None:
    scene = Scene(said=lambda body: 503)
    job = job_for(log_of(talk(20)))
    for _ in range(10):
        result = await scene.compactor.compact(job)
    assert result.outcome == "found"
    assert len(scene.router.calls) == 1
    other = job_for(log_of(talk(12)))
    for turns in (14, 16, 18):
        await scene.compactor.compact(job_for(log_of([*talk(turns), {"role": "user", "content": str(turns)}])))
    result = await scene.compactor.compact(other)
    assert len(scene.router.calls) == 3
    assert result.outcome == "mechanical"
    assert "gets no calls for" in result.warnings[0]


@pytest.mark.parametrize("style", ["additive", "checkpoint", "recursive"])
async def test_a_summary_says_which_instruction_wrote_it(style: str) -> None:
    log = log_of(talk(20))
    wanted = SummaryRange(0, 40, style=style)  # type: ignore[arg-type]
    policy = make_policy(summarizer=SummarizerPolicy(prompt="Be a nurse.", model="sim-cheap"))
    chunks = [
        (await Scene(said=saying(GOOD)).compactor.compact(replace(job_for(log, wanted), policy=chosen))).summaries[0]
        for chosen in (policy, ContextPolicy())
    ]
    assert chunks[0].prompt_version != chunks[1].prompt_version
    assert [chunk.model for chunk in chunks] == ["sim-cheap", "sim"]
