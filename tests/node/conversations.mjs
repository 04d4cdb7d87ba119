// Conversations: begun, read, described, deleted.
import assert from 'node:assert/strict';
import { client, refused } from './client.mjs';

const { data: begun, response } = await client.conversations
  .create({ metadata: { topic: 'demo' }, items: [{ role: 'user', content: 'Hi' }] })
  .withResponse();
assert.equal(begun.object, 'conversation');
assert.equal(typeof begun.created_at, 'number');
assert.deepEqual(begun.metadata, { topic: 'demo' });
assert.equal(response.headers.get('x-conversation-id'), begun.id);
assert.ok(response.headers.get('x-request-id'));

assert.deepEqual(await client.conversations.retrieve(begun.id), begun);
const changed = await client.conversations.update(begun.id, { metadata: { topic: 'other' } });
assert.deepEqual(changed.metadata, { topic: 'other' });
assert.deepEqual((await client.conversations.update(begun.id, { metadata: null })).metadata, {});

const empty = await client.conversations.create();
assert.deepEqual(empty.metadata, {});

const gone = await client.conversations.delete(begun.id);
assert.deepEqual(gone, { id: begun.id, object: 'conversation.deleted', deleted: true });
await refused(client.conversations.retrieve(begun.id), 404, 'conversation_not_found');
await refused(client.conversations.create({ metadata: { a: 'x'.repeat(513) } }), 400);
