-- Distributes a migrated, preferably empty, database over a Citus cluster. Run it once, as the owner of the tables, on
-- the coordinator, before the first gateway starts: psql --single-transaction --set ON_ERROR_STOP=1 --file distribute.sql

-- A family of branches lives on one shard: whatever a turn reads or writes is led by its root.
SELECT create_distributed_table('conversations', 'root', colocate_with => 'none');
SELECT create_distributed_table('messages', 'root', colocate_with => 'conversations');
SELECT create_distributed_table('client_versions', 'root', colocate_with => 'conversations');
SELECT create_distributed_table('chunks', 'root', colocate_with => 'conversations');
SELECT create_distributed_table('chunk_revisions', 'root', colocate_with => 'conversations');
SELECT create_distributed_table('message_terms', 'root', colocate_with => 'conversations');
SELECT create_distributed_table('message_vectors', 'root', colocate_with => 'conversations');
SELECT create_distributed_table('leases', 'root', colocate_with => 'conversations');
SELECT create_distributed_table('tombstones', 'root', colocate_with => 'conversations');

-- What is found by its tenant before any root is known.
SELECT create_distributed_table('external_ids', 'tenant', colocate_with => 'none');
SELECT create_distributed_table('completions', 'tenant', colocate_with => 'external_ids');
SELECT create_distributed_table('request_keys', 'tenant', colocate_with => 'external_ids');

-- What is found by itself.
SELECT create_distributed_table('anchors', 'digest', colocate_with => 'none');
SELECT create_distributed_table('requests', 'id', colocate_with => 'none');

-- The index over all of a tenant's conversations, by a hash of the tenant.
SELECT create_distributed_table('tenant_postings', 'tenant_scope', colocate_with => 'none');
SELECT create_distributed_table('tenant_scopes', 'tenant_scope', colocate_with => 'tenant_postings');

-- Each append writes it beside its root's tables, and each look-up joins it with them: a copy on every node.
SELECT create_reference_table('fingerprints');

-- Small, read everywhere, seldom written (`usage_totals` by each process every five seconds): a copy on every node.
SELECT create_reference_table('api_keys');
SELECT create_reference_table('usage_totals');
SELECT create_reference_table('budget_reservations');
SELECT create_reference_table('rate_counts');
SELECT create_reference_table('server_secrets');
SELECT create_reference_table('model_facts');
SELECT create_reference_table('alembic_version');
