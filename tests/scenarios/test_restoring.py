"""What a client has left out of its history may be quoted where the view is shortened anyway, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.rewriting import Client, Kept, StrictModel, inject, kept, question, slide
from tests.support.gateway import user

FACT = "The greenhouse key lies under the blue flowerpot."
ASKED = "Where does the greenhouse key lie?"


async def ask_after_the_fact_has_left(
    place: Kept, *, long: bool, is_named: bool = True, words: int = 360
) -> tuple[Client, dict[str, Any]]:
    """A client whose window no longer holds the fact asks for it. Its window fits, or does not."""
    client = Client(place, slide(9))
    body = await client.say(user(FACT))
    if is_named:
        client.fields["conversation_id"] = body["conversation_id"]
    for turn in range(7):
        await client.say(question(turn, words if long and turn > 2 else 40))
    await place.settle()
    return client, await client.say(user(ASKED))


def is_shown(model: StrictModel) -> bool:
    return FACT in str(model.asked[-1]["messages"])


async def test_a_message_that_the_client_left_out_is_quoted_in_a_view_that_is_shortened_until_it_is_erased(
    tmp_path: Path,
) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client, body = await ask_after_the_fact_has_left(place, long=True)
        assert FACT not in str(client.tell(client.messages[:-1]))
        assert body["context_status"] == "summarized"
        assert is_shown(model)
        assert 0 in [one["seq"] for one in body["context"]["quoted"]]
        (item,) = [item for item in await place.items(body["conversation_id"]) if FACT in str(item)]
        await place.call("DELETE", f"{body['conversation_id']}/items/{item['id']}", erase="true")
        body = await client.say(user(f"Once more: {ASKED}"))
        assert len(client.ids) == 1
        assert not is_shown(model)


async def test_nothing_that_the_client_left_out_is_quoted_without_an_id(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        _, body = await ask_after_the_fact_has_left(place, long=True, is_named=False, words=640)
        assert body["context_status"] == "summarized"
        assert not is_shown(model)


async def test_nothing_that_the_client_left_out_is_quoted_without_restoring(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model, policies={"additive": {"restore": "none"}}) as place:
        _, body = await ask_after_the_fact_has_left(place, long=True)
        assert body["context_status"] == "summarized"
        assert not is_shown(model)


async def test_nothing_is_quoted_in_a_view_that_fits_as_it_was_sent(tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        _, body = await ask_after_the_fact_has_left(place, long=False)
        assert body["context_status"] == "full"
        assert not is_shown(model)


@pytest.mark.parametrize("comes_again", [True, False])
async def test_a_note_that_was_taken_back_is_not_quoted(comes_again: bool, tmp_path: Path) -> None:
    model = StrictModel()
    async with kept(tmp_path / "kept.db", model) as place:
        client = Client(place, inject(lambda length: FACT if comes_again or length == 2 else "It rains."))
        for turn in range(5):
            await client.say(question(turn, 320))
        await place.settle()
        body = await client.say(user(ASKED))
        assert body["context_status"] == "summarized"
        assert is_shown(model) == comes_again
