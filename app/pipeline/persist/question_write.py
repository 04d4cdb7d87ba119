"""The write of a request's new messages while the upstream is asked, and what becomes of them if no answer comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from msgspec.structs import replace

from app.errors import GatewayError, StoreUnavailable, drop_tracebacks
from app.pipeline.persist.turn_writer import TurnWriter
from app.pipeline.turn.background_tasks import BackgroundTasks
from app.pipeline.turn.resolved_request import PendingWrite, mark_unstored
from app.pipeline.turn.turn import Turn

log = logging.getLogger(__name__)


class QuestionWrite:
    """Writes a request's new messages while its block asks the upstream: the model's latency hides the write.

    If the block fails or is cancelled, a conversation that begins with this request is erased: its client does not know
    the id, and its retry would begin another one. Any other conversation keeps the new messages.
    """

    def __init__(self, turn_writer: TurnWriter, tasks: BackgroundTasks, turn: Turn) -> None:
        self._turn_writer = turn_writer
        self._tasks = tasks
        self._turn = turn
        self._may_have_stored = True

    async def __aenter__(self) -> QuestionWrite:
        self._pending_write = self._turn_writer.start_question_write(self._turn.resolved_request)
        return self

    async def finish(self, turn: Turn, close_reply: Callable[[], Awaitable[None]]) -> Turn:
        """Waits until the new messages are stored.

        Args:
            turn: the turn that the upstream has answered.
            close_reply: closes the upstream's reply. Called if this fails: nobody will read the reply.

        Returns:
            The turn with its conversation after the new messages. If the store is unavailable and the request does not
            need it, the turn is marked as not stored: the model has answered already.

        Raises:
            ConversationBusy: an append lost its lease to another request.
            StoreUnavailable: nothing was stored, and the request needs the store.
        """
        try:
            resolved_request = await self._turn_writer.finish_question_write(self._pending_write)
        except BaseException as error:
            if not isinstance(error, StoreUnavailable) or turn.resolved_request.storage.needs_store:
                # A write that failed has stored nothing that could be erased; a cancelled one goes on.
                self._may_have_stored = isinstance(error, asyncio.CancelledError)
                await close_reply()
                raise
            drop_tracebacks(error)
            resolved_request = mark_unstored(turn.resolved_request)
        # If the provider has refused the search tool, the tool is gone since the write began.
        if (instructions_tokens := turn.resolved_request.instructions_tokens) != resolved_request.instructions_tokens:
            resolved_request = replace(resolved_request, instructions_tokens=instructions_tokens)
        return replace(turn, resolved_request=resolved_request)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None and self._may_have_stored:
            # Shielded: if the client has disconnected, this task is cancelled, and a conversation of one unanswered
            # question would stay in the store.
            await self._tasks.run_shielded(self._erase_unanswered_conversation(self._pending_write))

    async def _erase_unanswered_conversation(self, pending_write: PendingWrite) -> None:
        try:
            await self._turn_writer.erase_unanswered_conversation(
                await self._turn_writer.finish_question_write(pending_write)
            )
        except GatewayError as error:
            # A failure here is logged, not raised: the client must see the upstream's error, not this one. The
            # conversation that stays is recognised when the client retries.
            drop_tracebacks(error)
            log.warning("could not erase a conversation whose first request failed: %s", error.message)
