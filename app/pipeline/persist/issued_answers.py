"""What is counted of an answer: the fingerprints of every form in which its client may send it back."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from app.conversation.conversation_types import Conversation, IssuedAnswer, LogMessage
from app.conversation.fingerprints import Fingerprint, list_digests
from app.conversation.identity import LinkPosition, compute_links_after_messages
from app.conversation.item import Item
from app.dialects.body.message import ChatMessage
from app.dialects.item_decoding import decode_item, may_be_answer
from app.pipeline.resolve.client_log import join_prefill
from app.pipeline.turn.resolved_request import ResolvedRequest


def build_issued_answer(
    resolved_request: ResolvedRequest, conversation: Conversation, answer: LogMessage, *, is_kept: bool = True
) -> IssuedAnswer:
    """Returns what is counted of an answer, of its other choices, and of the answer joined with its prefill.

    Args:
        conversation: the conversation before the answer.
        is_kept: whether the answer is stored. One that is not proves nothing.
    """
    before = LinkPosition(conversation.head_link, conversation.head_skeleton, False)
    other_choices = map(ChatMessage.from_body, (answer.meta or {}).get("alternatives", ()))
    own_position = LinkPosition(answer.link, answer.skeleton, answer.in_skeleton)
    forms: list[tuple[LinkPosition, Item]] = [(own_position, answer.message)]
    forms += [(_advance(before, choice), choice) for choice in other_choices]
    if resolved_request.prefill is not None:
        before_prefill, prefill = resolved_request.prefill
        joined = join_prefill(prefill, answer.message)
        forms += [] if joined is None else [(_advance(before_prefill, joined), joined)]
    fingerprints: list[Fingerprint] = []
    for position, form in forms:
        for scope in resolved_request.storage.fingerprint_scopes:
            fingerprints += scope.list_fingerprints(
                position,
                form,
                _iterate_earlier_answers(resolved_request),
                has_tool_traffic=resolved_request.has_tool_traffic,
            )
    return IssuedAnswer(
        list_digests(fingerprints),
        conversation.root,
        conversation.id if is_kept else None,
        answer.seq,
        conversation.owner_lineage,
    )


def _advance(before: LinkPosition, message: Item) -> LinkPosition:
    (position,) = compute_links_after_messages([message], before)
    return position


def move_issued_answer(issued: IssuedAnswer | None, branch: Conversation) -> IssuedAnswer | None:
    """Returns what is counted of an answer that was stored on a branch after all."""
    if issued is None:
        return None
    return replace(issued, conversation_id=branch.id, owner_lineage=branch.owner_lineage)


def _iterate_earlier_answers(resolved_request: ResolvedRequest) -> Iterator[Item]:
    """Yields the answers that the client sent, the newest first. A client that appends sends none."""
    for raw in reversed(resolved_request.client_messages or ()):
        if may_be_answer(bytes(raw)):
            message = decode_item(bytes(raw))
            if message.role == "assistant":
                yield message
