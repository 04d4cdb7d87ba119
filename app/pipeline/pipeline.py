"""Answer one chat completion, told once from top to bottom: recall → plan → compact → ask → relay → remember."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from app.context.plan.budget import compaction_line
from app.context.plan.outline import Summarize
from app.errors import GatewayError, StoreUnavailable, release_frames
from app.observability.log import name_conversation
from app.observability.request_facts import note_error
from app.observability.tracing import COMPACTED, CONVERSATION, STREAMED, current_span, traced
from app.pipeline.admission.answer_replay import replayed
from app.pipeline.background_tasks import Tasks
from app.pipeline.call.search_tool_loop import Recalling
from app.pipeline.call.upstream_call import Asked
from app.pipeline.chat_request import ChatRequest
from app.pipeline.compact.turn_compaction import Compacting, Running, may_compact, without_store
from app.pipeline.persist.turn_writer import Remember
from app.pipeline.resolve.conversation_resolver import Recall
from app.pipeline.resolve.held_leases import Held
from app.pipeline.resolve.model_context import Turns
from app.pipeline.resolve.resolved_request import Writing, unkept
from app.pipeline.respond.answer import Answer, StreamedAnswer
from app.pipeline.respond.context_status import Report, passed_on
from app.pipeline.respond.response import Delivery, report_of
from app.pipeline.respond.stream_frames import EarlyStream, error_frames
from app.pipeline.respond.turn_metrics import note_view
from app.pipeline.view.pins import Pinning, check_pins
from app.pipeline.view.quotations import Quoting
from app.pipeline.view.view_builder import Turn, View, Views

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 5.0
"""Between chunks without content while a compaction runs: the shortest client read timeout seen is 60 s."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Time and ids, so that tests own them."""

    unix_seconds: Callable[[], float]
    new_completion_id: Callable[[], str]


