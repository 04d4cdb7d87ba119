"""Checks the headers of every request, on every path, before anything else reads them (decision 35).

- `Host`: a web page can point a name of its own at the gateway's address (DNS rebinding), and then read the answers of
  a gateway without keys. Its requests carry that name in `Host`.
- A header that decides who asks, or for what, must not be repeated: a proxy and the gateway might read different
  values.

Where no key is needed, a request that a page of another site sends is refused, too (decision 27).
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.edge.error_responses import build_error_response
from app.api.edge.headers import RawHeader
from app.api.edge.request_reader import BODY_HEADERS
from app.api.request_options import READ_HEADERS
from app.errors import GatewayError, HostNotAllowed, InsufficientPermissions, InvalidRequest
from app.observability.metric_families import MODEL_CALL_ENDPOINTS

REPEATABLE_HEADERS: Final = frozenset({"openai-beta", "traceparent", "tracestate", "baggage"})
"""Headers that the gateway reads and that may be repeated. A proxy may add a second `traceparent`, which is not the
client's fault; the request then has no parent trace."""
SINGLE_HEADERS: Final = frozenset(
    {
        *("host", "authorization", "api-key", "x-api-key", "content-type", "origin", "sec-fetch-site"),
        *(BODY_HEADERS | READ_HEADERS) - REPEATABLE_HEADERS,
    }
)
"""Headers that must not be repeated: they decide who asks, for what, or how the body is read."""
ORIGIN_HEADERS: Final = frozenset({"host", "origin", "sec-fetch-site"})
ALLOWED_HOSTS_HINT: Final = (
    "If it is meant to be used there, name the host in `auth.allowed_hosts`, or use `auth.mode: keys`."
)
ANY_HOST: Final = "*"
MAX_CACHED_HOSTS: Final = 256
MAX_CACHED_HOST_BYTES: Final = 300
PROBE_PATHS: Final = ("/healthz", "/readyz")
RESERVED_DOMAIN_SUFFIXES: Final = (".localhost", ".local", ".internal", ".test", ".home.arpa", ".svc")
"""Endings of names that nobody can register (RFC 6761, RFC 6762, RFC 8375, ICANN on `internal`), and `svc`, which
Kubernetes resolves inside of a cluster."""
MAX_SHOWN_CHARS: Final = 100
_HOST_PATTERN: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]{1,253}))(?::[0-9]{0,5})?")


class HostRules:
    """Decides by which host names the gateway may be reached.

    Args:
        allowed: names without ports. If there are any, no other names are served, only addresses and `localhost`. `*`
            serves any name.
        asks_for_key: every request needs an API key, which a page of another site does not have.
    """

    def __init__(self, allowed: Collection[str] = (), *, asks_for_key: bool = False) -> None:
        self._allowed_hosts = frozenset(name.lower() for name in allowed)
        self._serves_any = ANY_HOST in self._allowed_hosts or (asks_for_key and not self._allowed_hosts)

    def is_allowed(self, host: str) -> bool:
        """Returns whether a request with this `Host` is served."""
        # An empty `Host` comes from HTTP/1.0 clients only and never from a browser, against which this check is made.
        if self._serves_any or not host:
            return True
        match = _HOST_PATTERN.fullmatch(host.lower())
        if match is None:
            return False
        name = parse_host_name(host)
        if is_ip_address(name) or is_loopback(name) or name in self._allowed_hosts:
            return True
        return not self._allowed_hosts and ("." not in name or name.endswith(RESERVED_DOMAIN_SUFFIXES))


