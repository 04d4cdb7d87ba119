from __future__ import annotations

import asyncio
import logging

import pytest
from msgspec.structs import replace

from app.compaction.acceptance.values_appendix import strip_appendix
from app.compaction.summarizer.prompts import compute_prompt_version
from app.context.plan.outline import SummaryRange
from app.context.plan.policy import SummarizerPolicy, make_policy
from app.context.view.view_rendering import count_summary_section_tokens
from app.conversation.identity import compute_start_position
from app.simulator.options_and_faults import SimulatedFaults, SimulatorOptions
from tests.compaction.simulated_compaction import COUNT, TENANT, Scene, job_for, log_of, rewrite, talk


async def test_a_range_becomes_a_stored_chunk_with_everything_known_of_its_ends() -> None:
    scene, log = Scene(), log_of(talk(12))
    result = await scene.compactor.compact(job_for(log, SummaryRange(0, 20)))
    [chunk] = result.summaries
    assert scene.stored == [chunk]
    assert (chunk.from_seq, chunk.to_seq, chunk.kind, chunk.model) == (0, 20, "model", "sim")
    assert (chunk.from_link, chunk.to_link) == (compute_start_position(TENANT).link, log[19].link)
    assert (chunk.tokens_total, chunk.through_turn, chunk.anchor_seq) == (log[19].tokens_total, 10, None)
    assert chunk.tokens == count_summary_section_tokens(chunk.text, through_turn=10, counter=COUNT)
    assert chunk.prompt_version == compute_prompt_version()
    assert "Number3 has code 33757" in chunk.text
    assert (result.has_run, result.outcome, result.model, result.warnings) == (True, "made", "sim", ())
    assert result.usage is not None
    assert result.usage["prompt_tokens"] > 0


async def test_a_chunk_that_ends_inside_a_turn_remembers_its_question() -> None:
    log = log_of([*talk(4), {"role": "user", "content": "Go."}, *[{"role": "assistant", "content": "Step."}] * 4])
    [chunk] = (await Scene().compactor.compact(job_for(log, SummaryRange(0, 10)))).summaries
    assert (chunk.anchor_seq, chunk.anchor_tokens, chunk.through_turn) == (8, log[8].tokens, 5)


async def test_twenty_callers_cost_one_call() -> None:
    scene, job = Scene(), job_for(log_of(talk(10)))
    results = await asyncio.gather(*(scene.compactor.compact(job) for _ in range(20)))
    assert len(scene.router.calls) == 1
    assert len({result.summaries[0].id for result in results}) == 1
    assert len(scene.stored) == 1


async def test_what_is_stored_already_is_used_without_a_word_to_the_client() -> None:
    scene, job = Scene(), job_for(log_of(talk(10)))
    await scene.compactor.compact(job)
    told: list[str] = []
    again = await scene.compactor.compact(job, on_start=lambda: told.append("started"))
    assert (again.has_run, again.outcome, told) == (False, "found", [])
    assert len(scene.router.calls) == 1


async def test_a_chunk_that_begins_at_the_same_place_is_taken_whatever_its_end() -> None:
    """Another process planned with a message more or less."""
    scene, log = Scene(), log_of(talk(12))
    [there] = (await scene.compactor.compact(job_for(log, SummaryRange(0, 18)))).summaries
    again = await scene.compactor.compact(job_for(log, SummaryRange(0, 20)))
    assert (again.summaries, again.has_run, again.outcome) == ((there,), False, "found")
    shorter = log_of(talk(8))
    own = await scene.compactor.compact(job_for(shorter, SummaryRange(0, 12)))
    assert own.summaries[0].to_seq == 12
    assert len(scene.router.calls) == 2


