"""Builds the FastAPI application, which serves everything except model calls and probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import FastAPI

from app.api.answer_endpoint import AnswerEndpoint
from app.api.docs_page import build_docs_routes
from app.api.edge.error_handlers import install_error_handlers
from app.api.edge.headers import RequestIdMiddleware
from app.api.edge.request_reader import BodyLimitMiddleware
from app.api.openapi import make_openapi_builder
from app.assembly.endpoints import build_endpoint_routes
from app.assembly.engine import GatewayEngine
from app.assembly.telemetry import VERSION
from app.settings import Settings


def build_fastapi_application(
    engine: GatewayEngine,
    settings: Settings,
    model_calls: Mapping[str, AnswerEndpoint],
    new_request_id: Callable[[], str],
) -> FastAPI:
    """Builds the FastAPI application. The engine may be opened later.

    Args:
        model_calls: the endpoints of model calls, by path. Their requests do not pass through FastAPI; they have routes
            here so that a request with another method gets 405 with the allowed method.
        new_request_id: makes the id of a request, in visible ASCII.
    """
    application = FastAPI(
        title="Concertina",
        version=VERSION,
        # The operation ids of /openapi.json: the function's name alone, where FastAPI adds path and method.
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,  # FastAPI's pages load scripts from a CDN; `api.docs_page` serves its own
        redoc_url=None,
    )
    application.openapi = make_openapi_builder(application)  # type: ignore[method-assign]  # how FastAPI wants it
    application.include_router(build_docs_routes())
    for path, endpoint in model_calls.items():
        application.router.add_route(
            path,
            endpoint,  # type: ignore[arg-type]  # an ASGI application, which is taken as well
            methods=["POST"],
            include_in_schema=False,
        )
    for routes in build_endpoint_routes(engine, settings):
        application.include_router(routes)
    install_error_handlers(application, passes_on=not settings.uses_simulated_model)
    # The middleware that is added last is the outermost: the body limit's 413 gets a request id, too.
    application.add_middleware(
        BodyLimitMiddleware, limit_bytes=settings.server.body_limit_bytes, budget=engine.body_budget
    )
    application.add_middleware(RequestIdMiddleware, new_request_id=new_request_id)
    return application