class Exchange:
    """The one verb of the gateway. Holds no state of its own between requests."""

    def __init__(
        self,
        *,
        recall: Recall,
        views: Views,
        compacting: Compacting,
        remember: Remember,
        delivery: Delivery,
        recalling: Recalling,
        quoting: Quoting,
        pinning: Pinning,
        turns: Turns,
        tasks: Tasks,
        clocks: Clocks,
    ) -> None:
        self._recall = recall
        self._views = views
        self._compacting = compacting
        self._remember = remember
        self._delivery = delivery
        self._recalling = recalling
        self._quoting = quoting
        self._pinning = pinning
        self._turns = turns
        self._tasks = tasks
        self._clocks = clocks

    async def answer(self, request: ChatRequest) -> Answer:
        """Answer a chat completion.

        A stream is returned once the upstream has begun to answer, or once a compaction has really begun; whatever
        fails before that is raised.

        Raises:
            GatewayError: as the tree in `errors` says.
        """
        held = Held()
        turn: Turn | None = None
        view: View | None = None
        try:
            turn = await self._begin(request, held)
            if turn.place.keeps:
                name_conversation(turn.place.conversation.id)
                if (span := current_span()).is_recording:
                    span.share({CONVERSATION: turn.place.conversation.id})
            if turn.place.replays is not None:
                await held.let_go()
                if request.on_answer is not None:
                    await request.on_answer(turn.place.conversation)
                return replayed(turn.place.replays, turn.place.conversation.id, request)
            turn, view = await self._first_view(turn)
            if view.plan.to_summarize and may_compact(turn):
                compaction = self._compacting.start(turn, view)
                if request.stream and request.events != "off" and await compaction.really_runs():
                    return self._begin_early(turn, view, compaction, held)
                view = await compaction.view()
            return await self._deliver(turn, view, held)
        except BaseException as error:
            if isinstance(error, GatewayError) and turn is not None:
                error.context_headers.update(self._known(turn, view))
            await held.let_go()
            raise

    @traced("plan")
    async def _first_view(self, turn: Turn) -> tuple[Turn, View]:
        """What to send as things stand; where the store went away, from what the client sent alone."""
        budget = self._views.budget(turn)
        check_pins(turn.request, turn.place, turn.policy, budget)
        try:
            return await self._recalling.plan(turn, budget, _summarize(turn))
        except StoreUnavailable:
            if turn.place.needs_store:
                raise
            turn = await without_store(self._recall, turn)
            return turn, await self._views.make(turn, budget, summarize="never")

    def _known(self, turn: Turn, view: View | None) -> dict[str, str]:
        """What an error's headers can say of the context. A conversation that was still to begin is not named."""
        told = {}
        if view is not None:
            report = report_of(turn, view)
            note_view(turn.request, report)
            told = report.headers(turn.request.request_id)
        if turn.place.keeps and not turn.place.creates:
            return {**told, "x-conversation-id": turn.place.conversation.id}
        return {name: value for name, value in told.items() if name != "x-conversation-id"}

    async def _begin(self, request: ChatRequest, held: Held) -> Turn:
        """Everything there is to know before planning; nothing is written yet."""
        means = await self._turns.means(request)
        place = await self._pinning.of(request, await self._recall.of(request, means.encoding, held))
        return self._turns.turn(request, means, place)

    async def measure(self, request: ChatRequest) -> dict[str, Any]:
        """What a request would weigh, history as sent: tokens by our count, window and pressure. Nothing is stored."""
        async with Held() as held:
            turn = await self._begin(replace(request, mode="stateless"), held)
        budget = self._views.budget(turn)
        tokens = budget.calibrated(turn.instructions_tokens + turn.place.log_tokens)
        return {
            "object": "context.count",
            "model": request.model,
            "prompt_tokens": tokens,
            "window": budget.window,
            "limit": budget.hard,
            "pressure": round(budget.limit_pressure(tokens), 4),
            "compacts_above": compaction_line(turn.policy, budget, folded=False),
        }

    def _begin_early(self, turn: Turn, view: View, compaction: Running, held: Held) -> StreamedAnswer:
        report = report_of(turn, view)
        frames = self._stream_with_compaction(turn, view, compaction, held, report)
        return StreamedAnswer(report.headers(turn.request.request_id, summarizing=True), frames)

    async def _stream_with_compaction(
        self, turn: Turn, view: View, compaction: Running, held: Held, report: Report
    ) -> AsyncGenerator[bytes, None]:
        """Progress while the compaction runs, then the answer as if it had begun just now."""
        early = EarlyStream(
            completion_id=self._clocks.new_completion_id(),
            created=int(self._clocks.unix_seconds()),
            model=turn.request.model,
            style=turn.request.events,
            fields=report.fields(),
        )
        try:
            current_span().event("compaction_started")
            yield early.started(
                {
                    "type": "compaction_started",
                    "input_tokens": view.uncompacted_tokens,
                    "context_window": view.budget.window,
                }
            )
            while not await compaction.done_within(HEARTBEAT_SECONDS):
                yield early.waiting()
            view = await compaction.view()
            outcome = "compaction_failed" if view.compaction.get("outcome") == "failed" else "compaction_completed"
            current_span().event(outcome)
            event = {"type": outcome, "duration_ms": view.compaction["duration_ms"]}
            yield early.ended(event, report_of(turn, view).fields())
            asked, turn, view = await self._put(turn, view)
        except GatewayError as error:
            await held.let_go()
            note_error(error)
            release_frames(error)
            yield error_frames(error)
            return
        except BaseException:
            await held.let_go()
            raise
        report = report_of(turn, asked.shown)
        async with aclosing(self._delivery.stream(turn, view, asked, held, report, early)) as frames:
            async for frame in frames:
                yield frame

    async def _deliver(self, turn: Turn, view: View, held: Held) -> Answer:
        """Ask the upstream; a stream begins once it has answered."""
        asked, turn, view = await self._put(turn, view)
        if not turn.request.stream:
            return await self._delivery.whole(turn, view, asked, held)
        report = report_of(turn, asked.shown)
        headers = {**passed_on(asked.reply.headers), **report.headers(turn.request.request_id)}
        return StreamedAnswer(headers, self._delivery.stream(turn, view, asked, held, report))

    async def _put(self, turn: Turn, view: View) -> tuple[Asked, Turn, View]:
        """Put the question to the upstream while the user's messages are stored."""
        view = await self._quoting.of(turn, view)
        turn = self._recalling.settled(turn, view)
        if (span := current_span()).is_recording:
            span.share({COMPACTED: bool(view.plan.chunks), STREAMED: turn.request.stream})
        request = turn.request
        has_one_answer = not request.stream and turn.recalled is None and request.on_answer is None
        question = self._remember.question(turn.place, may_be_kept_back=has_one_answer)
        try:
            asked, turn, view = await self._recalling.put(turn, view, self._compacting)
        except BaseException:
            await self._tasks.finish(self._take_back(question))
            raise
        try:
            place = self._remember.to_be_taken_along(question) or await self._remember.asked(question)
        except asyncio.CancelledError:
            await asked.reply.aclose()
            await self._tasks.finish(self._take_back(question))
            raise
        except StoreUnavailable as error:
            if turn.place.needs_store:
                await asked.reply.aclose()
                raise
            release_frames(error)
            place = unkept(turn.place)
        except BaseException:
            await asked.reply.aclose()
            raise
        if (instructions_tokens := turn.place.instructions_tokens) != place.instructions_tokens:
            place = replace(place, instructions_tokens=instructions_tokens)
        turn = replace(turn, place=place)
        if turn.request.stream:
            asked = await self._begun(turn, asked)
        return asked, turn, view

    async def _begun(self, turn: Turn, asked: Asked) -> Asked:
        """A stream with something to show: its model may search first, and may fail in that."""
        try:
            return await self._recalling.begun(turn, asked)
        except BaseException:
            await self._tasks.finish(self._remember.nothing(turn.place))
            raise

    async def _take_back(self, question: Writing) -> None:
        try:
            await self._remember.nothing(await self._remember.asked(question))
        except GatewayError as error:
            release_frames(error)
            log.warning("an unanswered question could not be taken back: %s", error.message)


def _summarize(turn: Turn) -> Summarize:
    return turn.request.summarize if may_compact(turn) else "never"
