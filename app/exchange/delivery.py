"""An answer on its way back: relayed or spliced, and stored before the last byte leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from msgspec.structs import replace

from app.context.outline import last_view
from app.context.usage import input_of
from app.conversation.messages import Conversation
from app.errors import GatewayError, StoreUnavailable
from app.exchange.answer import WholeAnswer
from app.exchange.ask import Ask, Asked
from app.exchange.begin import Begun
from app.exchange.frames import DONE_FRAME, EarlyStream, error_frames, spliced
from app.exchange.noting import facts_of_turn, note_view
from app.exchange.placement import CALIBRATION, VIEWS
from app.exchange.preparing import Preparing
from app.exchange.recalling import Recalling
from app.exchange.relay import Relay, finished_whole
from app.exchange.remember import Given, Remember
from app.exchange.report import Report, passed_on, status_of
from app.exchange.seen import ASKED, SEEN, asked_facts, facts_of
from app.exchange.stored import Storing
from app.exchange.tasks import Tasks
from app.exchange.views import Turn, View, last_view_of, with_view
from app.observability.metrics import SILENT, Metrics
from app.observability.requests import note_error
from app.upstream.collect import Collector
from app.upstream.router import ReadReply

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

    async def whole(self, turn: Turn, view: View, asked: Asked, stack: AsyncExitStack) -> WholeAnswer:
        """A whole answer: stored, then given our fields. Closes `stack`."""
        async with stack:
            return await self._whole_held(turn, view, asked)

    async def _whole_held(self, turn: Turn, view: View, asked: Asked) -> WholeAnswer:
        try:
            asked = await self._recalling.whole(turn, view, asked)
            assert isinstance(asked.reply, ReadReply)
            body = asked.reply.body
            collector = finished_whole(body, turn.model_key)
        except GatewayError:
            await self._remember.nothing(turn.place)
            raise
        report = replace(report_of(turn, view), usage=_usage_of_view(turn, collector.usage))
        if cut := _cut_by_provider(turn, view, collector.usage):
            report = report.warned(cut)
        note_view(turn.request, view, report)
        try:
            conversation = await self._store_answer(turn, view, collector, report, incomplete=False)
            if turn.place.keeps:
                report = replace(report, conversation_id=conversation.id)
        except StoreUnavailable:
            if turn.place.needs_store:
                raise
            report = report.warned("The answer could not be stored.", status="degraded")
        finally:
            self._count(view, asked, report, collector.usage, is_whole=True)
        headers = {**passed_on(asked.reply.headers), **report.headers(turn.request.request_id)}
        return WholeAnswer(spliced(body, report.all_fields()), headers)

    async def stream(
        self, turn: Turn, view: View, asked: Asked, stack: AsyncExitStack, early: EarlyStream | None
    ) -> AsyncGenerator[bytes, None]:
        """The upstream's stream as it comes; the answer is stored before the last frame, whoever hangs up."""
        assert isinstance(asked.reply, Begun)
        report = report_of(turn, view)
        note_view(turn.request, view, report)
        relay = Relay(asked.reply, report, include_usage=turn.request.include_usage, early=early, source=turn.model_key)
        ending: asyncio.Task[GatewayError | None] | None = None
        try:
            async for frames in relay.frames():
                yield frames
            ending = self._tasks.spawn(self._end_of_stream(turn, view, relay, report, asked))
            error = await asyncio.shield(ending)
            if error is not None:
                note_error(error)
            yield error_frames(error) if error is not None else DONE_FRAME
        finally:
            await self._tasks.finish(self._close_stream(turn, view, relay, report, asked, stack, ending))

    async def _end_of_stream(
        self, turn: Turn, view: View, relay: Relay, report: Report, asked: Asked
    ) -> GatewayError | None:
        """Store what the stream amounted to; the error to end it with, if any."""
        try:
            await self._store_stream(turn, view, relay, report, asked)
        except StoreUnavailable as error:
            if turn.place.needs_store:
                return error
            log.warning("an answer could not be stored: %s", error.message)
        except GatewayError as error:
            return error
        return relay.failure

    async def _close_stream(
        self,
        turn: Turn,
        view: View,
        relay: Relay,
        report: Report,
        asked: Asked,
        stack: AsyncExitStack,
        ending: asyncio.Task[GatewayError | None] | None,
    ) -> None:
        """Let go of everything; after a hang-up, keep what had come by then."""
        await asked.reply.aclose()
        try:
            if ending is not None:
                await asyncio.wait({ending})
            else:
                await self._store_stream(turn, view, relay, report, asked)
        except GatewayError as error:
            log.warning("what a client had received could not be stored: %s", error.message)
        finally:
            await stack.aclose()

    async def _store_stream(self, turn: Turn, view: View, relay: Relay, report: Report, asked: Asked) -> None:
        collector = relay.collector
        collector.id = relay.completion_id
        if collector.has_content or (collector.complete and relay.failure is None):
            incomplete = not collector.complete or relay.failure is not None
            self._count(view, asked, report, collector.usage, is_whole=not incomplete)
            await self._store_answer(turn, view, collector, report, incomplete=incomplete)
        else:
            await self._remember.nothing(turn.place)

    def _count(
        self, view: View, asked: Asked, report: Report, usage: Mapping[str, Any] | None, *, is_whole: bool
    ) -> None:
        """Tell what an answer came to; once for each, stored or not."""
        if self._metrics.is_on:
            self._metrics.answered(facts_of_turn(asked.deployment, view, report, usage, is_whole=is_whole))

    async def _store_answer(
        self, turn: Turn, view: View, collector: Collector, report: Report, *, incomplete: bool
    ) -> Conversation:
        message, *alternatives = collector.messages()
        report = replace(report, usage=_usage_of_view(turn, collector.usage))
        meta: dict[str, Any] = {
            "id": collector.id,
            "model": collector.model,
            "finish_reason": collector.finish_reason,
            "usage": collector.usage,
            "context_status": report.status,
            "context": report.context(),
            SEEN: facts_of(view, turn.place),
            ASKED: asked_facts(turn.request),
        }
        if alternatives:
            meta["alternatives"] = alternatives
        given = Given(
            message=message,
            incomplete=incomplete,
            meta=meta,
            state=self._learned(turn, view, collector.usage),
            chunk_count=len(view.outline.chunks),
        )
        conversation = await self._remember.answer(turn.place, given)
        if turn.request.keeps_completion and turn.place.keeps and not incomplete:
            await self._storing.keep(turn.request, turn.place, conversation, collector.id)
        if turn.request.on_answer is not None and not incomplete:
            await turn.request.on_answer(conversation if turn.place.keeps else None)
        self._preparing.after(turn, view, conversation)
        return conversation

    def _learned(self, turn: Turn, view: View, usage: Mapping[str, Any] | None) -> dict[str, Any]:
        """What changes in the conversation's state with this answer."""
        state = turn.place.conversation.state
        window = view.budget.window
        before = last_view_of(state, turn.policy, window)
        sent = last_view(view.plan, before, asked=turn.request.summarize == "now" and bool(view.plan.chunks))
        views = with_view(state, turn.policy, window, sent)
        learned: dict[str, Any] = {VIEWS: views}
        reported = input_of(_usage_of_view(turn, usage))
        if reported is None:
            return learned
        if (cut := _cut_by_provider(turn, view, usage)) and turn.model_key not in self._told_of:
            self._told_of.add(turn.model_key)
            log.warning("%s: %s", turn.model_key, cut)
        calibration = turn.calibration.observe(
            estimated_tokens=view.plan.prompt_tokens - turn.instructions_tokens + turn.place.instructions_tokens,
            instructions_tokens=turn.place.instructions_tokens,
            reported_tokens=reported.tokens,
            restart=(sent.boundary, sent.edits) != (before.boundary, before.edits),
        )
        self._ask.calibrated(turn.model_key, calibration)
        return {
            **learned,
            CALIBRATION: {**state.get(CALIBRATION, {}), turn.model_key: calibration.to_dict()},
        }


