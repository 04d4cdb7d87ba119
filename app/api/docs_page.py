"""`/docs`: renders the OpenAPI document as one HTML page that loads nothing and runs no script. (Swagger UI would load
its script from a CDN, with the rights of the console's origin.)"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import HTMLResponse

STYLE: Final = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:auto;padding:1rem}"
    "code,pre{font-family:ui-monospace,monospace}pre{overflow:auto;font-size:13px}summary{cursor:pointer}"
    "h2{margin-top:2.5rem;text-transform:capitalize}details{border-top:1px solid #8884;padding:.4rem 0}"
    "summary b{display:inline-block;min-width:4.5rem}details details{margin-left:1rem;border:0}"
)
PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
METHODS: Final = ("get", "post", "put", "patch", "delete")
OTHER_TAG: Final = "other"


def build_docs_routes(document: Callable[[], Mapping[str, Any]]) -> APIRouter:
    """Builds the route `GET /docs`. The page is rendered with the first request and then kept.

    Args:
        document: returns the OpenAPI document.
    """
    routes = APIRouter(include_in_schema=False)
    rendered_pages: list[str] = []

    @routes.get("/docs")
    async def docs() -> HTMLResponse:
        if not rendered_pages:
            rendered_pages.append(render_docs_page(document()))
        return HTMLResponse(rendered_pages[0], headers=PAGE_HEADERS)

    return routes


def render_docs_page(document: Mapping[str, Any]) -> str:
    """Renders an OpenAPI document as HTML, with its operations grouped by their first tag."""
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method in METHODS:
            if method in operations:
                operation = operations[method]
                tag = (operation.get("tags") or [OTHER_TAG])[0]
                by_tag.setdefault(tag, []).append("".join(_render_operation(method, path, operation)))
    schemas = document.get("components", {}).get("schemas", {})
    title = f"{_escape_html(info['title'])} {_escape_html(info['version'])}"
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><h1>{title}</h1>',
        f"<p>{_escape_html(info.get('description', ''))} For programs: ",
        '<a href="openapi.json">openapi.json</a>.</p>',
        *(f"<h2>{_escape_html(tag)}</h2>{''.join(told)}" for tag, told in by_tag.items()),
        "<h2>schemas</h2>",
        *(_render_details(name, schema) for name, schema in sorted(schemas.items())),
        "</body></html>",
    ]
    return "".join(parts)


def _render_operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<details><summary><b>{method.upper()}</b> <code>{_escape_html(path)}</code> "
    yield _escape_html(operation.get("summary", ""))
    yield f"</summary><p>{_escape_html(operation.get('description', ''))}</p>"
    if parameters := operation.get("parameters"):
        yield "<ul>"
        for parameter in parameters:
            required = ", required" if parameter.get("required") else ""
            yield f"<li><code>{_escape_html(parameter['name'])}</code> ({_escape_html(parameter['in'])}{required}) "
            yield _escape_html(parameter.get("description", ""))
        yield "</ul>"
    if "requestBody" in operation:
        yield _render_details("request body", operation["requestBody"].get("content", {}))
    for status, answer in operation.get("responses", {}).items():
        yield _render_details(f"{status} {answer.get('description', '')}", answer.get("content", {}))
    yield "</details>"


def _render_details(title: str, value: object) -> str:
    escaped_json = _escape_html(json.dumps(value, indent=2, ensure_ascii=False))
    return f"<details><summary>{_escape_html(title)}</summary><pre>{escaped_json}</pre></details>"


def _escape_html(value: object) -> str:
    return html.escape(str(value), quote=True)
