"""The table: one line each that users depend on, how it is broken, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLIENT_VERSIONS: Final = "tests/store/contract/conversations/test_client_versions.py"
GUARDS: Final = "tests/store/test_write_guards.py"
PROOF_TESTS: Final = "tests/pipeline/resolve/test_conversation_proof.py"
TURNS: Final = "tests/pipeline/test_turn_guards.py"
IDEMPOTENCY_KEYS: Final = "tests/pipeline/admission/test_idempotency_keys.py"
PLAN: Final = "tests/context/plan/test_planner.py"
STAGES: Final = "tests/context/stages/test_stages.py"
FEATURES: Final = "tests/behaviour/test_features.py"


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
        "app/store/sql/statements.py",
        'c.id = m.conversation_id AND c.tenant = :tenant",',
        'c.id = m.conversation_id AND c.tenant IN (c.tenant, :tenant)",',
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-find_by_links]",),
        "A history that somebody resends continues the conversation of another tenant.",
    ),
    Mutation(
        "id-of-strangers",
        "app/store/sql/statements.py",
        'FROM conversations WHERE root = :root AND id = :id AND tenant = :tenant",',
        'FROM conversations WHERE root = :root AND id = :id AND tenant IN (tenant, :tenant)",',
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-get_by_id]",),
        "Whoever knows an id reads the conversation of another tenant.",
    ),
    Mutation(
        "external-id-of-strangers",
        "app/store/sql/statements.py",
        "WHERE e.tenant = :tenant AND e.external_id = :external_id AND c.tenant = :tenant",
        "WHERE e.tenant IN (e.tenant, :tenant) AND e.external_id = :external_id AND c.tenant IN (c.tenant, :tenant)",
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-get_by_client_id]",),
        "Two applications that number their chats alike meet in one conversation.",
    ),
    Mutation(
        "summaries-of-strangers",
        "app/store/sqlite/reads.py",
        "WHERE k.root = ?1 AND k.tenant = ?3 {beginning}",
        "WHERE k.root = ?1 AND k.tenant IN (k.tenant, ?3) {beginning}",
        (f"{GUARDS}::test_a_stranger_finds_and_changes_nothing[sqlite-read_chunks_on_path]",),
        "A summary of another tenant's conversation stands in the view.",
    ),
    Mutation(
        "append-at-one-place",
        "app/store/sql/statements.py",
        "AND head_seq = :after_seq AND head_tokens_total",
        "AND head_seq IN (head_seq, :after_seq) AND head_tokens_total",
        ("tests/store/contract/conversations/test_conversations.py::test_a_log_grows_only_at_its_end[sqlite]",),
        "Two processes that append at once write two different messages to one place of the log.",
    ),
    Mutation(
        "fence-without-token",
        "app/store/sqlite/writes.py",
        "AND holder = ? AND token = ? AND expires_at > ?",
        "AND holder = ? AND token IN (token, ?) AND expires_at > ?",
        (f"{GUARDS}::test_of_appends_at_once_those_whose_lease_was_lost_are_not_written[sqlite-False-claim_again]",),
        "A write under an old lease of a process passes as one under its new lease.",
    ),
    Mutation(
        "fence-without-expiry",
        "app/store/sqlite/writes.py",
        "AND holder = ? AND token = ? AND expires_at > ?",
        "AND holder = ? AND token = ? AND expires_at IN (expires_at, ?)",
        (f"{GUARDS}::test_of_appends_at_once_those_whose_lease_was_lost_are_not_written[sqlite-False-let_expire]",),
        "A process that was paused for minutes writes into a conversation that went on without it.",
    ),
    Mutation(
        "summary-without-fence",
        "app/store/sql/summary_transactions.py",
        "    if not (yield fence_query):",
        "    if not (yield fence_query) and not fence_query:",
        (f"{GUARDS}::test_of_summaries_at_once_those_whose_lease_was_lost_are_not_kept[sqlite-give_back]",),
        "A summary is stored although what it summarizes was erased while it was written.",
    ),
    Mutation(
        "lease-taken-over-early",
        "app/store/sql/backend.py",
        "WHERE leases.expires_at <= {now} OR leases.holder = excluded.holder",
        "WHERE leases.expires_at != {now} OR leases.holder = excluded.holder",
        ("tests/store/test_leases.py::test_two_keepers_on_one_database_take_turns[sqlite]",),
        "Two processes hold the lease of one conversation at the same time.",
    ),
    Mutation(
        "version-of-erased",
        "app/store/redaction_effects.py",
        "if not any(one.seq <= seq < one.to_seq for seq in redacted)]",
        "if not any(one.seq < seq < one.to_seq for seq in redacted)]",
        (f"{CLIENT_VERSIONS}::test_no_version_of_a_message_that_was_redacted_meanwhile_is_stored[memory-2]",),
        "A message that was erased is stored again, as its client's version of it.",
    ),
    Mutation(
        "summary-of-erased",
        "app/store/redaction_effects.py",
        "return any(summary.from_seq <= change.seq < summary.to_seq for change in changes)",
        "return any(summary.from_seq < change.seq < summary.to_seq for change in changes)",
        (
            "tests/store/contract/conversations/test_redaction.py::test_chunks_that_cover_the_message_go_and_those_behind_it_move[memory]",
        ),
        "A summary goes on telling what was erased.",
    ),
    Mutation(
        "precompaction-of-erased",
        "app/store/sql/conversation_transactions.py",
        "    for prefix in SUMMARY_LEASE_PREFIXES:",
        "    for prefix in ():",
        (f"{GUARDS}::test_leases_of_summaries_end_with_an_erasure_and_those_of_other_families_stay[sqlite]",),
        "A summary that was being written while a message was erased tells that message.",
    ),
    Mutation(
        "index-of-erased",
        "app/store/sqlite/term_index.py",
        "if entry.seq not in redacted and terms:",
        "if terms:",
        (f"{GUARDS}::test_what_was_erased_while_it_was_to_be_indexed_is_not_found[sqlite]",),
        "What was erased is found by a search.",
    ),
    Mutation(
        "view-behind-a-branch",
        "app/pipeline/resolve/resolved_request.py",
        "if view.boundary.to_seq <= last_seq + 1",
        "if view.boundary",
        ("tests/pipeline/resolve/test_resolved_request.py::test_a_view_that_began_behind_a_branch_is_not_its",),
        "A branch gets a view that was cut behind the place where it branched off, and lacks what it shares.",
    ),
    Mutation(
        "sealed-for-any-place",
        "app/store/encryption/sealed_fields.py",
        'return orjson.dumps(("concertina", kind, tenant, *names))',
        'return orjson.dumps(("concertina", kind))',
        (
            "tests/store/encryption/test_encrypted_store.py::test_what_another_tenant_said_is_not_read_in_ones_own_name[memory]",
        ),
        "Whoever may write to the database moves an encrypted text to another tenant, who reads it.",
    ),
    Mutation(
        "versions-in-plain-text",
        "app/store/encryption/sealed_fields.py",
        "bodies=bodies) if bodies:",
        "bodies=bodies) if not bodies:",
        (f"{CLIENT_VERSIONS}::test_versions_come_back_as_they_were_written[encrypted memory]",),
        "What a client shows in the place of messages lies in plain text in an encrypted database.",
    ),
    Mutation(
        "index-under-a-key",
        "app/store/encryption/encrypted_store.py",
        "        if self.is_fully_searchable:",
        "        if True:",
        (
            "tests/store/encryption/test_encrypted_store.py::test_no_index_of_words_lies_beside_what_is_encrypted[memory]",
        ),
        "The words of encrypted messages can be guessed from the index beside them.",
    ),
    Mutation(
        "retention-of-the-longest-key",
        "app/conversations/erase/retention_sweeper.py",
        "days[key.tenant] = min(key.retention_days",
        "days[key.tenant] = max(key.retention_days",
        (
            "tests/conversations/erase/test_retention.py::test_the_shortest_of_a_tenants_keys_counts_instead_of_the_general_rule",
        ),
        "Conversations are kept for longer than a key of their tenant promises.",
    ),
)
"""Tenants kept apart, fences of leases, erased texts, encryption, retention."""

IDENTITY: Final = (
    Mutation(
        "idempotency-key-of-strangers",
        "app/pipeline/admission/request_digest.py",
        "return tenant, request.idempotency_key",
        'return "", request.idempotency_key',
        (f"{TURNS}::test_a_key_of_another_tenant_finds_no_run_in_flight[not stored-whole]",),
        "Two tenants that use the same idempotency key get one answer.",
    ),
    Mutation(
        "retry-of-strangers",
        "app/pipeline/admission/request_digest.py",
        "return tenant, request.caller.api_key_id, list_distinguishing_options(request)",
        'return "", list_distinguishing_options(request)',
        (f"{TURNS}::test_a_retry_of_another_tenant_finds_no_run_in_flight[waiting]",),
        "A request joins the answer that another tenant waits for.",
    ),
    Mutation(
        "retry-in-another-conversation",
        "app/pipeline/admission/request_digest.py",
        "        request.conversation_id,",
        "        None,",
        (f"{TURNS}::test_a_retry_in_another_conversation_finds_no_run_in_flight[waiting]",),
        "A question in one conversation gets the answer that was given in another.",
    ),
    Mutation(
        "retry-with-another-body",
        "app/pipeline/admission/request_digest.py",
        "return one.body == other.body and",
        "return one.body[-1:] == other.body[-1:] and",
        ("tests/pipeline/admission/test_request_coalescing.py::test_bodies_that_end_alike_are_told_apart[100000]",),
        "A request with another model, tool or temperature is taken for a retry, if both end alike.",
    ),
    Mutation(
        "stored-answer-to-another-body",
        "app/pipeline/admission/request_digest.py",
        "return (await _hash_options_and_body(msgspec.json.encode(options), request.body)).hex()[:32]",
        "return (await _hash_options_and_body(msgspec.json.encode(options), b'')).hex()[:32]",
        (
            "tests/pipeline/resolve/test_client_retries.py::test_a_retry_of_another_request_with_the_same_messages_is_answered_anew",
        ),
        "The stored answer of one model is given in the name of another.",
    ),
    Mutation(
        "idempotency-key-with-another-body",
        "app/pipeline/admission/request_digest.py",
        "return await _hash_options_and_body(msgspec.json.encode(list_distinguishing_options(request)), request.body)",
        "return await _hash_options_and_body(msgspec.json.encode(list_distinguishing_options(request)), b'')",
        (f"{IDEMPOTENCY_KEYS}::test_a_key_belongs_to_one_request[fields0-other0]",),
        "An idempotency key that comes with another request gets the first request's answer.",
    ),
    Mutation(
        "idempotency-key-of-erased",
        "app/pipeline/admission/idempotency_keys.py",
        "if request_key.seq in conversation.marks.get(REDACTED, ()):",
        "if False:",
        (f"{IDEMPOTENCY_KEYS}::test_a_key_whose_answer_was_erased_is_answered_anew[its words]",),
        "An idempotency key gives an answer again that was erased.",
    ),
    Mutation(
        "answers-of-strangers",
        "app/conversation/identity.py",
        '_encode_tenant(tenant) + b"\\0" + value)[:LINK_BYTES]',
        "value)[:LINK_BYTES]",
        ("tests/conversation/test_identity.py::test_names_of_answers_are_shared_by_no_tenants_and_no_kinds",),
        "Answers have the same names for all tenants: the database tells who got the same answer.",
    ),
    Mutation(
        "proof-by-words-alone",
        "app/pipeline/resolve/conversation_proof.py",
        'if fingerprint.kind == "words" and not has_known_neighbour(log, history, proof.seq, index):',
        "if False:",
        (PROOF_TESTS + "::test_words_prove_only_beside_a_known_message",),
        "An answer that was pasted into another chat proves the conversation that it was given in.",
    ),
    Mutation(
        "log-that-lacks-an-answer",
        "app/pipeline/resolve/conversation_proof.py",
        "return bool(await self._find_proofs(request, digests))",
        "return False",
        (PROOF_TESTS + "::test_a_log_that_lacks_an_earlier_answer_of_ours_is_refuted",),
        "One cached answer among answers of a person's own joins that person to another's conversation.",
    ),
    Mutation(
        "one-answer-for-a-window",
        "app/pipeline/resolve/conversation_proof.py",
        "return found if count + _quotes_answer(log, history) >= 2 else None",
        "return found",
        (PROOF_TESTS + "::test_a_history_that_leaves_out_the_beginning_needs_two_answers",),
        "One answer that an application served from its cache joins Bob to Alice's conversation.",
    ),
    Mutation(
        "chain-of-another",
        "app/pipeline/resolve/conversation_proof.py",
        "if await self._is_chain_of_another(request, client_history, found):",
        "if False:",
        (PROOF_TESTS + "::test_an_answer_that_was_lost_in_mid_stream_proves_nobody_elses_conversation",),
        "A person whose stream was cut by a crash goes on in the conversation of somebody with the same question.",
    ),
    Mutation(
        "branch-without-its-beginning",
        "app/pipeline/resolve/history_resolution.py",
        "if not is_named and leaves_out_said_words(aligned_log, alignment.last_seq + 1):",
        "if False:",
        (PROOF_TESTS + "::test_a_branch_is_given_only_to_who_carries_all_that_was_said_before",),
        "Who carries the end of a conversation gets an id that reads all of it.",
    ),
    Mutation(
        "named-conversation-continued",
        "app/pipeline/resolve/history_resolution.py",
        "return request.conversation_id is None and conversation.is_named",
        "return False",
        (PROOF_TESTS + "::test_a_conversation_that_its_caller_names_is_only_branched",),
        "Somebody without an id writes into a conversation that an application has named.",
    ),
    Mutation(
        "end-users-together",
        "app/pipeline/resolve/resolved_request.py",
        "        and request.end_user_digest != stored_end_user",
        "        and False",
        ("tests/pipeline/resolve/test_conversation_ids.py::test_an_id_that_two_end_users_share_never_joins_them",),
        "End users of one application go on in each other's conversations by an id that they share.",
    ),
    Mutation(
        "end-users-counted-together",
        "app/conversation/fingerprints.py",
        'parts = [tenant, end_user or "", *(hint or ())]',
        'parts = [tenant, "", *(hint or ())]',
        ("tests/conversation/test_fingerprints.py::test_scopes_share_no_fingerprints",),
        "An answer of one end user proves the conversation of another.",
    ),
)
"""Retries and idempotency keys, and whose conversation a history is."""

CONTEXT: Final = (
    Mutation(
        "threshold",
        "app/context/plan/policy.py",
        "threshold_ratio: float = 0.7",
        "threshold_ratio: float = 0.72",
        (f"{PLAN}::test_a_view_exactly_on_the_line_does_not_trigger_and_one_token_more_does",),
        "Compaction begins at another share of the window than the documentation says.",
    ),
    Mutation(
        "reserve",
        "app/context/plan/budget.py",
        "hard = max(1, window - reserve - output)",
        "hard = max(1, window - output)",
        (f"{PLAN}::test_what_a_request_reserves_for_its_answer_moves_the_line_of_preparation_too",),
        "Prompts fill the window to its last token, and providers refuse them.",
    ),
    Mutation(
        "soft-line",
        "app/context/plan/budget.py",
        "soft = min(hard, max(policy.token_floor",
        "soft = max(hard, max(policy.token_floor",
        (f"{PLAN}::test_a_view_exactly_on_the_line_does_not_trigger_and_one_token_more_does",),
        "Nothing is summarized before the window is full.",
    ),
    Mutation(
        "calibrated-line",
        "app/context/plan/budget.py",
        "return raw_tokens if ratio == 1 else round(raw_tokens * ratio)",
        "return raw_tokens",
        (f"{PLAN}::test_calibration_moves_the_line",),
        "Prompts that a provider counts higher than we do pass its window.",
    ),
    Mutation(
        "buffer-share",
        "app/context/plan/policy.py",
        "buffer_max_ratio: float = 0.3",
        "buffer_max_ratio: float = 0.6",
        (f"{PLAN}::test_fewer_turns_stay_verbatim_when_they_are_long[800-3]",),
        "Verbatim turns take twice the share of the window that the documentation says.",
    ),
    Mutation(
        "fold-share",
        "app/context/plan/policy.py",
        "fold_ratio: float = 0.3",
        "fold_ratio: float = 0.6",
        (f"{PLAN}::test_heavy_chunks_are_folded_and_the_fold_stands_for_them",),
        "Summaries fill more than half of the window before they are folded.",
    ),
    Mutation(
        "mask-chars",
        "app/context/plan/policy.py",
        "mask_chars: int = 300",
        "mask_chars: int = 30",
        (f"{STAGES}::test_a_masked_result_keeps_about_300_characters_head_and_tail",),
        "A masked result keeps hardly a line.",
    ),
    Mutation(
        "result-share",
        "app/context/plan/policy.py",
        "result_ratio: float = 0.3",
        "result_ratio: float = 0.5",
        (f"{STAGES}::test_one_result_may_take_30_percent_of_what_instructions_leave[0-12000]",),
        "One tool result takes half of the window.",
    ),
    Mutation(
        "fade-bands",
        "app/context/plan/policy.py",
        "((0.99, 0.05), (0.9, 0.2), (0.85, 0.5), (0.8, 1.0))",
        "((0.99, 0.05), (0.9, 0.2), (0.8, 1.0))",
        (f"{STAGES}::test_results_fade_in_bands_of_pressure[8500-6000]",),
        "A band of pressure is missing: results lose four fifths at once.",
    ),
    Mutation(
        "target",
        "app/context/plan/policy.py",
        "target_ratio: float = 0.75",
        "target_ratio: float = 0.95",
        (
            "tests/context/stages/test_view_stability.py::test_tool_results_are_shortened_only_where_that_frees_a_tenth_of_the_view",
        ),
        "A cut frees so little that the next turn cuts again, and the provider's cache misses.",
    ),
    Mutation(
        "newest-message",
        "app/context/stages/drop_rounds_and_summaries.py",
        "if request is None or entry.seq != request.seq]",
        "if request is None or entry.seq != -1]",
        (f"{STAGES}::test_an_even_share_leaves_at_least_200_characters_and_the_request_whole",),
        "The request itself is cut when nothing else helps.",
    ),
    Mutation(
        "call-without-result",
        "app/context/plan/log_rounds.py",
        "while end < count and roles[end] in TOOL_RESULT_ROLES:",
        "while end < count and roles[end] in ():",
        ("tests/context/plan/test_log_cuts.py::test_a_round_is_a_message_or_a_call_with_the_results_right_after_it",),
        "A cut parts a tool call from its result, and providers refuse the view.",
    ),
    Mutation(
        "missing-result",
        "app/dialects/missing_tool_results.py",
        "if len(results) >= len(asking.tool_calls) or",
        "if results or",
        ("tests/dialects/test_missing_results.py::test_a_call_without_a_result_gets_one_behind_the_others",),
        "A call without result stays open beside others, and providers refuse every later turn.",
    ),
    Mutation(
        "lowest-slope",
        "app/context/calibration.py",
        "LOWEST_SLOPE: Final = 0.7",
        "LOWEST_SLOPE: Final = 0.1",
        ("tests/context/test_calibration.py::test_the_slope_is_kept_within_bounds",),
        "One odd report makes prompts count a tenth: they pass the window.",
    ),
    Mutation(
        "highest-slope",
        "app/context/calibration.py",
        "HIGHEST_SLOPE: Final = 1.6",
        "HIGHEST_SLOPE: Final = 16.0",
        ("tests/context/test_calibration.py::test_the_slope_is_kept_within_bounds",),
        "One odd report makes prompts count tenfold: they are summarized without need.",
    ),
    Mutation(
        "relevance",
        "app/context/quote/quote_selection.py",
        "return most > 0 and most >= MIN_RELEVANCE_SHARE * once",
        "return most > 0",
        (f"{FEATURES}::test_a_word_that_turns_up_every_so_often_is_no_reason_to_quote",),
        "Old messages that share a common word with the question are quoted.",
    ),
    Mutation(
        "fence-of-summaries",
        "app/context/view/view_rendering.py",
        'inner = _FENCE_IN_TEXT.sub("&lt;", text.strip())',
        "inner = text.strip()",
        ("tests/context/view/test_view_messages.py::test_a_summary_cannot_close_its_own_fence",),
        "Text in a summary closes its fence and speaks as the user.",
    ),
    Mutation(
        "refusal-by-estimate",
        "app/pipeline/view/view_builder.py",
        "if LOWEST_SLOPE * turn.build_counted_prompt(view).estimated_tokens > budget.window:",
        "if True:",
        (
            "tests/pipeline/view/test_token_estimates.py::test_where_only_an_estimate_says_too_long_the_provider_decides[True]",
        ),
        "Requests that fit are refused because of the gateway's own estimate.",
    ),
    Mutation(
        "status-of-mechanical",
        "app/context/stages/shortening_planner.py",
        'if changed or (summaries and all(summary.kind == "mechanical" for summary in summaries)):',
        "if changed:",
        (f"{PLAN}::test_mechanical_summaries_alone_make_a_view_trimmed",),
        "An answer says `summarized` where no model has summarized anything.",
    ),
)
"""Budgets, shortening, calibration, quotations."""

EDGE: Final = (
    Mutation(
        "scope",
        "app/api/edge/auth.py",
        "if required_scope is not None and required_scope not in key.scopes:",
        "if False:",
        ("tests/api/edge/test_auth.py::test_what_a_key_lacks_is_named[chat]",),
        "A key that may only read changes and erases conversations.",
    ),
    Mutation(
        "key-budget",
        "app/pipeline/admission/request_coalescing.py",
        "if self._limits is not None and self._limits.is_limited(request.caller):",
        "if False:",
        ("tests/api/admin/test_costs.py::test_a_key_over_its_budget_is_refused_until_the_month_ends",),
        "A key that has spent its budget goes on spending.",
    ),
    Mutation(
        "key-expired",
        "app/conversation/api_keys.py",
        "self.expires_at <= moment",
        "self.expires_at is moment",
        ("tests/api/edge/test_auth.py::test_a_key_that_is_unknown_revoked_or_expired_is_refused_without_being_told",),
        "An expired key lets somebody in.",
    ),
    Mutation(
        "own-key-passed-on",
        "app/api/edge/auth.py",
        "            tenant=key.tenant,",
        '            authorization=headers.get("authorization"), tenant=key.tenant,',
        ("tests/api/edge/test_auth.py::test_a_key_is_its_tenant_and_never_travels_on",),
        "Providers see the gateway's own keys.",
    ),
    Mutation(
        "client-key-shown",
        "app/upstream/provider_contract.py",
        '(rule == "if_meant" and provider.name == self.intended_provider)',
        'rule == "if_meant"',
        ("tests/security/test_client_keys.py::test_a_clients_key_stays_with_the_first_provider_of_its_model",),
        "A client's key for one provider is shown to another provider.",
    ),
    Mutation(
        "foreign-pages",
        "app/api/edge/header_checks.py",
        "if not (is_loopback(name) or name in self._allowed_hosts):",
        "if False:",
        ("tests/security/test_visitors.py::test_what_another_sites_page_sends_without_a_key_is_refused",),
        "Any web page uses a gateway without keys through its visitor's browser.",
    ),
    Mutation(
        "rebound-names",
        "app/api/edge/header_checks.py",
        'return not self._allowed_hosts and ("." not in name or name.endswith(RESERVED_DOMAIN_SUFFIXES))',
        "return True",
        (
            "tests/security/test_request_heads.py::test_a_gateway_without_keys_is_not_reached_by_a_name_that_was_made_to_mean_it",
        ),
        "A web page reads the answers of a gateway without keys by DNS rebinding.",
    ),
    Mutation(
        "headers-of-providers",
        "app/api/edge/headers.py",
        "if name in CLIENT_HEADERS or name.startswith(CLIENT_HEADER_PREFIXES)",
        "if True",
        ("tests/security/test_passed_headers.py::test_headers_of_a_provider_pass_only_where_they_are_known[GET-200]",),
        "Cookies of providers reach clients.",
    ),
    Mutation(
        "answer-of-another",
        "app/upstream/http/aiohttp_transport.py",
        "if not connection.protocol.should_close:",
        "if True:",
        ("tests/upstream/http/test_connections.py::test_what_comes_while_a_connection_is_idle_ends_it",),
        "What a provider sends on an idle connection reaches the next caller of it.",
    ),
    Mutation(
        "body-limit",
        "app/api/edge/request_reader.py",
        "        if size > limit_bytes:",
        "        if False:",
        ("tests/api/test_invalid_requests.py::test_a_body_over_the_limit_is_refused_however_it_is_sent",),
        "A body without a length fills the memory.",
    ),
    Mutation(
        "request-framing",
        "app/api/edge/connections.py",
        'if codings and (codings.lower() != b"chunked" or',
        "if codings and (False or",
        ("tests/security/test_request_framing.py::test_a_body_is_chunked_and_nothing_else",),
        "A request that a proxy reads otherwise smuggles a second request.",
    ),
    Mutation(
        "nesting",
        "app/conversation/json_depth.py",
        "MAX_JSON_DEPTH: Final = 200",
        "MAX_JSON_DEPTH: Final = 2_000",
        ("tests/conversation/test_json_depth.py::test_a_message_that_is_nested_too_deeply_is_refused_by_name",),
        "Deeply nested JSON breaks whatever reads the log later.",
    ),
    Mutation(
        "tenant-bound",
        "app/pipeline/admission/admission.py",
        "if self.running_count >= self._max_running or running >= self._max_running_per_tenant:",
        "if self.running_count >= self._max_running:",
        ("tests/pipeline/admission/test_fair_queue.py::test_a_tenant_at_its_own_bound_leaves_places_to_others",),
        "One tenant takes all places.",
    ),
    Mutation(
        "secrets-in-logs",
        "app/observability/log.py",
        'return _SECRETS.sub(lambda match: f"{match[match.lastindex or 0]}***", text)',
        "return text",
        ("tests/observability/test_log.py::test_keys_and_passwords_are_blotted_out",),
        "Keys and passwords stand in the log.",
    ),
    Mutation(
        "retry-after",
        "app/api/edge/error_responses.py",
        "math.ceil(pause_seconds)",
        "int(pause_seconds)",
        ("tests/api/edge/test_error_responses.py::test_nobody_is_told_to_come_again_too_early[1.2-2]",),
        "Clients come again too early, and are refused again.",
    ),
    Mutation(
        "should-retry",
        "app/api/edge/error_responses.py",
        "if not error.retryable and (error.status < 500 or",
        "if not error.retryable and (False or",
        ("tests/api/edge/test_error_responses.py::test_every_path_and_status_answers_in_one_shape[GET-/nope-404]",),
        "SDKs repeat requests that can never succeed.",
    ),
    Mutation(
        "code-of-length",
        "app/errors.py",
        'code = "context_length_exceeded"',
        'code = "context_too_long"',
        ("tests/api/edge/test_error_responses.py::test_what_cannot_fit_is_refused_in_the_words_that_clients_look_for",),
        "Clients that look for `context_length_exceeded` do not find it.",
    ),
    Mutation(
        "status-degraded",
        "app/pipeline/respond/context_status.py",
        "    if resolved_request.is_degraded:",
        "    if False:",
        ("tests/store/test_database_outage.py::test_histories_are_served_and_appends_are_not[False]",),
        "An answer that is not stored does not say so.",
    ),
    Mutation(
        "status-bypassed",
        "app/pipeline/respond/context_status.py",
        'if is_stateless and plan.status == "full":',
        "if False:",
        ("tests/pipeline/resolve/test_conversation_ids.py::test_the_mode_header_settles_what_messages_are",),
        "An answer that is not to be stored says `full`, as if it were.",
    ),
    Mutation(
        "question-without-fence",
        "app/pipeline/persist/turn_writer.py",
        "fence=resolved_request.lease,\n            versions=",
        "fence=None,\n            versions=",
        (f"{TURNS}::test_a_turn_whose_lease_expired_while_the_log_stood_still_is_not_stored",),
        "A question is stored although its conversation has gone on without it.",
    ),
    Mutation(
        "summary-of-outdated",
        "app/compaction/summary_maker.py",
        "return [seq for seq in stored.redacted_seqs if seq <= last_seq] != known_seqs",
        "return False",
        (
            "tests/compaction/test_outdated_ranges.py::test_a_message_that_was_erased_while_its_range_waited_is_not_summarized",
        ),
        "A summary that read what was erased meanwhile is written.",
    ),
)
"""Keys, limits, headers, logs, errors, status."""

UPSTREAM: Final = (
    Mutation(
        "first-byte-timeout",
        "app/upstream/http/http_client.py",
        "self.answer_by = self.limit_time(self.timeouts.first_byte_seconds)",
        "self.answer_by = self.limit_time(None)",
        ("tests/upstream/protocols/test_openai.py::test_a_provider_that_never_answers_times_out",),
        "A provider that never answers holds its request for ever.",
    ),
    Mutation(
        "silence-timeout",
        "app/upstream/http/http_client.py",
        "piece_by = limits.limit_time(limits.timeouts.between_bytes_seconds)",
        "piece_by = limits.limit_time(None)",
        ("tests/upstream/protocols/test_openai.py::test_the_first_byte_may_take_longer_than_the_pauses_between_bytes",),
        "A provider that falls silent holds its stream for ever.",
    ),
    Mutation(
        "sent-and-dropped",
        "app/upstream/http/aiohttp_transport.py",
        '            raise httpx.ReadError("") from error\n        except aiohttp.ClientError',
        '            raise httpx.ConnectError("") from error\n        except aiohttp.ClientError',
        (
            "tests/upstream/http/test_connections.py::test_a_post_that_is_read_and_dropped_is_sent_once_and_never_told_as_not_sent",
        ),
        "A call that its provider has read and dropped is told to be one that was never sent.",
    ),
    Mutation(
        "calls-in-a-queue",
        "app/upstream/http/aiohttp_transport.py",
        "limit=0,",
        "limit=100,",
        ("tests/upstream/http/test_connections.py::test_500_calls_at_once_do_not_wait_for_each_other",),
        "The 101st call at once waits for one of the others.",
    ),
    Mutation(
        "compressed-without-bound",
        "app/upstream/http/decompression.py",
        "if allowed_bytes < 0:",
        "if False:",
        ("tests/upstream/http/test_inflate.py::test_a_stream_that_inflates_too_far_is_cut",),
        "A few compressed kilobytes of a provider fill the memory.",
    ),
    Mutation(
        "again-after-timeout",
        "app/upstream/routing/router.py",
        "may_retry=not isinstance(error, AnswerTimedOut)",
        "may_retry=True",
        ("tests/upstream/routing/test_router.py::test_a_call_that_timed_out_goes_to_the_next_deployment",),
        "A provider that is slow is paid for the same answer three times.",
    ),
    Mutation(
        "rate-limit-as-overflow",
        "app/upstream/protocols/overflow_detection.py",
        "if not has_overflow_code and _OTHER_LIMIT_PATTERN.search(error_text):",
        "if False:",
        ("tests/upstream/protocols/test_overflow.py::test_other_refusals_are_not_taken_for_an_overflow",),
        "A rate limit on tokens makes the conversation be summarized.",
    ),
    Mutation(
        "stream-unfinished",
        "app/dialects/chat/stream_splicer.py",
        "if self.stream_failure is None and not self.answer.is_complete:",
        "if False:",
        (
            "tests/pipeline/respond/test_stream_failures.py::test_a_stream_that_breaks_ends_with_an_error_frame_and_is_kept_as_incomplete",
        ),
        "A stream that broke off ends as if it were whole.",
    ),
    Mutation(
        "usage-chunk",
        "app/dialects/chat/stream_splicer.py",
        "if not self._include_usage and",
        "if False and",
        ("tests/pipeline/respond/test_stream_format.py::test_the_usage_chunk_reaches_only_clients_that_asked",),
        "Clients that did not ask for usage get a chunk without choices, and some break.",
    ),
    Mutation(
        "error-chunk",
        "app/dialects/chat/stream_splicer.py",
        "if answer.error is not None or name == ERROR_EVENT:",
        "if name == ERROR_EVENT:",
        (
            "tests/pipeline/respond/test_stream_failures.py::test_a_stream_that_breaks_ends_with_an_error_frame_and_is_kept_as_incomplete",
        ),
        "An error in the middle of a stream is taken for an answer.",
    ),
    Mutation(
        "incomplete-as-whole",
        "app/pipeline/respond/response_delivery.py",
        "incomplete = not collector.is_complete or relay.stream_failure is not None",
        "incomplete = False",
        (
            "tests/pipeline/respond/test_stream_failures.py::test_a_stream_that_breaks_ends_with_an_error_frame_and_is_kept_as_incomplete",
        ),
        "An answer that broke off is stored as a whole one, and given to retries.",
    ),
)
"""Providers: timeouts, retries, overflows, ends of streams."""

MUTATIONS: Final = (*STORE, *IDENTITY, *CONTEXT, *EDGE, *UPSTREAM)
