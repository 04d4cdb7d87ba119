"""Reads the model that a passed-through request names, or replaces it: in a JSON body, a form, the query or the path.
Pure."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec
import orjson
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from app.api.edge.auth import FALLBACK_MODEL_FIELDS
from app.conversation.names import check_name
from app.dialects.request_body import encode_fields
from app.errors import InvalidRequest

MAX_FORM_FIELDS: Final = 1000
"""The most fields of a form: each takes some microseconds to read, and a body has room for a million."""
FORM: Final = b"application/x-www-form-urlencoded"
MULTIPART: Final = b"multipart/form-data"
MAX_FIELD_NAME_BYTES: Final = 64
"""The longest escaped name of a field that may name a model: `fallbacks[]` with all characters escaped has 33 bytes."""
MAX_MODEL_BYTES: Final = 4096
MODEL_FIELD: Final = "model"
_MODEL: Final = MODEL_FIELD.encode()
_MODEL_FIELDS: Final = (_MODEL, *(name.encode() for name in FALLBACK_MODEL_FIELDS))
_BYTES_ENCODING: Final = "latin-1"
"""An encoding that decodes any bytes, and encodes them to the same bytes again."""
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
"""A multipart boundary (RFC 2046, 5.1.1)."""
_MODEL_IN_PATH = re.compile(r"^/(engines|deployments)/([^/]+)(?=/)")
"""`/engines/{model}/completions` is OpenAI's older form, `/deployments/{model}/…` is Azure's."""
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

# The parser's log quotes the bytes that it cannot parse; they may be a message's content.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class PassthroughRequest(msgspec.Struct, frozen=True):
    """The parts of a request that may name a model.

    Args:
        path: the path below `/v1`, with a leading slash and the client's escapes.
        query: the query without the question mark.
        content_type: the header's value; empty if the request has none.
    """

    path: str
    query: str
    content_type: str
    body: bytes


class _FormField(msgspec.Struct, frozen=True):
    """One field of a query or a form."""

    raw: bytes
    """The field as it was sent."""
    name: bytes = b""
    """The decoded name; empty if the field cannot name a model."""
    value: bytes = b""


class _MultipartPart(msgspec.Struct, frozen=True):
    """One part of a multipart form."""

    name: bytes
    filename: bytes | None
    content_type: bytes | None
    data: bytes


def read_body_fields(request: PassthroughRequest) -> Mapping[str, Any]:
    """Returns the fields of a body: a JSON object, whatever its content type is, or a form. A form's field that occurs
    several times, or has a name such as `models[]`, becomes a tuple. A body that cannot be parsed has no fields.

    Raises:
        InvalidRequest: a form has too many fields.
    """
    kind, options = parse_options_header(request.content_type)
    if kind == MULTIPART:
        parts = _parse_multipart(request.body, options)
        return _group_field_values([(part.name, part.data) for part in parts if part.filename is None])
    fields = _decode_json_object(request.body)
    if fields or kind != FORM:
        return fields
    return _group_field_values([(pair.name, pair.value) for pair in _parse_form(request.body) if pair.name])


def read_model_name(request: PassthroughRequest, fields: Mapping[str, Any]) -> str | None:
    """Returns the model that a request names; None if it names none.

    Args:
        fields: the result of `read_body_fields`.

    Raises:
        InvalidRequest: the request names several models, or one by a text that is no name.
    """
    pairs = _parse_form(request.query.encode())
    in_query = _group_field_values([(pair.name, pair.value) for pair in pairs if pair.name])
    values_by_place = [fields.get(MODEL_FIELD), in_query.get(MODEL_FIELD), _read_model_from_path(request.path)]
    values = [value for each in values_by_place for value in (each if isinstance(each, tuple) else [each])]
    names = list(dict.fromkeys(check_name(value, MODEL_FIELD) for value in values if isinstance(value, str) and value))
    if len(names) > 1:
        raise InvalidRequest(
            f"The request names several models: {', '.join(map(repr, names))}.",
            param=MODEL_FIELD,
            hint="Name one model, or the same model in the body, the query and the path.",
        )
    return names[0] if names else None


def replace_model_name(request: PassthroughRequest, model: str) -> PassthroughRequest:
    """Returns the request with `model` in each place where it names a model. A body that names a model is encoded anew,
    each JSON field once and each part of a form as it was parsed, so that no other parser finds another name in it."""
    path = _MODEL_IN_PATH.sub(lambda found: f"/{found[1]}/{quote(model, safe='')}", request.path)
    query = request.query
    pairs = _parse_form(query.encode())
    if any(pair.name == _MODEL for pair in pairs):
        query = _encode_form(pairs, model).decode()
    content_type, body = request.content_type, request.body
    kind, options = parse_options_header(content_type)
    if kind == MULTIPART:
        if parts := _parse_multipart(body, options):
            boundary = options[b"boundary"]
            content_type = f'multipart/form-data; boundary="{boundary.decode(_BYTES_ENCODING)}"'
            body = _encode_multipart(parts, boundary, model)
    elif fields := _decode_json_object(body):
        if MODEL_FIELD in fields:
            content_type = content_type if b"json" in kind else "application/json"
            body = encode_fields({**_decode_object(body), MODEL_FIELD: orjson.dumps(model)})
    elif kind == FORM:
        body = _encode_form(_parse_form(body), model)
    return PassthroughRequest(path, query, content_type, body)


def _decode_json_object(body: bytes) -> dict[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _read_model_from_path(path: str) -> str | None:
    match = _MODEL_IN_PATH.search(path)
    return unquote(match[2]) if match else None


def _parse_form(form: bytes) -> list[_FormField]:
    """Splits a query or a form into fields. Only fields that may name a model are decoded: to decode all takes half a
    second for each MB."""
    if form.count(b"&") >= MAX_FORM_FIELDS:
        raise _too_many_fields_error()
    pairs = []
    for raw in form.split(b"&"):
        name, _, value = raw.partition(b"=")
        if (
            len(name) <= MAX_FIELD_NAME_BYTES
            and (decoded := _decode_form_value(name)).removesuffix(b"[]") in _MODEL_FIELDS
        ):
            pairs.append(_FormField(raw, decoded, _decode_form_value(value)))
        else:
            pairs.append(_FormField(raw))
    return pairs


def _decode_form_value(value: bytes) -> bytes:
    if len(value) > MAX_MODEL_BYTES:
        raise InvalidRequest(
            f"The name of a model may have at most {MAX_MODEL_BYTES} bytes in a form.", param=MODEL_FIELD
        )
    return unquote_to_bytes(value.replace(b"+", b" "))


def _encode_form(pairs: Sequence[_FormField], model: str) -> bytes:
    """Joins the fields, with another model. A semicolon is escaped, because some parsers end a field there."""
    model_field = b"model=" + quote(model, safe="").encode()
    return b"&".join(model_field if pair.name == _MODEL else pair.raw.replace(b";", b"%3B") for pair in pairs)


def _parse_multipart(body: bytes, options: Mapping[bytes, bytes]) -> list[_MultipartPart]:
    """Returns the parts of a multipart form; none if it is not well-formed to its end."""
    boundary = options.get(b"boundary", b"")
    if _BOUNDARY.fullmatch(boundary.decode(_BYTES_ENCODING)) is None:
        return []
    # Guards against slow bodies: the parser takes half a microsecond for each blank after a boundary, and ten for each
    # line that begins like a boundary.
    if any(b"--" + boundary + blank in body for blank in (b" ", b"\t")):
        return []
    if body.count(b"--" + boundary) > MAX_FORM_FIELDS + 1:
        raise _too_many_fields_error()
    reading = _MultipartReader()
    try:
        reading.parse_body(body, boundary)
    except FormParserError:
        return []
    return reading.parts if reading.is_whole else []


class _MultipartReader:
    """Collects the parts of a form from the parser's callbacks."""

    def __init__(self) -> None:
        self.parts: list[_MultipartPart] = []
        self.is_whole = False
        self._headers: dict[bytes, bytes] = {}
        self._header = b""
        self._data: list[bytes] = []

    def parse_body(self, body: bytes, boundary: bytes) -> None:
        """Parses a whole body into `parts`.

        Raises:
            FormParserError: the body is not well-formed.
        """
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._start_part,
                "on_header_field": self._start_header,
                "on_header_value": self._add_header_value,
                "on_part_data": lambda data, start, end: self._data.append(data[start:end]),
                "on_part_end": self._finish_part,
                "on_end": self._finish_body,
            },
        )
        parser.write(body)

    def _start_part(self) -> None:
        self._headers, self._data = {}, []

    def _start_header(self, data: bytes, start: int, end: int) -> None:
        self._header = data[start:end].lower()

    def _add_header_value(self, data: bytes, start: int, end: int) -> None:
        self._headers[self._header] = data[start:end]

    def _finish_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name, filename = options.get(b"name", b""), options.get(b"filename") or None
        self.parts.append(_MultipartPart(name, filename, self._headers.get(b"content-type"), b"".join(self._data)))

    def _finish_body(self) -> None:
        self.is_whole = True


