"""What settings are made of: kinds of values, and the base of every section."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StringConstraints

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Share = Annotated[float, Field(gt=0, lt=1)]
"""A share of the context window."""
Tokens = Annotated[int, Field(gt=0)]
Chars = Annotated[int, Field(gt=0)]
Dollars = Annotated[float, Field(ge=0)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _strip_line_end(secret: SecretStr) -> SecretStr:
    """Without the line end that a secret's file ends with; one inside could not be sent in a header."""
    text = secret.get_secret_value().strip()
    if any(character < " " or character == "\x7f" for character in text):
        raise ValueError("expected a value on one line, without control characters")
    return SecretStr(text)


HeaderValue = Annotated[SecretStr, AfterValidator(_strip_line_end)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]

HostName = Annotated[str, StringConstraints(pattern=r"^(\*|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)$")]
"""Of a machine, without a port; or `*` for any."""


def strip_credentials(url: str) -> str:
    """A URL without user, password and query, to be shown. Greedy up to the last `@`: an unescaped `/` or `?` in a
    password must not show the rest of it."""
    return re.sub(r"://.*@", "://", url).partition("?")[0]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)
