"""What the endpoints of stored things share: list objects, pages, metadata, JSON answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import Query
from pydantic import Field
from starlette.responses import Response

MAX_PAGE: Final = 100
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many there are on a page.")]
After = Annotated[str | None, Query(description="Id of the last one of the page before.")]
Order = Literal["asc", "desc"]
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ],
    Field(max_length=16),
]
"""OpenAI's: at most 16 pairs, names of 64 and values of 512 characters."""


def json_response(body: Any, *, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status_code=status, media_type="application/json")


def page_of(objects: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """OpenAI's list object."""
    return {
        "object": "list",
        "data": list(objects),
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }
