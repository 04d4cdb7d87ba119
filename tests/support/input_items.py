"""Items of the Responses API as messages."""

from __future__ import annotations

from collections.abc import Sequence

from app.dialects.items.input_items import find_item_groups, join_item_groups


def group_input_items(raw_items: Sequence[bytes], *, may_begin_with_result: bool) -> list[bytes]:
    """The raw text of each message that items make up."""
    return join_item_groups(raw_items, find_item_groups(raw_items, may_begin_with_result=may_begin_with_result))
