"""The contract for what all processes share under a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from app.conversation.api_keys import ApiKey


class IdempotencyKeyRecord(msgspec.Struct, frozen=True):
    """The state of a client's `Idempotency-Key`."""

    state: Literal["claimed", "running", "done", "differs"]
    """`claimed` by this call; `running` in another request; `done`: the answer is message `seq` of the conversation;
    `differs`: the key belongs to a request with another body.
    """
    conversation_id: str | None = None
    seq: int | None = None


class KeyStore(Protocol):
    """Keeps small values that all processes share: idempotency keys, API keys, server secrets, facts about models.
    Facts about a model are here because they belong to no conversation: their key is `provider/model`.

    Raises:
        StoreUnavailable: from every method, when the database cannot be reached or does not answer in time.
    """

    async def claim_idempotency_key(
        self, *, tenant: str, key: str, digest: bytes, holder: str, seconds: float, kept_seconds: float
    ) -> IdempotencyKeyRecord:
        """Claims an `Idempotency-Key` for a request whose body has this digest. The same holder renews its claim by
        claiming again.

        Args:
            seconds: the claim ends after this time unless it is completed or released.
            kept_seconds: a completed claim is deleted after this time.
        """

    async def complete_idempotency_key(
        self, *, tenant: str, key: str, holder: str, conversation_id: str, seq: int
    ) -> None:
        """Records the answer of the claimed request: message `seq` of the conversation."""

    async def release_idempotency_key(self, *, tenant: str, key: str, holder: str) -> None:
        """Releases the key of a request that got no answer, so that the next request can claim it."""

    async def purge_idempotency_keys(self) -> int:
        """Deletes expired idempotency keys. Returns how many."""

    async def add_api_key(self, key: ApiKey) -> None:
        """Stores an API key."""

    async def find_api_key(self, digest: str) -> ApiKey | None:
        """Returns the API key with this digest, valid or not."""

    async def list_api_keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        """Returns API keys, oldest first; without a tenant those of all tenants."""

    async def revoke_api_key(self, key_id: str) -> ApiKey | None:
        """Ends a key's validity now. Returns the key after the change, None if there is none. Revoking again changes
        nothing.
        """

    async def set_api_key_budget(self, key_id: str, budget_usd: float | None) -> ApiKey | None:
        """Changes what a key may spend in a month. Returns the key after the change, None if there is none."""

    async def ensure_server_secret(self, name: str, *, proposed: str) -> str:
        """Returns a secret that all processes share: the stored one; if there is none, `proposed` is stored and
        returned.
        """

    async def read_model_facts(self) -> dict[str, dict[str, Any]]:
        """Returns what the gateway learned about each `provider/model`: window, calibration seed."""

    async def merge_model_facts(self, *, model: str, facts: Mapping[str, Any]) -> None:
        """Merges facts into the stored facts of a `provider/model`."""
