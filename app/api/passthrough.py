"""Passes every other `/v1/*` path through to a configured provider, and its answer back, unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.edge.auth import Authenticator, check_fallback_models_allowed, check_model_allowed
from app.api.edge.error_responses import build_error_response
from app.api.edge.headers import encode_headers, select_client_headers, select_provider_headers
from app.api.edge.request_reader import cancel_on_disconnect, read_body, read_headers
from app.api.edge.unknown_paths import METHODS, find_gateway_methods, unknown_path_error
from app.api.passthrough_model import (
    MODEL_FIELD,
    PassthroughRequest,
    read_body_fields,
    read_model_name,
    replace_model_name,
)
from app.api.passthrough_paths import check_path_allowed, is_own_path, normalize_path
from app.api.passthrough_usage import AdmittedCall, AnswerUsageReader, admit_call
from app.errors import GatewayError, InsufficientPermissions, MethodNotAllowed, UpstreamUnavailable
from app.pipeline.admission.admission import Admission, CallLimits
from app.pipeline.turn.chat_request import Caller
from app.store.usage_recorder import UsageRecorder
from app.upstream.provider_contract import (
    PASSTHROUGH_LIMIT_BYTES,
    ClientKey,
    ModelDeployment,
    UpstreamProvider,
    UpstreamRequest,
    bind_client_key,
    find_only_keyless_provider,
)
from app.upstream.routing.measured_calls import send_passthrough
from app.upstream.routing.router import Router, raise_if_key_withheld

BYPASSED_HEADERS: Final = {"x-context-status": "bypassed"}
"""Headers of a passed-through model answer: the gateway shortens and stores nothing of its conversation."""
_CONVERSATION_PATH = re.compile(r"/(?:complete|messages|(?:.*/)?completions|threads/(?:[^/]+/)?runs)/?")
FOREIGN_FETCH_MODES: Final = ("navigate", "no-cors")
"""Values of `Sec-Fetch-Mode` with which a page of another site needs no CORS consent: a link, or an embedded
resource."""
FIRST_STATUS, LAST_STATUS = 200, 599
NO_CONTENT: Final = 204
NOT_MODIFIED: Final = 304


def build_passthrough_routes(
    router: Router,
    providers: Sequence[UpstreamProvider],
    auth: Authenticator,
    admission: Admission,
    limits: CallLimits,
    usage: UsageRecorder,
    *,
    allowed_paths: Mapping[str, Sequence[str]] | None,
    is_simulated: bool,
) -> APIRouter:
    """Builds the catch-all route below `/v1`. It must be included last: routes are tried in order.

    Args:
        allowed_paths: the paths that are passed through, by the provider's name; None: all of them.
        is_simulated: the only provider is the simulated model.
    """
    routes = APIRouter(tags=["pass-through"])

    @routes.api_route("/v1/{path:path}", methods=list(METHODS), include_in_schema=False)
    async def pass_through(request: Request, path: str) -> Response:
        """Pass through."""
        _refuse_own_paths(path, request, passes_on=not is_simulated)
        headers = read_headers(request.scope)
        own = BYPASSED_HEADERS if request.method == "POST" and _CONVERSATION_PATH.fullmatch(f"/{path}") else {}
        try:
            _refuse_cross_site_request(headers)
            caller = await auth.authenticate(headers, "chat")
            if is_simulated:
                raise unknown_path_error(request.url.path, passes_on=False)
            body = await read_body(request.scope, request.receive, caller.tenant)
            passthrough_request = PassthroughRequest(
                _read_raw_path(request, path), request.url.query, headers.get("content-type", ""), body
            )
            fields = read_body_fields(passthrough_request)
            deployment, passthrough_request = _resolve_deployment(router, caller, passthrough_request, fields)
            provider = deployment.provider if deployment is not None else next(iter(providers), None)
            if provider is None:
                raise unknown_path_error(request.url.path, passes_on=False)
            normalized_path = normalize_path(path)
            if allowed_paths is not None:
                check_path_allowed(caller, provider.name, normalized_path, allowed_paths)
            admitted_call = await admit_call(
                limits, usage, caller, request.method, normalized_path, deployment, fields, len(body)
            )
        except GatewayError as error:
            return build_error_response(error, request.scope, own)
        passed = {
            name: value for name, value in select_provider_headers(headers).items() if not auth.is_own_header(name)
        }
        if passthrough_request.content_type:
            passed["content-type"] = passthrough_request.content_type
        # Without a model nothing says for which provider the client's key is, so only a single one without a key of its
        # own gets it (decision 31).
        meant_for = find_only_keyless_provider(providers) if deployment is None else provider
        client_key = bind_client_key(caller.authorization, meant_for)
        call = UpstreamRequest(
            path=passthrough_request.path,
            method=request.method,
            body=passthrough_request.body,
            authorization=None if client_key is None else client_key.disclose_to_provider(provider),
            headers=passed,
            query=passthrough_request.query,
            answer_limit_bytes=PASSTHROUGH_LIMIT_BYTES,
        )
        # A client that leaves is noticed by `_PassthroughResponse`.
        slot = admission.hold_slot(caller.tenant, lambda: False)
        asks_model = deployment is not None
        return _PassthroughResponse(slot, provider, call, own, client_key, admitted_call, asks_model=asks_model)

    return routes


def _refuse_own_paths(path: str, request: Request, *, passes_on: bool) -> None:
    if not is_own_path(normalize_path(path)):
        return
    if allowed := find_gateway_methods(request.app.routes, request.scope):
        raise MethodNotAllowed(f"{request.method} is not allowed for {request.url.path!r}.", allowed=allowed)
    raise unknown_path_error(request.url.path, passes_on=passes_on)


def _read_raw_path(request: Request, path: str) -> str:
    """Returns the path below `/v1` with the client's escapes, because `%2F` within a name is not a slash."""
    raw = request.scope.get("raw_path")
    prefix, slash, raw_path = raw.decode("latin-1").partition("/v1/") if raw else ("", "", "")
    return f"/{raw_path}" if slash and not prefix else f"/{path}"


