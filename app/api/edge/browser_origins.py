"""Which browsers' requests are taken where no key is asked for: those of the gateway's own pages, not of anybody's.

A web page may have its visitor's browser send requests to whatever that machine reaches, a gateway on 127.0.0.1 among
them, though it cannot read the answers. That does not help where a key is asked for: no such page knows one. Pages that
could read answers are refused by the name in `Host` (`request_heads`).
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
    """Tells requests that a page of somebody else's may have caused.

    Args:
        allowed_hosts: names without ports whose pages may use the gateway.
    """

    def __init__(self, allowed_hosts: Collection[str] = ()) -> None:
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    def check_request(self, headers: Mapping[str, str], *, has_credential: bool) -> None:
        """
        Args:
            headers: lower-case names.
            has_credential: it shows one, which browsers send to another site with its consent only.

        Raises:
            InsufficientPermissions: the request came from a page of another site.
        """
        if "origin" in headers and not has_credential:
            self._check_origin(headers["origin"].lower(), headers)

    def _check_origin(self, origin: str, headers: Mapping[str, str]) -> None:
        if headers.get("sec-fetch-site", "cross-site") != "cross-site":
            return
        scheme, _, place = origin.partition("://")
        if scheme not in ("http", "https", "null") or place == headers.get("host", "").lower():
            return
        name = parse_host_name(place)
        if not (is_loopback(name) or name in self._allowed_hosts):
            raise InsufficientPermissions(
                "This request was sent by a page of another site, without a key.", hint=ALLOWED_HOSTS_HINT
            )
