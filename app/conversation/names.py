"""The rule for names that come from outside: of models, tools, end users, responses and policies, and keys of metadata.

A name becomes a key of caches, queues and tables, and a text in errors. So it is short, and has no character that a
terminal obeys or a database refuses.
"""

from __future__ import annotations

import re
from typing import Final

from app.errors import InvalidRequest

MAX_NAME_CHARS: Final = 256
NAME_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f]*$"
"""Matches texts without control characters, for schemas. Pydantic's strings have no surrogates."""
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def is_valid_name(name: str, max_chars: int = MAX_NAME_CHARS) -> bool:
    """Returns whether a text is a name: 1 to `max_chars` characters, no control characters, no lone surrogates."""
    return 0 < len(name) <= max_chars and _CONTROL_CHARACTER.search(name) is None


def check_name(name: str, param: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Returns a name that a client chose.

    Raises:
        InvalidRequest: the text is no name; the error names `param`.
    """
    if not is_valid_name(name, max_chars):
        raise InvalidRequest(
            f"`{param}` must have 1 to {max_chars} characters, and no control characters.",
            code="invalid_value",
            param=param,
        )
    return name
