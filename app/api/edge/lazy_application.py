"""An application that takes long to make, and is not needed for the first answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send


class Later:
    """An ASGI application that is made in a thread, when it is first asked or told to be; whoever asks meanwhile waits.

    Args:
        make: called until it has succeeded.
    """

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._made: ASGIApp | None = None
        self._lock = threading.Lock()
        self._making: asyncio.Future[ASGIApp] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        application = self._made or await self.ready()
        await application(scope, receive, send)

    async def ready(self) -> ASGIApp:
        """The application, made without stopping the event loop."""
        if self._making is None or (self._making.done() and self._made is None):
            self._making = asyncio.get_running_loop().run_in_executor(None, self.made)
        return await asyncio.shield(self._making)

    def made(self) -> ASGIApp:
        """The application, made here and now if it is not there yet."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made
