"""Requests whose history begins with a capsule: what they continue, and what of them follows it.

A capsule names its range, so nothing is aligned: whatever stands before it in the request is in its range, except user
messages that the range does not have, which then follow it. If the log of the range is gone, the capsule's own text
stands for it, as the first message of a new conversation. If words of the conversation were erased after the capsule
was made, its text may have them: it then gives nothing.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Final

import msgspec
from msgspec.structs import replace

from app.compaction.capsule import UNCHANGED_HINT, Capsule, CapsuleSealer, render_standalone_text
from app.conversation.conversation_types import Conversation, LogMessage
from app.conversation.item import INSTRUCTION_ROLES
from app.dialects.body.message import ChatMessage
from app.dialects.capsule_parts import CAPSULE_MARKER, CapsulePart, split_at_capsules
from app.dialects.item_decoding import decode_item
from app.errors import ChangedCompaction, InvalidCapsule
from app.pipeline.resolve.client_history import LONG_HISTORY_BYTES
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import has_other_end_user
from app.store.contract.conversations import ConversationStore

GONE_WARNING: Final = (
    "The log behind the compaction in this request is not here: what the compaction holds stands for it."
)
ERASED_WARNING: Final = (
    "Words of the conversation behind the compaction in this request were erased on {:%Y-%m-%d}, after the compaction "
    "was made, so nothing of it is shown."
)


class CapsuleHistory(msgspec.Struct, frozen=True):
    """A request whose history begins with a capsule."""

    capsule: Capsule
    param: str
    """The place of the capsule in the request."""
    request: ChatRequest
    """With the messages that follow the capsule: first the instructions, from wherever they stood. If the log is gone,
    a message with the capsule's own text comes after them."""
    instruction_count: int
    place: tuple[Conversation, LogMessage] | None
    """The conversation, and the last message of the range in its log. None: the log is gone."""
    users_before: tuple[bytes, ...] = ()
    """The user messages of the range that the request has before the capsule."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CapsuleResolver:
    """Opens the capsules of requests."""

    store: ConversationStore
    sealer: CapsuleSealer

    async def read_history(self, request: ChatRequest) -> CapsuleHistory | None:
        """Returns the history of a request after its newest capsule; None if the request has no capsule.

        Raises:
            InvalidCapsule: a capsule cannot be opened (`CapsuleSealer.open`), two of them belong to different
                conversations, or nothing is left of the request.
            StoreUnavailable: the store cannot be read. Then nobody knows whether the words were erased.
        """
        if CAPSULE_MARKER not in request.body:
            return None
        parts: list[bytes | CapsulePart] = []
        groups: list[Sequence[int]] = []
        for index, raw in enumerate(request.raw_messages):
            split = split_at_capsules(bytes(raw))
            parts += split
            groups += [() if request.item_groups is None else request.item_groups[index]] * len(split)
        found = {index: part for index, part in enumerate(parts) if isinstance(part, CapsulePart)}
        if not found:
            return None
        params = [name_place(request, part, groups[index]) for index, part in found.items()]
        capsules = [self._open(request, part, param) for part, param in zip(found.values(), params, strict=True)]
        newest, index, param = capsules[-1], max(found), params[-1]
        place = await self._find_place(request, newest, param)
        await self._check_earlier_capsules(capsules, place, param)
        sort_parts = functools.partial(_sort_parts_before, newest, parts[:index])
        is_long = len(request.body) > LONG_HISTORY_BYTES
        instructions, unknown, users = await asyncio.to_thread(sort_parts) if is_long else sort_parts()
        kept = [*instructions, *unknown, *range(index + 1, len(parts))]
        messages: list[bytes] = [bytes(part) for number in kept if isinstance(part := parts[number], bytes)]
        kept_groups: list[Sequence[int]] = [groups[number] for number in kept]
        warnings: tuple[str, ...] = ()
        if place is None:
            erased_at = await self.store.find_tombstone(root=newest.root, family_id=newest.family_id)
            if erased_at is not None and erased_at.timestamp() >= newest.made_at:
                warnings = (ERASED_WARNING.format(erased_at.astimezone(UTC)),)
                if len(messages) == len(instructions):
                    raise InvalidCapsule(warnings[0], param=param)
                newest, users = newest.without_texts(), []
            else:
                warnings = (GONE_WARNING,)
                messages.insert(len(instructions), build_standalone_message(newest))
                kept_groups.insert(len(instructions), ())
        return CapsuleHistory(
            newest,
            param,
            replace(request, raw_messages=messages, item_groups=request.item_groups and kept_groups),
            len(instructions),
            place,
            tuple(users),
            warnings,
        )

    def _open(self, request: ChatRequest, part: CapsulePart, param: str) -> Capsule:
        capsule = self.sealer.open(
            part.text, tenant=request.caller.tenant, end_user=request.end_user_digest, param=param
        )
        if part.content not in (None, capsule.readable_text):
            raise ChangedCompaction(
                "The text of this compaction is not the one that it came with.", param=param, hint=UNCHANGED_HINT
            )
        return capsule

    async def _find_place(
        self, request: ChatRequest, capsule: Capsule, param: str
    ) -> tuple[Conversation, LogMessage] | None:
        """Returns the last message of a capsule's range: in its conversation or, if that has another message there,
        in a relative."""
        if request.context.mode == "stateless" or capsule.is_context_only != request.storing.keeps_context_only:
            return None
        tenant, seq = request.log_tenant, capsule.to_seq - 1
        conversation = await self.store.find_conversation(tenant=tenant, conversation_id=capsule.conversation_id)
        found: tuple[Conversation, LogMessage] | None = None
        if conversation is not None and seq <= conversation.head_seq:
            entries = await self.store.read_log(conversation, seq, seq + 1)
            found = next(((conversation, entry) for entry in entries if entry.link == capsule.to_link), None)
        if found is None:
            matches = await self.store.find_link_matches(
                tenant=tenant, root=capsule.root, links=[capsule.to_link], with_unanswered=True
            )
            found = next(
                (
                    (match.conversation, match.message)
                    for match in matches
                    if match.message.seq == seq and match.conversation.family_id == capsule.family_id
                ),
                None,
            )
        if found is not None and has_other_end_user(request, found[0]):
            raise InvalidCapsule("This compaction belongs to somebody else.", param=param)
        return found

    async def _check_earlier_capsules(
        self, capsules: Sequence[Capsule], place: tuple[Conversation, LogMessage] | None, param: str
    ) -> None:
        """Checks that the newest capsule stands for what the others stand for.

        Raises:
            InvalidCapsule: it does not.
        """
        *earlier, newest = capsules
        for capsule in earlier:
            if capsule.family_id == newest.family_id and capsule.to_seq <= newest.to_seq:
                entries = (
                    [] if place is None else await self.store.read_log(place[0], capsule.to_seq - 1, capsule.to_seq)
                )
                if all(entry.link == capsule.to_link for entry in entries):
                    continue
            elif newest.knows_user_message(decode_item(build_standalone_message(capsule)).canonical_form or b""):
                continue
            raise InvalidCapsule(
                "Two compactions of this request stand for different conversations. Send the newest one alone.",
                param=param,
            )


def name_place(request: ChatRequest, part: CapsulePart, places: Sequence[int]) -> str:
    """Returns the place of a capsule in a request, in the words of its protocol.

    Args:
        places: where the message, or each of its items, stands in the request; empty if that is not known.
    """
    field = request.messages_field
    if request.protocol == "messages":
        return ".".join((field, *map(str, places), "content", str(part.index)))
    return f"{field}[{places[part.index]}]" if part.index < len(places) else field


def _sort_parts_before(
    capsule: Capsule, parts: Sequence[bytes | CapsulePart]
) -> tuple[list[int], list[int], list[bytes]]:
    """Returns of the messages before a capsule the indexes of the instructions and of the user messages that the
    capsule does not know, and the user messages that it knows."""
    instructions: list[int] = []
    unknown: list[int] = []
    users: list[bytes] = []
    for index, part in enumerate(parts):
        if isinstance(part, CapsulePart):
            continue
        message = decode_item(part)
        if message.role in INSTRUCTION_ROLES:
            instructions.append(index)
        elif message.role == "user" and capsule.knows_user_message(message.canonical_form or b""):
            users.append(part)
        elif message.role == "user":
            unknown.append(index)
    return instructions, unknown, users


def build_standalone_message(capsule: Capsule) -> bytes:
    """Returns the message that stands for the range of a capsule."""
    return ChatMessage.from_text("user", render_standalone_text(capsule)).raw


def check_capsule_conversation(capsule_history: CapsuleHistory | None, conversation: Conversation | None) -> None:
    """Checks that the capsule of a request is of the conversation that the request names.

    Raises:
        InvalidCapsule: it is another's.
    """
    if capsule_history is None or (conversation and conversation.family_id == capsule_history.capsule.family_id):
        return
    raise InvalidCapsule(
        "The compaction is of another conversation than the one that this request names.", param=capsule_history.param
    )
