"""What a turn holds until it is over: an append's leases, and mostly nothing."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

Entered = TypeVar("Entered")


class Held(AsyncExitStack):
    """A stack of contexts that knows whether there is anything in it, since to unwind an empty one costs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.is_empty = True

    async def enter_async_context(self, cm: AbstractAsyncContextManager[Entered, bool | None]) -> Entered:
        self.is_empty = False
        return await super().enter_async_context(cm)

    def handed_on(self) -> Held:
        """All of it, for whoever lets go of it from now on."""
        held = self.pop_all()
        held.is_empty, self.is_empty = self.is_empty, True
        return held

    async def let_go(self) -> None:
        if not self.is_empty:
            self.is_empty = True
            await self.aclose()
