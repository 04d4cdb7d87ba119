-- All tables after the newest migration. A test compares them with what the migrations leave.
--
-- Keys of tables that belong to a family of branches begin with its root, so that a distributed PostgreSQL can keep a
-- family on one shard (root as the distribution column): no foreign keys across shards, no sequences. Tables that are
-- searched by tenant (external_ids, completions, request_keys, the tenant-wide search index) or by neither (anchors,
-- fingerprints, api_keys, usage_totals, budget_reservations, rate_counts, requests, server_secrets, model_facts) are
-- exceptions.
--
-- JSON is TEXT, and the database never re-encodes it.

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

-- Digests by which conversations are found whose clients rewrite their histories.
CREATE TABLE anchors (
	digest BYTEA NOT NULL,
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	kept_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT anchors_pkey PRIMARY KEY (digest, root, conversation_id, seq)
);

CREATE INDEX anchors_conversation ON anchors (root, conversation_id);

CREATE TABLE api_keys (
	id TEXT NOT NULL,
	digest TEXT NOT NULL,
	hint TEXT NOT NULL,
	name TEXT NOT NULL,
	tenant TEXT NOT NULL,
	scopes TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	policy TEXT,
	models TEXT NOT NULL,
	retention_days INTEGER,
	expires_at TIMESTAMP WITH TIME ZONE,
	revoked_at TIMESTAMP WITH TIME ZONE,
	budget_usd DOUBLE PRECISION,
	pass_through TEXT,
	requests_per_minute INTEGER,
	tokens_per_minute INTEGER,
	CONSTRAINT api_keys_pkey PRIMARY KEY (id)
);

CREATE UNIQUE INDEX api_keys_digest ON api_keys (digest);

-- What running calls of keys with a budget may cost.
CREATE TABLE budget_reservations (
	id TEXT NOT NULL,
	key_id TEXT NOT NULL,
	holder TEXT NOT NULL,
	usd DOUBLE PRECISION NOT NULL,
	expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT budget_reservations_pkey PRIMARY KEY (id)
);

CREATE INDEX budget_reservations_key ON budget_reservations (key_id);

-- Earlier texts of summaries. The present text is in chunks.
CREATE TABLE chunk_revisions (
	root TEXT NOT NULL,
	chunk_id TEXT NOT NULL,
	revision INTEGER NOT NULL,
	tenant TEXT NOT NULL,
	text TEXT NOT NULL,
	tokens INTEGER NOT NULL,
	kind TEXT NOT NULL,
	model TEXT NOT NULL,
	prompt_version TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	duration_ms INTEGER NOT NULL,
	usage TEXT,
	CONSTRAINT chunk_revisions_pkey PRIMARY KEY (root, chunk_id, revision)
);

-- to_skeleton is not written any more. Rows of earlier versions have a link of the skeleton there.
CREATE TABLE chunks (
	root TEXT NOT NULL,
	id TEXT NOT NULL,
	tenant TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	from_seq INTEGER NOT NULL,
	to_seq INTEGER NOT NULL,
	from_link BYTEA NOT NULL,
	to_link BYTEA NOT NULL,
	to_skeleton BYTEA,
	text TEXT NOT NULL,
	tokens INTEGER NOT NULL,
	tokens_total BIGINT NOT NULL,
	anchor_seq INTEGER,
	anchor_tokens INTEGER NOT NULL,
	through_turn INTEGER NOT NULL,
	kind TEXT NOT NULL,
	model TEXT NOT NULL,
	prompt_version TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	folds TEXT NOT NULL,
	is_fold BOOLEAN NOT NULL,
	duration_ms INTEGER NOT NULL,
	usage TEXT,
	revision INTEGER DEFAULT '1' NOT NULL,
	versions_digest BYTEA DEFAULT '' NOT NULL,
	CONSTRAINT chunks_pkey PRIMARY KEY (root, id)
);

CREATE INDEX chunks_end ON chunks (root, to_link);

-- One summary for each range, kind and state of the client's changes, which from_link names, too
-- (rows.mask_from_link): two processes that summarize the same range at once store one.
CREATE UNIQUE INDEX chunks_range ON chunks (root, from_link, to_link, is_fold);

