"""Conversations of other programs, and exports of our own, taken in: all of a file, or none of it.

What is taken in counts as answered here: a client that goes on with such a history continues the conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.conversation.identity import new_conversation_id, root_of, start_of, walk
from app.conversation.message_checks import INSTRUCTION_ROLES, check_messages, leaves_calls_open
from app.conversation.messages import Conversation, LogMessage
from app.conversations.transfer.formats.format_detection import Format, read
from app.conversations.transfer.formats.imported_history import Branch, Imported, ImportedMessage, noticed
from app.errors import ConversationBusy, StoreUnavailable
from app.pipeline.background_tasks import Tasks
from app.pipeline.persist.log_entries import NOTHING_BROUGHT, branch_of, empty_log, ending_with, entries_behind
from app.pipeline.resolve.resolved_request import CALLS_OPEN, INSTRUCTIONS, PENDING
from app.pipeline.token_counting import Counting
from app.store.contract import Append, HeadMoved, Store

log = logging.getLogger(__name__)


class Checked(msgspec.Struct, frozen=True):
    """A conversation that can be kept: its instructions, and its log."""

    found: Imported
    instructions: tuple[ImportedMessage, ...]
    log: tuple[ImportedMessage, ...]

    @property
    def count(self) -> int:
        """How many messages are to be written for it."""
        return len(self.log) + sum(len(branch.messages) for branch in self.found.branches)


class TakenIn(msgspec.Struct, frozen=True):
    """What became of a file."""

    conversations: tuple[Conversation, ...]
    """Each followed by its branches."""
    warnings: tuple[str, ...]


class Importing:
    """Keeps conversations that other programs had."""

    def __init__(
        self, *, store: Store, counting: Counting, tasks: Tasks, random_bytes: Callable[[int], bytes], encoding: str
    ) -> None:
        self._store = store
        self._counting = counting
        self._tasks = tasks
        self._random_bytes = random_bytes
        self._encoding = encoding

    async def take_in(
        self, tenant: str, data: bytes, wanted: Format = "auto", *, on_kept: Callable[[int], None] | None = None
    ) -> TakenIn:
        """Keep all conversations of a file.

        Args:
            on_kept: told of how many messages more are kept.

        Raises:
            InvalidRequest: it cannot be read; the message names the place. Nothing was kept.
            StoreUnavailable: what had been kept was taken back, as far as the store answers.
        """
        return await self.keep(tenant, await asyncio.to_thread(checked, data, wanted), on_kept=on_kept)

    async def keep(
        self, tenant: str, found: Sequence[Checked], *, on_kept: Callable[[int], None] | None = None
    ) -> TakenIn:
        """Keep conversations that were read and checked, all or none."""
        begun: list[Conversation] = []
        kept: list[Conversation] = []
        warnings = [warning for one in found for warning in one.found.warnings]
        writer = LogWriter(self._store, self._counting, on_kept=on_kept, on_begun=begun.append)
        try:
            for one in found:
                family = await self._keep(tenant, one, writer)
                warnings += await self._named(one.found, family[0])
                kept += family
        except BaseException:
            await self._tasks.finish(self._take_back(begun))
            raise
        final = [await self._store.get(tenant=tenant, conversation_id=one.id) for one in kept]
        return TakenIn(tuple(one for one in final if one is not None), tuple(warnings))

    async def _keep(self, tenant: str, one: Checked, writer: LogWriter) -> list[Conversation]:
        """A conversation and its branches, as they then stand."""
        family = [await writer.write(self._empty(tenant, one, one.log), one.log)]
        for branch in one.found.branches:
            shared = branch.shared - len(one.instructions)
            if shared > 0:
                begun = await self._branch(family[branch.of], shared - 1, one.found, branch)
            else:
                begun = self._empty(tenant, one, branch.messages)
            family.append(await writer.write(begun, branch.messages))
        return family

    def _empty(self, tenant: str, one: Checked, messages: Log) -> Conversation:
        """A conversation that is still to get its log."""
        instructions = [told.message.raw.decode() for told in one.instructions]
        start = start_of(tenant)
        links = (position.link for position in walk((said.message for said in messages), start))
        first_link = next((link for link in links if link != start.link), None)
        root = root_of(tenant, first_link or self._random_bytes(len(start.link)))
        return replace(
            empty_log(tenant, self._encoding),
            id=new_conversation_id(root, self._random_bytes),
            root=root,
            state={**NOTHING_BROUGHT, **({INSTRUCTIONS: instructions} if instructions else {})},
            metadata=one.found.metadata,
            created_at=one.found.created_at or _first_time(messages),
        )

    async def _branch(self, parent: Conversation, last_seq: int, found: Imported, branch: Branch) -> Conversation:
        """A conversation that shares its parent's log through `last_seq`, and is still to get messages of its own."""
        (last,) = await self._store.read(parent, last_seq, last_seq + 1)
        return replace(
            branch_of(parent, last, new_conversation_id(parent.root, self._random_bytes)),
            metadata=found.metadata,
            created_at=_first_time(branch.messages) or parent.created_at,
        )

    async def _named(self, found: Imported, conversation: Conversation) -> list[str]:
        """Make the id that the client had given a conversation mean it here too; a warning where it is taken."""
        name, tenant = found.external_id, conversation.tenant
        if name is None:
            return []
        if await self._store.get(tenant=tenant, conversation_id=name) is not None:
            return [noticed(found.where, f"the id {name!r} is taken; this conversation is {conversation.id!r} only.")]
        await self._store.point(tenant=tenant, external_id=name, conversation=conversation)
        return []

    async def _take_back(self, begun: Sequence[Conversation]) -> None:
        for conversation in reversed(begun):
            try:
                await self._store.delete(tenant=conversation.tenant, conversation_id=conversation.id)
            except StoreUnavailable as error:
                log.warning("conversation %s is left of a failed import: %s", conversation.id, error.message)


