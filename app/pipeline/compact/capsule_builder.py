"""Builds the capsule of a turn: the sealed text that stands for the log through the turn's question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.compaction.capsule import (
    STANDALONE_PREAMBLE,
    Capsule,
    CapsuleSealer,
    digest_tenant,
    digest_user_message,
    fit_into_capsule,
)
from app.compaction.summarizer.transcript import build_transcript_entries
from app.conversation.api_keys import CONTEXT_TENANT_SUFFIX, is_context_tenant
from app.conversation.item import Item
from app.dialects.answer_format import NewCompaction
from app.dialects.item_decoding import decode_item
from app.dialects.usage import NO_USAGE
from app.pipeline.turn.resolved_request import END_USER, ResolvedRequest
from app.pipeline.turn.turn import Turn, View
from app.pipeline.view.view_builder import ViewBuilder


@dataclass(frozen=True, slots=True)
class CapsuleBuilder:
    """Builds capsules. Reads from the store only what the request does not carry."""

    view_builder: ViewBuilder
    sealer: CapsuleSealer
    unix_seconds: Callable[[], float]

    async def build(self, turn: Turn, view: View) -> NewCompaction:
        """Builds the compaction of a turn before its answer. Its range ends with the turn's newest message.

        Args:
            view: the view after the compaction.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        request, resolved_request = turn.request, turn.resolved_request
        conversation, base = resolved_request.conversation, resolved_request.capsule
        new_messages, summaries = resolved_request.new_messages, view.plan.summaries
        carried = [decode_item(bytes(raw)) for raw in (*resolved_request.users_before_capsule, *request.raw_messages)]
        carried = [message for message in carried if message.role == "user"]
        said: Sequence[Item] = carried
        earlier_texts = () if base is None else base.user_text
        is_continued = resolved_request.is_append or request.continuation.previous_response_id is not None
        if conversation.redacted_seqs or is_continued or (resolved_request.client_messages is None and base is None):
            # The request carries a part only; or words in it were erased, and must not come back with the capsule.
            said, earlier_texts = await self._read_user_messages(resolved_request, carried), ()
        own = [message for message in said if not message.text.startswith(STANDALONE_PREAMBLE)]
        texts = (message.text for message in own)
        known_digests = frozenset() if base is None else base.known_digests
        forms = (message.canonical_form for message in (*said, *carried))
        digests = dict.fromkeys(digest_user_message(form) for form in forms if form is not None)
        tail_from_seq = summaries[-1].to_seq if summaries else 0
        versions = resolved_request.shown.client_versions
        tail = await self.view_builder.read_log_tail(resolved_request, tail_from_seq)
        shown = versions.apply_to_log_messages([entry for entry in tail if not versions.is_omitted(entry.seq)])
        entries = build_transcript_entries(shown)
        pinned = [
            entry
            for pin in view.plan.pins
            for entry in await self.view_builder.store.read_log(conversation, pin.from_seq, pin.to_seq)
        ]
        capsule = Capsule(
            tenant=digest_tenant(conversation.tenant.removesuffix(CONTEXT_TENANT_SUFFIX)),
            end_user=request.end_user_digest or conversation.state.get(END_USER),
            root=conversation.root,
            family_id=conversation.family_id,
            conversation_id=conversation.id,
            is_context_only=is_context_tenant(conversation.tenant),
            to_seq=resolved_request.next_seq,
            to_link=new_messages[-1].link if new_messages else conversation.head_link,
            made_at=self.unix_seconds(),
            summary="\n\n".join(summary.text.strip() for summary in summaries),
            user_text=tuple(dict.fromkeys(text for text in (*earlier_texts, *texts) if text)),
            pins=tuple(f"{entry.message.role}: {entry.message.text}" for entry in pinned),
            newest="\n\n".join(f"{entry.speaker}: {entry.text}" for entry in entries),
            user_digests=b"".join(
                ([] if base is None else [base.user_digests]) + [one for one in digests if one not in known_digests]
            ),
            knows_all_users=base is None or base.knows_all_users,
        )
        capsule = fit_into_capsule(capsule)
        return NewCompaction(
            self.sealer.seal(capsule),
            capsule.readable_text,
            view.compaction_status.get("usage") or NO_USAGE,
            [message.raw for message in (*resolved_request.instructions, *own)],
        )

    async def _read_user_messages(self, resolved_request: ResolvedRequest, carried: Sequence[Item]) -> Sequence[Item]:
        """Returns the user messages of the log; without an id, those of them that the request carries."""
        log = await self.view_builder.read_log_tail(resolved_request, 0)
        forms = {message.canonical_form for message in carried}
        return [
            entry.message
            for entry in log
            if entry.message.role == "user" and (resolved_request.is_named or entry.message.canonical_form in forms)
        ]
