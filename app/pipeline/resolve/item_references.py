"""Item references: a client names an item of an earlier response by its id instead of sending it again.

The gateway puts the item from the log in the place of the reference, so that such a history is a resent history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import orjson
from msgspec.structs import replace

from app.conversation.conversation_types import AnswerAnchor, Conversation
from app.conversation.identity import compute_anchor_digest
from app.conversation.item import Item
from app.dialects.item_decoding import is_instructions_field
from app.dialects.items.input_items import find_item_groups, join_item_groups
from app.dialects.items.item_ids import find_response_id
from app.dialects.items.item_reference import find_references, may_have_references
from app.dialects.items.message import ResponsesMessage
from app.dialects.message_rendering import build_output_items
from app.errors import InvalidRequest
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import has_other_end_user
from app.store.contract.conversations import ConversationStore

ITEM_ANCHOR: Final = "item"
"""The kind of an anchor of a stored response's items."""

_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def build_item_anchors(conversation: Conversation, answer: Item, response_id: str) -> list[AnswerAnchor]:
    """Returns the anchors of a response's items, whose message is the conversation's last: one for the response, whose
    id is a part of the ids that the gateway derives, and one for each id of a provider."""
    ids = [response_id]
    if isinstance(answer, ResponsesMessage):
        item_ids = [item.get("id") for item in answer.items if isinstance(item, dict)]
        ids += [item_id for item_id in item_ids if isinstance(item_id, str)]
    root_and_id = (conversation.root, conversation.id)
    return [
        AnswerAnchor(digest_item_id(conversation.tenant, one), *root_and_id, conversation.head_seq)
        for one in dict.fromkeys(ids)
    ]


def digest_item_id(tenant: str, item_id: str) -> bytes:
    """Returns the digest of the anchor of an item's or a response's id."""
    return compute_anchor_digest(tenant, ITEM_ANCHOR, item_id.encode("utf-8", "replace"))


async def expand_item_references(
    store: ConversationStore, request: ChatRequest, *, may_begin_with_result: bool
) -> ChatRequest:
    """Returns a request of the Responses API with the referenced items in its messages. A request without references
    is returned as it is.

    Args:
        may_begin_with_result: whether the request continues a log whose last calls may be open.

    Raises:
        InvalidRequest: an item is unknown, or erased; `param` names the reference. Or an output has no call.
        StoreUnavailable: the store cannot be read.
    """
    if not may_have_references(bytes(request.raw_fields.get("input", b""))):
        return request
    raw_items = [bytes(raw) for raw in _decode_array(request.raw_fields["input"])]
    references = find_references(raw_items)
    if not references:
        return request
    found_items = await _find_items(store, request, list(dict.fromkeys(references.values())))
    for index, item_id in references.items():
        if item_id not in found_items:
            raise InvalidRequest(
                f"Item with id '{item_id}' not found.",
                param=f"input[{index}].id",
                hint="Only items of responses with `store: true` can be referred to.",
            )
        raw_items[index] = found_items[item_id]
    instructions = [bytes(raw) for raw in request.raw_messages[:1] if is_instructions_field(bytes(raw))]
    groups = find_item_groups(raw_items, may_begin_with_result=may_begin_with_result)
    return replace(
        request,
        raw_messages=[*instructions, *join_item_groups(raw_items, groups)],
        item_groups=[*([] for _ in instructions), *groups],
    )


async def _find_items(store: ConversationStore, request: ChatRequest, item_ids: Sequence[str]) -> dict[str, bytes]:
    """Returns the JSON text of each item that is found in stored responses of the request's tenant, by its id. Each
    conversation is read once. An erased message has no anchors."""
    tenant = request.caller.tenant
    response_ids = filter(None, map(find_response_id, item_ids))
    digests = [digest_item_id(tenant, one) for one in dict.fromkeys([*item_ids, *response_ids])]
    wanted: dict[str, set[int]] = {}
    for anchor in await store.find_anchors(digests):
        wanted.setdefault(anchor.conversation_id, set()).add(anchor.seq)
    found: dict[str, bytes] = {}
    for conversation_id, seqs in wanted.items():
        conversation = await store.find_conversation(tenant=tenant, conversation_id=conversation_id)
        if conversation is None or has_other_end_user(request, conversation):
            continue
        for entry in await store.read_log_ranges(conversation, [(seq, seq + 1) for seq in sorted(seqs)]):
            found |= _read_message_items(entry.message, str((entry.meta or {}).get("id") or ""))
    return found


def _read_message_items(message: Item, response_id: str) -> dict[str, bytes]:
    """Returns the items of a stored answer by their ids. Items that came with an id keep their bytes."""
    built = build_output_items(message, response_id)
    if not isinstance(message, ResponsesMessage):
        return {str(item["id"]): orjson.dumps(item) for item in built}
    pairs = zip(built, message.raw_items, strict=True)
    return {str(item["id"]): raw for item, raw in pairs}
