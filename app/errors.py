"""Defines every error that a client can see. Only `api.edge.error_responses` turns these errors into HTTP.

GatewayError
├── InvalidRequest                 400  the request is malformed; `param` names the field
│   ├── PolicyNotFound             400
│   ├── InvalidCapsule             400  a compaction that the client kept cannot be used
│   │   └── ChangedCompaction      400  its readable text is not the one that it came with
│   ├── PreviousResponseNotFound   400  `previous_response_id` names no response that can be continued
│   ├── IdempotencyKeyReused       422  the key was used before, with another request
│   └── ContextLengthExceeded      400  instructions and newest message alone do not fit
├── InvalidApiKey                  401
├── ClientKeyWithheld              401  the provider needs a key, and must not get the client's
├── InsufficientPermissions        403
├── HostNotAllowed                 403  the request's host name is not one of the gateway's
├── NotFound                       404
│   ├── ConversationNotFound       404
│   ├── ItemNotFound               404
│   ├── SummaryNotFound            404
│   ├── ViewNotFound               404  no facts about the answer's view are stored
│   ├── CompletionNotFound         404
│   ├── ResponseNotFound           404
│   └── ModelNotFound              404
├── MethodNotAllowed               405
├── ConversationBusy               409  another request holds the conversation's lease
├── RevisionConflict               409  the object to change has a newer revision
├── ModelRequired                  409  no model is named, and the conversation has no answer that names one
├── IdempotencyKeyInUse            409  another request with this key is still being answered
├── RequestTooLarge                413
│   └── HeadTooLarge               431  the URL and headers are too long
├── RequestTimedOut                408  the request did not arrive in time
├── RequestAbandoned               499  the client disconnected while the request waited; for log and metrics only
├── RateLimitExceeded              429  the caller has reached its limit of running requests, or of those of a minute
├── BudgetExceeded                 429  the API key has spent its budget of this month
├── Overloaded                     503  the gateway has reached its limit of running requests
├── UpstreamUnavailable            502 / 503 / 504
├── UpstreamRefused                the upstream's own status and body, passed on
├── StoreUnavailable               503
│   └── StoreUnreadable            500  stored data was altered, or its encryption key is not configured
└── InternalError                  500
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class GatewayError(Exception):
    """An error in OpenAI's form: HTTP status, `type`, `code`, `param`, and a message that says what to change.

    Args:
        message: names the thing, what was expected and what to change; never a message's content, never a key.
        param: the request field at fault, such as ``messages[3].content``.
        hint: a sentence about the remedy, appended to the message.
        retry_after_seconds: sent as ``Retry-After``.
        code, status: in place of those of the class.

    Attributes:
        context_headers: headers about the conversation and the view, which the pipeline adds before it raises the
            error again.
        response_headers: headers of the response that only this kind of error has.
        retryable: the same request may succeed later.
    """

    status: int
    type: str = "invalid_request_error"
    code: str | None = None
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        retry_after_seconds: float | None = None,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(f"{message} {hint}" if hint else message)
        self.status = status or self.status
        self.code = code or self.code
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.context_headers: dict[str, str] = {}
        self.response_headers: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        """The error's name in metrics: its code, or its type if it has no code."""
        return self.code or self.type

    @property
    def message(self) -> str:
        return str(self.args[0])

    def build_body(self) -> dict[str, object]:
        """Builds the OpenAI error body: ``{"error": {"message", "type", "param", "code"}}``."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class InvalidRequest(GatewayError):
    status = 400


class PolicyNotFound(InvalidRequest):
    code = "policy_not_found"


class InvalidCapsule(InvalidRequest):
    code = "invalid_compaction_item"


class ChangedCompaction(InvalidCapsule):
    code = "compaction_content_mismatch"


class PreviousResponseNotFound(InvalidRequest):
    code = "previous_response_not_found"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class IdempotencyKeyReused(InvalidRequest):
    status = 422
    code = "idempotency_key_reused"


class InvalidApiKey(GatewayError):
    status = 401
    code = "invalid_api_key"


class ClientKeyWithheld(GatewayError):
    status = 401
    code = "client_key_withheld"


class InsufficientPermissions(GatewayError):
    status = 403
    code = "insufficient_permissions"


class HostNotAllowed(GatewayError):
    status = 403
    code = "host_not_allowed"


class NotFound(GatewayError):
    status = 404


class ConversationNotFound(NotFound):
    code = "conversation_not_found"


class ItemNotFound(NotFound):
    code = "item_not_found"


class ViewNotFound(NotFound):
    code = "view_not_found"


class CompletionNotFound(NotFound):
    code = "completion_not_found"


class ResponseNotFound(NotFound):
    code = "response_not_found"


class SummaryNotFound(NotFound):
    code = "summary_not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    status = 405

    def __init__(self, message: str, *, allowed: Iterable[str] = ()) -> None:
        """
        Args:
            message: as of `GatewayError`.
            allowed: the methods that the path has, sent as ``Allow``.
        """
        super().__init__(message)
        if methods := sorted(allowed):
            self.response_headers = {"allow": ", ".join(methods)}


class ConversationBusy(GatewayError):
    status = 409
    code = "conversation_busy"
    retryable = True


class IdempotencyKeyInUse(GatewayError):
    status = 409
    code = "idempotency_key_in_use"
    retryable = True


class RevisionConflict(GatewayError):
    status = 409
    code = "revision_conflict"


class ModelRequired(GatewayError):
    status = 409
    code = "model_required"


class RequestTooLarge(GatewayError):
    status = 413
    code = "request_too_large"


class HeadTooLarge(RequestTooLarge):
    status = 431
    code = "request_head_too_large"


class RequestTimedOut(GatewayError):
    status = 408
    code = "request_timeout"
    retryable = True


class RequestAbandoned(GatewayError):
    """The client disconnected while its request waited. Used in the log and metrics only; 499 is nginx's status for
    this."""

    status = 499


class RateLimitExceeded(GatewayError):
    status = 429
    type = "requests"
    code = "rate_limit_exceeded"
    retryable = True


class BudgetExceeded(GatewayError):
    status = 429
    type = "insufficient_quota"
    code = "budget_exceeded"


class Overloaded(GatewayError):
    status = 503
    type = "server_error"
    code = "overloaded"
    retryable = True


class UpstreamUnavailable(GatewayError):
    """The upstream could not be reached, did not answer in time, or sent an invalid answer: status 502, 503 or 504."""

    status = 502
    type = "server_error"
    code = "upstream_unavailable"
    retryable = True


class UpstreamRefused(GatewayError):
    """The upstream's own error. The client gets its status and body unchanged."""

    type = "server_error"
    name = "upstream_refused"

    def __init__(self, status: int, raw_body: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(f"The upstream answered with status {status}.", status=status)
        self.raw_body = raw_body
        self.headers = headers


class StoreUnavailable(GatewayError):
    status = 503
    type = "server_error"
    code = "store_unavailable"
    retryable = True


class StoreUnreadable(StoreUnavailable):
    """Stored data was altered, or is encrypted with a key that is not configured. A retry does not help."""

    status = 500
    code = "store_unreadable"
    retryable = False


class InternalError(GatewayError):
    status = 500
    type = "server_error"
    code = "internal_error"


def drop_tracebacks(error: BaseException) -> None:
    """Drops the tracebacks of an error and of the errors that led to it.

    A traceback keeps the frames that the error passed, and each frame keeps its variables: the request with its whole
    body. An object that refers to both an error and a request is then part of a reference cycle, which only the garbage
    collector frees (decision 29). Code that answers or keeps an error must call this function.
    """
    remaining = [error]
    while remaining:
        current = remaining.pop()
        remaining += [cause for cause in (current.__cause__, current.__context__) if cause is not None]
        current.__traceback__ = current.__cause__ = current.__context__ = None
