"""Reads the top-level fields of a request's body, in any protocol. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import orjson

from app.conversation.identity import is_valid_conversation_id
from app.conversation.json_text import TOO_DEEP_MESSAGE, is_too_deep, may_be_too_deep
from app.conversation.names import check_name
from app.errors import InvalidRequest

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

T = TypeVar("T", bool, int, str, list[Any], dict[str, Any])
TYPE_WORDS: Final[Mapping[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    str: "a string",
    list: "an array",
    dict: "an object",
}
UNSUPPORTED: Final = "unsupported_parameter"
END_USER_FIELDS: Final = ("safety_identifier", "user")
"""OpenAI's fields for the end user of an application. The newer one comes first and wins."""
NAME_FIELDS: Final = (*END_USER_FIELDS, "prompt_cache_key", "previous_response_id")
"""Fields of both protocols that hold a name which the client chooses."""
_VALIDATION_ERROR: Final = re.compile(
    r"(?:Object missing required field `(?P<missing>\w+)`|(?P<said>.*?))(?: - at `\$(?P<path>.*)`)?$", re.DOTALL
)


def decode_body_fields(body: bytes) -> dict[str, bytes]:
    """Returns the JSON text of each top-level field of a body.

    Raises:
        InvalidRequest: the body is not a JSON object.
    """
    try:
        fields: dict[str, bytes] = _decode_object(body)  # type: ignore[assignment]  # msgspec.Raw is a view of the bytes
        if not body.isascii():
            # Raises UnicodeDecodeError. A message is checked where it turns out to be new.
            for name, raw in fields.items():
                if name != "messages":
                    str(raw, "utf-8")
        return fields
    except msgspec.ValidationError as error:
        raise InvalidRequest("The request body must be a JSON object.", code="invalid_type") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not body.strip():
            raise InvalidRequest("The request body is empty: send a JSON object.") from error
        raise InvalidRequest(f"The request body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidRequest("The request body is nested too deeply.", code="invalid_value") from error


def decode_field(raw_fields: Mapping[str, bytes], name: str) -> Any:
    """Returns a decoded top-level field of a request, or None if the request does not have it.

    Raises:
        InvalidRequest: the field has a number that is too large for a double, or is nested too deeply to be encoded
            again.
    """
    raw = raw_fields.get(name)
    if raw is None:
        return None
    text = bytes(raw)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"`{name}` is not valid JSON: {error}.", code="invalid_value", param=name) from error
    if may_be_too_deep(text) and is_too_deep(value):
        raise InvalidRequest(f"`{name}` {TOO_DEEP_MESSAGE}", code="invalid_value", param=name)
    return value


def decode_readable_fields(fields: Mapping[str, bytes], names: Iterable[str]) -> dict[str, Any]:
    """Returns decoded fields of a request, without those that only its provider can read: with a number that is too
    large, or nested too deeply. A field that the request does not have is None."""
    decoded: dict[str, Any] = {}
    for name in names:
        with suppress(InvalidRequest):
            decoded[name] = decode_field(fields, name)
    return decoded


def decode_typed_field(fields: Mapping[str, bytes], name: str, kind: type[T]) -> T | None:
    """Returns a decoded top-level field of a request; None if it is absent or null.

    Raises:
        InvalidRequest: the field has another type, or cannot be decoded (`decode_field`).
    """
    value = decode_field(fields, name) if name in fields else None
    if value is None:
        return None
    # JSON's booleans are no integers, Python's are.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise build_type_error(name, kind)
    return value


def build_type_error(param: str, kind: type) -> InvalidRequest:
    """Builds the error for a value of another type than its place must have."""
    return InvalidRequest(f"`{param}` must be {TYPE_WORDS[kind]}.", code="invalid_type", param=param)


def build_value_error(param: str, complaint: str, code: str = "invalid_value") -> InvalidRequest:
    """Builds the error for a value that cannot be taken; the complaint is read after its name."""
    return InvalidRequest(f"`{param}` {complaint}.", code=code, param=param)


def build_missing_error(param: str, hint: str | None = None) -> InvalidRequest:
    """Builds the error for a value that must be there."""
    message = f"Missing required parameter: '{param}'."
    return InvalidRequest(message, code="missing_required_parameter", param=param, hint=hint)


def split_validation_error(error: Exception) -> tuple[str, str | None, str | None]:
    """Returns what an error of msgspec says: the path within the value, such as `.content[0]`; the field that is
    missing there; and otherwise what is wrong."""
    found = _VALIDATION_ERROR.match(str(error))
    assert found is not None
    return found["path"] or "", found["missing"], found["said"]


def read_conversation_field(fields: Mapping[str, bytes]) -> str | None:
    """Returns the id in `conversation`, which is an id or an object with one; None if the request does not have it.

    Raises:
        InvalidRequest: it is no such id.
    """
    value = decode_field(fields, "conversation")
    if isinstance(value, dict):
        return check_conversation_id(value.get("id"), "conversation.id")
    return None if value is None else check_conversation_id(value, "conversation")


def check_conversation_id(value: object, param: str) -> str:
    """Returns a value that is the id of a conversation.

    Raises:
        InvalidRequest: it is none; the error names `param`.
    """
    if isinstance(value, str) and is_valid_conversation_id(value):
        return value
    raise InvalidRequest(
        f"{param} must be 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', ':' and '-'.",
        code="invalid_value",
        param=param,
    )


def check_request_names(fields: Mapping[str, bytes]) -> None:
    """Checks the fields of both protocols that hold names, and the keys of `metadata`. Values of other types are left
    to who reads them.

    Raises:
        InvalidRequest: a name is too long or has control characters.
    """
    for field in NAME_FIELDS:
        if field in fields and isinstance(name := decode_field(fields, field), str) and name:
            check_name(name, field)
    metadata = decode_field(fields, "metadata") if "metadata" in fields else None
    for key in metadata if isinstance(metadata, dict) else ():
        check_name(key, "metadata")


def encode_fields(fields: Mapping[str, bytes]) -> bytes:
    """Encodes fields, JSON text by name, as a JSON object."""
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(name), raw) for name, raw in fields.items()]) + b"}"


def remove_own_metadata(fields: dict[str, bytes], *, keeps_metadata: bool = True) -> dict[str, bytes]:
    """Returns the fields of a request without what of `metadata` is the gateway's."""
    if "metadata" not in fields:
        return fields
    others = {name: raw for name, raw in fields.items() if name != "metadata"}
    if not keeps_metadata:
        return others
    metadata = decode_field(fields, "metadata")
    if not isinstance(metadata, dict) or "conversation_id" not in metadata:
        return fields
    kept = {name: value for name, value in metadata.items() if name != "conversation_id"}
    return {name: orjson.dumps(kept) if name == "metadata" else raw for name, raw in fields.items()} if kept else others
