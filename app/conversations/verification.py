"""Check what a database holds against itself: chains recomputed, totals added up, references followed. Writes nothing.

What is found is a fault of the gateway, of a disk, or of somebody's hands; a notice is worth knowing and no fault.
A conversation's root is not recomputed: one that was begun empty has a random one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from app.context.count.token_counter import TokenCounter
from app.conversation.identity import Position, root_of_conversation, seed, start_of, walk
from app.conversation.messages import Conversation, LogMessage, Message
from app.conversations.items.items import DELETED
from app.errors import InvalidRequest, StoreUnreadable
from app.store.audit import Audit, KeptChunk
from app.store.encryption.sealed_fields import Sealing
from app.store.lineage import own_from, stretches

TOLD_OF_A_KIND: Final = 100
"""So many of each kind are listed; the others are counted."""
DRIFT_SHARE: Final = 0.05
"""How far, on average, our count of prompts may be from what providers report before it is told."""
DRIFT_ANSWERS: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be, or a notice."""

    kind: str
    where: str
    """A conversation's id or that of what refers to one."""
    told: str


@dataclass(slots=True)
class Found:
    """What a verification came to, so far."""

    conversations: int = 0
    messages: int = 0
    chunks: int = 0
    unreadable: int = 0
    """Messages under a key that is not configured: their links and tokens could not be recomputed."""
    redacted: int = 0
    """Messages that were erased: their links stand for what is gone."""
    recounted_tokens: int = 0
    miscounted: int = 0
    """Messages whose stored token count is not what is counted now."""
    reports: int = 0
    """Answers for whose prompt the provider reported a number of tokens."""
    reported_tokens: int = 0
    drift_tokens: int = 0
    """How far our calibrated counts of those prompts were off, summed up regardless of the sign."""
    findings: list[Finding] = field(default_factory=list)
    notices: list[Finding] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    """How often each kind was found, those that are not listed included."""

    @property
    def drift(self) -> float:
        """Of what was reported, the share that our counts were off by."""
        return self.drift_tokens / self.reported_tokens if self.reported_tokens else 0.0