def checked(data: bytes, wanted: Format) -> list[Checked]:
    """The conversations of a file, each fit to be kept.

    Raises:
        InvalidRequest: what they are not; the message names the place.
    """
    return [_checked(found) for found in read(data, wanted)]


def _checked(found: Imported) -> Checked:
    messages = found.messages
    first = next((n for n, one in enumerate(messages) if one.message.role not in INSTRUCTION_ROLES), len(messages))
    _check(messages, calls_open=False)
    logs: list[Log] = [messages]
    for branch in found.branches:
        shared = logs[branch.of][: branch.shared]
        _check(branch.messages, calls_open=bool(shared) and leaves_calls_open(shared[-1].message))
        logs.append([*shared, *branch.messages])
    return Checked(found=found, instructions=messages[:first], log=messages[first:])


def _check(messages: Log, *, calls_open: bool) -> None:
    check_messages(
        (one.message for one in messages),
        first_index=0,
        calls_open=calls_open,
        name_of=lambda index: messages[index].where,
    )


def _first_time(messages: Log) -> datetime | None:
    return next((one.created_at for one in messages if one.created_at is not None), None)


BATCH_MESSAGES: Final = 500
BATCH_BYTES: Final = 4 * 1024 * 1024
"""A batch ends with the message that makes it weigh as much."""

Log = Sequence[ImportedMessage]


class LogWriter:
    """Begins conversations that have a log already.

    Args:
        on_kept: told of how many messages more are stored.
        on_begun: told of each conversation before it is.
    """

    def __init__(
        self,
        store: Store,
        counting: Counting,
        *,
        on_kept: Callable[[int], None] | None,
        on_begun: Callable[[Conversation], None],
    ) -> None:
        self._store = store
        self._counting = counting
        self._on_kept = on_kept
        self._on_begun = on_begun

    async def write(self, conversation: Conversation, log: Log) -> Conversation:
        """Store a new conversation, `log` following on what it shares with others; the conversation as it then stands.

        Raises:
            ConversationBusy: somebody went on with it while it was written.
            StoreUnavailable: it may have been begun.
        """
        self._on_begun(conversation)
        creates = True
        for batch in _batches(log):
            after, entries = await self._grown(conversation, batch)
            write = Append(conversation=after, after_seq=conversation.head_seq, messages=entries, creates=creates)
            try:
                await self._store.append(write)
            except HeadMoved as moved:
                raise ConversationBusy("Somebody went on with a conversation while it was imported.") from moved
            conversation, creates = after, False
            if self._on_kept is not None:
                self._on_kept(len(entries))
        return conversation

    async def _grown(self, before: Conversation, log: Log) -> tuple[Conversation, list[LogMessage]]:
        """A conversation with messages at its end, and these messages in their places."""
        if not log:
            return before, []
        entries = await entries_behind(before, [one.message for one in log], self._counting)
        entries = [replace(entry, created_at=one.created_at) for entry, one in zip(entries, log, strict=True)]
        state: dict[str, Any] = {**before.state, CALLS_OPEN: leaves_calls_open(entries[-1].message)}
        pending = _pending(int(state.pop(PENDING, 0)), log)
        if pending:
            state[PENDING] = pending
        return replace(ending_with(before, entries), state=state), entries


def _batches(log: Log) -> Iterator[Log]:
    """A log in pieces of a bounded size; one empty piece of an empty log."""
    begun, size = 0, 0
    for index, one in enumerate(log):
        size += len(one.message.raw)
        if index + 1 - begun >= BATCH_MESSAGES or size >= BATCH_BYTES:
            yield log[begun : index + 1]
            begun, size = index + 1, 0
    if begun < len(log) or not log:
        yield log[begun:]


def _pending(before: int, log: Log) -> int:
    """How many messages at the end have no answer yet, of which `before` stood there already."""
    since = next((n for n, one in enumerate(reversed(log)) if one.message.role == "assistant"), None)
    return before + len(log) if since is None else since
