"""Everything beside chat completions, as one FastAPI application. Imported after the start, by `assembly.worker`."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

from app.api.chat_completions import ChatCompletionsEndpoint
from app.api.docs_page import build_reference_routes
from app.api.edge.asgi_front import CHAT_PATH
from app.api.edge.error_handlers import install_error_handlers
from app.api.edge.request_body import BodyLimitMiddleware
from app.api.edge.request_ids import RequestIdMiddleware
from app.api.openapi import build_openapi
from app.assembly.endpoints import build_routes
from app.assembly.engine import GatewayEngine
from app.assembly.telemetry import VERSION
from app.settings import Settings


def build_application(
    engine: GatewayEngine,
    settings: Settings,
    chat_completions: ChatCompletionsEndpoint,
    new_request_id: Callable[[], str],
) -> FastAPI:
    """The application, for an engine that is or will be open.

    Args:
        chat_completions: what answers chat completions; here so that other methods of its path are told which one
        there is.
        new_request_id: makes the id of a request; visible ASCII.
    """
    application = FastAPI(
        title="Concertina",
        version=VERSION,
        description="An OpenAI-compatible gateway whose conversations never outgrow the model's context window.",
        generate_unique_id_function=lambda route: route.name,
        docs_url=None,  # the framework's pages load scripts from elsewhere
        redoc_url=None,
    )
    document = application.openapi = build_openapi(application)  # type: ignore[method-assign]  # how FastAPI wants it
    application.include_router(build_reference_routes(document))
    application.router.add_route(
        CHAT_PATH,
        chat_completions,  # type: ignore[arg-type]  # an ASGI application, which is taken as well
        methods=["POST"],
        include_in_schema=False,
    )
    for routes in build_routes(engine, settings):
        application.include_router(routes)
    install_error_handlers(application, passes_on=not settings.uses_simulated_model)
    application.add_middleware(BodyLimitMiddleware, limit_bytes=settings.server.body_limit_bytes)
    application.add_middleware(RequestIdMiddleware, new_request_id=new_request_id)
    return application
