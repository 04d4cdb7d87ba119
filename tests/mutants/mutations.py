"""The table: one line each that users depend on, how it is broken, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GUARDS: Final = "tests/store/test_guards.py"


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line of the project, broken.

    `old` is text that occurs exactly once in `file`; text of the next line may stand in it to make it so. `tests` are
    ids of tests as pytest takes them. `loss` says what users would lose.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    loss: str


STORE: Final = (
    Mutation(
        "find-of-strangers",
        "app/store/statements.py",
        'c.id = m.conversation_id AND c.tenant = :tenant",',
        'c.id = m.conversation_id AND c.tenant IN (c.tenant, :tenant)",',
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-find_by_links]",),
        "A history that somebody resends continues the conversation of another tenant.",
    ),
    Mutation(
        "id-of-strangers",
        "app/store/statements.py",
        'FROM conversations WHERE root = :root AND id = :id AND tenant = :tenant",',
        'FROM conversations WHERE root = :root AND id = :id AND tenant IN (tenant, :tenant)",',
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-get_by_id]",),
        "Whoever knows an id reads the conversation of another tenant.",
    ),
    Mutation(
        "external-id-of-strangers",
        "app/store/statements.py",
        "WHERE e.tenant = :tenant AND e.external_id = :external_id AND c.tenant = :tenant",
        "WHERE e.tenant IN (e.tenant, :tenant) AND e.external_id = :external_id AND c.tenant IN (c.tenant, :tenant)",
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-get_by_client_id]",),
        "Two applications that number their chats alike meet in one conversation.",
    ),
    Mutation(
        "summaries-of-strangers",
        "app/store/sqlite_reads.py",
        "WHERE k.root = ?1 AND k.tenant = ?3 {beginning}",
        "WHERE k.root = ?1 AND k.tenant IN (k.tenant, ?3) {beginning}",
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-read_chunks_on_path]",),
        "A summary of another tenant's conversation stands in the view.",
    ),
    Mutation(
        "list-of-strangers",
        "app/store/listing.py",
        'self.require("tenant = :tenant", tenant=tenant)',
        'self.require("tenant IN (tenant, :tenant)", tenant=tenant)',
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-list_all]",),
        "A list of conversations shows those of other tenants.",
    ),
    Mutation(
        "append-at-one-place",
        "app/store/statements.py",
        "AND head_seq = :after_seq AND head_tokens_total",
        "AND head_seq IN (head_seq, :after_seq) AND head_tokens_total",
        ("tests/store/test_contract.py::test_a_log_grows_only_at_its_end[sqlite]",),
        "Two processes that append at once write two different messages to one place of the log.",
    ),
    Mutation(
        "joined-appends-without-fence",
        "app/store/sqlite_appends.py",
        "            require(connection, write.fence, now)",
        "            pass",
        (
            f"{GUARDS}::test_of_appends_at_once_those_whose_lease_was_lost_are_not_written[sqlite-False-have_taken_over]",
        ),
        "A process that lost its lease still writes its turn, if other turns are written at the same moment.",
    ),
    Mutation(
        "joined-appends-without-heads",
        "app/store/sqlite_appends.py",
        ".rowcount != len(rows) // len(advanced[0]):",
        ".rowcount < 0:",
        (f"{GUARDS}::test_of_appends_at_once_those_of_another_tenant_are_not_written[sqlite]",),
        "A turn is acknowledged and not stored, if other turns are written at the same moment.",
    ),
    Mutation(
        "fence-without-token",
        "app/store/sqlite_writes.py",
        "AND holder = ? AND token = ? AND expires_at > ?",
        "AND holder = ? AND token IN (token, ?) AND expires_at > ?",
        (f"{GUARDS}::test_of_appends_at_once_those_whose_lease_was_lost_are_not_written[sqlite-False-claim_again]",),
        "A write under an old lease of a process passes as one under its new lease.",
    ),
    Mutation(
        "fence-without-expiry",
        "app/store/sqlite_writes.py",
        "AND holder = ? AND token = ? AND expires_at > ?",
        "AND holder = ? AND token = ? AND expires_at IN (expires_at, ?)",
        (f"{GUARDS}::test_of_appends_at_once_those_whose_lease_was_lost_are_not_written[sqlite-False-let_expire]",),
        "A process that was paused for minutes writes into a conversation that went on without it.",
    ),
    Mutation(
        "summary-without-fence",
        "app/store/sqlite_writes.py",
        "    require(connection, fence, now)",
        "    pass",
        (f"{GUARDS}::test_of_summaries_at_once_those_whose_lease_was_lost_are_not_kept[sqlite-give_back]",),
        "A summary is stored although what it summarizes was erased while it was written.",
    ),
    Mutation(
        "lease-taken-over-early",
        "app/store/sqlite_writes.py",
        "WHERE leases.expires_at <= ?6 OR leases.holder = excluded.holder",
        "WHERE leases.expires_at != ?6 OR leases.holder = excluded.holder",
        ("tests/store/test_leases.py::test_two_keepers_on_one_database_take_turns[sqlite]",),
        "Two processes hold the lease of one conversation at the same time.",
    ),
    Mutation(
        "lease-renewed-after-loss",
        "app/store/sqlite_writes.py",
        'WHERE root = ? AND key = ? AND holder = ? AND token = ?"',
        'WHERE root = ? AND key = ? AND holder = ? AND token IN (token, ?)"',
        (f"{GUARDS}::test_a_lease_is_released_and_renewed_only_by_its_holder_and_token[sqlite]",),
        "A process renews a lease that it has lost, and keeps the new holder out.",
    ),
    Mutation(
        "idempotency-key-of-another-request",
        "app/store/desk.py",
        'if known == digest else RequestKey("differs")',
        'if known else RequestKey("differs")',
        ("tests/store/test_desk.py::test_a_request_key_is_claimed_once_and_then_says_what_became_of_it[sqlite]",),
        "An idempotency key that is used for a second request gives the answer to the first.",
    ),
    Mutation(
        "idempotency-key-claimed-twice",
        "app/store/desk.py",
        "WHERE request_keys.expires_at <= {now}",
        "WHERE request_keys.expires_at != {now}",
        ("tests/store/test_desk.py::test_a_request_key_is_claimed_once_and_then_says_what_became_of_it[sqlite]",),
        "Two processes answer the requests of one idempotency key.",
    ),
    Mutation(
        "version-of-erased",
        "app/store/redacting.py",
        "if not any(one.seq <= seq < one.to_seq for seq in redacted)]",
        "if not any(one.seq < seq < one.to_seq for seq in redacted)]",
        ("tests/store/test_versions.py::test_no_version_of_a_message_that_was_redacted_meanwhile_is_stored[memory-2]",),
        "A message that was erased is stored again, as its client's version of it.",
    ),
    Mutation(
        "summary-of-erased",
        "app/store/redacting.py",
        "return any(chunk.from_seq <= change.seq < chunk.to_seq for change in changes)",
        "return any(chunk.from_seq < change.seq < chunk.to_seq for change in changes)",
        ("tests/store/test_redaction.py::test_chunks_that_cover_the_message_go_and_those_behind_it_move[memory]",),
        "A summary goes on telling what was erased.",
    ),
    Mutation(
        "precompaction-of-erased",
        "app/store/erasing_scripts.py",
        "    for prefix in RANGE_LEASES:",
        "    for prefix in ():",
        (f"{GUARDS}::test_leases_of_summaries_end_with_an_erasure_and_those_of_other_families_stay[sqlite]",),
        "A summary that was being written while a message was erased tells that message.",
    ),
    Mutation(
        "index-of-erased",
        "app/store/sqlite_search.py",
        "if entry.seq not in redacted and terms:",
        "if terms:",
        (f"{GUARDS}::test_what_was_erased_while_it_was_to_be_indexed_is_not_found[sqlite]",),
        "What was erased is found by a search.",
    ),
    Mutation(
        "view-behind-a-branch",
        "app/exchange/placement.py",
        "if view.boundary.to_seq <= last_seq + 1",
        "if view.boundary",
        ("tests/exchange/test_placement.py::test_a_view_that_began_behind_a_branch_is_not_its",),
        "A branch gets a view that was cut behind the place where it branched off, and lacks what it shares.",
    ),
    Mutation(
        "erasure-before-a-branch",
        "app/exchange/placement.py",
        "shared[REDACTED] = [seq for seq in shared[REDACTED] if seq <= last_seq]",
        "shared[REDACTED] = []",
        ("tests/exchange/test_placement.py::test_pins_and_erasures_behind_a_branch_are_not_its",),
        "A branch forgets what was erased before it, and its client's history brings it back.",
    ),
    Mutation(
        "sealed-for-any-place",
        "app/store/sealing.py",
        'return orjson.dumps(("concertina", kind, tenant, *names))',
        'return orjson.dumps(("concertina", kind))',
        ("tests/store/test_encrypted.py::test_what_another_tenant_said_is_not_read_in_ones_own_name[memory]",),
        "Whoever may write to the database moves an encrypted text to another tenant, who reads it.",
    ),
    Mutation(
        "versions-in-plain-text",
        "app/store/sealing.py",
        "if not self.is_active or not version.bodies:",
        "if not self.is_active or version.bodies:",
        ("tests/store/test_versions.py::test_versions_come_back_as_they_were_written[encrypted memory]",),
        "What a client shows in the place of messages lies in plain text in an encrypted database.",
    ),
    Mutation(
        "index-under-a-key",
        "app/store/encrypted.py",
        "        if self.searches_all:",
        "        if True:",
        ("tests/store/test_encrypted.py::test_no_index_of_words_lies_beside_what_is_encrypted[memory]",),
        "The words of encrypted messages can be guessed from the index beside them.",
    ),
    Mutation(
        "retention-of-used-conversations",
        "app/archive/retention.py",
        "if now is not None and (now.updated_at is None or now.updated_at >= before):",
        "if False:",
        ("tests/archive/test_retention.py::test_a_conversation_that_went_on_meanwhile_stays",),
        "A conversation that goes on while old ones are erased is erased with them.",
    ),
    Mutation(
        "retention-of-the-longest-key",
        "app/archive/retention.py",
        "days[key.tenant] = min(key.retention_days",
        "days[key.tenant] = max(key.retention_days",
        ("tests/archive/test_retention.py::test_the_shortest_of_a_tenants_keys_counts_instead_of_the_general_rule",),
        "Conversations are kept for longer than a key of their tenant promises.",
    ),
)
"""Tenants kept apart, fences of leases, erased texts, encryption, retention."""

MUTATIONS: Final = (*STORE,)
