"""Fetches the overview of a running gateway over HTTP. Errors say what to do."""

from __future__ import annotations

import http.client
import json
import ssl
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from app.commands import CommandError

TIMEOUT_SECONDS: Final = 5.0
CREATE_KEY_HINT: Final = "`concertina keys create --name operator --scopes admin` makes one"
REFUSAL_TEXTS: Final = {
    HTTPStatus.UNAUTHORIZED: f"needs a valid key: give --key, or set CONCERTINA_KEY; {CREATE_KEY_HINT}",
    HTTPStatus.FORBIDDEN: f"needs a key with scope admin, and this key does not have it; {CREATE_KEY_HINT}",
    HTTPStatus.NOT_FOUND: "has no overview: it is switched off (`telemetry.metrics`, `telemetry.overview`), "
    "or something else answers there",
}


class GatewayUnreachable(CommandError):
    """The gateway does not answer, or answers 5xx; a later attempt may succeed."""


class OverviewClient:
    """Asks one gateway.

    Args:
        url: such as `http://127.0.0.1:8000`, with or without `/v1` at its end.
        key: an API key with scope `admin`; None: the gateway needs no key.

    Raises:
        CommandError: the URL or the key is malformed.
    """

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            # `port` raises it if the port is no number, or too large. An empty host is refused below.
            self._host = ""
        if parts.scheme not in ("http", "https") or not self._host:
            raise CommandError(f"--url: expected such as http://127.0.0.1:8000, not {url!r}.")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise CommandError("the key contains characters that are not printable ASCII.")
        self._uses_tls = parts.scheme == "https"
        # Operators copy the base URL of their clients, which ends with /v1.
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"accept": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
        # Without user and password: the address is shown on the screen and in errors.
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._path}"

    def fetch_overview(self) -> dict[str, Any]:
        """Returns the answer of `GET /v1/admin/overview`.

        Raises:
            GatewayUnreachable: nothing answers, or the answer is 5xx.
            CommandError: the gateway refuses, or something else than a gateway answers.
        """
        status, body = self._send_get_request("/v1/admin/overview")
        if status in REFUSAL_TEXTS:
            raise CommandError(f"{self.address} {REFUSAL_TEXTS[HTTPStatus(status)]}.")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise GatewayUnreachable(f"{self.address} answers {status}: {_parse_error_message(body)}")
        answer = _parse_json_object(body)
        if status != HTTPStatus.OK or answer.get("object") != "overview":
            raise CommandError(
                f"the server at {self.address} (status {status}) is not Concertina; name another address with --url."
            )
        return answer

    def fetch_unreadiness_reason(self) -> str | None:
        """Returns why the gateway is not ready; None if it is.

        Raises:
            GatewayUnreachable: nothing answers.
        """
        status, body = self._send_get_request("/readyz")
        return _parse_error_message(body) if status >= HTTPStatus.INTERNAL_SERVER_ERROR else None

    def _send_get_request(self, path: str) -> tuple[int, bytes]:
        connection = self._open_connection()
        try:
            connection.request("GET", self._path + path, headers=self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            # A timeout or a TLS error is an OSError, too, and may have neither `strerror` nor text.
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise GatewayUnreachable(
                f"{self.address} cannot be reached: {reason}. Is a gateway running there (`concertina serve`)? "
                "If it runs elsewhere, name its address with --url."
            ) from error
        finally:
            connection.close()

    def _open_connection(self) -> http.client.HTTPConnection:
        if not self._uses_tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_SECONDS, context=context)


def _parse_json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _parse_error_message(body: bytes) -> str:
    error = _parse_json_object(body).get("error")
    return str(error.get("message")) if isinstance(error, dict) else "no reason is given"
