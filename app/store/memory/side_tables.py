"""The tables beside logs, in memory: stored completions, idempotency keys, API keys, secrets, leases, facts about
models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from app.conversation.api_keys import ApiKey
from app.conversation.conversation_types import StoredCompletion
from app.store.contract.conversations import CompletionQuery
from app.store.contract.keys import IdempotencyKeyRecord
from app.store.contract.leases import Lease, LeaseLost
from app.store.lineage import ErasurePlan


class _StoredIdempotencyKey:
    """A client's idempotency key, and the state of its request."""

    __slots__ = ("digest", "expires_at", "holder", "kept_seconds", "record")

    def __init__(self, digest: bytes, holder: str, expires_at: datetime, kept_seconds: float) -> None:
        self.digest = digest
        self.holder = holder
        self.expires_at = expires_at
        self.kept_seconds = kept_seconds
        self.record = IdempotencyKeyRecord("running")


class MemorySideTables:
    """The part of `Store` that does not touch logs."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._completions: dict[tuple[str, str], StoredCompletion] = {}
        self._idempotency_keys: dict[tuple[str, str], _StoredIdempotencyKey] = {}
        self._api_keys: dict[str, ApiKey] = {}
        self._secrets: dict[str, str] = {}

    async def save_completion(self, completion: StoredCompletion) -> None:
        self._completions[completion.tenant, completion.id] = completion

    async def list_completions(self, *, tenant: str, query: CompletionQuery) -> list[StoredCompletion]:
        found = [
            completion
            for completion in self._completions.values()
            if completion.tenant == tenant
            and query.model in (None, completion.model)
            and query.metadata.items() <= completion.metadata.items()
            and (
                query.after is None
                or _is_after_cursor((completion.created_at, completion.id), query.after, query.descending)
            )
        ]
        found.sort(key=lambda completion: (completion.created_at, completion.id), reverse=query.descending)
        return found[: query.limit]

    async def find_completion(self, *, tenant: str, completion_id: str) -> StoredCompletion | None:
        return self._completions.get((tenant, completion_id))

    async def replace_completion_metadata(
        self, *, tenant: str, completion_id: str, metadata: Mapping[str, str]
    ) -> bool:
        completion = self._completions.get((tenant, completion_id))
        if completion is not None:
            self._completions[tenant, completion_id] = replace(completion, metadata=metadata)
        return completion is not None

    async def delete_completion(self, *, tenant: str, completion_id: str) -> bool:
        return self._completions.pop((tenant, completion_id), None) is not None

    def _move_or_delete_completions(self, root: str, conversation_id: str, plan: ErasurePlan) -> None:
        """Moves completions of an erased conversation to its heir with the messages that the heir takes over, and
        deletes the others.
        """
        for key, completion in list(self._completions.items()):
            if (completion.root, completion.conversation_id) != (root, conversation_id):
                continue
            if plan.heir is not None and completion.seq <= plan.kept_through:
                self._completions[key] = replace(completion, conversation_id=plan.heir)
            else:
                del self._completions[key]

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

    async def ensure_server_secret(self, name: str, *, proposed: str) -> str:
        return self._secrets.setdefault(name, proposed)


def _is_after_cursor(sort_key: tuple[datetime, str], after: tuple[datetime, str], descending: bool) -> bool:
    return sort_key < after if descending else sort_key > after


class MemoryLeases:
    """The part of `Store` that coordinates processes: leases, and facts about models."""

    def __init__(self, *, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._leases: dict[tuple[str, str], tuple[Lease, datetime]] = {}
        self._model_facts: dict[str, dict[str, Any]] = {}

    async def claim_lease(self, *, root: str, key: str, holder: str, seconds: float) -> Lease | None:
        now = self._clock()
        current_lease, expires_at = self._leases.get((root, key), (None, now))
        if current_lease is not None and current_lease.holder != holder and expires_at > now:
            return None
        # Microseconds since 1970, and more than the stored token: tokens grow even though releasing deletes the lease.
        token = int(now.timestamp() * 1_000_000)
        lease = Lease(root, key, holder, token if current_lease is None else max(current_lease.token + 1, token))
        self._leases[root, key] = (lease, now + timedelta(seconds=seconds))
        return lease

    async def renew_leases(self, leases: Sequence[Lease], seconds: float) -> list[Lease]:
        expires_at = self._clock() + timedelta(seconds=seconds)
        lost = []
        for lease in leases:
            if self._is_lease_held(lease):
                self._leases[lease.root, lease.key] = (lease, expires_at)
            else:
                lost.append(lease)
        return lost

    async def release_lease(self, lease: Lease) -> None:
        if self._is_lease_held(lease):
            del self._leases[lease.root, lease.key]

    def _is_lease_held(self, lease: Lease) -> bool:
        return (lease.root, lease.key) in self._leases and self._leases[lease.root, lease.key][0] == lease

    def _require_lease(self, fence: Lease, now: datetime) -> None:
        if not self._is_lease_held(fence) or self._leases[fence.root, fence.key][1] <= now:
            raise LeaseLost

    def _drop_leases(self, root: str, prefixes: str | tuple[str, ...]) -> None:
        for lease_key in [
            lease_key for lease_key in self._leases if lease_key[0] == root and lease_key[1].startswith(prefixes)
        ]:
            del self._leases[lease_key]

    async def read_model_facts(self) -> dict[str, dict[str, Any]]:
        return {model: dict(facts) for model, facts in self._model_facts.items()}

    async def merge_model_facts(self, *, model: str, facts: Mapping[str, Any]) -> None:
        self._model_facts[model] = {**self._model_facts.get(model, {}), **facts}
