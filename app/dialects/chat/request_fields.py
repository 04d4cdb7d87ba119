"""Fields of a chat completion request that the gateway sets itself, in clients' requests and in its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import orjson

OUTPUT_LIMIT_FIELDS: Final = ("max_completion_tokens", "max_tokens")
_NON_REASONING_MODELS: Final = re.compile(r"chatgpt-4o|gpt-[34]")
"""How the names of OpenAI's other models begin. They refuse requests for encrypted reasoning: "Encrypted content is not
supported with this model". Models with other names are not OpenAI's."""


def is_non_reasoning_model(upstream_model: str) -> bool:
    """Returns whether the name is that of an OpenAI model that does not reason."""
    return _NON_REASONING_MODELS.match(upstream_model.rpartition("/")[2]) is not None


def ask_for_usage(decode_field: Callable[[str], Any]) -> dict[str, bytes]:
    """Builds the field by which a stream ends with a chunk of the usage.

    Args:
        decode_field: returns a decoded field of the request by its name.
    """
    return {"stream_options": orjson.dumps({**(decode_field("stream_options") or {}), "include_usage": True})}


def lower_output_limit(decode_field: Callable[[str], Any], limit: int) -> dict[str, bytes]:
    """Builds the fields of the answer's limit: those above `limit`, lowered; `max_tokens` if the client set none."""
    values = {name: value for name in OUTPUT_LIMIT_FIELDS if (value := decode_field(name)) is not None}
    # Some servers read 0 or a negative limit as "no limit".
    too_high = [name for name, value in values.items() if value > limit or value <= 0]
    return dict.fromkeys(too_high if values else ["max_tokens"], b"%d" % limit)
