"""Ids of output items: the same for the same place, another for another place."""

from __future__ import annotations

from app.dialects.items.item_ids import derive_item_id

RESPONSE_ID = "resp_" + "0123456789abcdef" * 3


def test_the_id_names_kind_response_and_place() -> None:
    assert derive_item_id(RESPONSE_ID, "msg", 10) == "msg_" + "0123456789abcdef" * 3 + "0a"


def test_no_two_places_of_two_responses_have_the_same_id() -> None:
    responses = [RESPONSE_ID, "resp_" + "f" * 48]
    ids = [derive_item_id(one, kind, index) for one in responses for kind in ("msg", "fc") for index in range(300)]
    assert len(set(ids)) == len(ids)


def test_an_id_is_no_longer_than_openai_accepts() -> None:
    # OpenAI refuses ids of input items that are longer than 64 characters.
    assert max(len(derive_item_id(RESPONSE_ID, kind, 999)) for kind in ("msg", "rs", "fc", "ctc")) <= 64
