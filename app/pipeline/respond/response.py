"""An answer on its way back: relayed or spliced, and stored before the last byte leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, Final

from msgspec.structs import replace

from app.context.calibration import HIGHEST_SLOPE
from app.context.count.provider_usage import Input, input_of
from app.context.count.token_counter import is_long
from app.context.plan.budget import compaction_line
from app.context.plan.outline import last_view
from app.context.plan.policy import Policy
from app.conversation.messages import Conversation, Message
from app.errors import GatewayError, StoreUnavailable, UpstreamUnavailable, release_frames
from app.observability.metrics import SILENT, Metrics
from app.observability.request_facts import note_error
from app.pipeline.admission.answer_replay import DIGEST
from app.pipeline.background_tasks import Tasks, ended
from app.pipeline.call.first_event import Begun
from app.pipeline.call.search_tool_loop import Recalling
from app.pipeline.call.upstream_call import Ask, Asked
from app.pipeline.compact.precompaction import Preparing
from app.pipeline.persist.stored_completion import Storing
from app.pipeline.persist.turn_writer import Given, Remember
from app.pipeline.resolve.held_leases import Held
from app.pipeline.resolve.resolved_request import Writing, unkept
from app.pipeline.respond.answer import WholeAnswer
from app.pipeline.respond.context_status import Report, passed_on, status_of
from app.pipeline.respond.stream_frames import DONE_FRAME, EarlyStream, error_frames, spliced
from app.pipeline.respond.stream_relay import Relay, await_end, finished_whole
from app.pipeline.respond.turn_metrics import facts_of_turn, note_view
from app.pipeline.view.view_builder import Turn, View
from app.pipeline.view.view_history import ASKED, SEEN, asked_facts, facts_of
from app.pipeline.view.view_state import CALIBRATION, VIEWS, last_view_of, with_view
from app.upstream.protocols.stream_collector import Collector
from app.upstream.routing.router import ReadReply

CUT_PROMPT_TOKENS: Final = 2048
"""Shorter prompts are not doubted: the smallest window that servers are started with."""
CUT_SHARE: Final = 0.5
"""Counts differ by tokenizer, yet hardly by more."""

log = logging.getLogger(__name__)


class Delivery:
    """Delivers answers. What a client has wholly received is stored, and outlives its hanging up."""

    def __init__(
        self,
        *,
        remember: Remember,
        ask: Ask,
        recalling: Recalling,
        preparing: Preparing,
        storing: Storing,
        tasks: Tasks,
        metrics: Metrics = SILENT,
    ) -> None:
        self._remember = remember
        self._recalling = recalling
        self._preparing = preparing
        self._storing = storing
        self._ask = ask
        self._tasks = tasks
        self._told_of: set[str] = set()
        """Models of whose providers the log says that they may cut prompts: once is enough."""
        self._metrics = metrics

    def whole(self, turn: Turn, view: View, asked: Asked, held: Held) -> Coroutine[Any, Any, WholeAnswer]:
        """A whole answer: stored, then given our fields. Lets go of what the turn holds."""
        if turn.recalled is None:
            return self._whole(turn, view, asked, held)
        return self._tasks.finish(self._whole(turn, view, asked, held.handed_on()))

    async def _whole(self, turn: Turn, view: View, asked: Asked, held: Held) -> WholeAnswer:
        try:
            collector, body = await self._read(turn, asked)
            report, reported = report_of(turn, asked.shown), _reported(turn, collector.usage)
            if cut := _cut_by_provider(report, reported):
                report = report.warned(cut)
            note_view(turn.request, report)
            context = report.context(reported)
            try:
                conversation = await self._store_answer(turn, view, asked, collector, report, context, reported)
                if report.conversation_id not in (None, conversation.id):
                    report = replace(report, conversation_id=conversation.id)
            except StoreUnavailable as unavailable:
                if turn.place.needs_store:
                    raise
                release_frames(unavailable)
                report = _without_answer(turn, asked.shown, report)
                context = report.context(reported)
            finally:
                self._count(asked, report, collector.usage, is_whole=True)
        finally:
            await held.let_go()
        headers = {**passed_on(asked.reply.headers), **report.headers(turn.request.request_id)}
        return WholeAnswer(spliced(body, report.all_fields(context)), headers)

    async def _read(self, turn: Turn, asked: Asked) -> tuple[Collector, bytes]:
        """An answer that is not streamed, once its model searches no more: what it amounts to, and its body."""
        try:
            if turn.recalled is not None:
                asked = await self._recalling.whole(turn, asked)
            assert isinstance(asked.reply, ReadReply)
            return finished_whole(asked.reply.body, asked.deployment), asked.reply.body
        except GatewayError:
            await self._tasks.finish(self._remember.nothing(turn.place))
            raise

    async def stream(
        self, turn: Turn, view: View, asked: Asked, held: Held, report: Report, early: EarlyStream | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The upstream's stream as it comes; the answer is stored before the last frame, whoever hangs up. Lets go of
        what the turn holds."""
        assert isinstance(asked.reply, Begun)
        note_view(turn.request, report)
        source = asked.deployment.key
        relay = Relay(asked.reply, report, include_usage=turn.request.include_usage, early=early, source=source)
        is_over = False
        pieces = asked.reply.pieces
        try:
            if frames := relay.begin():
                yield frames
            try:
                if not relay.has_ended:
                    async for piece in pieces:
                        if frames := relay.feed(piece):
                            yield frames
                        if relay.has_ended:
                            break
                    else:
                        if frames := relay.finish():
                            yield frames
                if relay.is_done:
                    await await_end(pieces)
                relay.close()
            except UpstreamUnavailable as broken:
                relay.close(broken)
            is_over = True
            yield await self._end_of_stream(turn, view, relay, report, asked)
        finally:
            if is_over:
                await asked.reply.aclose()
                await held.let_go()
            else:
                await self._tasks.finish(self._cut_off(turn, view, relay, report, asked, held.handed_on()))

    async def _end_of_stream(self, turn: Turn, view: View, relay: Relay, report: Report, asked: Asked) -> bytes:
        """Store what the stream amounted to; its last frames."""
        error, amended = relay.failure, b""
        try:
            await self._store_stream(turn, view, relay, report, asked)
        except StoreUnavailable as unavailable:
            release_frames(unavailable)
            if turn.place.needs_store:
                error = unavailable
            else:
                log.warning("an answer could not be stored: %s", unavailable.message)
                amended = relay.amended(_without_answer(turn, asked.shown, report))
        except GatewayError as refused:
            release_frames(refused)
            error = refused
        if error is None:
            return amended + DONE_FRAME
        note_error(error)
        return error_frames(error)

    async def _cut_off(self, turn: Turn, view: View, relay: Relay, report: Report, asked: Asked, held: Held) -> None:
        """Nobody waits for the rest of a stream: keep what had come by then."""
        await asked.reply.aclose()
        try:
            await self._store_stream(turn, view, relay, report, asked)
        except GatewayError as error:
            release_frames(error)
            log.warning("what a client had received could not be stored: %s", error.message)
        finally:
            await held.let_go()

    async def _store_stream(self, turn: Turn, view: View, relay: Relay, report: Report, asked: Asked) -> None:
        collector = relay.collector
        collector.id = relay.completion_id
        if collector.has_content or (collector.complete and relay.failure is None):
            incomplete = not collector.complete or relay.failure is not None
            self._count(asked, report, collector.usage, is_whole=not incomplete)
            reported = _reported(turn, collector.usage)
            context = report.context(reported)
            await self._store_answer(turn, view, asked, collector, report, context, reported, incomplete=incomplete)
        else:
            await self._tasks.seen_through(self._remember.nothing(turn.place))

    def _count(self, asked: Asked, report: Report, usage: Mapping[str, Any] | None, *, is_whole: bool) -> None:
        """Tell what an answer came to; once for each, stored or not."""
        if self._metrics.is_on:
            self._metrics.answered(facts_of_turn(asked.deployment, report, usage, is_whole=is_whole))

    async def _store_answer(
        self,
        turn: Turn,
        view: View,
        asked: Asked,
        collector: Collector,
        report: Report,
        context: Mapping[str, Any],
        reported: Input | None,
        *,
        incomplete: bool = False,
    ) -> Conversation:
        """Store an answer with what its client is told of it, and do what follows from it. Who is cancelled meanwhile
        is so when that is done."""
        body, *alternatives = collector.messages()
        message = Message.of(body)
        meta: dict[str, Any] = {
            "id": collector.id,
            "model": collector.model,
            "finish_reason": collector.finish_reason,
            "usage": collector.usage,
            "context_status": report.status,
            "context": context,
            SEEN: facts_of(asked.shown, turn.place, log_tokens=report.log_tokens),
            ASKED: asked_facts(turn.request),
            DIGEST: turn.place.request_digest,
        }
        if alternatives:
            meta["alternatives"] = alternatives
        given = Given(
            message=message,
            incomplete=incomplete,
            meta=meta,
            state=self._learned(turn, asked, report, reported),
            chunk_count=len(view.outline.chunks),
        )
        work = self._kept(turn, view, given)
        return await (work if _is_one_write(turn, message) else self._tasks.seen_through(work))

    async def _kept(self, turn: Turn, view: View, given: Given) -> Conversation:
        writing = await self._remember.answer(turn.place, given)
        rest = self._after(turn, view, given, writing)
        if writing.work is None:
            return await rest
        try:
            await ended(writing.work)
        except asyncio.CancelledError:
            await self._tasks.seen_through(rest)
            raise
        return await (rest if _has_come_off(writing.work) else self._tasks.seen_through(rest))

    async def _after(self, turn: Turn, view: View, given: Given, writing: Writing) -> Conversation:
        """What there is to do once an answer is written, or turned away."""
        request, place = turn.request, turn.place
        conversation = await self._remember.answered(writing)
        if request.keeps_completion and place.keeps and not given.incomplete:
            await self._storing.keep(request, place, conversation, given.meta["id"])
        if request.on_answer is not None and not given.incomplete:
            await request.on_answer(conversation if place.keeps else None)
        self._preparing.after(turn, view, conversation)
        return conversation

    def _learned(self, turn: Turn, asked: Asked, report: Report, reported: Input | None) -> dict[str, Any]:
        """What changes in the conversation's state with this answer.

        Args:
            reported: what the provider said of the prompt that the view made.
        """
        state, view = turn.place.conversation.state, asked.shown
        window = view.budget.window
        before = last_view_of(state, turn.policy, window)
        sent = last_view(view.plan, before, asked=turn.request.summarize == "now" and bool(view.plan.chunks))
        sent = turn.place.versions.restore_view(sent)
        learned: dict[str, Any] = {VIEWS: views} if (views := with_view(state, turn.policy, window, sent)) else {}
        if reported is None:
            return learned
        model_key = asked.deployment.key
        if model_key not in self._told_of and (cut := _cut_by_provider(report, reported)):
            self._told_of.add(model_key)
            log.warning("%s: %s", model_key, cut)
        known, prompt = self._ask.calibration_for(asked.deployment, turn), turn.prompt(view)
        if (cut_at := known.window_of_cut(prompt, reported.tokens)) is not None:
            self._ask.learn_window(model_key, cut_at)
        calibration = known.observe(prompt, reported.tokens)
        self._ask.learn_slope(model_key, turn.place.conversation, calibration)
        learned[CALIBRATION] = {**state.get(CALIBRATION, {}), model_key: calibration.to_dict()}
        return learned