class HeaderCheckMiddleware:
    """Refuses a request whose headers are at fault. The headers of health probes are not checked: load balancers and
    kubelets send any `Host`, and the answers hold nothing secret.

    Args:
        hosts: decides whether a value of `Host` is served.
        single: headers that must not be repeated, beside `SINGLE_HEADERS`, in lower case.
    """

    def __init__(self, app: ASGIApp, hosts: HostRules, single: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = hosts
        self._single_headers = frozenset(name.encode("latin-1") for name in SINGLE_HEADERS.union(single))
        self._allowed_host_cache: set[bytes | None] = set()
        """Values of `Host` that are allowed: the check takes 30 µs. Refused values are not cached, so that an attacker
        cannot fill the cache."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = None if scope["type"] != "http" or scope["path"] in PROBE_PATHS else self.find_fault(scope["headers"])
        if fault is None:
            await self._app(scope, receive, send)
            return
        # A refused model call says, as all its answers do, what was done with its conversation.
        is_model_call = scope["path"] in MODEL_CALL_ENDPOINTS and scope["method"] == "POST"
        refusal = build_error_response(fault, scope, {"x-context-status": "bypassed"} if is_model_call else {})
        await refusal(scope, receive, send)

    def find_fault(self, headers: Sequence[RawHeader]) -> GatewayError | None:
        """Returns the error with which a request is refused; None if its headers are valid.

        Args:
            headers: pairs with lower-case names.
        """
        values = dict(headers)
        if len(values) < len(headers):
            counts = Counter(name for name, _ in headers)
            for name in counts:
                if counts[name] > 1 and name in self._single_headers:
                    return InvalidRequest(
                        f"The header {name.decode('latin-1')} is repeated in the request.",
                        code="invalid_value",
                        param=name.decode("latin-1"),
                        hint="Send it once; a proxy in front must replace it, not add another.",
                    )
        raw_host = values.get(b"host")
        if raw_host in self._allowed_host_cache:
            return None
        host = (raw_host or b"").decode("latin-1")
        if not self._hosts.is_allowed(host):
            return HostNotAllowed(
                f"The header Host names {host[:MAX_SHOWN_CHARS]!r}, and this gateway is not served under that name.",
                hint="To allow the name, add it to `auth.allowed_hosts`, without a port.",
            )
        if len(self._allowed_host_cache) < MAX_CACHED_HOSTS and len(host) <= MAX_CACHED_HOST_BYTES:
            self._allowed_host_cache.add(raw_host)
        return None


class BrowserOriginCheck:
    """Refuses requests that a page of another site sends in mode `open`, where no key is needed.

    Any web page can make its visitor's browser send requests to a gateway on the visitor's machine or network, though
    the page cannot read the answers. Mode `keys` needs no such check, because the page has no key. Pages that could
    read answers, by DNS rebinding, are refused by the name in `Host` (`HostRules`).

    Args:
        allowed_hosts: host names, without ports, whose pages may use the gateway.
    """

    def __init__(self, allowed_hosts: Collection[str] = ()) -> None:
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    def check_request(self, headers: Mapping[str, str], *, has_credential: bool) -> None:
        """Refuses a request that a page of another site sent.

        Args:
            headers: values by lower-case name.
            has_credential: the request has a credential. A browser sends its header to another site only with that
                site's CORS consent, which the gateway never gives.

        Raises:
            InsufficientPermissions: a page of another site sent the request.
        """
        origin = headers.get("origin")
        if origin is None or has_credential:
            return
        # Current browsers name the relation in `Sec-Fetch-Site`. Without the header, `Origin` and `Host` are compared.
        if headers.get("sec-fetch-site", "cross-site") != "cross-site":
            return
        # Other schemes belong to browser extensions and desktop programs. `null` is a sandboxed page of any site.
        scheme, _, host = origin.lower().partition("://")
        if scheme not in ("http", "https", "null") or host == headers.get("host", "").lower():
            return
        name = parse_host_name(host)
        if not (is_loopback(name) or name in self._allowed_hosts):
            raise InsufficientPermissions(
                "This request was sent by a page of another site, without a key.", hint=ALLOWED_HOSTS_HINT
            )


def parse_host_name(host: str) -> str:
    """Returns a host in lower case, without its port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].rstrip(".").lower()


def is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return is_ip_address(name) and ipaddress.ip_address(name).is_loopback
