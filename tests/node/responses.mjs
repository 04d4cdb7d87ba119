// Responses: whole, streamed, through the stream helper, continued, read, counted, deleted, and refused.
import assert from 'node:assert/strict';
import { client, gathered, refused } from './client.mjs';

const asked = { model: 'sim', instructions: 'Answer briefly.', input: 'The archive has locker code 7741.' };
const waiting = client.responses.create({ ...asked, metadata: { topic: 'demo' } });
const raw = await waiting.asResponse();
const whole = await waiting;
assert.equal(raw.headers.get('x-context-status'), 'full');
assert.equal(whole.context_status, 'full');
assert.equal(whole.conversation_id, raw.headers.get('x-conversation-id'));
assert.match(whole.id, /^resp_/);
assert.equal(whole.object, 'response');
assert.equal(whole.status, 'completed');
assert.equal(whole.instructions, 'Answer briefly.');
assert.deepEqual(whole.metadata, { topic: 'demo' });
assert.match(whole.output_text, /7741/);
assert.equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens);

const next = { model: 'sim', previous_response_id: whole.id, input: 'What is the locker code of the archive?' };
const events = await gathered(await client.responses.create({ ...next, stream: true }));
assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
assert.equal(events[0].type, 'response.created');
assert.equal(events.at(-1).type, 'response.completed');
const { response: streamed } = events.at(-1);
assert.equal(streamed.conversation_id, whole.conversation_id);
assert.equal(streamed.previous_response_id, whole.id);
const text = events.filter(({ type }) => type === 'response.output_text.delta').map(({ delta }) => delta).join('');
assert.match(text, /7741/);
assert.equal(streamed.output.at(-1).content[0].text, text);

const helped = await client.responses.stream({ model: 'sim', input: 'What is a concertina?' }).finalResponse();
assert.ok(helped.output_text);

const weather = {
  type: 'function',
  name: 'get_weather',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  strict: false,
};
const tools = [weather];
const called = await client.responses.create({ model: 'sim', input: 'Call get_weather for "Oslo".', tools });
const [{ call_id, name }] = called.output.filter((item) => item.type === 'function_call');
assert.equal(name, 'get_weather');
const told = await client.responses.create({
  model: 'sim',
  previous_response_id: called.id,
  input: [{ type: 'function_call_output', call_id, output: '{"celsius": -4}' }],
  tools,
});
assert.match(told.output_text, /-4/);

// What the client adds to an answer.
const added = ['output_text', 'output_parsed', 'parsed', 'parsed_arguments'];
const sent = (response) => JSON.parse(JSON.stringify(response, (key, value) => (added.includes(key) ? undefined : value)));
for (const made of [whole, streamed, helped, called, told]) {
  assert.equal(made.status, 'completed');
  assert.deepEqual(sent(await client.responses.retrieve(made.id)), sent(made));
}
const items = await gathered(client.responses.inputItems.list(streamed.id, { limit: 1, order: 'asc' }));
const said = items.filter((item) => item.role === 'user').map((item) => item.content[0].text);
assert.deepEqual(said, [asked.input, next.input]);
const counted = await client.responses.inputTokens.count(asked);
assert.deepEqual([counted.object, counted.input_tokens > 0], ['response.input_tokens', true]);

await client.responses.delete(told.id);
await refused(client.responses.retrieve(told.id), 404);
await refused(client.responses.create({ ...next, previous_response_id: told.id }), 400, 'previous_response_not_found');
await refused(client.responses.create({ ...asked, background: true }), 400, 'unsupported_parameter');
await refused(client.responses.retrieve(whole.id, { stream: true }), 400, 'unsupported_parameter');
await refused(client.responses.cancel(whole.id), 400);
const compacted = await client.responses.compact({ model: 'sim', input: 'x' });
assert.deepEqual(compacted.output.map((item) => item.type), ['message', 'compaction']);
await refused(client.responses.compact({ input: 'x' }), 400, 'missing_required_parameter');
const stray = { type: 'function_call_output', call_id: 'call_stray', output: '' };
const error = await refused(client.responses.create({ model: 'sim', input: [stray] }), 400);
assert.equal(error.param, 'input[0].call_id');
