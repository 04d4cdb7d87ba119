"""Make room by summarizing: as many rounds as one request may take, in a task that outlives its client."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from app.compaction.compaction_job import CompactionJob, CompactionResult, Spot, summed
from app.compaction.compactor import Compactor
from app.context.plan.log_cuts import Tail, boundary_after, tail_of, tail_start
from app.context.plan.outline import START, Outline, Range, Style
from app.context.plan.policy import Policy
from app.context.view.client_versions import ClientVersions
from app.conversation.identity import start_of
from app.conversation.message_checks import INSTRUCTION_ROLES
from app.conversation.messages import Chunk, LogMessage, Message
from app.errors import StoreUnavailable
from app.observability.tracing import current_span, traced
from app.pipeline.background_tasks import Tasks
from app.pipeline.resolve.conversation_resolver import Recall
from app.pipeline.view.view_builder import Turn, View, Views

MAX_ROUNDS: Final = 3
"""For one request: the first, and two for what that left too long."""
MAX_FOLDS: Final = 32
"""For one request. A very long history that a small window meets for the first time leaves hundreds of summaries, and
one call folds about a dozen; what is left unfolded would not be shown, and make every later turn wait."""
FAILURES: Final = ("mechanical", "none")


class Compacting:
    """Compacts for requests. The work for a range is shared with whoever else needs it (`compaction.compactor`)."""

    def __init__(
        self, *, views: Views, compactor: Compactor, recall: Recall, tasks: Tasks, wait_seconds: float
    ) -> None:
        self._views = views
        self._compactor = compactor
        self._recall = recall
        self._tasks = tasks
        self._wait_seconds = wait_seconds

    def start(self, turn: Turn, view: View) -> Running:
        """Begin to summarize what a view's plan asks for."""
        return Running(self, turn, view, self._tasks)

    @traced("compact")
    async def compact(
        self,
        turn: Turn,
        view: View,
        *,
        on_start: Callable[[], None] | None = None,
        on_chunk: Callable[[Chunk], None] | None = None,
    ) -> View:
        """Summarize what the plan asks for and plan again, until it asks for nothing more. A summary that is being made
        ahead is waited for, and may be enough.

        Args:
            on_start: called once before a model is asked.
            on_chunk: called with each summary once it is there.

        Raises:
            StoreUnavailable: and the request needs the store.
        """
        results: list[CompactionResult] = []
        made: list[Chunk] = []
        prepared = await self._compactor.wait_for_prepared(turn.place.conversation.id, on_start)
        if prepared is not None and prepared.chunks:
            results.append(prepared)
            made.extend(prepared.chunks)
            turn, view = await self._planned_with(made, turn, view)
        rounds = folds = 0
        while (wanted := view.plan.to_summarize) and rounds < MAX_ROUNDS and folds < MAX_FOLDS:
            if all(one.folds for one in wanted):
                folds += 1
            else:
                rounds += 1
            job = await self.job(turn, view)
            result = await self._compactor.compact(job, on_start=on_start, on_chunk=on_chunk)
            results.append(result)
            if not result.chunks:
                break
            made.extend(result.chunks)
            turn, view = await self._planned_with(made, turn, view)
        facts = _compaction_facts(results)
        current_span().set(
            {
                "concertina.compaction.outcome": facts.get("outcome", "none"),
                "concertina.compaction.summaries": len(made),
            }
        )
        return replace(
            view,
            compaction=facts,
            warnings=(*view.warnings, *(warning for result in results for warning in result.warnings)),
        )

    async def _planned_with(self, made: Sequence[Chunk], turn: Turn, view: View) -> tuple[Turn, View]:
        """The view once more, with chunks that were made for it; from what the client sent where the store is away."""
        try:
            return turn, await self._views.make(turn, view.budget, summarize=turn.request.summarize, more_chunks=made)
        except StoreUnavailable:
            if turn.place.needs_store:
                raise
        turn = await without_store(self._recall, turn)
        return turn, await self._views.make(turn, view.budget, summarize="never", more_chunks=made)

    async def job_again(self, turn: Turn, view: View, chunk: Chunk) -> CompactionJob | None:
        """To make the summary of a stored chunk once more; None where that stands on what is no longer known."""
        place, outline = turn.place, view.outline
        if chunk.folds:
            wanted, tail = Range(chunk.from_seq, chunk.to_seq, chunk.folds), Tail([], after=None)
            start_link = chunk.from_link
            known = {one.id for one in outline.chunks}
            if not known.issuperset(chunk.folds):
                return None
        else:
            # Behind what the client leaves out, a chunk begins where no other ends.
            before = [one for one in outline.chunks if one.to_seq <= chunk.from_seq]
            start = place.versions.restore_boundary(boundary_after(before[-1])) if before else START
            start_link = before[-1].to_link if before else start_of(place.conversation.tenant).link
            wanted = Range(chunk.from_seq, chunk.to_seq, style=_style(turn.policy))
            tail = Tail(await self._views.log(place, start.to_seq), after=start)
        return dataclasses.replace(self._bare_job(turn, view), tail=tail, start_link=start_link, ranges=(wanted,))

    async def again(self, turn: Turn, view: View, chunk: Chunk, folded: Sequence[Chunk]) -> Chunk:
        """Have a stored summary written once more, by a model that reads what it stands for.

        Args:
            folded: the summaries that it folds, if it is a fold.

        Raises:
            GatewayError, HeadMoved: as `Compactor.rewrite`.
        """
        conversation = turn.place.conversation
        entries = [] if folded else await self._views.log_between(conversation, chunk.from_seq, chunk.to_seq)
        log_tokens = sum(entry.tokens for entry in entries)
        spot = Spot(
            from_seq=chunk.from_seq,
            from_link=chunk.from_link,
            to_link=chunk.to_link,
            to_skeleton=chunk.to_skeleton,
            boundary=boundary_after(chunk),
            replaced_tokens=log_tokens + sum(one.tokens for one in folded),
            messages=tuple(entries),
            folded=tuple(folded),
            style=_style(turn.policy) if chunk.from_seq == 0 else "additive",
        )
        return await self._compactor.rewrite(self._bare_job(turn, view), spot, chunk)

    async def job(self, turn: Turn, view: View) -> CompactionJob:
        """The ranges that a view's plan asks for, with what is to be read for them."""
        outline, wanted = await self._originals(turn, view), view.plan.to_summarize
        reads_all = any(one.style == "checkpoint" for one in wanted)
        if reads_all:
            outline = replace(outline, tail=await self._views.log(turn.place, 0), tail_start=START)
        bare = self._bare_job(turn, view)
        prefixes = {one.to_seq: await self._views.prefix(turn, view, one) for one in wanted}
        return dataclasses.replace(
            bare,
            tail=await asyncio.to_thread(tail_of, outline),
            start_link=start_of(bare.tenant).link if reads_all or not outline.chunks else outline.chunks[-1].to_link,
            ranges=wanted,
            prefixes={to_seq: prefix for to_seq, (prefix, _) in prefixes.items() if prefix},
            meant={to_seq: meant for to_seq, (_, meant) in prefixes.items()},
        )

    async def _originals(self, turn: Turn, view: View) -> Outline:
        """What the planner knew, with the log as it was said: summaries are made of that, not of what a client made of
        it later."""
        outline, versions = view.outline, turn.place.versions
        if not versions:
            return outline
        start = versions.restore_boundary(tail_start(outline))
        log = () if outline.tail is None else await self._views.log(turn.place, start.to_seq)
        entries = [_without_text(entry) if _is_taken_back(entry, versions) else entry for entry in log]
        return replace(
            outline,
            chunks=tuple(map(versions.restore_chunk, outline.chunks)),
            folds=tuple(map(versions.restore_chunk, outline.folds)),
            tail=entries,
            tail_start=start,
        )

    def _bare_job(self, turn: Turn, view: View) -> CompactionJob:
        """A job without ranges."""
        place, request = turn.place, turn.request
        return CompactionJob(
            tenant=request.caller.tenant,
            root=place.conversation.root,
            conversation_id=place.conversation.id,
            conversation=place.conversation,
            tail=Tail([], after=None),
            start_link=b"",
            ranges=(),
            fields=request.fields,
            policy=turn.policy,
            window=view.budget.window,
            model=request.model,
            encoding=place.conversation.counter,
            folded=tuple(map(place.versions.restore_chunk, (*view.outline.chunks, *view.outline.folds))),
            client_key=turn.client_key,
            focus=request.instructions,
            wait_seconds=self._wait_seconds,
        )


class Running:
    """A compaction that runs for one request, in a task that its client's hanging up does not end."""

    def __init__(self, compacting: Compacting, turn: Turn, view: View, tasks: Tasks) -> None:
        self._started = asyncio.Event()
        self._task = tasks.spawn(compacting.compact(turn, view, on_start=self._started.set))

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


def _is_taken_back(entry: LogMessage, versions: ClientVersions) -> bool:
    return versions.is_omitted(entry.seq) and entry.message.role in INSTRUCTION_ROLES


def _without_text(entry: LogMessage) -> LogMessage:
    """A note that the client has taken back: no summary is to tell of it."""
    return replace(entry, message=Message.of({"role": entry.message.role, "content": ""}))


def _style(policy: Policy) -> Style:
    """How a summary that there is already is written anew."""
    return "checkpoint" if policy.kind == "checkpoint" else "additive"


def may_compact(turn: Turn) -> bool:
    """Summaries are kept: without the store there is nothing to keep them in."""
    return turn.place.keeps and turn.request.summarize != "never"


async def without_store(recall: Recall, turn: Turn) -> Turn:
    """The same turn from what the client sent alone, after the store went away."""
    return replace(turn, place=await recall.without_store(turn.request, turn.place.conversation.counter))


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
