"""Every other `/v1/*` path of a configured provider, passed through untouched in both directions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api.allowed import METHODS, own_methods
from app.api.auth import Auth, check_model, check_other_models
from app.api.body import read_body
from app.api.leaving import has_left
from app.errors import InsufficientPermissions, MethodNotAllowed, NotFound
from app.exchange.admission import Admission
from app.exchange.body import rebuilt
from app.exchange.request import Caller
from app.upstream.base import Call, Provider, Reply, bind_client_key, find_only_keyless
from app.upstream.router import Router, check_client_key
from app.upstream.timed import passed_on

KEPT_BACK: Final = (
    *("api-key", "x-api-key", "x-chat-", "x-context-", "x-conversation-id"),
    *("x-forwarded-", "x-openwebui-", "x-real-ip"),
)
"""How request headers begin that are the gateway's or its own proxy's business. Those of the connection, and the
credential, are the provider client's."""
NOT_PASSED_ON: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "set-cookie"}
    | {"date", "server"}
)
"""Headers of the provider's own connection, and those that the server sets for ours."""
OWN_PATHS: Final = ("admin", "chat/completions", "context", "conversations", "models", "search")
"""Below `/v1`: what the gateway answers itself never goes round it."""
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def passthrough_routes(
    router: Router, providers: Sequence[Provider], auth: Auth, admission: Admission, *, body_limit_bytes: int
) -> APIRouter:
    """A catch-all below `/v1`; to be included last."""
    routes = APIRouter(tags=["pass-through"])

    @routes.api_route("/v1/{path:path}", methods=list(METHODS), summary="Pass through", include_in_schema=False)
    async def pass_through(request: Request, path: str) -> Response:
        _refuse_own_paths(path, request)
        headers = dict(request.headers)
        caller = await auth.caller(headers, "chat")
        body = await read_body(request.receive, headers, body_limit_bytes)
        provider, meant, body = _provider_for(router, providers, caller, body, headers.get("content-type", ""))
        if provider is None:
            raise NotFound(f"Unknown path {request.url.path!r}: no provider is configured that could know it.")
        client_key = bind_client_key(caller.authorization, meant)
        call = Call(
            path=_path_as_sent(request, path),
            method=request.method,
            body=body,
            authorization=None if client_key is None else client_key.show_to(provider),
            headers={
                name: value
                for name, value in headers.items()
                if not (name.startswith(KEPT_BACK) or auth.is_own_header(name))
            },
            query=request.url.query,
        )
        await admission.enter(caller.tenant, functools.partial(has_left, request.receive))
        give_back = functools.partial(admission.give_back, caller.tenant)
        try:
            reply = await passed_on(provider, call)
            await check_client_key(reply, provider, client_key)
        except BaseException:
            give_back()
            raise
        kept = {name: value for name, value in reply.headers.items() if name not in NOT_PASSED_ON}
        return _PassedOn(reply, give_back, headers=kept)

    return routes


def _refuse_own_paths(path: str, request: Request) -> None:
    below = "/".join(part for part in path.split("/") if part not in ("", "."))
    own = next((own for own in OWN_PATHS if below == own or below.startswith(f"{own}/")), None)
    if own is None:
        return
    if allowed := own_methods(request.app.routes, request.scope):
        raise MethodNotAllowed(f"{request.method} is not allowed for {request.url.path!r}.", allowed=allowed)
    raise NotFound(f"Unknown path {request.url.path!r}.", hint="See /docs for what there is.")


def _path_as_sent(request: Request, path: str) -> str:
    """The path below `/v1` with its escapes as the client wrote them: `%2F` within a name is not a slash."""
    raw = request.scope.get("raw_path")
    prefix, slash, below = raw.decode("latin-1").partition("/v1/") if raw else ("", "", "")
    return f"/{below}" if slash and not prefix else f"/{path}"


def _provider_for(
    router: Router, providers: Sequence[Provider], caller: Caller, body: bytes, content_type: str
) -> tuple[Provider | None, Provider | None, bytes]:
    """The provider to call, the provider that the client's key is meant for, and the body: both are the provider of the
    body's `model`, whose own name for it is put in. Without a model the first provider is called, and the key is meant
    for the only provider without one of its own.

    Raises:
        InsufficientPermissions: the caller may ask for certain models only, and this is none, or cannot be told.
    """
    fields = _object(body) if content_type.startswith("application/json") else {}
    model = fields.get("model")
    if not isinstance(model, str):
        if caller.models:
            raise InsufficientPermissions(
                f"This API key ({caller.key_id}) allows certain models only; this request names none in a JSON body."
            )
        return (providers[0] if providers else None), find_only_keyless(providers), body
    check_model(caller, model)
    check_other_models(caller, fields)
    deployment = router.resolve(model).deployments[0]
    provider = deployment.provider
    if deployment.upstream_model == model and not caller.models:
        return provider, provider, body
    return provider, provider, rebuilt({**_decode_object(body), "model": orjson.dumps(deployment.upstream_model)})


def _object(body: bytes) -> dict[str, object]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


class _PassedOn(StreamingResponse):
    """A provider's answer on its way to the client. Whatever becomes of that, it is closed and its place given back."""

    def __init__(self, reply: Reply, give_back: Callable[[], None], headers: Mapping[str, str]) -> None:
        super().__init__(reply.chunks(), status_code=reply.status, headers=headers)
        self._reply = reply
        self._give_back = give_back

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._give_back()
            await self._reply.aclose()