def _encode_multipart(parts: Sequence[_MultipartPart], boundary: bytes, model: str) -> bytes:
    pieces: list[bytes] = []
    for part in parts:
        head = b'content-disposition: form-data; name="%b"' % _escape_field_name(part.name)
        if part.filename is not None:
            head += b'; filename="%b"' % _escape_field_name(part.filename)
        if part.content_type is not None and part.content_type.decode(_BYTES_ENCODING).isprintable():
            head += b"\r\ncontent-type: %b" % part.content_type
        is_model = part.name == _MODEL and part.filename is None
        data = model.encode() if is_model else part.data
        pieces += [b"--%b\r\n%b\r\n\r\n" % (boundary, head), data, b"\r\n"]
    return b"".join([*pieces, b"--%b--\r\n" % boundary])


def _escape_field_name(value: bytes) -> bytes:
    """Escapes a quoted name as browsers do (WHATWG, multipart/form-data encoding algorithm). A backslash is escaped,
    too, because some parsers take it for the beginning of an escape."""
    for character in (b'"', b"\\", b"\r", b"\n"):
        value = value.replace(character, b"%%%02X" % ord(character))
    return value


def _group_field_values(pairs: Sequence[tuple[bytes, bytes]]) -> dict[str, str | tuple[str, ...]]:
    fields: dict[str, str | tuple[str, ...]] = {}
    for name, value in pairs:
        key, text = name.decode("utf-8", "replace"), value.decode("utf-8", "replace")
        if key in fields or key.endswith("[]"):
            key = key.removesuffix("[]")
            known = fields.get(key, ())
            fields[key] = (*((known,) if isinstance(known, str) else known), text)
        else:
            fields[key] = text
    return fields


def _too_many_fields_error() -> InvalidRequest:
    return InvalidRequest(f"A form may have at most {MAX_FORM_FIELDS} fields.", code="invalid_value")
