"""Schemas of items in /openapi.json: the items that can be added, and lists of items."""

from __future__ import annotations

from typing import Annotated, Any, Final, get_args

import msgspec
from pydantic import Field, WithJsonSchema

from app.api.resource_schemas import Described
from app.conversations.items.item_parser import MAX_ITEMS
from app.dialects.items.input_items import MessageFields, UsualItem

_SCHEMA_REFERENCE: Final = "#/items/{name}"


def _inline_references(schema: Any, definitions: dict[str, Any]) -> Any:
    """Replaces references in a schema by what they refer to, because pydantic does not add msgspec's definitions to the
    document."""
    if isinstance(schema, list):
        return [_inline_references(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline_references(definitions[schema["$ref"].removeprefix("#/items/")], definitions)
    return {name: _inline_references(value, definitions) for name, value in schema.items() if name != "discriminator"}


def _build_items_schema() -> dict[str, Any]:
    shapes, definitions = msgspec.json.schema_components(
        [MessageFields, *get_args(UsualItem)], ref_template=_SCHEMA_REFERENCE
    )
    return {"anyOf": [_inline_references(shape, definitions) for shape in shapes]}


IncomingItem = Annotated[dict[str, Any], WithJsonSchema(_build_items_schema())]
"""An item that a client adds; `conversations.items.item_parser` parses it."""


class ItemObject(Described):
    """An item in OpenAI's form; its fields depend on its type."""

    id: str
    type: str


Items = Annotated[list[IncomingItem], Field(max_length=MAX_ITEMS)]
