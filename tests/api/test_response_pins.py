"""Pins of a Responses request: indexes into `input`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.live import ScriptedUpstream
from tests.support.gateway import World, answering, world
from tests.support.responses_turns import function_call, output, said_by

INPUT = [
    said_by("developer", "Be brief."),
    said_by("user", "Where are the keys?"),
    {"type": "reasoning", "summary": []},
    function_call("c1"),
    function_call("c2"),
    said_by("user", "Well?"),
    output("c2", "Shelf 31."),
    output("c1", "Nothing."),
    said_by("assistant", "On shelf 31."),
    said_by("user", "Thanks."),
]
"""The outputs stand behind their calls in the log: question 0, calls 1, outputs 2 and 3, question 4, answer 5."""


async def send(gateway: World, pins: Any, given: Any = INPUT, **fields: Any) -> httpx.Response:
    body = {"model": "m", "input": given, "context": {"pin": pins}, **fields}
    return await gateway.client.post(
        f"{gateway.base_url}/responses", json=body, headers={"authorization": "Bearer sk-one"}
    )


def list_pinned_seqs(gateway: World) -> list[int]:
    (conversation,) = gateway.conversations()
    return [seq for pin in conversation.marks.get("pins", ()) for seq in range(pin["from_seq"], pin["to_seq"])]


@pytest.mark.parametrize(
    ("pins", "seqs"),
    [([1], [0]), ([2], [1, 2, 3]), ([3], [1, 2, 3]), ([6], [1, 2, 3]), ([5], [4]), ([0], []), ([9, 1], [0, 6])],
)
@pytest.mark.parametrize("instructions", [None, "Sing."])
async def test_an_index_names_the_message_of_an_item(
    pins: list[int], seqs: list[int], instructions: str | None
) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        answer = await send(gateway, pins, instructions=instructions)
        assert answer.status_code == 200, answer.text
        assert list_pinned_seqs(gateway) == seqs


async def test_new_items_count_from_0() -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        first = (await send(gateway, [0], "The code is 7741.")).json()
        await send(gateway, [1], [said_by("user", "A"), said_by("user", "B")], previous_response_id=first["id"])
        assert list_pinned_seqs(gateway) == [0, 3]


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ([10], "`context.pin` names item 10, which cannot be pinned: `input` has 10 items."),
        ([-1], "`context.pin` counts items from 0."),
        ("1", "`context.pin` must be an array of indexes into `input`."),
    ],
)
async def test_what_is_no_item_is_refused(pins: Any, message: str) -> None:
    async with world(ScriptedUpstream(default=answering)) as gateway:
        answer = await send(gateway, pins)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["message"], error["param"]) == (message, "context.pin")
