"""What a turn holds until it is over: an append's leases, and mostly nothing."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

Entered = TypeVar("Entered")


class HeldLeases(AsyncExitStack):
    """A stack of contexts that knows whether there is anything in it, since to unwind an empty one costs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.is_empty = True

    async def enter_async_context(self, cm: AbstractAsyncContextManager[Entered, bool | None]) -> Entered:
        self.is_empty = False
        return await super().enter_async_context(cm)

    def transfer(self) -> HeldLeases:
        """All of it, for whoever lets go of it from now on."""
        transferred = self.pop_all()
        transferred.is_empty, self.is_empty = self.is_empty, True
        return transferred

    async def release(self) -> None:
        if not self.is_empty:
            self.is_empty = True
            await self.aclose()
