"""Counts the answers that no turn has issued: those that are older than the table of fingerprints, and those of others,
which were imported or added as items.

The promise: nobody joins another's conversation. An old answer proves its conversation by its link only, and an answer
of others proves nothing, but both spend their words: another conversation whose answer says the same must not be taken
for theirs. A wrong count would show one person's words to another; a fingerprint that is spent needlessly costs a copy
of what a request carries.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from app.conversation.api_keys import CONTEXT_TENANT_SUFFIX
from app.conversation.conversation_types import Conversation, IssuedAnswer, LogMessage
from app.conversation.fingerprints import Fingerprint, FingerprintScope, list_digests
from app.conversation.identity import LinkPosition
from app.conversation.item import Item
from app.conversations.history.conversation_records import stream_conversation_pages
from app.errors import StoreUnreadable
from app.pipeline.turn.resolved_request import END_USER
from app.store.contract.conversations import ConversationQuery, ConversationStore
from app.store.contract.keys import KeyStore
from app.store.lineage import first_own_seq

log = logging.getLogger(__name__)

COUNT_FACT: Final = "concertina/counted-answers-2"
"""Stands in the place of a model in the stored facts: how far the count of existing answers is. The number is that of
the form of fingerprints: with another form, all answers are counted again."""
PAGE_CONVERSATIONS: Final = 1_000
PAGE_MESSAGES: Final = 250
MAX_EARLIER_ANSWERS: Final = 64
"""A short answer is known together with answers before it; so many are kept for that."""

EarlierAnswers = deque[Item]
"""The assistant messages before a message, oldest first."""


async def build_answers_of_others(
    store: ConversationStore, conversation: Conversation, entries: Sequence[LogMessage]
) -> IssuedAnswer | None:
    """Builds the issue for messages that are appended without having been answered here; None if none is an
    assistant's."""
    if all(entry.message.role != "assistant" for entry in entries):
        return None
    earlier = await _read_earlier_answers(store, conversation, entries[0].seq)
    return await asyncio.to_thread(_build_spent_answers, conversation, entries, earlier)


async def _read_earlier_answers(
    store: ConversationStore, conversation: Conversation, before_seq: int
) -> EarlierAnswers:
    """Reads the last assistant messages before a seq."""
    from_seq = max(0, before_seq - 2 * MAX_EARLIER_ANSWERS)
    entries = await store.read_log(conversation, from_seq, before_seq) if before_seq else []
    return deque((entry.message for entry in entries if entry.message.role == "assistant"), MAX_EARLIER_ANSWERS)


def _build_spent_answers(
    conversation: Conversation, entries: Iterable[LogMessage], earlier_answers: EarlierAnswers
) -> IssuedAnswer:
    """Builds the issue that spends what assistant messages are known by, except for their links. What the
    conversation's owner was answered here keeps its place.

    Args:
        earlier_answers: the assistant messages before `entries`. Those of `entries` are added.
    """
    scope = _build_scope(conversation)
    found: list[Fingerprint] = []
    for entry in entries:
        if entry.message.role != "assistant":
            continue
        known_by = scope.list_fingerprints(
            LinkPosition(entry.link, entry.skeleton, entry.in_skeleton),
            entry.message,
            reversed(earlier_answers),
            has_tool_traffic=True,
        )
        found += [one for one in known_by if one.kind != "link"]
        earlier_answers.append(entry.message)
    return IssuedAnswer(list_digests(found), conversation.root, None, -1, conversation.owner_lineage)


def is_count_complete(facts: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether all existing answers have been counted.

    Args:
        facts: as `KeyStore.read_model_facts` returns them.
    """
    return bool(facts.get(COUNT_FACT, {}).get("is_complete"))


async def count_existing_answers(
    store: ConversationStore, keys: KeyStore, *, on_counted: Callable[[int], None] | None = None
) -> None:
    """Issues the answers that are older than the table of fingerprints. Goes on where an earlier run ended; a complete
    count is not repeated. Two runs at once do no harm.

    If a conversation cannot be decrypted, the next start counts again from there.

    Args:
        on_counted: called after each page with its number of conversations.
    """
    facts = await keys.read_model_facts()
    if is_count_complete(facts):
        return
    counted_through = facts.get(COUNT_FACT, {}).get("after")
    after = None if counted_through is None else (datetime.fromisoformat(counted_through[0]), counted_through[1])
    unreadable_count = 0
    query = ConversationQuery(limit=PAGE_CONVERSATIONS, descending=False, after=after)
    async for page in stream_conversation_pages(store, None, query):
        for conversation in page:
            try:
                await _count_conversation(store, conversation)
            except StoreUnreadable:
                unreadable_count += 1
        last = page[-1]
        assert last.created_at is not None
        if not unreadable_count:
            await keys.merge_model_facts(model=COUNT_FACT, facts={"after": [last.created_at.isoformat(), last.id]})
        log.info("counted the answers of %d conversations", len(page))
        if on_counted is not None:
            on_counted(len(page))
    if unreadable_count:
        log.warning("%d conversations cannot be decrypted, so their answers are not counted", unreadable_count)
        return
    await keys.merge_model_facts(model=COUNT_FACT, facts={"is_complete": True})


async def _count_conversation(store: ConversationStore, conversation: Conversation) -> None:
    """Issues the answers in a conversation's own rows."""
    scope, start, end = _build_scope(conversation), first_own_seq(conversation), conversation.head_seq + 1
    earlier = await _read_earlier_answers(store, conversation, start)
    for from_seq in range(start, end, PAGE_MESSAGES):
        entries = await store.read_log(conversation, from_seq, min(from_seq + PAGE_MESSAGES, end))
        readable = [entry for entry in entries if entry.seq not in conversation.redacted_seqs]
        answers = [_build_linked_answer(scope, conversation, entry) for entry in entries if _is_own_answer(entry)]
        spent = _build_spent_answers(conversation, readable, earlier)
        await asyncio.gather(*(store.issue_answer(issued) for issued in (*answers, spent) if issued.fingerprints))


def _is_own_answer(entry: LogMessage) -> bool:
    return entry.message.role == "assistant" and "id" in (entry.meta or {})


def _build_linked_answer(scope: FingerprintScope, conversation: Conversation, entry: LogMessage) -> IssuedAnswer:
    link = scope.compute_fingerprint("link", entry.link)
    is_kept = entry.seq not in conversation.redacted_seqs
    return IssuedAnswer(
        (link.digest,),
        conversation.root,
        conversation.id if is_kept else None,
        entry.seq if is_kept else -1,
        conversation.owner_lineage if is_kept else (),
    )


def _build_scope(conversation: Conversation) -> FingerprintScope:
    return FingerprintScope(conversation.tenant.removesuffix(CONTEXT_TENANT_SUFFIX), conversation.state.get(END_USER))
