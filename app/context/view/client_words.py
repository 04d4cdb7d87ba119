"""What may be drawn from a log for one request, and in whose words. Pure.

Summaries, quotations, user text and search results serve two promises. Without a name of the conversation,
a client is shown nothing that it does not carry; if a message is wrongly taken for carried, another person's words
leak. And the client's word wins: what the user changed or deleted counts as the client shows it now; if a message is
wrongly taken for changed, its range is summarized once more.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from app.context.plan.outline import LastView, Pin
from app.context.view.client_versions import NO_VERSIONS, ClientVersions
from app.conversation.conversation_types import (
    INSTRUCTIONS_MARK,
    MAX_SEQ,
    ClientVersion,
    Conversation,
    LogMessage,
    Summary,
)
from app.conversation.item import INSTRUCTION_ROLES, TOOL_RESULT_ROLES, Item
from app.dialects.item_decoding import decode_item

EffectKind = Literal["none", "omitted", "retracted", "changed"]
DELETED, VOLATILE, ERASED, DELETED_BEFORE = b"deleted", b"volatile", b"erased", b"deleted before"


def mark_instructions(prompt_version: str, instructions: str | None) -> str:
    """Returns the prompt version of a summary that a client's instructions steered, if there are any."""
    return prompt_version + INSTRUCTIONS_MARK if instructions and instructions.strip() else prompt_version


class VersionEffect(msgspec.Struct, frozen=True):
    """What a client version does to the words of its log message."""

    kind: EffectKind
    """`omitted`: a user message or an answer is left out. `retracted`: an instruction is. `changed`: the client shows
    other words, or fewer. `none`: nothing else counts: masked results, left out tool rounds, other white space."""
    digest: bytes = b""
    """Digest of changed words, of 16 bytes; also of those that were changed before they were left out."""
    tokens: int = 0
    """Raw count of what the client shows."""
    is_in_tool_round: bool = False


NO_EFFECT: Final = VersionEffect("none")


def find_version_effect(
    version: ClientVersion, original: LogMessage, last_shown: ClientVersion | None = None
) -> VersionEffect:
    """Compares what a client shows in place of a log message with the message.

    Args:
        last_shown: what the client showed before it left the message out.
    """
    message = original.message
    if not version.bodies:
        if message.role in INSTRUCTION_ROLES:
            return VersionEffect("retracted")
        if not _has_words(message) or message.calls_tools:
            return NO_EFFECT
        if last_shown is None or not last_shown.bodies or last_shown.to_seq > last_shown.seq + 1:
            return VersionEffect("omitted")
        return VersionEffect("omitted", find_version_effect(last_shown, original).digest)
    words = [(one.role, _join_words(one.text)) for one in map(decode_item, version.bodies) if _has_words(one)]
    original_words = [(message.role, _join_words(message.text))] if _has_words(message) else []
    if not words or words == original_words:
        is_unread_range = version.to_seq > version.seq + 1 and _has_words(message) and not message.calls_tools
        return VersionEffect("omitted") if is_unread_range else NO_EFFECT
    digest = hashlib.sha256(msgspec.json.encode(words)).digest()[:16]
    is_in_tool_round = message.calls_tools or message.role in TOOL_RESULT_ROLES
    return VersionEffect("changed", digest, original.tokens + version.tokens_delta, is_in_tool_round)


def _has_words(message: Item) -> bool:
    return message.role not in INSTRUCTION_ROLES and message.role not in TOOL_RESULT_ROLES


def _join_words(text: str) -> str:
    return " ".join(text.split())


