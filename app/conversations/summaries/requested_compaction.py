"""Compaction on request: estimates what a compaction would do, or runs one and reports its progress."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from app.context.plan.outline import make_last_view
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.items.boundary_item_ids import read_boundary_item_ids
from app.conversations.summaries.summaries import read_summary_objects
from app.conversations.views.stored_turn import (
    StoredTurnBuilder,
    StoredTurnRequest,
    build_bare_resolved_request,
    check_policy_summarizes,
)
from app.conversations.views.view_and_summary_objects import build_range_objects
from app.errors import InvalidRequest, ItemNotFound
from app.pipeline.compact.capsule_builder import CapsuleBuilder
from app.pipeline.compact.turn_compaction import TurnCompactor
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.chat_request import Caller
from app.pipeline.turn.last_view_and_calibration import (
    LAST_VIEWS,
    add_last_view,
    build_billed_state,
    read_last_view,
)
from app.pipeline.turn.resolved_request import change_storage
from app.pipeline.turn.turn import Turn, View
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


@dataclass(eq=False, kw_only=True)
class RequestedCompactions:
    """Compacts conversations on request."""

    store: ConversationStore
    leases: LeaseKeeper
    records: ConversationRecords
    stored_turns: StoredTurnBuilder
    view_builder: ViewBuilder
    pinning: PinUpdater
    turn_compactor: TurnCompactor
    capsule_builder: CapsuleBuilder
    check_model: Callable[[Caller, str], None]
    """Refuses a model that a caller's key does not allow, with a `GatewayError`."""
    clock: Callable[[], float]
    """Monotonic seconds."""
    tasks: BackgroundTasks
    wait_seconds: float
    """How long to wait for the conversation's lease."""
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    """The longest time between two events of a stream."""

    async def estimate_compaction(
        self, caller: Caller, conversation_id: str, turn_request: StoredTurnRequest, through_item: str | None
    ) -> dict[str, Any]:
        """Returns what a compaction would do. It calls no model and writes nothing.

        Raises:
            GatewayError: as `start_compaction`, but never ConversationBusy: no lease is needed.
        """
        conversation = await self.records.find_conversation(caller, conversation_id)
        turn, view, tokens_before = await self._plan_compaction(caller, conversation, turn_request, through_item)
        plan, budget = view.plan, view.budget
        item_ids = await read_boundary_item_ids(
            self.store, conversation, [(one.from_seq, one.to_seq) for one in plan.to_summarize]
        )
        expected = [note.facts["expected_tokens"] for note in plan.notes if note.code == "compaction_needed"]
        after_tokens = budget.calibrate_tokens(int(expected[0]) if expected else plan.prompt_tokens)
        return {
            **_common_compaction_fields(conversation, turn),
            "dry_run": True,
            "to_summarize": build_range_objects(plan, item_ids),
            "tokens_before": tokens_before,
            "tokens_after": after_tokens,
            **({} if plan.to_summarize else {"reason": NOTHING_TO_COMPACT}),
        }

    async def start_compaction(
        self, caller: Caller, conversation_id: str, turn_request: StoredTurnRequest, through_item: str | None
    ) -> RunningCompaction:
        """Starts a compaction in the background. It holds the conversation's lease until it ends.

        Args:
            through_item: the last item to be summarized; None: all but the newest turns that the policy keeps.

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
            conversation = await self.records.find_conversation(caller, conversation_id)
            lease = await stack.enter_async_context(
                self.leases.hold_lease(conversation.root, conversation.id, self.wait_seconds)
            )
            # Read again under the lease: a turn may have been appended meanwhile.
            conversation = await self.records.find_conversation(caller, conversation.id)
            turn, view, tokens_before = await self._plan_compaction(caller, conversation, turn_request, through_item)
            turn = replace(turn, resolved_request=change_storage(turn.resolved_request, lease=lease))
        except BaseException:  # a cancellation, too: the lease must be released
            await stack.aclose()
            raise
        compaction = RunningCompaction(conversation.id, view, self.clock, self.heartbeat_seconds)
        return compaction.run(
            self.tasks.spawn(self._run_compaction(caller, turn, view, tokens_before, compaction, stack))
        )

    async def _plan_compaction(
        self, caller: Caller, conversation: Conversation, turn_request: StoredTurnRequest, through_item: str | None
    ) -> tuple[Turn, View, int]:
        """Returns the turn, the view whose plan names the ranges to summarize, and the calibrated tokens of the view
        that would be sent without the compaction."""
        if through_item:
            through_seq = await self._find_cut_after_item(conversation, through_item)
            turn_request = replace(turn_request, through_seq=through_seq)
        turn = await self.stored_turns.build_turn(caller, conversation, turn_request)
        self.check_model(caller, turn.request.model)
        check_policy_summarizes(turn.policy)
        budget = self.view_builder.compute_budget(turn)
        current_view = await self.view_builder.plan_view(turn, budget, summarize="auto")
        view = await self.view_builder.plan_view(turn, budget, summarize="now")
        return turn, view, budget.calibrate_tokens(current_view.plan.prompt_tokens)

    async def _find_named_message(self, conversation: Conversation, name: str) -> LogMessage:
        """Returns the message that an item id names, or `#` and its place in the log.

        Raises:
            ItemNotFound: the conversation has no such message.
        """
        place = _LOG_PLACE.fullmatch(name)
        if place is None:
            return (await self.records.find_message(conversation, name))[0]
        seq = int(place[1])
        if seq > conversation.head_seq:
            raise ItemNotFound(f"There is no message {name}: the last one is #{conversation.head_seq}.")
        (entry,) = await self.store.read_log(conversation, seq, seq + 1)
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
        around = await self.pinning.build_round_pin(build_bare_resolved_request(conversation), entry.seq)
        is_open = around.to_seq > conversation.head_seq and await self._ends_unanswered(conversation)
        if around.to_seq == entry.seq + 1 and not is_open:
            return around.to_seq
        cuts = [around.from_seq, *([] if is_open else [around.to_seq])]
        cut = min(cuts, key=lambda one: (abs(one - 1 - entry.seq), -one))
        nearest_item_id = (
            (await read_boundary_item_ids(self.store, conversation, [(cut - 1, cut)])).get(cut - 1) if cut else None
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
        (last,) = await self.store.read_log(conversation, conversation.head_seq, conversation.head_seq + 1)
        return last.message.role != "assistant" or last.message.calls_tools

    async def _run_compaction(
        self,
        caller: Caller,
        turn: Turn,
        view: View,
        before_tokens: int,
        progress: RunningCompaction,
        stack: AsyncExitStack,
    ) -> dict[str, Any]:
        """Runs the compaction, stores the new view, and returns the answer's object. Closes `stack`, which holds the
        lease."""
        async with stack:
            known = {summary.id for summary in (*view.outline.summaries, *view.outline.folds)}
            view_after = view
            if view.plan.to_summarize:
                _, view_after = await self.turn_compactor.compact(
                    turn, view, on_start=progress.report_started, on_summary=progress.report_summary
                )
            warnings = list(view_after.warnings)
            if view_after.plan.summaries:
                warnings += await self._store_last_view(caller, turn, view_after)
            built = await self.capsule_builder.build(turn, view_after)
        new_summaries = [
            summary for summary in (*view_after.outline.summaries, *view_after.outline.folds) if summary.id not in known
        ]
        compaction: Mapping[str, Any] = view_after.compaction
        body = {
            **_common_compaction_fields(turn.resolved_request.conversation, turn),
            "dry_run": False,
            "summaries": await read_summary_objects(
                self.store,
                turn.resolved_request.conversation,
                new_summaries,
                active={summary.id for summary in new_summaries if not summary.folds},
            ),
            "tokens_before": before_tokens,
            "tokens_after": view_after.budget.calibrate_tokens(view_after.plan.prompt_tokens),
            "ran": bool(compaction["ran"]),
            "outcome": compaction.get("outcome", "completed" if new_summaries else "nothing_to_do"),
            "duration_ms": compaction.get("duration_ms", 0),
            "model": compaction.get("model") or turn.request.model,
            "usage": compaction.get("usage"),
            "warnings": warnings,
            "capsule": built.capsule,
        }
        return body if new_summaries else {**body, "reason": " ".join(warnings) or NOTHING_TO_COMPACT}

    async def _store_last_view(self, caller: Caller, turn: Turn, view: View) -> Sequence[str]:
        """Stores the view from which the next request is planned. Returns warnings about what could not be stored."""
        conversation = turn.resolved_request.conversation
        for _ in range(MAX_ATTEMPTS):
            last_view = read_last_view(conversation.state, turn.policy, view.budget.window)
            view_to_store = turn.resolved_request.shown.client_versions.recount_view_for_originals(
                make_last_view(view.plan, last_view, was_requested=True)
            )
            views = add_last_view(conversation.state, turn.policy, view.budget.window, view_to_store)
            changed_conversation = replace(
                conversation,
                state={**conversation.state, LAST_VIEWS: views, **build_billed_state(view.outline)},
                chunk_count=max(conversation.chunk_count, len(view.outline.summaries)),
            )
            try:
                await self.store.append(
                    LogAppend(
                        conversation=changed_conversation,
                        after_seq=conversation.head_seq,
                        messages=(),
                        fence=turn.resolved_request.storage.lease,
                    )
                )
            except WriteConflict:
                conversation = await self.records.find_conversation(caller, conversation.id)
                continue
            except LeaseLost:
                break  # another process works on the conversation; its view must not be overwritten
            return ()
        return ("The summaries are stored. They are used when the view is above its threshold.",)


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


class RunningCompaction:
    """A running compaction with its progress events. It goes on if its client disconnects.

    Attributes:
        task: runs the compaction and returns the compaction object; `run` sets it.
    """

    task: asyncio.Task[dict[str, Any]]

    def __init__(self, conversation_id: str, view: View, clock: Callable[[], float], heartbeat_seconds: float) -> None:
        self._conversation_id = conversation_id
        self._view = view
        self._clock = clock
        self._heartbeat_seconds = heartbeat_seconds
        self._started_at = clock()
        self._ranges = len(view.plan.to_summarize)
        self._completed_ranges = 0
        self._events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def run(self, task: asyncio.Task[dict[str, Any]]) -> RunningCompaction:
        self.task = task
        task.add_done_callback(self._close_events)
        return self

    def report_started(self) -> None:
        self._events.put_nowait(
            {
                "type": "compaction_started",
                "conversation_id": self._conversation_id,
                "input_tokens": self._view.tokens_before_compaction,
                "context_window": self._view.budget.window,
                "ranges": self._ranges,
            }
        )

    def report_summary(self, summary: Summary) -> None:
        self._completed_ranges += 1
        self._ranges = max(self._ranges, self._completed_ranges)
        self._events.put_nowait(
            {
                "type": "summary_completed",
                "id": summary.id,
                "from_seq": summary.from_seq,
                "to_seq": summary.to_seq,
                "tokens": summary.tokens,
                "kind": summary.kind,
                "done": self._completed_ranges,
                "ranges": self._ranges,
            }
        )

    async def wait_for_result(self) -> dict[str, Any]:
        """Waits for the end and returns the compaction object.

        Raises:
            GatewayError: no summary was accepted.
        """
        # Shielded: a client that disconnects cancels its request, and not the compaction.
        return await asyncio.shield(self.task)

    async def stream_events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yields progress events, a heartbeat if there is none for `heartbeat_seconds`, and at last the compaction
        object.

        Raises:
            GatewayError: no summary was accepted.
        """
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_seconds):
                    event = await self._events.get()
            except TimeoutError:
                elapsed_ms = round((self._clock() - self._started_at) * 1000)
                counts = {"done": self._completed_ranges, "ranges": self._ranges}
                yield {"type": "compaction_progress", "elapsed_ms": elapsed_ms, **counts}
                continue
            if event is None:
                break
            yield event
        yield {"type": "compaction_completed", **await self.wait_for_result()}

    def _close_events(self, task: asyncio.Task[dict[str, Any]]) -> None:
        # Reading the exception keeps asyncio from logging it as never retrieved if the client has gone.
        if not task.cancelled():
            task.exception()
        self._events.put_nowait(None)
