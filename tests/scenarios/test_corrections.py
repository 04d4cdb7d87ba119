"""What a user corrects or deletes counts from then on, and a client without an id is shown nothing that it does not
carry."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.live import Reply, completion
from tests.scenarios.rewriting import (
    LOOK,
    Body,
    Client,
    Kept,
    StrictModel,
    kept,
    question,
    slide,
    words,
)
from tests.support.gateway import is_summary, material, user

CODE = re.compile(r"CODE-\d+")
NAMINGS = pytest.mark.parametrize("is_named", [False, True], ids=["without an id", "with an id"])


class EchoingModel(StrictModel):
    """A summary repeats every code that the summarizer was given."""

    def _reply(self, body: Body) -> Reply:
        if is_summary(body):
            codes = " ".join(dict.fromkeys(CODE.findall(material(body))))
            return completion(f"They spoke of gardens and of {codes or 'nothing else'}.", prompt_tokens=100)
        return super()._reply(body)

    @property
    def last_view(self) -> str:
        """What the model was sent last."""
        return json.dumps(self.asked[-1]["messages"])

    @property
    def materials(self) -> list[str]:
        """What summarizers were given."""
        return [material(body) for body in self.requests if is_summary(body)]


class Person:
    """A client that can change what it resends."""

    def __init__(self, place: Kept, *, is_named: bool) -> None:
        self.changed: dict[int, list[Body]] = {}
        self.client = Client(place, self._tell)
        self.is_named = is_named

    def _tell(self, messages: Any) -> list[Body]:
        return [one for index, message in enumerate(messages) for one in self.changed.get(index, [message])]

    async def say(self, *messages: Body, **fields: Any) -> Body:
        body = await self.client.say(*messages, **fields)
        if self.is_named:
            self.client.fields["conversation_id"] = body["conversation_id"]
        return body

    async def talk(self, turns: range, length: int = 250) -> None:
        for turn in turns:
            await self.say(question(turn, length))


@NAMINGS
async def test_a_value_that_the_user_edits_in_place_replaces_the_old_one_everywhere(
    is_named: bool, tmp_path: Path
) -> None:
    model = EchoingModel()
    async with kept(tmp_path / "kept.db", model) as place:
        person = Person(place, is_named=is_named)
        await person.talk(range(1))
        await person.say(user(f"The limit is CODE-500 from now on. {words('limit', 60)}"))
        await person.talk(range(2, 12))
        assert "CODE-500" in model.materials[0]
        person.changed[2] = [user(f"The limit is CODE-900 from now on. {words('limit', 60)}")]
        await person.say(user("What is the limit from now on?"))
        assert "CODE-500" not in model.last_view
        assert "CODE-900" in model.last_view
        made = model.summaries
        await person.say(user("And tomorrow?"))
        assert model.summaries == made, "the same change is paid for once"
        await person.talk(range(12, 26))
        assert "CODE-500" not in model.last_view
        assert "CODE-900" in model.last_view
        assert model.refused == []
        assert len(person.client.ids) == 1


@NAMINGS
async def test_a_change_that_is_taken_back_uses_the_first_summary_again(is_named: bool, tmp_path: Path) -> None:
    model = EchoingModel()
    async with kept(tmp_path / "kept.db", model) as place:
        person = Person(place, is_named=is_named)
        await person.say(user(f"The limit is CODE-500. {words('limit', 60)}"))
        await person.talk(range(1, 12))
        person.changed[0] = [user(f"The limit is CODE-900. {words('limit', 60)}")]
        await person.say(user("So?"))
        made = model.summaries
        person.changed.clear()
        await person.say(user("And now?"))
        assert model.summaries == made
        assert "CODE-500" in model.last_view
        assert "CODE-900" not in model.last_view


async def test_a_change_still_counts_when_a_window_with_an_id_has_passed_it(tmp_path: Path) -> None:
    model = EchoingModel()
    async with kept(tmp_path / "kept.db", model) as place:
        person = Person(place, is_named=True)
        await person.say(user(f"The limit is CODE-500 now. {words('limit', 60)}"))
        await person.talk(range(1, 12))
        person.changed[0] = [user(f"The limit is CODE-900 now. {words('limit', 60)}")]
        await person.say(user("So?"))
        person.changed |= {0: [], 1: []}
        await person.say(user("What is the limit now?"))
        assert "CODE-500" not in model.last_view
        assert "CODE-900" in model.last_view


@NAMINGS
async def test_an_exchange_that_the_user_deletes_is_in_no_summary_and_no_quotation(
    is_named: bool, tmp_path: Path
) -> None:
    model = EchoingModel()
    async with kept(tmp_path / "kept.db", model) as place:
        person = Person(place, is_named=is_named)
        await person.talk(range(1))
        await person.say(user(f"Always sign with my key CODE-31337, never without. {words('key', 60)}"))
        await person.talk(range(2, 12))
        assert "CODE-31337" in model.last_view
        person.changed |= {2: [], 3: []}
        await person.say(user("With which key do I always sign?"))
        assert "CODE-31337" not in model.last_view
        await person.talk(range(12, 26))
        assert "CODE-31337" not in model.last_view
        assert "CODE-31337" not in "".join(model.materials[-1:])
        assert model.refused == []


@NAMINGS
async def test_a_message_that_the_user_inserts_is_in_the_summary(is_named: bool, tmp_path: Path) -> None:
    model = EchoingModel()
    async with kept(tmp_path / "kept.db", model) as place:
        person = Person(place, is_named=is_named)
        await person.talk(range(6))
        old = person.client.messages[4]
        person.changed[4] = [user(f"My garden is number CODE-77. {words('garden', 30)}"), old]
        await person.talk(range(6, 16))
        assert any("CODE-77" in text for text in model.materials)
        assert "CODE-77" in model.last_view


async def test_a_window_without_an_id_is_shown_nothing_that_it_does_not_carry(tmp_path: Path) -> None:
    model = EchoingModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place)
        await client.say(user(f"The password is CODE-4711. {words('password', 60)}"))
        for turn in range(1, 12):
            await client.say(question(turn, 250))
        assert "CODE-4711" in model.last_view, "the whole history was carried, and summarized"
        client.tell = lambda messages: list(messages[3:])
        await client.say(question(12, 250))
        assert "CODE-4711" not in model.last_view
        client.tell = slide(13)
        for turn in range(13, 18):
            await client.say(question(turn, 250))
            assert "CODE-4711" not in model.last_view
        await client.say(user("What is the password?"))
        assert "CODE-4711" not in model.last_view


async def test_a_window_with_an_id_is_shown_what_it_left_out(tmp_path: Path) -> None:
    model = EchoingModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place)
        body = await client.say(user(f"The password is CODE-4711. {words('password', 60)}"))
        client.fields["conversation_id"] = body["conversation_id"]
        for turn in range(1, 12):
            await client.say(question(turn, 250))
        client.tell = lambda messages: list(messages[3:])
        await client.say(question(12, 250))
        assert "CODE-4711" in model.last_view


async def test_a_message_that_changes_with_each_request_does_not_cost_a_summary_each_time(tmp_path: Path) -> None:
    model = EchoingModel()
    async with kept(tmp_path / "kept.db", model) as place:
        person = Person(place, is_named=True)
        for turn in range(20):
            person.changed[0] = [user(f"It is minute CODE-{1000 + turn}. {words('first', 60)}")]
            await person.say(question(turn, 250))
        assert "CODE-1019" in model.last_view
        assert "CODE-1018" not in model.last_view
        assert model.summaries <= 8
        assert model.refused == []


async def test_a_result_that_is_masked_after_its_round_was_condensed_keeps_its_call(tmp_path: Path) -> None:
    model = StrictModel()
    policies = {"prune": {"summarize_after_turns": 1}}
    async with kept(tmp_path / "kept.db", model, policies=policies) as place:
        person = Person(place, is_named=False)
        person.client.fields |= {"tools": [LOOK], "context": {"policy": "prune"}}
        for turn in range(10):
            body = await person.say(user(f"TOOL {turn}: {words(f'q{turn}', 60)}"))
            (asked,) = body["choices"][0]["message"]["tool_calls"]
            await person.say({"role": "tool", "tool_call_id": asked["id"], "content": words(f"r{turn}", 400)})
        results = [index for index, message in enumerate(person.client.messages) if message["role"] == "tool"]
        for index in results[:3]:
            person.changed[index] = [person.client.messages[index] | {"content": "[masked]"}]
            await person.say(user("Go on."))
        assert model.refused == []
