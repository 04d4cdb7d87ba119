"""Finds the one conversation that an answer of ours proves: rule 1 of docs/decisions/0050.

The promise: a request without an id joins a conversation only by an answer that was given in that conversation alone.
A wrong proof would store one person's words under another's id; a missed one begins a new conversation, which costs a
copy of what the request carries. So each doubt ends in no proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from app.conversation.conversation_types import AnswerProof, Conversation
from app.conversation.fingerprints import Fingerprint, FingerprintScope, extract_summary, is_text_contained
from app.conversation.history_alignment import Alignment, Element, is_known_answer
from app.conversation.item import Item
from app.pipeline.resolve.client_history import ClientHistory
from app.pipeline.resolve.client_log import AlignedLog, HistoryAligner
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import has_other_end_user
from app.store.contract.conversations import ConversationStore

NEWEST_ANSWERS: Final = 16
"""How many newest answers are looked up by all their fingerprints."""
MAX_LINKS: Final = 64
"""How many newest answers are looked up by their chains."""
MAX_REFUTING_ANSWERS: Final = 256
"""How many earlier answers of a history may refute a log."""
MAX_CANDIDATES: Final = 4
"""The most conversations that one history is aligned with."""
MAX_NEIGHBOURS: Final = 8
"""How many messages on each side of an answer are compared."""


class Proof(msgspec.Struct, frozen=True):
    """A proven conversation."""

    conversation: Conversation
    index: int
    """The index of the proving answer in the history."""
    seq: int
    """Its place in the log."""
    aligned_log: AlignedLog | None = None
    """The history aligned with the log; None if both are the same, message by message, through the answer."""

    @property
    def is_reworded(self) -> bool:
        """Whether the log has the proving answer in other words, perhaps because it broke off there."""
        return self.aligned_log is not None and self.aligned_log.alignment.marks[self.index].kind == "rewritten"


def list_scopes(request: ChatRequest) -> list[FingerprintScope]:
    """Returns the scopes in which the answers of a request are counted, the narrowest first."""
    tenant, end_user = request.caller.tenant, request.end_user_digest
    scopes = [FingerprintScope(tenant, end_user)]
    if request.continuation.hints:
        # All hints together: a client that names a session and a thread means this thread of this session.
        names, values = zip(*sorted(request.continuation.hints.items()), strict=True)
        scopes.insert(0, FingerprintScope(tenant, end_user, ("\0".join(names), "\0".join(values))))
    return scopes


class ConversationProver:
    """Finds proofs. It costs the usual client one query."""

    def __init__(self, store: ConversationStore, history_aligner: HistoryAligner) -> None:
        self._store = store
        self._history_aligner = history_aligner

    async def find_proof(self, request: ChatRequest, client_history: ClientHistory) -> Proof | None:
        """Returns the newest proof in a history: the exact chain through a newest answer, or else the words or calls of
        an answer.

        Raises:
            StoreUnavailable: the store cannot be read.
        """
        scopes = list_scopes(request)
        link_proof = await self._find_link_proof(request, client_history, scopes)
        if link_proof is not None:
            return link_proof
        fingerprints: dict[bytes, tuple[int, Fingerprint]] = {}
        positions = await client_history.compute_link_positions()
        for number, index in enumerate(client_history.list_answer_indexes()[:MAX_LINKS]):
            found = (
                await client_history.compute_fingerprints(index, scopes)
                if number < NEWEST_ANSWERS
                else [scope.compute_fingerprint("link", positions[index].link) for scope in scopes]
            )
            for one in found:
                fingerprints.setdefault(one.digest, (index, one))
        issued = {one.fingerprint: one for one in await self._find_proofs(request, list(fingerprints))}
        tried: set[tuple[str, int]] = set()
        for digest, (index, fingerprint) in fingerprints.items():
            proof = issued.get(digest)
            if proof is None or proof.conversation is None or (proof.conversation.id, index) in tried:
                continue
            if len(tried) >= MAX_CANDIDATES:
                break
            tried.add((proof.conversation.id, index))
            checked = await self._check_proof(request, client_history, scopes, index, fingerprint, proof, issued)
            if checked is not None:
                return checked
        return None

    async def _find_link_proof(
        self, request: ChatRequest, client_history: ClientHistory, scopes: Sequence[FingerprintScope]
    ) -> Proof | None:
        """Returns the proof by the chain through the newest answer: the usual client's."""
        first, positions = await client_history.compute_newest_positions()
        indexes = client_history.list_answer_indexes(first)
        # An assistant message at the end may be a prefill, which is no answer of ours.
        indexes = indexes[: 2 if indexes[:1] == [len(client_history.raw_messages) - 1] else 1]
        by_digest = {
            scope.compute_fingerprint("link", positions[index - first].link).digest: index
            for index in indexes
            for scope in scopes
        }
        proofs = [one for one in await self._find_proofs(request, list(by_digest)) if one.conversation is not None]
        newest = max(proofs, key=lambda one: by_digest[one.fingerprint], default=None)
        if newest is None or newest.conversation is None:
            return None
        return await self.build_link_proof(
            newest.conversation, by_digest[newest.fingerprint], newest.seq, client_history
        )

    async def build_link_proof(
        self, conversation: Conversation, index: int, seq: int, client_history: ClientHistory
    ) -> Proof:
        """Returns the proof of a conversation whose log has at a seq what the history has at an index."""
        first, positions = await client_history.compute_newest_positions()
        # Messages that the chain skips have no place of their own in it, so index and seq differ. Another choice of the
        # answer has the same place and another link.
        if index == seq and not conversation.has_client_versions:
            link = conversation.head_link
            if seq != conversation.head_seq:
                (entry,) = await self._store.read_log(conversation, seq, seq + 1)
                link = entry.link
            if positions[index - first].link == link:
                return Proof(conversation, index, seq)
        return Proof(
            conversation, index, seq, await self._history_aligner.align(conversation, client_history, (index, seq))
        )

    async def _find_proofs(self, request: ChatRequest, digests: Sequence[bytes]) -> list[AnswerProof]:
        if not digests:
            return []
        proofs = await self._store.find_proofs(tenant=request.log_tenant, fingerprints=digests)
        return [
            msgspec.structs.replace(one, conversation=None)
            if one.conversation is not None and has_other_end_user(request, one.conversation)
            else one
            for one in proofs
        ]

    async def _check_proof(
        self,
        request: ChatRequest,
        client_history: ClientHistory,
        scopes: Sequence[FingerprintScope],
        index: int,
        fingerprint: Fingerprint,
        proof: AnswerProof,
        issued: dict[bytes, AnswerProof],
    ) -> Proof | None:
        """Returns the proof if nothing in the history speaks against it.

        Args:
            issued: the issued fingerprints of the newest answers.
        """
        assert proof.conversation is not None
        aligned_log = await self._history_aligner.align(proof.conversation, client_history, (index, proof.seq))
        log, history, alignment = aligned_log.log, aligned_log.history, aligned_log.alignment
        found = Proof(proof.conversation, index, proof.seq, aligned_log)
        if fingerprint.kind == "link":
            return found
        if fingerprint.kind == "words" and not has_known_neighbour(log, history, proof.seq, index):
            return None
        if await self._is_refuted(request, client_history, scopes, alignment, index):
            return None
        if await self._is_chain_of_another(request, client_history, found):
            return None
        if fingerprint.kind == "words" and leaves_out_said_words(aligned_log, proof.seq):
            # One answer may have been served from an application's cache or pasted. A history that leaves out what was
            # said before must have two answers of the log that were given once.
            count = await self._count_single_answers(client_history, scopes, alignment, issued, index)
            return found if count + _quotes_answer(log, history) >= 2 else None
        return found

    async def _is_refuted(
        self,
        request: ChatRequest,
        client_history: ClientHistory,
        scopes: Sequence[FingerprintScope],
        alignment: Alignment,
        index: int,
    ) -> bool:
        """Returns whether the log lacks an answer that stands before the proof in the history and that we gave."""
        lacking = [
            at
            for at in client_history.list_answer_indexes()
            if at < index and alignment.marks[at].kind not in ("same", "rewritten")
        ]
        digests = [
            fingerprint.digest
            for at in lacking[:MAX_REFUTING_ANSWERS]
            for fingerprint in await client_history.compute_fingerprints(at, scopes[-1:])
        ]
        return bool(await self._find_proofs(request, digests))

    async def _is_chain_of_another(self, request: ChatRequest, client_history: ClientHistory, proof: Proof) -> bool:
        """Returns whether a conversation that is no relative ends with exactly what the history has before the proof.
        Its answer there was lost, perhaps with its process in the middle of a stream, and was never counted."""
        if proof.index == 0:
            return False
        positions = await client_history.compute_link_positions()
        matches = await self._store.find_link_matches(
            tenant=request.log_tenant,
            root=await client_history.find_log_root(),
            links=[positions[proof.index - 1].link],
            with_unanswered=True,
        )
        relatives = {conversation_id for conversation_id, _ in proof.conversation.lineage_with_self}
        return any(
            match.conversation.id not in relatives and match.conversation.head_seq == match.message.seq
            for match in matches
        )

    async def _count_single_answers(
        self,
        client_history: ClientHistory,
        scopes: Sequence[FingerprintScope],
        alignment: Alignment,
        issued: dict[bytes, AnswerProof],
        index: int,
    ) -> int:
        """Returns how many answers through an index the log has that were given in one conversation alone."""
        count = 0
        for at in client_history.list_answer_indexes()[:NEWEST_ANSWERS]:
            if at <= index and alignment.marks[at].kind in ("same", "rewritten"):
                found = [issued.get(one.digest) for one in await client_history.compute_fingerprints(at, scopes)]
                count += any(one is not None and one.conversation is not None for one in found)
        return count


