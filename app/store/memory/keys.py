"""Idempotency keys, API keys, secrets and facts about models, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from app.conversation.api_keys import ApiKey
from app.store.contract.keys import IdempotencyKeyRecord


class _StoredIdempotencyKey:
    """A client's idempotency key, and the state of its request."""

    __slots__ = ("digest", "expires_at", "holder", "kept_seconds", "record")

    def __init__(self, digest: bytes, holder: str, expires_at: datetime, kept_seconds: float) -> None:
        self.digest = digest
        self.holder = holder
        self.expires_at = expires_at
        self.kept_seconds = kept_seconds
        self.record = IdempotencyKeyRecord("running")


class MemoryKeys:
    """The part of `Store` that is `KeyStore`."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._idempotency_keys: dict[tuple[str, str], _StoredIdempotencyKey] = {}
        self._api_keys: dict[str, ApiKey] = {}
        self._secrets: dict[str, str] = {}
        self._model_facts: dict[str, dict[str, Any]] = {}

    async def claim_idempotency_key(
        self, *, tenant: str, key: str, digest: bytes, holder: str, seconds: float, kept_seconds: float
    ) -> IdempotencyKeyRecord:
        now = self._clock()
        known = self._idempotency_keys.get((tenant, key))
        ours = self._find_running_claim(tenant, key, holder)
        # The holder renews its claim, but not with another body: that would be another request under the same key.
        renews = ours is not None and ours.digest == digest
        if known is not None and known.expires_at > now and not renews:
            return known.record if known.digest == digest else IdempotencyKeyRecord("differs")
        self._idempotency_keys[tenant, key] = _StoredIdempotencyKey(
            digest, holder, now + timedelta(seconds=seconds), kept_seconds
        )
        return IdempotencyKeyRecord("claimed")

    async def complete_idempotency_key(
        self, *, tenant: str, key: str, holder: str, conversation_id: str, seq: int
    ) -> None:
        known = self._find_running_claim(tenant, key, holder)
        if known is not None:
            known.record = IdempotencyKeyRecord("done", conversation_id, seq)
            known.expires_at = self._clock() + timedelta(seconds=known.kept_seconds)

    async def release_idempotency_key(self, *, tenant: str, key: str, holder: str) -> None:
        if self._find_running_claim(tenant, key, holder) is not None:
            del self._idempotency_keys[tenant, key]

    def _find_running_claim(self, tenant: str, key: str, holder: str) -> _StoredIdempotencyKey | None:
        known = self._idempotency_keys.get((tenant, key))
        is_ours = known is not None and known.holder == holder and known.record.state == "running"
        return known if is_ours else None

    async def purge_idempotency_keys(self) -> int:
        now = self._clock()
        over = [key for key, known in self._idempotency_keys.items() if known.expires_at <= now]
        for key in over:
            del self._idempotency_keys[key]
        return len(over)

    async def add_api_key(self, key: ApiKey) -> None:
        self._api_keys[key.id] = key

    async def find_api_key(self, digest: str) -> ApiKey | None:
        return next((key for key in self._api_keys.values() if key.digest == digest), None)

    async def list_api_keys(self, *, tenant: str | None = None) -> list[ApiKey]:
        found = [key for key in self._api_keys.values() if tenant in (None, key.tenant)]
        return sorted(found, key=lambda key: (key.created_at, key.id))

    async def revoke_api_key(self, key_id: str, *, tenant: str | None = None) -> ApiKey | None:
        key = self._api_keys.get(key_id)
        if key is None or tenant not in (None, key.tenant):
            return None
        if key.revoked_at is None:
            self._api_keys[key_id] = replace(key, revoked_at=self._clock())
        return self._api_keys[key_id]

    async def set_api_key_budget(self, key_id: str, budget_usd: float | None) -> ApiKey | None:
        if key_id not in self._api_keys:
            return None
        self._api_keys[key_id] = replace(self._api_keys[key_id], budget_usd=budget_usd)
        return self._api_keys[key_id]

    async def ensure_server_secret(self, name: str, *, proposed: str) -> str:
        return self._secrets.setdefault(name, proposed)

    async def read_model_facts(self) -> dict[str, dict[str, Any]]:
        return {model: dict(facts) for model, facts in self._model_facts.items()}

    async def merge_model_facts(self, *, model: str, facts: Mapping[str, Any]) -> None:
        self._model_facts[model] = {**self._model_facts.get(model, {}), **facts}