class ClientWords:
    """What may be drawn from the log of a conversation for one request.

    Attributes:
        omitted_seqs: messages that the client leaves out, without those for which it sends a summary of its own.
        forbidden_seqs: messages that nothing may be drawn from: not carried by a client that does not name the
            conversation, deleted by the user, or instructions that the client took back.
    """

    def __init__(
        self,
        conversation: Conversation | None = None,
        versions: ClientVersions = NO_VERSIONS,
        effects: Mapping[int, VersionEffect] | None = None,
        *,
        moved_seqs: Set[int] = frozenset(),
        next_seq: int = 0,
        is_named: bool = True,
        is_log_shared: bool = False,
    ) -> None:
        """Builds the words of one request.

        Args:
            effects: by seq, the effect of each version.
            moved_seqs: messages that the client shows in another place, so that it carries them.
            next_seq: one past the last log message, new messages included.
            is_named: whether the request names the conversation.
            is_log_shared: whether the whole log may be shared with other conversations: nothing of it is stored yet.
        """
        effects = {seq: effect for seq, effect in (effects or {}).items() if seq not in moved_seqs}
        self._versions = versions
        self._is_named = is_named
        self._shared_before = 0 if conversation is None else conversation.shared_through + 1
        if is_log_shared:
            self._shared_before = next_seq
        self._own_ids = frozenset(dict(conversation.owner_lineage)) if conversation else frozenset()
        self._summary_ranges = [
            range(version.seq, version.to_seq)
            for seq in versions
            if (version := versions.get(seq)) is not None and version.bodies and version.to_seq > seq + 1
        ]
        self.omitted_seqs = frozenset(filter(versions.is_omitted, versions)).difference(*self._summary_ranges)
        omitted = {seq for seq, effect in effects.items() if effect.kind == "omitted"}
        deleted = omitted if not is_named else omitted & self._find_singly_deleted(next_seq)
        retracted = {seq for seq, effect in effects.items() if effect.kind == "retracted"}
        self.forbidden_seqs = frozenset(deleted | retracted)
        self._first_uncarried_seq = MAX_SEQ if is_named else min(deleted, default=MAX_SEQ)
        # A named conversation may use what the client's own summary stands for in place of that summary.
        originals = {one.start for one in self._summary_ranges} if is_named else set()
        self._changes: dict[int, bytes] = {
            seq: VOLATILE if versions.is_volatile(seq) and not effect.is_in_tool_round else effect.digest
            for seq, effect in effects.items()
            if effect.digest and seq not in originals
        } | dict.fromkeys(deleted | retracted, DELETED)
        self._changed_seqs = sorted(self._changes)
        self._redacted_seqs = () if conversation is None else conversation.redacted_seqs
        self._volatile_pins = [
            Pin(seq, seq + 1, effects[seq].tokens) for seq in self._changed_seqs if self._changes[seq] == VOLATILE
        ]

    def __bool__(self) -> bool:
        """Says whether the client changed or left out anything."""
        return bool(self._changes or self.omitted_seqs or self.forbidden_seqs)

    def _find_singly_deleted(self, next_seq: int) -> set[int]:
        """Returns the messages that the client leaves out between two that it sends. The oldest messages were cut off
        by a window, and a summary of the client stands for all that is left out before it.
        """
        start = max((one.stop for one in self._summary_ranges), default=0)
        while start in self.omitted_seqs and not self._summary_ranges:
            start += 1
        while next_seq - 1 in self.omitted_seqs:
            next_seq -= 1
        return {seq for seq in self.omitted_seqs if start <= seq < next_seq}

    def compute_digest(self, from_seq: int, to_seq: int) -> bytes:
        """Returns the digest of what the client changed or erased in a range; empty if there is nothing.

        A conversation that says the same has the same links, so its summaries are found by this one, too. The digest
        keeps those with erased words out. A wrong digest would show somebody what he erased.

        A summary call may show words from before its range, which a summarizer may repeat. So what was written while
        the client carried them has another digest than what is written when it does not (`leaves_out_before`).
        """
        start, end = bisect_left(self._changed_seqs, from_seq), bisect_left(self._changed_seqs, to_seq)
        changes = [(seq - from_seq, self._changes[seq].hex()) for seq in self._changed_seqs[start:end]]
        changes += [(seq - from_seq, ERASED.hex()) for seq in self._redacted_seqs if from_seq <= seq < to_seq]
        changes += [(-1, DELETED_BEFORE.hex())] if self.leaves_out_before(from_seq) else []
        return hashlib.sha256(msgspec.json.encode(changes)).digest()[:16] if changes else b""

    def leaves_out_before(self, seq: int) -> bool:
        """Says whether a client that does not name its conversation leaves out words before a message. Then a summary
        is written from nothing but its range."""
        return self._first_uncarried_seq < seq

    def is_usable(self, summary: Summary) -> bool:
        """Says whether a summary was written from what the client shows now, and holds no words of other people.

        In the part of a log that is shared with somebody else's conversation, texts that a person edited or steered are
        that person's. A wrong guess would show them to another.
        """
        if summary.versions_digest != self.compute_digest(summary.from_seq, summary.to_seq):
            return False
        if summary.from_seq >= self._shared_before or summary.conversation_id in self._own_ids:
            return True
        return not summary.is_personal

    def select_usable(self, summaries: Iterable[Summary]) -> list[Summary]:
        """Returns the usable ones of all summaries of a log. A fold of usable summaries holds what they hold."""
        found = [*summaries]
        usable_ids = {one.id for one in found if self.is_usable(one)}
        return [
            one
            for one in found
            if one.id in usable_ids or (one.folds and usable_ids.issuperset(one.folds) and self.is_usable_fold(one))
        ]

    def is_usable_fold(self, fold: Summary) -> bool:
        """As `is_usable`, for a fold whose parts are usable."""
        return self.is_usable(replace(fold, folds=()))

    def apply_to_log_messages(self, messages: Sequence[LogMessage]) -> Sequence[LogMessage]:
        """Returns what a summarizer reads in place of log messages: several with the same seq where the client inserted
        messages, none where nothing may be read."""
        return [one for message in messages for one in self._list_words(message)] if self else messages

    def _list_words(self, message: LogMessage) -> Iterator[LogMessage]:
        change = self._changes.get(message.seq)
        if message.seq in self.forbidden_seqs or change == VOLATILE:
            return
        if change is None:
            yield message
            return
        version = self._versions.find_last_shown(message.seq)
        if version is None or not version.bodies:
            return
        *inserted, last = map(decode_item, version.bodies)
        yield from (replace(message, message=one) for one in inserted)
        # A tool result is read as it was, however much of it the client still shows.
        yield message if last.role in TOOL_RESULT_ROLES else replace(message, message=last)

    def add_volatile_pins(self, pins: tuple[Pin, ...]) -> tuple[Pin, ...]:
        """Returns pins with those messages that change with each request. No summary reads them, so that not each
        request needs a new one; the view shows their newest version verbatim.
        """
        pinned = {seq for pin in pins for seq in range(pin.from_seq, pin.to_seq)}
        added = [pin for pin in self._volatile_pins if pin.from_seq not in pinned]
        return tuple(sorted((*pins, *added), key=lambda pin: pin.from_seq)) if added else pins

    def list_rewritten_messages(self) -> list[tuple[int, Item]]:
        """Returns the messages that the client shows in other bytes than the log, as it shows them, with their seqs."""
        return [
            (seq, decode_item(version.bodies[-1]))
            for seq in sorted(self._versions)
            if (version := self._versions.get(seq)) is not None
            and version.bodies
            and version.to_seq == seq + 1
            and self._changes.get(seq) != VOLATILE
        ]

    def may_be_quoted(self, seq: int) -> bool:
        """Says whether a message may be quoted or found by a search. What is shown anyway need not be."""
        if seq in self.forbidden_seqs or self._changes.get(seq) == VOLATILE:
            return False
        return self._is_named or all(seq != one.start for one in self._summary_ranges)

    def quote_message(self, message: LogMessage) -> LogMessage:
        """Returns a log message in the words in which it may be quoted."""
        raw = bytes(message.message.raw)
        shown = self._versions.find_quotable_body(message.seq, raw)
        return message if shown is raw else replace(message, message=decode_item(shown))

    def drop_quotations(self, view: LastView, changed: Sequence[int]) -> LastView:
        """Returns a last view without quotations of messages that changed since or must not be quoted."""
        kept = tuple(
            one
            for one in view.quotations
            if all(passage.seq not in changed and self.may_be_quoted(passage.seq) for passage in one.passages)
        )
        return view if len(kept) == len(view.quotations) else replace(view, quotations=kept)


NO_WORDS: Final = ClientWords()
"""Of a conversation whose client shows the log as it is."""
