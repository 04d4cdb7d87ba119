"""Pins: messages that a client marks so that every view shows them word for word. A pin covers a whole round and is
stored with the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.context.plan.budget import Budget
from app.context.plan.outline import Pin
from app.context.plan.policy import ContextPolicy
from app.conversation.item import INSTRUCTION_ROLES, TOOL_RESULT_ROLES, Item
from app.dialects.item_decoding import decode_item
from app.errors import InvalidRequest
from app.pipeline.turn.chat_request import ChatRequest
from app.pipeline.turn.resolved_request import PINS, ResolvedRequest
from app.pipeline.turn.token_counting import MessageCounter
from app.store.contract.conversations import ConversationStore

MAX_ROUND_MESSAGES: Final = 128
"""How many messages before a pinned tool result are searched for its call."""


class PinUpdater:
    """Adds the pins of a request to its conversation."""

    def __init__(self, *, store: ConversationStore, message_counter: MessageCounter) -> None:
        self._store = store
        self._message_counter = message_counter

    async def apply_request_pins(self, request: ChatRequest, resolved_request: ResolvedRequest) -> ResolvedRequest:
        """Returns the request with its pins added to the conversation's pins. A pin is given by an index into
        `messages`, or into `input`.

        Raises:
            InvalidRequest: there is no such message, or its place in the log is not known.
            StoreUnavailable: the call of a pinned tool result cannot be read.
        """
        if not request.context.pin_indexes and not resolved_request.conversation.marks.get(PINS):
            return resolved_request
        pins = {pin.from_seq: pin for pin in decode_pins(resolved_request.conversation.marks)}
        stored_pins = dict(pins)
        # Before the request's own pins: a pinned tool call and its new results are one round.
        pins |= {pin.from_seq: pin for pin in await self._extend_pins_by_results(resolved_request, list(pins.values()))}
        for index in request.context.pin_indexes:
            seq = _find_pinned_seq(index, request, resolved_request)
            if seq is not None and not any(pin.from_seq <= seq < pin.to_seq for pin in pins.values()):
                pin = await self.build_round_pin(resolved_request, seq)
                pins[pin.from_seq] = pin
        if pins == stored_pins:
            return resolved_request
        encoded_pins = [msgspec.to_builtins(pins[seq]) for seq in sorted(pins)]
        marks = {**resolved_request.conversation.marks, PINS: encoded_pins}
        return replace(
            resolved_request,
            conversation=replace(resolved_request.conversation, marks=marks),
            changed_pins=encoded_pins,
        )

    async def build_round_pin(self, resolved_request: ResolvedRequest, seq: int) -> Pin:
        """Returns a pin for the round of a message: a tool call with all its results, or the message alone."""
        neighbors = await self._read_neighbor_messages(resolved_request, seq)
        first = last = seq
        while neighbors[first].role in TOOL_RESULT_ROLES and first - 1 in neighbors:
            first -= 1
        if neighbors[first].role == "assistant":
            while last + 1 in neighbors and neighbors[last + 1].role in TOOL_RESULT_ROLES:
                last += 1
        counts = await self._message_counter.count_message_tokens(
            [neighbors[index] for index in range(first, last + 1)], resolved_request.conversation.token_counter_name
        )
        return Pin(first, last + 1, sum(counts))

    async def _read_neighbor_messages(self, resolved_request: ResolvedRequest, seq: int) -> dict[int, Item]:
        """Returns the log messages around a seq, by seq. They are read from the store if the client did not send
        them."""
        first = max(0, seq - MAX_ROUND_MESSAGES)
        end = min(resolved_request.next_seq, seq + MAX_ROUND_MESSAGES)
        if resolved_request.is_aligned_by_index and resolved_request.client_messages is not None:
            return {index: decode_item(bytes(resolved_request.client_messages[index])) for index in range(first, end)}
        head = resolved_request.conversation.head_seq
        stored = (
            await self._store.read_log(resolved_request.conversation, first, min(end, head + 1))
            if first <= head
            else []
        )
        return {
            entry.seq: entry.message for entry in (*stored, *resolved_request.new_messages) if first <= entry.seq < end
        }

    async def _extend_pins_by_results(self, resolved_request: ResolvedRequest, pins: Sequence[Pin]) -> list[Pin]:
        """Returns the pins of tool calls at the log's end, extended by the results that come with this request."""
        results = []
        for entry in resolved_request.new_messages:
            if entry.message.role not in TOOL_RESULT_ROLES:
                break
            results.append(entry)
        end = resolved_request.conversation.head_seq + 1
        if not results:
            return []
        tokens = sum(entry.tokens for entry in results)
        return [Pin(pin.from_seq, end + len(results), pin.tokens + tokens) for pin in pins if pin.to_seq == end]


