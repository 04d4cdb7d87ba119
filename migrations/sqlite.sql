-- All tables after the newest migration. A test compares them with what the migrations leave.
--
-- JSON is TEXT, and the database never re-encodes it. Times are UTC in ISO 8601 with microseconds, so text order is
-- time order. No comment may stand inside a statement, where SQLite would store it, or have a semicolon, at which the
-- text is split.

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

-- Digests by which conversations are found whose clients rewrite their histories.
CREATE TABLE anchors (
	digest BLOB NOT NULL,
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	kept_at TEXT NOT NULL,
	CONSTRAINT anchors_pkey PRIMARY KEY (digest, root, conversation_id, seq)
)
 WITHOUT ROWID;

CREATE INDEX anchors_conversation ON anchors (root, conversation_id);

CREATE TABLE api_keys (
	id TEXT NOT NULL,
	digest TEXT NOT NULL,
	hint TEXT NOT NULL,
	name TEXT NOT NULL,
	tenant TEXT NOT NULL,
	scopes TEXT NOT NULL,
	created_at TEXT NOT NULL,
	policy TEXT,
	models TEXT NOT NULL,
	retention_days INTEGER,
	expires_at TEXT,
	revoked_at TEXT,
	budget_usd DOUBLE,
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
	usd DOUBLE NOT NULL,
	expires_at TEXT NOT NULL,
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
	created_at TEXT NOT NULL,
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
	from_link BLOB NOT NULL,
	to_link BLOB NOT NULL,
	to_skeleton BLOB,
	text TEXT NOT NULL,
	tokens INTEGER NOT NULL,
	tokens_total BIGINT NOT NULL,
	anchor_seq INTEGER,
	anchor_tokens INTEGER NOT NULL,
	through_turn INTEGER NOT NULL,
	kind TEXT NOT NULL,
	model TEXT NOT NULL,
	prompt_version TEXT NOT NULL,
	created_at TEXT NOT NULL,
	folds TEXT NOT NULL,
	is_fold BOOLEAN NOT NULL,
	duration_ms INTEGER NOT NULL,
	usage TEXT,
	revision INTEGER DEFAULT '1' NOT NULL,
	versions_digest BLOB DEFAULT '' NOT NULL,
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
)
 WITHOUT ROWID;

CREATE TABLE completions (
	tenant TEXT NOT NULL,
	id TEXT NOT NULL,
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	model TEXT NOT NULL,
	created_at TEXT NOT NULL,
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
	head_link BLOB NOT NULL,
	head_skeleton BLOB NOT NULL,
	head_tokens_total BIGINT NOT NULL,
	answered BOOLEAN NOT NULL,
	encoding TEXT NOT NULL,
	lineage TEXT NOT NULL,
	external_id TEXT,
	mode TEXT NOT NULL,
	chunk_count INTEGER NOT NULL,
	state TEXT NOT NULL,
	metadata TEXT NOT NULL,
	created_at TEXT NOT NULL,
	updated_at TEXT NOT NULL,
	marks TEXT DEFAULT '{}' NOT NULL,
	indexed_before INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT conversations_pkey PRIMARY KEY (root, id)
);

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
	digest BLOB NOT NULL,
	root TEXT,
	conversation_id TEXT,
	seq INTEGER,
	CONSTRAINT fingerprints_pkey PRIMARY KEY (digest)
)
 WITHOUT ROWID;

CREATE INDEX fingerprints_place ON fingerprints (root, conversation_id) WHERE conversation_id IS NOT NULL;

CREATE TABLE leases (
	root TEXT NOT NULL,
	"key" TEXT NOT NULL,
	holder TEXT NOT NULL,
	token BIGINT NOT NULL,
	expires_at TEXT NOT NULL,
	CONSTRAINT leases_pkey PRIMARY KEY (root, "key")
);

-- What the passages of messages mean, as vectors of an embedding model (context.quote.meaning).
CREATE TABLE message_vectors (
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	model TEXT NOT NULL,
	seq INTEGER NOT NULL,
	link BLOB NOT NULL,
	vectors BLOB NOT NULL,
	CONSTRAINT message_vectors_pkey PRIMARY KEY (root, conversation_id, model, seq)
);

CREATE TABLE messages (
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	seq INTEGER NOT NULL,
	body TEXT NOT NULL,
	link BLOB NOT NULL,
	skeleton BLOB NOT NULL,
	in_skeleton BOOLEAN NOT NULL,
	tokens INTEGER NOT NULL,
	tokens_total BIGINT NOT NULL,
	answered BOOLEAN NOT NULL,
	incomplete BOOLEAN NOT NULL,
	created_at TEXT NOT NULL,
	meta TEXT,
	CONSTRAINT messages_pkey PRIMARY KEY (root, conversation_id, seq)
);

-- answered is part of the key: thousands of conversations may begin with the same greeting, and unanswered ones
-- are then skipped without reading their rows.
CREATE INDEX messages_link ON messages (root, link, answered, conversation_id);

CREATE INDEX messages_skeleton ON messages (root, skeleton, answered, conversation_id) WHERE in_skeleton = 1;

CREATE TABLE model_facts (
	model TEXT NOT NULL,
	facts TEXT NOT NULL,
	updated_at TEXT NOT NULL,
	CONSTRAINT model_facts_pkey PRIMARY KEY (model)
);

CREATE TABLE postings (
	scope BIGINT NOT NULL,
	term BIGINT NOT NULL,
	seq INTEGER NOT NULL,
	CONSTRAINT postings_pkey PRIMARY KEY (scope, term, seq)
)
 WITHOUT ROWID;

-- Calls of the last minute by the second in which they began, for rate limits.
CREATE TABLE rate_counts (
	scope TEXT NOT NULL,
	second BIGINT NOT NULL,
	requests BIGINT NOT NULL,
	tokens BIGINT NOT NULL,
	CONSTRAINT rate_counts_pkey PRIMARY KEY (scope, second)
)
 WITHOUT ROWID;

CREATE TABLE request_keys (
	tenant TEXT NOT NULL,
	"key" TEXT NOT NULL,
	digest BLOB NOT NULL,
	holder TEXT NOT NULL,
	state TEXT NOT NULL,
	conversation_id TEXT,
	seq INTEGER,
	kept_seconds INTEGER NOT NULL,
	expires_at TEXT NOT NULL,
	CONSTRAINT request_keys_pkey PRIMARY KEY (tenant, "key")
);

-- Model calls that have ended, without content (store.request_history).
CREATE TABLE requests (
	id TEXT NOT NULL,
	started_at DOUBLE NOT NULL,
	duration_ms DOUBLE NOT NULL,
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
)
 WITHOUT ROWID;

-- The conversations that have any term in the search index.
CREATE TABLE tenant_scopes (
	tenant_scope BIGINT NOT NULL,
	scope BIGINT NOT NULL,
	root TEXT NOT NULL,
	conversation_id TEXT NOT NULL,
	CONSTRAINT tenant_scopes_pkey PRIMARY KEY (tenant_scope, scope)
)
 WITHOUT ROWID;

-- When words of a conversation or of its branches were erased last: older capsules of it give no content.
CREATE TABLE tombstones (
	root TEXT NOT NULL,
	family_id TEXT NOT NULL,
	erased_at TEXT NOT NULL,
	CONSTRAINT tombstones_pkey PRIMARY KEY (root, family_id)
)
 WITHOUT ROWID;

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
	cost_usd DOUBLE NOT NULL,
	CONSTRAINT usage_totals_pkey PRIMARY KEY (key_id, day, tenant, model)
)
 WITHOUT ROWID
