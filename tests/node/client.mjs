// What the scripts share: a client of the gateway that the tests have started, and the ways to expect a refusal.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

export const client = new OpenAI({ baseURL: process.env.GATEWAY_URL, apiKey: 'sk-one', maxRetries: 0 });

export async function refused(asked, status, code) {
  const error = await asked.then(() => null, (found) => found);
  assert.ok(error instanceof OpenAI.APIError, 'it was not refused');
  assert.equal(error.status, status);
  if (code !== undefined) assert.equal(error.code, code);
  return error;
}

export async function gathered(pages) {
  const found = [];
  for await (const one of pages) found.push(one);
  return found;
}
