"""Verifies a database: recomputes links, adds up token totals, follows references. It writes nothing.

A fault comes from a bug, a damaged disk or a manual change; a notice is worth knowing, but no fault. A conversation's
root is not recomputed, because a conversation that was created empty has a random one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from app.context.count.token_counter import TokenCounter, load_token_counter
from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.identity import (
    LinkPosition,
    compute_first_link,
    compute_links_after_messages,
    compute_start_position,
    extract_family_root,
)
from app.conversation.item import Item
from app.conversations.items.item_building import DELETED
from app.dialects.item_decoding import decode_item
from app.errors import InvalidRequest, StoreUnreadable
from app.store.encryption.cipher import Cipher
from app.store.encryption.encrypted_store import FieldSealer
from app.store.lineage import find_segments, first_own_seq
from tests.faults.database_snapshot import DatabaseSnapshot, SummaryRow, open_database_snapshot

MAX_LISTED_PER_KIND: Final = 100
"""The most findings of one kind that are listed; further ones are only counted."""
MAX_DRIFT_SHARE: Final = 0.05
"""The mean difference between our counts of prompts and the providers' from which on a notice is reported."""
MIN_DRIFT_REPORTS: Final = 20


@dataclass(frozen=True, slots=True)
class VerificationFinding:
    """A fault or a notice."""

    kind: str
    subject_id: str
    """The id of a conversation, or of a row that refers to one."""
    description: str


@dataclass(slots=True)
class VerificationReport:
    """The results of a verification, complete or so far."""

    conversations: int = 0
    messages: int = 0
    chunks: int = 0
    unreadable_messages: int = 0
    """Messages encrypted with a key that is not configured: their links and tokens cannot be recomputed."""
    redacted_messages: int = 0
    """Deleted or erased messages. The link of an erased one cannot be recomputed, since its text is gone."""
    recounted_tokens: int = 0
    miscounted_messages: int = 0
    """Messages whose stored token count differs from a new count."""
    usage_reports: int = 0
    """Answers with a provider's report of the prompt's tokens."""
    reported_tokens: int = 0
    drift_tokens: int = 0
    """The sum of absolute differences between our calibrated counts of those prompts and the reports."""
    faults: list[VerificationFinding] = field(default_factory=list)
    notices: list[VerificationFinding] = field(default_factory=list)
    counts_by_kind: dict[str, int] = field(default_factory=dict)
    """The number of findings by kind, with those that are not listed."""

    @property
    def drift_share(self) -> float:
        """The mean difference of our counts, as a share of the reported tokens."""
        return self.drift_tokens / self.reported_tokens if self.reported_tokens else 0.0


async def verify_database(
    url: str, keys: Mapping[str, bytes] | None = None, *, now: datetime | None = None
) -> VerificationReport:
    """Verifies the database that a URL names.

    Args:
        keys: the encryption keys by name, for databases that are encrypted.
        now: as `DatabaseVerifier` has it; None: the present time.
    """
    async with open_database_snapshot(url) as snapshot:
        return await verify_snapshot(snapshot, keys, now=now)


async def verify_snapshot(
    snapshot: DatabaseSnapshot, keys: Mapping[str, bytes] | None = None, *, now: datetime | None = None
) -> VerificationReport:
    """Verifies a database through a snapshot that is open."""
    sealer = FieldSealer(Cipher(keys or {}, None))
    return await DatabaseVerifier(snapshot, sealer, counter_for=load_token_counter, now=now or datetime.now(UTC)).run()


