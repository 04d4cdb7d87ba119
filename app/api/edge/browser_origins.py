"""Refuses requests that a page of another site sends in mode `open`, where no key is needed (decision 27).

Any web page can make its visitor's browser send requests to a gateway on the visitor's machine or network, though the
page cannot read the answers. Mode `keys` needs no such check, because the page has no key. Pages that could read
answers, by DNS rebinding, are refused by the name in `Host` (`header_checks`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from app.api.edge.header_checks import is_loopback, parse_host_name
from app.errors import InsufficientPermissions

ORIGIN_HEADERS: Final = frozenset({"host", "origin", "sec-fetch-site"})
ALLOWED_HOSTS_HINT: Final = (
    "If it is meant to be used there, name the host in `auth.allowed_hosts`, or use `auth.mode: keys`."
)


class BrowserOriginCheck:
    """Recognizes requests that a page of another site sent.

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
        if "origin" in headers and not has_credential:
            self._check_origin(headers["origin"].lower(), headers)

    def _check_origin(self, origin: str, headers: Mapping[str, str]) -> None:
        # Current browsers name the relation in `Sec-Fetch-Site`. Without the header, `Origin` and `Host` are compared.
        if headers.get("sec-fetch-site", "cross-site") != "cross-site":
            return
        # Other schemes belong to browser extensions and desktop programs. `null` is a sandboxed page of any site.
        scheme, _, host = origin.partition("://")
        if scheme not in ("http", "https", "null") or host == headers.get("host", "").lower():
            return
        name = parse_host_name(host)
        if not (is_loopback(name) or name in self._allowed_hosts):
            raise InsufficientPermissions(
                "This request was sent by a page of another site, without a key.", hint=ALLOWED_HOSTS_HINT
            )