class Verifying:
    """Goes over a whole database once.

    Args:
        counter_for: the token counter of an encoding.
        tell: is called after each message and each summary that was looked at.
    """

    def __init__(
        self,
        audit: Audit,
        sealing: Sealing,
        *,
        counter_for: Callable[[str], TokenCounter],
        now: datetime,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._audit = audit
        self._sealing = sealing
        self._counter_for = counter_for
        self._now = now
        self._tell = tell
        self.found = Found()

    async def run(self) -> Found:
        """
        Raises:
            StoreUnavailable: the database went away.
        """
        async for conversation in self._audit.conversations():
            await self._conversation(conversation)
            self.found.conversations += 1
        async for kept in self._audit.chunks():
            for told in await faults_of_chunk(self._audit, kept):
                self._fault("chunk", kept.chunk.id, told)
            if await is_ahead(self._audit, kept):
                self._notice("chunk", kept.chunk.id, "it stands for messages that are not stored, yet")
            self.found.chunks += 1
            self._tell()
        async for one in self._audit.dangling(self._now):
            (self._fault if one.is_fault else self._notice)(one.kind, one.where, one.told)
        self._tell_sums()
        return self.found

    async def _conversation(self, conversation: Conversation) -> None:
        if root_of_conversation(conversation.id) != conversation.root:
            self._fault("conversation", conversation.id, f"stands under the root {conversation.root!r}")
        log = _Log(conversation, self._counter_for(conversation.counter))
        if conversation.lineage:
            shared = await self._shared(conversation)
            if shared is None:
                return
            log.begin_behind(shared)
        async for stored in self._audit.own_messages(conversation):
            for kind, told in log.faults_of(stored, self._opened(conversation, stored)):
                (self._notice if kind == "tokens" else self._fault)(kind, conversation.id, told)
            self._add_up(stored, log)
            self._tell()
        for told in log.faults_of_head():
            self._fault("head", conversation.id, told)

    async def _shared(self, conversation: Conversation) -> LogMessage | None:
        """The last message that a branch shares; None where its lineage is at fault."""
        before, shared = -1, None
        for ancestor_id, upto_seq in conversation.lineage:
            ancestor = await self._audit.conversation(conversation.root, ancestor_id)
            if ancestor is None or ancestor.tenant != conversation.tenant:
                self._fault("lineage", conversation.id, f"branches off {ancestor_id}, which is not there")
                return None
            shared = await self._audit.message(conversation.root, ancestor_id, upto_seq)
            if upto_seq <= before or shared is None:
                told = f"shares {ancestor_id} through message {upto_seq}, which that does not keep"
                self._fault("lineage", conversation.id, told)
                return None
            before = upto_seq
        return shared

    def _opened(self, conversation: Conversation, stored: LogMessage) -> LogMessage | None:
        """A message with its body readable; None where it cannot be read."""
        try:
            return self._sealing.open_message(conversation.tenant, stored)
        except StoreUnreadable:
            return None

    def _add_up(self, stored: LogMessage, log: _Log) -> None:
        found = self.found
        found.messages += 1
        found.unreadable += log.was_unreadable
        found.redacted += log.was_redacted
        found.recounted_tokens += log.recounted_tokens
        found.miscounted += log.was_miscounted
        calibration = _calibration_in(log.opened)
        if calibration is not None:
            found.reports += 1
            found.reported_tokens += calibration[1]
            found.drift_tokens += abs(calibration[0] - calibration[1])

    def _tell_sums(self) -> None:
        found = self.found
        if found.unreadable:
            told = f"{found.unreadable} messages are under keys that are not configured: their links were not checked"
            self._notice("encryption", "-", told)
        if found.reports >= DRIFT_ANSWERS and found.drift > DRIFT_SHARE:
            told = f"our counts of prompts are off by {found.drift:.1%} of what providers report, on average"
            self._notice("drift", "-", told)

    def _fault(self, kind: str, where: str, told: str) -> None:
        self._note(self.found.findings, Finding(kind, where, told))

    def _notice(self, kind: str, where: str, told: str) -> None:
        self._note(self.found.notices, Finding(kind, where, told))

    def _note(self, listed: list[Finding], one: Finding) -> None:
        count = self.found.kinds.get(one.kind, 0) + 1
        self.found.kinds[one.kind] = count
        if count <= TOLD_OF_A_KIND:
            listed.append(one)


class _Log:
    """One conversation's own messages, walked from the first to the last."""

    def __init__(self, conversation: Conversation, counter: TokenCounter) -> None:
        self._conversation = conversation
        self._counter = counter
        self._redacted = frozenset(conversation.redacted)
        self._position = start_of(conversation.tenant)
        self._total = 0
        self._answered = False
        self._next_seq = own_from(conversation)
        self.opened: LogMessage | None = None
        self.was_unreadable = self.was_redacted = self.was_miscounted = False
        self.recounted_tokens = 0

    def begin_behind(self, shared: LogMessage) -> None:
        """Its own messages follow this one of an ancestor."""
        self._position = Position(shared.link, shared.skeleton, False)
        self._total, self._answered = shared.tokens_total, shared.answered

    def faults_of(self, stored: LogMessage, opened: LogMessage | None) -> list[tuple[str, str]]:
        """What is wrong with the next message, as (kind, what).

        Args:
            opened: the same, decrypted; None where that is not possible.
        """
        self.opened = opened
        seq, found = stored.seq, []
        if seq != self._next_seq:
            found.append(("sequence", f"message {seq} follows {self._next_seq - 1}"))
        if stored.tokens_total != self._total + stored.tokens:
            told = f"tokens through message {seq} are {stored.tokens_total}, expected {self._total + stored.tokens}"
            found.append(("totals", told))
        if self._answered and not stored.answered:
            found.append(("answered", f"message {seq} counts as unanswered behind an answer"))
        found += self._faults_of_body(stored, opened)
        self._next_seq, self._total, self._answered = seq + 1, stored.tokens_total, stored.answered
        self._position = Position(stored.link, stored.skeleton, stored.in_skeleton)
        return found

    def _faults_of_body(self, stored: LogMessage, opened: LogMessage | None) -> list[tuple[str, str]]:
        self.was_unreadable, self.was_redacted = opened is None, stored.seq in self._redacted
        self.was_miscounted, self.recounted_tokens = False, 0
        if opened is None:
            return []
        found = []
        try:
            told = self._chain_fault(stored, opened)
            if told is not None:
                found.append(("link", told))
            self.recounted_tokens = self._counter.message(opened.message.body)
        except InvalidRequest as error:
            return [("body", f"message {stored.seq} cannot be read: {error.message}")]
        if self.recounted_tokens != stored.tokens:
            self.was_miscounted = True
            found.append(
                ("tokens", f"message {stored.seq} was counted as {stored.tokens}, is {self.recounted_tokens} now")
            )
        return found

    def _chain_fault(self, stored: LogMessage, opened: LogMessage) -> str | None:
        message = self._as_linked(opened)
        if message is None:
            return None
        (expected,) = walk((message,), self._position)
        if (stored.link, stored.skeleton, stored.in_skeleton) == (
            expected.link,
            expected.skeleton,
            expected.in_skeleton,
        ):
            return None
        which = "link" if stored.link != expected.link else "skeleton"
        return f"the {which} of message {stored.seq} is not that of its body and what comes before"

    def _as_linked(self, opened: LogMessage) -> Message | None:
        """The message that its link was made of; None where that is gone for good."""
        if not self.was_redacted:
            return opened.message
        deleted: dict[str, Any] = (opened.meta or {}).get(DELETED) or {}
        return Message(deleted["body"].encode()) if deleted.get("body") and not deleted.get("erased") else None

    def faults_of_head(self) -> list[str]:
        """What the conversation's row says otherwise than its last message."""
        one, last = self._conversation, self._position
        pairs = (
            ("ends with message", one.head_seq, self._next_seq - 1),
            ("has the link of its end", one.head_link, last.link),
            ("has the skeleton of its end", one.head_skeleton, last.skeleton),
            ("counts tokens", one.head_tokens_total, self._total),
            ("counts as answered", one.answered, self._answered),
        )
        found = [
            f"{what}: {_shown(said)}, its log says {_shown(there)}" for what, said, there in pairs if said != there
        ]
        if one.indexed_before > one.head_seq + 1:
            found.append(f"is indexed before {one.indexed_before}, which is beyond its end")
        if any(not 0 <= seq <= one.head_seq for seq in self._redacted):
            found.append("marks messages as deleted that are beyond its end")
        return found


def _shown(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _calibration_in(opened: LogMessage | None) -> tuple[int, int] | None:
    """Of an answer: our count of its prompt, and the provider's."""
    told = ((opened.meta if opened is not None else None) or {}).get("context") or {}
    calibration = told.get("calibration") or {}
    estimated, reported = calibration.get("estimated_tokens"), calibration.get("reported_tokens")
    if not isinstance(estimated, int) or not isinstance(reported, int):
        return None
    return estimated, reported


async def faults_of_chunk(audit: Audit, kept: KeptChunk) -> list[str]:
    """What is wrong with a chunk. A log that ends with its `to_link` is one that it may stand for: whatever leads there
    begins with the same messages. There may be none: then `is_ahead`."""
    chunk = kept.chunk
    found = []
    if not 0 <= chunk.from_seq < chunk.to_seq:
        return [f"its range is {chunk.from_seq} to {chunk.to_seq}"]
    if kept.is_fold != bool(chunk.folds):
        found.append("its row does not say whether it folds others")
    found += [f"it folds {one}, which is not there" for one in chunk.folds if not await audit.has_chunk(kept, one)]
    places = await audit.keepers(kept.root, chunk.to_link)
    if not places:
        return found
    keepers = [keeper for keeper, seq in places if seq == chunk.to_seq - 1]
    logs = [log for keeper in keepers if (log := await audit.conversation(kept.root, keeper)) is not None]
    logs = [log for log in logs if log.tenant == kept.tenant]
    if not logs:
        return [*found, f"no log has its end, message {chunk.to_seq - 1}"]
    if not await _begins(audit, kept, logs):
        found.append(f"no log that has its end has its beginning, message {chunk.from_seq}")
    totals = {await _total(audit, log, chunk.to_seq - 1) for log in logs}
    if chunk.tokens_total not in totals:
        found.append(f"tokens through its end are {chunk.tokens_total}, its log says {sorted(totals)}")
    return found


async def is_ahead(audit: Audit, kept: KeptChunk) -> bool:
    """Whether no log has its end: the request that brought these messages failed after they were summarized. It is used
    when they come again."""
    return not await audit.keepers(kept.root, kept.chunk.to_link)


async def _begins(audit: Audit, kept: KeptChunk, logs: list[Conversation]) -> bool:
    chunk = kept.chunk
    if chunk.from_seq == 0:
        return chunk.from_link == seed(kept.tenant)
    for log in logs:
        places = stretches(log.path, chunk.from_seq - 1, chunk.from_seq)
        before = await audit.message(kept.root, places[0].conversation_id, chunk.from_seq - 1) if places else None
        if before is not None and before.link == chunk.from_link:
            return True
    return False


async def _total(audit: Audit, log: Conversation, seq: int) -> int:
    entry = await audit.message(log.root, log.id, seq)
    return -1 if entry is None else entry.tokens_total
