"""Authenticates callers: turns a credential into a `Caller`. In mode `open` each credential is a tenant of its own; in
mode `keys` only the gateway's own API keys are accepted."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from app.api.edge.header_checks import ORIGIN_HEADERS, BrowserOriginCheck
from app.api.edge.request_reader import read_body, read_headers
from app.conversation.api_keys import (
    END_USER_SEPARATOR,
    OPERATOR_TENANT,
    SCOPES,
    ApiKey,
    Scope,
    hash_api_key,
    is_context_tenant,
)
from app.dialects.request_body import encode_fields
from app.errors import InsufficientPermissions, InvalidApiKey, InvalidRequest, StoreUnavailable
from app.observability.request_record import record_caller
from app.pipeline.turn.chat_request import Caller, ChatRequest
from app.store.contract.conversations import ConversationQuery, ConversationStore
from app.store.contract.keys import KeyStore

log = logging.getLogger(__name__)

ANONYMOUS: Final = "anonymous"
PEPPER: Final = "pepper"
PEPPER_BYTES: Final = 32
END_USER_WHITESPACE: Final = " \t"
"""Whitespace that is stripped from an end user's name. Other whitespace stays: a header's bytes have no known encoding,
so a character that looks like whitespace may be part of a name."""
UNKNOWN_KEY_CACHE_SECONDS: Final = 1.0
"""How long the answer "there is no such key" is cached, at most. It is short, so that a new key works soon."""
STALE_KEY_SECONDS: Final = 300.0
"""How long after its last read a key still works while the store is unavailable (decision 18)."""
RETRY_SECONDS: Final = 1.0
"""How long a stale key is used before the unavailable store is asked again."""
MAX_CACHED_KEYS: Final = 10_000
MAX_CACHED_CALLERS: Final = 10_000
MAX_CACHED_CREDENTIAL_CHARS: Final = 1024
CREDENTIAL_HEADERS: Final = ("authorization", "api-key", "x-api-key")
"""The headers for credentials of OpenAI, Azure and Anthropic, in this order."""
END_USER_FIELDS: Final = ("safety_identifier", "user")
"""OpenAI's names for the end user of an application, the newer first."""

TENANT_HEADER: Final = "x-concertina-tenant"
"""The header in which an operator names the tenant that a request is about."""
ALL_TENANTS: Final = "*"
_TENANT_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,200}")
FALLBACK_MODEL_FIELDS: Final = ("models", "fallbacks")
"""Fields in which some providers take further models, for the case that `model` fails."""

Value = TypeVar("Value")
ParseRequest = Callable[[bytes, Mapping[str, str], Caller, str], ChatRequest]
"""Parses a body, the headers by lower-case name, the caller and the request's id."""


@dataclass(frozen=True, slots=True)
class AuthRules:
    """The settings of section `auth`."""

    mode: Literal["open", "keys"] = "open"
    pepper: str | None = None
    """None: the first start makes a pepper and stores it, for all processes on the store."""
    cache_seconds: float = 5.0
    end_user_header: str | None = None
    """The header that names an application's end user, in lower case. None: all end users of an application share one
    tenant."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names whose web pages may use the gateway in mode `open`."""
    operator_token: str | None = None
    """The credential that gives every right for every tenant. None: there is none."""
    config_option: str = ""
    """What a hint adds to a command, such as ` --config my.yaml`."""