-- What clients show in place of log messages. The log keeps the originals.
CREATE TABLE client_versions (
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	since_seq INTEGER NOT NULL,
	to_seq INTEGER NOT NULL,
	bodies TEXT,
	tokens_delta INTEGER NOT NULL,
	CONSTRAINT client_versions_pkey PRIMARY KEY (root, conversation_id, since_seq, seq)
);

CREATE TABLE completions (
	tenant TEXT NOT NULL,
	id TEXT NOT NULL,
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	model TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	metadata TEXT NOT NULL,
	parameters TEXT NOT NULL,
	instructions TEXT NOT NULL,
	CONSTRAINT completions_pkey PRIMARY KEY (tenant, id)
);

CREATE INDEX completions_conversation ON completions (root, conversation_id);

CREATE INDEX completions_listed ON completions (tenant, created_at, id);

CREATE TABLE conversations (
	root TEXT NOT NULL,
	id TEXT NOT NULL,
	tenant TEXT NOT NULL,
	head_seq INTEGER NOT NULL,
	head_link BYTEA NOT NULL,
	head_skeleton BYTEA NOT NULL,
	head_tokens_total BIGINT NOT NULL,
	answered BOOLEAN NOT NULL,
	encoding TEXT NOT NULL,
	lineage TEXT NOT NULL,
	external_id TEXT,
	mode TEXT NOT NULL,
	chunk_count INTEGER NOT NULL,
	state TEXT NOT NULL,
	metadata TEXT NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
	marks TEXT DEFAULT '{}' NOT NULL,
	indexed_before INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT conversations_pkey PRIMARY KEY (root, id)
);

-- No column that a turn changes may be in an index: the row could then not be updated in place (HOT update).
CREATE INDEX conversations_listed ON conversations (tenant, created_at, id);

CREATE TABLE external_ids (
	tenant TEXT NOT NULL,
	external_id TEXT NOT NULL,
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	CONSTRAINT external_ids_pkey PRIMARY KEY (tenant, external_id)
);

CREATE INDEX external_ids_conversation ON external_ids (root, conversation_id);

-- Fingerprints of all answers that the gateway gave, each with its only place. Without a place, it is spent.
CREATE TABLE fingerprints (
	digest BYTEA NOT NULL,
	root TEXT,
	conversation_id TEXT,
	seq INTEGER,
	CONSTRAINT fingerprints_pkey PRIMARY KEY (digest)
);

CREATE INDEX fingerprints_place ON fingerprints (root, conversation_id) WHERE conversation_id IS NOT NULL;

CREATE TABLE leases (
	root TEXT NOT NULL,
	key TEXT NOT NULL,
	holder TEXT NOT NULL,
	token BIGINT NOT NULL,
	expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT leases_pkey PRIMARY KEY (root, key)
);

CREATE TABLE message_terms (
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	terms BIGINT[] NOT NULL,
	CONSTRAINT message_terms_pkey PRIMARY KEY (root, conversation_id, seq)
);

-- A short list of pending entries: each search goes through it, whoever wrote them. Without one, writing takes
-- several times as long.
CREATE INDEX message_terms_terms ON message_terms USING gin (terms) WITH (fastupdate = on, gin_pending_list_limit = 128);

-- What the passages of messages mean, as vectors of an embedding model (context.quote.meaning).
CREATE TABLE message_vectors (
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	model TEXT NOT NULL,
	seq INTEGER NOT NULL,
	link BYTEA NOT NULL,
	vectors BYTEA NOT NULL,
	CONSTRAINT message_vectors_pkey PRIMARY KEY (root, conversation_id, model, seq)
);

CREATE TABLE messages (
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	body TEXT NOT NULL,
	link BYTEA NOT NULL,
	skeleton BYTEA NOT NULL,
	in_skeleton BOOLEAN NOT NULL,
	tokens INTEGER NOT NULL,
	tokens_total BIGINT NOT NULL,
	answered BOOLEAN NOT NULL,
	incomplete BOOLEAN NOT NULL,
	created_at TIMESTAMP WITH TIME ZONE NOT NULL,
	meta TEXT,
	CONSTRAINT messages_pkey PRIMARY KEY (root, conversation_id, seq)
);

