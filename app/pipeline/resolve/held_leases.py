"""The leases that a turn holds until it is over. Only an append holds leases."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

Entered = TypeVar("Entered")


class HeldLeases(AsyncExitStack):
    """A stack of lease contexts that knows whether it is empty. Most turns hold no lease, and unwinding an empty
    `AsyncExitStack` costs time, too."""

    def __init__(self) -> None:
        super().__init__()
        self.is_empty = True

    async def enter_async_context(self, cm: AbstractAsyncContextManager[Entered, bool | None]) -> Entered:
        self.is_empty = False
        return await super().enter_async_context(cm)

    def transfer(self) -> HeldLeases:
        """Moves all leases to a new stack, whose owner releases them."""
        transferred = self.pop_all()
        transferred.is_empty, self.is_empty = self.is_empty, True
        return transferred

    async def release(self) -> None:
        if not self.is_empty:
            # Set before the await, so that a second call during the release does nothing.
            self.is_empty = True
            await self.aclose()