class DatabaseVerifier:
    """Verifies a whole database once.

    Args:
        snapshot: reads the database's rows.
        sealer: decrypts messages.
        counter_for: returns the token counter of an encoding.
        now: the time by which expired rows are recognized.
    """

    def __init__(
        self,
        snapshot: DatabaseSnapshot,
        sealer: FieldSealer,
        *,
        counter_for: Callable[[str], TokenCounter],
        now: datetime,
    ) -> None:
        self._snapshot = snapshot
        self._sealer = sealer
        self._counter_for = counter_for
        self._now = now
        self.report = VerificationReport()

    async def run(self) -> VerificationReport:
        """Verifies all conversations and summaries, and returns the report.

        Raises:
            StoreUnavailable: the database became unavailable.
        """
        async for conversation in self._snapshot.stream_conversations():
            await self._verify_conversation(conversation)
            self.report.conversations += 1
        async for stored_summary in self._snapshot.stream_summaries():
            for fault in await find_summary_faults(self._snapshot, stored_summary):
                self._record_fault("chunk", stored_summary.summary.id, fault)
            if await is_summary_ahead(self._snapshot, stored_summary):
                self._record_notice(
                    "chunk", stored_summary.summary.id, "it stands for messages that are not stored yet"
                )
            self.report.chunks += 1
        async for dangling_row in self._snapshot.stream_dangling_rows(self._now):
            (self._record_fault if dangling_row.is_fault else self._record_notice)(
                dangling_row.kind, dangling_row.where, dangling_row.description
            )
        self._record_total_notices()
        return self.report

    async def _verify_conversation(self, conversation: Conversation) -> None:
        if extract_family_root(conversation.id) != conversation.root:
            self._record_fault("conversation", conversation.id, f"is stored under the root {conversation.root!r}")
        log = _LogVerifier(conversation, self._counter_for(conversation.token_counter_name))
        if conversation.lineage:
            shared = await self._find_last_shared_message(conversation)
            if shared is None:
                return
            log.start_after(shared)
        async for stored in self._snapshot.stream_own_messages(conversation):
            for kind, fault in log.find_message_faults(stored, self._decrypt_message(conversation, stored)):
                (self._record_notice if kind == "tokens" else self._record_fault)(kind, conversation.id, fault)
            self._add_message_counts(log)
        for fault in log.find_head_faults():
            self._record_fault("head", conversation.id, fault)

    async def _find_last_shared_message(self, conversation: Conversation) -> LogMessage | None:
        """Returns the last message that a branch shares with its ancestors; None if its lineage is faulty."""
        before, shared = -1, None
        for ancestor_id, upto_seq in conversation.lineage:
            ancestor = await self._snapshot.find_conversation(conversation.root, ancestor_id)
            if ancestor is None or ancestor.tenant != conversation.tenant:
                self._record_fault("lineage", conversation.id, f"branches off {ancestor_id}, which does not exist")
                return None
            shared = await self._snapshot.read_message(conversation.root, ancestor_id, upto_seq)
            if upto_seq <= before or shared is None:
                description = f"shares {ancestor_id} through message {upto_seq}, which its ancestor does not have"
                self._record_fault("lineage", conversation.id, description)
                return None
            before = upto_seq
        return shared

    def _decrypt_message(self, conversation: Conversation, stored: LogMessage) -> LogMessage | None:
        """Returns a message decrypted; None if its key is missing."""
        try:
            return self._sealer.unseal(conversation.tenant, stored)
        except StoreUnreadable:
            return None

    def _add_message_counts(self, log: _LogVerifier) -> None:
        report = self.report
        report.messages += 1
        report.unreadable_messages += log.was_unreadable
        report.redacted_messages += log.was_redacted
        report.recounted_tokens += log.recounted_tokens
        report.miscounted_messages += log.was_miscounted
        calibration = _read_prompt_counts(log.decrypted_message)
        if calibration is not None:
            report.usage_reports += 1
            report.reported_tokens += calibration[1]
            report.drift_tokens += abs(calibration[0] - calibration[1])

    def _record_total_notices(self) -> None:
        report = self.report
        if report.unreadable_messages:
            description = (
                f"{report.unreadable_messages} messages are encrypted with missing keys: their links were not checked"
            )
            self._record_notice("encryption", "-", description)
        if report.usage_reports >= MIN_DRIFT_REPORTS and report.drift_share > MAX_DRIFT_SHARE:
            description = (
                f"our counts of prompts are off by {report.drift_share:.1%} of what providers report, on average"
            )
            self._record_notice("drift", "-", description)

    def _record_fault(self, kind: str, subject_id: str, description: str) -> None:
        self._record_finding(self.report.faults, VerificationFinding(kind, subject_id, description))

    def _record_notice(self, kind: str, subject_id: str, description: str) -> None:
        self._record_finding(self.report.notices, VerificationFinding(kind, subject_id, description))

    def _record_finding(self, listed: list[VerificationFinding], finding: VerificationFinding) -> None:
        count = self.report.counts_by_kind.get(finding.kind, 0) + 1
        self.report.counts_by_kind[finding.kind] = count
        if count <= MAX_LISTED_PER_KIND:
            listed.append(finding)


