"""Compaction on request: what would be summarized, and doing it now, with progress for who wants to watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.context.plan.outline import last_view
from app.conversation.messages import Chunk, Conversation
from app.conversations.history.conversations import Records
from app.conversations.items.item_ids import item_ids
from app.conversations.views.stored_turn import Standing, Wish, check_summarizes, place_of
from app.conversations.views.view_objects import ranges_of, summary_object
from app.errors import InvalidRequest, ItemNotFound
from app.pipeline.background_tasks import Tasks
from app.pipeline.chat_request import Caller
from app.pipeline.compact.turn_compaction import Compacting
from app.pipeline.view.pins import Pinning
from app.pipeline.view.view_builder import Turn, View, Views
from app.pipeline.view.view_state import VIEWS, last_view_of, with_view
from app.store.contract import Append, HeadMoved, LeaseLost, Store
from app.store.leases import LeaseKeeper

TRIES: Final = 4
"""Of storing what comes of a compaction, while the conversation goes on beside it."""
NOTHING: Final = "Everything before the newest turns is summarized already, or a summary of it would gain nothing."


class CompactionWish(msgspec.Struct, frozen=True):
    """What is to be compacted, and how."""

    model: str | None = None
    policy: str | None = None
    instructions: str | None = None
    """What the summaries should pay attention to."""
    through_item: str | None = None
    """The last item to be summarized; None: all but the newest turns that the policy keeps."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """A compaction that is about to be made."""

    turn: Turn
    view: View
    """What is to be summarized, every summary there is being shown."""
    before_tokens: int
    """What would be sent without it."""


class Compactions:
    """Compacts conversations for people and programs that ask for it."""

    def __init__(
        self,
        *,
        store: Store,
        leases: LeaseKeeper,
        records: Records,
        standing: Standing,
        views: Views,
        pinning: Pinning,
        compacting: Compacting,
        allow: Callable[[Caller, str], None],
        seconds: Callable[[], float],
        tasks: Tasks,
        wait_seconds: float,
    ) -> None:
        """
        Args:
            allow: refuses a model that a caller's key does not allow, with a `GatewayError`.
            seconds: monotonic.
            wait_seconds: how long to wait for others who use the conversation.
        """
        self._store = store
        self._leases = leases
        self._records = records
        self._standing = standing
        self._views = views
        self._pinning = pinning
        self._compacting = compacting
        self._allow = allow
        self._seconds = seconds
        self._tasks = tasks
        self._wait_seconds = wait_seconds

    async def estimate(self, caller: Caller, conversation_id: str, wish: CompactionWish) -> dict[str, Any]:
        """What a compaction would do. No model is asked, nothing is written.

        Raises:
            GatewayError: as `begin`, except that nobody is waited for.
        """
        conversation = await self._records.of(caller, conversation_id)
        planned = await self._planned(caller, conversation, wish)
        plan, budget = planned.view.plan, planned.view.budget
        ends = await item_ids(self._store, conversation, [(one.from_seq, one.to_seq) for one in plan.to_summarize])
        expected = [note.facts["expected_tokens"] for note in plan.notes if note.code == "compaction_needed"]
        after_tokens = budget.calibrated(int(expected[0]) if expected else plan.prompt_tokens)
        return {
            **_body(conversation, planned.turn),
            "dry_run": True,
            "to_summarize": ranges_of(plan, ends),
            "tokens_before": planned.before_tokens,
            "tokens_after": after_tokens,
            **({} if plan.to_summarize else {"reason": NOTHING}),
        }

    async def begin(self, caller: Caller, conversation_id: str, wish: CompactionWish) -> Compaction:
        """Start a compaction. It holds the conversation's lease until it is done.

        Raises:
            ConversationNotFound, ItemNotFound: there is none.
            InvalidRequest: the log cannot be cut there, or the policy writes no summaries; or as `Standing.turn`.
            InsufficientPermissions: the caller's key does not allow the model.
            ConversationBusy: somebody else uses the conversation.
            StoreUnavailable: it cannot be read.
        """
        stack = AsyncExitStack()
        try:
            found = await self._records.of(caller, conversation_id)
            held = self._leases.hold(found.root, found.id, self._wait_seconds)
            lease = await stack.enter_async_context(held)
            conversation = await self._records.of(caller, found.id)
            planned = await self._planned(caller, conversation, wish)
            turn = replace(planned.turn, place=replace(planned.turn.place, lease=lease))
            view = planned.view
            progress = Progress(
                conversation_id=conversation.id,
                seconds=self._seconds,
                ranges=len(view.plan.to_summarize),
                window=view.budget.window,
                input_tokens=view.uncompacted_tokens,
                began=self._seconds(),
            )
        except BaseException:
            await stack.aclose()
            raise
        work = self._work(caller, turn, view, planned.before_tokens, progress, stack)
        return Compaction(self._tasks.spawn(work), progress)

    async def _planned(self, caller: Caller, conversation: Conversation, wish: CompactionWish) -> _Planned:
        asked = Wish(
            model=wish.model,
            policy=wish.policy,
            summarize="now",
            instructions=wish.instructions,
            through_seq=await self._cut_behind(conversation, wish.through_item) if wish.through_item else None,
        )
        turn = await self._standing.turn(caller, conversation, asked)
        self._allow(caller, turn.request.model)
        check_summarizes(turn.policy)
        budget = self._views.budget(turn)
        now = await self._views.planned(turn, budget, summarize="auto")
        view = await self._views.planned(turn, budget, summarize="now")
        return _Planned(turn, view, budget.calibrated(now.plan.prompt_tokens))

    async def _cut_behind(self, conversation: Conversation, item_id: str) -> int:
        """The seq behind an item, if the log can be cut there: between rounds, and behind what has its answer.

        Raises:
            InvalidRequest: there is no such item; or it cannot, and the nearest item behind which it can is named.
        """
        try:
            entry, _ = await self._records.entry(conversation, item_id)
        except ItemNotFound as unknown:
            raise InvalidRequest(unknown.message, code="item_not_found", param="through_item") from unknown
        around = await self._pinning.round_at(place_of(conversation), entry.seq)
        is_open = around.to_seq > conversation.head_seq and await self._is_open(conversation)
        if around.to_seq == entry.seq + 1 and not is_open:
            return around.to_seq
        cuts = [around.from_seq, *([] if is_open else [around.to_seq])]
        cut = min(cuts, key=lambda one: (abs(one - 1 - entry.seq), -one))
        named = (await item_ids(self._store, conversation, [(cut - 1, cut)])).get(cut - 1) if cut else None
        raise InvalidRequest(
            f"The log cannot be cut behind item {item_id!r}: a call stays with its results, and a question with no "
            "answer yet is not summarized.",
            code="invalid_value",
            param="through_item",
            hint=f"The nearest item behind which it can is {named!r}." if named else "There is nothing before it.",
        )

    async def _is_open(self, conversation: Conversation) -> bool:
        """Whether the log ends with something that is to be answered."""
        (last,) = await self._store.read(conversation, conversation.head_seq, conversation.head_seq + 1)
        return last.message.role != "assistant" or bool(last.message.tool_calls)

    async def _work(
        self,
        caller: Caller,
        turn: Turn,
        view: View,
        before_tokens: int,
        progress: Progress,
        stack: AsyncExitStack,
    ) -> dict[str, Any]:
        """Summarize, keep what came of it, tell. Closes `stack`."""
        async with stack:
            known = {chunk.id for chunk in (*view.outline.chunks, *view.outline.folds)}
            after = view
            if view.plan.to_summarize:
                after = await self._compacting.compact(turn, view, on_start=progress.started, on_chunk=progress.made)
            warnings = list(after.warnings)
            if after.plan.chunks:
                warnings += await self._keep(caller, turn, after)
        made = [chunk for chunk in (*after.outline.chunks, *after.outline.folds) if chunk.id not in known]
        compaction: Mapping[str, Any] = after.compaction
        body = {
            **_body(turn.place.conversation, turn),
            "dry_run": False,
            "summaries": await self._told(turn.place.conversation, made),
            "tokens_before": before_tokens,
            "tokens_after": after.budget.calibrated(after.plan.prompt_tokens),
            "ran": bool(compaction["ran"]),
            "outcome": compaction.get("outcome", "completed" if made else "nothing_to_do"),
            "duration_ms": compaction.get("duration_ms", 0),
            "model": compaction.get("model") or turn.request.model,
            "usage": compaction.get("usage"),
            "warnings": warnings,
        }
        return body if made else {**body, "reason": " ".join(warnings) or NOTHING}

    async def _keep(self, caller: Caller, turn: Turn, view: View) -> Sequence[str]:
        """Have the next request begin with this view. What could not be done is told."""
        conversation = turn.place.conversation
        for _ in range(TRIES):
            before = last_view_of(conversation.state, turn.policy, view.budget.window)
            kept = turn.place.versions.restore_view(last_view(view.plan, before, asked=True))
            views = with_view(conversation.state, turn.policy, view.budget.window, kept)
            after = replace(
                conversation,
                state={**conversation.state, VIEWS: views},
                chunk_count=max(conversation.chunk_count, len(view.outline.chunks)),
            )
            try:
                await self._store.append(
                    Append(conversation=after, after_seq=conversation.head_seq, messages=(), fence=turn.place.lease)
                )
            except HeadMoved:
                conversation = await self._records.of(caller, conversation.id)
                continue
            except LeaseLost:
                break
            return ()
        return ("The summaries are kept, and used once the view is above its line.",)

    async def _told(self, conversation: Conversation, chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
        ends = await item_ids(self._store, conversation, [(chunk.from_seq, chunk.to_seq) for chunk in chunks])
        return [summary_object(chunk, conversation, ends, is_active=not chunk.folds) for chunk in chunks]


def _body(conversation: Conversation, turn: Turn) -> dict[str, Any]:
    """What a compaction's object has whatever came of it."""
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