async def test_the_links_that_are_looked_up_grow_with_the_log_and_not_with_its_square() -> None:
    looked_up = []
    for messages in (1000, 4000):
        scene = Scene()
        log = log_of([{"role": "user", "content": f"Word {seq} " * 20} for seq in range(messages)])
        ranges = [SummaryRange(seq, seq + 50) for seq in range(0, messages, 50)]
        await scene.compactor.compact(job_for(log, *ranges))
        looked_up.append(scene.shelf.links_looked_up)
    assert looked_up[1] < 5 * looked_up[0]


async def test_the_client_is_told_before_the_model_answers_and_once_only() -> None:
    scene, log = Scene(is_open=False), log_of(talk(20))
    told: list[int] = []
    job = job_for(log, SummaryRange(0, 20), SummaryRange(20, 40))
    running = asyncio.create_task(scene.compactor.compact(job, on_start=lambda: told.append(len(scene.router.calls))))
    await scene.router.asked(1)
    assert told == [0]
    joined: list[str] = []
    second = asyncio.create_task(scene.compactor.compact(job, on_start=lambda: joined.append("started")))
    await asyncio.sleep(0)
    assert joined == ["started"]
    scene.router.gate.set()
    await asyncio.gather(running, second)
    assert told == [0]
    assert joined == ["started"]


