// Anthropic's client: a message, whole and streamed by the helper, the tool runner, an error, tokens and models.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema';

const client = new Anthropic({ baseURL: process.env.GATEWAY_URL, apiKey: 'sk-one', maxRetries: 0 });
const asked = { model: 'm', max_tokens: 99, messages: [{ role: 'user', content: 'Hi' }] };

const whole = await client.messages.create({ ...asked, system: 'Be brief.' });
assert.equal(whole.type, 'message');
assert.equal(whole.content.at(-1).text, 'Fine.');
assert.equal(whole.stop_reason, 'end_turn');
assert.ok(whole.usage.input_tokens > 0);
assert.equal(whole.context_status, 'full');

const words = [];
const helper = client.messages.stream(asked).on('text', (text) => words.push(text));
const helped = await helper.finalMessage();
assert.equal(words.join(''), 'Fine.');
assert.equal(helped.content.at(-1).text, 'Fine.');
assert.ok(helped.usage.output_tokens > 0);

const events = [];
for await (const event of await client.messages.create({ ...asked, stream: true })) events.push(event.type);
assert.equal(events[0], 'message_start');
assert.equal(events.at(-1), 'message_stop');

const looked = [];
const look = betaTool({
  name: 'look',
  description: 'Looks at a place.',
  inputSchema: { type: 'object', properties: { at: { type: 'string' } }, required: ['at'] },
  run: ({ at }) => {
    looked.push(at);
    return 'open';
  },
});
for (const stream of [false, true]) {
  const question = [{ role: 'user', content: `Look, ${stream ? 'in a stream' : 'at once'}.` }];
  const runner = client.beta.messages.toolRunner({ ...asked, messages: question, tools: [look], stream });
  const last = await runner.runUntilDone();
  assert.equal(last.content.at(-1).text, 'It is open.');
}
assert.deepEqual(looked, ['gate', 'gate']);

const refused = await client.messages.create({ ...asked, messages: [{ role: 'user', content: 7 }] }).catch((e) => e);
assert.ok(refused instanceof Anthropic.BadRequestError);
assert.equal(refused.error.error.type, 'invalid_request_error');
assert.match(refused.message, /messages\.0\.content/);
assert.ok(refused.requestID);

const counted = await client.messages.countTokens({ model: 'm', messages: asked.messages });
assert.ok(counted.input_tokens > 0);
const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.deepEqual(models, ['upstream-model']);
assert.equal((await client.models.retrieve('upstream-model')).type, 'model');
