"""Messages that a client pins: always shown word for word, whole rounds at a time, and kept with the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.context.plan.budget import Budget
from app.context.plan.outline import Pin
from app.context.plan.policy import Policy
from app.context.stages.round_lines import RESULT_ROLES
from app.conversation.message_checks import INSTRUCTION_ROLES
from app.conversation.messages import Message
from app.errors import InvalidRequest
from app.pipeline.chat_request import ChatRequest
from app.pipeline.resolve.resolved_request import PINS, Recollection
from app.pipeline.token_counting import Counting
from app.store.contract import Store

LONGEST_ROUND_MESSAGES: Final = 128
"""How far back the call of a pinned result is looked for."""


class Pinning:
    """Finds what a request pins."""

    def __init__(self, *, store: Store, counting: Counting) -> None:
        self._store = store
        self._counting = counting

    async def of(self, request: ChatRequest, place: Recollection) -> Recollection:
        """The place with what the request pins among the conversation's pins. Indexes are those of `messages`.

        Raises:
            InvalidRequest: there is no such message, or it is one whose place in the stored log is not known.
            StoreUnavailable: the call of a pinned result cannot be read.
        """
        if not request.pin and not place.conversation.marks.get(PINS):
            return place
        pins = {pin.from_seq: pin for pin in pins_of(place.conversation.marks)}
        known = dict(pins)
        pins |= {pin.from_seq: pin for pin in await self._extended(place, list(pins.values()))}
        for index in request.pin:
            seq = _seq_of(index, request, place)
            if seq is not None and not any(pin.from_seq <= seq < pin.to_seq for pin in pins.values()):
                pin = await self.round_at(place, seq)
                pins[pin.from_seq] = pin
        if pins == known:
            return place
        stored = [msgspec.to_builtins(pins[seq]) for seq in sorted(pins)]
        marks = {**place.conversation.marks, PINS: stored}
        return replace(place, conversation=replace(place.conversation, marks=marks), pins=stored)

    async def round_at(self, place: Recollection, seq: int) -> Pin:
        """The round that a message is part of: a call with all its results, or the message alone."""
        around = await self._around(place, seq)
        first = last = seq
        while around[first].role in RESULT_ROLES and first - 1 in around:
            first -= 1
        if around[first].role == "assistant":
            while last + 1 in around and around[last + 1].role in RESULT_ROLES:
                last += 1
        tokens = await self._tokens(place, [around[at] for at in range(first, last + 1)])
        return Pin(first, last + 1, tokens)

    async def _around(self, place: Recollection, seq: int) -> dict[int, Message]:
        """The messages of the log about a place, from the store where the client did not send them."""
        first = max(0, seq - LONGEST_ROUND_MESSAGES)
        past = min(place.next_seq, seq + LONGEST_ROUND_MESSAGES)
        if place.aligned and place.client_log is not None:
            return {at: Message(bytes(place.client_log[at])) for at in range(first, past)}
        head = place.conversation.head_seq
        stored = await self._store.read(place.conversation, first, min(past, head + 1)) if first <= head else []
        return {entry.seq: entry.message for entry in (*stored, *place.new) if first <= entry.seq < past}

    async def _extended(self, place: Recollection, pins: Sequence[Pin]) -> list[Pin]:
        """Pins of calls whose results come with this request."""
        results = []
        for entry in place.new:
            if entry.message.role not in RESULT_ROLES:
                break
            results.append(entry)
        end = place.conversation.head_seq + 1
        if not results:
            return []
        tokens = sum(entry.tokens for entry in results)
        return [Pin(pin.from_seq, end + len(results), pin.tokens + tokens) for pin in pins if pin.to_seq == end]

    async def _tokens(self, place: Recollection, messages: Sequence[Message]) -> int:
        return sum(await self._counting.messages(messages, place.conversation.counter))


def pins_of(marks: Mapping[str, Any]) -> tuple[Pin, ...]:
    """The pinned rounds of a conversation by its marks, in the order of its log."""
    stored = marks.get(PINS)
    return msgspec.convert(stored, tuple[Pin, ...]) if stored else ()


def fitting(pins: Sequence[Pin], policy: Policy, budget: Budget) -> tuple[Pin, ...]:
    """The newest pins within their share of the window, in the order of the log: a smaller model has room for fewer.
    By our raw count: what was learned of a provider neither refuses nor drops a pin."""
    if not pins:
        return ()
    left = int(budget.window * policy.pin_ratio)
    kept: list[Pin] = []
    for pin in reversed(pins):
        left -= pin.tokens
        if left < 0:
            break
        kept.append(pin)
    return tuple(reversed(kept))


def check_pins(request: ChatRequest, place: Recollection, policy: Policy, budget: Budget) -> None:
    """Refuse pins that would take more than their share.

    Raises:
        InvalidRequest: they would.
    """
    if request.pin:
        check_share(pins_of(place.conversation.marks), policy, budget, param="context.pin")


def check_share(pins: tuple[Pin, ...], policy: Policy, budget: Budget, *, param: str) -> None:
    """
    Raises:
        InvalidRequest: these pins would take more than their share.
    """
    if fitting(pins, policy, budget) == pins:
        return
    tokens = sum(pin.tokens for pin in pins)
    allowed = int(budget.window * policy.pin_ratio)
    raise InvalidRequest(
        f"The pinned messages of this conversation would take {tokens} tokens; at most {allowed} of the window of "
        f"{budget.window} may be pinned.",
        code="pins_too_large",
        param=param,
        hint="Pin less, or raise `pin_ratio` of the policy.",
    )


def _seq_of(index: int, request: ChatRequest, place: Recollection) -> int | None:
    """Where in the log a message of the request stands; None for instructions, which are always shown."""
    if index >= len(request.raws):
        raise _not_there(index, f"there are {len(request.raws)} messages")
    if all(Message(bytes(raw)).role in INSTRUCTION_ROLES for raw in request.raws[: index + 1]):
        return None
    behind = len(request.raws) - index
    seq = place.next_seq - behind if place.seqs is None else place.seqs[len(place.seqs) - behind]
    if seq < 0:
        raise _not_there(index, "it has no place in the conversation's log")
    return seq


def _not_there(index: int, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"`context.pin` names message {index}, which cannot be pinned: {why}.",
        code="invalid_value",
        param="context.pin",
    )