def report_of(turn: Turn, view: View) -> Report:
    """What an answer to this turn says of itself."""
    place, plan, outline, budget = turn.place, view.plan, view.outline, view.budget
    pins = outline.pins
    # After an overflow the ratio is what the provider said of the whole prompt, offset included: no slope may be it.
    slope, beside = min(budget.ratio, HIGHEST_SLOPE), outline.instructions_tokens - place.instructions_tokens
    return Report(
        status=status_of(place, plan, stateless=not place.keeps and turn.request.store),
        conversation_id=place.conversation.id if place.keeps else None,
        policy=turn.policy.name,
        plan=plan,
        budget=budget,
        prompt_tokens=budget.calibrated(plan.prompt_tokens),
        next_seq=outline.next_seq,
        compaction=_compaction(view) if plan.chunks else view.compaction,
        log_tokens=budget.calibrated(outline.instructions_tokens + outline.log_tokens),
        pinned=sum(pin.to_seq - pin.from_seq for pin in pins) if pins else 0,
        compacts_above=_compacts_above(turn.policy, view),
        max_output_tokens=view.output_limit(),
        recovered=view.recovered,
        warnings=(*view.warnings, *_output_warning(view)),
        searches=turn.recalled.searches if turn.recalled is not None else (),
        slope=slope,
        offset_tokens=budget.calibrated(beside) + round((budget.ratio - slope) * (plan.prompt_tokens - beside)),
    )