class Authenticator:
    """Finds the caller of a request and checks the caller's rights.

    Args:
        now: the time of day, in UTC.
        seconds: a monotonic clock.
        random_bytes: a cryptographically secure source.
    """

    def __init__(
        self,
        keys: KeyStore,
        rules: AuthRules,
        *,
        conversations: ConversationStore,
        now: Callable[[], datetime],
        seconds: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        max_cached_keys: int = MAX_CACHED_KEYS,
        max_cached_callers: int = MAX_CACHED_CALLERS,
    ) -> None:
        self._keys = keys
        self._conversations = conversations
        self._rules = rules
        self._pepper = rules.pepper or ""
        self._end_user_header = rules.end_user_header
        self._key_cache = ApiKeyCache(
            keys, cache_seconds=rules.cache_seconds, seconds=seconds, max_keys=max_cached_keys
        )
        self._now = now
        self._max_cached_callers = max_cached_callers
        self._caller_cache: dict[tuple[str | None, ...], Caller] = {}
        self._random_bytes = random_bytes
        self._origin_check = BrowserOriginCheck(rules.allowed_hosts)
        self._operator_token = rules.operator_token.encode() if rules.operator_token else None

    async def initialize(self) -> None:
        """Reads or makes the pepper, and logs a warning if mode `keys` has no key. Called once, when the store is open.

        Raises:
            StoreUnavailable: the store is unavailable.
        """
        if not self._rules.pepper:
            self._pepper = await self._keys.ensure_server_secret(PEPPER, proposed=await self._propose_pepper())
        if self._rules.mode == "keys" and not await self._keys.list_api_keys():
            log.warning(
                "there is no API key yet, so every request is refused: run `concertina keys create --name NAME%s`",
                self._rules.config_option,
            )

    async def _propose_pepper(self) -> str:
        """Returns a new pepper; an empty one if the store already has conversations from before there were peppers. A
        pepper would change their tenants, and their callers would no longer find them."""
        if await self._conversations.list_conversations(tenant=None, query=ConversationQuery(limit=1)):
            return ""
        return self._random_bytes(PEPPER_BYTES).hex()

    async def list_scopes(self, headers: Mapping[str, str]) -> list[Scope]:
        """Returns the scopes of a request's caller. An operator has all of them. In mode `open` others have every scope
        but `admin`.

        Raises:
            InvalidApiKey, InsufficientPermissions, InvalidRequest, StoreUnavailable: as in `authenticate`.
        """
        if self._has_operator_token(headers):
            return list(SCOPES)
        if self._rules.mode == "keys":
            scopes = (await self._authenticate_key(headers, None)).scopes
            return list(SCOPES if "admin" in scopes else scopes)
        await self.authenticate(headers, "chat")
        return [scope for scope in SCOPES if scope != "admin"]

    async def authenticate(self, headers: Mapping[str, str], required_scope: Scope) -> Caller:
        """Returns the caller of a request, and records who it is.

        Args:
            headers: values by lower-case name.
            required_scope: the scope that the request needs.

        Raises:
            InvalidApiKey: the key is missing or unknown, or it is no longer valid.
            InsufficientPermissions: the key lacks the scope; somebody else than an operator names a tenant; in mode
                `open`, a page of another site sent the request without a credential, or the scope is `admin`.
            InvalidRequest: two headers have different credentials, or the header names no tenant.
            StoreUnavailable: the key cannot be looked up.
        """
        caller = await self._find_caller(headers, required_scope)
        record_caller(caller.tenant, caller.api_key_name, caller.api_key_id)
        return caller

    async def _find_caller(self, headers: Mapping[str, str], required_scope: Scope) -> Caller:
        if self._has_operator_token(headers):
            _check_single_credential([headers.get(name) for name in CREDENTIAL_HEADERS])
            # Without `authorization`, so that no provider sees the token.
            return _choose_tenant(Caller(tenant=OPERATOR_TENANT), headers)
        names_tenant = TENANT_HEADER in headers
        if self._rules.mode == "keys":
            caller = await self._authenticate_key(headers, "admin" if names_tenant else required_scope)
            return _choose_tenant(caller, headers) if names_tenant else caller
        if names_tenant:
            raise InsufficientPermissions(
                "Only an operator may send the header `X-Concertina-Tenant`.",
                hint="Leave it out, or use the operator's token or a key with scope `admin`.",
            )
        if required_scope == "admin":
            raise InsufficientPermissions(
                "Only an operator may do this.",
                hint="Use the operator's token: the start line of `concertina serve` has it, or `auth.operator_token` "
                "in the settings. Or set `auth.mode: keys`, and use a key with scope `admin`.",
            )
        self._origin_check.check_request(headers, has_credential=any(map(headers.get, CREDENTIAL_HEADERS)))
        return self._authenticate_open(headers)

    def _has_operator_token(self, headers: Mapping[str, str]) -> bool:
        """Returns whether the credential is the operator's token. The time that this takes does not depend on how much
        of the token is right."""
        return self._operator_token is not None and hmac.compare_digest(
            _find_credential(headers).encode("utf-8", "surrogateescape"), self._operator_token
        )

    def require_scope(self, required_scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
        """Returns a FastAPI dependency that authenticates the caller and requires a scope. FastAPI resolves it before
        it validates the body."""

        async def of_request(request: Request) -> Caller:
            caller = await self.authenticate(read_headers(request.scope), required_scope)
            conversation_id = request.path_params.get("conversation_id")
            return caller if conversation_id is None else await self.enter_conversation(caller, conversation_id)

        return of_request

    async def enter_conversation(self, caller: Caller, conversation_id: str) -> Caller:
        """Returns the caller in the tenant of a conversation, if the caller sees all tenants.

        Args:
            conversation_id: the gateway's id. With a client's own id, or one that does not exist, the caller stays in
                its own tenant.

        Raises:
            StoreUnavailable: the conversation cannot be looked up.
        """
        if not caller.sees_all_tenants:
            return caller
        query = ConversationQuery(limit=1, descending=False, ancestor_id=conversation_id, excludes_context_tenants=True)
        family = await self._conversations.list_conversations(tenant=None, query=query)
        found = next((one for one in family if one.id == conversation_id), None)
        if found is None:
            return caller
        record_caller(found.tenant, caller.api_key_name, caller.api_key_id)
        return replace(caller, tenant=found.tenant)

    def require_operator(self) -> Callable[[Request], Awaitable[Caller]]:
        """Returns the dependency of routes about the gateway as a whole, which show no tenant's content. It requires
        the scope `admin` in mode `keys`. In mode `open` it lets every caller in, because no caller has this scope."""
        return self.require_scope("admin" if self._rules.mode == "keys" else "chat")

    def authorize_request(self, request: ChatRequest, headers: Mapping[str, str]) -> ChatRequest:
        """Checks that the key allows the models of a parsed request, and applies the end user that its body names.

        Raises:
            InsufficientPermissions: the key does not allow one of the models.
            InvalidRequest: the field for the end user is not a string.
        """
        if request.caller.allowed_models:
            check_model_allowed(request.caller, request.model)
            check_fallback_models_allowed(
                request.caller, {name: request.decode_field(name) for name in FALLBACK_MODEL_FIELDS}
            )
            # Encoded anew, each field once: of two `model` fields, the provider's parser might take the unchecked one.
            request = replace(request, body=encode_fields(request.raw_fields))
        # The header counts before the body: `authenticate` has applied it already.
        if self._end_user_header and not self._read_end_user_header(headers):
            end_user = next(filter(None, (_read_end_user(request, name) for name in END_USER_FIELDS)), None)
            if end_user is not None:
                return replace(request, caller=self._derive_end_user_caller(request.caller, end_user.encode()))
        return request

    @property
    def credential_headers(self) -> frozenset[str]:
        """The headers that authentication reads, in lower case."""
        read = frozenset({*CREDENTIAL_HEADERS, TENANT_HEADER, *filter(None, [self._end_user_header])})
        return read if self._rules.mode == "keys" else read | ORIGIN_HEADERS

    def is_own_header(self, name: str) -> bool:
        """Returns whether a header (lower case) is meant for the gateway only and must not reach a provider."""
        return name in (self._end_user_header, TENANT_HEADER)

    def evict_key(self, key: ApiKey) -> None:
        """Removes a changed key from this process's cache."""
        self._key_cache.evict_key(key.digest)

    def _authenticate_open(self, headers: Mapping[str, str]) -> Caller:
        """Builds the caller of mode `open` and caches it: its digest takes 40 µs."""
        authorization, api_key, x_api_key = map(headers.get, CREDENTIAL_HEADERS)
        end_user = self._read_end_user_header(headers)
        shown = (authorization, api_key, x_api_key, end_user.decode("latin-1"))
        if shown in self._caller_cache:
            return self._caller_cache[shown]
        _check_single_credential([authorization, api_key, x_api_key])
        if x_api_key and not _parse_authorization_token(authorization):
            authorization = f"Bearer {x_api_key.strip()}"  # the form that OpenAI-compatible providers take
        caller = build_open_caller(authorization, api_key, self._pepper)
        if end_user:
            caller = self._derive_end_user_caller(caller, end_user)
        # Long credentials are not cached: ten thousand of them could take all memory.
        if sum(len(part) for part in shown if part) <= MAX_CACHED_CREDENTIAL_CHARS:
            if len(self._caller_cache) >= self._max_cached_callers:
                del self._caller_cache[next(iter(self._caller_cache))]
            self._caller_cache[shown] = caller
        return caller

    def _read_end_user_header(self, headers: Mapping[str, str]) -> bytes:
        value = headers.get(self._end_user_header, "") if self._end_user_header else ""
        return value.strip(END_USER_WHITESPACE).encode("latin-1", "replace")

    async def _authenticate_key(self, headers: Mapping[str, str], required_scope: Scope | None) -> Caller:
        """Returns the holder of an API key. The caller has no `authorization`, so that no provider sees the key."""
        secret = _read_api_key(headers)
        key = await self._key_cache.find_key(hash_api_key(secret))
        if key is None:
            raise InvalidApiKey("Incorrect API key provided.", hint="Ask the operator of this gateway for a key.")
        if not key.is_valid_at(self._now()):
            how = "been revoked" if key.revoked_at is not None else "expired"
            raise InvalidApiKey(
                f"This API key ({key.id}) has {how}.", hint="Ask the operator of this gateway for another key."
            )
        if required_scope is not None and required_scope not in key.scopes:
            raise InsufficientPermissions(
                f"This API key ({key.id}) lacks the scope {required_scope!r}; it has {', '.join(key.scopes)}.",
                hint="Use a key that has it.",
            )
        caller = Caller(
            tenant=key.tenant,
            scopes=key.scopes,
            default_policy=key.policy,
            allowed_models=key.models,
            api_key_id=key.id,
            api_key_name=key.name,
            budget_usd=key.budget_usd,
            requests_per_minute=key.requests_per_minute,
            tokens_per_minute=key.tokens_per_minute,
            pass_through=key.pass_through,
            may_see_all_tenants="admin" in key.scopes,
        )
        end_user = self._read_end_user_header(headers)
        # Operators act for the application, whatever end user a shared client names.
        return self._derive_end_user_caller(caller, end_user) if end_user and required_scope != "admin" else caller

    def _derive_end_user_caller(self, caller: Caller, end_user: bytes) -> Caller:
        return replace(caller, tenant=derive_end_user_tenant(caller.tenant, end_user, self._pepper))


async def read_request(auth: Authenticator, request: Request, parse_request: ParseRequest) -> ChatRequest:
    """Reads, parses and authorizes a request for a model that no model answers.

    Raises:
        GatewayError: as in `authenticate`, `read_body`, `parse_request` and `authorize_request`.
    """
    headers = read_headers(request.scope)
    caller = await auth.authenticate(headers, "chat")
    body = await read_body(request.scope, request.receive, caller.tenant)
    return auth.authorize_request(parse_request(body, headers, caller, ""), headers)


class _CachedKey(msgspec.Struct, frozen=True):
    key: ApiKey
    fetched_at: float
    """When the key was last read from the store."""
    expires_at: float
    """When the key must be read again."""


class ApiKeyCache:
    """Caches API keys for some seconds, so that not every request reads its key from the store.

    Args:
        cache_seconds: how long a key is used before it is read again. A revocation by another process takes effect
            after this time.
        seconds: a monotonic clock.
        max_keys: how many keys are cached, and how many unknown digests.
    """

    def __init__(self, store: KeyStore, *, cache_seconds: float, seconds: Callable[[], float], max_keys: int) -> None:
        self._store = store
        self._cache_seconds = cache_seconds
        self._seconds = seconds
        self._max_keys = max_keys
        self._known: dict[str, _CachedKey] = {}
        self._unknown: dict[str, float] = {}
        """Unknown digests, with the time until they are looked up again. They are kept apart, so that guessed keys do
        not evict existing ones."""

    async def find_key(self, digest: str) -> ApiKey | None:
        """Returns the key with this digest, whether or not it is still valid; None if there is none.

        Raises:
            StoreUnavailable: the store is unavailable, and the key was not read in the last `STALE_KEY_SECONDS`.
        """
        now = self._seconds()
        known = self._known.get(digest)
        if known is not None and now < known.expires_at:
            return known.key
        if now < self._unknown.get(digest, now):
            return None
        try:
            key = await self._store.find_api_key(digest)
        except StoreUnavailable:
            if known is None or now - known.fetched_at > STALE_KEY_SECONDS:
                raise
            # Answers can be given without the store, so a key that was valid lately is still let in.
            self._put(self._known, digest, msgspec.structs.replace(known, expires_at=now + RETRY_SECONDS))
            return known.key
        self.evict_key(digest)
        if key is None:
            self._put(self._unknown, digest, now + min(UNKNOWN_KEY_CACHE_SECONDS, self._cache_seconds))
        else:
            self._put(self._known, digest, _CachedKey(key, fetched_at=now, expires_at=now + self._cache_seconds))
        return key

    def evict_key(self, digest: str) -> None:
        """Forgets a key, so that the next lookup reads it from the store."""
        self._known.pop(digest, None)
        self._unknown.pop(digest, None)

    def _put(self, values: dict[str, Value], digest: str, value: Value) -> None:
        """Stores a value. If the cache is full, the value that was stored first is evicted."""
        values.pop(digest, None)
        while len(values) >= self._max_keys:
            del values[next(iter(values))]
        values[digest] = value


def _choose_tenant(caller: Caller, headers: Mapping[str, str]) -> Caller:
    """Returns an operator with every scope, in the tenant that the header names.

    Raises:
        InvalidRequest: the header names no tenant.
    """
    named = headers.get(TENANT_HEADER)
    if named is None or named == ALL_TENANTS:
        sees_all = named is not None
        return replace(caller, scopes=SCOPES, sees_all_tenants=sees_all, may_see_all_tenants=not sees_all)
    if not _TENANT_PATTERN.fullmatch(named) or is_context_tenant(named):
        raise InvalidRequest(
            "The header `X-Concertina-Tenant` names no tenant.",
            hint="Send a tenant as `GET /v1/conversations` shows it to an operator, or `*` for all tenants.",
        )
    return replace(caller, tenant=named, scopes=SCOPES, may_see_all_tenants=True)


def build_open_caller(authorization: str | None, api_key: str | None, pepper: str) -> Caller:
    """Builds the caller of mode `open`. The credential goes to the provider and is never stored."""
    credential = authorization or api_key
    if not credential:
        return Caller(tenant=ANONYMOUS)
    return Caller(tenant=derive_tenant(credential, pepper), authorization=authorization or f"Bearer {api_key}")


def may_use_model(caller: Caller, model: str) -> bool:
    """Returns whether the caller's key allows a model."""
    # `[` is escaped: keys have the wildcards `*` and `?` only, and a model's name may contain brackets.
    return not caller.allowed_models or any(
        fnmatchcase(model, name.replace("[", "[[]")) for name in caller.allowed_models
    )


def check_model_allowed(caller: Caller, model: str) -> None:
    """Refuses a model that the caller's key does not allow.

    Raises:
        InsufficientPermissions: the caller's key does not allow this model.
    """
    if not may_use_model(caller, model):
        raise InsufficientPermissions(
            f"This API key ({caller.api_key_id}) does not allow the model {model!r}; it allows "
            f"{', '.join(caller.allowed_models)}.",
            param="model",
        )


def check_fallback_models_allowed(caller: Caller, fields: Mapping[str, Any]) -> None:
    """Refuses fallback models that the caller's key does not allow: the provider might call them.

    Raises:
        InsufficientPermissions: one of `FALLBACK_MODEL_FIELDS` names a model that the caller's key does not allow, or
            holds a value other than names.
    """
    if not caller.allowed_models:
        return
    for name in FALLBACK_MODEL_FIELDS:
        models = fields.get(name) or []
        for model in models if isinstance(models, list | tuple) else [models]:
            if not isinstance(model, str) or not may_use_model(caller, model):
                raise InsufficientPermissions(
                    f"This API key ({caller.api_key_id}) does not allow all models in `{name}`; it allows "
                    f"{', '.join(caller.allowed_models)}.",
                    param=name,
                )


def _find_credential(headers: Mapping[str, str]) -> str:
    """Returns the first credential of a request; "" if there is none."""
    authorization, *keys = (headers.get(name, "") for name in CREDENTIAL_HEADERS)
    is_bearer = authorization.lstrip()[:7].lower() == "bearer "
    return next(
        filter(None, (_parse_authorization_token(authorization) if is_bearer else "", *map(str.strip, keys))), ""
    )


def _read_api_key(headers: Mapping[str, str]) -> str:
    _check_single_credential([headers.get(name, "") for name in CREDENTIAL_HEADERS])
    secret = _find_credential(headers)
    if not secret:
        raise InvalidApiKey(
            "You did not provide an API key.",
            hint="Send it in a header: `Authorization: Bearer ck_…`, `x-api-key: ck_…` or `api-key: ck_…`.",
        )
    return secret


def _check_single_credential(credentials: Sequence[str | None]) -> None:
    """Refuses a request with two different credentials: the gateway and a proxy might choose different ones.

    Args:
        credentials: the values of `CREDENTIAL_HEADERS`.

    Raises:
        InvalidRequest: two of the credentials differ.
    """
    authorization, *keys = credentials
    if len({_parse_authorization_token(authorization), *((key or "").strip() for key in keys)} - {""}) > 1:
        raise InvalidRequest(
            "The headers `Authorization`, `api-key` and `x-api-key` contain different credentials.",
            code="conflicting_credentials",
            hint="Send only one of them.",
        )


def _parse_authorization_token(authorization: str | None) -> str:
    """Returns the credential in a value of `Authorization`: a bearer token, or the whole value for another scheme."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else (authorization or "").strip()


def _read_end_user(request: ChatRequest, name: str) -> str | None:
    value: Any = request.decode_field(name)
    if value is None or isinstance(value, str):
        return value.strip(END_USER_WHITESPACE) if value else None
    raise InvalidRequest(f"`{name}` must be a string.", code="invalid_type", param=name)


TENANT_HEX: Final = 32
_CREDENTIAL_PREFIX: Final = b"concertina/tenant\0"
_END_USER_PREFIX: Final = b"concertina/end-user\0"


def derive_tenant(credential: str, pepper: str) -> str:
    """Returns the tenant of a credential in mode `open`: 32 hex digits.

    Args:
        pepper: a secret of the server, so that nobody can check guessed credentials against a copy of the database.
            Empty: the plain digest, for databases that are older than peppers.
    """
    digest_input = _CREDENTIAL_PREFIX + credential.encode("utf-8", "surrogateescape")
    if not pepper:
        return hashlib.sha256(digest_input).hexdigest()[:TENANT_HEX]
    return hmac.digest(pepper.encode(), digest_input, "sha256").hex()[:TENANT_HEX]


def derive_end_user_tenant(tenant: str, end_user: bytes, pepper: str) -> str:
    """Returns the tenant of an application's end user: the application's tenant, a separator and 32 hex digits. The
    application's part stands in front, so that retention, a rule of the application's keys, finds the conversations."""
    digest_input = _END_USER_PREFIX + tenant.encode("utf-8", "surrogatepass") + b"\0" + end_user
    return f"{tenant}{END_USER_SEPARATOR}{hmac.digest(pepper.encode(), digest_input, 'sha256').hex()[:TENANT_HEX]}"