def has_known_neighbour(log: Sequence[Element], history: Sequence[Element], seq: int, index: int) -> bool:
    """Returns whether a user message or tool result next to an answer equals, contains or is contained in that of the
    log: words alone may be anybody's."""
    for step in (-1, 1):
        known = _list_neighbours(log, seq, step)
        for sent in _list_neighbours(history, index, step):
            for one in known:
                if one.kind == sent.kind and (one.digest == sent.digest or is_text_contained(one.text, sent.text)):
                    return True
    return False


def _list_neighbours(elements: Sequence[Element], index: int, step: int) -> list[Element]:
    """Returns the user messages and tool results between an answer and the answer before (`step` -1) or after (1) it: a
    client may put messages between, or leave out tool traffic."""
    found: list[Element] = []
    index += step
    while 0 <= index < len(elements) and elements[index].kind != "answer" and len(found) < MAX_NEIGHBOURS:
        if elements[index].kind in ("user", "result"):
            found.append(elements[index])
        index += step
    return found


def _quotes_answer(log: Sequence[Element], history: Sequence[Element]) -> bool:
    """Returns whether a user message has the whole text of a longer answer of the log: a summary that the client had
    asked the model for, and sends in the place of its history."""
    texts = [element.text for element in history if element.kind == "user"]
    return any(known.known_words and any(extract_summary(known.text) in text for text in texts) for known in log)


def leaves_out_said_words(aligned_log: AlignedLog, before_seq: int) -> bool:
    """Returns whether a history leaves out a user message or a final answer of the log before a message, or has
    something else in its place."""
    log, history = aligned_log.log, aligned_log.history
    carried: set[int] = set()
    for element, mark in zip(history, aligned_log.alignment.marks, strict=True):
        if mark.kind == "same" or (mark.kind == "rewritten" and _is_version(log[mark.seq], element)):
            carried.add(mark.seq)
    carried.update(aligned_log.alignment.joined)
    return any(log[seq].kind in ("user", "answer") and seq not in carried for seq in range(before_seq))


def _is_version(known: Element, element: Element) -> bool:
    if known.kind == "answer":
        return is_known_answer(known, element)
    return is_text_contained(known.text, element.text)


def find_quoted_answer(messages: Sequence[Item], answer: Item) -> int | None:
    """Returns the index of the user message that contains an answer: the client has asked the model for a summary, and
    sends that in the place of its history."""
    quoted = extract_summary(answer.text)
    return next(
        (
            index
            for index, message in enumerate(messages)
            if message.role == "user" and is_text_contained(quoted, message.text)
        ),
        None,
    )