class _LogVerifier:
    """Checks one conversation's own messages, from the first to the last."""

    def __init__(self, conversation: Conversation, counter: TokenCounter) -> None:
        self._conversation = conversation
        self._counter = counter
        self._redacted = frozenset(conversation.redacted_seqs)
        self._position = compute_start_position(conversation.tenant)
        self._tokens_total = 0
        self._is_answered = False
        self._next_seq = first_own_seq(conversation)
        self.decrypted_message: LogMessage | None = None
        self.was_unreadable = self.was_redacted = self.was_miscounted = False
        self.recounted_tokens = 0

    def start_after(self, shared_message: LogMessage) -> None:
        """Starts a branch after the last message that it shares with an ancestor."""
        self._position = LinkPosition(shared_message.link, shared_message.skeleton, False)
        self._tokens_total, self._is_answered = shared_message.tokens_total, shared_message.answered

    def find_message_faults(self, stored: LogMessage, decrypted: LogMessage | None) -> list[tuple[str, str]]:
        """Returns the faults of the next message, as pairs of kind and description.

        Args:
            stored: the message as it is stored.
            decrypted: the same message, decrypted; None if that is not possible.
        """
        self.decrypted_message = decrypted
        seq, faults = stored.seq, []
        if seq != self._next_seq:
            faults.append(("sequence", f"message {seq} follows {self._next_seq - 1}"))
        if stored.tokens_total != self._tokens_total + stored.tokens:
            description = (
                f"tokens through message {seq} are {stored.tokens_total}, expected {self._tokens_total + stored.tokens}"
            )
            faults.append(("totals", description))
        if self._is_answered and not stored.answered:
            faults.append(("answered", f"message {seq} counts as unanswered after an answer"))
        faults += self._find_link_and_token_faults(stored, decrypted)
        self._next_seq, self._tokens_total, self._is_answered = seq + 1, stored.tokens_total, stored.answered
        self._position = LinkPosition(stored.link, stored.skeleton, stored.in_skeleton)
        return faults

    def _find_link_and_token_faults(self, stored: LogMessage, decrypted: LogMessage | None) -> list[tuple[str, str]]:
        self.was_unreadable, self.was_redacted = decrypted is None, stored.seq in self._redacted
        self.was_miscounted, self.recounted_tokens = False, 0
        if decrypted is None:
            return []
        faults = []
        try:
            link_fault = self._find_link_fault(stored, decrypted)
            if link_fault is not None:
                faults.append(("link", link_fault))
            self.recounted_tokens = self._counter.count_message(decrypted.message)
        except InvalidRequest as error:
            return [("body", f"message {stored.seq} cannot be read: {error.message}")]
        if self.recounted_tokens != stored.tokens:
            self.was_miscounted = True
            faults.append(
                ("tokens", f"message {stored.seq} was counted as {stored.tokens}, is {self.recounted_tokens} now")
            )
        return faults

    def _find_link_fault(self, stored: LogMessage, decrypted: LogMessage) -> str | None:
        message = self._find_linked_message(decrypted)
        if message is None:
            return None
        (expected,) = compute_links_after_messages((message,), self._position)
        if (stored.link, stored.skeleton, stored.in_skeleton) == (
            expected.link,
            expected.skeleton_link,
            expected.is_in_skeleton,
        ):
            return None
        chain_name = "link" if stored.link != expected.link else "skeleton"
        return f"the {chain_name} of message {stored.seq} does not match its body and the messages before it"

    def _find_linked_message(self, decrypted: LogMessage) -> Item | None:
        """Returns the message from which the link was computed; None if it was erased."""
        if not self.was_redacted:
            return decrypted.message
        deleted: dict[str, Any] = (decrypted.meta or {}).get(DELETED) or {}
        return decode_item(deleted["body"].encode()) if deleted.get("body") and not deleted.get("erased") else None

    def find_head_faults(self) -> list[str]:
        """Returns where the conversation's row differs from its last message."""
        one, last = self._conversation, self._position
        pairs = (
            ("ends with message", one.head_seq, self._next_seq - 1),
            ("has the link of its end", one.head_link, last.link),
            ("has the skeleton of its end", one.head_skeleton, last.skeleton_link),
            ("counts tokens", one.head_tokens_total, self._tokens_total),
            ("counts as answered", one.answered, self._is_answered),
        )
        differences = [
            f"{description}: {_format_value(stored_value)}, its log says {_format_value(log_value)}"
            for description, stored_value, log_value in pairs
            if stored_value != log_value
        ]
        if one.indexed_before > one.head_seq + 1:
            differences.append(f"is indexed before {one.indexed_before}, which is beyond its end")
        if any(not 0 <= seq <= one.head_seq for seq in self._redacted):
            differences.append("marks messages as deleted that are beyond its end")
        return differences


