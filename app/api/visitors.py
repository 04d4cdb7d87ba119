"""Which browsers' requests are taken where no key is asked for: those of the gateway's own pages, not of anybody's.

A web page may have its visitor's browser send requests to whatever that machine reaches, a gateway on 127.0.0.1 among
them, though it cannot read the answers. A page whose name is made to mean that address meanwhile (DNS rebinding) can.
Neither helps where a key is asked for: no such page knows one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Final

from app.errors import InsufficientPermissions

READ_HEADERS: Final = frozenset({"host", "origin", "sec-fetch-site"})
LOCAL_ENDINGS: Final = ("internal", "local", "localhost", "test")
"""Names that nobody can register (RFC 6761, RFC 6762, ICANN on `internal`)."""
MOST_KNOWN: Final = 256
REMEDY: Final = "If it is meant to be used there, name the host in `auth.allowed_hosts`, or use `auth.mode: keys`."


class Visitors:
    """Tells requests that a page of somebody else's may have caused.

    Args:
        is_local: the gateway listens on a loopback address: who comes by a public name was led here.
        allowed_hosts: names without ports by which it is reached, and whose pages may use it; with any, no others.
    """

    def __init__(self, *, is_local: bool, allowed_hosts: Collection[str] = ()) -> None:
        self._allowed = frozenset(name.lower() for name in allowed_hosts)
        self._asks_host = is_local or bool(self._allowed)
        self._known: set[str | None] = set()
        """Values of `Host` that were found to be in order."""

    def check(self, headers: Mapping[str, str], *, has_credential: bool) -> None:
        """
        Args:
            headers: lower-case names.
            has_credential: it shows one, which browsers send to another site with its consent only.

        Raises:
            InsufficientPermissions: the request came by a name that is not the gateway's, or from a page of another
                site.
        """
        host = headers.get("host")
        if host not in self._known:
            self._check_host(host)
        if "origin" in headers and not has_credential:
            self._check_origin(headers["origin"].lower(), headers)

    def _check_host(self, host: str | None) -> None:
        name = _name_of(host or "")
        if self._asks_host and name and not (name in self._allowed or _is_loopback(name) or self._may_be_ours(name)):
            raise InsufficientPermissions("This gateway is not known by the name in the header Host.", hint=REMEDY)
        if len(self._known) < MOST_KNOWN:
            self._known.add(host)

    def _may_be_ours(self, name: str) -> bool:
        """Whether no stranger can make this name mean this gateway."""
        return not self._allowed and (_is_address(name) or "." not in name or name.endswith(_ENDINGS))

    def _check_origin(self, origin: str, headers: Mapping[str, str]) -> None:
        if headers.get("sec-fetch-site", "cross-site") != "cross-site":
            return
        scheme, _, place = origin.partition("://")
        if scheme not in ("http", "https", "null") or place == headers.get("host", "").lower():
            return
        name = _name_of(place)
        if not (_is_loopback(name) or name in self._allowed):
            raise InsufficientPermissions(
                "This request was sent by a page of another site, without a key.", hint=REMEDY
            )


_ENDINGS: Final = tuple(f".{ending}" for ending in LOCAL_ENDINGS)


def listens_locally(host: str) -> bool:
    """Whether an address to listen on is reached from the same machine alone."""
    return _is_loopback(host.lower())


def _name_of(place: str) -> str:
    """A host without its port, lower case; brackets of an IPv6 address taken off."""
    if place.startswith("["):
        return place[1:].partition("]")[0].lower()
    return place.partition(":")[0].rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback
