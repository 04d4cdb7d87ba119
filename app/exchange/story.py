"""Answer one chat completion, told once from top to bottom: recall → plan → compact → ask → relay → remember."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from app.compaction.compactor import Compactor
from app.compaction.job import CompactionJob, CompactionResult, summed
from app.compaction.summarizer import SAME_MODEL, input_tokens
from app.context.calibration import Calibration
from app.context.outline import Summarize
from app.context.partition import tail_of
from app.context.policy import Policy
from app.context.vocabulary import encoding_for
from app.conversation.identity import start_of
from app.conversation.messages import Chunk, Conversation
from app.errors import GatewayError, PolicyNotFound, StoreUnavailable
from app.exchange.answer import Answer, StreamedAnswer, WholeAnswer
from app.exchange.ask import Ask, Asked
from app.exchange.frames import DONE_FRAME, EarlyStream, error_frames, spliced
from app.exchange.placement import Recollection
from app.exchange.recall import Recall
from app.exchange.relay import Relay, finished_whole
from app.exchange.remember import Given, Remember
from app.exchange.replay import replayed
from app.exchange.report import Report, passed_on, status_of
from app.exchange.request import ChatRequest
from app.exchange.tasks import Tasks
from app.exchange.views import BOUNDARIES, CALIBRATION, Turn, View, Views, calibration_of
from app.upstream.base import Window
from app.upstream.collect import Collector
from app.upstream.router import Router
from app.upstream.windows import Windows

log = logging.getLogger(__name__)

MAX_COMPACTIONS: Final = 3
"""Rounds of compaction for one request: the first, one for what the first left too long, one fold."""
FAILURES: Final = ("mechanical", "none")
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
        compactor: Compactor,
        ask: Ask,
        remember: Remember,
        router: Router,
        windows: Windows,
        policies: Mapping[str, Policy],
        default_policy: str,
        calibration_seeds: Mapping[str, Calibration],
        tasks: Tasks,
        clocks: Clocks,
        wait_seconds: float,
    ) -> None:
        self._recall = recall
        self._views = views
        self._compactor = compactor
        self._ask = ask
        self._remember = remember
        self._router = router
        self._windows = windows
        self._policies = policies
        self._default_policy = default_policy
        self._calibration_seeds = calibration_seeds
        self._tasks = tasks
        self._clocks = clocks
        self._wait_seconds = wait_seconds

    async def answer(self, request: ChatRequest) -> Answer:
        """Answer a chat completion.

        A stream is returned once the upstream has begun to answer, or once a compaction has really begun; whatever
        fails before that is raised.

        Raises:
            GatewayError: as the tree in `errors` says.
        """
        stack = AsyncExitStack()
        turn: Turn | None = None
        view: View | None = None
        try:
            turn = await self._begin(request, stack)
            if turn.place.replays is not None:
                await stack.aclose()
                return replayed(turn.place.replays, turn.place.conversation.id, request)
            turn, view = await self._first_view(turn)
            if view.plan.to_summarize and _compacts(turn):
                compaction = _Running(self, turn, view)
                if request.stream and request.events != "off" and await compaction.really_runs():
                    return self._begin_early(turn, view, compaction, stack)
                view = await compaction.view()
            return await self._deliver(turn, view, stack)
        except BaseException as error:
            if isinstance(error, GatewayError) and turn is not None:
                error.context_headers.update(self._known(turn, view))
            await stack.aclose()
            raise

    async def _first_view(self, turn: Turn) -> tuple[Turn, View]:
        """What to send as things stand; where the store went away, from what the client sent alone."""
        budget = self._views.budget(turn)
        try:
            return turn, await self._views.make(turn, budget, summarize=_summarize(turn))
        except StoreUnavailable:
            if turn.place.needs_store:
                raise
            turn = await self._without_store(turn)
            return turn, await self._views.make(turn, budget, summarize="never")

    async def _without_store(self, turn: Turn) -> Turn:
        place = await self._recall.without_store(turn.request, turn.place.conversation.encoding)
        return replace(turn, place=place)

    def _known(self, turn: Turn, view: View | None) -> dict[str, str]:
        """What an error's headers can say of the context. A conversation that was still to begin is not named."""
        told = {} if view is None else self._report(turn, view).headers(turn.request.request_id)
        if turn.place.keeps and not turn.place.creates:
            return {**told, "x-conversation-id": turn.place.conversation.id}
        return {name: value for name, value in told.items() if name != "x-conversation-id"}

    async def _begin(self, request: ChatRequest, stack: AsyncExitStack) -> Turn:
        """Everything there is to know before planning; nothing is written yet."""
        policy = self._policy(request.policy)
        target = self._router.resolve(request.model)
        deployment = target.deployments[0]
        encoding = deployment.encoding or encoding_for(deployment.upstream_model)
        window = await self._windows.of(deployment, request.caller.authorization)
        place = await self._recall.of(request, encoding, stack)
        seed = self._calibration_seeds.get(deployment.key, Calibration())
        return Turn(
            request=request,
            target=target,
            policy=policy,
            window=window,
            calibration=calibration_of(place.conversation.state, deployment.key, seed),
            summarizer_input_tokens=await self._summarizer_input_tokens(policy, window, request),
            place=place,
        )

    async def measure(self, request: ChatRequest) -> dict[str, Any]:
        """What a request would weigh, history as sent: tokens by our count, window and pressure. Nothing is stored."""
        async with AsyncExitStack() as stack:
            turn = await self._begin(replace(request, mode="stateless"), stack)
        budget = self._views.budget(turn)
        tokens = budget.calibrated(turn.instructions_tokens + turn.place.log_tokens)
        limit = budget.window - budget.reserve
        return {
            "object": "context.count",
            "model": request.model,
            "prompt_tokens": tokens,
            "window": budget.window,
            "limit": limit,
            "pressure": round(tokens / max(1, limit), 4),
        }

    async def _summarizer_input_tokens(self, policy: Policy, window: Window, request: ChatRequest) -> int:
        """How much of a log one summary call may read."""
        named = policy.summarizer.model
        if named != SAME_MODEL:
            deployment = self._router.resolve(named).deployments[0]
            window = await self._windows.of(deployment, request.caller.authorization)
        return input_tokens(policy, window.tokens)

    def _policy(self, name: str | None) -> Policy:
        found = self._policies.get(name or self._default_policy)
        if found is None:
            raise PolicyNotFound(
                f"Unknown context policy {name!r}; known are {', '.join(sorted(self._policies))}.",
                param="context.policy",
            )
        return found

    async def compact(
        self, turn: Turn, view: View, *, on_start: Callable[[], None] | None = None
    ) -> View:
        """Summarize what the plan asks for and plan again, until it asks for nothing more."""
        results: list[CompactionResult] = []
        made: list[Chunk] = []
        for _ in range(MAX_COMPACTIONS):
            if not view.plan.to_summarize:
                break
            result = await self._compactor.compact(self._job(turn, view), on_start=on_start)
            results.append(result)
            made.extend(result.chunks)
            try:
                view = await self._views.make(turn, view.budget, summarize=_again(turn), more_chunks=made)
            except StoreUnavailable:
                if turn.place.needs_store:
                    raise
                turn = await self._without_store(turn)
                view = await self._views.make(turn, view.budget, summarize="never", more_chunks=made)
        return replace(
            view,
            compaction=_compaction_facts(results),
            warnings=tuple(warning for result in results for warning in result.warnings),
        )

    def _job(self, turn: Turn, view: View) -> CompactionJob:
        place, request, chunks = turn.place, turn.request, view.outline.chunks
        return CompactionJob(
            tenant=request.caller.tenant,
            root=place.conversation.root,
            conversation_id=place.conversation.id,
            tail=tail_of(view.outline),
            start_link=chunks[-1].to_link if chunks else start_of(request.caller.tenant).link,
            ranges=view.plan.to_summarize,
            policy=turn.policy,
            window=view.budget.window,
            model=request.model,
            encoding=place.conversation.encoding,
            folded=(*chunks, *view.outline.folds),
            authorization=request.caller.authorization,
            focus=request.instructions,
            wait_seconds=self._wait_seconds,
        )

    def _begin_early(self, turn: Turn, view: View, compaction: _Running, stack: AsyncExitStack) -> StreamedAnswer:
        report = replace(self._report(turn, view), status="summarized")
        frames = self._stream_with_compaction(turn, view, compaction, stack, report)
        return StreamedAnswer(report.headers(turn.request.request_id, summarizing=True), frames)

    async def _stream_with_compaction(
        self, turn: Turn, view: View, compaction: _Running, stack: AsyncExitStack, report: Report
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
            yield early.ended({"type": outcome, "duration_ms": view.compaction["duration_ms"]})
            asked, turn, view = await self._put(turn, view)
        except GatewayError as error:
            await stack.aclose()
            yield error_frames(error)
            return
        except BaseException:
            await stack.aclose()
            raise
        async with aclosing(self._relay(turn, view, asked, stack, early)) as frames:
            async for frame in frames:
                yield frame

    async def _deliver(self, turn: Turn, view: View, stack: AsyncExitStack) -> Answer:
        """Ask the upstream; a stream begins once it has answered."""
        asked, turn, view = await self._put(turn, view)
        if turn.request.stream:
            report = self._report(turn, view)
            headers = {**passed_on(asked.reply.headers), **report.headers(turn.request.request_id)}
            return StreamedAnswer(headers, self._relay(turn, view, asked, stack, None))
        return await self._tasks.finish(self._whole(turn, view, asked, stack.pop_all()))

    async def _put(self, turn: Turn, view: View) -> tuple[Asked, Turn, View]:
        """Put the question to the upstream while the user's messages are stored."""
        storing = self._tasks.spawn(self._remember.question(turn.place))
        try:
            asked, view = await self._ask.put(turn, view, self)
        except BaseException:
            await self._tasks.finish(self._take_back(storing))
            raise
        try:
            place = await asyncio.shield(storing)
        except asyncio.CancelledError:
            await asked.reply.aclose()
            await self._tasks.finish(self._take_back(storing))
            raise
        except StoreUnavailable:
            if turn.place.needs_store:
                await asked.reply.aclose()
                raise
            place = replace(turn.place, keeps=False, degraded=True)
        except BaseException:
            await asked.reply.aclose()
            raise
        return asked, replace(turn, place=place), view

    async def _take_back(self, storing: asyncio.Task[Recollection]) -> None:
        try:
            await self._remember.nothing(await storing)
        except GatewayError as error:
            log.warning("an unanswered question could not be taken back: %s", error.message)

    async def _whole(self, turn: Turn, view: View, asked: Asked, stack: AsyncExitStack) -> WholeAnswer:
        """A whole answer: stored, then given our fields. Closes `stack`."""
        async with stack:
            return await self._whole_held(turn, view, asked)

    async def _whole_held(self, turn: Turn, view: View, asked: Asked) -> WholeAnswer:
        try:
            body, collector = await finished_whole(asked.reply, turn.model_key)
        except GatewayError:
            await self._remember.nothing(turn.place)
            raise
        finally:
            await asked.reply.aclose()
        report = self._report(turn, view)
        try:
            conversation = await self._store_answer(turn, view, collector, report, incomplete=False)
            if turn.place.keeps:
                report = replace(report, conversation_id=conversation.id)
        except StoreUnavailable:
            if turn.place.needs_store:
                raise
            report = report.warned("The answer could not be stored.", status="degraded")
        headers = {**passed_on(asked.reply.headers), **report.headers(turn.request.request_id)}
        return WholeAnswer(spliced(body, report.all_fields()), headers)

    async def _relay(
        self, turn: Turn, view: View, asked: Asked, stack: AsyncExitStack, early: EarlyStream | None
    ) -> AsyncGenerator[bytes, None]:
        """The upstream's stream as it comes; the answer is stored before the last frame, whoever hangs up."""
        report = self._report(turn, view)
        relay = Relay(asked.reply, report, include_usage=turn.request.include_usage, early=early, source=turn.model_key)
        stored = False
        try:
            async for frames in relay.frames():
                yield frames
            stored = True
            error = await self._tasks.finish(self._end_of_stream(turn, view, relay, report))
            yield error_frames(error) if error is not None else DONE_FRAME
        finally:
            await self._tasks.finish(self._close_stream(turn, view, relay, report, asked, stack, stored=stored))

    async def _end_of_stream(self, turn: Turn, view: View, relay: Relay, report: Report) -> GatewayError | None:
        """Store what the stream amounted to; the error to end it with, if any."""
        try:
            await self._store_stream(turn, view, relay, report)
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
        *,
        stored: bool,
    ) -> None:
        """Let go of everything; after a hang-up, keep what had come by then."""
        await asked.reply.aclose()
        try:
            if not stored:
                await self._store_stream(turn, view, relay, report)
        except GatewayError as error:
            log.warning("what a client had received could not be stored: %s", error.message)
        finally:
            await stack.aclose()

    async def _store_stream(self, turn: Turn, view: View, relay: Relay, report: Report) -> None:
        collector = relay.collector
        collector.id = relay.completion_id
        if collector.has_content or (collector.complete and relay.failure is None):
            incomplete = not collector.complete or relay.failure is not None
            await self._store_answer(turn, view, collector, report, incomplete=incomplete)
        else:
            await self._remember.nothing(turn.place)

    async def _store_answer(
        self, turn: Turn, view: View, collector: Collector, report: Report, *, incomplete: bool
    ) -> Conversation:
        message, *alternatives = collector.messages()
        meta: dict[str, Any] = {
            "id": collector.id,
            "model": collector.model,
            "finish_reason": collector.finish_reason,
            "usage": collector.usage,
            "context_status": report.status,
            "context": report.context(),
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
        return await self._remember.answer(turn.place, given)

    def _learned(self, turn: Turn, view: View, usage: Mapping[str, Any] | None) -> dict[str, Any]:
        """What changes in the conversation's state with this answer."""
        state = turn.place.conversation.state
        boundaries = {**state.get(BOUNDARIES, {}), str(view.budget.window): view.plan.boundary_seq}
        reported = (usage or {}).get("prompt_tokens")
        if not isinstance(reported, int) or reported <= 0:
            return {BOUNDARIES: boundaries}
        calibration = turn.calibration.observe(
            estimated_tokens=view.plan.prompt_tokens - turn.instructions_tokens + turn.place.instructions_tokens,
            instructions_tokens=turn.place.instructions_tokens,
            reported_tokens=reported,
            restart=boundaries != state.get(BOUNDARIES, boundaries),
        )
        self._ask.calibrated(turn.model_key, calibration)
        return {
            BOUNDARIES: boundaries,
            CALIBRATION: {**state.get(CALIBRATION, {}), turn.model_key: calibration.to_dict()},
        }

    def _report(self, turn: Turn, view: View) -> Report:
        place = turn.place
        return Report(
            status=status_of(place, view.plan, stateless=not place.keeps and turn.request.store),
            conversation_id=place.conversation.id if place.keeps else None,
            policy=turn.policy.name,
            plan=view.plan,
            budget=view.budget,
            next_seq=view.outline.next_seq,
            compaction=view.compaction,
            recovered=view.recovered,
            warnings=view.warnings,
        )


class _Running:
    """A compaction that runs for one request, in a task that its client's hanging up does not end."""

    def __init__(self, exchange: Exchange, turn: Turn, view: View) -> None:
        self._started = asyncio.Event()
        self._task = exchange._tasks.spawn(exchange.compact(turn, view, on_start=self._started.set))

    async def really_runs(self) -> bool:
        """Wait until a summary call is made, or there turns out to be nothing to wait for."""
        started = asyncio.create_task(self._started.wait())  # noqa: TID251 - ended below
        try:
            await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        return self._started.is_set() and not self._task.done()

    async def done_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait({self._task}, timeout=seconds)
        return bool(done)

    async def view(self) -> View:
        return await asyncio.shield(self._task)


def _summarize(turn: Turn) -> Summarize:
    return turn.request.summarize if _compacts(turn) else "never"


def _again(turn: Turn) -> Summarize:
    """After a compaction that was asked for, the ordinary rules hold."""
    return "never" if turn.request.summarize == "never" else "auto"


def _compacts(turn: Turn) -> bool:
    """Summaries are kept: without the store there is nothing to keep them in."""
    return turn.place.keeps and turn.request.summarize != "never"


def _compaction_facts(results: list[CompactionResult]) -> dict[str, Any]:
    """`context.compaction` over all rounds of one request."""
    if not any(result.ran for result in results):
        return {"ran": False, "duration_ms": 0}
    return {
        "ran": True,
        "outcome": "failed" if any(result.outcome in FAILURES for result in results) else "completed",
        "duration_ms": sum(result.duration_ms for result in results),
        "model": next((result.model for result in results if result.model), None),
        "usage": summed([result.usage for result in results if result.usage]),
    }