-- answered is part of the key: thousands of conversations may begin with the same greeting, and unanswered ones
-- are then skipped without reading their rows.
CREATE INDEX messages_link ON messages (root, link, answered, conversation_id);

CREATE INDEX messages_skeleton ON messages (root, skeleton, answered, conversation_id) WHERE in_skeleton;

CREATE TABLE model_facts (
	model TEXT NOT NULL,
	facts TEXT NOT NULL,
	updated_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT model_facts_pkey PRIMARY KEY (model)
);

-- Calls of the last minute by the second in which they began, for rate limits.
CREATE TABLE rate_counts (
	scope TEXT NOT NULL,
	second BIGINT NOT NULL,
	requests BIGINT NOT NULL,
	tokens BIGINT NOT NULL,
	CONSTRAINT rate_counts_pkey PRIMARY KEY (scope, second)
);

CREATE TABLE request_keys (
	tenant TEXT NOT NULL,
	key TEXT NOT NULL,
	digest BYTEA NOT NULL,
	holder TEXT NOT NULL,
	state TEXT NOT NULL,
	conversation_id TEXT,
	seq INTEGER,
	kept_seconds INTEGER NOT NULL,
	expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT request_keys_pkey PRIMARY KEY (tenant, key)
);

-- Model calls that have ended, without content (store.request_history).
CREATE TABLE requests (
	id TEXT NOT NULL,
	started_at DOUBLE PRECISION NOT NULL,
	duration_ms DOUBLE PRECISION NOT NULL,
	status INTEGER NOT NULL,
	error TEXT,
	tenant TEXT,
	key_id TEXT,
	model TEXT,
	answered_by TEXT,
	provider TEXT,
	context_status TEXT,
	conversation_id TEXT,
	record TEXT NOT NULL,
	CONSTRAINT requests_pkey PRIMARY KEY (id)
);

CREATE INDEX requests_conversation ON requests (conversation_id);

CREATE INDEX requests_listed ON requests (started_at, id);

CREATE TABLE server_secrets (
	name TEXT NOT NULL,
	value TEXT NOT NULL,
	CONSTRAINT server_secrets_pkey PRIMARY KEY (name)
);

-- Which conversations have a term in any of their messages.
CREATE TABLE tenant_postings (
	tenant_scope BIGINT NOT NULL,
	term BIGINT NOT NULL,
	scope BIGINT NOT NULL,
	CONSTRAINT tenant_postings_pkey PRIMARY KEY (tenant_scope, term, scope)
);

-- The conversations that have any term in the search index.
CREATE TABLE tenant_scopes (
	tenant_scope BIGINT NOT NULL,
	scope BIGINT NOT NULL,
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	CONSTRAINT tenant_scopes_pkey PRIMARY KEY (tenant_scope, scope)
);

-- When words of a conversation or of its branches were erased last: older capsules of it give no content.
CREATE TABLE tombstones (
	root TEXT NOT NULL,
	family_id TEXT NOT NULL,
	erased_at TIMESTAMP WITH TIME ZONE NOT NULL,
	CONSTRAINT tombstones_pkey PRIMARY KEY (root, family_id)
);

-- Sums that every process adds to every few seconds (store.usage_recorder).
CREATE TABLE usage_totals (
	tenant TEXT NOT NULL,
	key_id TEXT NOT NULL,
	day TEXT NOT NULL,
	model TEXT NOT NULL,
	requests BIGINT NOT NULL,
	unpriced_calls BIGINT NOT NULL,
	prompt_tokens BIGINT NOT NULL,
	cached_tokens BIGINT NOT NULL,
	completion_tokens BIGINT NOT NULL,
	cost_usd DOUBLE PRECISION NOT NULL,
	CONSTRAINT usage_totals_pkey PRIMARY KEY (key_id, day, tenant, model)
)
