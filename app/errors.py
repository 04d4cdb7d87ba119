"""Every error a caller can see. Rooms raise these; only `api.edge.error_responses` turns them into HTTP.

GatewayError
├── InvalidRequest                 400  what the client sent cannot be used; `param` names the place
│   ├── PolicyNotFound             400
│   ├── IdempotencyKeyReused       422  the key came with another request before
│   └── ContextLengthExceeded      400  instructions + newest message alone do not fit
├── InvalidApiKey                  401
├── ClientKeyWithheld              401  a provider wants a key, and the client's is not meant for it
├── InsufficientPermissions        403
├── HostNotAllowed                 403  the request came by a name that is not the gateway's
├── NotFound                       404
│   ├── ConversationNotFound       404
│   ├── ItemNotFound               404
│   ├── SummaryNotFound            404
│   ├── ViewNotFound               404  nothing is known of what the model saw
│   ├── CompletionNotFound         404
│   └── ModelNotFound              404
├── MethodNotAllowed               405
├── ConversationBusy               409  another request holds the conversation's lease
├── RevisionConflict               409  what was to be changed is another revision by now
├── ModelRequired                  409  the conversation has no answer yet that would name a model
├── IdempotencyKeyInUse            409  the request with this key is still being answered elsewhere
├── RequestTooLarge                413
│   └── HeadTooLarge               431  of headers and address
├── RequestTimedOut                408  the request did not arrive in time
├── RequestAbandoned               499  its client left while it waited; nobody is told
├── RateLimitExceeded              429  the caller has as many requests running as it may
├── Overloaded                     503  the gateway has
├── UpstreamUnavailable            502 / 503 / 504
├── UpstreamRefused                the upstream's own status and body, passed on
├── StoreUnavailable               503
│   └── StoreUnreadable            500  what is stored is under a key that is not configured, or was altered
└── InternalError                  500
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class GatewayError(Exception):
    """An error with the OpenAI shape: HTTP status, `type`, `code`, `param`, and what to change.

    Args:
        message: names the thing, what was expected and what to change; never message content, never a key.
        param: the request field at fault, such as ``messages[3].content``.
        hint: one more sentence on the remedy, appended to the message.
        retry_after_seconds: sent as ``Retry-After``.

    `context_headers` are filled on the way out: what is known of the conversation and of the view by then.
    """

    status: int = 500
    type: str = "server_error"
    code: str | None = None
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{message} {hint}" if hint else message)
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.context_headers: dict[str, str] = {}

    @property
    def name(self) -> str:
        """For counting: the code, or the type where there is none."""
        return self.code or self.type

    @property
    def message(self) -> str:
        return str(self.args[0])

    def build_body(self) -> dict[str, object]:
        """The OpenAI error body: ``{"error": {"message", "type", "param", "code"}}``."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequest(GatewayError):
    status = 400
    type = "invalid_request_error"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, param=param, hint=hint)
        if code is not None:
            self.code = code


class PolicyNotFound(InvalidRequest):
    code = "policy_not_found"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class IdempotencyKeyReused(InvalidRequest):
    status = 422
    code = "idempotency_key_reused"


class InvalidApiKey(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class ClientKeyWithheld(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "client_key_withheld"


class InsufficientPermissions(GatewayError):
    status = 403
    type = "invalid_request_error"
    code = "insufficient_permissions"


class HostNotAllowed(GatewayError):
    status = 403
    type = "invalid_request_error"
    code = "host_not_allowed"


class NotFound(GatewayError):
    status = 404
    type = "invalid_request_error"


class ConversationNotFound(NotFound):
    code = "conversation_not_found"


class ItemNotFound(NotFound):
    code = "item_not_found"


class ViewNotFound(NotFound):
    code = "view_not_found"


class CompletionNotFound(NotFound):
    code = "completion_not_found"


class SummaryNotFound(NotFound):
    code = "summary_not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"

    def __init__(self, message: str, *, allowed: Iterable[str] = ()) -> None:
        """
        Args:
            allowed: the methods that there are, sent as ``Allow``.
        """
        super().__init__(message)
        self.allowed = sorted(allowed)


class ConversationBusy(GatewayError):
    status = 409
    type = "invalid_request_error"
    code = "conversation_busy"
    retryable = True


class IdempotencyKeyInUse(GatewayError):
    status = 409
    type = "invalid_request_error"
    code = "idempotency_key_in_use"
    retryable = True


class RevisionConflict(GatewayError):
    status = 409
    type = "invalid_request_error"
    code = "revision_conflict"


class ModelRequired(GatewayError):
    status = 409
    type = "invalid_request_error"
    code = "model_required"


class RequestTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class HeadTooLarge(RequestTooLarge):
    status = 431
    code = "request_head_too_large"


class RequestTimedOut(GatewayError):
    status = 408
    type = "invalid_request_error"
    code = "request_timeout"
    retryable = True


class RequestAbandoned(GatewayError):
    """Its client has left: for the log and the numbers alone. The status is nginx's for that."""

    status = 499
    type = "invalid_request_error"


class RateLimitExceeded(GatewayError):
    status = 429
    type = "requests"
    code = "rate_limit_exceeded"
    retryable = True


class Overloaded(GatewayError):
    status = 503
    type = "server_error"
    code = "overloaded"
    retryable = True


class UpstreamUnavailable(GatewayError):
    """The upstream could not be reached, did not answer in time, or answered nonsense: status 502, 503 or 504."""

    status = 502
    type = "server_error"
    code = "upstream_unavailable"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        hint: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint, retry_after_seconds=retry_after_seconds)
        self.status = status


class UpstreamRefused(GatewayError):
    """The upstream's own error answer, which reaches the client with its status and body unchanged."""

    name = "upstream_refused"

    def __init__(self, status: int, raw_body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(f"The upstream answered with status {status}.")
        self.status = status
        self.raw_body = raw_body
        self.headers = headers


class StoreUnavailable(GatewayError):
    status = 503
    type = "server_error"
    code = "store_unavailable"
    retryable = True


class StoreUnreadable(StoreUnavailable):
    """What is stored is encrypted with a key that is not configured, or was altered: trying again does not help."""

    status = 500
    code = "store_unreadable"
    retryable = False


class InternalError(GatewayError):
    code = "internal_error"


def drop_tracebacks(error: BaseException) -> None:
    """Drop the traceback of an error, and the errors that led to it with theirs.

    A traceback keeps the frames that the error passed, and each frame its variables: the request with its whole body.
    Whatever keeps an error beside a request is then part of a reference cycle, which only the garbage collector frees.
    To be called by whoever answers an error or keeps one.
    """
    remaining = [error]
    while remaining:
        current = remaining.pop()
        remaining += [cause for cause in (current.__cause__, current.__context__) if cause is not None]
        current.__traceback__ = current.__cause__ = current.__context__ = None
