"""Items in /openapi.json: those that can be added as they are read, and what lists of them hold."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from pydantic import Field, WithJsonSchema

from app.api.resource_schemas import Described, Page
from app.conversations.items.item_parser import MAX_ITEMS, SHAPES

_NAMED: Final = "#/items/{name}"


def _inlined(schema: Any, named: dict[str, Any]) -> Any:
    """A schema with the parts that it refers to in it: the document has no place for them by themselves."""
    if isinstance(schema, list):
        return [_inlined(one, named) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(named[schema["$ref"].removeprefix("#/items/")], named)
    return {name: _inlined(value, named) for name, value in schema.items() if name != "discriminator"}


def _items_schema() -> dict[str, Any]:
    shapes, named = msgspec.json.schema_components(dict.fromkeys(SHAPES.values()), ref_template=_NAMED)
    return {"anyOf": [_inlined(shape, named) for shape in shapes]}


IncomingItem = Annotated[dict[str, Any], WithJsonSchema(_items_schema())]
"""One of the items that can be added; `conversations.items.item_parser` reads it."""


class ItemObject(Described):
    """An item as OpenAI's SDK reads it, by its type."""

    id: str
    type: str


class ItemPage(Page):
    data: list[ItemObject]


Items = Annotated[list[IncomingItem], Field(max_length=MAX_ITEMS)]