def decode_pins(marks: Mapping[str, Any]) -> tuple[Pin, ...]:
    """Returns the pinned rounds in a conversation's marks, in the order of the log."""
    stored = marks.get(PINS)
    return msgspec.convert(stored, tuple[Pin, ...]) if stored else ()


def select_fitting_pins(pins: Sequence[Pin], policy: ContextPolicy, budget: Budget) -> tuple[Pin, ...]:
    """Returns the newest pins that fit the policy's share of the window, in the order of the log. A smaller model has
    room for fewer pins."""
    # In raw tokens: whether a pin fits must not change when the calibration learns.
    remaining_tokens = int(budget.window * policy.pin_ratio)
    fitting_pins: list[Pin] = []
    for pin in reversed(pins):
        remaining_tokens -= pin.tokens
        if remaining_tokens < 0:
            break
        fitting_pins.append(pin)
    return tuple(reversed(fitting_pins))


def check_pin_share(pins: tuple[Pin, ...], policy: ContextPolicy, budget: Budget, *, param: str) -> None:
    """Refuses pins that exceed their share of the window.

    Raises:
        InvalidRequest: the pins exceed their share.
    """
    if select_fitting_pins(pins, policy, budget) == pins:
        return
    tokens = sum(pin.tokens for pin in pins)
    allowed_tokens = int(budget.window * policy.pin_ratio)
    raise InvalidRequest(
        f"The pinned messages of this conversation would take {tokens} tokens; at most "
        f"{allowed_tokens} of the window of "
        f"{budget.window} may be pinned.",
        code="pins_too_large",
        param=param,
        hint="Pin fewer messages.",
    )


def _find_pinned_seq(index: int, request: ChatRequest, resolved_request: ResolvedRequest) -> int | None:
    """Returns the seq of a message of the request. Returns None for instructions, which every view shows."""
    message_index = _find_message_index(index, request)
    if all(decode_item(bytes(raw)).role in INSTRUCTION_ROLES for raw in request.raw_messages[: message_index + 1]):
        return None
    distance_to_end = len(request.raw_messages) - message_index
    seq = (
        resolved_request.next_seq - distance_to_end
        if resolved_request.shown.log_seqs is None
        else resolved_request.shown.log_seqs[len(resolved_request.shown.log_seqs) - distance_to_end]
    )
    if seq < 0:
        raise _make_pin_error(index, "it is not in the conversation's log")
    return seq


def _find_message_index(index: int, request: ChatRequest) -> int:
    """Returns the index of a pinned message, or of the message that a pinned item is a part of."""
    if request.item_groups is None:
        if index >= len(request.raw_messages):
            raise _make_pin_error(index, f"there are {len(request.raw_messages)} messages")
        return index
    for message_index, items in enumerate(request.item_groups):
        if index in items:
            return message_index
    raise _make_pin_error(index, f"`input` has {sum(map(len, request.item_groups))} items", "item")


def _make_pin_error(index: int, reason: str, named: str = "message") -> InvalidRequest:
    return InvalidRequest(
        f"`context.pin` names {named} {index}, which cannot be pinned: {reason}.",
        code="invalid_value",
        param="context.pin",
    )