def _without_answer(turn: Turn, view: View, report: Report) -> Report:
    """What an answer says of itself that could not be stored, or of which nothing was."""
    if turn.place.unwritten is None:
        return report.warned("The answer could not be stored.", status="degraded")
    stateless = report_of(replace(turn, place=unkept(turn.place)), view)
    return replace(stateless, warnings=report.warnings)


def _is_one_write(turn: Turn, message: Message) -> bool:
    """Whether an answer is stored in one step: it is counted at once, and nothing else is to be stored with it."""
    request, place = turn.request, turn.place
    has_more = request.keeps_completion or place.points or request.idempotency_key is not None
    return not (has_more or is_long(len(message.raw)))


def _has_come_off(work: asyncio.Future[None]) -> bool:
    return not work.cancelled() and work.exception() is None


def _reported(turn: Turn, usage: Mapping[str, Any] | None) -> Input | None:
    """What was reported for the view itself, without the rounds in which the model searched."""
    return input_of(usage if turn.recalled is None else turn.recalled.usage_of_view(usage))


def _cut_by_provider(report: Report, reported: Input | None) -> str | None:
    """What to say where a provider seems to have left out most of a long prompt. Ollama does so without a word."""
    sent = report.prompt_tokens
    if reported is None or sent < CUT_PROMPT_TOKENS or reported.tokens >= CUT_SHARE * sent:
        return None
    return (
        f"The provider counted {reported.tokens} tokens in a prompt of {sent}. If it cut the prompt, its window is "
        "smaller than the one that is configured here."
    )


def _compacts_above(policy: Policy, view: View) -> int:
    """The line for the next view, for a prompt that holds this view's quotations: they are chosen below the line."""
    budget, plan = view.budget, view.plan
    line = compaction_line(policy, budget, folded=bool(plan.chunks))
    quoted = sum(one.tokens for one in plan.quotations)
    return min(budget.hard, line + budget.calibrated(quoted)) if quoted else line


def _output_warning(view: View) -> tuple[str, ...]:
    limit, asked, window = view.output_limit(), view.budget.requested_output, view.budget.window
    if limit is None:
        return ()
    wanted = f"from {asked} to {limit}" if asked else f"to {limit}"
    return (f"The answer's limit was lowered {wanted} tokens: prompt and answer share a window of {window}.",)


def _compaction(view: View) -> Mapping[str, Any]:
    """`context.compaction` of a view with summaries: what ran for this answer, or what was made ahead and is used for
    the first time."""
    plan, last = view.plan, view.outline.last
    if view.compaction.get("ran") or plan.boundary_seq <= last.boundary.to_seq:
        return view.compaction
    newest = plan.chunks[-1]
    return {"ran": False, "prepared": True, "duration_ms": 0, "model": newest.model or None, "usage": newest.usage}