def _format_value(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _read_prompt_counts(answer: LogMessage | None) -> tuple[int, int] | None:
    """Returns our count of an answer's prompt and the provider's; None without a report."""
    context = ((answer.meta if answer is not None else None) or {}).get("context") or {}
    calibration = context.get("calibration") or {}
    estimated, reported = calibration.get("estimated_tokens"), calibration.get("reported_tokens")
    if not isinstance(estimated, int) or not isinstance(reported, int):
        return None
    return estimated, reported


async def find_summary_faults(snapshot: DatabaseSnapshot, stored_summary: SummaryRow) -> list[str]:
    """Returns the faults of a stored summary. It stands for every log with its `to_link`: a link names all messages
    before it, so those logs begin with the same messages. Without such a log, see `is_summary_ahead`."""
    summary = stored_summary.summary
    faults = []
    if not 0 <= summary.from_seq < summary.to_seq:
        return [f"its range is {summary.from_seq} to {summary.to_seq}"]
    if stored_summary.is_fold != bool(summary.folds):
        faults.append("its row does not say whether it folds others")
    faults += [
        f"it folds {one}, which does not exist"
        for one in summary.folds
        if not await snapshot.has_summary(stored_summary, one)
    ]
    locations = await snapshot.find_link_locations(stored_summary.root, summary.to_link)
    if not locations:
        return faults
    keepers = [keeper for keeper, seq in locations if seq == summary.to_seq - 1]
    logs = [
        log for keeper in keepers if (log := await snapshot.find_conversation(stored_summary.root, keeper)) is not None
    ]
    logs = [log for log in logs if log.tenant == stored_summary.tenant]
    if not logs:
        return [*faults, f"no log has its end, message {summary.to_seq - 1}"]
    if not await _has_summary_start(snapshot, stored_summary, logs):
        faults.append(f"no log with its end has its beginning, message {summary.from_seq}")
    totals = {await _read_tokens_total(snapshot, log, summary.to_seq - 1) for log in logs}
    if summary.tokens_total not in totals:
        faults.append(f"tokens through its end are {summary.tokens_total}, its log says {sorted(totals)}")
    return faults


async def is_summary_ahead(snapshot: DatabaseSnapshot, stored_summary: SummaryRow) -> bool:
    """Returns whether no log contains the end of a summary's range. This happens if the request with these messages
    failed after they were summarized. The summary is used when the client sends the messages again."""
    return not await snapshot.find_link_locations(stored_summary.root, stored_summary.summary.to_link)


async def _has_summary_start(snapshot: DatabaseSnapshot, stored_summary: SummaryRow, logs: list[Conversation]) -> bool:
    summary = stored_summary.summary
    if summary.from_seq == 0:
        return summary.from_link == compute_first_link(stored_summary.tenant)
    for log in logs:
        segments = find_segments(log.lineage_with_self, summary.from_seq - 1, summary.from_seq)
        before = (
            await snapshot.read_message(stored_summary.root, segments[0].conversation_id, summary.from_seq - 1)
            if segments
            else None
        )
        if before is not None and before.link == summary.from_link:
            return True
    return False


async def _read_tokens_total(snapshot: DatabaseSnapshot, log: Conversation, seq: int) -> int:
    entry = await snapshot.read_message(log.root, log.id, seq)
    return -1 if entry is None else entry.tokens_total