HEARTBEAT_SECONDS: Final = 5.0
"""Between two events of a compaction: the shortest client read timeout seen is 60 s."""


@dataclass(slots=True)
class Progress:
    """What its watcher is told of a compaction."""

    conversation_id: str
    seconds: Callable[[], float]
    ranges: int
    window: int
    input_tokens: int
    began: float
    done: int = 0
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)

    def started(self) -> None:
        told = {"input_tokens": self.input_tokens, "context_window": self.window, "ranges": self.ranges}
        self.events.put_nowait({"type": "compaction_started", "conversation_id": self.conversation_id, **told})

    def made(self, chunk: Chunk) -> None:
        self.done += 1
        self.ranges = max(self.ranges, self.done)
        told = {"from_seq": chunk.from_seq, "to_seq": chunk.to_seq, "tokens": chunk.tokens, "kind": chunk.kind}
        self.events.put_nowait({"type": "summary_completed", "id": chunk.id, **told, **self._so_far()})

    def waiting(self) -> dict[str, Any]:
        elapsed_ms = round((self.seconds() - self.began) * 1000)
        return {"type": "compaction_progress", "elapsed_ms": elapsed_ms, **self._so_far()}

    def _so_far(self) -> dict[str, int]:
        return {"done": self.done, "ranges": self.ranges}


class Compaction:
    """A compaction under way. That its client hangs up does not end it."""

    def __init__(self, task: asyncio.Task[dict[str, Any]], progress: Progress) -> None:
        self._task = task
        self._progress = progress
        task.add_done_callback(self._ended)

    def on_end(self, do: Callable[[], None]) -> None:
        """Have something done once the work is over, however it ended."""
        self._task.add_done_callback(lambda _: do())

    async def result(self) -> dict[str, Any]:
        """The object that tells of it.

        Raises:
            GatewayError: it failed.
        """
        return await asyncio.shield(self._task)

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """What happens, as it happens, and something every few seconds; at last the object that tells of it.

        Raises:
            GatewayError: it failed.
        """
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    event = await self._progress.events.get()
            except TimeoutError:
                yield self._progress.waiting()
                continue
            if event is None:
                break
            yield event
        yield {"type": "compaction_completed", **await self.result()}

    def _ended(self, task: asyncio.Task[dict[str, Any]]) -> None:
        if not task.cancelled():
            task.exception()
        self._progress.events.put_nowait(None)
