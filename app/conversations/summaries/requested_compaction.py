"""Compaction on request: estimates what a compaction would do, or runs one and reports its progress."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.context.plan.outline import make_last_view
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.boundary_item_ids import read_boundary_item_ids
from app.conversations.views.stored_turn import (
    StoredTurnBuilder,
    StoredTurnRequest,
    build_bare_resolved_request,
    check_policy_summarizes,
)
from app.conversations.views.view_and_summary_objects import build_range_objects, build_summary_object
from app.errors import InvalidRequest, ItemNotFound
from app.pipeline.background_tasks import BackgroundTasks
from app.pipeline.chat_request import Caller
from app.pipeline.compact.turn_compaction import TurnCompactor
from app.pipeline.turn import Turn, View
from app.pipeline.view.last_view_and_calibration import LAST_VIEWS, add_last_view, read_last_view
from app.pipeline.view.pins import PinUpdater
from app.pipeline.view.view_builder import ViewBuilder
from app.store.contract.conversations import ConversationStore, LogAppend, WriteConflict
from app.store.contract.leases import LeaseLost
from app.store.leases import LeaseKeeper

HEARTBEAT_SECONDS: Final = 5.0
"""The longest time between two events of a stream: the shortest read timeout seen in clients is 60 s."""
MAX_ATTEMPTS: Final = 4
"""How often the new view is stored when clients append to the conversation at the same time."""
_LOG_PLACE: Final = re.compile(r"#([0-9]{1,9})")
NOTHING_TO_COMPACT: Final = (
    "Everything before the newest turns is already summarized, or its summary would not be shorter."
)


class CompactionQuery(msgspec.Struct, frozen=True):
    """The options of a compaction."""

    model: str | None = None
    policy: str | None = None
    instructions: str | None = None
    """What the summaries should focus on."""
    through_item: str | None = None
    """The last item to be summarized; None: all but the newest turns that the policy keeps."""


@dataclass(frozen=True, slots=True)
class _PlannedCompaction:
    """A planned compaction."""

    turn: Turn
    view: View
    """The view whose plan names the ranges to summarize; it uses every existing summary."""
    tokens_before: int
    """The calibrated tokens of the view that would be sent without the compaction."""


class RequestedCompactions:
    """Compacts conversations on request."""

    def __init__(
        self,
        *,
        store: ConversationStore,
        leases: LeaseKeeper,
        records: ConversationRecords,
        stored_turns: StoredTurnBuilder,
        view_builder: ViewBuilder,
        pinning: PinUpdater,
        turn_compactor: TurnCompactor,
        check_model: Callable[[Caller, str], None],
        clock: Callable[[], float],
        tasks: BackgroundTasks,
        wait_seconds: float,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        """
        Args:
            check_model: refuses a model that a caller's key does not allow, with a `GatewayError`.
            clock: monotonic seconds.
            wait_seconds: how long to wait for the conversation's lease.
            heartbeat_seconds: the longest time between two events of a stream.
        """
        self._store = store
        self._leases = leases
        self._records = records
        self._stored_turns = stored_turns
        self._view_builder = view_builder
        self._pinning = pinning
        self._turn_compactor = turn_compactor
        self._check_model = check_model
        self._clock = clock
        self._tasks = tasks
        self._wait_seconds = wait_seconds
        self._heartbeat_seconds = heartbeat_seconds

    async def estimate_compaction(self, caller: Caller, conversation_id: str, query: CompactionQuery) -> dict[str, Any]:
        """Returns what a compaction would do. It calls no model and writes nothing.

        Raises:
            GatewayError: as `start_compaction`, but never ConversationBusy: no lease is needed.
        """
        conversation = await self._records.find_conversation(caller, conversation_id)
        planned = await self._plan_compaction(caller, conversation, query)
        plan, budget = planned.view.plan, planned.view.budget
        item_ids = await read_boundary_item_ids(
            self._store, conversation, [(one.from_seq, one.to_seq) for one in plan.to_summarize]
        )
        expected = [note.facts["expected_tokens"] for note in plan.notes if note.code == "compaction_needed"]
        after_tokens = budget.calibrate_tokens(int(expected[0]) if expected else plan.prompt_tokens)
        return {
            **_common_compaction_fields(conversation, planned.turn),
            "dry_run": True,
            "to_summarize": build_range_objects(plan, item_ids),
            "tokens_before": planned.tokens_before,
            "tokens_after": after_tokens,
            **({} if plan.to_summarize else {"reason": NOTHING_TO_COMPACT}),
        }

    async def start_compaction(self, caller: Caller, conversation_id: str, query: CompactionQuery) -> RunningCompaction:
        """Starts a compaction in the background. It holds the conversation's lease until it ends.

        Raises:
            ConversationNotFound: there is no such conversation.
            InvalidRequest: there is no item `through_item`, the log cannot be cut after it, or the policy writes no
                summaries.
            ModelRequired, PolicyNotFound, ModelNotFound: as `StoredTurnBuilder.build_turn`.
            InsufficientPermissions: the caller's key does not allow the model.
            ConversationBusy: the conversation was in use for too long.
            StoreUnavailable: the conversation cannot be read.
        """
        stack = AsyncExitStack()
        try:
            conversation_before = await self._records.find_conversation(caller, conversation_id)
            lease_context = self._leases.hold_lease(
                conversation_before.root, conversation_before.id, self._wait_seconds
            )
            lease = await stack.enter_async_context(lease_context)
            # Read again under the lease: a turn may have been appended meanwhile.
            conversation = await self._records.find_conversation(caller, conversation_before.id)
            planned = await self._plan_compaction(caller, conversation, query)
            turn = replace(planned.turn, resolved_request=replace(planned.turn.resolved_request, lease=lease))
            view = planned.view
            progress = CompactionProgress(
                conversation_id=conversation.id,
                clock=self._clock,
                ranges=len(view.plan.to_summarize),
                window=view.budget.window,
                input_tokens=view.tokens_before_compaction,
                started_at=self._clock(),
            )
        except BaseException:  # a cancellation, too: the lease must be released
            await stack.aclose()
            raise
        work = self._run_compaction(caller, turn, view, planned.tokens_before, progress, stack)
        return RunningCompaction(self._tasks.spawn(work), progress, self._heartbeat_seconds)

    async def _plan_compaction(
        self, caller: Caller, conversation: Conversation, query: CompactionQuery
    ) -> _PlannedCompaction:
        turn_request = StoredTurnRequest(
            model=query.model,
            policy=query.policy,
            summarize="now",
            instructions=query.instructions,
            through_seq=await self._find_cut_after_item(conversation, query.through_item)
            if query.through_item
            else None,
        )
        turn = await self._stored_turns.build_turn(caller, conversation, turn_request)
        self._check_model(caller, turn.request.model)
        check_policy_summarizes(turn.policy)
        budget = self._view_builder.compute_budget(turn)
        current_view = await self._view_builder.plan_view(turn, budget, summarize="auto")
        view = await self._view_builder.plan_view(turn, budget, summarize="now")
        return _PlannedCompaction(turn, view, budget.calibrate_tokens(current_view.plan.prompt_tokens))

    async def _find_named_message(self, conversation: Conversation, name: str) -> LogMessage:
        """Returns the message that an item id names, or `#` and its place in the log.

        Raises:
            ItemNotFound: the conversation has no such message.
        """
        place = _LOG_PLACE.fullmatch(name)
        if place is None:
            return (await self._records.find_message(conversation, name))[0]
        seq = int(place[1])
        if seq > conversation.head_seq:
            raise ItemNotFound(f"There is no message {name}: the last one is #{conversation.head_seq}.")
        (entry,) = await self._store.read_log(conversation, seq, seq + 1)
        return entry

    async def _find_cut_after_item(self, conversation: Conversation, item_id: str) -> int:
        """Returns the `seq` after an item (an id, or `#` and a `seq`), if the log can be cut there: between rounds, and
        not after a question that has no answer yet.

        Raises:
            InvalidRequest: there is no such item, or the log cannot be cut there. The error names the nearest item
                after which it can.
        """
        try:
            entry = await self._find_named_message(conversation, item_id)
        except ItemNotFound as unknown:
            raise InvalidRequest(unknown.message, code="item_not_found", param="through_item") from unknown
        around = await self._pinning.build_round_pin(build_bare_resolved_request(conversation), entry.seq)
        is_open = around.to_seq > conversation.head_seq and await self._ends_unanswered(conversation)
        if around.to_seq == entry.seq + 1 and not is_open:
            return around.to_seq
        cuts = [around.from_seq, *([] if is_open else [around.to_seq])]
        cut = min(cuts, key=lambda one: (abs(one - 1 - entry.seq), -one))
        nearest_item_id = (
            (await read_boundary_item_ids(self._store, conversation, [(cut - 1, cut)])).get(cut - 1) if cut else None
        )
        raise InvalidRequest(
            f"A range cannot end after item {item_id!r}: a tool call stays with its results, and an unanswered "
            "user message is not summarized.",
            code="invalid_value",
            param="through_item",
            hint=f"The nearest item after which it can end is {nearest_item_id!r}."
            if nearest_item_id
            else "There is no item before it.",
        )

    async def _ends_unanswered(self, conversation: Conversation) -> bool:
        """Returns whether the log ends with a message that needs an answer, or with tool calls."""
        (last,) = await self._store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
        return last.message.role != "assistant" or last.message.calls_tools

    async def _run_compaction(
        self,
        caller: Caller,
        turn: Turn,
        view: View,
        before_tokens: int,
        progress: CompactionProgress,
        stack: AsyncExitStack,
    ) -> dict[str, Any]:
        """Runs the compaction, stores the new view, and returns the answer's object. Closes `stack`, which holds the
        lease."""
        async with stack:
            known = {summary.id for summary in (*view.outline.summaries, *view.outline.folds)}
            view_after = view
            if view.plan.to_summarize:
                view_after = await self._turn_compactor.compact(
                    turn, view, on_start=progress.report_started, on_summary=progress.report_summary
                )
            warnings = list(view_after.warnings)
            if view_after.plan.summaries:
                warnings += await self._store_last_view(caller, turn, view_after)
        new_summaries = [
            summary for summary in (*view_after.outline.summaries, *view_after.outline.folds) if summary.id not in known
        ]
        compaction: Mapping[str, Any] = view_after.compaction
        body = {
            **_common_compaction_fields(turn.resolved_request.conversation, turn),
            "dry_run": False,
            "summaries": await self._build_summary_objects(turn.resolved_request.conversation, new_summaries),
            "tokens_before": before_tokens,
            "tokens_after": view_after.budget.calibrate_tokens(view_after.plan.prompt_tokens),
            "ran": bool(compaction["ran"]),
            "outcome": compaction.get("outcome", "completed" if new_summaries else "nothing_to_do"),
            "duration_ms": compaction.get("duration_ms", 0),
            "model": compaction.get("model") or turn.request.model,
            "usage": compaction.get("usage"),
            "warnings": warnings,
        }
        return body if new_summaries else {**body, "reason": " ".join(warnings) or NOTHING_TO_COMPACT}

    async def _store_last_view(self, caller: Caller, turn: Turn, view: View) -> Sequence[str]:
        """Stores the view from which the next request is planned. Returns warnings about what could not be stored."""
        conversation = turn.resolved_request.conversation
        for _ in range(MAX_ATTEMPTS):
            last_view = read_last_view(conversation.state, turn.policy, view.budget.window)
            view_to_store = turn.resolved_request.client_versions.recount_view_for_originals(
                make_last_view(view.plan, last_view, was_requested=True)
            )
            views = add_last_view(conversation.state, turn.policy, view.budget.window, view_to_store)
            changed_conversation = replace(
                conversation,
                state={**conversation.state, LAST_VIEWS: views},
                chunk_count=max(conversation.chunk_count, len(view.outline.summaries)),
            )
            try:
                await self._store.append(
                    LogAppend(
                        conversation=changed_conversation,
                        after_seq=conversation.head_seq,
                        messages=(),
                        fence=turn.resolved_request.lease,
                    )
                )
            except WriteConflict:
                conversation = await self._records.find_conversation(caller, conversation.id)
                continue
            except LeaseLost:
                break  # another process works on the conversation; its view must not be overwritten
            return ()
        return ("The summaries are stored. They are used when the view is above its threshold.",)

    async def _build_summary_objects(
        self, conversation: Conversation, summaries: Sequence[Summary]
    ) -> list[dict[str, Any]]:
        item_ids = await read_boundary_item_ids(
            self._store, conversation, [(summary.from_seq, summary.to_seq) for summary in summaries]
        )
        return [
            build_summary_object(summary, conversation, item_ids, is_active=not summary.folds) for summary in summaries
        ]


def _common_compaction_fields(conversation: Conversation, turn: Turn) -> dict[str, Any]:
    """Returns the fields that every compaction object has, with the values of a compaction that did nothing."""
    return {
        "object": "conversation.compaction",
        "conversation_id": conversation.id,
        "policy": turn.policy.name,
        "window": turn.window.tokens,
        "model": turn.request.model,
        "summaries": [],
        "ran": False,
        "outcome": "nothing_to_do",
        "duration_ms": 0,
        "usage": None,
        "warnings": [],
    }


@dataclass(slots=True)
class CompactionProgress:
    """Collects the progress events of a compaction."""

    conversation_id: str
    clock: Callable[[], float]
    ranges: int
    window: int
    input_tokens: int
    started_at: float
    completed_ranges: int = 0
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)

    def report_started(self) -> None:
        fields = {"input_tokens": self.input_tokens, "context_window": self.window, "ranges": self.ranges}
        self.events.put_nowait({"type": "compaction_started", "conversation_id": self.conversation_id, **fields})

    def report_summary(self, summary: Summary) -> None:
        self.completed_ranges += 1
        self.ranges = max(self.ranges, self.completed_ranges)
        fields = {
            "from_seq": summary.from_seq,
            "to_seq": summary.to_seq,
            "tokens": summary.tokens,
            "kind": summary.kind,
        }
        self.events.put_nowait({"type": "summary_completed", "id": summary.id, **fields, **self._progress_fields()})

    def build_heartbeat(self) -> dict[str, Any]:
        elapsed_ms = round((self.clock() - self.started_at) * 1000)
        return {"type": "compaction_progress", "elapsed_ms": elapsed_ms, **self._progress_fields()}

    def _progress_fields(self) -> dict[str, int]:
        return {"done": self.completed_ranges, "ranges": self.ranges}


class RunningCompaction:
    """A running compaction. It goes on if its client disconnects."""

    def __init__(
        self, task: asyncio.Task[dict[str, Any]], progress: CompactionProgress, heartbeat_seconds: float
    ) -> None:
        self._task = task
        self._progress = progress
        self._heartbeat_seconds = heartbeat_seconds
        task.add_done_callback(self._close_events)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the compaction ends, however it ends."""
        self._task.add_done_callback(lambda _: callback())

    async def wait_for_result(self) -> dict[str, Any]:
        """Waits for the end and returns the compaction object.

        Raises:
            GatewayError: the compaction failed.
        """
        # Shielded: a client that disconnects cancels its request, and not the compaction.
        return await asyncio.shield(self._task)

    async def stream_events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yields progress events, a heartbeat if there is none for `heartbeat_seconds`, and at last the compaction
        object.

        Raises:
            GatewayError: the compaction failed.
        """
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    event = await self._progress.events.get()
            except TimeoutError:
                yield self._progress.build_heartbeat()
                continue
            if event is None:
                break
            yield event
        yield {"type": "compaction_completed", **await self.wait_for_result()}

    def _close_events(self, task: asyncio.Task[dict[str, Any]]) -> None:
        # Reading the exception keeps asyncio from logging it as never retrieved if the client has gone.
        if not task.cancelled():
            task.exception()
        self._progress.events.put_nowait(None)
