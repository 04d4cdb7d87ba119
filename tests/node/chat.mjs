// Chat completions: whole, streamed, through the stream helper, and refused.
import assert from 'node:assert/strict';
import { client, gathered, refused } from './client.mjs';

const messages = [{ role: 'user', content: 'What is a concertina?' }];
const whole = await client.chat.completions.create({ model: 'sim', messages });
assert.ok(whole.choices[0].message.content);
assert.equal(whole.context_status, 'full');

const chunks = await gathered(await client.chat.completions.create({ model: 'sim', messages, stream: true }));
assert.ok(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''));
assert.ok(chunks.every((chunk) => chunk.conversation_id));

const helped = await client.chat.completions.stream({ model: 'sim', messages }).finalChatCompletion();
assert.ok(helped.choices[0].message.content);

await refused(client.chat.completions.create({ model: 'sim', messages: [] }), 400);
await refused(
  client.chat.completions.create({ model: 'sim', messages, conversation: { id: `conv_${'0'.repeat(48)}` } }),
  404,
  'conversation_not_found',
);
