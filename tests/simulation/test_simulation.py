"""Many scripts by fixed seeds hold all invariants; and each invariant is seen to fail where it is broken on purpose."""

from __future__ import annotations

import json
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from app.conversations.items.item_reader import ItemReader
from app.errors import UpstreamUnavailable
from app.upstream.provider_contract import UpstreamRequest
from tests.selection import IS_FULL_RUN
from tests.simulation.clients import MESSAGES_KINDS, NAMED_TOOLS_KINDS
from tests.simulation.provider import CURRENT, FAQ, ScriptedProvider, ScriptedReply, find_markers
from tests.simulation.scenario import Statistics, find_failure, make_script, run_script, shorten

PLAIN_KINDS = ("end_user",)
SEEDS_IN_TEST = 300 if IS_FULL_RUN else 50
MESSAGES_CLIENTS = (*MESSAGES_KINDS, "resend", "resend_tools", "end_user")
SEED_OF_A_REPEATED_QUOTATION = 30_147
"""Here a summarizer repeats quoted words, and the client then leaves out the message that had them."""
SEEDS_OF_FORMER_FAULTS = (50_189, 50_532, 50_618, 60_542)
"""The store is away when the beginning of an answer is to be written; two questions get the same short answer; the
count of one of two equal greetings is lost; a question is sent again that only a branch has."""
Messages = list[dict[str, Any]]
Break = Callable[[Messages], Messages]


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """The application logs each fault of a script."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seeds",
    [
        *(range(first, first + 50) for first in range(1, SEEDS_IN_TEST, 50)),
        *([seed] for seed in (SEED_OF_A_REPEATED_QUOTATION, *SEEDS_OF_FORMER_FAULTS)),
    ],
    ids=lambda seeds: str(seeds[0]),
)
def test_no_script_breaks_an_invariant(seeds: Sequence[int]) -> None:
    found = find_failure(seeds)
    if found is not None:
        script, failure = found
        pytest.fail(f"{failure.invariant}: {failure.text}\n{shorten(script, failure)}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kinds", [MESSAGES_CLIENTS, tuple(NAMED_TOOLS_KINDS)], ids=["messages", "named_tools"])
@pytest.mark.parametrize("first", [*range(1, SEEDS_IN_TEST, 50), 90])
def test_no_script_with_clients_of_the_messages_api_breaks_an_invariant(kinds: Sequence[str], first: int) -> None:
    found = find_failure(range(first, first + 50), kinds)
    if found is not None:
        script, failure = found
        pytest.fail(f"{failure.invariant}: {failure.text}\n{shorten(script, failure)}")


def test_a_seed_always_tells_the_same_story() -> None:
    first, second = Statistics(), Statistics()
    for statistics in (first, second):
        for seed in range(5):
            run_script(make_script(seed, ("end_user", "few_shot", "append"), faults=True), statistics)
    assert first == second
    assert first["kills"]


def break_views(monkeypatch: pytest.MonkeyPatch, change: Break) -> None:
    """Changes what arrives at the provider, as an application would that builds wrong views."""
    send = ScriptedProvider.send

    def send_changed(self: ScriptedProvider, request: UpstreamRequest) -> Awaitable[ScriptedReply]:
        body = json.loads(request.body)
        body["messages"] = change(body["messages"])
        return send(self, replace(request, body=json.dumps(body, ensure_ascii=False).encode()))

    monkeypatch.setattr(ScriptedProvider, "send", send_changed)


def break_items(monkeypatch: pytest.MonkeyPatch, change: Callable[[Messages], Messages]) -> None:
    """Changes what is read under a conversation id."""
    list_items = ItemReader.list_items

    async def list_changed(self: ItemReader, *arguments: Any) -> tuple[Messages, bool]:
        items, has_more = await list_items(self, *arguments)
        return change(items), has_more

    monkeypatch.setattr(ItemReader, "list_items", list_changed)


def add_words_of(is_wanted: Callable[[str, str], bool]) -> Break:
    """Shows words of an earlier request, if its person and the current one are wanted together."""
    said: dict[str, list[str]] = defaultdict(list)

    def change(messages: Messages) -> Messages:
        person, carried = CURRENT.get().person, CURRENT.get().carried
        words = [one for other in said if is_wanted(other, person) for one in said[other] if one not in carried]
        said[person] += sorted(find_markers(json.dumps(messages[-1:], ensure_ascii=False)))
        return [*([{"role": "system", "content": words[-1]}] if words else []), *messages]

    return change


def repeat_newest(messages: Messages) -> Messages:
    newest = [one for one in messages if one["role"] == "user"][-1:]
    return [*newest, *messages]


def drop_first_user_message(messages: Messages) -> Messages:
    users = [at for at, one in enumerate(messages) if one["role"] == "user"]
    return messages if len(users) < 2 else messages[: users[0]] + messages[users[0] + 1 :]


BROKEN_VIEWS: dict[str, tuple[Break, tuple[str, ...]]] = {
    "leak_view": (add_words_of(lambda other, person: other != person), PLAIN_KINDS),
    "uncarried": (add_words_of(lambda other, person: other == person), ("window_2",)),
    "paired": (lambda messages: [one for one in messages if one["role"] != "tool"], ("resend_tools",)),
    "window": (lambda messages: [{"role": "system", "content": "word " * 9000}, *messages], PLAIN_KINDS),
    "newest": (repeat_newest, PLAIN_KINDS),
    "status": (drop_first_user_message, PLAIN_KINDS),
}


@pytest.mark.parametrize("invariant", BROKEN_VIEWS)
def test_a_wrong_view_is_found(monkeypatch: pytest.MonkeyPatch, invariant: str) -> None:
    change, kinds = BROKEN_VIEWS[invariant]
    break_views(monkeypatch, change)
    assert_found(invariant, kinds)


def test_words_of_another_person_under_an_id_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Messages = []

    def add_earlier_items(items: Messages) -> Messages:
        read.extend(item for item in items if item.get("role") == "assistant")
        return read + items

    break_items(monkeypatch, add_earlier_items)
    assert_found("leak_read", PLAIN_KINDS)


@pytest.mark.parametrize("change", [lambda items: items[2:], lambda items: items * 2, lambda items: items[::-1]])
def test_a_log_that_lacks_doubles_or_disorders_messages_is_found(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Messages], Messages]
) -> None:
    break_items(monkeypatch, change)
    assert_found("log", PLAIN_KINDS)


def test_a_gateway_that_stops_answering_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[object] = []
    send = ScriptedProvider.send

    async def send_ten(self: ScriptedProvider, request: UpstreamRequest) -> ScriptedReply:
        answered.append(request)
        if len(answered) > 10:
            raise UpstreamUnavailable("away for good")
        return await send(self, request)

    monkeypatch.setattr(ScriptedProvider, "send", send_ten)
    assert_found("progress", PLAIN_KINDS)


def test_a_failing_script_is_shortened_to_the_steps_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    break_views(
        monkeypatch,
        lambda messages: (
            repeat_newest(messages) if messages[-2:-1] and messages[-2]["content"] in FAQ.values() else messages
        ),
    )
    found = find_failure(range(60), ("few_shot",))
    assert found is not None
    script, failure = found
    shortest = shorten(script, failure)
    assert len(shortest.people) == 1
    assert len(shortest.steps) <= 2 < len(script.steps)


def assert_found(invariant: str, kinds: tuple[str, ...]) -> None:
    began = time.process_time()
    found = find_failure(range(60), kinds)
    assert found is not None
    assert found[1].invariant == invariant, found[1].text
    assert time.process_time() - began < 10
