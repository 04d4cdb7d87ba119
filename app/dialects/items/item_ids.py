"""Ids of output items that no provider has named. Pure."""

from __future__ import annotations

import re
from typing import Final

from app.conversation.conversation_types import RESPONSE_ID_PREFIX

_DERIVED_ID_PATTERN: Final = re.compile(r"[a-z]+_[0-9a-f]{50}")

RESPONSE_ID_HEX: Final = 48
"""How many hex digits an id of ours has after `resp_`."""
_DERIVED_ITEM_ID: Final = re.compile(rf"[a-z]+_([0-9a-f]{{{RESPONSE_ID_HEX}}})[0-9a-f]{{2,}}")


def derive_item_id(response_id: str, kind: str, index: int) -> str:
    """Returns the id of an output item of a response. The same arguments always give the same id, so that the answer
    and every later read of the response name an item alike.

    Args:
        response_id: `resp_` and hex digits.
        kind: the prefix that OpenAI gives ids of such items: `msg`, `rs`, `fc`, `ctc`.
        index: the place of the item in the response's `output`.
    """
    return f"{kind}_{response_id.removeprefix(RESPONSE_ID_PREFIX)}{index:02x}"


def has_derived_form(item_id: object) -> bool:
    """Says whether an id looks like one that `derive_item_id` makes. OpenAI's look the same."""
    return isinstance(item_id, str) and _DERIVED_ID_PATTERN.fullmatch(item_id) is not None


def find_response_id(item_id: str) -> str | None:
    """Returns the id of the response from which an item's id is derived (`derive_item_id`), or None if the id has
    another form."""
    match = _DERIVED_ITEM_ID.fullmatch(item_id)
    return f"{RESPONSE_ID_PREFIX}{match[1]}" if match else None
