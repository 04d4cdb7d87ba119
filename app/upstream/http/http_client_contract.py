"""What calls to providers are made of, and the errors that they end with. Errors name the provider and never an
address.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from app.errors import UpstreamUnavailable

DRAIN_TIMEOUT_SECONDS: Final = 0.1
"""How long to wait after `[DONE]` for the end of the response, so that its connection can be used again."""
CERTIFICATE_NOT_YET_VALID: Final = 9
CERTIFICATE_EXPIRED: Final = 10
CERTIFICATE_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21})
"""No chain of certificates leads to a trusted root; 18 and 19: the chain ends in a self-signed certificate."""
CERTIFICATE_FOR_OTHER_HOST: Final = frozenset({62, 64})
"""OpenSSL's error numbers for certificates: `X509_V_ERR_…` in `x509_vfy.h`."""


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """Time limits for a provider, in seconds; None is for ever.

    `first_byte_seconds` is from the request to the first byte of the answer's body, `between_bytes_seconds` from one
    piece to the next, `total_seconds` for the whole call.
    """

    connect_seconds: float | None = 5.0
    first_byte_seconds: float | None = 600.0
    between_bytes_seconds: float | None = 300.0
    total_seconds: float | None = None


class RequestHead(msgspec.Struct, frozen=True):
    """A checked request without its body: no value in it can end a header line."""

    method: str
    target: str
    """Path and query, percent-encoded."""
    headers: Mapping[str, str]
    """Lower-case names; without `content-length` and other headers that frame a body. A character is a byte."""


async def drain_stream(pieces: AsyncIterator[bytes]) -> None:
    """Reads the rest of a response whose last event has come, for at most `DRAIN_TIMEOUT_SECONDS`."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_SECONDS):
            async for _ in pieces:
                pass
    except TimeoutError:
        return


def unreachable_error(provider_name: str, error: OSError, *, is_proxy: bool = False) -> UpstreamUnavailable:
    """Returns the error for a provider, or its proxy, that cannot be connected to. Of the cause only its number is
    told: its text may hold an address.
    """
    hint = None
    if isinstance(error, ssl.SSLCertVerificationError):
        reason, hint = _explain_certificate_error(provider_name, error)
    elif isinstance(error, ssl.SSLError):
        reason = f"TLS could not be set up ({error.reason or type(error).__name__})"
        hint = f"Check the scheme and the port of providers.{provider_name}.base_url."
    elif isinstance(error, socket.gaierror):
        reason = "its name could not be resolved"
    else:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__
    subject = f"The proxy of provider {provider_name!r}" if is_proxy else f"Provider {provider_name!r}"
    return UpstreamUnavailable(f"{subject} could not be reached: {reason}.", hint=hint)


def _explain_certificate_error(provider_name: str, error: ssl.SSLCertVerificationError) -> tuple[str, str | None]:
    """Returns what is wrong with a server's certificate, and a hint."""
    code = error.verify_code
    if code in CERTIFICATE_UNTRUSTED:
        trust = (
            f"providers.{provider_name}.ca_file, or for all providers SSL_CERT_FILE, names the certificates to trust."
        )
        return f"its certificate is not trusted ({error.verify_message})", trust
    if code == CERTIFICATE_EXPIRED:
        return "its certificate has expired", "Renew the certificate, or set the clock of the gateway's machine."
    if code == CERTIFICATE_NOT_YET_VALID:
        return "its certificate is not valid yet", "Set the clock of the gateway's machine."
    if code in CERTIFICATE_FOR_OTHER_HOST:
        return "its certificate is for another name", f"The host of providers.{provider_name}.base_url must be in it."
    return f"its certificate is not accepted ({error.verify_message})", None


def call_failed_error(provider_name: str, reason: str) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"The call to provider {provider_name!r} failed: {reason}.")


def incomplete_answer_error(provider_name: str) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"The answer of provider {provider_name!r} broke off.")


def silence_timeout_error(provider_name: str) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"Provider {provider_name!r} stopped sending in the middle of its answer.", status=504)
