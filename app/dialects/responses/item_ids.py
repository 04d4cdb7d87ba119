"""Ids of output items that no provider has named. Pure."""

from __future__ import annotations

import re
from typing import Final

RESPONSE_ID_PREFIX: Final = "resp_"
_DERIVED_ID_PATTERN: Final = re.compile(r"[a-z]+_[0-9a-f]{50}")


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
