// Items: added, listed page by page, read, deleted; and a chat completion that goes on where they end.
import assert from 'node:assert/strict';
import { client, gathered, refused } from './client.mjs';

const begun = await client.conversations.create();
const added = await client.conversations.items.create(begun.id, {
  items: [
    { role: 'user', content: [{ type: 'input_text', text: 'What is the answer?' }], type: 'message' },
    { type: 'reasoning', id: 'rs_1', summary: [{ type: 'summary_text', text: 'Look it up.' }] },
    { type: 'function_call', call_id: 'call_1', name: 'look', arguments: '{}' },
    { type: 'function_call_output', call_id: 'call_1', output: '42' },
    { role: 'assistant', content: 'It is 42.', type: 'message', phase: 'final_answer' },
  ],
  include: ['reasoning.encrypted_content'],
});
assert.equal(added.object, 'list');
const types = ['message', 'reasoning', 'function_call', 'function_call_output', 'message'];
assert.deepEqual(added.data.map((item) => item.type), types);
assert.equal(added.data[4].phase, 'final_answer');
assert.deepEqual([added.first_id, added.last_id], [added.data[0].id, added.data[4].id]);

for (const order of ['asc', 'desc']) {
  const listed = await gathered(client.conversations.items.list(begun.id, { limit: 2, order }));
  assert.deepEqual(order === 'asc' ? listed : listed.reverse(), added.data);
}
const found = await client.conversations.items.retrieve(added.data[2].id, { conversation_id: begun.id });
assert.deepEqual(found, added.data[2]);

const answer = await client.chat.completions.create(
  { model: 'sim', messages: [{ role: 'user', content: 'Are you sure?' }] },
  { headers: { 'x-conversation-id': begun.id } },
);
assert.equal(answer.conversation_id, begun.id);
assert.equal((await client.conversations.items.list(begun.id)).data.length, 7);

const left = await client.conversations.items.delete(added.data[0].id, { conversation_id: begun.id });
assert.equal(left.id, begun.id);
await refused(
  client.conversations.items.retrieve(added.data[0].id, { conversation_id: begun.id }), 404, 'item_not_found',
);
const error = await refused(
  client.conversations.items.create(begun.id, { items: [{ type: 'web_search_call', id: 'ws_1', status: 'completed' }] }),
  400,
);
assert.equal(error.param, 'items[0].type');
