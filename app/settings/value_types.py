"""The types of single settings, and the base class of every section."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StringConstraints

Seconds = Annotated[float, Field(gt=0, le=86_400)]
"""A duration, at most one day."""
Share = Annotated[float, Field(gt=0, lt=1)]
"""A share of the context window."""
Tokens = Annotated[int, Field(gt=0)]
Dollars = Annotated[float, Field(ge=0)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""A name that the operator chooses."""
Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _parse_header_value(secret: SecretStr) -> SecretStr:
    """Returns a secret without surrounding whitespace, such as the line end of a secret's file.

    Raises:
        ValueError: the secret has a line end or another control character inside, which no header can carry.
    """
    text = secret.get_secret_value().strip()
    if any(character < " " or character == "\x7f" for character in text):
        raise ValueError("expected a value on one line, without control characters")
    return SecretStr(text)


def _refuse_placeholder(key: SecretStr) -> SecretStr:
    """Returns a key that is one.

    Raises:
        ValueError: the key has a character that keys do not have, as examples do: `sk-…`.
    """
    foreign = next((character for character in key.get_secret_value() if not character.isascii()), None)
    if foreign is not None:
        raise ValueError(f"contains {foreign!r}, which is no ASCII character: is it a placeholder?")
    return key


HeaderValue = Annotated[SecretStr, AfterValidator(_parse_header_value)]
KeyValue = Annotated[HeaderValue, AfterValidator(_refuse_placeholder)]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]

HostName = Annotated[str, StringConstraints(pattern=r"^(\*|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)$")]
"""The name of a host, without a port; `*` stands for every name."""


SourceKind = Literal["default", "file", "environment", "command line"]


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """Where a value came from. `place` is a file and line, a variable or an option; None for a default.
    `empty_variable` is the variable whose `${NAME}` left the value empty, because the variable is unset or empty.
    """

    source: SourceKind
    place: str | None = None
    empty_variable: str | None = None


def strip_credentials(url: str) -> str:
    """Returns a URL without user, password and query, for output."""
    # Greedy up to the last `@`: a password may contain an unescaped `/` or `?`, and its rest must not be shown.
    return re.sub(r"://.*@", "://", url).partition("?")[0]


class Section(BaseModel):
    """The base of every section: frozen, without unknown fields, and without values in error messages, since values may
    be secrets.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)