async def test_a_chunk_is_stored_although_its_caller_has_gone() -> None:
    scene, job = Scene(is_open=False), job_for(log_of(talk(10)))
    caller = asyncio.create_task(scene.compactor.compact(job))
    await scene.router.asked(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    scene.router.gate.set()
    await scene.compactor.aclose(5.0)
    assert len(scene.stored) == 1


async def test_closing_waits_no_longer_than_told() -> None:
    scene, job = Scene(is_open=False), job_for(log_of(talk(10)))
    caller = asyncio.create_task(scene.compactor.compact(job))
    await scene.router.asked(1)
    await scene.compactor.aclose(0.0)
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert scene.stored == []


async def test_ranges_are_summarized_side_by_side_within_bounds() -> None:
    scene, log = Scene(is_open=False), log_of(talk(90))
    ranges = [SummaryRange(at, at + 12) for at in range(0, 180, 12)]
    running = asyncio.create_task(scene.compactor.compact(job_for(log, *ranges)))
    await scene.router.asked(12)
    scene.router.gate.set()
    result = await running
    assert [(chunk.from_seq, chunk.to_seq) for chunk in result.summaries] == [(at, at + 12) for at in range(0, 180, 12)]
    assert all(
        one.to_link == other.from_link for one, other in zip(result.summaries, result.summaries[1:], strict=False)
    )
    assert scene.router.most_running == 12


@pytest.mark.parametrize(
    "faults",
    [
        SimulatedFaults(empty=True),
        SimulatedFaults(status=500),
        SimulatedFaults(status=429),
        SimulatedFaults(garbage=True),
        SimulatedFaults(break_after=1),
    ],
    ids=["empty", "error", "busy", "garbage", "broken off"],
)
async def test_a_failing_summarizer_is_replaced_by_a_mechanical_summary(faults: SimulatedFaults) -> None:
    scene = Scene(options=SimulatorOptions(faults=faults))
    result = await scene.compactor.compact(job_for(log_of(talk(20))))
    [chunk] = result.summaries
    assert (chunk.kind, result.outcome, result.has_run) == ("mechanical", "mechanical", True)
    assert len(result.warnings) == 1
    assert scene.stored == [chunk]
    assert chunk.text.startswith("user: Thank you")
    assert COUNT.count(chunk.text) <= 512


async def test_the_log_says_why_no_model_wrote_a_summary(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="app.compaction"):
        scene = Scene(options=SimulatorOptions(faults=SimulatedFaults(status=500)))
        result = await scene.compactor.compact(job_for(log_of(talk(20))))
    [warning] = result.warnings
    assert caplog.messages == [f"a range of the log was not summarized by a model: {warning}"]


async def test_a_summarizer_that_never_answers_is_given_up() -> None:
    scene, policy = Scene(is_open=False), make_policy(summarizer=SummarizerPolicy(timeout_seconds=0.0))
    result = await scene.compactor.compact(job_for(log_of(talk(20)), policy=policy))
    assert result.outcome == "mechanical"
    assert "was silent for" in result.warnings[0]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_callers_bad_key_leaves_no_chunk_behind(status: int) -> None:
    scene = Scene(options=SimulatorOptions(faults=SimulatedFaults(status=status)))
    result = await scene.compactor.compact(job_for(log_of(talk(20))))
    assert len(result.summaries) == 1
    assert scene.stored == []


async def test_a_lost_lease_keeps_the_summary_for_this_request_only() -> None:
    scene = Scene()
    scene.shelf.lost.add(1)
    result = await scene.compactor.compact(job_for(log_of(talk(20))))
    assert len(result.summaries) == 1
    assert result.warnings
    assert scene.stored == []


async def test_a_lost_lease_yields_to_the_chunk_of_who_took_it() -> None:
    scene, other, job = Scene(is_open=False), Scene(), job_for(log_of(talk(20)))
    theirs = replace((await other.compactor.compact(job)).summaries[0], id="sum_theirs")
    scene.shelf.lost.add(1)
    running = asyncio.create_task(scene.compactor.compact(job))
    await scene.router.asked(1)
    scene.shelf.chunks_by_range[theirs.from_link, theirs.to_link, False] = theirs
    scene.router.gate.set()
    assert (await running).summaries == (theirs,)


async def test_without_the_store_a_summary_serves_the_request_and_is_stored_when_the_store_is_back() -> None:
    scene, job = Scene(), job_for(log_of(talk(20)))
    scene.shelf.is_down = True
    first = await scene.compactor.compact(job)
    assert len(first.summaries) == 1
    assert first.warnings == ("The summary could not be stored.",)
    assert len(scene.router.calls) == 1
    scene.shelf.is_down = False
    await scene.compactor.compact(job)
    assert len(scene.router.calls) == 2
    assert len(scene.stored) == 1


async def test_another_process_that_takes_too_long_does_not_hold_up_the_request() -> None:
    scene = Scene()
    scene.keys.is_busy = True
    result = await scene.compactor.compact(job_for(log_of(talk(20))))
    assert [chunk.kind for chunk in result.summaries] == ["mechanical"]
    assert scene.stored == []
    assert scene.router.calls == []


async def test_a_range_that_nothing_can_shorten_is_left_alone() -> None:
    log = log_of([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
    result = await Scene(options=SimulatorOptions(faults=SimulatedFaults(status=500))).compactor.compact(job_for(log))
    assert (result.summaries, result.outcome, result.has_run) == ((), "none", False)


async def test_a_fold_stands_for_its_chunks_and_names_them() -> None:
    scene, log = Scene(), log_of(talk(40))
    made = (await scene.compactor.compact(job_for(log, SummaryRange(0, 40), SummaryRange(40, 80)))).summaries
    wanted = SummaryRange(0, 80, tuple(chunk.id for chunk in made))
    [fold] = (await scene.compactor.compact(job_for(log, wanted, available_summaries=made))).summaries
    assert fold.folds == tuple(chunk.id for chunk in made)
    assert (fold.from_link, fold.to_link, fold.to_seq) == (made[0].from_link, made[1].to_link, 80)
    assert (fold.tokens_total, fold.through_turn) == (made[1].tokens_total, made[1].through_turn)
    assert fold.tokens < made[0].tokens + made[1].tokens
    assert "Merge the summaries" in scene.router.calls[-1]["messages"][0]["content"]
    assert len(scene.stored) == 3


async def test_a_fold_that_a_model_refuses_keeps_lines_of_its_chunks() -> None:
    scene, failing, log = Scene(), Scene(options=SimulatorOptions(faults=SimulatedFaults(status=500))), log_of(talk(40))
    made = (await scene.compactor.compact(job_for(log, SummaryRange(0, 40), SummaryRange(40, 80)))).summaries
    wanted = SummaryRange(0, 80, tuple(chunk.id for chunk in made))
    [fold] = (await failing.compactor.compact(job_for(log, wanted, available_summaries=made))).summaries
    assert fold.kind == "mechanical"
    assert fold.text.splitlines()[0] == made[0].text.splitlines()[0]
    assert strip_appendix(made[1].text).splitlines()[-1] in fold.text.splitlines()
    assert "Number39" in fold.text


async def test_what_nobody_waits_for_is_left_off_at_the_end() -> None:
    scene, job = Scene(is_open=False), job_for(log_of(talk(10)))
    ahead = asyncio.create_task(scene.compactor.compact(job, is_ahead=True))
    await scene.router.asked(1)
    await scene.compactor.aclose(60.0)
    with pytest.raises(asyncio.CancelledError):
        await ahead
    assert scene.stored == []


async def test_nothing_is_made_ahead_without_a_model() -> None:
    scene = Scene(options=SimulatorOptions(faults=SimulatedFaults(status=500)))
    result = await scene.compactor.compact(job_for(log_of(talk(10))), is_ahead=True)
    assert (result.has_run, result.outcome, result.summaries, scene.stored) == (False, "none", (), [])


async def test_who_needs_what_is_being_prepared_waits_for_it_and_is_told() -> None:
    scene, job = Scene(is_open=False), job_for(log_of(talk(10)))
    ahead = asyncio.create_task(scene.compactor.compact(job, is_ahead=True))
    await scene.router.asked(1)
    told = asyncio.Event()
    needed = asyncio.create_task(scene.compactor.compact(job, on_start=told.set))
    await asyncio.wait_for(told.wait(), 5)
    scene.router.gate.set()
    made, found = await asyncio.gather(ahead, needed)
    assert (made.outcome, found.outcome, len(scene.router.calls)) == ("made", "found", 1)
    assert found.summaries == made.summaries


async def test_who_waits_for_what_is_made_ahead_goes_on_although_it_fails_or_is_left_off() -> None:
    failing, job = Scene(options=SimulatorOptions(faults=SimulatedFaults(status=500))), job_for(log_of(talk(10)))
    ahead = asyncio.create_task(failing.compactor.compact(job, is_ahead=True))
    await asyncio.sleep(0)
    found = await failing.compactor.wait_for_precompaction(job.conversation_id, None)
    assert found is not None
    assert (found.has_run, found.summaries, (await ahead).summaries) == (False, (), ())
    assert await failing.compactor.wait_for_precompaction(job.conversation_id, None) is None

    closing = Scene(is_open=False)
    ahead = asyncio.create_task(closing.compactor.compact(job, is_ahead=True))
    await closing.router.asked(1)
    assert await closing.compactor.wait_for_precompaction("another", None) is None
    waiting = asyncio.create_task(closing.compactor.wait_for_precompaction(job.conversation_id, None))
    await asyncio.sleep(0)
    await closing.compactor.aclose(60.0)
    left = await waiting
    assert left is not None
    assert left.summaries == ()
    with pytest.raises(asyncio.CancelledError):
        await ahead


async def test_a_refusal_is_not_stored_and_a_model_writes_the_summary_later() -> None:
    said = ["I'm sorry, but I can't help with that request."] * 2
    scene = Scene(said=lambda body: {"content": said.pop() if said else "Colleagues and their lockers."})
    job = job_for(log_of(talk(20)))
    result = await scene.compactor.compact(job)
    assert (result.outcome, [one.kind for one in scene.stored]) == ("mechanical", ["mechanical"])
    assert "says nothing" in result.warnings[0]
    await rewrite(scene.compactor, job, scene.stored[0])
    assert [(one.kind, one.text.splitlines()[0]) for one in scene.stored] == [
        ("model", "Colleagues and their lockers.")
    ]
