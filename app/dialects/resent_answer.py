"""The JSON texts in which clients send an answer back: with all of its fields or some, in the order and the spelling of
their library. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import product
from typing import Any, Final

Fields = Mapping[str, Any]
SelectFields = Callable[[Fields], Fields]

ESSENTIAL_FIELDS: Final = ("role", "content", "tool_calls")
SDK_ORDER: Final = (
    *("id", "content", "refusal", "role", "annotations", "audio", "function_call", "function", "arguments", "name"),
    *("tool_calls", "type"),
)
"""The order in which OpenAI's Python SDK writes the fields of a message and of its calls."""


def render_resent_answer(raw: bytes, form: int) -> bytes | None:
    """Returns a stored answer in one of `FORMS`; None if it is not the JSON object of a chat message."""
    if not raw.startswith(b"{"):
        return None
    select, order, separators, is_ascii = FORMS[form]
    try:
        return json.dumps(order(select(json.loads(raw))), separators=separators, ensure_ascii=is_ascii).encode()
    except UnicodeEncodeError:  # an escape stands for half of a surrogate pair, which UTF-8 cannot have
        return None


def _keep_all(message: Fields) -> Fields:
    return message


def _add_null_refusal(message: Fields) -> Fields:
    """Puts back what OpenAI writes into every message. Fields with null are not stored."""
    head = {name: message[name] for name in ("role", "content") if name in message}
    return {**head, "refusal": None, **message}


def _keep_essential(message: Fields) -> Fields:
    return {name: message[name] for name in ESSENTIAL_FIELDS if name in message}


def _drop_empty(message: Fields) -> Fields:
    return {name: value for name, value in message.items() if value not in (None, [])}


def _order_fields(first: Iterable[str], message: Fields) -> Fields:
    known = {name: message[name] for name in first if name in message}
    return {**known, **message}


def _order_as_sdk(value: Any) -> Any:
    if isinstance(value, list):
        return [_order_as_sdk(one) for one in value]
    if isinstance(value, dict):
        return {name: _order_as_sdk(one) for name, one in _order_fields(SDK_ORDER, value).items()}
    return value


SELECTIONS: Final[tuple[SelectFields, ...]] = (_keep_essential, _keep_all, _add_null_refusal, _drop_empty)
ORDERS: Final[tuple[SelectFields, ...]] = (
    _keep_all,
    partial(_order_fields, ("role", "content", "tool_calls", "refusal", "annotations")),
    partial(_order_fields, SDK_ORDER),
    _order_as_sdk,
)
SEPARATORS: Final = ((",", ":"), (", ", ": "))
FORMS: Final = tuple(product(SELECTIONS, ORDERS, SEPARATORS, (False, True)))
"""Each form: the fields that are kept, their order, the separators, and whether letters other than ASCII are
escaped."""
