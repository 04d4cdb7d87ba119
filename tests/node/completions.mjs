// Stored completions: listed, read with their messages, described, forgotten.
import assert from 'node:assert/strict';
import { client, gathered, refused } from './client.mjs';

const metadata = { topic: 'demo' };
const made = [];
for (const content of ['One?', 'Two?', 'Three?']) {
  made.push(
    await client.chat.completions.create({ model: 'sim', messages: [{ role: 'user', content }], store: true, metadata }),
  );
}
const listed = await gathered(client.chat.completions.list({ limit: 2, metadata }));
assert.deepEqual(listed.map((one) => one.id), made.map((one) => one.id));
const found = await client.chat.completions.retrieve(made[0].id);
assert.equal(found.choices[0].message.content, made[0].choices[0].message.content);

const messages = await gathered(client.chat.completions.messages.list(made[0].id));
assert.deepEqual(messages.map((one) => one.content), ['One?']);

const changed = await client.chat.completions.update(made[0].id, { metadata: { topic: 'other' } });
assert.deepEqual(changed.metadata, { topic: 'other' });
const gone = await client.chat.completions.delete(made[0].id);
assert.deepEqual([gone.id, gone.deleted], [made[0].id, true]);
await refused(client.chat.completions.retrieve(made[0].id), 404);
