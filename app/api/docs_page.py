"""`/docs`: serves the files of `app/reference`, a page that shows `/openapi.json` with search and requests to try out.

Its script is a library of others (`tools/vendor_libraries.py`). It runs on the gateway's origin, as the console does.
The policy of the page therefore lets it load from and send to the gateway only (docs/decisions/0049).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.console import CONSOLE_HEADERS, INDEX_FILE, ConsoleFile, build_file_response, read_console_files

REFERENCE_FOLDER: Final = Path(__file__).parents[1] / "reference"
COMPRESSED_SUFFIX: Final = ".gz"
DOCS_HEADERS: Final = {
    **CONSOLE_HEADERS,
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types vue",
}
"""Headers of every file. The library sets styles in the page, which `style-src` must allow."""


def read_reference_files(folder: Path = REFERENCE_FOLDER) -> dict[str, ConsoleFile]:
    """Reads the files of the page, by their path. `scalar.js.gz` is served as `scalar.js`; it stays compressed, because
    every browser takes that."""
    files = read_console_files(folder)
    for path in folder.rglob(f"*{COMPRESSED_SUFFIX}"):
        name = str(path.relative_to(folder)).removesuffix(COMPRESSED_SUFFIX)
        files[name] = ConsoleFile.build(path.read_bytes(), Path(name).suffix, encoding="gzip")
    return files


def build_docs_routes() -> APIRouter:
    """Builds the routes of the page at `/docs` and of its files below."""
    routes = APIRouter(include_in_schema=False)
    files = read_reference_files()

    @routes.api_route("/docs", methods=["GET", "HEAD"])
    async def docs(request: Request) -> Response:
        return build_file_response(files[INDEX_FILE], request, DOCS_HEADERS)

    @routes.api_route("/docs/{path:path}", methods=["GET", "HEAD"])
    async def docs_file(request: Request, path: str) -> Response:
        # The page is not here: its links are relative to `/docs`.
        return build_file_response(files.get(path if path != INDEX_FILE else ""), request, DOCS_HEADERS)

    return routes
