"""Everything beside chat completions, as one FastAPI application. Imported after the start, by `assembly.worker`."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI

from app.api.chat_completions import ChatEndpoint
from app.api.edge.asgi_front import CHAT_PATH
from app.api.edge.error_handlers import install_error_handlers
from app.api.edge.request_body import BodyLimit
from app.api.edge.request_ids import RequestIds
from app.api.openapi import describe
from app.api.reference_page import reference_routes
from app.assembly.endpoints import routes_beside_chat
from app.assembly.engine import Engine
from app.assembly.telemetry import VERSION
from app.settings import Settings


def application_of(
    engine: Engine, settings: Settings, chat: ChatEndpoint, new_request_id: Callable[[], str]
) -> FastAPI:
    """The application, for an engine that is or will be open.

    Args:
        chat: what answers chat completions; here so that other methods of its path are told which one there is.
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
    document = application.openapi = describe(application)  # type: ignore[method-assign]  # how FastAPI wants it
    application.include_router(reference_routes(document))
    application.router.add_route(
        CHAT_PATH,
        chat,  # type: ignore[arg-type]  # an ASGI application, which is taken as well
        methods=["POST"],
        include_in_schema=False,
    )
    for routes in routes_beside_chat(engine, settings):
        application.include_router(routes)
    install_error_handlers(application, passes_on=not settings.uses_simulated_model)
    application.add_middleware(BodyLimit, limit_bytes=settings.server.body_limit_bytes)
    application.add_middleware(RequestIds, new_request_id=new_request_id)
    return application