def _refuse_cross_site_request(headers: Mapping[str, str]) -> None:
    """Refuses a request that a browser sent for a page of another site.

    Raises:
        InsufficientPermissions: the page links to the gateway or embeds one of its paths.
    """
    if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") in FOREIGN_FETCH_MODES:
        raise InsufficientPermissions(
            "This request was sent by a page of another site.",
            hint="Open the address directly, or use a client that is not a browser.",
        )


def _resolve_deployment(
    router: Router, caller: Caller, request: PassthroughRequest, fields: Mapping[str, Any]
) -> tuple[ModelDeployment | None, PassthroughRequest]:
    """Returns the deployment of the model that a request names, None if it names none; and the request with the
    provider's own name for the model.

    Args:
        fields: the body's fields.

    Raises:
        InsufficientPermissions: the caller's key allows certain models only, and the body names none or another one.
        InvalidRequest: the request names several models, or is a form with too many fields.
        ModelNotFound: no provider has the model.
    """
    model = read_model_name(request, fields)
    if caller.allowed_models and (model is None or MODEL_FIELD not in fields):
        raise InsufficientPermissions(
            f"This API key ({caller.api_key_id}) allows certain models only; this request names none in its body."
        )
    if model is None:
        return None, request
    check_model_allowed(caller, model)
    check_fallback_models_allowed(caller, fields)
    deployment = router.resolve(model).deployments[0]
    # A caller with limited models gets a rewritten body even for the same name: the provider's parser might otherwise
    # take another of two `model` fields than the one that was checked.
    if deployment.upstream_model == model and not caller.allowed_models:
        return deployment, request
    return deployment, replace_model_name(request, deployment.upstream_model)


@dataclass(eq=False)
class _PassthroughResponse(Response):
    """Calls the provider and relays its answer to the client. A disconnect of the client cancels the call. The
    admission slot is released however the call ends.

    Args:
        admission_slot: a context manager that acquires the request's admission slot on entry and releases it on exit.
        gateway_headers: headers that the gateway adds to the answer.
        client_key: the client's key, even if the call does not send it.
        asks_model: the request names a model, so 204 (no content) is an error.
    """

    admission_slot: AbstractAsyncContextManager[None]
    provider: UpstreamProvider
    upstream_request: UpstreamRequest
    gateway_headers: Mapping[str, str]
    client_key: ClientKey | None
    admitted_call: AdmittedCall
    _: KW_ONLY
    asks_model: bool

    def __post_init__(self) -> None:
        super().__init__()
        self._has_response_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with cancel_on_disconnect(receive), self.admission_slot:
                await self._relay_response(send)
        except GatewayError as error:
            if self._has_response_started:
                raise  # the status is sent: `BrokenResponseMiddleware` ends the connection
            await build_error_response(error, scope, self.gateway_headers)(scope, receive, send)
        finally:
            self.admitted_call.finish()

    async def _relay_response(self, send: Send) -> None:
        reply = await send_passthrough(self.provider, self.upstream_request)
        usage_reader = AnswerUsageReader(reply.headers.get("content-type", ""))
        is_answer = 200 <= reply.status < 300
        try:
            raise_if_key_withheld(reply.status, self.provider, self.client_key)
            self._check_reply_status(reply.status)
            client_headers = select_client_headers(reply.headers)
            if reply.status == NO_CONTENT:
                client_headers.pop("content-length", None)  # RFC 9110, 8.6: a 204 must not have one
            headers = encode_headers({**client_headers, **self.gateway_headers, **self.admitted_call.headers})
            self._has_response_started = True
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for piece in reply.iter_bytes():
                usage_reader.feed(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            if is_answer:
                self.admitted_call.record(usage_reader.find_usage())
            await reply.aclose()

    def _check_reply_status(self, status: int) -> None:
        """Refuses an answer whose status no client can use.

        Raises:
            UpstreamUnavailable: the status is unknown, a redirect, 304, or 204 in answer to a call of a model.
        """
        problem = f"Provider {self.provider.name!r} answered with status {status}"
        if not FIRST_STATUS <= status <= LAST_STATUS:
            raise UpstreamUnavailable(f"{problem}, which HTTP does not know.")
        if status == NOT_MODIFIED:
            raise UpstreamUnavailable(f"{problem} (not modified), although the request had no condition.")
        if 300 <= status < 400:
            raise UpstreamUnavailable(
                f"{problem}, a redirect. Redirects are not followed.",
                hint=f"Check `providers.{self.provider.name}.base_url`.",
            )
        if status == NO_CONTENT and self.asks_model:
            raise UpstreamUnavailable(f"{problem} (no content) where a model was asked for an answer.")
