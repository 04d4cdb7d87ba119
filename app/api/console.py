"""`/console`: serves the files of `app/console`, and `/console/session`, which tells a page what its caller may do.

The files need no credential, because they contain no data. The pages read data through the API, with a credential.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from app.api.edge.auth import Authenticator
from app.api.edge.error_responses import build_error_response
from app.api.edge.request_reader import read_headers
from app.api.resource_schemas import build_json_response
from app.errors import NotFound

CONSOLE_FOLDER: Final = Path(__file__).parents[1] / "console"
INDEX_FILE: Final = "index.html"
CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""The content type by suffix. Files with other suffixes are not served."""
COMPRESSED_ABOVE_BYTES: Final = 100_000
"""Larger files are sent compressed, because every browser takes that: the bundle and the library of charts."""
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Allows the gateway's own files only. Trusted types forbid to turn text into markup or a script, so that stored
messages cannot run in the page."""
CONSOLE_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every file, of the 404 for an unknown file, and of the session. Errors for a method or a key are built by
`app/api/edge` without them."""


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """One file of the console, ready to send."""

    body: bytes
    content_type: str
    etag: str
    encoding: str | None = None
    """`gzip` if the body is compressed."""

    @classmethod
    def build(cls, body: bytes, suffix: str, *, encoding: str | None = None) -> ConsoleFile:
        """Builds the file for a body; `suffix` is that of its name, such as `.js`."""
        return cls(body, CONTENT_TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"', encoding)


def read_console_files(folder: Path = CONSOLE_FOLDER) -> dict[str, ConsoleFile]:
    """Reads all files of the console, by their path below `folder`. They are read once, at the start: no request can
    name another file."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = PurePosixPath(path.relative_to(folder))
        is_ours = path.is_file() and not path.is_symlink() and not any(part.startswith(".") for part in name.parts)
        if path.suffix in CONTENT_TYPES and is_ours:
            files[str(name)] = ConsoleFile.build(path.read_bytes(), path.suffix)
    return files


def build_console_routes(
    files: Mapping[str, ConsoleFile], gateway_facts: Mapping[str, Any], auth: Authenticator
) -> APIRouter:
    """Builds the routes of the page, its files and `/console/session`.

    Args:
        files: the console's files by path.
        gateway_facts: the fields of the session that describe the gateway; the caller's scopes are added.
    """
    routes = APIRouter(include_in_schema=False)

    @routes.get("/console/session")
    async def session(request: Request) -> Response:
        headers = read_headers(request.scope)
        scopes = await auth.list_scopes(headers)
        is_operator = "admin" in scopes
        # The tenant in which an operator may write without writing into anybody's conversations.
        own = {"tenant": (await auth.authenticate(headers, "admin")).tenant} if is_operator else {}
        answer = build_json_response({**gateway_facts, "scopes": scopes, "operator": is_operator, **own})
        answer.headers.update({**CONSOLE_HEADERS, "cache-control": "no-store"})
        return answer

    @routes.get("/")
    async def root(request: Request) -> Response:
        """Redirects to the console, relative to the path before it."""
        return RedirectResponse("console/", status_code=307, headers=CONSOLE_HEADERS)

    @routes.api_route("/console", methods=["GET", "HEAD"])
    async def without_slash(request: Request) -> Response:
        """Redirects to `/console/`. The target is relative, so that it also works behind a proxy's path prefix."""
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"console/{query}", status_code=307, headers=CONSOLE_HEADERS)

    @routes.api_route("/console/{path:path}", methods=["GET", "HEAD"])
    async def file(request: Request, path: str) -> Response:
        return build_file_response(files.get(path or INDEX_FILE), request, CONSOLE_HEADERS)

    return routes


def build_file_response(file: ConsoleFile | None, request: Request, page_headers: Mapping[str, str]) -> Response:
    """Builds the response with a file: 304 if the client has it already, 404 for None.

    Args:
        page_headers: the headers of every file of the page.
    """
    if file is None:
        return build_error_response(NotFound(f"Unknown path {request.url.path!r}."), request.scope, page_headers)
    headers = {**page_headers, "cache-control": "no-cache", "etag": file.etag}
    if _parse_etags(read_headers(request.scope).get("if-none-match", "")) & {file.etag, "*"}:
        return Response(status_code=304, headers=headers)
    body, encoding = file.body, file.encoding
    if encoding is None and len(body) > COMPRESSED_ABOVE_BYTES:
        body, encoding = _compress(body), "gzip"
    if encoding is not None:
        headers["content-encoding"] = encoding
    return Response(body, media_type=None, headers={**headers, "content-type": file.content_type})


@functools.cache
def _compress(body: bytes) -> bytes:
    """Only when somebody looks: it takes some 20 ms, which a start of the gateway does not need."""
    return gzip.compress(body)


def _parse_etags(if_none_match: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