def report_of(turn: Turn, view: View) -> Report:
    """What an answer to this turn says of itself."""
    place = turn.place
    return Report(
        status=status_of(place, view.plan, stateless=not place.keeps and turn.request.store),
        conversation_id=place.conversation.id if place.keeps else None,
        policy=turn.policy.name,
        plan=view.plan,
        budget=view.budget,
        next_seq=view.outline.next_seq,
        compaction=_compaction(view),
        pinned=sum(pin.to_seq - pin.from_seq for pin in view.outline.pins),
        recovered=view.recovered,
        warnings=view.warnings,
        searches=turn.recalled.searches if turn.recalled is not None else (),
    )


def _cut_by_provider(turn: Turn, view: View, usage: Mapping[str, Any] | None) -> str | None:
    """What to say where a provider seems to have left out most of a long prompt. Ollama does so without a word."""
    reported, sent = input_of(_usage_of_view(turn, usage)), view.budget.calibrated(view.plan.prompt_tokens)
    if reported is None or sent < CUT_PROMPT_TOKENS or reported.tokens >= CUT_SHARE * sent:
        return None
    return (
        f"The provider counted {reported.tokens} tokens in a prompt of {sent}. If it cut the prompt, its window is "
        "smaller than the one that is configured here."
    )


def _usage_of_view(turn: Turn, usage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What was reported for the view itself, without the rounds in which the model searched."""
    return usage if turn.recalled is None else turn.recalled.usage_of_view(usage)


def _compaction(view: View) -> Mapping[str, Any]:
    """`context.compaction`: what ran for this answer, or what was made ahead and is used for the first time."""
    plan, last = view.plan, view.outline.last
    if view.compaction.get("ran") or not plan.chunks or plan.boundary_seq <= last.boundary.to_seq:
        return view.compaction
    newest = plan.chunks[-1]
    return {"ran": False, "prepared": True, "duration_ms": 0, "model": newest.model or None, "usage": newest.usage}
